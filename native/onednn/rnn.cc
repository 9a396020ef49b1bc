// Task kind "rnn": LSTM, GRU and plain recurrent layers.
#include <algorithm>
#include <string_view>

#include "onednn/engine.h"
#include "onednn/primitive.h"
#include "recurrent/lower.h"

namespace npu {
namespace {

using dnnl::rnn_direction;

struct Cell {
  std::string_view name;
  std::int64_t gates;
  std::int64_t bias_gates;
  bool has_cell_state;
};

constexpr Cell kCells[] = {
    {"lstm", 4, 4, true},          {"gru", 3, 3, false},          {"gru_lbr", 3, 4, false},
    {"vanilla_tanh", 1, 1, false}, {"vanilla_relu", 1, 1, false},
};

struct Direction {
  std::string_view name;
  rnn_direction value;
};

constexpr Direction kDirections[] = {
    {"forward", rnn_direction::unidirectional_left2right},
    {"reverse", rnn_direction::unidirectional_right2left},
    {"bidirectional", rnn_direction::bidirectional_concat},
    {"bidirectional_sum", rnn_direction::bidirectional_sum},
};

template <class Entry, std::size_t N>
const Entry& find_entry(const Lowering& low, const Entry (&table)[N], const std::string& name) {
  for (const Entry& entry : table) {
    if (entry.name == name) return entry;
  }
  low.reject("unknown value '" + name + "'");
}

// Indices of the operands among the task's views; -1 if absent.
struct Slots {
  int x = 0, h0 = -1, c0 = -1, w_ih = -1, w_hh = -1, bias = -1;
  int y = 0, h_n = -1, c_n = -1;

  Slots(const Lowering& low, const Cell& cell) {
    int next = 1;
    if (low.attrs().flag("has_initial", true)) {
      h0 = next++;
      if (cell.has_cell_state) c0 = next++;
    }
    w_ih = next++;
    w_hh = next++;
    if (low.attrs().flag("has_bias", true)) bias = next++;
    if (static_cast<int>(low.input_count()) != next) {
      low.reject(std::to_string(next) + " inputs are needed, " + std::to_string(low.input_count()) +
                 " given");
    }
    const int outputs = static_cast<int>(low.output_count());
    if (outputs > 1) h_n = 1;
    if (outputs > 2 && cell.has_cell_state) c_n = 2;
  }
};

class RnnLowering {
 public:
  explicit RnnLowering(Lowering& low)
      : low_(low),
        cell_(find_entry(low, kCells, low.attrs().text("cell"))),
        direction_(find_entry(low, kDirections, low.attrs().text("direction", "forward")).value),
        slots_(low, cell_) {
    x_ = describe(low, low.input(0));
    y_ = describe(low, low.output(0));
    h0_ = optional_input(slots_.h0);
    c0_ = optional_input(slots_.c0);
    w_ih_ = describe(low, input(slots_.w_ih));
    w_hh_ = describe(low, input(slots_.w_hh));
    bias_ = optional_input(slots_.bias);
    h_n_ = slots_.h_n > 0 ? describe(low, output(slots_.h_n)) : Desc();
    c_n_ = slots_.c_n > 0 ? describe(low, output(slots_.c_n)) : Desc();
    check();
    const auto steps = static_cast<double>(low.input(0).dims[0] * low.input(0).dims[1]);
    flops_ = 2.0 * steps * static_cast<double>(input(slots_.w_ih).elements() + input(slots_.w_hh).elements());
  }

  void lower() {
    const TeamScope team(team_of(low_));
    const auto attr = base_attr();
    const auto kind = dnnl::prop_kind::forward_inference;
    const Desc w_ih = any_layout(w_ih_), w_hh = any_layout(w_hh_);
    const dnnl::engine& engine = onednn_engine();
    if (cell_.name == "lstm") {
      finish<dnnl::lstm_forward>(dnnl::lstm_forward::primitive_desc(engine, kind, direction_, x_, h0_, c0_,
                                                                    w_ih, w_hh, bias_, y_, h_n_, c_n_, attr));
    } else if (cell_.name == "gru") {
      finish<dnnl::gru_forward>(dnnl::gru_forward::primitive_desc(engine, kind, direction_, x_, h0_, w_ih,
                                                                  w_hh, bias_, y_, h_n_, attr));
    } else if (cell_.name == "gru_lbr") {
      finish<dnnl::lbr_gru_forward>(dnnl::lbr_gru_forward::primitive_desc(engine, kind, direction_, x_, h0_,
                                                                          w_ih, w_hh, bias_, y_, h_n_, attr));
    } else {
      const auto activation =
          cell_.name == "vanilla_relu" ? dnnl::algorithm::eltwise_relu : dnnl::algorithm::eltwise_tanh;
      finish<dnnl::vanilla_rnn_forward>(dnnl::vanilla_rnn_forward::primitive_desc(
          engine, kind, activation, direction_, x_, h0_, w_ih, w_hh, bias_, y_, h_n_, attr));
    }
  }

 private:
  const View& input(int i) const { return low_.input(static_cast<std::size_t>(i)); }
  const View& output(int i) const { return low_.output(static_cast<std::size_t>(i)); }
  Desc optional_input(int i) const { return i < 0 ? Desc() : describe(low_, input(i)); }

  void check() const {
    const auto rank = [&](const View& view, std::size_t wanted, const char* what) {
      if (view.dims.size() != wanted) low_.reject(std::string(what) + " has the wrong number of dimensions");
    };
    rank(low_.input(0), 3, "x (T, N, I)");
    rank(low_.output(0), 3, "y (T, N, D*H)");
    rank(input(slots_.w_ih), 5, "w_ih (L, D, I, G, H)");
    rank(input(slots_.w_hh), 5, "w_hh (L, D, H, G, H)");
    if (slots_.bias >= 0) rank(input(slots_.bias), 4, "bias (L, D, G, H)");
    for (const int state : {slots_.h0, slots_.c0}) {
      if (state >= 0) rank(input(state), 4, "an initial state (L, D, N, H)");
    }
    if (input(slots_.w_ih).dims[3] != cell_.gates) low_.reject("the weights have the wrong number of gates");
    if (slots_.bias >= 0 && input(slots_.bias).dims[2] != cell_.bias_gates) {
      low_.reject("the bias has the wrong number of gates");
    }
  }

  template <class Primitive, class PrimitiveDesc>
  void finish(const PrimitiveDesc& desc) {
    PrimitiveBuilder builder(low_);
    builder.read(DNNL_ARG_SRC_LAYER, low_.input(0), x_, x_);
    if (slots_.h0 >= 0) builder.read(DNNL_ARG_SRC_ITER, input(slots_.h0), h0_, h0_);
    if (slots_.c0 >= 0) builder.read(DNNL_ARG_SRC_ITER_C, input(slots_.c0), c0_, c0_);
    builder.read(DNNL_ARG_WEIGHTS_LAYER, input(slots_.w_ih), w_ih_, desc.weights_layer_desc());
    builder.read(DNNL_ARG_WEIGHTS_ITER, input(slots_.w_hh), w_hh_, desc.weights_iter_desc());
    if (slots_.bias >= 0) builder.read(DNNL_ARG_BIAS, input(slots_.bias), bias_, bias_);
    builder.write(DNNL_ARG_DST_LAYER, low_.output(0), y_, y_);
    if (slots_.h_n >= 0) builder.write(DNNL_ARG_DST_ITER, output(slots_.h_n), h_n_, h_n_);
    if (slots_.c_n >= 0) builder.write(DNNL_ARG_DST_ITER_C, output(slots_.c_n), c_n_, c_n_);
    builder.finish<Primitive>(desc, layout_name(desc.weights_layer_desc()), flops_);
  }

  Lowering& low_;
  const Cell& cell_;
  rnn_direction direction_;
  Slots slots_;
  Desc x_, y_, h0_, c0_, w_ih_, w_hh_, bias_, h_n_, c_n_;
  double flops_ = 0;
};

void lower_library_rnn(Lowering& low) { RnnLowering(low).lower(); }

constexpr Implementation kLayers[] = {{"small_batch", lower_small_lstm}, {"onednn", lower_library_rnn}};

}  // namespace

void lower_rnn(Lowering& low) { lower_named(low, kLayers); }

}  // namespace npu
