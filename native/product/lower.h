// Implementations of tasks of kind "matmul" that are our own.
#pragma once

#include <vector>

#include "runtime/lowering.h"

namespace npu {

// An operand with as few dimensions as its strides allow.
struct Matrix {
  Dims dims;
  Dims strides;
};

// Lowers a float32 product by Strassen's algorithm.
void lower_strassen(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y,
                    const std::vector<Matrix>& posts);

// Lowers a product with few rows or terms, which reads its second operand as it is.
void lower_narrow_product(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y);

}  // namespace npu
