"""TensorFlow operators that random programs are made of; TensorFlow itself decides what is valid."""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from ge.conformance.programs import calls
from ge.conformance.programs.calls import COMPLEX, NUMBERS, REAL
from ge.conformance.programs.door import Call, Maker, adder
from ge.conformance.programs.generate import FLOATS, INTEGERS, Draw
from ge.conformance.programs.record import Noise, Value

__all__ = ["OPERATORS"]

OPERATORS: dict[str, tuple[float, Maker]] = {}
_add = adder(OPERATORS)
EXACT, FLUSHED, ROUNDED = Noise.NONE, Noise.FLUSH, Noise.RESULT
SUMS, UNIT = Noise.ARGUMENTS, Noise.UNIT
_unary, _binary = calls.elementwise("tf", OPERATORS, lambda d, x, dtypes: d.broadcast(x))


def _pair(text: str, d: Draw) -> Call:
    x = d.pick(FLOATS)
    return Call(text, [x, d.broadcast(x)], noise=SUMS)


# -- elementwise ---------------------------------------------------------------------------------------------

_unary("math.square", NUMBERS)
_unary("abs negative sign", NUMBERS, FLUSHED)
_unary("nn.relu nn.relu6", REAL, FLUSHED)
_unary("math.ceil math.floor math.round math.rint", FLOATS, FLUSHED, 0.25)
_unary("math.is_nan math.is_inf math.is_finite", FLOATS, EXACT, 0.25)
_unary("identity stop_gradient zeros_like ones_like", None, EXACT, 0.25)
_unary("logical_not", ("bool",), EXACT)
_unary("bitwise.invert", INTEGERS, EXACT, 0.2)
_unary(
    "exp sigmoid tanh math.sqrt math.rsqrt math.reciprocal math.sinh math.cosh math.log1p math.expm1 "
    "math.atan",
    FLOATS + COMPLEX,
    weight=0.3,
)
_unary("sin cos tan", FLOATS + COMPLEX, SUMS, 0.3)  # an argument's last digit decides where it is large
_unary("math.log math.asinh math.acosh math.atanh", FLOATS + COMPLEX, UNIT, 0.3)
_unary("nn.softsign nn.silu math.asin math.acos nn.leaky_relu", FLOATS, weight=0.3)
# TensorFlow's kernel gives NaN or one for infinity, by the position of the element.
# TensorFlow's kernels give zero or minus zero for minus zero, by the position of the element.
for _name in ("math.xdivy", "math.xlogy"):
    OPERATORS[_name] = (0.3, partial(lambda n, d: _pair(f"tf.{n}({{0}} + 0, {{1}})", d), _name))
# TensorFlow's kernels: the reciprocal of 3e35 is off by 2e-5, and log1p(4 - 1.8e308j) has the angle 2e-305.
_LIMITS = {"math.reciprocal": ("float32", 1e35), "math.log1p": ("complex64 complex128", 1e15)}


def _limited(n: str, d: Draw) -> Call:
    x = d.pick(FLOATS + COMPLEX)
    dtypes, limit = _LIMITS[n]
    large = f"(tf.abs({{0}}) > {limit}) & (tf.abs({{0}}) < np.inf)"
    given = f"tf.where({large}, tf.ones_like({{0}}), {{0}})" if x.dtype in dtypes.split() else "{0}"
    return Call(f"tf.{n}({given})", [x])


for _name in _LIMITS:
    OPERATORS[_name] = (0.3, partial(_limited, _name))
OPERATORS["erf"] = (0.3, lambda d: Call("tf.math.erf(tf.clip_by_value({0}, -30, 30))", [d.pick(FLOATS)]))
_unary("nn.elu nn.selu nn.softplus nn.gelu math.erfc math.lgamma math.digamma math.ndtri", FLOATS, UNIT, 0.3)
_unary("math.lgamma math.digamma", FLOATS, SUMS, 0.3)  # TensorFlow's are several units off near their zeros
_unary("math.real math.imag math.conj math.angle", COMPLEX, weight=0.2)
_binary("add subtract multiply", NUMBERS, weight=1.3)
_binary("divide math.divide_no_nan math.multiply_no_nan", FLOATS, weight=0.4)
_binary("math.floordiv math.floormod truncatediv truncatemod", REAL, SUMS, 0.3)
_binary("maximum minimum", REAL, FLUSHED, 0.6)
_binary("math.squared_difference", REAL, SUMS, 0.3)
_binary("pow math.atan2", FLOATS, SUMS, 0.3)
_binary("equal not_equal", None, SUMS, 0.4)
_binary("greater less greater_equal less_equal", REAL, SUMS, 0.4)
_binary("logical_and logical_or math.logical_xor", ("bool",), EXACT, 0.4)
_binary("bitwise.bitwise_and bitwise.bitwise_or bitwise.bitwise_xor", INTEGERS, EXACT, 0.3)


# What breaks a kernel that looks at an element too much: elements that tie, overflow, or are not numbers.
_ODD = {
    "ties": "tf.round({0})",
    "nan": "_swap({0}, tf.abs({0}) > 0.75, np.nan)",
    "infinite": "_swap({0}, tf.abs({0}) > 0.5, np.inf)",
    "nothing": "_swap({0}, {0} < 0.25, -np.inf)",
    "largest": "_swap({0}, {0} > 0.5, {0}.dtype.max)",
    "smallest": "_swap({0}, {0} < 0.25, {0}.dtype.min)",
}
_SWAP = "tf.raw_ops.SelectV2(condition={c}, t=tf.fill(tf.shape({x}), tf.cast({v}, {x}.dtype)), e={x})"


def _odd(d: Draw, x: Value, place: str = "{0}", without: str = "") -> str:
    """An operand, two times in five with odd elements; `without` names kinds that the framework leaves open."""
    if x.dtype not in FLOATS or not d.chance(0.4):
        return place
    kind = d.choice([k for k in _ODD if k not in without.split()])
    text = _ODD[kind]
    if not text.startswith("_swap"):
        return text.replace("{0}", place)
    x_, condition, value = text[len("_swap(") : -1].split(", ")
    made = _SWAP.replace("{c}", condition).replace("{x}", x_).replace("{v}", value)
    return made.replace("{0}", place)


@_add("cast", 1.5)
def _cast(d: Draw) -> Call:
    x, to = d.pick(), d.dtype()
    if x.dtype in FLOATS and to in INTEGERS:
        return Call(f"tf.cast({_odd(d, x)}, tf.{to})", [x], noise=EXACT)
    if x.dtype in COMPLEX and to not in COMPLEX:
        return Call("tf.math.abs({0})", [x])
    return Call(f"tf.cast({{0}}, tf.{to})", [x], noise=FLUSHED)


OPERATORS["where"] = (1.2, partial(calls.where, "tf"))


@_add("clip_by_value", 0.4)
def _clip(d: Draw) -> Call:
    x = d.pick(REAL)
    return Call("tf.clip_by_value({0}, {1}, {2})", [x, d.of(x.dtype, ()), d.of(x.dtype, ())], noise=FLUSHED)


@_add("add_n", 0.3)
def _add_n(d: Draw) -> Call:
    x = d.pick(NUMBERS)
    return Call("tf.add_n([{0}, {1}, {2}])", [x, d.like(x), d.like(x)], noise=SUMS)


# -- reductions and products ---------------------------------------------------------------------------------

_REDUCTIONS: dict[str, tuple[tuple[str, ...], Noise]] = {
    "reduce_sum": (NUMBERS, SUMS),
    "reduce_mean": (FLOATS + COMPLEX, SUMS),
    "reduce_prod": (NUMBERS, SUMS),
    "reduce_max": (REAL, FLUSHED),
    "reduce_min": (REAL, FLUSHED),
    "reduce_all": (("bool",), EXACT),
    "reduce_any": (("bool",), EXACT),
    "reduce_logsumexp": (FLOATS, UNIT),
    "math.reduce_std": (FLOATS, SUMS),
    "math.reduce_euclidean_norm": (FLOATS, SUMS),
}


@_add(" ".join(_REDUCTIONS), 0.4)
def _reduce(n: str, d: Draw) -> Call:
    dtypes, noise = _REDUCTIONS[n]
    x = d.pick(dtypes)
    axis = None if d.chance(0.2) else d.axes(x)
    if noise is FLUSHED and "gradient" in d.options:  # the largest of nearly equal elements takes all of it
        noise = SUMS
    return Call(f"tf.{n}({{0}}, {axis}, keepdims={d.chance(0.4)})", [x], noise=noise)


# Where NaN stands among numbers depends on TensorFlow's kernel and the position.
_ORDERED = "tf.where(tf.math.is_nan({0}), tf.zeros_like({0}), {0})"
# So does what a softmax makes of the NaN that it computes from infinity.
_BELOW_INFINITY = "tf.where({0} < float('inf'), {0}, tf.zeros_like({0}))"


@_add("nn.softmax nn.log_softmax argmax argmin", 0.4)
def _along(n: str, d: Draw) -> Call:
    x = d.pick(FLOATS if n.startswith("nn") else REAL, (1, 2, 3, 4))
    place = _BELOW_INFINITY if n == "nn.softmax" else "{0}"
    place = _odd(d, x, place, "nan infinite" if n == "nn.softmax" else "")
    return Call(f"tf.{n}({place}, {d.axis(x)})", [x], noise=UNIT if n == "nn.log_softmax" else SUMS)


@_add("reduced", 0.3)
def _reduced(d: Draw) -> Call:
    """Sums and extremes of what is not a number here and there."""
    x = d.pick(FLOATS, (1, 2, 3))
    name = d.choice(
        ["reduce_sum", "reduce_max", "reduce_min", "reduce_mean", "reduce_logsumexp", "reduce_prod"]
    )
    noise = UNIT if name == "reduce_logsumexp" else SUMS
    # Whether a sum overflows is a matter of order.
    without = "" if name in ("reduce_max", "reduce_min", "reduce_logsumexp") else "largest smallest"
    return Call(f"tf.{name}({_odd(d, x, without=without)}, {d.axes(x)})", [x], noise=noise)


# Losses of logits and labels of the same shape.
_LOSSES = {
    "softmax": "tf.nn.softmax_cross_entropy_with_logits(labels={1}, logits={0})",
    "sigmoid": "tf.nn.sigmoid_cross_entropy_with_logits(labels={1}, logits={0})",
    "poisson": "tf.nn.log_poisson_loss({1}, {0})",
    "weighted": "tf.nn.weighted_cross_entropy_with_logits(labels={1}, logits={0}, pos_weight=2.0)",
    "square": "tf.nn.l2_loss({0} - {1})",
}


@_add("loss", 0.5)
def _loss(d: Draw) -> Call:
    x = d.pick(FLOATS, (2,), lambda v: min(v.shape) > 0)
    name = d.choice([*_LOSSES, "sparse"])
    logits = _odd(d, x, _BELOW_INFINITY if name in ("softmax", "sparse") else "{0}", "nan infinite")
    if name == "sparse":
        text = f"tf.nn.sparse_softmax_cross_entropy_with_logits(labels={{1}}, logits={logits})"
        return Call(text, [x, d.input("int32", x.shape[:1], f"below:{x.shape[1]}")], noise=UNIT)
    labels = d.input(x.dtype, x.shape, d.choice(["positive", "ones", "zeros"]))
    return Call(_LOSSES[name].replace("{0}", logits), [x, labels], noise=UNIT)


@_add("cumsum math.cumprod", 0.3)
def _cumulative(n: str, d: Draw) -> Call:
    x = d.pick(NUMBERS, (1, 2, 3))
    more = f"exclusive={d.chance(0.5)}, reverse={d.chance(0.5)}"
    return Call(f"tf.{n}({{0}}, {d.axis(x)}, {more})", [x], noise=SUMS)


@_add("matmul", 1.5)
def _matmul(d: Draw) -> Call:
    x = d.pick((*FLOATS, "int32", *COMPLEX), (2, 3, 4))
    a, b, n = d.chance(0.3), d.chance(0.3), d.choice([1, 2, 3, 5, 8, 16])
    k = x.shape[-2] if a else x.shape[-1]
    batch = d.choice([x.shape[:-2], (), tuple(1 for _ in x.shape[:-2])])
    if len(x.shape) == 4:  # TensorFlow 2.21 writes outside of its memory where such products broadcast
        batch = x.shape[:-2]
    w = d.of(x.dtype, (*batch, *((n, k) if b else (k, n))))
    return Call(f"tf.matmul({{0}}, {{1}}, transpose_a={a}, transpose_b={b})", [x, w], noise=SUMS)


OPERATORS["einsum"] = (0.4, partial(calls.einsum, "tf"))


@_add("bias_add", 0.3)
def _bias(d: Draw) -> Call:
    x = d.pick(FLOATS, (2, 3, 4))
    return Call("tf.nn.bias_add({0}, {1})", [x, d.of(x.dtype, x.shape[-1:])])


@_add("argsort", 0.2)
def _argsort(d: Draw) -> Call:
    x = d.pick(REAL, (1, 2, 3))
    way = d.choice(["ASCENDING", "DESCENDING"])
    place = _odd(d, x, _ORDERED if x.dtype in FLOATS else "{0}", "nan")
    return Call(f"tf.argsort({place}, {d.axis(x)}, '{way}', stable=True)", [x], noise=SUMS)


@_add("math.l2_normalize nn.moments math.zero_fraction", 0.2)
def _statistics(n: str, d: Draw) -> Call:
    x = d.pick(FLOATS, (1, 2, 3))
    given = _odd(d, x, without="largest smallest")
    if n == "math.zero_fraction":
        return Call(f"tf.{n}({given})", [x], noise=SUMS)
    return Call(
        f"tf.{n}({given}, {d.axes(x) or [0]})", [x], results=2 if n == "nn.moments" else 1, noise=SUMS
    )


@_add("tensordot", 0.2)
def _tensordot(d: Draw) -> Call:
    x = d.pick(FLOATS, (1, 2, 3))
    axis = d.axis(x, negative=False)
    other = d.of(x.dtype, (x.shape[axis], d.integer(1, 4)))
    return Call(f"tf.tensordot({{0}}, {{1}}, [[{axis}], [0]])", [x, other], noise=SUMS)


# -- windows and normalisation -------------------------------------------------------------------------------


def _image(d: Draw) -> Value:
    return d.pick(FLOATS, (4,), lambda v: min(v.shape[1:]) > 0)


@_add("conv2d", 0.7)
def _conv(d: Draw) -> Call:
    x = _image(d)
    kernel = [d.integer(1, min(3, n)) for n in x.shape[1:3]]
    w = d.of(x.dtype, (*kernel, x.shape[3], d.choice([1, 2, 4, 8])))
    pad, stride = d.choice(["SAME", "VALID"]), d.integer(1, 2)
    return Call(f"tf.nn.conv2d({{0}}, {{1}}, {stride}, '{pad}')", [x, w], noise=Noise.WINDOW)


@_add("conv1d conv2d_transpose", 0.2)
def _other_conv(n: str, d: Draw) -> Call:
    x = d.pick(FLOATS, (3 if n == "conv1d" else 4,), lambda v: min(v.shape[1:]) > 0)
    pad, stride, out = d.choice(["SAME", "VALID"]), d.integer(1, 2), d.choice([1, 2, 5])
    if n == "conv1d":
        w = d.of(x.dtype, (d.integer(1, min(3, x.shape[1])), x.shape[2], out))
        return Call(f"tf.nn.conv1d({{0}}, {{1}}, {stride}, '{pad}')", [x, w], noise=Noise.WINDOW)
    w = d.of(x.dtype, (d.integer(1, 3), d.integer(1, 3), out, x.shape[3]))
    shape = f"[tf.shape({{0}})[0], {x.shape[1] * stride}, {x.shape[2] * stride}, {out}]"
    return Call(
        f"tf.nn.conv2d_transpose({{0}}, {{1}}, {shape}, {stride}, 'SAME')", [x, w], noise=Noise.WINDOW
    )


@_add("resize", 0.2)
def _resize(d: Draw) -> Call:
    """Of finite numbers: some of TensorFlow's kernels multiply pixels that do not count by zero."""
    x = d.pick(("float32", "float64"), (4,), lambda v: min(v.shape[1:]) > 0)
    finite = "tf.where(tf.math.is_finite({0}), {0}, tf.zeros_like({0}))"
    how = d.choice(["bilinear", "nearest", "bicubic", "area"])
    if how == "bicubic" and "gradient" in d.options:  # it multiplies slopes that do not count by zero, too
        how = "bilinear"
    return Call(
        f"tf.image.resize({finite}, [{d.integer(1, 7)}, {d.integer(1, 7)}], '{how}')", [x], noise=SUMS
    )


@_add("depthwise_conv2d", 0.3)
def _depthwise(d: Draw) -> Call:
    x = _image(d)
    w = d.of(x.dtype, (*(d.integer(1, min(2, n)) for n in x.shape[1:3]), x.shape[3], d.integer(1, 2)))
    pad = d.choice(["SAME", "VALID"])
    return Call(f"tf.nn.depthwise_conv2d({{0}}, {{1}}, [1, 1, 1, 1], '{pad}')", [x, w], noise=Noise.WINDOW)


@_add("max_pool2d avg_pool2d", 0.4)
def _pool(n: str, d: Draw) -> Call:
    pad, window, stride = d.choice(["SAME", "VALID"]), d.integer(1, 3), d.integer(1, 2)
    x = _image(d)
    if pad == "VALID":  # TensorFlow crashes where no window fits
        window = min(window, *x.shape[1:3])
    noise = Noise.WINDOW if n == "max_pool2d" else SUMS  # its kernels differ in the maximum of NaN
    if n == "max_pool2d":  # and in where it was
        given = _odd(d, x, _ORDERED, "nan")
    else:  # it adds float16 up in float16
        given = _odd(d, x, without="largest smallest" if x.dtype == "float16" else "")
    return Call(f"tf.nn.{n}({given}, {window}, {stride}, '{pad}')", [x], noise=noise)


@_add("batch_normalization", 0.3)
def _batch_norm(d: Draw) -> Call:
    x = d.pick(FLOATS, (2, 3, 4))
    c = x.shape[-1:]
    more = [d.of(x.dtype, c), d.input(x.dtype, c, "positive"), d.of(x.dtype, c), d.of(x.dtype, c)]
    return Call("tf.nn.batch_normalization({0}, {1}, {2}, {3}, {4}, 0.01)", [x, *more], noise=SUMS)


@_add("layer_norm", 0.3)
def _layer_norm(d: Draw) -> Call:
    x = d.pick(FLOATS, (2, 3), lambda v: v.shape[-1] > 1)
    text = "(lambda m, v: ({0} - m) * tf.math.rsqrt(v + 0.01))(*tf.nn.moments({0}, [-1], keepdims=True))"
    return Call(text, [x], noise=SUMS)


@_add("attention", 0.4)
def _attention(d: Draw) -> Call:
    """With a mask that at times hides everything."""
    x = d.pick(("float32", "float64", "bfloat16"), (3, 4), lambda v: min(v.shape) > 0)
    mask = d.of("bool", (x.shape[-2], x.shape[-2]))
    text = (
        "tf.matmul(tf.nn.softmax(tf.where({2}, tf.minimum(tf.matmul({0}, {1}, transpose_b=True) * 0.5, {0}.dtype.max), "
        f"{d.choice(['-1e9', '-np.inf', '{0}.dtype.min'])})), {{1}})"
    )
    return Call(text, [x, d.like(x), mask], noise=SUMS)


# -- movement ------------------------------------------------------------------------------------------------


@_add("reshape", 1.0)
def _reshape(d: Draw) -> Call:
    x = d.pick()
    target = calls.factors(d, x)
    if d.chance(0.4) and 0 not in target:
        target = [-1] if not target or d.chance(0.5) else [-1, *target[1:]]
    elif d.chance(0.3):
        target.insert(d.integer(0, len(target)), 1)
    return Call(f"tf.reshape({{0}}, {target})", [x], noise=EXACT)


@_add("transpose", 1.0)
def _transpose(d: Draw) -> Call:
    x = d.pick()
    return Call(f"tf.transpose({{0}}, {d.rng.sample(range(len(x.shape)), len(x.shape))})", [x], noise=EXACT)


@_add("expand_dims", 0.4)
def _expand_dims(d: Draw) -> Call:
    x = d.pick(ranks=(0, 1, 2, 3))
    return Call(f"tf.expand_dims({{0}}, {d.integer(-len(x.shape) - 1, len(x.shape))})", [x], noise=EXACT)


@_add("squeeze", 0.4)
def _squeeze(d: Draw) -> Call:
    return Call("tf.squeeze({0})", [d.pick(fits=lambda v: 1 in v.shape)], noise=EXACT)


OPERATORS["concat"] = (0.8, partial(calls.concat, "tf.concat"))


OPERATORS["stack"] = (0.4, partial(calls.stack, "tf"))


@_add("split", 0.4)
def _split(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    axis = d.axis(x)
    first = d.integer(0, x.shape[axis])
    text = f"tf.split({{0}}, [{first}, {x.shape[axis] - first}], {axis})"
    return Call(text, [x], results=2, noise=EXACT)


def _index(d: Draw, x: Value) -> str:
    """Slices, integers, new axes and an ellipsis."""
    parts: list[str] = []
    for n in x.shape:
        low, high, step = (d.choice(["", str(d.integer(-n - 1, n + 1))]) for _ in range(3))
        step = d.choice(["", "", "2", "-1", "-2"])
        parts.append(
            d.choice([":", f"{low}:{high}:{step}", f"{low}:{high}", str(d.integer(-n, max(n - 1, 0)))])
        )
    parts = parts[: d.integer(1, len(parts))]
    if d.chance(0.2):
        parts.insert(0, "...")
    if d.chance(0.2):
        parts.insert(d.integer(0, len(parts)), "tf.newaxis")
    return ", ".join(parts)


@_add("getitem", 1.3)
def _getitem(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    return Call(f"{{0}}[{_index(d, x)}]", [x], noise=EXACT)


@_add("gather", 0.7)
def _gather(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    axis = d.axis(x)
    places = d.input(
        d.choice(["int32", "int64"]), d.choice([(), (2,), (3, 2), (0,)]), f"below:{x.shape[axis]}"
    )
    return Call(f"tf.gather({{0}}, {{1}}, axis={axis})", [x, places], noise=EXACT)


@_add("gather_nd", 0.3)
def _gather_nd(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    depth = d.integer(1, len(x.shape))
    places = d.input("int32", (d.integer(1, 3), depth), f"below:{min(x.shape[:depth])}")
    return Call("tf.gather_nd({0}, {1})", [x, places], noise=EXACT)


@_add("scatter", 0.5)
def _scatter(d: Draw) -> Call:
    x = d.pick(NUMBERS, (1, 2, 3), lambda v: 0 not in v.shape)
    how = d.choice(["update", "add", "sub", "max", "min"])
    count = 1 if how == "update" else d.integer(1, 3)
    places = d.input("int32", (count, 1), f"below:{x.shape[0]}")
    new = d.of(x.dtype, (count, *x.shape[1:]))
    noise = {"update": EXACT, "add": SUMS, "sub": SUMS}.get(how, FLUSHED)
    return Call(f"tf.tensor_scatter_nd_{how}({{0}}, {{1}}, {{2}})", [x, places, new], noise=noise)


@_add("unsorted_segment_sum unsorted_segment_max unsorted_segment_prod", 0.2)
def _segment(n: str, d: Draw) -> Call:
    x = d.pick(REAL, (1, 2, 3))
    largest = n.endswith("max") and x.dtype in FLOATS
    place = _odd(d, x, _ORDERED if largest else "{0}", "nan" if largest else "")
    return Call(f"tf.math.{n}({place}, {{1}}, 4)", [x, d.input("int32", x.shape[:1], "around:3")], noise=SUMS)


@_add("broadcast_to", 0.4)
def _broadcast_to(d: Draw) -> Call:
    x = d.pick(ranks=(0, 1, 2, 3))
    shape = [d.integer(0, 3) if n == 1 else n for n in x.shape]
    return Call(f"tf.broadcast_to({{0}}, {[d.integer(1, 3), *shape]})", [x], noise=EXACT)


@_add("tile", 0.4)
def _tile(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    return Call(f"tf.tile({{0}}, {[d.choice([1, 2, 3, 0]) for _ in x.shape]})", [x], noise=EXACT)


@_add("pad", 0.5)
def _pad(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    pads = [[d.integer(0, 2), d.integer(0, 2)] for _ in x.shape]
    mode = d.choice(["CONSTANT", "REFLECT", "SYMMETRIC"])
    return Call(f"tf.pad({{0}}, {pads}, '{mode}')", [x], noise=EXACT)


@_add("reverse", 0.3)
def _reverse(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    return Call(f"tf.reverse({{0}}, {d.axes(x)})", [x], noise=EXACT)


@_add("roll", 0.3)
def _roll(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    return Call(f"tf.roll({{0}}, {d.integer(-4, 4)}, {d.axis(x)})", [x], noise=EXACT)


@_add("reverse_sequence sequence_mask", 0.15)
def _lengths(n: str, d: Draw) -> Call:
    x = d.pick(ranks=(2, 3), fits=lambda v: 0 not in v.shape)
    lengths = d.input("int32", x.shape[:1], f"below:{x.shape[1]}")
    if n == "sequence_mask":
        return Call(f"tf.sequence_mask({{0}}, {x.shape[1]})", [lengths], noise=EXACT)
    return Call("tf.reverse_sequence({0}, {1}, seq_axis=1)", [x, lengths], noise=EXACT)


@_add("diagonal", 0.3)
def _diagonal(d: Draw) -> Call:
    x = d.pick(ranks=(2, 3), fits=lambda v: min(v.shape[-2:]) > 0)
    how = d.choice(["diag_part", "set_diag", "diag", "trace"])
    if how == "set_diag":
        part = d.of(x.dtype, (*x.shape[:-2], min(x.shape[-2:])))
        return Call("tf.linalg.set_diag({0}, {1})", [x, part], noise=EXACT)
    more = f", k={d.integer(-1, 1)}" if how in ("diag_part", "diag") else ""
    return Call(f"tf.linalg.{how}({{0}}{more})", [x], noise=SUMS if how == "trace" else EXACT)


@_add("batch_gather", 0.2)
def _batch_gather(d: Draw) -> Call:
    x = d.pick(ranks=(2, 3), fits=lambda v: 0 not in v.shape)
    places = d.input("int32", (x.shape[0], d.integer(0, 3)), f"below:{x.shape[1]}")
    return Call("tf.gather({0}, {1}, batch_dims=1)", [x, places], noise=EXACT)


@_add("dynamic_partition", 0.2)
def _dynamic_partition(d: Draw) -> Call:
    """Parts of sizes that depend on elements, and together again."""
    x = d.pick(ranks=(1, 2))
    which = d.input("int32", x.shape[:1], "below:2")
    if d.chance(0.5):
        return Call("tf.dynamic_partition({0}, {1}, 2)", [x, which], results=2, noise=EXACT)
    rows = "tf.dynamic_partition(tf.range(tf.size({1})), {1}, 2)"
    return Call(f"tf.dynamic_stitch({rows}, tf.dynamic_partition({{0}}, {{1}}, 2))", [x, which], noise=EXACT)


# Rows of a ragged tensor: some are empty.
_RAGGED = "tf.RaggedTensor.from_value_rowids({0}, tf.sort(tf.range(tf.shape({0})[0]) * 7 % 5), nrows=5)"


@_add("ragged", 0.4)
def _ragged(d: Draw) -> Call:
    x = d.pick(REAL, (1, 2))
    texts = {
        ".to_tensor()": EXACT,
        ".row_lengths()": EXACT,
        "[1:, :1].to_tensor()": EXACT,
        "[::-1].to_tensor()": EXACT,
    }
    wholes = {
        "tf.reduce_sum(R, 1)": SUMS,
        "tf.reduce_max(R, 1)": SUMS,
        "tf.concat([R, R], 1).to_tensor()": EXACT,
        "tf.concat([R, R], 0).to_tensor()": EXACT,
        "(R + R).flat_values": Noise.RESULT,
        "tf.gather(R, [3, 0]).to_tensor()": EXACT,
        "tf.ragged.boolean_mask(R, R > 0).to_tensor()"
        if len(x.shape) == 1
        else "tf.expand_dims(R, 1).to_tensor()": EXACT,
    }
    table = {f"R{k}": v for k, v in texts.items()} | wholes
    text = d.choice(list(table))
    return Call(text.replace("R", _RAGGED), [x], noise=table[text])


@_add("one_hot", 0.3)
def _one_hot(d: Draw) -> Call:
    places = d.input(d.choice(["int32", "int64", "uint8"]), d.shape((0, 1, 2)), "below:5")
    return Call(f"tf.one_hot({{0}}, {d.integer(1, 5)}, dtype=tf.{d.dtype(FLOATS)})", [places], noise=EXACT)


@_add("top_k", 0.3)
def _top_k(d: Draw) -> Call:
    x = d.pick(REAL, (1, 2, 3), lambda v: v.shape[-1] > 0)
    place = _odd(d, x, _ORDERED if x.dtype in FLOATS else "{0}", "nan")
    return Call(f"tf.math.top_k({place}, {d.integer(1, x.shape[-1])})", [x], results=2, noise=SUMS)


@_add("sort", 0.3)
def _sort(d: Draw) -> Call:
    x = d.pick(REAL, (1, 2, 3))
    way = d.choice(["ASCENDING", "DESCENDING"])
    place = _ORDERED if x.dtype in FLOATS else "{0}"
    return Call(f"tf.sort({place}, {d.axis(x)}, '{way}')", [x], noise=FLUSHED)


@_add("searchsorted", 0.15)
def _search(d: Draw) -> Call:
    x = d.pick(INTEGERS, (1,))
    return Call("tf.searchsorted(tf.sort({0}), {1})", [x, d.of(x.dtype, (3,))], noise=SUMS)


@_add("shape", 0.3)
def _shape(d: Draw) -> Call:
    return Call("tf.shape({0})", [d.pick()], noise=EXACT)


@_add("fill_like_shape", 0.3)
def _fill(d: Draw) -> Call:
    return Call("tf.fill(tf.shape({0}), {1})", [d.pick(), d.pick(ranks=(0,))], noise=EXACT)


@_add("range", 0.2)
def _range(d: Draw) -> Call:
    return Call("tf.range(tf.size({0}))", [d.pick()], noise=EXACT)


@_add("band_part", 0.2)
def _band(d: Draw) -> Call:
    x = d.pick(ranks=(2, 3))
    return Call(f"tf.linalg.band_part({{0}}, {d.integer(-1, 2)}, {d.integer(-1, 2)})", [x], noise=EXACT)


@_add("boolean_mask", 0.3)
def _boolean_mask(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    return Call("tf.boolean_mask({0}, {1})", [x, d.of("bool", x.shape[:1])], noise=EXACT)


@_add("nonzero", 0.2)
def _nonzero(d: Draw) -> Call:
    return Call("tf.where({0})", [d.pick(ranks=(1, 2))], noise=FLUSHED)


@_add("unique", 0.2)
def _unique(d: Draw) -> Call:
    x = d.pick((*INTEGERS, "float32"), (1,))
    place = _ORDERED if x.dtype == "float32" else "{0}"
    return Call(f"tf.unique({place})", [x], results=2, noise=FLUSHED)


@_add("bitcast", 0.2)
def _bitcast(d: Draw) -> Call:
    x = d.pick(("float32", "int32", "uint32"))
    place = _ORDERED if x.dtype == "float32" else "{0}"  # which NaN it is, is left open
    return Call(f"tf.bitcast({place}, tf.{d.choice(['float32', 'int32', 'uint32'])})", [x], noise=SUMS)


@_add("fft", 0.15)
def _fft(d: Draw) -> Call:
    return Call("tf.signal.fft({0})", [d.pick(COMPLEX, (1, 2))], noise=SUMS)


# -- state and random numbers --------------------------------------------------------------------------------


@_add("assign", 0.8)
def _assign(d: Draw) -> Call:
    found = [i.value for i in d.inputs if i.role == "state" and i.value.name in d.values]
    x = d.choice(found) if found and d.chance(0.7) else d.input(d.dtype(NUMBERS), d.shape(), role="state")
    how = d.choice(["assign", "assign_add", "assign_sub"])
    return Call(f"tf.identity({{0}}.{how}({{1}}))", [x, d.like(x)], effect=True)


@_add("assign_slice", 0.3)
def _assign_slice(d: Draw) -> Call:
    """Part of a variable."""
    x = d.input(d.dtype(NUMBERS), d.shape((1, 2)), role="state")
    part = f"[{d.choice(['1:', ':1', '0', ':', '::2'])}]"
    value = d.choice([f"{{0}}{part} + {{0}}{part}", f"tf.zeros_like({{0}}{part})"])
    return Call(f"tf.identity({{0}}{part}.assign({value}))", [x], effect=True)


@_add("assign_in_body", 0.3)
def _assign_in_body(d: Draw) -> Call:
    """A variable written in a branch or a loop, whose steps a session would otherwise overlap."""
    if d.depth:
        raise LookupError("writes of nested bodies are enough")
    x = d.input(d.dtype(("float32", "int32", "float64")), d.shape((0, 1, 2)), role="state")
    text = d.choice(
        [
            "tf.cond(tf.reduce_sum({1}) > 0, lambda: {0}.assign_add({1}), lambda: {0}.assign({1} * 2))",
            "tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + {0}.assign_add({1})), (0, {1}), "
            "parallel_iterations=1)[1]",
        ]
    )
    return Call(f"tf.identity({text})", [x, d.like(x)], noise=SUMS, effect=True)


@_add("scatter_variable", 0.2)
def _scatter_variable(d: Draw) -> Call:
    x = d.input(d.dtype(FLOATS), (d.integer(1, 5), d.integer(1, 4)), role="state")
    places = d.input("int32", (2,), f"below:{x.shape[0]}")
    text = "tf.identity({0}.scatter_add(tf.IndexedSlices({2}, {1}, tf.shape({0}))))"
    return Call(text, [x, places, d.of(x.dtype, (2, x.shape[1]))], noise=SUMS, effect=True)


@_add("random", 0.3)
def _random(d: Draw) -> Call:
    name = d.choice(["uniform", "normal", "truncated_normal"])
    dtype = d.choice(["float32", "float32", "float64", "float16", "bfloat16"])
    d.options.add("random")
    return Call(
        f"tf.random.{name}({list(d.shape())}, dtype=tf.{dtype}, seed={d.integer(1, 99)})", noise=EXACT
    )


@_add("stateless_random", 0.3)
def _stateless(d: Draw) -> Call:
    name = d.choice(["uniform", "normal", "truncated_normal"])
    text = f"tf.random.stateless_{name}({list(d.shape())}, {{0}}, dtype=tf.{d.dtype(FLOATS)})"
    return Call(text, [d.input("int32", (2,), "below:99")], noise=EXACT)


@_add("elsewhere", 0.3)
def _elsewhere(d: Draw) -> Call:
    return Call("elsewhere({0})", [d.pick()], noise=EXACT)


# -- control flow --------------------------------------------------------------------------------------------


def _flag(d: Draw) -> tuple[str, Value]:
    """A condition as an expression of one argument."""
    x = d.pick((*REAL, "bool"))
    if x.dtype == "bool":
        return "tf.reduce_any({0})", x
    return f"tf.reduce_max({{0}}) > {d.choice(['0', '1'])}", x


@_add("cond", 0.8)
def _cond(d: Draw) -> Call:
    text, x = _flag(d)
    then = d.block([])
    other = d.block([], list(then.results))
    return Call(f"tf.cond({text}, {{b0}}, {{b1}})", [x], [then, other], noise=FLUSHED)


@_add("switch_case", 0.3)
def _switch(d: Draw) -> Call:
    which = d.input("int32", (), "around:4")
    first = d.block([], most=2)
    rest = [d.block([], list(first.results), most=2) for _ in range(2)]
    return Call("tf.switch_case({0}, [{b0}, {b1}, {b2}])", [which], [first, *rest], noise=EXACT)


@_add("while_loop", 0.8)
def _while(d: Draw) -> Call:
    """Some steps, or until a value is reached, with one or two states."""
    states = [d.pick() for _ in range(d.integer(1, 2))]
    step = (Value(d.name("p"), "int32", ()), tf.constant(0))
    body = d.block([step, *(d.parameter(s) for s in states)], states)
    names = [v.name for v in body.parameters]
    held = ", ".join(names[1:])
    going = f"{names[0]} < {d.integer(0, 4)}"
    if states[0].dtype in FLOATS and d.chance(0.3):
        going = f"tf.logical_and({going}, tf.reduce_sum(tf.abs({names[1]})) < 100)"
    given = ", ".join(f"{{{i}}}" for i in range(len(states)))
    one = "" if len(states) > 1 else ","
    step_on = f"lambda {', '.join(names)}: ({names[0]} + 1, {'*' if len(states) > 1 else ''}{{b0}}({', '.join(names)}))"
    text = f"tf.while_loop(lambda {names[0]}, {held}: {going}, {step_on}, (tf.constant(0), {given}{one}))[1:]"
    if len(states) == 1:
        text += "[0]"
    return Call(text, states, [body], results=len(states), noise=EXACT)


@_add("map_fn", 0.5)
def _map(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: v.shape[0] > 0)
    row = (Value(d.name("p"), x.dtype, x.shape[1:]), d.tensors[x.name][0])
    body = d.block([row])
    dtype = body.results[0].dtype
    how = d.choice(["map_fn", "map_fn", "vectorized_map"])
    more = f", fn_output_signature=tf.{dtype}" if how == "map_fn" else ""
    return Call(f"tf.{how}({{b0}}, {{0}}{more})", [x], [body], noise=EXACT)


@_add("scan", 0.5)
def _scan(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: v.shape[0] > 0)
    state = d.pick()
    row = (Value(d.name("p"), x.dtype, x.shape[1:]), d.tensors[x.name][0])
    body = d.block([d.parameter(state), row], [state])
    return Call("tf.scan({b0}, {0}, initializer={1})", [x, state], [body], noise=EXACT)


@_add("TensorArray", 0.4)
def _array(d: Draw) -> Call:
    """A loop that writes a value of each step."""
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: v.shape[0] > 0)
    row = (Value(d.name("p"), x.dtype, x.shape[1:]), d.tensors[x.name][0])
    body = d.block([row], [row[0]])
    text = (
        "tf.while_loop(lambda i, a: i < tf.shape({0})[0], lambda i, a: (i + 1, a.write(i, {b0}({0}[i]))), "
        "(tf.constant(0), tf.TensorArray({0}.dtype, tf.shape({0})[0])))[1].stack()"
    )
    return Call(text, [x], [body], noise=EXACT)


@_add("growing_loop", 0.3)
def _growing(d: Draw) -> Call:
    """A state whose first dimension changes from step to step."""
    x = d.pick(NUMBERS, (1, 2))
    step = d.choice(
        ["tf.concat([a, a[:1] + a[:1]], 0)", "a[1:]", "tf.concat([a, a], 0)", "tf.repeat(a, 2, 0)[1:]"]
    )
    shape = ["None", *map(str, x.shape[1:])]
    text = (
        f"tf.while_loop(lambda i, a: i < {d.integer(0, 3)}, lambda i, a: (i + 1, {step}), (tf.constant(0), {{0}}), "
        f"shape_invariants=(tf.TensorShape([]), tf.TensorShape([{', '.join(shape)}])))[1]"
    )
    return Call(text, [x], noise=SUMS)


@_add("collected", 0.3)
def _collected(d: Draw) -> Call:
    """Arrays of tensors: filled at once or step by step, read in another order, of elements of several sizes."""
    x = d.pick(NUMBERS, (1, 2, 3), lambda v: v.shape[0] > 0)
    array = "tf.TensorArray({0}.dtype, tf.shape({0})[0], clear_after_read=False, infer_shape=False)"
    texts = [
        f"{array}.unstack({{0}}).gather(tf.range(tf.shape({{0}})[0])[::-1])",
        f"{array}.unstack({{0}}).read(tf.shape({{0}})[0] - 1)",
        f"{array}.scatter(tf.range(tf.shape({{0}})[0])[::-1], {{0}}).stack()",
        "tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.write(i, {0}[: i + 1])), (tf.constant(0), "
        "tf.TensorArray({0}.dtype, 3, infer_shape=False, element_shape=[None, *{0}.shape[1:]])))[1].concat()",
        "tf.while_loop(lambda i, a, s: i < 3, lambda i, a, s: (i + 1, a.write(i, s), a.write(i, s).read(i) + {0}), "
        "(tf.constant(0), tf.TensorArray({0}.dtype, 3, clear_after_read=False), {0}))[1].stack()",
    ]
    return Call(d.choice(texts), [x], noise=SUMS)


@_add("foldl", 0.2)
def _fold(d: Draw) -> Call:
    x = d.pick(NUMBERS, (1, 2, 3), lambda v: v.shape[0] > 0)
    name = d.choice(["foldl", "foldr"])
    return Call(
        f"tf.{name}(lambda a, r: a * r[..., :1] + r if r.shape.rank else a + r, {{0}})", [x], noise=SUMS
    )
