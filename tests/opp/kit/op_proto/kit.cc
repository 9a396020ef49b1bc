// Inference of the operators that have an AI CPU kernel.
#include "kit.h"

namespace ge {

IMPLEMT_VERIFIER(KeepPositive, KeepPositiveVerify) {
  if (op.GetInputDescByName("x").GetShape().GetDimNum() != 1) {
    OP_LOGE("KeepPositive", "takes vectors, got rank %zu", op.GetInputDescByName("x").GetShape().GetDimNum());
    return GRAPH_FAILED;
  }
  return GRAPH_SUCCESS;
}
VERIFY_FUNC_REG(KeepPositive, KeepPositiveVerify);
COMMON_INFER_FUNC_REG(KeepPositive, ELMTWISE_INFER_SHAPEANDTYPE("x", "y"));

IMPLEMT_COMMON_INFERFUNC(WeightedSumInfer) {
  std::vector<float> weights;
  if (op.GetAttr("weights", weights) != GRAPH_SUCCESS) return GRAPH_FAILED;
  if (static_cast<int>(weights.size()) != op.GetDynamicInputNum("xs")) {
    OP_LOGE("WeightedSum", "%zu weights for %d tensors", weights.size(), op.GetDynamicInputNum("xs"));
    return GRAPH_FAILED;
  }
  TensorDesc desc = op.GetDynamicInputDesc("xs", 0);
  desc.SetShape(Shape(desc.GetShape().GetDims()));
  return op.UpdateOutputDesc("y", desc);
}
COMMON_INFER_FUNC_REG(WeightedSum, WeightedSumInfer);

IMPLEMT_COMMON_INFERFUNC(AffineInfer) { return op.UpdateOutputDesc("y", op.GetInputDesc("x")); }
COMMON_INFER_FUNC_REG(Affine, AffineInfer);

COMMON_INFER_FUNC_REG(PutRow, ELMTWISE_INFER_SHAPEANDTYPE("table", "table"));

// Leaves the shape to the operator file.
IMPLEMT_COMMON_INFERFUNC(TripledInfer) { return GRAPH_SUCCESS; }
COMMON_INFER_FUNC_REG(Tripled, TripledInfer);

}  // namespace ge
