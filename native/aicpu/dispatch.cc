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

}  // namespace

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
