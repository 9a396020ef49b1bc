"""The table's elementwise operators."""

from __future__ import annotations

from typing import Any

from tf_adapter.conformance.rows import B, Each, F, I, L, V, op

FLOATS = ("float32", "float64", "float16", "bfloat16")
SHAPES = ((3, 5), (), (0, 3), (17,), (2, 3, 4))
PAIRS = (((3, 5), (3, 5)), ((3, 5), (5,)), ((), (4,)), ((2, 1, 4), (3, 1)), ((0, 3), (3,)), ((33,), (33,)))


def _unary(names: str, domain: str, argument: str = "x", ulps: float = 32) -> None:
    for name in names.split():
        given: dict[str, Any] = {argument: Each(*(V(*s, d=domain) for s in SHAPES))}
        op(name, _elementwise=True, _ulps=ulps, **given)


def _binary(
    names: str, first: str, second: str, arguments: tuple[str, str] = ("x", "y"), ulps: float = 32
) -> None:
    for name in names.split():
        for a, b in PAIRS:
            given: dict[str, Any] = {arguments[0]: V(*a, d=first), arguments[1]: V(*b, d=second)}
            op(name, _elementwise=True, _ulps=ulps, **given)


_unary("Abs Neg Exp Expm1 Sin Cos Tan Sinh Cosh Tanh Asinh Atan Erf Erfc Sign Floor Ceil Rint", "real")
_unary("Sigmoid Square IsNan IsInf IsFinite Reciprocal Inv", "real")
_unary("Conj Real Imag Angle", "real", "input")
op(
    "Round", x=Each(V(3, 5), V(17, d="special")), _dtypes=FLOATS, _elementwise=True
)  # of integers it gives zeros
_unary("Lgamma Digamma", "positive", ulps=128)
_unary("Log Log1p Sqrt Rsqrt", "positive")
_unary("Asin Acos Atanh Erfinv", "unit", ulps=64)
_unary("Acosh", "above_one", ulps=64)
_unary("Ndtri", "share", ulps=256)
_unary("Relu Relu6 Elu Softplus Softsign LeakyRelu", "real", "features")
_unary("Invert PopulationCount", "wide")
op("LogicalNot", x=Each(F(3, 5, dtype="bool"), F(0, 3, dtype="bool")))
_unary(
    "Abs Neg Sign Floor Ceil Rint Exp Expm1 Log Log1p Sqrt Rsqrt Reciprocal Square Tanh Sigmoid", "special"
)
_unary("Sin Cos Tan Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Erfc IsNan IsInf IsFinite", "special", ulps=64)
_unary("Relu Relu6 Elu Softplus Softsign LeakyRelu", "special", "features", ulps=64)
_unary("Selu", "real", "features", ulps=256)
op(
    "Erf", x=V(3, 5, d="special"), _dtypes=["float32"], _elementwise=True
)  # some releases: erf(inf) is NaN in float64
_unary(
    "BesselI0e BesselI1e BesselI0 BesselI1 Dawsn Expint FresnelCos FresnelSin Spence", "positive", ulps=512
)
_unary("BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1", "positive", ulps=2048)
_unary("ComplexAbs", "real")
_unary("ZerosLike DeepCopy", "real")
# of uint32 and uint64 TensorFlow's functions make zeros
op("OnesLike", x=V(3, 5), _dtypes=[*FLOATS, "int32", "int64", "int8", "uint8", "bool"])
_unary("Identity Snapshot StopGradient PreventGradient", "real", "input")

_binary("Add AddV2 Sub Mul Maximum Minimum SquaredDifference MulNoNan", "real", "real")
_binary("Equal NotEqual Less LessEqual Greater GreaterEqual", "small", "small")
_binary("Div RealDiv FloorDiv FloorMod Mod TruncateDiv TruncateMod DivNoNan Xdivy", "real", "nonzero")
_binary("Atan2", "real", "real", ("y", "x"))
_binary("Pow", "positive", "small", ulps=64)
_binary("Xlogy Xlog1py", "real", "positive", ulps=64)
_binary("NextAfter", "real", "real", ("x1", "x2"), ulps=1)
_binary("BitwiseAnd BitwiseOr BitwiseXor", "wide", "wide")
_binary("LeftShift RightShift", "positive", "small")
for _name in ["LogicalAnd", "LogicalOr"]:
    for _a, _b in PAIRS:
        op(_name, x=F(*_a, dtype="bool"), y=F(*_b, dtype="bool"))
_binary("Igamma Igammac", "positive", "positive", ("a", "x"), ulps=512)
_binary("IgammaGradA", "positive", "positive", ("a", "x"), ulps=4096)
_binary("Polygamma", "positive", "positive", ("a", "x"), ulps=512)
_binary("Zeta", "above_one", "positive", ("x", "q"), ulps=512)
_binary("Add Sub Mul Div RealDiv Maximum Minimum Equal NotEqual Less LessEqual Greater", "special", "special")
_binary(
    "GreaterEqual SquaredDifference DivNoNan MulNoNan Xdivy Xlogy Pow FloorMod FloorDiv", "special", "special"
)
op("Xdivy", x=V(4, d="zero"), y=V(4, d="zero"))
op("DivNoNan", x=V(4), y=V(4, d="zero"))

for _gradient in ["ReluGrad", "Relu6Grad", "SoftplusGrad", "SoftsignGrad", "LeakyReluGrad"]:
    op(_gradient, gradients=Each(V(3, 4), V(7), V()), features=Each(V(3, 4)), _elementwise=True)
for _gradient in ["EluGrad", "SeluGrad"]:
    op(_gradient, gradients=V(3, 4), outputs=V(3, 4), _elementwise=True)
for _gradient in ["SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad"]:
    op(_gradient, y=V(3, 4, d="positive"), dy=V(3, 4), _elementwise=True)

op("LeakyRelu", features=V(3, 5), alpha=Each(0.3, 0.0, 1.5))
op("Betainc", a=V(3, 4, d="positive"), b=V(3, 4, d="positive"), x=V(3, 4, d="share"), _ulps=512)
op("ApproximateEqual", x=V(3, 4), y=V(3, 4), tolerance=Each(1e-5, 1.0))
op("AddN", inputs=Each(L(V(3, 4), V(3, 4), V(3, 4)), L(V(2)), L(V(), V())))
op("ClipByValue", t=Each(V(3, 4), V(5)), clip_value_min=V(d="zero"), clip_value_max=V(d="positive"))
op("Select", condition=B([True, False, True]), x=Each(V(3, 4)), y=V(3, 4))
op("Select", condition=B([[True], [False]]), x=V(2, 1), y=V(2, 1))
op("SelectV2", condition=B([True, False, True]), t=Each(V(4, 3), V(3), V(1)), e=V(3))
op("BiasAdd", value=Each(V(2, 3, 4, 5), V(2, 5), V(2, 3, 5)), bias=V(5))
op("BiasAdd", value=V(2, 5, 3, 4), bias=V(5), data_format="NCHW")
op("BiasAddV1", value=V(2, 3, 5), bias=V(5))
op("BiasAddGrad", out_backprop=Each(V(2, 3, 4, 5), V(2, 5)))
op("BiasAddGrad", out_backprop=V(2, 5, 3, 4), data_format="NCHW")
op("Cross", a=Each(V(4, 3), V(3)), b=V(4, 3))
op("Cross", a=V(3), b=V(3))
op("Complex", real=F(3, 4), imag=F(3, 4), _dtypes=["complex64"])
op("CheckNumerics", tensor=V(3, 4), message="no")
op("CheckNumericsV2", tensor=V(3, 4), message="no")
op("Bucketize", input=V(3, 4), boundaries=[-1.0, 0.5, 3.0])
op("GuaranteeConst", input=V(3, 4))
op("IdentityN", input=L(V(3), V(2, 2)))
op("EnsureShape", input=V(3, 4), shape=[3, None])
op("PlaceholderWithDefault", input=V(3, 4), shape=[3, 4])

for _to in [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
]:
    # negative numbers have no place among unsigned ones: TensorFlow itself gives one thing or another
    op("Cast", x=V(3, 5, d="positive" if _to.startswith("u") else "real"), DstT=_to, _elementwise=True)
op("Cast", x=V(64, d="special"), DstT=Each("int32", "int64", "float16", "bool"), _dtypes=FLOATS)
op(
    "Cast",
    x=V(64, d="wide"),
    DstT=Each("int32", "float16", "bfloat16", "bool"),
    _dtypes=["float32", "float64", "int64"],
)
op("Bitcast", input=V(3, 4), type=Each("float32", "int32", "uint32"), _dtypes=["float32", "int32"])
op("Bitcast", input=V(3, 4), type=Each("uint8", "int64"), _dtypes=["float64", "int64"])
op(
    "FakeQuantWithMinMaxArgs",
    inputs=V(3, 4),
    min=-1.0,
    max=1.5,
    num_bits=Each(8, 4),
    narrow_range=Each(False, True),
)
op("FakeQuantWithMinMaxArgsGradient", gradients=V(3, 4), inputs=V(3, 4), min=-1.0, max=1.5)
op("FakeQuantWithMinMaxVars", inputs=V(3, 4), min=F(d="unit"), max=F(d="above_one"))
op(
    "FakeQuantWithMinMaxVarsGradient",
    gradients=F(3, 4),
    inputs=F(3, 4),
    min=F(d="unit"),
    max=F(d="above_one"),
)
op("FakeQuantWithMinMaxVarsPerChannel", inputs=F(3, 4), min=F(4, d="unit"), max=F(4, d="above_one"))
op(
    "FakeQuantWithMinMaxVarsPerChannelGradient",
    gradients=F(3, 4),
    inputs=F(3, 4),
    min=F(4, d="unit"),
    max=F(4, d="above_one"),
)
op("QuantizeAndDequantizeV2", input=V(3, 4), input_min=-4.0, input_max=4.0, range_given=Each(True, False))
op("QuantizeAndDequantizeV3", input=V(3, 4), input_min=-4.0, input_max=4.0, num_bits=Each(8, I(8)))
op("QuantizeAndDequantizeV4", input=V(3, 4), input_min=-4.0, input_max=4.0)
op("QuantizeAndDequantizeV4Grad", gradients=V(3, 4), input=V(3, 4), input_min=-4.0, input_max=4.0)
