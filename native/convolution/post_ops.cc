// Converts the post-operations of a task to an epilogue.
#include "convolution/post_ops.h"

#include <charconv>

namespace npu::convolution {
namespace {

struct Known {
  std::string_view name;
  Activation activation;
  float alpha, beta;  // default
};

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Known kKnown[] = {
    {"relu", Activation::Clip, 0.0f, kInfinity},
    {"clip", Activation::Clip, 0.0f, 6.0f},
    {"swish", Activation::Swish, 1.0f, 0.0f},
    {"hardswish", Activation::HardSwish, 1.0f / 6.0f, 0.5f},
};

}  // namespace

bool read_activation(std::string_view text, Epilogue& epilogue) {
  const std::string_view kind = text.substr(0, text.find(','));
  for (const Known& known : kKnown) {
    if (known.name != kind) continue;
    float numbers[] = {known.alpha, known.beta};
    std::string_view rest = text.substr(kind.size());
    for (float& number : numbers) {
      if (rest.empty()) break;
      rest.remove_prefix(1);
      const std::string_view digits = rest.substr(0, rest.find(','));
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (error != std::errc() || end != digits.data() + digits.size()) return false;
      rest.remove_prefix(digits.size());
    }
    epilogue.activation = known.activation;
    epilogue.alpha = epilogue.low = numbers[0];
    epilogue.beta = epilogue.high = numbers[1];
    return rest.empty();
  }
  return false;
}

std::optional<Finish> read_finish(const Lowering& low, std::size_t next) {
  Finish finish;
  const View& y = low.output(0);
  for (const std::string& text : low.attrs().texts("post_ops")) {
    if (finish.epilogue.activation != Activation::None) return std::nullopt;
    if (text == "add" && !finish.residual) {
      const View& operand = low.input(next++);
      if (operand.dims != y.dims || operand.strides != y.strides || operand.dtype != y.dtype)
        return std::nullopt;
      finish.residual = operand;
    } else if (text == "sum" && !finish.residual) {
      finish.residual = y;
    } else if (!read_activation(text, finish.epilogue)) {
      return std::nullopt;
    }
  }
  finish.next = next;
  return finish;
}

bool has_plain_operands(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const View& x = low.input(0);
  const View& w = low.input(1);
  if (x.dims.size() != 4 || w.dims.size() != 4 || low.output(0).dims.size() != 4) return false;
  if (x.dims[0] != low.output(0).dims[0]) return false;
  if (x.dtype != w.dtype || x.dtype != low.output(0).dtype || !low.is_constant(w)) return false;
  if (attrs.flag("has_bias")) {
    const View& bias = low.input(2);
    if (bias.dtype != DType::Float32 || !bias.contiguous() || bias.elements() != low.output(0).dims[1])
      return false;
  }
  return x.strides[1] == 1 && low.output(0).strides[1] == 1 && !attrs.has("src_scale") &&
         !attrs.flag("has_weight_scales");
}

}  // namespace npu::convolution
