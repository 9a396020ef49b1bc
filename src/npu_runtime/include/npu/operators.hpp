// A function for each operator of the library. Made by `python -m ge.ops.header`.
// clang-format off
//
// Inputs come first, then attributes by name: ops::softmax(x, {.axes = {-1}}). An input that is absent is Value().
// Branches and loops, whose attributes are graphs, are not here.
#ifndef NPU_OPERATORS_HPP_
#define NPU_OPERATORS_HPP_

#include <npu/attributes.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tf_adapter::ops {

// abs(x), per element.
inline Value abs(const Value& x) {
  return detail::add("Abs", {x}, detail::Attributes(), 1)[0];
}

// acos(x), per element.
inline Value acos(const Value& x) {
  return detail::add("Acos", {x}, detail::Attributes(), 1)[0];
}

// acosh(x), per element.
inline Value acosh(const Value& x) {
  return detail::add("Acosh", {x}, detail::Attributes(), 1)[0];
}

// add(a, b), per element.
inline Value add(const Value& a, const Value& b) {
  return detail::add("Add", {a, b}, detail::Attributes(), 1)[0];
}

// and(a, b), per element.
inline Value and_(const Value& a, const Value& b) {
  return detail::add("And", {a, b}, detail::Attributes(), 1)[0];
}

// argmax along axis.
struct ArgMaxAttributes {
  std::int64_t axis = 0;
  bool keepdims = true;
  bool select_last = false;
};
inline Value arg_max(const Value& x, const ArgMaxAttributes& attributes = {}) {
  return detail::add("ArgMax", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("keepdims", attributes.keepdims)
          .put("select_last", attributes.select_last), 1)[0];
}

// argmin along axis.
struct ArgMinAttributes {
  std::int64_t axis = 0;
  bool keepdims = true;
  bool select_last = false;
};
inline Value arg_min(const Value& x, const ArgMinAttributes& attributes = {}) {
  return detail::add("ArgMin", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("keepdims", attributes.keepdims)
          .put("select_last", attributes.select_last), 1)[0];
}

// The positions of the elements in order along axis (stable, int64).
struct ArgSortAttributes {
  std::int64_t axis = -1;
  bool descending = false;
};
inline Value arg_sort(const Value& x, const ArgSortAttributes& attributes = {}) {
  return detail::add("ArgSort", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("descending", attributes.descending), 1)[0];
}

// asin(x), per element.
inline Value asin(const Value& x) {
  return detail::add("Asin", {x}, detail::Attributes(), 1)[0];
}

// asinh(x), per element.
inline Value asinh(const Value& x) {
  return detail::add("Asinh", {x}, detail::Attributes(), 1)[0];
}

// atan(x), per element.
inline Value atan(const Value& x) {
  return detail::add("Atan", {x}, detail::Attributes(), 1)[0];
}

// atan2(a, b), per element.
inline Value atan2(const Value& a, const Value& b) {
  return detail::add("Atan2", {a, b}, detail::Attributes(), 1)[0];
}

// atanh(x), per element.
inline Value atanh(const Value& x) {
  return detail::add("Atanh", {x}, detail::Attributes(), 1)[0];
}

// softmax(q k' * scale + mask) v over the last two axes, and the logarithm of each query's sum of expone...
struct AttentionAttributes {
  double scale;
  bool causal = false;
  std::optional<double> fill = {};
  bool zeros = false;
};
inline std::array<Value, 2> attention(const Value& q, const Value& k, const Value& v, const Value& mask, const AttentionAttributes& attributes) {
  const std::vector<Value> made = detail::add("Attention", {q, k, v, mask}, detail::Attributes()
          .put("scale", attributes.scale)
          .put("causal", attributes.causal)
          .put("fill", attributes.fill)
          .put("zeros", attributes.zeros), 2);
  return {made[0], made[1]};
}

// The gradients of attention's queries, keys and values, from its result and the sums that it gave.
struct AttentionGradAttributes {
  double scale;
  bool causal = false;
  std::optional<double> fill = {};
  bool zeros = false;
};
inline std::array<Value, 3> attention_grad(const Value& dy, const Value& q, const Value& k, const Value& v, const Value& y, const Value& sums, const Value& mask, const AttentionGradAttributes& attributes) {
  const std::vector<Value> made = detail::add("AttentionGrad", {dy, q, k, v, y, sums, mask}, detail::Attributes()
          .put("scale", attributes.scale)
          .put("causal", attributes.causal)
          .put("fill", attributes.fill)
          .put("zeros", attributes.zeros), 3);
  return {made[0], made[1], made[2]};
}

// The mean of each window; the border's elements count as zeros or not at all.
struct AvgPoolAttributes {
  std::vector<std::int64_t> kernel;
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::string data_format = "channels_first";
  bool count_include_pad = false;
};
inline Value avg_pool(const Value& x, const AvgPoolAttributes& attributes) {
  return detail::add("AvgPool", {x}, detail::Attributes()
          .put("kernel", attributes.kernel)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("data_format", attributes.data_format)
          .put("count_include_pad", attributes.count_include_pad), 1)[0];
}

// Each gradient is spread evenly over the elements of its window that are in the image of the given shape.
struct AvgPoolGradAttributes {
  std::vector<std::int64_t> kernel;
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::string data_format = "channels_first";
  std::vector<std::int64_t> shape;
};
inline Value avg_pool_grad(const Value& incoming, const AvgPoolGradAttributes& attributes) {
  return detail::add("AvgPoolGrad", {incoming}, detail::Attributes()
          .put("kernel", attributes.kernel)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("data_format", attributes.data_format)
          .put("shape", attributes.shape), 1)[0];
}

// (x - mean) / sqrt(var + epsilon) * scale + bias, with given statistics a channel.
struct BatchNormAttributes {
  double epsilon = 1e-05;
  std::int64_t channel_axis = 1;
};
inline Value batch_norm(const Value& x, const Value& scale, const Value& bias, const Value& mean, const Value& var, const BatchNormAttributes& attributes = {}) {
  return detail::add("BatchNorm", {x, scale, bias, mean, var}, detail::Attributes()
          .put("epsilon", attributes.epsilon)
          .put("channel_axis", attributes.channel_axis), 1)[0];
}

// The bits of x read as another element type of the same size.
struct BitCastAttributes {
  std::string to;
};
inline Value bit_cast(const Value& x, const BitCastAttributes& attributes) {
  return detail::add("BitCast", {x}, detail::Attributes()
          .put("to", attributes.to), 1)[0];
}

// bitand(a, b), per element.
inline Value bitwise_and(const Value& a, const Value& b) {
  return detail::add("BitwiseAnd", {a, b}, detail::Attributes(), 1)[0];
}

// bitwise_not(x), per element.
inline Value bitwise_not(const Value& x) {
  return detail::add("BitwiseNot", {x}, detail::Attributes(), 1)[0];
}

// bitor(a, b), per element.
inline Value bitwise_or(const Value& a, const Value& b) {
  return detail::add("BitwiseOr", {a, b}, detail::Attributes(), 1)[0];
}

// bitxor(a, b), per element.
inline Value bitwise_xor(const Value& a, const Value& b) {
  return detail::add("BitwiseXor", {a, b}, detail::Attributes(), 1)[0];
}

// The middle of a residual block of images with channels last, and the beginning of the next block.
inline std::array<Value, 2> bottleneck(const Value& t, const Value& residual, const Value& w_middle, const Value& b_middle, const Value& w_wide, const Value& b_wide, const Value& w_onward, const Value& b_onward, const Value& w_short = {}, const Value& b_short = {}) {
  const std::vector<Value> made = detail::add("Bottleneck", {t, residual, w_middle, b_middle, w_wide, b_wide, w_onward, b_onward, w_short, b_short}, detail::Attributes(), 2);
  return {made[0], made[1]};
}

// x repeated over a shape by NumPy's rules.
struct BroadcastToAttributes {
  std::vector<std::int64_t> shape;
};
inline Value broadcast_to(const Value& x, const BroadcastToAttributes& attributes) {
  return detail::add("BroadcastTo", {x}, detail::Attributes()
          .put("shape", attributes.shape), 1)[0];
}

// The elements of a table of 256 at the places that the bits of x are, as numbers without sign.
inline Value byte_table(const Value& x, const Value& table) {
  return detail::add("ByteTable", {x, table}, detail::Attributes(), 1)[0];
}

// x converted to another element type; floats to integers truncate, anything to bool is x != 0.
struct CastAttributes {
  std::string to;
};
inline Value cast(const Value& x, const CastAttributes& attributes) {
  return detail::add("Cast", {x}, detail::Attributes()
          .put("to", attributes.to), 1)[0];
}

// ceil(x), per element.
inline Value ceil(const Value& x) {
  return detail::add("Ceil", {x}, detail::Attributes(), 1)[0];
}

// max(x, 0) + min(0, alpha * (exp(x / alpha) - 1)).
struct CeluAttributes {
  double alpha = 1.0;
};
inline Value celu(const Value& x, const CeluAttributes& attributes = {}) {
  return detail::add("Celu", {x}, detail::Attributes()
          .put("alpha", attributes.alpha), 1)[0];
}

// x as it is; fails unless least <= x < limits, one for all or one for each place of the last axis.
struct CheckedAttributes {
  std::vector<std::int64_t> limits = {};
  std::int64_t least = 0;
  bool from_end = false;
  std::string what = "indices";
  std::string message = "{what}{place} = {value} is not in [{least}, {size})";
  std::string operator_ = "";
};
inline Value checked(const Value& x, const CheckedAttributes& attributes = {}) {
  return detail::add("Checked", {x}, detail::Attributes()
          .put("limits", attributes.limits)
          .put("least", attributes.least)
          .put("from_end", attributes.from_end)
          .put("what", attributes.what)
          .put("message", attributes.message)
          .put("operator", attributes.operator_), 1)[0];
}

// Lower triangular matrices whose product with their transposes is x.
struct CholeskyAttributes {
  bool nan_if_indefinite = false;
};
inline Value cholesky(const Value& x, const CholeskyAttributes& attributes = {}) {
  return detail::add("Cholesky", {x}, detail::Attributes()
          .put("nan_if_indefinite", attributes.nan_if_indefinite), 1)[0];
}

// x limited to min..max; either may be absent.
struct ClipAttributes {
  std::optional<double> min = {};
  std::optional<double> max = {};
};
inline Value clip(const Value& x, const ClipAttributes& attributes = {}) {
  return detail::add("Clip", {x}, detail::Attributes()
          .put("min", attributes.min)
          .put("max", attributes.max), 1)[0];
}

// The best boxes of every image over all classes, after suppression in each class.
struct CombinedBoxesAttributes {
  std::int64_t max_output_boxes;
  std::int64_t size;
  double iou_threshold = 0.5;
  std::optional<double> score_threshold = {};
  bool clip = true;
};
inline std::array<Value, 4> combined_boxes(const Value& boxes, const Value& scores, const CombinedBoxesAttributes& attributes) {
  const std::vector<Value> made = detail::add("CombinedBoxes", {boxes, scores}, detail::Attributes()
          .put("max_output_boxes", attributes.max_output_boxes)
          .put("size", attributes.size)
          .put("iou_threshold", attributes.iou_threshold)
          .put("score_threshold", attributes.score_threshold)
          .put("clip", attributes.clip), 4);
  return {made[0], made[1], made[2], made[3]};
}

// The slices of x along axis (the elements of x without one) for which the condition holds.
struct CompressAttributes {
  std::optional<std::int64_t> axis = {};
};
inline Value compress(const Value& x, const Value& condition, const CompressAttributes& attributes = {}) {
  return detail::add("Compress", {x, condition}, detail::Attributes()
          .put("axis", attributes.axis), 1)[0];
}

// Tensors one after another along axis.
struct ConcatAttributes {
  std::int64_t axis;
};
inline Value concat(const std::vector<Value>& inputs, const ConcatAttributes& attributes) {
  return detail::add("Concat", inputs, detail::Attributes()
          .put("axis", attributes.axis), 1)[0];
}

// Convolution over 1 to 3 spatial axes.
struct ConvAttributes {
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::int64_t groups = 1;
  std::string data_format = "channels_first";
  std::string weight_format = "OI";
  std::vector<std::string> post_ops = {};
  bool gated = false;
};
inline Value conv(const Value& x, const Value& w, const Value& bias = {}, const std::vector<Value>& post = {}, const ConvAttributes& attributes = {}) {
  return detail::add("Conv", detail::joined({x, w, bias}, post), detail::Attributes()
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("groups", attributes.groups)
          .put("data_format", attributes.data_format)
          .put("weight_format", attributes.weight_format)
          .put("post_ops", attributes.post_ops)
          .put("gated", attributes.gated), 1)[0];
}

// The gradient of a convolution by its weight, from its input and the gradient of its result.
struct ConvGradWeightAttributes {
  std::vector<std::int64_t> kernel;
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::string data_format = "channels_first";
  std::int64_t groups = 1;
  std::string weight_format = "OI";
  std::string output_dtype = "";
};
inline Value conv_grad_weight(const Value& x, const Value& incoming, const ConvGradWeightAttributes& attributes) {
  return detail::add("ConvGradWeight", {x, incoming}, detail::Attributes()
          .put("kernel", attributes.kernel)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("data_format", attributes.data_format)
          .put("groups", attributes.groups)
          .put("weight_format", attributes.weight_format)
          .put("output_dtype", attributes.output_dtype), 1)[0];
}

// The gradient of a convolution by its input; the weight is in the layout of that convolution.
struct ConvTransposeAttributes {
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::int64_t groups = 1;
  std::string data_format = "channels_first";
  std::string weight_format = "OI";
  std::vector<std::string> post_ops = {};
  OptionalList<std::int64_t> output_shape = {};
  OptionalList<std::int64_t> output_padding = {};
};
inline Value conv_transpose(const Value& x, const Value& w, const Value& bias = {}, const std::vector<Value>& post = {}, const ConvTransposeAttributes& attributes = {}) {
  return detail::add("ConvTranspose", detail::joined({x, w, bias}, post), detail::Attributes()
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("groups", attributes.groups)
          .put("data_format", attributes.data_format)
          .put("weight_format", attributes.weight_format)
          .put("post_ops", attributes.post_ops)
          .put("output_shape", attributes.output_shape)
          .put("output_padding", attributes.output_padding), 1)[0];
}

// cos(x), per element.
inline Value cos(const Value& x) {
  return detail::add("Cos", {x}, detail::Attributes(), 1)[0];
}

// cosh(x), per element.
inline Value cosh(const Value& x) {
  return detail::add("Cosh", {x}, detail::Attributes(), 1)[0];
}

// Boxes (R, 4) cut out of images (N, H, W, C) and resized; owners (R) tell which image each is from.
struct CropAndResizeAttributes {
  std::int64_t height;
  std::int64_t width;
  std::string method = "bilinear";
  double extrapolation_value = 0.0;
};
inline Value crop_and_resize(const Value& x, const Value& boxes, const Value& owners, const CropAndResizeAttributes& attributes) {
  return detail::add("CropAndResize", {x, boxes, owners}, detail::Attributes()
          .put("height", attributes.height)
          .put("width", attributes.width)
          .put("method", attributes.method)
          .put("extrapolation_value", attributes.extrapolation_value), 1)[0];
}

// Running max along axis.
struct CumMaxAttributes {
  std::int64_t axis = 0;
  bool exclusive = false;
  bool reverse = false;
};
inline Value cum_max(const Value& x, const CumMaxAttributes& attributes = {}) {
  return detail::add("CumMax", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("exclusive", attributes.exclusive)
          .put("reverse", attributes.reverse), 1)[0];
}

// Running min along axis.
struct CumMinAttributes {
  std::int64_t axis = 0;
  bool exclusive = false;
  bool reverse = false;
};
inline Value cum_min(const Value& x, const CumMinAttributes& attributes = {}) {
  return detail::add("CumMin", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("exclusive", attributes.exclusive)
          .put("reverse", attributes.reverse), 1)[0];
}

// Running prod along axis.
struct CumProdAttributes {
  std::int64_t axis = 0;
  bool exclusive = false;
  bool reverse = false;
};
inline Value cum_prod(const Value& x, const CumProdAttributes& attributes = {}) {
  return detail::add("CumProd", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("exclusive", attributes.exclusive)
          .put("reverse", attributes.reverse), 1)[0];
}

// Running sum along axis.
struct CumSumAttributes {
  std::int64_t axis = 0;
  bool exclusive = false;
  bool reverse = false;
};
inline Value cum_sum(const Value& x, const CumSumAttributes& attributes = {}) {
  return detail::add("CumSum", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("exclusive", attributes.exclusive)
          .put("reverse", attributes.reverse), 1)[0];
}

// Channels moved into blocks of pixels; mode DCR keeps the block offset outermost in the channels.
struct DepthToSpaceAttributes {
  std::int64_t block;
  std::string mode = "DCR";
  bool channels_last = false;
};
inline Value depth_to_space(const Value& x, const DepthToSpaceAttributes& attributes) {
  return detail::add("DepthToSpace", {x}, detail::Attributes()
          .put("block", attributes.block)
          .put("mode", attributes.mode)
          .put("channels_last", attributes.channels_last), 1)[0];
}

// (x - zero_point) * scale.
struct DequantizeAttributes {
  std::int64_t axis = 1;
  std::int64_t block_size = 0;
  std::string dtype = "float32";
};
inline Value dequantize(const Value& x, const Value& scale, const Value& zero_point = {}, const DequantizeAttributes& attributes = {}) {
  return detail::add("Dequantize", {x, scale, zero_point}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("block_size", attributes.block_size)
          .put("dtype", attributes.dtype), 1)[0];
}

// The determinants of matrices.
inline Value det(const Value& x) {
  return detail::add("Det", {x}, detail::Attributes(), 1)[0];
}

// The discrete Fourier transform along an axis, cut or filled with zeros to a length.
struct DftAttributes {
  std::int64_t axis = -2;
  std::int64_t length;
  bool inverse = false;
  bool onesided = false;
};
inline Value dft(const Value& x, const DftAttributes& attributes) {
  return detail::add("Dft", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("length", attributes.length)
          .put("inverse", attributes.inverse)
          .put("onesided", attributes.onesided), 1)[0];
}

// digamma(x), per element.
inline Value digamma(const Value& x) {
  return detail::add("Digamma", {x}, detail::Attributes(), 1)[0];
}

// div(a, b), per element.
inline Value div(const Value& a, const Value& b) {
  return detail::add("Div", {a, b}, detail::Attributes(), 1)[0];
}

// Sums of products over named indices, as numpy.einsum has them; made of transposes and products.
struct EinsumAttributes {
  std::string equation;
};
inline Value einsum(const std::vector<Value>& inputs, const EinsumAttributes& attributes) {
  return detail::add("Einsum", inputs, detail::Attributes()
          .put("equation", attributes.equation), 1)[0];
}

// x where positive, else alpha * (exp(x) - 1).
struct EluAttributes {
  double alpha = 1.0;
};
inline Value elu(const Value& x, const EluAttributes& attributes = {}) {
  return detail::add("Elu", {x}, detail::Attributes()
          .put("alpha", attributes.alpha), 1)[0];
}

// eq(a, b), per element.
inline Value equal(const Value& a, const Value& b) {
  return detail::add("Equal", {a, b}, detail::Attributes(), 1)[0];
}

// erf(x), per element.
inline Value erf(const Value& x) {
  return detail::add("Erf", {x}, detail::Attributes(), 1)[0];
}

// erfc(x), per element.
inline Value erfc(const Value& x) {
  return detail::add("Erfc", {x}, detail::Attributes(), 1)[0];
}

// exp(x), per element.
inline Value exp(const Value& x) {
  return detail::add("Exp", {x}, detail::Attributes(), 1)[0];
}

// exp2(x), per element.
inline Value exp2(const Value& x) {
  return detail::add("Exp2", {x}, detail::Attributes(), 1)[0];
}

// expm1(x), per element.
inline Value expm1(const Value& x) {
  return detail::add("Expm1", {x}, detail::Attributes(), 1)[0];
}

// 1 on diagonal k, 0 elsewhere.
struct EyeAttributes {
  std::vector<std::int64_t> shape;
  std::int64_t k = 0;
  std::string dtype = "float32";
};
inline Value eye(Graph& graph, const EyeAttributes& attributes) {
  return graph.add("Eye", {}, detail::Attributes()
          .put("shape", attributes.shape)
          .put("k", attributes.k)
          .put("dtype", attributes.dtype).list(), 1)[0];
}

// fmod(a, b), per element.
inline Value fmod(const Value& a, const Value& b) {
  return detail::add("FMod", {a, b}, detail::Attributes(), 1)[0];
}

// floor(x), per element.
inline Value floor(const Value& x) {
  return detail::add("Floor", {x}, detail::Attributes(), 1)[0];
}

// floordiv(a, b), per element.
inline Value floor_div(const Value& a, const Value& b) {
  return detail::add("FloorDiv", {a, b}, detail::Attributes(), 1)[0];
}

// Gated recurrent unit; gates in the order update, reset, new.
struct GRUAttributes {
  std::string direction = "forward";
  bool linear_before_reset = false;
};
inline std::array<Value, 2> gru(const Value& x, const Value& w, const Value& r, const Value& bias, const Value& h0, const GRUAttributes& attributes = {}) {
  const std::vector<Value> made = detail::add("GRU", {x, w, r, bias, h0}, detail::Attributes()
          .put("direction", attributes.direction)
          .put("linear_before_reset", attributes.linear_before_reset), 2);
  return {made[0], made[1]};
}

// Slices of x along axis; the first batch_dims axes of x and indices go together.
struct GatherAttributes {
  std::int64_t axis = 0;
  std::int64_t batch_dims = 0;
};
inline Value gather(const Value& x, const Value& indices, const GatherAttributes& attributes = {}) {
  return detail::add("Gather", {x, indices}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("batch_dims", attributes.batch_dims), 1)[0];
}

// y[i][j] = x[indices[i][j]][j] for axis 0, and so on.
struct GatherElementsAttributes {
  std::int64_t axis = 0;
};
inline Value gather_elements(const Value& x, const Value& indices, const GatherElementsAttributes& attributes = {}) {
  return detail::add("GatherElements", {x, indices}, detail::Attributes()
          .put("axis", attributes.axis), 1)[0];
}

// Elements or slices of x whose leading positions are the last axis of indices.
struct GatherNdAttributes {
  std::int64_t batch_dims = 0;
};
inline Value gather_nd(const Value& x, const Value& indices, const GatherNdAttributes& attributes = {}) {
  return detail::add("GatherNd", {x, indices}, detail::Attributes()
          .put("batch_dims", attributes.batch_dims), 1)[0];
}

// x times the normal distribution function of x, exactly or by the tanh approximation.
struct GeluAttributes {
  std::string approximate = "none";
};
inline Value gelu(const Value& x, const GeluAttributes& attributes = {}) {
  return detail::add("Gelu", {x}, detail::Attributes()
          .put("approximate", attributes.approximate), 1)[0];
}

// The derivative of Gelu.
struct GeluSlopeAttributes {
  std::string approximate = "none";
  bool narrow = false;
};
inline Value gelu_slope(const Value& x, const GeluSlopeAttributes& attributes = {}) {
  return detail::add("GeluSlope", {x}, detail::Attributes()
          .put("approximate", attributes.approximate)
          .put("narrow", attributes.narrow), 1)[0];
}

// gt(a, b), per element.
inline Value greater(const Value& a, const Value& b) {
  return detail::add("Greater", {a, b}, detail::Attributes(), 1)[0];
}

// ge(a, b), per element.
inline Value greater_equal(const Value& a, const Value& b) {
  return detail::add("GreaterEqual", {a, b}, detail::Attributes(), 1)[0];
}

// x (N, C, space) read where a grid (N, positions, axes) says, from -1 to 1, the last axis first.
struct GridSampleAttributes {
  std::string mode = "linear";
  std::string padding_mode = "zeros";
  bool align_corners = false;
};
inline Value grid_sample(const Value& x, const Value& grid, const GridSampleAttributes& attributes = {}) {
  return detail::add("GridSample", {x, grid}, detail::Attributes()
          .put("mode", attributes.mode)
          .put("padding_mode", attributes.padding_mode)
          .put("align_corners", attributes.align_corners), 1)[0];
}

// Groups of channels with mean 0 and variance 1, then scaled and shifted a channel.
struct GroupNormAttributes {
  double epsilon = 1e-05;
  std::int64_t channel_axis = 1;
  std::int64_t groups;
};
inline Value group_norm(const Value& x, const Value& scale, const Value& bias, const GroupNormAttributes& attributes) {
  return detail::add("GroupNorm", {x, scale, bias}, detail::Attributes()
          .put("epsilon", attributes.epsilon)
          .put("channel_axis", attributes.channel_axis)
          .put("groups", attributes.groups), 1)[0];
}

// alpha * x + beta, clipped to 0..1.
struct HardSigmoidAttributes {
  double alpha = 0.2;
  double beta = 0.5;
};
inline Value hard_sigmoid(const Value& x, const HardSigmoidAttributes& attributes = {}) {
  return detail::add("HardSigmoid", {x}, detail::Attributes()
          .put("alpha", attributes.alpha)
          .put("beta", attributes.beta), 1)[0];
}

// x * clip(x / 6 + 1 / 2, 0, 1).
inline Value hard_swish(const Value& x) {
  return detail::add("HardSwish", {x}, detail::Attributes(), 1)[0];
}

// 1 at the first maximum along axis, 0 elsewhere.
struct HardmaxAttributes {
  std::int64_t axis = -1;
};
inline Value hardmax(const Value& x, const HardmaxAttributes& attributes = {}) {
  return detail::add("Hardmax", {x}, detail::Attributes()
          .put("axis", attributes.axis), 1)[0];
}

// x itself.
inline Value identity(const Value& x) {
  return detail::add("Identity", {x}, detail::Attributes(), 1)[0];
}

// Each channel of each sample with mean 0 and variance 1, then scaled and shifted a channel.
struct InstanceNormAttributes {
  double epsilon = 1e-05;
  std::int64_t channel_axis = 1;
};
inline Value instance_norm(const Value& x, const Value& scale, const Value& bias, const InstanceNormAttributes& attributes = {}) {
  return detail::add("InstanceNorm", {x, scale, bias}, detail::Attributes()
          .put("epsilon", attributes.epsilon)
          .put("channel_axis", attributes.channel_axis), 1)[0];
}

// The inverses of matrices.
inline Value inverse(const Value& x) {
  return detail::add("Inverse", {x}, detail::Attributes(), 1)[0];
}

// The position along axis.
struct IotaAttributes {
  std::vector<std::int64_t> shape;
  std::int64_t axis = 0;
  std::string dtype = "int64";
};
inline Value iota(Graph& graph, const IotaAttributes& attributes) {
  return graph.add("Iota", {}, detail::Attributes()
          .put("shape", attributes.shape)
          .put("axis", attributes.axis)
          .put("dtype", attributes.dtype).list(), 1)[0];
}

// isfinite(x), per element.
inline Value is_finite(const Value& x) {
  return detail::add("IsFinite", {x}, detail::Attributes(), 1)[0];
}

// Whether x is infinite, of the signs asked for.
struct IsInfAttributes {
  bool detect_positive = true;
  bool detect_negative = true;
};
inline Value is_inf(const Value& x, const IsInfAttributes& attributes = {}) {
  return detail::add("IsInf", {x}, detail::Attributes()
          .put("detect_positive", attributes.detect_positive)
          .put("detect_negative", attributes.detect_negative), 1)[0];
}

// isnan(x), per element.
inline Value is_nan(const Value& x) {
  return detail::add("IsNan", {x}, detail::Attributes(), 1)[0];
}

// Long short-term memory; gates in the order input, forget, cell, output.
struct LSTMAttributes {
  std::string direction = "forward";
};
inline std::array<Value, 3> lstm(const Value& x, const Value& w, const Value& r, const Value& bias, const Value& h0, const Value& c0, const LSTMAttributes& attributes = {}) {
  const std::vector<Value> made = detail::add("LSTM", {x, w, r, bias, h0, c0}, detail::Attributes()
          .put("direction", attributes.direction), 3);
  return {made[0], made[1], made[2]};
}

// All steps of an LSTM layer: gates (T, N, 4 * H) as far as the input makes them, weights r (4 * H, H).
struct LSTMStepsAttributes {
  bool reverse = false;
};
inline std::array<Value, 4> lstmsteps(const Value& gates, const Value& r, const Value& h0, const Value& c0, const LSTMStepsAttributes& attributes = {}) {
  const std::vector<Value> made = detail::add("LSTMSteps", {gates, r, h0, c0}, detail::Attributes()
          .put("reverse", attributes.reverse), 4);
  return {made[0], made[1], made[2], made[3]};
}

// Back through all steps: from what they kept and the gradients of their results, of which each may be m...
struct LSTMStepsGradAttributes {
  bool reverse = false;
};
inline std::array<Value, 3> lstmsteps_grad(const Value& kept, const Value& r, const Value& dy = {}, const Value& dh = {}, const Value& dc = {}, const LSTMStepsGradAttributes& attributes = {}) {
  const std::vector<Value> made = detail::add("LSTMStepsGrad", {kept, r, dy, dh, dc}, detail::Attributes()
          .put("reverse", attributes.reverse), 3);
  return {made[0], made[1], made[2]};
}

// x with mean 0 and variance 1 over axes, scaled and shifted; 16-bit floats are computed in float32.
struct LayerNormAttributes {
  std::vector<std::int64_t> axes = {-1};
  double epsilon = 1e-05;
};
inline Value layer_norm(const Value& x, const Value& scale = {}, const Value& bias = {}, const LayerNormAttributes& attributes = {}) {
  return detail::add("LayerNorm", {x, scale, bias}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("epsilon", attributes.epsilon), 1)[0];
}

// The gradients of a layer normalisation's input, scale and bias, from the mean and the inverse deviation.
struct LayerNormGradAttributes {
  std::vector<std::int64_t> axes = {-1};
  std::vector<std::int64_t> wanted = {1, 1, 1};
};
inline std::array<Value, 3> layer_norm_grad(const Value& dy, const Value& x, const Value& mean, const Value& inverse, const Value& scale = {}, const LayerNormGradAttributes& attributes = {}) {
  const std::vector<Value> made = detail::add("LayerNormGrad", {dy, x, mean, inverse, scale}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("wanted", attributes.wanted), 3);
  return {made[0], made[1], made[2]};
}

// x where positive, else alpha * x.
struct LeakyReluAttributes {
  double alpha = 0.01;
};
inline Value leaky_relu(const Value& x, const LeakyReluAttributes& attributes = {}) {
  return detail::add("LeakyRelu", {x}, detail::Attributes()
          .put("alpha", attributes.alpha), 1)[0];
}

// lt(a, b), per element.
inline Value less(const Value& a, const Value& b) {
  return detail::add("Less", {a, b}, detail::Attributes(), 1)[0];
}

// le(a, b), per element.
inline Value less_equal(const Value& a, const Value& b) {
  return detail::add("LessEqual", {a, b}, detail::Attributes(), 1)[0];
}

// lgamma(x), per element.
inline Value lgamma(const Value& x) {
  return detail::add("Lgamma", {x}, detail::Attributes(), 1)[0];
}

// log(x), per element.
inline Value log(const Value& x) {
  return detail::add("Log", {x}, detail::Attributes(), 1)[0];
}

// log1p(x), per element.
inline Value log1p(const Value& x) {
  return detail::add("Log1p", {x}, detail::Attributes(), 1)[0];
}

// log2(x), per element.
inline Value log2(const Value& x) {
  return detail::add("Log2", {x}, detail::Attributes(), 1)[0];
}

// log(softmax(x)) over axes.
struct LogSoftmaxAttributes {
  std::vector<std::int64_t> axes = {-1};
};
inline Value log_softmax(const Value& x, const LogSoftmaxAttributes& attributes = {}) {
  return detail::add("LogSoftmax", {x}, detail::Attributes()
          .put("axes", attributes.axes), 1)[0];
}

// x divided by its p-norm along axis; where the norm is 0 the result is 0.
struct LpNormalizeAttributes {
  std::int64_t p = 2;
  std::int64_t axis = -1;
};
inline Value lp_normalize(const Value& x, const LpNormalizeAttributes& attributes = {}) {
  return detail::add("LpNormalize", {x}, detail::Attributes()
          .put("p", attributes.p)
          .put("axis", attributes.axis), 1)[0];
}

// x / (k + alpha / size * the sum of squares of `size` neighbouring channels) ** beta.
struct LrnAttributes {
  std::int64_t size;
  double alpha = 0.0001;
  double beta = 0.75;
  double k = 1.0;
  std::string data_format = "channels_first";
};
inline Value lrn(const Value& x, const LrnAttributes& attributes) {
  return detail::add("Lrn", {x}, detail::Attributes()
          .put("size", attributes.size)
          .put("alpha", attributes.alpha)
          .put("beta", attributes.beta)
          .put("k", attributes.k)
          .put("data_format", attributes.data_format), 1)[0];
}

// a times b over the last two axes, batch axes broadcast; bias and post-ops are fused in.
struct MatMulAttributes {
  bool transpose_a = false;
  bool transpose_b = false;
  std::vector<std::string> post_ops = {};
  std::optional<std::string> output_dtype = {};
};
inline Value matmul(const Value& a, const Value& b, const Value& bias = {}, const std::vector<Value>& post = {}, const MatMulAttributes& attributes = {}) {
  return detail::add("MatMul", detail::joined({a, b, bias}, post), detail::Attributes()
          .put("transpose_a", attributes.transpose_a)
          .put("transpose_b", attributes.transpose_b)
          .put("post_ops", attributes.post_ops)
          .put("output_dtype", attributes.output_dtype), 1)[0];
}

// The maximum of each window; borders do not count.
struct MaxPoolAttributes {
  std::vector<std::int64_t> kernel;
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::string data_format = "channels_first";
  bool keeps_nan = false;
};
inline Value max_pool(const Value& x, const MaxPoolAttributes& attributes) {
  return detail::add("MaxPool", {x}, detail::Attributes()
          .put("kernel", attributes.kernel)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("data_format", attributes.data_format)
          .put("keeps_nan", attributes.keeps_nan), 1)[0];
}

// Each gradient goes to where its window's first maximum is.
struct MaxPoolGradAttributes {
  std::vector<std::int64_t> kernel;
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::string data_format = "channels_first";
};
inline Value max_pool_grad(const Value& incoming, const Value& x, const MaxPoolGradAttributes& attributes) {
  return detail::add("MaxPoolGrad", {incoming, x}, detail::Attributes()
          .put("kernel", attributes.kernel)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("data_format", attributes.data_format), 1)[0];
}

// The maximum of each window and where in the plane it was found (row-major, int64).
struct MaxPoolIndicesAttributes {
  std::vector<std::int64_t> kernel;
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::string data_format = "channels_first";
};
inline std::array<Value, 2> max_pool_indices(const Value& x, const MaxPoolIndicesAttributes& attributes) {
  const std::vector<Value> made = detail::add("MaxPoolIndices", {x}, detail::Attributes()
          .put("kernel", attributes.kernel)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("data_format", attributes.data_format), 2);
  return {made[0], made[1]};
}

// Regions of images (rows of batch, x1, y1, x2, y2 in whole pixels), the maximum of each bin.
struct MaxRoiPoolAttributes {
  std::vector<std::int64_t> pooled;
  double spatial_scale = 1.0;
};
inline Value max_roi_pool(const Value& x, const Value& rois, const MaxRoiPoolAttributes& attributes) {
  return detail::add("MaxRoiPool", {x, rois}, detail::Attributes()
          .put("pooled", attributes.pooled)
          .put("spatial_scale", attributes.spatial_scale), 1)[0];
}

// max(a, b), per element.
inline Value maximum(const Value& a, const Value& b) {
  return detail::add("Maximum", {a, b}, detail::Attributes(), 1)[0];
}

// min(a, b), per element.
inline Value minimum(const Value& a, const Value& b) {
  return detail::add("Minimum", {a, b}, detail::Attributes(), 1)[0];
}

// x * tanh(softplus(x)).
inline Value mish(const Value& x) {
  return detail::add("Mish", {x}, detail::Attributes(), 1)[0];
}

// mod(a, b), per element.
inline Value mod(const Value& a, const Value& b) {
  return detail::add("Mod", {a, b}, detail::Attributes(), 1)[0];
}

// mul(a, b), per element.
inline Value mul(const Value& a, const Value& b) {
  return detail::add("Mul", {a, b}, detail::Attributes(), 1)[0];
}

// Classes drawn at random, `samples` a row, given unnormalised log probabilities (N, C).
struct MultinomialAttributes {
  std::int64_t seed = 0;
  std::int64_t samples;
  std::string dtype = "int32";
};
inline std::array<Value, 2> multinomial(const Value& logits, const Value& state, const MultinomialAttributes& attributes) {
  const std::vector<Value> made = detail::add("Multinomial", {logits, state}, detail::Attributes()
          .put("seed", attributes.seed)
          .put("samples", attributes.samples)
          .put("dtype", attributes.dtype), 2);
  return {made[0], made[1]};
}

// neg(x), per element.
inline Value neg(const Value& x) {
  return detail::add("Neg", {x}, detail::Attributes(), 1)[0];
}

// For each batch and class the boxes kept by score, dropping those that overlap a better one too much.
struct NonMaxSuppressionAttributes {
  std::int64_t max_output_boxes;
  double iou_threshold = 0.0;
  std::optional<double> score_threshold = {};
  bool center_point_box = false;
};
inline Value non_max_suppression(const Value& boxes, const Value& scores, const NonMaxSuppressionAttributes& attributes) {
  return detail::add("NonMaxSuppression", {boxes, scores}, detail::Attributes()
          .put("max_output_boxes", attributes.max_output_boxes)
          .put("iou_threshold", attributes.iou_threshold)
          .put("score_threshold", attributes.score_threshold)
          .put("center_point_box", attributes.center_point_box), 1)[0];
}

// The positions of the nonzero elements, an axis a row.
inline Value non_zero(const Value& x) {
  return detail::add("NonZero", {x}, detail::Attributes(), 1)[0];
}

// not(x), per element.
inline Value not_(const Value& x) {
  return detail::add("Not", {x}, detail::Attributes(), 1)[0];
}

// ne(a, b), per element.
inline Value not_equal(const Value& a, const Value& b) {
  return detail::add("NotEqual", {a, b}, detail::Attributes(), 1)[0];
}

// `on` where the position along a new axis equals the index, `off` elsewhere (also out of range).
struct OneHotAttributes {
  std::int64_t depth;
  std::int64_t axis = -1;
};
inline Value one_hot(const Value& indices, const Value& on, const Value& off, const OneHotAttributes& attributes) {
  return detail::add("OneHot", {indices, on, off}, detail::Attributes()
          .put("depth", attributes.depth)
          .put("axis", attributes.axis), 1)[0];
}

// or(a, b), per element.
inline Value or_(const Value& a, const Value& b) {
  return detail::add("Or", {a, b}, detail::Attributes(), 1)[0];
}

// x where positive, else slope * x; the slope broadcasts to x.
inline Value prelu(const Value& a, const Value& b) {
  return detail::add("PRelu", {a, b}, detail::Attributes(), 1)[0];
}

// x times rows of weights of few bits: weight = (level - zero) * scale, one scale and zero for a group o...
struct PackedMatMulAttributes {
  std::int64_t bits = 4;
  std::int64_t group;
  bool signed_ = false;
};
inline Value packed_mat_mul(const Value& x, const Value& weights, const Value& scales, const Value& zeros, const Value& bias, const PackedMatMulAttributes& attributes) {
  return detail::add("PackedMatMul", {x, weights, scales, zeros, bias}, detail::Attributes()
          .put("bits", attributes.bits)
          .put("group", attributes.group)
          .put("signed", attributes.signed_), 1)[0];
}

// x with a border: of a value, or of its own elements (edge, reflect, symmetric, wrap).
struct PadAttributes {
  std::string mode = "constant";
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  double value = 0.0;
};
inline Value pad(const Value& x, const PadAttributes& attributes) {
  return detail::add("Pad", {x}, detail::Attributes()
          .put("mode", attributes.mode)
          .put("low", attributes.low)
          .put("high", attributes.high)
          .put("value", attributes.value), 1)[0];
}

// Normal numbers of a key and a counter, of those inside two deviations where `truncated`.
struct PhiloxNormalAttributes {
  std::int64_t size;
  bool truncated = false;
  std::string dtype = "float32";
};
inline Value philox_normal(const Value& key, const Value& low, const Value& high, const PhiloxNormalAttributes& attributes) {
  return detail::add("PhiloxNormal", {key, low, high}, detail::Attributes()
          .put("size", attributes.size)
          .put("truncated", attributes.truncated)
          .put("dtype", attributes.dtype), 1)[0];
}

// pow(a, b), per element.
inline Value pow(const Value& a, const Value& b) {
  return detail::add("Pow", {a, b}, detail::Attributes(), 1)[0];
}

// A convolution of 8-bit integers; borders hold the zero point.
struct QConvAttributes {
  std::vector<std::string> post_ops = {};
  double src_scale = 1.0;
  double dst_scale = 1.0;
  std::int64_t src_zero_point = 0;
  std::int64_t dst_zero_point = 0;
  std::string output_dtype = "int32";
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::int64_t groups = 1;
  std::string data_format = "channels_first";
  std::string weight_format = "OI";
};
inline Value qconv(const Value& x, const Value& w, const Value& bias = {}, const Value& weight_scales = {}, const Value& residual = {}, const QConvAttributes& attributes = {}) {
  return detail::add("QConv", {x, w, bias, weight_scales, residual}, detail::Attributes()
          .put("post_ops", attributes.post_ops)
          .put("src_scale", attributes.src_scale)
          .put("dst_scale", attributes.dst_scale)
          .put("src_zero_point", attributes.src_zero_point)
          .put("dst_zero_point", attributes.dst_zero_point)
          .put("output_dtype", attributes.output_dtype)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("groups", attributes.groups)
          .put("data_format", attributes.data_format)
          .put("weight_format", attributes.weight_format), 1)[0];
}

// A matrix product of 8-bit integers; batch axes broadcast.
struct QMatMulAttributes {
  std::vector<std::string> post_ops = {};
  double src_scale = 1.0;
  double dst_scale = 1.0;
  std::int64_t src_zero_point = 0;
  std::int64_t dst_zero_point = 0;
  std::string output_dtype = "int32";
};
inline Value qmatmul(const Value& x, const Value& w, const Value& bias = {}, const Value& weight_scales = {}, const Value& residual = {}, const QMatMulAttributes& attributes = {}) {
  return detail::add("QMatMul", {x, w, bias, weight_scales, residual}, detail::Attributes()
          .put("post_ops", attributes.post_ops)
          .put("src_scale", attributes.src_scale)
          .put("dst_scale", attributes.dst_scale)
          .put("src_zero_point", attributes.src_zero_point)
          .put("dst_zero_point", attributes.dst_zero_point)
          .put("output_dtype", attributes.output_dtype), 1)[0];
}

// saturate(round(x / scale) + zero_point), rounding half to even.
struct QuantizeAttributes {
  std::int64_t axis = 1;
  std::int64_t block_size = 0;
  std::string dtype = "uint8";
};
inline Value quantize(const Value& x, const Value& scale, const Value& zero_point = {}, const QuantizeAttributes& attributes = {}) {
  return detail::add("Quantize", {x, scale, zero_point}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("block_size", attributes.block_size)
          .put("dtype", attributes.dtype), 1)[0];
}

// A plain recurrent layer.
struct RNNAttributes {
  std::string direction = "forward";
  std::string activation = "tanh";
};
inline std::array<Value, 2> rnn(const Value& x, const Value& w, const Value& r, const Value& bias, const Value& h0, const RNNAttributes& attributes = {}) {
  const std::vector<Value> made = detail::add("RNN", {x, w, r, bias, h0}, detail::Attributes()
          .put("direction", attributes.direction)
          .put("activation", attributes.activation), 2);
  return {made[0], made[1]};
}

// Integers from low up to but without high.
struct RandomIntegerAttributes {
  std::int64_t seed = 0;
  std::vector<std::int64_t> shape;
  std::string dtype = "int32";
  std::int64_t low = 0;
  std::int64_t high;
};
inline std::array<Value, 2> random_integer(const Value& state, const RandomIntegerAttributes& attributes) {
  const std::vector<Value> made = detail::add("RandomInteger", {state}, detail::Attributes()
          .put("seed", attributes.seed)
          .put("shape", attributes.shape)
          .put("dtype", attributes.dtype)
          .put("low", attributes.low)
          .put("high", attributes.high), 2);
  return {made[0], made[1]};
}

// Normally distributed.
struct RandomNormalAttributes {
  std::int64_t seed = 0;
  std::vector<std::int64_t> shape;
  std::string dtype = "float32";
  double mean = 0.0;
  double scale = 1.0;
};
inline std::array<Value, 2> random_normal(const Value& state, const RandomNormalAttributes& attributes) {
  const std::vector<Value> made = detail::add("RandomNormal", {state}, detail::Attributes()
          .put("seed", attributes.seed)
          .put("shape", attributes.shape)
          .put("dtype", attributes.dtype)
          .put("mean", attributes.mean)
          .put("scale", attributes.scale), 2);
  return {made[0], made[1]};
}

// The numbers 0 to size - 1 in random order.
struct RandomPermutationAttributes {
  std::int64_t seed = 0;
  std::vector<std::int64_t> shape;
  std::string dtype = "int64";
};
inline std::array<Value, 2> random_permutation(const Value& state, const RandomPermutationAttributes& attributes) {
  const std::vector<Value> made = detail::add("RandomPermutation", {state}, detail::Attributes()
          .put("seed", attributes.seed)
          .put("shape", attributes.shape)
          .put("dtype", attributes.dtype), 2);
  return {made[0], made[1]};
}

// Evenly spread over low..high, high left out.
struct RandomUniformAttributes {
  std::int64_t seed = 0;
  std::vector<std::int64_t> shape;
  std::string dtype = "float32";
  double low = 0.0;
  double high = 1.0;
};
inline std::array<Value, 2> random_uniform(const Value& state, const RandomUniformAttributes& attributes) {
  const std::vector<Value> made = detail::add("RandomUniform", {state}, detail::Attributes()
          .put("seed", attributes.seed)
          .put("shape", attributes.shape)
          .put("dtype", attributes.dtype)
          .put("low", attributes.low)
          .put("high", attributes.high), 2);
  return {made[0], made[1]};
}

// start + delta * position, of a known length; start and delta are computed scalars.
struct RangeAttributes {
  std::int64_t size;
};
inline Value range(const Value& start, const Value& delta, const RangeAttributes& attributes) {
  return detail::add("Range", {start, delta}, detail::Attributes()
          .put("size", attributes.size), 1)[0];
}

// reciprocal(x), per element.
inline Value reciprocal(const Value& x) {
  return detail::add("Reciprocal", {x}, detail::Attributes(), 1)[0];
}

// all over axes.
struct ReduceAllAttributes {
  OptionalList<std::int64_t> axes = {};
  bool keepdims = false;
};
inline Value reduce_all(const Value& x, const ReduceAllAttributes& attributes = {}) {
  return detail::add("ReduceAll", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("keepdims", attributes.keepdims), 1)[0];
}

// any over axes.
struct ReduceAnyAttributes {
  OptionalList<std::int64_t> axes = {};
  bool keepdims = false;
};
inline Value reduce_any(const Value& x, const ReduceAnyAttributes& attributes = {}) {
  return detail::add("ReduceAny", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("keepdims", attributes.keepdims), 1)[0];
}

// max over axes.
struct ReduceMaxAttributes {
  OptionalList<std::int64_t> axes = {};
  bool keepdims = false;
};
inline Value reduce_max(const Value& x, const ReduceMaxAttributes& attributes = {}) {
  return detail::add("ReduceMax", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("keepdims", attributes.keepdims), 1)[0];
}

// The mean over axes; integers are summed in 64 bits, so that narrower ones do not overflow.
struct ReduceMeanAttributes {
  OptionalList<std::int64_t> axes = {};
  bool keepdims = false;
};
inline Value reduce_mean(const Value& x, const ReduceMeanAttributes& attributes = {}) {
  return detail::add("ReduceMean", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("keepdims", attributes.keepdims), 1)[0];
}

// min over axes.
struct ReduceMinAttributes {
  OptionalList<std::int64_t> axes = {};
  bool keepdims = false;
};
inline Value reduce_min(const Value& x, const ReduceMinAttributes& attributes = {}) {
  return detail::add("ReduceMin", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("keepdims", attributes.keepdims), 1)[0];
}

// prod over axes.
struct ReduceProdAttributes {
  OptionalList<std::int64_t> axes = {};
  bool keepdims = false;
};
inline Value reduce_prod(const Value& x, const ReduceProdAttributes& attributes = {}) {
  return detail::add("ReduceProd", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("keepdims", attributes.keepdims), 1)[0];
}

// sum over axes.
struct ReduceSumAttributes {
  OptionalList<std::int64_t> axes = {};
  bool keepdims = false;
};
inline Value reduce_sum(const Value& x, const ReduceSumAttributes& attributes = {}) {
  return detail::add("ReduceSum", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("keepdims", attributes.keepdims), 1)[0];
}

// relu(x), per element.
inline Value relu(const Value& x) {
  return detail::add("Relu", {x}, detail::Attributes(), 1)[0];
}

// The same elements in the same order under another shape.
struct ReshapeAttributes {
  std::vector<std::int64_t> shape;
};
inline Value reshape(const Value& x, const ReshapeAttributes& attributes) {
  return detail::add("Reshape", {x}, detail::Attributes()
          .put("shape", attributes.shape), 1)[0];
}

// x resized along axes to sizes.
struct ResizeAttributes {
  std::vector<std::int64_t> axes;
  std::vector<std::int64_t> sizes;
  OptionalList<double> scales = {};
  std::string mode = "linear";
  std::string coordinates = "half_pixel";
  std::string rounding = "round_prefer_floor";
  double cubic_a = -0.75;
  bool exclude_outside = false;
  bool antialias = false;
  OptionalList<double> roi = {};
  double extrapolation = 0.0;
};
inline Value resize(const Value& x, const ResizeAttributes& attributes) {
  return detail::add("Resize", {x}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("sizes", attributes.sizes)
          .put("scales", attributes.scales)
          .put("mode", attributes.mode)
          .put("coordinates", attributes.coordinates)
          .put("rounding", attributes.rounding)
          .put("cubic_a", attributes.cubic_a)
          .put("exclude_outside", attributes.exclude_outside)
          .put("antialias", attributes.antialias)
          .put("roi", attributes.roi)
          .put("extrapolation", attributes.extrapolation), 1)[0];
}

// x back to front along axes.
struct ReverseAttributes {
  std::vector<std::int64_t> axes;
};
inline Value reverse(const Value& x, const ReverseAttributes& attributes) {
  return detail::add("Reverse", {x}, detail::Attributes()
          .put("axes", attributes.axes), 1)[0];
}

// The first lengths[b] elements along time_axis of each batch entry back to front.
struct ReverseSequenceAttributes {
  std::int64_t time_axis = 0;
  std::int64_t batch_axis = 1;
};
inline Value reverse_sequence(const Value& x, const Value& lengths, const ReverseSequenceAttributes& attributes = {}) {
  return detail::add("ReverseSequence", {x, lengths}, detail::Attributes()
          .put("time_axis", attributes.time_axis)
          .put("batch_axis", attributes.batch_axis), 1)[0];
}

// x divided by its root mean square over axes, then scaled; 16-bit floats are computed in float32.
struct RmsNormAttributes {
  std::vector<std::int64_t> axes = {-1};
  double epsilon = 1e-05;
};
inline Value rms_norm(const Value& x, const Value& scale = {}, const RmsNormAttributes& attributes = {}) {
  return detail::add("RmsNorm", {x, scale}, detail::Attributes()
          .put("axes", attributes.axes)
          .put("epsilon", attributes.epsilon), 1)[0];
}

// Regions of images, each divided into bins and sampled by interpolation: (R, C, height, width).
struct RoiAlignAttributes {
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t sampling_ratio = 0;
  double spatial_scale = 1.0;
  std::string mode = "avg";
  bool half_pixel = true;
};
inline Value roi_align(const Value& x, const Value& rois, const Value& batch_indices, const RoiAlignAttributes& attributes = {}) {
  return detail::add("RoiAlign", {x, rois, batch_indices}, detail::Attributes()
          .put("height", attributes.height)
          .put("width", attributes.width)
          .put("sampling_ratio", attributes.sampling_ratio)
          .put("spatial_scale", attributes.spatial_scale)
          .put("mode", attributes.mode)
          .put("half_pixel", attributes.half_pixel), 1)[0];
}

// x rotated by shifts along axes; what leaves at the end comes in at the front.
struct RollAttributes {
  std::vector<std::int64_t> shifts;
  std::vector<std::int64_t> axes;
};
inline Value roll(const Value& x, const RollAttributes& attributes) {
  return detail::add("Roll", {x}, detail::Attributes()
          .put("shifts", attributes.shifts)
          .put("axes", attributes.axes), 1)[0];
}

// round(x), per element.
inline Value round(const Value& x) {
  return detail::add("Round", {x}, detail::Attributes(), 1)[0];
}

// rsqrt(x), per element.
inline Value rsqrt(const Value& x) {
  return detail::add("Rsqrt", {x}, detail::Attributes(), 1)[0];
}

// y = x; y[indices[i][j]][j] = updates[i][j] for axis 0, and so on.
struct ScatterElementsAttributes {
  std::string reduction = "none";
  std::int64_t axis = 0;
};
inline Value scatter_elements(const Value& x, const Value& indices, const Value& updates, const ScatterElementsAttributes& attributes = {}) {
  return detail::add("ScatterElements", {x, indices, updates}, detail::Attributes()
          .put("reduction", attributes.reduction)
          .put("axis", attributes.axis), 1)[0];
}

// y = x; y[indices[…]] = updates[…], indices holding leading positions along its last axis.
struct ScatterNdAttributes {
  std::string reduction = "none";
};
inline Value scatter_nd(const Value& x, const Value& indices, const Value& updates, const ScatterNdAttributes& attributes = {}) {
  return detail::add("ScatterNd", {x, indices, updates}, detail::Attributes()
          .put("reduction", attributes.reduction), 1)[0];
}

// y of zeros with `rows` rows; y[indices[i]] += updates[i]. Negative indices are left out; sums round once.
struct ScatterSumAttributes {
  std::int64_t rows;
};
inline Value scatter_sum(const Value& indices, const Value& updates, const ScatterSumAttributes& attributes) {
  return detail::add("ScatterSum", {indices, updates}, detail::Attributes()
          .put("rows", attributes.rows), 1)[0];
}

// x where the condition holds, else y; all broadcast.
inline Value select(const Value& condition, const Value& x, const Value& y) {
  return detail::add("Select", {condition, x, y}, detail::Attributes(), 1)[0];
}

// As many boxes as are kept.
struct SelectBoxesAttributes {
  std::int64_t max_output_boxes;
  double iou_threshold = 0.5;
  std::optional<double> score_threshold = {};
  double soft_nms_sigma = 0.0;
};
inline std::array<Value, 3> select_boxes(const Value& boxes, const Value& scores, const SelectBoxesAttributes& attributes) {
  const std::vector<Value> made = detail::add("SelectBoxes", {boxes, scores}, detail::Attributes()
          .put("max_output_boxes", attributes.max_output_boxes)
          .put("iou_threshold", attributes.iou_threshold)
          .put("score_threshold", attributes.score_threshold)
          .put("soft_nms_sigma", attributes.soft_nms_sigma), 3);
  return {made[0], made[1], made[2]};
}

// Always `max_output_boxes` entries; those that are left over hold zeros.
struct SelectBoxesPaddedAttributes {
  std::int64_t max_output_boxes;
  double iou_threshold = 0.5;
  std::optional<double> score_threshold = {};
  double soft_nms_sigma = 0.0;
};
inline std::array<Value, 3> select_boxes_padded(const Value& boxes, const Value& scores, const SelectBoxesPaddedAttributes& attributes) {
  const std::vector<Value> made = detail::add("SelectBoxesPadded", {boxes, scores}, detail::Attributes()
          .put("max_output_boxes", attributes.max_output_boxes)
          .put("iou_threshold", attributes.iou_threshold)
          .put("score_threshold", attributes.score_threshold)
          .put("soft_nms_sigma", attributes.soft_nms_sigma), 3);
  return {made[0], made[1], made[2]};
}

// gamma * (x where positive, else alpha * (exp(x) - 1)).
struct SeluAttributes {
  double alpha = 1.6732632423543772;
  double gamma = 1.0507009873554805;
};
inline Value selu(const Value& x, const SeluAttributes& attributes = {}) {
  return detail::add("Selu", {x}, detail::Attributes()
          .put("alpha", attributes.alpha)
          .put("gamma", attributes.gamma), 1)[0];
}

// shl(a, b), per element.
inline Value shift_left(const Value& a, const Value& b) {
  return detail::add("ShiftLeft", {a, b}, detail::Attributes(), 1)[0];
}

// shr(a, b), per element.
inline Value shift_right(const Value& a, const Value& b) {
  return detail::add("ShiftRight", {a, b}, detail::Attributes(), 1)[0];
}

// x drawn towards zero by bias outside of -lambd..lambd, 0 inside.
struct ShrinkAttributes {
  double lambd = 0.5;
  double bias = 0.0;
};
inline Value shrink(const Value& x, const ShrinkAttributes& attributes = {}) {
  return detail::add("Shrink", {x}, detail::Attributes()
          .put("lambd", attributes.lambd)
          .put("bias", attributes.bias), 1)[0];
}

// sigmoid(x), per element.
inline Value sigmoid(const Value& x) {
  return detail::add("Sigmoid", {x}, detail::Attributes(), 1)[0];
}

// sign(x), per element.
inline Value sign(const Value& x) {
  return detail::add("Sign", {x}, detail::Attributes(), 1)[0];
}

// sin(x), per element.
inline Value sin(const Value& x) {
  return detail::add("Sin", {x}, detail::Attributes(), 1)[0];
}

// sinh(x), per element.
inline Value sinh(const Value& x) {
  return detail::add("Sinh", {x}, detail::Attributes(), 1)[0];
}

// A box of x: elements starts, starts + steps, … before ends, one entry per axis.
struct SliceAttributes {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> ends;
  OptionalList<std::int64_t> steps = {};
};
inline Value slice(const Value& x, const SliceAttributes& attributes) {
  return detail::add("Slice", {x}, detail::Attributes()
          .put("starts", attributes.starts)
          .put("ends", attributes.ends)
          .put("steps", attributes.steps), 1)[0];
}

// exp(x) / sum(exp(x)) over axes.
struct SoftmaxAttributes {
  std::vector<std::int64_t> axes = {-1};
};
inline Value softmax(const Value& x, const SoftmaxAttributes& attributes = {}) {
  return detail::add("Softmax", {x}, detail::Attributes()
          .put("axes", attributes.axes), 1)[0];
}

// softplus(x), per element.
inline Value softplus(const Value& x) {
  return detail::add("Softplus", {x}, detail::Attributes(), 1)[0];
}

// x / (1 + |x|).
inline Value softsign(const Value& x) {
  return detail::add("Softsign", {x}, detail::Attributes(), 1)[0];
}

// The solution of linear systems with general matrices.
inline Value solve(const Value& a, const Value& b) {
  return detail::add("Solve", {a, b}, detail::Attributes(), 1)[0];
}

// The elements in order along axis (stable).
struct SortAttributes {
  std::int64_t axis = -1;
  bool descending = false;
};
inline Value sort(const Value& x, const SortAttributes& attributes = {}) {
  return detail::add("Sort", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("descending", attributes.descending), 1)[0];
}

// Blocks of pixels moved into channels.
struct SpaceToDepthAttributes {
  std::int64_t block;
  std::string mode = "DCR";
  bool channels_last = false;
};
inline Value space_to_depth(const Value& x, const SpaceToDepthAttributes& attributes) {
  return detail::add("SpaceToDepth", {x}, detail::Attributes()
          .put("block", attributes.block)
          .put("mode", attributes.mode)
          .put("channels_last", attributes.channels_last), 1)[0];
}

// Pieces of x along axis, of given sizes.
struct SplitAttributes {
  std::int64_t axis;
  std::vector<std::int64_t> sizes;
};
inline std::vector<Value> split(const Value& x, std::size_t results, const SplitAttributes& attributes) {
  return detail::add("Split", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("sizes", attributes.sizes), results);
}

// sqrt(x), per element.
inline Value sqrt(const Value& x) {
  return detail::add("Sqrt", {x}, detail::Attributes(), 1)[0];
}

// square(x), per element.
inline Value square(const Value& x) {
  return detail::add("Square", {x}, detail::Attributes(), 1)[0];
}

// (a - b) squared.
inline Value squared_difference(const Value& a, const Value& b) {
  return detail::add("SquaredDifference", {a, b}, detail::Attributes(), 1)[0];
}

// The first layers of residual networks: 7x7 convolution of stride 2, ReLU, 3x3 max pool of stride 2.
struct StemAttributes {
  std::string data_format = "channels_first";
};
inline Value stem(const Value& x, const Value& w, const Value& bias, const StemAttributes& attributes = {}) {
  return detail::add("Stem", {x, w, bias}, detail::Attributes()
          .put("data_format", attributes.data_format), 1)[0];
}

// sub(a, b), per element.
inline Value sub(const Value& a, const Value& b) {
  return detail::add("Sub", {a, b}, detail::Attributes(), 1)[0];
}

// x * sigmoid(beta * x).
struct SwishAttributes {
  double beta = 1.0;
};
inline Value swish(const Value& x, const SwishAttributes& attributes = {}) {
  return detail::add("Swish", {x}, detail::Attributes()
          .put("beta", attributes.beta), 1)[0];
}

// tan(x), per element.
inline Value tan(const Value& x) {
  return detail::add("Tan", {x}, detail::Attributes(), 1)[0];
}

// tanh(x), per element.
inline Value tanh(const Value& x) {
  return detail::add("Tanh", {x}, detail::Attributes(), 1)[0];
}

// x where greater than alpha, else 0.
struct ThresholdedReluAttributes {
  double alpha = 1.0;
};
inline Value thresholded_relu(const Value& x, const ThresholdedReluAttributes& attributes = {}) {
  return detail::add("ThresholdedRelu", {x}, detail::Attributes()
          .put("alpha", attributes.alpha), 1)[0];
}

// x repeated along each axis.
struct TileAttributes {
  std::vector<std::int64_t> repeats;
};
inline Value tile(const Value& x, const TileAttributes& attributes) {
  return detail::add("Tile", {x}, detail::Attributes()
          .put("repeats", attributes.repeats), 1)[0];
}

// The k largest (or smallest) elements along axis, in order, and their positions (int64).
struct TopKAttributes {
  std::int64_t k;
  std::int64_t axis = -1;
  bool largest = true;
  bool sorted = true;
};
inline std::array<Value, 2> top_k(const Value& x, const TopKAttributes& attributes) {
  const std::vector<Value> made = detail::add("TopK", {x}, detail::Attributes()
          .put("k", attributes.k)
          .put("axis", attributes.axis)
          .put("largest", attributes.largest)
          .put("sorted", attributes.sorted), 2);
  return {made[0], made[1]};
}

// Axes in another order: axis i of the result is axis perm[i] of x.
struct TransposeAttributes {
  std::vector<std::int64_t> perm;
};
inline Value transpose(const Value& x, const TransposeAttributes& attributes) {
  return detail::add("Transpose", {x}, detail::Attributes()
          .put("perm", attributes.perm), 1)[0];
}

// The weights of the leaves that a row reaches, one in each tree, aggregated by target.
struct TreeEnsembleAttributes {
  std::int64_t width;
  std::string aggregate = "sum";
  bool plain = false;
  bool single = false;
};
inline Value tree_ensemble(const Value& x, const Value& nodes, const Value& roots, const Value& depths, const Value& targets, const Value& weights, const TreeEnsembleAttributes& attributes) {
  return detail::add("TreeEnsemble", {x, nodes, roots, depths, targets, weights}, detail::Attributes()
          .put("width", attributes.width)
          .put("aggregate", attributes.aggregate)
          .put("plain", attributes.plain)
          .put("single", attributes.single), 1)[0];
}

// The solution of linear systems of which one triangle of the matrix is read.
struct TriangularSolveAttributes {
  bool lower = true;
  bool transposed = false;
  bool unit_diagonal = false;
};
inline Value triangular_solve(const Value& a, const Value& b, const TriangularSolveAttributes& attributes = {}) {
  return detail::add("TriangularSolve", {a, b}, detail::Attributes()
          .put("lower", attributes.lower)
          .put("transposed", attributes.transposed)
          .put("unit_diagonal", attributes.unit_diagonal), 1)[0];
}

// The upper or lower triangle of matrices from diagonal k on, 0 elsewhere.
struct TriluAttributes {
  bool upper = true;
  std::int64_t k = 0;
};
inline Value trilu(const Value& x, const TriluAttributes& attributes = {}) {
  return detail::add("Trilu", {x}, detail::Attributes()
          .put("upper", attributes.upper)
          .put("k", attributes.k), 1)[0];
}

// trunc(x), per element.
inline Value trunc(const Value& x) {
  return detail::add("Trunc", {x}, detail::Attributes(), 1)[0];
}

// The distinct elements (or slices along axis), where first seen, which one each element is, counts.
struct UniqueAttributes {
  std::optional<std::int64_t> axis = {};
  bool sorted = true;
  bool equal_nan = true;
};
inline std::array<Value, 4> unique(const Value& x, const UniqueAttributes& attributes = {}) {
  const std::vector<Value> made = detail::add("Unique", {x}, detail::Attributes()
          .put("axis", attributes.axis)
          .put("sorted", attributes.sorted)
          .put("equal_nan", attributes.equal_nan), 4);
  return {made[0], made[1], made[2], made[3]};
}

// The positions of the nonzero elements, an element a row.
inline Value where(const Value& x) {
  return detail::add("Where", {x}, detail::Attributes(), 1)[0];
}

// Each place of planes of the given shape gets the values of all windows whose position is that place.
struct WindowSumAttributes {
  std::vector<std::int64_t> kernel;
  OptionalList<std::int64_t> strides = {};
  OptionalList<std::int64_t> dilations = {};
  OptionalList<std::int64_t> pads_begin = {};
  OptionalList<std::int64_t> pads_end = {};
  std::string data_format = "channels_first";
  std::vector<std::int64_t> shape;
};
inline Value window_sum(const Value& incoming, const Value& positions, const WindowSumAttributes& attributes) {
  return detail::add("WindowSum", {incoming, positions}, detail::Attributes()
          .put("kernel", attributes.kernel)
          .put("strides", attributes.strides)
          .put("dilations", attributes.dilations)
          .put("pads_begin", attributes.pads_begin)
          .put("pads_end", attributes.pads_end)
          .put("data_format", attributes.data_format)
          .put("shape", attributes.shape), 1)[0];
}

// xor(a, b), per element.
inline Value xor_(const Value& a, const Value& b) {
  return detail::add("Xor", {a, b}, detail::Attributes(), 1)[0];
}

}  // namespace tf_adapter::ops

namespace tf_adapter {

inline Value operator+(const Value& a, const Value& b) { return ops::add(a, b); }
inline Value operator-(const Value& a, const Value& b) { return ops::sub(a, b); }
inline Value operator*(const Value& a, const Value& b) { return ops::mul(a, b); }
inline Value operator/(const Value& a, const Value& b) { return ops::div(a, b); }
inline Value operator-(const Value& a) { return ops::neg(a); }

}  // namespace tf_adapter

#endif  // NPU_OPERATORS_HPP_
