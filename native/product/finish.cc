// What follows a product: read from its task's attributes.
#include "product/finish.h"

#include <charconv>

namespace npu {
namespace {

using product::Activation;
using product::Epilogue;

bool read_clip(std::string_view text, Epilogue& epilogue) {
  const std::size_t first = text.find(','), second = text.find(',', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  const char* end = text.data() + text.size();
  return std::from_chars(text.data() + first + 1, end, epilogue.low).ec == std::errc() &&
         std::from_chars(text.data() + second + 1, end, epilogue.high).ec == std::errc();
}

bool read_activation(std::string_view text, Epilogue& epilogue) {
  if (text == "gelu_erf") {
    epilogue.activation = Activation::GeluErf;
  } else if (text == "gelu_tanh") {
    epilogue.activation = Activation::GeluTanh;
  } else if (text == "relu") {
    epilogue.activation = Activation::Clip;
    epilogue.low = 0.0f;
  } else if (text.substr(0, text.find(',')) == "clip" && read_clip(text, epilogue)) {
    epilogue.activation = Activation::Clip;
  } else {
    return false;
  }
  return true;
}

bool is_row(const Matrix& m, const Matrix& y) { return m.dims == Dims{1, y.dims[1]} && m.strides[1] == 1; }

bool lies_like(const Matrix& m, const Matrix& y) { return m.dims == y.dims && m.strides == y.strides; }

}  // namespace

std::optional<Finish> read_finish(const Lowering& low, const Matrix& y, const std::vector<Matrix>& posts,
                                  bool (*accepts)(DType)) {
  Finish finish;
  const std::size_t first = low.attrs().flag("has_bias") ? 3 : 2;
  if (first == 3) finish.bias = 2;
  std::size_t next = 0;
  for (const std::string& text : low.attrs().texts("post_ops")) {
    if (finish.epilogue.activation != Activation::None) return std::nullopt;
    const bool summed = finish.accumulates || finish.residual;
    const bool reads = next < posts.size() && accepts(low.input(first + next).dtype);
    const bool adds = text == "add" && reads && !finish.factor;
    if (text == "sum" && !summed && !finish.factor) {
      finish.accumulates = true;
    } else if (adds && !finish.bias && is_row(posts[next], y)) {
      finish.bias = first + next++;
    } else if (adds && !summed && lies_like(posts[next], y)) {
      finish.residual = first + next++;
    } else if (text == "mul" && reads && !finish.factor && lies_like(posts[next], y)) {
      finish.factor = first + next++;
    } else if (!read_activation(text, finish.epilogue)) {
      return std::nullopt;
    }
  }
  finish.epilogue.has_bias = finish.bias.has_value();
  finish.epilogue.has_residual = finish.residual.has_value();
  finish.epilogue.has_factor = finish.factor.has_value();
  return next == posts.size() ? std::optional(finish) : std::nullopt;
}

bool is_unscaled(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  return (!attrs.flag("has_bias") || low.input(2).contiguous()) && !attrs.flag("has_weight_scales") &&
         !attrs.has("src_scale") && !attrs.has("dst_scale");
}

bool lie_in_lines(const Matrix& a, const Matrix& b, const Matrix& y) {
  const auto lies = [](const Matrix& m) {
    return m.dims.size() == 2 && (m.strides[0] == 1 || m.strides[1] == 1);
  };
  return lies(a) && a.dims[1] > 0 && lies(b) && y.dims.size() == 2 && y.strides[1] == 1;
}

product::Problem problem_of(const Matrix& a, const Matrix& b, const Matrix& y, const Finish& finish) {
  return {y.dims[0],    y.dims[1],    a.dims[1],    a.strides[0],       a.strides[1],
          b.strides[0], b.strides[1], y.strides[0], finish.accumulates, finish.epilogue};
}

double flops_of(const product::Problem& problem) {
  return 2.0 * static_cast<double>(problem.rows * problem.columns) * static_cast<double>(problem.depth);
}

std::string layout_of(const Matrix& a, const Matrix& b) {
  return (a.strides[1] == 1 ? "ab," : "ba,") + std::string(b.strides[1] == 1 ? "ab" : "ba");
}

Places::Places(Lowering& low, const Finish& finish, std::size_t buffer_bytes)
    : a(low.at(low.input(0))),
      b(low.at(low.input(1))),
      y(low.at(low.output(0))),
      buffers(low.scratch(buffer_bytes)) {
  if (finish.bias) bias = low.at(low.input(*finish.bias));
  if (finish.residual) residual = low.at(low.input(*finish.residual));
  if (finish.factor) factor = low.at(low.input(*finish.factor));
}

void Places::bind(Binder& binder, Addresses& to) const {
  binder.address(&to.a, a);
  binder.address(&to.b, b);
  binder.address(&to.y, y);
  binder.address(&to.buffers, buffers);
  if (bias) binder.address(&to.bias, *bias);
  if (residual) binder.address(&to.residual, *residual);
  if (factor) binder.address(&to.factor, *factor);
}

}  // namespace npu
