// Entry of our own matrix products: tasks of kind "matmul" that they take from oneDNN.
#pragma once

#include <vector>

#include "runtime/lowering.h"

namespace npu {

// An operand with as few dimensions as its strides allow.
struct Matrix {
  Dims dims;
  Dims strides;
};

// Lowers a large float32 product that gains by saved arithmetic; false leaves the task to oneDNN.
bool lower_product(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y,
                   const std::vector<Matrix>& posts);

// Lowers a float32 product with few rows or terms whose second operand is not packed; false likewise.
bool lower_narrow_product(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y);

}  // namespace npu
