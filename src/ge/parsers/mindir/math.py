"""MindSpore: element-wise operators, comparisons, reductions, sorting; most map to ATen's plugins."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import FLOATS, INTS
from ge.ir.values import desc_of
from ge.ops.aten import promoted
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.node import MsNode, as_aten, primitive

_UNARY = {
    "Abs": "abs",
    "ACos": "acos",
    "AcosExt": "acos",
    "Acosh": "acosh",
    "AcoshExt": "acosh",
    "Asin": "asin",
    "AsinExt": "asin",
    "Asinh": "asinh",
    "AsinhExt": "asinh",
    "Atan": "atan",
    "AtanExt": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil.default",
    "Cos": "cos",
    "Cosh": "cosh",
    "Digamma": "digamma",
    "Erf": "erf",
    "Erfc": "erfc",
    "Erfinv": "erfinv",
    "Exp": "exp",
    "Exp2": "exp2",
    "Expm1": "expm1",
    "Floor": "floor.default",
    "HSigmoid": "hardsigmoid",
    "HSwish": "hardswish",
    "IsFinite": "isfinite",
    "IsInf": "isinf",
    "IsNan": "isnan",
    "IsNegInf": "isneginf",
    "Lgamma": "lgamma",
    "Log": "log",
    "Log10": "log10",
    "Log1p": "log1p",
    "Log2": "log2",
    "LogicalNot": "logical_not",
    "BoolNot": "logical_not",
    "Mish": "mish",
    "MishExt": "mish",
    "Neg": "neg",
    "ReLU": "relu",
    "Reciprocal": "reciprocal",
    "Inv": "reciprocal",
    "Rint": "round.default",
    "Rsqrt": "rsqrt",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "SiLU": "silu",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Square": "square",
    "Tan": "tan",
    "Tanh": "tanh",
    "Trunc": "trunc.default",
}
as_aten({name: (target, "self") for name, target in _UNARY.items()})

_BINARY = {
    "Atan2": "atan2",
    "Atan2Ext": "atan2",
    "BitwiseAnd": "bitwise_and",
    "BitwiseAndTensor": "bitwise_and",
    "BitwiseAndScalar": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseOrTensor": "bitwise_or",
    "BitwiseOrScalar": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "BitwiseXorTensor": "bitwise_xor",
    "BitwiseXorScalar": "bitwise_xor",
    "Equal": "eq",
    "EqScalar": "eq",
    "FloorDiv": "floor_divide",
    "FloorDivScalar": "floor_divide",
    "FloorMod": "remainder",
    "Mod": "fmod",
    "FmodTensor": "fmod",
    "FmodScalar": "fmod",
    "Greater": "gt",
    "GreaterScalar": "gt",
    "GreaterEqual": "ge",
    "GreaterEqualScalar": "ge",
    "LeftShift": "bitwise_left_shift",
    "Less": "lt",
    "LessScalar": "lt",
    "LessEqual": "le",
    "LessEqualScalar": "le",
    "LogicalAnd": "logical_and",
    "LogicalOr": "logical_or",
    "LogicalXor": "logical_xor",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "NotEqual": "ne",
    "NeScalar": "ne",
    "RemainderTensorTensor": "remainder",
    "RemainderTensorScalar": "remainder",
    "RemainderScalarTensor": "remainder",
    "RightShift": "bitwise_right_shift",
}


@primitive(" ".join(_BINARY), "input other")
def _binary(n: MsNode) -> Any:
    """Both operands in one type, as MindSpore infers it; a number beside a tensor is a scalar of ATen's."""
    return n.aten(_BINARY[n.type], **dict(zip(("self", "other"), _operands(n), strict=True)))


def _operands(n: MsNode) -> list[Any]:
    pair = [n.arg("input"), n.arg("other")]
    tensors = [v for v in pair if isinstance(v, ir.Value)]
    if not tensors:
        return [n.tensor("input"), n.tensor("other")]
    if not isinstance(pair[0], ir.Value):  # ATen's first operand is always a tensor
        pair[0] = n.cast(pair[0], promoted(pair[0], tensors[0]))
    return pair


@primitive(
    "Add Sub Mul Div RealDiv Muls Divs Adds Subs AddExt SubExt AddScalar SubScalar Xdivy",
    "input other alpha=1",
)
def _arithmetic(n: MsNode) -> Any:
    """In the type of the result; bools are numbers."""
    kind = {"A": "Add", "S": "Sub", "M": "Mul", "D": "Div", "R": "Div", "X": "Div"}[n.type[0]]
    dtype = n.out().dtype
    first, second = (n.cast(n.arg(name), dtype) for name in ("input", "other"))
    alpha = n.setting("alpha", 1) if kind in ("Add", "Sub") else 1
    if alpha != 1:
        second = n.op("Mul", second, n.cast(alpha, dtype))
    if dtype == "bool":
        if kind == "Sub":
            raise Unsupported("a difference of bools")
        return n.op({"Add": "Or", "Mul": "And"}.get(kind, kind), first, second)
    if n.type == "Xdivy":
        zero = n.cast(0, dtype)
        return n.op(
            "Select", n.op("Equal", first, zero), n.spread(zero, n.out().shape), n.op("Div", first, second)
        )
    return n.op(kind, first, second)


@primitive("DivMod DivMods", "input other rounding_mode")
def _div_mod(n: MsNode) -> Any:
    mode = n.setting("rounding_mode")
    dtype = n.out().dtype
    first, second = (n.cast(n.arg(name), dtype) for name in ("input", "other"))
    if mode is None:
        return n.op("Div", first, second)
    if dtype not in FLOATS:
        raise Unsupported("a rounded quotient of whole numbers")
    rounding = {1: "Trunc", 2: "Floor"}.get(int(mode))
    if rounding is None:
        raise Unsupported(f"the rounding mode {mode}")
    return n.op(rounding, n.op("Div", first, second))


@primitive("DivNoNan", "input other")
def _div_no_nan(n: MsNode) -> Any:
    first, second = (n.cast(n.arg(name), n.out().dtype) for name in ("input", "other"))
    zero = n.cast(0, n.out().dtype)
    where = n.spread(n.op("Equal", second, zero), n.out().shape)
    return n.op("Select", where, n.spread(zero, n.out().shape), n.op("Div", first, second))


@primitive("SquaredDifference", "input other")
def _squared_difference(n: MsNode) -> Any:
    return n.op("SquaredDifference", *(n.cast(n.arg(k), n.out().dtype) for k in ("input", "other")))


@primitive("Pow PowTensorScalar PowScalarTensor", "input exponent")
def _pow(n: MsNode) -> Any:
    base, exponent = n.arg("input"), n.arg("exponent")
    if not isinstance(base, ir.Value) or desc_of(base).dtype != n.out().dtype:
        base = n.cast(base, n.out().dtype)
    if isinstance(exponent, ir.Value):
        exponent = n.cast(exponent, n.out().dtype)
    return n.aten("pow.Tensor", self=base, exponent=exponent)


@primitive("AddN AccumulateNV2", "x")
def _add_n(n: MsNode) -> Any:
    first, *rest = n.tensors("x")
    for value in rest:
        first = n.op("Add", first, value)
    return n.op("Identity", first) if not rest else first


@primitive("Lerp LerpScalar", "input end weight")
def _lerp(n: MsNode) -> Any:
    start, end = n.tensor("input"), n.tensor("end")
    return n.op("Add", start, n.op("Mul", n.op("Sub", end, start), n.tensor("weight", start)))


@primitive("Addcmul AddcmulExt Addcdiv AddcdivExt", "input tensor1 tensor2 value=1")
def _addc(n: MsNode) -> Any:
    x = n.tensor("input")
    kind = "Mul" if "mul" in n.type else "Div"
    inner = n.op(kind, n.tensor("tensor1", x), n.tensor("tensor2", x))
    return n.op("Add", x, n.op("Mul", inner, n.tensor("value", x)))


@primitive("Xlogy XLogYScalarOther XLogYScalarSelf", "input other")
def _xlogy(n: MsNode) -> Any:
    x, y = (n.cast(n.arg(k), n.out().dtype) for k in ("input", "other"))
    zero = n.cast(0, n.out().dtype)
    product = n.op("Mul", x, n.op("Log", y))
    return n.op(
        "Select", n.spread(n.op("Equal", x, zero), n.out().shape), n.spread(zero, n.out().shape), product
    )


@primitive("LogAddExp", "input other")
def _log_add_exp(n: MsNode) -> Any:
    x, y = n.tensor("input"), n.tensor("other")
    high, low = n.op("Maximum", x, y), n.op("Minimum", x, y)
    return n.op("Add", high, n.op("Log1p", n.op("Exp", n.op("Sub", low, high))))


@primitive("LogSigmoid", "input")
def _log_sigmoid(n: MsNode) -> Any:
    x = n.tensor("input")
    y = n.op("Neg", n.op("Softplus", n.op("Neg", x)))
    return (y, n.op("Identity", x)) if isinstance(n.form, tuple) else y


@primitive("Frac", "input")
def _frac(n: MsNode) -> Any:
    x = n.tensor("input")
    return n.op("Sub", x, n.op("Trunc", x))


@primitive("Identity Copy Clone TensorMove Contiguous StopGradient stop_gradient Detach", "input")
def _identity(n: MsNode) -> Any:
    return n.op("Identity", n.tensor("input"))


as_aten(
    {
        "ClampScalar": ("clamp.default", "self min!=None max!=None"),
        "ClampTensor": ("clamp.Tensor", "self min=None max=None"),
        "Hardtanh": ("hardtanh", "self min_val!=-1 max_val!=1"),
        "EluExt": ("elu", "self alpha!=1.0"),
        "LeakyReLUExt": ("leaky_relu", "self negative_slope!=0.01"),
        "SoftplusExt": ("softplus", "self beta!=1 threshold!=20"),
        "NanToNum": ("nan_to_num", "self nan!=None posinf!=None neginf!=None"),
        "SumExt": ("sum", "self dim!=None keepdim!=False dtype=None"),
        "MeanExt": ("mean", "self dim!=None keepdim!=False dtype=None"),
        "ProdExt": ("prod", "self dim!=None keepdim!=False dtype=None"),
        "Var": ("var", "self dim!=None correction!=1 keepdim!=False"),
        "Std": ("std", "self dim!=None correction!=1 keepdim!=False"),
        "VarMean": ("var_mean", "self dim!=None correction!=1 keepdim!=False"),
        "StdMean": ("std_mean", "self dim!=None correction!=1 keepdim!=False"),
        "LogSumExp": ("logsumexp", "self dim! keepdim!=False"),
        "Max": ("max.default", "self"),
        "Min": ("min.default", "self"),
        "MaxDim": ("max.dim", "self dim! keepdim!=False"),
        "MinDim": ("min.dim", "self dim! keepdim!=False"),
        "ArgMaxExt": ("argmax", "self dim!=None keepdim!=False"),
        "ArgMinExt": ("argmin", "self dim!=None keepdim!=False"),
        "CumsumExt": ("cumsum", "self dim! dtype=None"),
        "SortExt": ("sort", "self dim!=-1 descending!=False stable!=False"),
        "TopkExt": ("topk", "self k! dim!=-1 largest!=True sorted!=True"),
        "LinalgVectorNorm": ("linalg_vector_norm", "self ord!=2 dim!=None keepdim!=False dtype=None"),
        "Kthvalue": ("kthvalue.default", "self k! dim!=-1 keepdim!=False"),
        "MedianExt": ("median", "self"),
        "Dot": ("dot", "self tensor"),
        "Mv": ("mv", "self vec"),
        "Roll": ("roll", "self shifts! dims!=[]"),
        "TrilExt": ("tril", "self diagonal!=0"),
        "Tril": ("tril", "self diagonal!=0"),
        "Triu": ("triu", "self diagonal!=0"),
    }
)

_REDUCE = {
    "ReduceSum": "ReduceSum",
    "ReduceMean": "ReduceMean",
    "ReduceMax": "ReduceMax",
    "ReduceMin": "ReduceMin",
    "ReduceProd": "ReduceProd",
    "ReduceAll": "ReduceAll",
    "ReduceAny": "ReduceAny",
}


@primitive(" ".join(_REDUCE), "x axis=None keep_dims=False skip_mode=False")
def _reduce(n: MsNode) -> Any:
    x, type_ = n.tensor("x"), _REDUCE[n.type]
    rank = desc_of(x).rank
    if type_ in ("ReduceAll", "ReduceAny"):
        x = (
            n.cast(x, "bool")
            if desc_of(x).dtype == "bool"
            else n.op("NotEqual", x, n.cast(0, desc_of(x).dtype))
        )
    if not rank or (n.setting("skip_mode") and not n.integers("axis", ())):
        return n.op("Identity", x)
    made = n.op(type_, x, axes=n.axes("axis", rank), keepdims=bool(n.setting("keep_dims", False)))
    return n.back(made)


@primitive("AnyExt", "input dim keepdim=False")
def _any(n: MsNode) -> Any:
    x = n.tensor("input")
    flags = x if desc_of(x).dtype == "bool" else n.op("NotEqual", x, n.cast(0, desc_of(x).dtype))
    return n.op(
        "ReduceAny", flags, axes=n.axes("dim", desc_of(x).rank), keepdims=bool(n.setting("keepdim", False))
    )


@primitive("Argmax Argmin", "input axis=-1 output_type=34")
def _arg_extreme(n: MsNode) -> Any:
    x = n.tensor("input")
    axis = int(n.setting("axis", -1)) % max(desc_of(x).rank, 1)
    type_ = "ArgMax" if n.type == "Argmax" else "ArgMin"
    return n.back(n.op(type_, x, axis=axis, keepdims=False))


@primitive("ArgMaxWithValue ArgMinWithValue", "input axis=0 keep_dims=False")
def _extreme_with_place(n: MsNode) -> Any:
    x = n.tensor("input")
    axis = int(n.setting("axis", 0)) % max(desc_of(x).rank, 1)
    kept = bool(n.setting("keep_dims", False))
    which = "Max" if n.type.startswith("ArgMax") else "Min"
    place = n.op(f"Arg{which}", x, axis=axis, keepdims=kept)
    return [n.cast(place, n.out(0).dtype), n.op(f"Reduce{which}", x, axes=[axis], keepdims=kept)]


@primitive("TopK", "input k sorted=True")
def _top_k(n: MsNode) -> Any:
    x = n.tensor("input")
    values, places = n.builder.ops("TopK", [x], k=int(n.setting("k")), axis=desc_of(x).rank - 1)
    return [values, n.cast(places, n.out(1).dtype)]


@primitive("Sort", "x axis=-1 descending=False")
def _sort(n: MsNode) -> Any:
    x = n.tensor("x")
    axis = int(n.setting("axis", -1)) % desc_of(x).rank
    size = desc_of(x).shape[axis]
    values, places = n.builder.ops(
        "TopK", [x], k=size, axis=axis, largest=bool(n.setting("descending", False))
    )
    return [values, n.cast(places, n.out(1).dtype)]


@primitive("CumSum CumProd", "input axis exclusive=False reverse=False")
def _cumulative(n: MsNode) -> Any:
    x = n.tensor("input")
    axis = int(n.setting("axis")) % desc_of(x).rank
    exclusive, reverse = (bool(n.setting(k, False)) for k in ("exclusive", "reverse"))
    return n.op(n.type, x, axis=axis, exclusive=exclusive, reverse=reverse)


@primitive("SquareSumAll", "x y")
def _square_sum_all(n: MsNode) -> Any:
    found = []
    for name in ("x", "y"):
        x = n.tensor(name)
        found.append(n.op("ReduceSum", n.op("Square", x), axes=list(range(desc_of(x).rank)), keepdims=False))
    return found


@primitive("LpNorm", "x axis=None p=2 keep_dims=False epsilon=1e-12")
def _lp_norm(n: MsNode) -> Any:
    x = n.tensor("x")
    axes, p = n.axes("axis", desc_of(x).rank), float(n.setting("p", 2))
    powered = n.op("Square", x) if p == 2 else n.op("Pow", n.op("Abs", x), n.cast(p, desc_of(x).dtype))
    total = n.op("ReduceSum", powered, axes=axes, keepdims=bool(n.setting("keep_dims", False)))
    return n.op("Sqrt", total) if p == 2 else n.op("Pow", total, n.cast(1 / p, desc_of(x).dtype))


@primitive("L2Loss", "x")
def _l2_loss(n: MsNode) -> Any:
    x = n.tensor("x")
    total = n.op("ReduceSum", n.op("Square", x), axes=list(range(desc_of(x).rank)), keepdims=False)
    return n.op("Mul", total, n.cast(0.5, desc_of(x).dtype))


@primitive("ReLU6", "x")
def _relu6(n: MsNode) -> Any:
    return n.op("Clip", n.tensor("x"), min=0.0, max=6.0)


@primitive("GeLU", "input")
def _gelu(n: MsNode) -> Any:
    return n.op("Gelu", n.tensor("input"), approximate="tanh")


@primitive("FastGeLU", "x")
def _fast_gelu(n: MsNode) -> Any:
    """x * sigmoid(1.702 * x)."""
    x = n.tensor("x")
    return n.op("Mul", x, n.op("Sigmoid", n.op("Mul", x, n.cast(1.702, desc_of(x).dtype))))


@primitive("Elu", "x alpha=1.0")
def _elu(n: MsNode) -> Any:
    return n.op("Elu", n.tensor("x"), alpha=float(n.setting("alpha", 1.0)))


@primitive("CeLU", "x alpha=1.0")
def _celu(n: MsNode) -> Any:
    return n.op("Celu", n.tensor("x"), alpha=float(n.setting("alpha", 1.0)))


@primitive("SeLU SeLUExt", "x")
def _selu(n: MsNode) -> Any:
    return n.op("Selu", n.tensor("x"))


@primitive("LeakyRelu", "x alpha=0.2")
def _leaky_relu(n: MsNode) -> Any:
    return n.op("LeakyRelu", n.tensor("x"), alpha=float(n.setting("alpha", 0.2)))


@primitive("Softplus", "x")
def _softplus(n: MsNode) -> Any:
    return n.op("Softplus", n.tensor("x"))


@primitive("Softsign", "x")
def _softsign(n: MsNode) -> Any:
    return n.op("Softsign", n.tensor("x"))


@primitive("HShrink SoftShrink", "x lambd=0.5")
def _shrink(n: MsNode) -> Any:
    edge = float(n.setting("lambd", 0.5))
    return n.op("Shrink", n.tensor("x"), lambd=edge, bias=edge if n.type == "SoftShrink" else 0.0)


@primitive("PReLU", "x weight")
def _prelu(n: MsNode) -> Any:
    x, slope = n.tensor("x"), n.tensor("weight")
    rank = desc_of(x).rank
    shape = [1, desc_of(slope).size, *([1] * (rank - 2))] if rank > 1 else [desc_of(slope).size]
    return n.op("PRelu", x, n.shaped(slope, shape))


@primitive("Round", "input decimals=0")
def _round(n: MsNode) -> Any:
    if int(n.setting("decimals", 0)):
        raise Unsupported("rounding to decimals")
    x = n.tensor("input")
    return n.op("Identity", x) if desc_of(x).dtype in INTS else n.op("Round", x)


@primitive("Softmax LogSoftmax", "input axis=-1")
def _softmax(n: MsNode) -> Any:
    x = n.tensor("input")
    axes = [a % max(desc_of(x).rank, 1) for a in n.integers("axis", [-1])]
    return n.op(n.type, x, axes=axes)


@primitive("LogSoftmaxExt", "input dim=None dtype=None")
def _log_softmax_ext(n: MsNode) -> Any:
    x = n.cast(n.tensor("input"), n.out().dtype)
    return n.op("LogSoftmax", x, axes=[int(n.setting("dim", -1)) % desc_of(x).rank])


@primitive("CountNonZero", "input dim=None")
def _count_non_zero(n: MsNode) -> Any:
    x = n.tensor("input")
    flags = n.op("NotEqual", x, n.cast(0, desc_of(x).dtype)) if desc_of(x).dtype != "bool" else x
    counted = n.cast(flags, n.out().dtype)
    return n.op("ReduceSum", counted, axes=n.axes("dim", desc_of(x).rank), keepdims=False)


@primitive("FloatStatus IsAllFinite AllFinite", "x")
def _float_status(n: MsNode) -> Any:
    """1 (True) where any element of any tensor is not finite."""
    found = None
    for x in n.tensors("x"):
        finite = n.op("ReduceAll", n.op("IsFinite", x), axes=list(range(desc_of(x).rank)), keepdims=False)
        found = finite if found is None else n.op("And", found, finite)
    flag = n.op("Not", n.shaped(found, n.out().shape))
    return n.back(flag)


@primitive("NPUAllocFloatStatus")
def _alloc_status(n: MsNode) -> Any:
    return n.builder.constant(np.zeros(n.out().shape, np.float32))
