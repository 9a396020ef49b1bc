// Prototypes of the operators that the tests build.
#pragma once

#include "graph/operator_reg.h"

namespace ge {

/* x * x * x, for floats by TBE. REG_OP(InAComment) */
REG_OP(Cube)
    .INPUT(x, TensorType({DT_FLOAT16, DT_FLOAT}))
    .OUTPUT(y, TensorType({DT_FLOAT16, DT_FLOAT}))
    .OP_END_FACTORY_REG(Cube)

    // Twice the sign: replaces the built-in operator.
    REG_OP(Sign)
    .INPUT(x, TensorType::UnaryDataType())
    .OUTPUT(y, TensorType::UnaryDataType())
    .OP_END_FACTORY_REG(Sign)

    // The positive elements; how many is known after the run.
    REG_OP(KeepPositive)
    .INPUT(x, TensorType({DT_FLOAT, DT_INT32}))
    .OUTPUT(y, TensorType({DT_FLOAT, DT_INT32}))
    .OP_END_FACTORY_REG(KeepPositive)

    // x itself, unless an element is below the bound.
    REG_OP(Checked)
    .INPUT(x, TensorType({DT_FLOAT}))
    .OUTPUT(y, TensorType({DT_FLOAT}))
    .ATTR(bound, Float, 0.0)
    .ATTR(how, String, "status")
    .OP_END_FACTORY_REG(Checked)

    // The weighted sum of any number of tensors.
    REG_OP(WeightedSum)
    .DYNAMIC_INPUT(xs, TensorType({DT_FLOAT}))
    .OUTPUT(y, TensorType({DT_FLOAT}))
    .REQUIRED_ATTR(weights, ListFloat)
    .ATTR(negate, Bool, false)
    .OP_END_FACTORY_REG(WeightedSum)

    // x * factor + bias; by TBE for float16, by AI CPU for float.
    REG_OP(Affine)
    .INPUT(x, TensorType({DT_FLOAT16, DT_FLOAT}))
    .OPTIONAL_INPUT(bias, TensorType({DT_FLOAT16, DT_FLOAT}))
    .OUTPUT(y, TensorType({DT_FLOAT16, DT_FLOAT}))
    .ATTR(factor, Int, 2)
    .OP_END_FACTORY_REG(Affine)

    // A table with one row replaced. The kernel changes its input, whose memory the output is.
    REG_OP(PutRow)
    .INPUT(table, TensorType({DT_FLOAT}))
    .INPUT(row, TensorType({DT_FLOAT}))
    .ATTR(at, Int, 0)
    .OUTPUT(table, TensorType({DT_FLOAT}))
    .OP_END_FACTORY_REG(PutRow)

    // 3 x, by a TIK program; `reach` elements are read.
    REG_OP(Tripled)
    .INPUT(x, TensorType({DT_FLOAT16}))
    .OUTPUT(y, TensorType({DT_FLOAT16}))
    .ATTR(reach, Int, 0)
    .OP_END_FACTORY_REG(Tripled)

}  // namespace ge
