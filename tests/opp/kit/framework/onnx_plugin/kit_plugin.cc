// The kit's operators in ONNX.
#include "register/register.h"

namespace domi {

REGISTER_CUSTOM_OP("Cube")
    .FrameworkType(ONNX)
    .OriginOpType({"kit::1::Cube"})
    .ParseParamsByOperatorFn(AutoMappingByOpFn);
REGISTER_CUSTOM_OP("KeepPositive")
    .FrameworkType(ONNX)
    .OriginOpType("kit::1::KeepPositive")
    .ParseParamsByOperatorFn(AutoMappingByOpFn);
REGISTER_CUSTOM_OP("WeightedSum")
    .FrameworkType(ONNX)
    .OriginOpType("kit::1::WeightedSum")
    .ParseParamsByOperatorFn(AutoMappingByOpFn);
REGISTER_CUSTOM_OP("Checked")
    .FrameworkType(ONNX)
    .OriginOpType("kit::1::Checked")
    .ParseParamsByOperatorFn(AutoMappingByOpFn);

}  // namespace domi
