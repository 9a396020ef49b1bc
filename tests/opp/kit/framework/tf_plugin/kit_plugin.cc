// The kit's operators in TensorFlow.
#include "register/register.h"

namespace domi {

REGISTER_CUSTOM_OP("Cube").FrameworkType(TENSORFLOW).OriginOpType("KitCube").ParseParamsFn(AutoMappingFn);
REGISTER_CUSTOM_OP("KeepPositive")
    .FrameworkType(TENSORFLOW)
    .OriginOpType("KitKeepPositive")
    .ParseParamsByOperatorFn(AutoMappingByOpFn)
    .ImplyType(ImplyType::AI_CPU);
REGISTER_CUSTOM_OP("WeightedSum")
    .FrameworkType(TENSORFLOW)
    .OriginOpType({"KitWeightedSum", "KitWeightedSumV2"})
    .ParseParamsByOperatorFn(AutoMappingByOpFn);

}  // namespace domi
