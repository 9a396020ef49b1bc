// Post-operations, scales and zero points.
#include <array>
#include <charconv>
#include <limits>
#include <string_view>

#include "core/errors.h"
#include "core/processor.h"
#include "onednn/primitive.h"

namespace npu {
namespace {

using dnnl::algorithm;

struct Eltwise {
  std::string_view name;
  algorithm alg;
  float alpha;
  float beta;
};

// Defaults are those of the operators that carry these names.
constexpr Eltwise kEltwise[] = {
    {"relu", algorithm::eltwise_relu, 0.f, 0.f},
    {"leaky", algorithm::eltwise_relu, 0.01f, 0.f},
    {"elu", algorithm::eltwise_elu, 1.f, 0.f},
    {"gelu_erf", algorithm::eltwise_gelu_erf, 0.f, 0.f},
    {"gelu_tanh", algorithm::eltwise_gelu_tanh, 0.f, 0.f},
    {"swish", algorithm::eltwise_swish, 1.f, 0.f},
    {"tanh", algorithm::eltwise_tanh, 0.f, 0.f},
    {"sigmoid", algorithm::eltwise_logistic, 0.f, 0.f},
    {"logistic", algorithm::eltwise_logistic, 0.f, 0.f},
    {"clip", algorithm::eltwise_clip, 0.f, 6.f},
    {"hardswish", algorithm::eltwise_hardswish, 1.f / 6.f, 0.5f},
    {"hardsigmoid", algorithm::eltwise_hardsigmoid, 1.f / 6.f, 0.5f},
    {"mish", algorithm::eltwise_mish, 0.f, 0.f},
    {"softplus", algorithm::eltwise_soft_relu, 1.f, 0.f},
    {"abs", algorithm::eltwise_abs, 0.f, 0.f},
    {"sqrt", algorithm::eltwise_sqrt, 0.f, 0.f},
    {"square", algorithm::eltwise_square, 0.f, 0.f},
    {"exp", algorithm::eltwise_exp, 0.f, 0.f},
    {"log", algorithm::eltwise_log, 0.f, 0.f},
    {"round", algorithm::eltwise_round, 0.f, 0.f},
    {"linear", algorithm::eltwise_linear, 1.f, 0.f},
    {"pow", algorithm::eltwise_pow, 1.f, 1.f},
};

struct Binary {
  std::string_view name;
  algorithm alg;
};

constexpr Binary kBinary[] = {
    {"add", algorithm::binary_add}, {"sub", algorithm::binary_sub}, {"mul", algorithm::binary_mul},
    {"div", algorithm::binary_div}, {"max", algorithm::binary_max}, {"min", algorithm::binary_min},
};

// "kind[,alpha[,beta]]"
struct PostOp {
  std::string_view kind;
  std::vector<float> numbers;
};

float parse_number(std::string_view text, std::string_view whole) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  throw InvalidArgument("post-op '" + std::string(whole) + "' has a malformed number");
}

PostOp parse_post_op(std::string_view text) {
  PostOp result;
  std::string_view rest = text;
  for (bool first = true; first || !rest.empty(); first = false) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    if (first) {
      result.kind = part;
    } else {
      result.numbers.push_back(parse_number(part, text));
    }
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return result;
}

template <class Entry, std::size_t N>
const Entry* find_entry(const Entry (&table)[N], std::string_view name) {
  for (const Entry& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

float number(const PostOp& op, std::size_t i, float otherwise) {
  return i < op.numbers.size() ? op.numbers[i] : otherwise;
}

// True if the library returns one of the function's bounds for NaN.
bool absorbs_nan(algorithm alg, float alpha) {
  switch (alg) {
    case algorithm::eltwise_relu:
      return alpha == 0.f;
    case algorithm::eltwise_clip:
    case algorithm::eltwise_hardsigmoid:
    case algorithm::binary_max:
    case algorithm::binary_min:
      return true;
    default:
      return false;
  }
}

bool is_floating(DType type) {
  return type == DType::Float32 || type == DType::BFloat16 || type == DType::Float16;
}

class AttributeBuilder {
 public:
  AttributeBuilder(Lowering& low, std::size_t next, const PostOperandShape& shape)
      : low_(low), next_(next), shape_(shape) {
    result_.attr = base_attr();
  }

  void quantisation(int scale_mask) {
    const Attrs& attrs = low_.attrs();
    if (attrs.flag("has_weight_scales")) weight_scales(scale_mask);
    if (attrs.has("src_scale")) scale(DNNL_ARG_SRC, attrs.real("src_scale"));
    if (attrs.has("dst_scale")) scale(DNNL_ARG_DST, attrs.real("dst_scale"));
    if (attrs.has("src_zero_point")) zero_point(DNNL_ARG_SRC, attrs.integer("src_zero_point"));
    if (attrs.has("dst_zero_point")) zero_point(DNNL_ARG_DST, attrs.integer("dst_zero_point"));
  }

  void post_ops(std::size_t left_out) {
    std::vector<std::string> texts = low_.attrs().texts("post_ops");
    texts.resize(texts.size() - left_out);
    for (const std::string& text : texts) append(parse_post_op(text));
    if (low_.attrs().flag("raises_on_nan")) raise_on_nan();
    for (const dnnl::post_ops& ops : before_bounds_) {
      result_.before_bounds.push_back({copied(result_.attr), ops.len()});
      result_.before_bounds.back().attr.set_post_ops(ops);
    }
    result_.attr.set_post_ops(ops_);
  }

  AttributeSet take() {
    if (next_ < low_.input_count()) low_.reject("more inputs than it uses");
    return std::move(result_);
  }

 private:
  void append(const PostOp& op) {
    if (const Eltwise* entry = find_entry(kEltwise, op.kind)) {
      // With AVX-512, gelu_erf gives NaN for infinity, but infinity for the largest number. Clip replaces NaN
      // by minus infinity, of which gelu_erf makes NaN again.
      if (entry->alg == algorithm::eltwise_gelu_erf && has(Vectors::Avx512)) {
        ops_.append_eltwise(algorithm::eltwise_clip, -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::max());
      }
      const float alpha = number(op, 0, entry->alpha);
      note_bounds(entry->alg, alpha);
      ops_.append_eltwise(entry->alg, alpha, number(op, 1, entry->beta));
    } else if (const Binary* entry = find_entry(kBinary, op.kind)) {
      const View& view = low_.input(next_++);
      const Desc desc = shape_.describe_operand(low_, view);
      note_bounds(entry->alg, 0.f);
      const int index = ops_.len();
      ops_.append_binary(entry->alg, desc);
      result_.operands.push_back(
          {DNNL_ARG_ATTR_MULTIPLE_POST_OP(index) | DNNL_ARG_SRC_1, desc, low_.at(view)});
    } else if (op.kind == "sum") {
      ops_.append_sum(number(op, 0, 1.f));
      result_.accumulates = true;
    } else {
      throw InvalidArgument("unknown post-op '" + std::string(op.kind) + "'");
    }
  }

  // x * min(max(0 * x + 1, 0), 1) is x. The library's minimum of NaN raises the flag and is one, and so does
  // the product of zero and infinity. Infinity has to be told too: the sum of two is NaN.
  void raise_on_nan() { ops_.append_eltwise(algorithm::eltwise_hardswish, 0.f, 1.f); }

  // Records the operations before a post-operation that absorbs NaN.
  void note_bounds(algorithm alg, float alpha) {
    if (!absorbs_nan(alg, alpha) || !is_floating(low_.output(0).dtype)) return;
    dnnl_post_ops_t ops = nullptr;
    dnnl::error::wrap_c_api(dnnl_post_ops_clone(&ops, ops_.get()), "could not copy post-operations");
    before_bounds_.emplace_back(ops);
  }

  static dnnl::primitive_attr copied(const dnnl::primitive_attr& attr) {
    dnnl_primitive_attr_t copy = nullptr;
    dnnl::error::wrap_c_api(dnnl_primitive_attr_clone(&copy, attr.get()), "could not copy attributes");
    return dnnl::primitive_attr(copy);
  }

  void weight_scales(int mask) {
    const View& view = low_.input(next_++);
    if (view.dtype != DType::Float32) low_.reject("weight scales must be float32");
    const bool single = view.elements() == 1;
    result_.attr.set_scales_mask(DNNL_ARG_WEIGHTS, single ? 0 : mask);
    const Desc desc({view.elements()}, dnnl::memory::data_type::f32, Dims{1});
    result_.operands.push_back({DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, desc, low_.at(view)});
  }

  void scale(int arg, double value) {
    const auto single = static_cast<float>(value);
    result_.attr.set_scales_mask(arg, 0);
    const Desc desc({1}, dnnl::memory::data_type::f32, Dims{1});
    result_.operands.push_back({DNNL_ARG_ATTR_SCALES | arg, desc, low_.literal(single)});
  }

  void zero_point(int arg, std::int64_t value) {
    if (value == 0) return;
    const auto single = static_cast<std::int32_t>(value);
    result_.attr.set_zero_points_mask(arg, 0);
    const Desc desc({1}, dnnl::memory::data_type::s32, Dims{1});
    result_.operands.push_back({DNNL_ARG_ATTR_ZERO_POINTS | arg, desc, low_.literal(single)});
  }

  Lowering& low_;
  std::size_t next_;
  const PostOperandShape& shape_;
  dnnl::post_ops ops_;
  std::vector<dnnl::post_ops> before_bounds_;
  AttributeSet result_;
};

}  // namespace

Desc PaddedOperandShape::describe_operand(const Lowering& low, const View& view) const {
  if (view.dims.size() > rank_) low.reject("a post-op operand has more dimensions than the output");
  const std::size_t missing = rank_ - view.dims.size();
  Dims dims(missing, 1);
  dims.insert(dims.end(), view.dims.begin(), view.dims.end());
  const std::int64_t outermost = view.dims.empty() ? 1 : view.dims.front() * view.strides.front();
  Dims strides(missing, std::max<std::int64_t>(outermost, 1));
  strides.insert(strides.end(), view.strides.begin(), view.strides.end());
  return describe(low, view.dtype, dims, strides);
}

AttributeSet make_attributes(Lowering& low, std::size_t next, int scale_mask, const PostOperandShape& shape,
                             std::size_t left_out) {
  AttributeBuilder builder(low, next, shape);
  builder.quantisation(scale_mask);
  builder.post_ops(left_out);
  return builder.take();
}

}  // namespace npu
