"""PyTorch calls that random programs are made of; PyTorch itself decides what is valid."""

from __future__ import annotations

from functools import partial
from typing import Any

from ge.conformance.programs import calls
from ge.conformance.programs.calls import COMPLEX, NUMBERS, REAL
from ge.conformance.programs.door import Call, Maker, adder
from ge.conformance.programs.generate import FLOATS, INTEGERS, Draw
from ge.conformance.programs.record import Noise, Value

__all__ = ["OPERATORS"]

OPERATORS: dict[str, tuple[float, Maker]] = {}
_add = adder(OPERATORS)
EXACT, ROUNDED, SUMS, UNIT = Noise.NONE, Noise.RESULT, Noise.ARGUMENTS, Noise.UNIT


def _partner(d: Draw, x: Value, dtypes: Any) -> Value:
    return d.broadcast(x) if d.chance(0.85) else d.pick(dtypes)


_unary, _binary = calls.elementwise("torch", OPERATORS, _partner)


# -- elementwise ---------------------------------------------------------------------------------------------

_unary("abs neg square", NUMBERS)
_unary("sign relu nn.functional.relu6", REAL, EXACT)
_unary("ceil floor round trunc", REAL, EXACT, 0.25)
_unary("isnan isinf isfinite zeros_like ones_like clone", None, EXACT, 0.25)
_unary("logical_not", None, EXACT)
_unary("sinc erfinv special.i0 special.entr special.log_ndtr nan_to_num", FLOATS, UNIT, 0.1)
_unary("bitwise_not", (*INTEGERS, "bool"), EXACT, 0.2)
_unary(
    "exp sigmoid tanh sqrt rsqrt reciprocal sinh cosh log1p expm1 atan exp2",
    (*FLOATS, *INTEGERS, "bool", *COMPLEX),
    weight=0.25,
)
# An argument's last digit decides where it is large.
_unary("sin cos tan", (*FLOATS, *INTEGERS, "bool", *COMPLEX), SUMS, 0.25)
_unary("log asinh log2 log10", (*FLOATS, *INTEGERS, "bool", *COMPLEX), UNIT, 0.25)
_unary(
    "nn.functional.softsign nn.functional.silu nn.functional.leaky_relu erf frac",
    FLOATS,
    weight=0.25,
)
_unary(
    "nn.functional.elu nn.functional.selu nn.functional.hardsigmoid nn.functional.softplus "
    "nn.functional.mish nn.functional.logsigmoid erfc lgamma",
    FLOATS,
    UNIT,
    0.25,
)


@_add("digamma", 0.25)
def _digamma(d: Draw) -> Call:
    """PyTorch's kernel loses up to nine digits of float64 beside the poles."""
    x = d.pick(FLOATS)
    return Call(f"torch.digamma({{0}}{'.abs()' if x.dtype == 'float64' else ''})", [x], noise=UNIT)


def _elu(name: str, d: Draw) -> Call:
    """The gradient at NaN is NaN or a number in PyTorch's kernels, by the position of the element."""
    numbers = ".nan_to_num(1.0, float('inf'), -float('inf'))" if "gradient" in d.options else ""
    return Call(f"torch.{name}({{0}}{numbers})", [d.pick(FLOATS)], noise=UNIT)


for _name in ("nn.functional.elu", "nn.functional.selu"):
    OPERATORS[_name] = (0.25, partial(_elu, _name))


@_add("signbit copysign", 0.2)
def _sign(n: str, d: Draw) -> Call:
    """Which sign NaN has is left open."""
    x = d.pick(FLOATS)
    if n == "signbit":
        return Call("torch.signbit({0}.nan_to_num(1.0))", [x], noise=EXACT)
    return Call("torch.copysign({0}, {1}.nan_to_num(1.0))", [x, d.broadcast(x)], noise=EXACT)


@_add("nn.functional.gelu", 0.25)
def _gelu(d: Draw) -> Call:
    """Of the largest numbers it is infinite in PyTorch, whose slope there is NaN, and here the numbers themselves."""
    numbers = ".clamp(-1e4, 1e4)" if "gradient" in d.options else ""
    return Call(f"torch.nn.functional.gelu({{0}}{numbers})", [d.pick(FLOATS)], noise=UNIT)


def _inverse(name: str, d: Draw) -> Call:
    """Near one, where the slope is infinite, an argument's last digit decides it."""
    wide = name in ("acosh", "atanh")
    noise = SUMS if "gradient" in d.options else UNIT if wide else ROUNDED
    dtypes = (*FLOATS, *INTEGERS, "bool", *COMPLEX) if wide else FLOATS
    return Call(f"torch.{name}({{0}})", [d.pick(dtypes)], noise=noise)


for _name in ("asin", "acos", "acosh", "atanh"):
    OPERATORS[_name] = (0.25, partial(_inverse, _name))
_unary("nn.functional.hardswish", FLOATS, SUMS, 0.25)  # PyTorch's has a product that overflows
_unary("real imag conj", COMPLEX, EXACT, 0.15)  # views, which noise would cut off
_unary("angle", COMPLEX, weight=0.15)
_binary("add sub mul", (*NUMBERS, "bool"), weight=1.2)
_binary("div true_divide pow atan2 hypot", REAL, SUMS, 0.3)
_binary("floor_divide remainder fmod", REAL, SUMS, 0.3)
_binary("logaddexp", FLOATS, UNIT, 0.2)
_binary("xlogy", FLOATS, SUMS, 0.2)
_binary("maximum minimum fmax fmin", (*REAL, "bool"), EXACT, 0.4)
_binary("eq ne", None, SUMS, 0.4)
_binary("gt lt ge le", (*REAL, "bool"), SUMS, 0.4)
_binary("logical_and logical_or logical_xor", None, SUMS, 0.3)
_binary("bitwise_and bitwise_or bitwise_xor", (*INTEGERS, "bool"), EXACT, 0.3)


@_add("gcd lcm", 0.1)
def _divisors(n: str, d: Draw) -> Call:
    """Of half the numbers: the smallest one and -1 end the process in PyTorch."""
    x = d.pick(("int32", "int64", "int8", "int16", "uint8"))
    return Call(f"torch.{n}({{0}} // 2, {{1}} // 2)", [x, d.broadcast(x)], noise=EXACT)


@_add("scalar", 1.0)
def _scalar(d: Draw) -> Call:
    """With a number of Python's, which decides the type as well."""
    number = d.choice(["2", "0.5", "-1", "True", "1e-3", "3"])
    return Call(
        f"{{0}} {d.choice(['+', '-', '*', '/', '//', '%', '**'])} {number}", [d.pick(REAL)], noise=SUMS
    )


@_add("lerp", 0.2)
def _lerp(d: Draw) -> Call:
    x = d.pick(FLOATS)
    return Call("torch.lerp({0}, {1}, 0.3)", [x, d.like(x)], noise=SUMS)


@_add("addcmul", 0.3)
def _addcmul(d: Draw) -> Call:
    x = d.pick(FLOATS)
    name = d.choice(["addcmul", "addcdiv"])
    return Call(
        f"torch.{name}({{0}}, {{1}}, {{2}}, value=0.5)", [x, d.broadcast(x), d.broadcast(x)], noise=SUMS
    )


@_add("to", 1.2)
def _to(d: Draw) -> Call:
    """Numbers out of range are undefined in PyTorch."""
    x, to = d.pick(), d.dtype()
    if x.dtype in FLOATS and to in INTEGERS:
        low = 0 if to[0] == "u" else -100
        return Call(f"torch.nan_to_num({{0}}).clamp({low}, 100).to(torch.{to})", [x], noise=EXACT)
    if x.dtype in COMPLEX and to not in COMPLEX:
        return Call("{0}.abs()", [x])
    return Call(f"{{0}}.to(torch.{to})", [x], noise=EXACT)


OPERATORS["where"] = (1.2, partial(calls.where, "torch"))


@_add("masked_fill", 0.6)
def _masked_fill(d: Draw) -> Call:
    x = d.pick(FLOATS)
    number = d.choice(["0", "-1e9" if x.dtype != "float16" else "-1e4", "float('-inf')", "float('nan')"])
    return Call(f"{{0}}.masked_fill({{1}}, {number})", [x, d.of("bool", x.shape)], noise=EXACT)


@_add("clamp", 0.4)
def _clamp(d: Draw) -> Call:
    x = d.pick(REAL)
    if d.chance(0.5):
        return Call(
            f"{{0}}.clamp({d.choice(['-1', '0', '0.5'])}, {d.choice(['1', '2.5'])})", [x], noise=EXACT
        )
    return Call("torch.clamp({0}, {1}, {2})", [x, d.broadcast(x), d.broadcast(x)], noise=EXACT)


# -- reductions and products ---------------------------------------------------------------------------------

_REDUCTIONS: dict[str, tuple[tuple[str, ...], Noise]] = {
    "sum": ((*NUMBERS, "bool"), SUMS),
    "mean": (FLOATS + COMPLEX, SUMS),
    "amax": ((*REAL, "bool"), EXACT),
    "amin": ((*REAL, "bool"), EXACT),
    "logsumexp": (FLOATS, UNIT),
    "std": (FLOATS, SUMS),
    "var": (FLOATS, SUMS),
    "norm": (FLOATS, SUMS),
}


@_add(" ".join(_REDUCTIONS), 0.35)
def _reduce(n: str, d: Draw) -> Call:
    dtypes, noise = _REDUCTIONS[n]
    x = d.pick(dtypes)
    axes = tuple(d.axes(x)) or (d.axis(x),)
    more = f", dim={axes}, keepdim={d.chance(0.4)}" if n == "logsumexp" or d.chance(0.8) else ""
    return Call(f"torch.{n}({{0}}{more})", [x], noise=noise)


# What breaks a kernel that looks at an element too much: elements that tie, overflow, or are not numbers.
_ODD = {
    "ties": "torch.round({0})",
    "nan": "{0}.masked_fill({0}.abs() > 0.75, float('nan'))",
    "infinite": "{0}.masked_fill({0}.abs() > 0.5, float('inf'))",
    "nothing": "{0}.masked_fill({0} < 0.25, float('-inf'))",
    "largest": "{0}.masked_fill({0} > 0.5, torch.finfo({0}.dtype).max)",
    "smallest": "{0}.masked_fill({0} < 0.25, torch.finfo({0}.dtype).min)",
}


def _odd(d: Draw, x: Value, without: str = "") -> str:
    """An operand, two times in five with odd elements; `without` names kinds that the framework leaves open."""
    if x.dtype not in FLOATS or not d.chance(0.4):
        return "{0}"
    return _ODD[d.choice([k for k in _ODD if k not in without.split()])]


@_add("softmax log_softmax argmax argmin prod cumsum cumprod any all logcumsumexp", 0.35)
def _along(n: str, d: Draw) -> Call:
    x = d.pick(
        FLOATS if n.endswith("softmax") or n == "logcumsumexp" else REAL if n.startswith("arg") else None
    )
    noise = UNIT if n in ("log_softmax", "logcumsumexp") else SUMS
    more = (
        ", dtype=torch.float32" if n == "prod" and x.dtype == "float16" else ""
    )  # else each step is rounded
    return Call(f"torch.{n}({_odd(d, x)}, {d.axis(x)}{more})", [x], noise=noise)


@_add("reduced", 0.3)
def _reduced(d: Draw) -> Call:
    """Sums and extremes of what is not a number here and there."""
    x = d.pick(FLOATS, (1, 2, 3))
    name = d.choice(
        ["sum", "amax", "amin", "mean", "logsumexp", "prod", "nansum", "nanmean", "aminmax", "var_mean"]
    )
    sums = name not in ("amax", "amin", "logsumexp", "aminmax")  # whether one overflows is a matter of order
    open_ = "largest smallest" if sums else ""
    operand = _odd(d, x, open_)
    if name == "var_mean":  # its mean of infinities is NaN, that of `mean` is infinite
        operand = f"{operand}.nan_to_num(float('nan'), float('nan'), float('nan'))"
    more = ", dtype=torch.float32" if name == "prod" and x.dtype == "float16" else ""
    text = f"torch.{name}({operand}, dim={d.axis(x)}, keepdim={d.chance(0.3)}{more})"
    return Call(
        text,
        [x],
        results=2 if name in ("aminmax", "var_mean") else 1,
        noise=UNIT if name == "logsumexp" else SUMS,
    )


# Losses of logits and labels of the same shape.
_LOSSES = {
    "mse_loss": "",
    "l1_loss": "",
    "smooth_l1_loss": ", beta=0.5",
    "huber_loss": "",
    "binary_cross_entropy_with_logits": "",
    "kl_div": "",
    "poisson_nll_loss": "",
}


@_add("loss", 0.5)
def _loss(d: Draw) -> Call:
    x = d.pick(FLOATS, (2,), lambda v: min(v.shape) > 0)
    how = d.choice(["mean", "sum", "none"])
    name = d.choice([*_LOSSES, "cross_entropy", "cross_entropy", "nll_loss"])
    odd = _odd(d, x, "nan infinite")
    if name not in _LOSSES:
        more = f", label_smoothing={d.choice([0.0, 0.1])}" if name == "cross_entropy" else ""
        more += ", ignore_index=1" if d.chance(0.3) else ""
        labels = d.input("int64", x.shape[:1], f"below:{x.shape[1]}")
        return Call(
            f"torch.nn.functional.{name}({odd}, {{1}}{more}, reduction='{how}')", [x, labels], noise=UNIT
        )
    labels = d.input(x.dtype, x.shape, d.choice(["positive", "ones", "zeros"]))
    return Call(
        f"torch.nn.functional.{name}({odd}, {{1}}{_LOSSES[name]}, reduction='{how}')", [x, labels], noise=UNIT
    )


@_add("max min cummax", 0.25)
def _extreme(n: str, d: Draw) -> Call:
    x = d.pick(REAL)
    return Call(f"torch.{n}({_odd(d, x)}, {d.axis(x)})", [x], results=2, noise=SUMS)


@_add("sort", 0.25)
def _sort(d: Draw) -> Call:
    x = d.pick(REAL)
    more = f"dim={d.axis(x)}, descending={d.chance(0.5)}, stable=True"
    return Call(f"torch.sort({_odd(d, x)}, {more})", [x], results=2, noise=SUMS)


@_add("median_value kthvalue_value", 0.15)
def _ranked(n: str, d: Draw) -> Call:
    """The value; of equal elements, and NaN, PyTorch names any, which gets the gradient."""
    x = d.pick(REAL, (1, 2, 3), lambda v: 0 not in v.shape)
    axis = d.axis(x)
    which = f"{d.integer(1, x.shape[axis])}, " if n.startswith("kth") else ""
    operand = "{0}.detach()" if "gradient" in d.options else _odd(d, x)
    return Call(f"torch.{n.split('_')[0]}({operand}, {which}{axis})[0]", [x], noise=EXACT)


@_add("topk", 0.25)
def _topk(d: Draw) -> Call:
    """The elements at the places it names: of equal ones PyTorch names any."""
    x = d.pick(FLOATS, (1, 2, 3), lambda v: v.shape[-1] > 0)
    return Call(f"{{0}}.gather(-1, largest({{0}}, {d.integer(1, x.shape[-1])}))", [x], noise=EXACT)


@_add("matmul", 1.4)
def _matmul(d: Draw) -> Call:
    x = d.pick((*FLOATS, "int64", *COMPLEX), (1, 2, 3, 4))
    n, k = d.choice([1, 2, 3, 5, 8, 16]), x.shape[-1]
    shape = d.choice([(k,), (k, n), (*x.shape[:-2], k, n), (*(1 for _ in x.shape[:-2]), k, n)])
    return Call("torch.matmul({0}, {1})", [x, d.of(x.dtype, shape)], noise=SUMS)


@_add("addmm", 0.3)
def _addmm(d: Draw) -> Call:
    x = d.pick(FLOATS, (2,))
    n = d.choice([1, 3, 8])
    bias = d.of(x.dtype, d.choice([(n,), (x.shape[0], n), ()]))
    more = f", beta={d.choice([0, 1, 0.5])}, alpha={d.choice([1, 2])}"
    return Call(
        f"torch.addmm({{0}}, {{1}}, {{2}}{more})", [bias, x, d.of(x.dtype, (x.shape[1], n))], noise=SUMS
    )


@_add("linear", 0.5)
def _linear(d: Draw) -> Call:
    x = d.pick(FLOATS, (1, 2, 3))
    n = d.choice([1, 3, 8])
    return Call(
        "torch.nn.functional.linear({0}, {1}, {2})",
        [x, d.of(x.dtype, (n, x.shape[-1])), d.of(x.dtype, (n,))],
        noise=SUMS,
    )


OPERATORS["einsum"] = (0.3, partial(calls.einsum, "torch"))


@_add("conv2d", 0.6)
def _conv(d: Draw) -> Call:
    x = d.pick(FLOATS, (4,), lambda v: min(v.shape[1:]) > 0)
    group = d.choice([1, 1, x.shape[1]])
    kernel = [d.integer(1, min(3, n)) for n in x.shape[2:]]
    out = group * d.choice([1, 2])
    w = d.of(x.dtype, (out, x.shape[1] // group, *kernel))
    more = f"stride={d.integer(1, 2)}, padding={d.integer(0, 1)}, groups={group}"
    return _convolved(d, "conv2d", x, w, out, more)


def _convolved(d: Draw, name: str, x: Any, w: Any, out: int, more: str) -> Call:
    text = f"torch.nn.functional.{name}({{0}}, {{1}}, {{2}}, {more})"
    return Call(text, [x, w, d.of(x.dtype, (out,))], noise=Noise.WINDOW)


@_add("max_pool2d avg_pool2d", 0.3)
def _pool(n: str, d: Draw) -> Call:
    """Of finite numbers: windows of -inf alone are the lowest number to oneDNN."""
    more = f"{d.integer(1, 2)}, {d.integer(1, 2)}, ceil_mode={d.chance(0.3)}"
    text = f"torch.nn.functional.{n}(torch.nan_to_num({{0}}), {more})"
    return Call(text, [d.pick(FLOATS, (3, 4))], noise=SUMS)


@_add("conv1d conv_transpose2d", 0.25)
def _other_conv(n: str, d: Draw) -> Call:
    x = d.pick(FLOATS, (3 if n == "conv1d" else 4,), lambda v: min(v.shape[1:]) > 0)
    out = d.choice([1, 2, 5])
    kernel = [d.integer(1, min(3, m)) for m in x.shape[2:]]
    w = d.of(x.dtype, (out, x.shape[1], *kernel) if n == "conv1d" else (x.shape[1], out, *kernel))
    more = f"stride={d.integer(1, 2)}, padding={d.integer(0, 1)}, dilation={d.integer(1, 2)}"
    return _convolved(d, n, x, w, out, more)


# Without clipping, which would hide the noise of large terms.
_MODERATE = "torch.where({0}.abs() <= 1e3, {0}, 0.0)"


@_add("adaptive_avg_pool2d adaptive_max_pool2d", 0.2)
def _adaptive(n: str, d: Draw) -> Call:
    x = d.pick(FLOATS, (3, 4), lambda v: min(v.shape[1:]) > 0)
    text = f"torch.nn.functional.{n}({_MODERATE}, ({d.integer(1, 3)}, {d.integer(1, 3)}))"
    return Call(text, [x], noise=SUMS)


@_add("group_norm", 0.2)
def _group_norm(d: Draw) -> Call:
    x = d.pick(FLOATS, (3, 4), lambda v: min(v.shape) > 0)
    c = x.shape[1]
    groups = d.choice([g for g in range(1, c + 1) if c % g == 0])
    # Infinite ones make NaN by the order of products.
    more = [d.input(x.dtype, (c,), "ordinary") for _ in range(2)]
    return Call(
        f"torch.nn.functional.group_norm({{0}}, {groups}, {{1}}, {{2}}, 0.01)", [x, *more], noise=SUMS
    )


@_add("interpolate", 0.15)
def _interpolate(d: Draw) -> Call:
    x = d.pick(("float32", "float64"), (4,), lambda v: min(v.shape) > 0)
    how = d.choice(["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
    corners = f", align_corners={d.chance(0.5)}" if how.startswith("bi") else ""
    size = (d.integer(1, 7), d.integer(1, 7))
    more = f"size={size}, mode='{how}'{corners}"
    text = f"torch.nn.functional.interpolate({_MODERATE}, {more})"
    return Call(text, [x], noise=Noise.WINDOW)


@_add("layer_norm", 0.4)
def _layer_norm(d: Draw) -> Call:
    x = d.pick(FLOATS, (1, 2, 3), lambda v: v.shape[-1] > 1)
    size = list(x.shape[-1:])
    # Infinite scales have NaN for gradients by the order of products.
    scale = d.input(x.dtype, tuple(size), "ordinary") if "gradient" in d.options else d.of(x.dtype, size)
    more = [scale, d.of(x.dtype, size)]
    return Call(f"torch.nn.functional.layer_norm({{0}}, {size}, {{1}}, {{2}}, 0.01)", [x, *more], noise=SUMS)


@_add("batch_norm", 0.3)
def _batch_norm(d: Draw) -> Call:
    x = d.pick(FLOATS, (2, 3, 4))
    c = x.shape[1:2]
    more = [d.of(x.dtype, c), d.input(x.dtype, c, "positive"), d.of(x.dtype, c), d.of(x.dtype, c)]
    return Call(
        "torch.nn.functional.batch_norm({0}, {1}, {2}, {3}, {4}, False, 0.1, 0.01)", [x, *more], noise=SUMS
    )


@_add("attention", 0.4)
def _attention(d: Draw) -> Call:
    """With a mask that at times hides everything."""
    x = d.pick(("float32", "float64", "bfloat16"), (3, 4), lambda v: min(v.shape) > 0)
    mask = d.of("bool", (x.shape[-2], x.shape[-2]))
    return Call(
        "torch.nn.functional.scaled_dot_product_attention({0}, {1}, {1}, attn_mask={2}[:{0}.shape[-2]])",
        [x, d.like(x), mask],
        noise=SUMS,
    )


# -- movement and views --------------------------------------------------------------------------------------


@_add("reshape", 1.0)
def _reshape(d: Draw) -> Call:
    x = d.pick()
    target = calls.factors(d, x)
    if d.chance(0.4) and target and 0 not in target:
        target = [-1] if d.chance(0.5) else [-1, *target[1:]]
    name = d.choice(["reshape", "reshape", "view"])
    return Call(f"{{0}}.{name}({tuple(target)})", [x], noise=EXACT)


@_add("permute", 1.0)
def _permute(d: Draw) -> Call:
    x = d.pick()
    perm = tuple(d.rng.sample(range(len(x.shape)), len(x.shape)))
    more = d.choice(["", "", ".contiguous()"])
    return Call(f"{{0}}.permute({perm}){more}", [x], noise=EXACT)


@_add("unsqueeze", 0.4)
def _unsqueeze(d: Draw) -> Call:
    x = d.pick(ranks=(0, 1, 2, 3))
    return Call(f"{{0}}.unsqueeze({d.integer(-len(x.shape) - 1, len(x.shape))})", [x], noise=EXACT)


@_add("squeeze", 0.4)
def _squeeze(d: Draw) -> Call:
    return Call("{0}.squeeze()", [d.pick(fits=lambda v: 1 in v.shape)], noise=EXACT)


OPERATORS["cat"] = (0.8, partial(calls.concat, "torch.cat"))


OPERATORS["stack"] = (0.4, partial(calls.stack, "torch"))


@_add("chunk", 0.4)
def _chunk(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: max(v.shape) > 1)
    axis = x.shape.index(max(x.shape))
    return Call(f"torch.chunk({{0}}, 2, {axis})", [x], results=2, noise=EXACT)


def _index(d: Draw, x: Value) -> str:
    """Slices, integers, new axes and an ellipsis."""
    parts: list[str] = []
    for n in x.shape:
        low, high = (d.choice(["", str(d.integer(-n - 1, n + 1))]) for _ in range(2))
        step = d.choice(["", "", "2", "3"])
        parts.append(
            d.choice([":", f"{low}:{high}:{step}", f"{low}:{high}", str(d.integer(-n, max(n - 1, 0)))])
        )
    parts = parts[: d.integer(1, len(parts))]
    if d.chance(0.2):
        parts.insert(0, "...")
    if d.chance(0.2):
        parts.insert(d.integer(0, len(parts)), "None")
    return ", ".join(parts)


@_add("getitem", 1.3)
def _getitem(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    return Call(f"{{0}}[{_index(d, x)}]", [x], noise=EXACT)


@_add("index", 0.5)
def _advanced(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    places = d.input("int64", d.choice([(2,), (3, 2), (0,)]), f"around:{x.shape[0]}")
    return Call("{0}[{1}]", [x, places], noise=EXACT)


@_add("masked_select", 0.25)
def _masked(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2))
    return Call("{0}[{1}]", [x, d.of("bool", x.shape[:1])], noise=EXACT)


@_add("index_select", 0.4)
def _index_select(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    axis = d.axis(x)
    places = d.input(d.choice(["int64", "int32"]), (d.integer(0, 3),), f"below:{x.shape[axis]}")
    return Call(f"torch.index_select({{0}}, {axis}, {{1}})", [x, places], noise=EXACT)


@_add("gather", 0.4)
def _gather(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    axis = d.axis(x)
    shape = list(x.shape)
    shape[axis] = d.integer(0, 4)
    return Call(
        f"torch.gather({{0}}, {axis}, {{1}})",
        [x, d.input("int64", tuple(shape), f"below:{x.shape[axis]}")],
        noise=EXACT,
    )


@_add("scatter", 0.4)
def _scatter(d: Draw) -> Call:
    x = d.pick(REAL, (1, 2, 3), lambda v: 0 not in v.shape)
    axis = d.axis(x)
    shape = list(x.shape)
    how = d.choice(["add", "plain", "amax", "prod"])
    shape[axis] = 1 if how == "plain" else d.integer(1, x.shape[axis])
    places = d.input("int64", tuple(shape), f"below:{x.shape[axis]}")
    source = d.of(x.dtype, shape)
    text = {
        "add": f"torch.scatter_add({{0}}, {axis}, {{1}}, {{2}})",
        "plain": f"torch.scatter({{0}}, {axis}, {{1}}, {{2}})",
    }.get(how, f"torch.scatter_reduce({{0}}, {axis}, {{1}}, {{2}}, '{how}', include_self={d.chance(0.5)})")
    return Call(text, [x, places, source], noise=SUMS)


@_add("index_add", 0.25)
def _index_add(d: Draw) -> Call:
    x = d.pick(REAL, (1, 2, 3), lambda v: 0 not in v.shape)
    count = d.integer(1, 3)
    places = d.input("int64", (count,), f"below:{x.shape[0]}")
    source = d.of(x.dtype, (count, *x.shape[1:]))
    return Call("torch.index_add({0}, 0, {1}, {2})", [x, places, source], noise=SUMS)


@_add("expand", 0.5)
def _expand(d: Draw) -> Call:
    x = d.pick(ranks=(0, 1, 2, 3))
    shape = tuple(d.integer(0, 3) if n == 1 else -1 for n in x.shape)
    return Call(f"{{0}}.expand({(d.integer(1, 3), *shape)})", [x], noise=EXACT)


@_add("repeat", 0.4)
def _repeat(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    return Call(f"{{0}}.repeat({tuple(d.choice([1, 2, 3, 0]) for _ in x.shape)})", [x], noise=EXACT)


@_add("pad", 0.4)
def _pad(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    pads = [d.integer(-1, 2) for _ in range(2 * d.integer(1, len(x.shape)))]
    return Call(f"torch.nn.functional.pad({{0}}, {pads}, value={d.choice(['0', '1.5'])})", [x], noise=EXACT)


@_add("flip roll", 0.25)
def _turn(n: str, d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    more = f"({d.axis(x)},)" if n == "flip" else f"{d.integer(-4, 4)}, {d.axis(x)}"
    return Call(f"torch.{n}({{0}}, {more})", [x], noise=EXACT)


@_add("movedim swapaxes rot90 unfold repeat_interleave diag_embed", 0.15)
def _moved(n: str, d: Draw) -> Call:
    x = d.pick(ranks=(1,) if n == "diag_embed" else (1, 2, 3), fits=lambda v: 0 not in v.shape)
    a, b = d.axis(x), d.axis(x)
    size = x.shape[a]
    more = {
        "movedim": f"{a}, {b}",
        "swapaxes": f"{a}, {b}",
        "rot90": f"{d.integer(-1, 3)}, ({a}, {b})",
        "unfold": f"{a}, {d.integer(1, size)}, {d.integer(1, 2)}",
        "repeat_interleave": f"{d.integer(1, 3)}, dim={a}",
        "diag_embed": f"{d.integer(-1, 1)}",
    }[n]
    if n in ("unfold", "repeat_interleave"):
        return Call(f"{{0}}.{n}({more})", [x], noise=EXACT)
    return Call(f"torch.{n}({{0}}, {more})", [x], noise=EXACT)


@_add("metadata", 0.3)
def _metadata(d: Draw) -> Call:
    """A view turned in place, and written to."""
    x = d.pick(NUMBERS, (1, 2, 3))
    a, b = d.axis(x), d.axis(x)
    how = d.choice(
        [f"transpose_({a}, {b})", f"unsqueeze_({a})", "squeeze_()", f"swapdims_({a}, {b})", "t_()"]
    )
    what = d.choice(["add_(1)", "mul_(2)", "neg_()", "contiguous()"])
    return Call(f"{{0}}.clone().{how}.{what}", [x])


@_add("strided", 0.2)
def _strided(d: Draw) -> Call:
    """A copy written through overlapping windows of its memory, one at a time."""
    x = d.pick(NUMBERS, (1, 2), lambda v: min(v.shape) > 1)
    text = d.choice(
        [
            "torch.as_strided({0}.clone(), (2, 1), (1, 1), 1)",
            "torch.as_strided_scatter({0}, torch.as_strided({0}, (2,), (1,)) + 1, (2,), (1,))",
            "torch.select_scatter({0}, {0}.select(0, 0) * 2, 0, 1)",
            "torch.slice_scatter({0}, {0}[1:] + 1, 0, 0, -1)",
        ]
    )
    return Call(text, [x])


@_add("tril triu diagonal", 0.2)
def _diagonals(n: str, d: Draw) -> Call:
    return Call(f"torch.{n}({{0}}, {d.integer(-2, 2)})", [d.pick(ranks=(2, 3))], noise=EXACT)


@_add("one_hot", 0.2)
def _one_hot(d: Draw) -> Call:
    return Call(
        "torch.nn.functional.one_hot({0}, 5)", [d.input("int64", d.shape((0, 1, 2)), "below:5")], noise=EXACT
    )


@_add("embedding", 0.3)
def _embedding(d: Draw) -> Call:
    x = d.pick(FLOATS, (2,), lambda v: 0 not in v.shape)
    places = d.input("int64", d.shape((1, 2)), f"below:{x.shape[0]}")
    return Call("torch.nn.functional.embedding({0}, {1})", [places, x], noise=EXACT)


@_add("arange", 0.2)
def _arange(d: Draw) -> Call:
    return Call("torch.arange({0}.shape[0], device={0}.device)", [d.pick(ranks=(1, 2, 3))], noise=EXACT)


@_add("full", 0.2)
def _full(d: Draw) -> Call:
    return Call(f"{{0}}.new_full({d.shape()}, {d.choice(['0', '1.5', 'True'])})", [d.pick()], noise=EXACT)


@_add("nonzero", 0.15)
def _nonzero(d: Draw) -> Call:
    return Call("torch.nonzero({0})", [d.pick(ranks=(1, 2))], noise=EXACT)


@_add("fft", 0.15)
def _fft(d: Draw) -> Call:
    return Call("torch.fft.fft({0}).real", [d.pick(("float32", "float64", *COMPLEX), (1, 2))], noise=SUMS)


@_add("view_dtype", 0.15)
def _view_dtype(d: Draw) -> Call:
    return Call("bits({0})", [d.pick(("float32",))], noise=SUMS)


# -- writes --------------------------------------------------------------------------------------------------


def _target(d: Draw, dtypes: Any) -> Value:
    """What may be written: no parameter of a gradient, and nothing inside of a branch."""
    if d.depth:
        raise LookupError("branches do not write")
    inputs = {i.value.name for i in d.inputs}
    found = [
        v
        for v in d.values.values()
        if v.dtype in dtypes and not ("gradient" in d.options and v.name in inputs)
    ]
    if not found:
        raise LookupError("nothing to write to")
    return d.choice(found)


@_add("write", 1.2)
def _write(d: Draw) -> Call:
    x = _target(d, NUMBERS)
    other = d.broadcast(x) if d.chance(0.5) else d.like(x)
    name = d.choice(["add_", "mul_", "sub_", "copy_", "fill_", "zero_"])
    if name in ("fill_", "zero_"):
        return Call(f"{{0}}.{name}({'2' if name == 'fill_' else ''})", [x], noise=EXACT, effect=True)
    return Call(f"{{0}}.{name}({{1}})", [x, other], noise=EXACT if name == "copy_" else ROUNDED, effect=True)


@_add("write_unary", 0.5)
def _write_unary(d: Draw) -> Call:
    name = d.choice(["relu_", "sigmoid_", "neg_", "abs_", "exp_", "tanh_", "clamp_(-1, 1)"])
    return Call(f"{{0}}.{name}{'' if '(' in name else '()'}", [_target(d, FLOATS)], effect=True)


@_add("write_view", 1.0)
def _write_view(d: Draw) -> Call:
    """Through a slice, a transpose or a diagonal."""
    x = _target(d, NUMBERS)
    if not x.shape:
        raise LookupError("no view of a scalar")
    view = d.choice([f"[{_index(d, x)}]", ".T" if len(x.shape) == 2 else "[0]", "[..., :1]", ".view(-1)"])
    what = d.choice(["add_(1)", "mul_(2)", "fill_(3)", "zero_()"])
    return Call(f"{{0}}{view}.{what}", [x], effect=True)


@_add("index_put", 0.3)
def _index_put(d: Draw) -> Call:
    x = _target(d, REAL)
    if not x.shape or 0 in x.shape:
        raise LookupError("nothing to index")
    places = d.input("int64", (2,), f"around:{x.shape[0]}")
    return Call(
        "{0}.index_put_(({1},), {2}, accumulate=True)",
        [x, places, d.of(x.dtype, (2, *x.shape[1:]))],
        effect=True,
    )


@_add("masked_fill_", 0.3)
def _masked_fill_(d: Draw) -> Call:
    x = _target(d, REAL)
    return Call("{0}.masked_fill_({1}, 3)", [x, d.of("bool", x.shape)], noise=EXACT, effect=True)


# -- random numbers and devices ------------------------------------------------------------------------------


@_add("random", 0.3)
def _random(d: Draw) -> Call:
    name = d.choice(["rand", "randn"])
    d.options.add("random")
    return Call(f"torch.{name}_like({{0}})", [d.pick(FLOATS)], noise=EXACT)


@_add("dropout", 0.3)
def _dropout(d: Draw) -> Call:
    d.options.add("random")
    return Call(f"torch.nn.functional.dropout({{0}}, {d.choice([0.3, 0.5, 0.0])})", [d.pick(FLOATS)])


@_add("elsewhere", 0.25)
def _elsewhere(d: Draw) -> Call:
    return Call("elsewhere({0})", [d.pick()], noise=EXACT)


# -- control flow --------------------------------------------------------------------------------------------


@_add("cond", 0.5)
def _cond(d: Draw) -> Call:
    x = d.pick((*REAL, "bool"), fits=lambda v: 0 not in v.shape)
    flag = "{0}.any()" if x.dtype == "bool" else "({0}.amax() > 0)"
    then = d.block([], most=2)
    other = d.block([], list(then.results), most=2)
    text = f"branch({flag}, lambda: {{b0}}().clone(), lambda: {{b1}}().clone())"
    return Call(text, [x], [then, other], noise=EXACT)


@_add("loop", 0.6)
def _loop(d: Draw) -> Call:
    state = d.pick()
    body = d.block([d.parameter(state)], [state], most=3)
    return Call(f"repeated(lambda s, i: {{b0}}(s), {d.integer(0, 3)}, {{0}})", [state], [body], noise=EXACT)
