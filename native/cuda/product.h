// Matrix products by cuBLASLt: y = act(a b + bias + residual), row-major, stacks of matrices included.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"

namespace npu::cuda {

// A matrix, or a stack of them at equal distances, in elements; one of its two strides is 1.
struct Matrix {
  std::int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 0, stack_stride = 0;
};

struct ProductSpec {
  std::string library;  // path of libcublasLt
  std::string dtype;    // of all operands: float32, float16 or bfloat16; sums are float32. Or int8
  std::string result;  // type of the result and the residual: that of the operands, or float32; int32 of int8
  std::int64_t stack = 1;
  Matrix a, b, y, residual;
  bool has_bias = false;
  bool has_residual = false;
  std::string activation;  // "", "relu" or "gelu_tanh"
};

class Product {
 public:
  static constexpr std::size_t kWorkspace = std::size_t{32} << 20;

  // Raises Unsupported when no algorithm takes the operands.
  Product(Device& device, const ProductSpec& spec);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  std::size_t candidates() const;
  // An algorithm and its settings, which stay the same while the library's version does.
  std::string describe(std::size_t candidate) const;
  void enqueue(const Stream& stream, std::size_t candidate, Address a, Address b, Address bias,
               Address residual, Address y, Address workspace) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace npu::cuda
