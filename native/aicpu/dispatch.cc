// Promotion of 16-bit floats.
#include "aicpu/dispatch.h"

#include "core/strided.h"

namespace npu::aicpu {
namespace {

bool is_half(DType type) { return type == DType::Float16 || type == DType::BFloat16; }

// A float32 stand-in for an operand; the others pass through.
class Promoted {
 public:
  Promoted(const Tensor& tensor, bool read) : original_(tensor), tensor_(tensor) {
    if (!is_half(tensor.dtype)) return;
    values_.resize(static_cast<std::size_t>(tensor.elements()));
    tensor_.dtype = DType::Float32;
    tensor_.data = values_.data();
    if (read) {
      convert_row(original_.dtype, DType::Float32, original_.as<char>(), 2, tensor_.as<char>(), 4,
                  tensor.elements());
    }
  }

  const Tensor& tensor() const { return tensor_; }

  void write_back() const {
    if (!is_half(original_.dtype)) return;
    convert_row(DType::Float32, original_.dtype, tensor_.as<char>(), 4, original_.as<char>(), 2,
                original_.elements());
  }

 private:
  Tensor original_;
  Tensor tensor_;
  std::vector<float> values_;
};

bool is_index(DType type) { return type == DType::Int32 || type == DType::Int64; }

}  // namespace

Status read_indices(const Tensor& tensor, std::vector<std::int64_t>& indices) {
  if (!is_index(tensor.dtype)) {
    return Status::error("indices must be int32 or int64, not " + std::string(dtype_name(tensor.dtype)));
  }
  indices.resize(static_cast<std::size_t>(tensor.elements()));
  convert_row(tensor.dtype, DType::Int64, tensor.as<char>(),
              static_cast<std::int64_t>(dtype_size(tensor.dtype)), reinterpret_cast<char*>(indices.data()), 8,
              tensor.elements());
  return Status::ok();
}

Status write_indices(const std::vector<std::int64_t>& indices, const Tensor& tensor) {
  if (!is_index(tensor.dtype)) {
    return Status::error("indices must be int32 or int64, not " + std::string(dtype_name(tensor.dtype)));
  }
  if (tensor.elements() < static_cast<std::int64_t>(indices.size())) {
    return Status::error("an output for indices is too small");
  }
  convert_row(DType::Int64, tensor.dtype, reinterpret_cast<const char*>(indices.data()), 8, tensor.as<char>(),
              static_cast<std::int64_t>(dtype_size(tensor.dtype)), static_cast<std::int64_t>(indices.size()));
  return Status::ok();
}

Status run_promoted(Call& call, KernelFn kernel) {
  std::vector<Promoted> inputs, outputs;
  std::vector<Tensor> ins, outs;
  inputs.reserve(call.inputs.size());
  outputs.reserve(call.outputs.size());
  for (const Tensor& tensor : call.inputs) ins.push_back(inputs.emplace_back(tensor, true).tensor());
  for (const Tensor& tensor : call.outputs) outs.push_back(outputs.emplace_back(tensor, false).tensor());
  Call made(std::move(ins), std::move(outs), call.attrs);
  NPU_RETURN_IF_ERROR(kernel(made));
  for (const Promoted& output : outputs) output.write_back();
  call.actual = std::move(made.actual);
  call.reported = std::move(made.reported);
  return Status::ok();
}

}  // namespace npu::aicpu
