"""MindSpore: random numbers and dropout.

Numbers are the engine's own: a state beside the model's parameters decides them, not the seeds of a primitive.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.math.elementwise import erfinv
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.node import MsNode, primitive
from ge.parsers.mindir.values import RANDOM


def _drawn(n: MsNode, type_: str, *operands: Any, **attrs: Any) -> Any:
    """Numbers of a random operator, which moves the state on."""
    drawn, after = n.op(type_, *operands, n.parser.read(RANDOM), **attrs)
    n.parser.write(RANDOM, after)
    return drawn


def _uniform(n: MsNode, shape: tuple[int, ...]) -> Any:
    return _drawn(n, "RandomUniform", shape=list(shape), dtype="float32")


def _normal(n: MsNode, shape: tuple[int, ...]) -> Any:
    return _drawn(n, "RandomNormal", shape=list(shape), dtype="float32")


def _known(value: Any) -> float | None:
    """A number that the compiler knows."""
    if isinstance(value, ir.Value):
        found = constant_of(value)
        return found.reshape(-1)[0].item() if found is not None and found.size == 1 else None
    return value if isinstance(value, int | float) else None


def _scaled(n: MsNode, numbers: Any, by: Any, plus: Any) -> Any:
    """numbers * by + plus; both may be tensors."""
    return n.op("Add", n.op("Mul", numbers, n.cast(by, "float32")), n.cast(plus, "float32"))


# -- numbers of a shape ------------------------------------------------------------------------------------------


@primitive("UniformReal RandExt RandLikeExt")
def _uniforms(n: MsNode) -> Any:
    return n.cast(_uniform(n, n.out().shape), n.out().dtype)


@primitive("StandardNormal Randn RandnLike")
def _normals(n: MsNode) -> Any:
    return n.cast(_normal(n, n.out().shape), n.out().dtype)


@primitive("TruncatedNormal")
def _truncated_normals(n: MsNode) -> Any:
    """Normal numbers within two deviations."""
    spread = _scaled(n, _uniform(n, n.out().shape), 2 * math.erf(math.sqrt(2)), -math.erf(math.sqrt(2)))
    return n.cast(n.op("Mul", erfinv(n, spread), math.sqrt(2)), n.out().dtype)


@primitive("StandardLaplace")
def _laplace(n: MsNode) -> Any:
    """sign(u) * -log(1 - |u|) of uniform numbers u between -1 and 1."""
    u = _scaled(n, _uniform(n, n.out().shape), 2.0, -1.0)
    size = n.op("Neg", n.op("Log", n.op("Sub", 1.0, n.op("Minimum", n.op("Abs", u), 1.0 - 2.0**-24))))
    return n.op("Mul", n.op("Sign", u), size)


def _integers(n: MsNode, low: Any, high: Any, desc: TensorDesc) -> Any:
    """Integers from low up to but without high."""
    first, last = _known(low), _known(high)
    if first is not None and last is not None:
        if first >= last:
            raise Unsupported(f"there are no integers from {first} up to {last}")
        dtype = desc.dtype if desc.dtype in ("int32", "int64") else "int64"
        drawn = _drawn(
            n, "RandomInteger", shape=list(desc.shape), dtype=dtype, low=int(first), high=int(last)
        )
        return n.cast(drawn, desc.dtype)
    width = n.cast(n.op("Sub", n.cast(high, "int64"), n.cast(low, "int64")), "float32")
    step = n.op("Floor", n.op("Mul", _uniform(n, desc.shape), width))
    step = n.op("Minimum", step, n.op("Sub", width, 1.0))  # a product may round up to the width
    return n.cast(n.op("Add", n.cast(step, "int64"), n.cast(low, "int64")), desc.dtype)


@primitive("UniformInt", "shape minval maxval")
def _uniform_int(n: MsNode) -> Any:
    return _integers(n, n.arg("minval"), n.arg("maxval"), n.out())


@primitive("RandInt", "low high")
def _rand_int(n: MsNode) -> Any:
    return _integers(n, n.arg("low"), n.arg("high"), n.out())


@primitive("RandIntLike", "input low high")
def _rand_int_like(n: MsNode) -> Any:
    return _integers(n, n.arg("low"), n.arg("high"), n.out())


@primitive("NormalFloatFloat NormalFloatTensor NormalTensorFloat NormalTensorTensor", "mean std")
def _normal_of(n: MsNode) -> Any:
    made = _scaled(n, _normal(n, n.out().shape), n.arg("std"), n.arg("mean"))
    return n.cast(made, n.out().dtype)


@primitive("UniformExt", "tensor a b")
def _uniform_of(n: MsNode) -> Any:
    low, high = (n.cast(n.arg(name), "float32") for name in ("a", "b"))
    return n.cast(_scaled(n, _uniform(n, n.out().shape), n.op("Sub", high, low), low), n.out().dtype)


@primitive("Bernoulli BernoulliExt", "x p=None")
def _bernoulli(n: MsNode) -> Any:
    """1 with probability p; the probabilities of BernoulliExt are x itself."""
    given = n.arg("p") if n.type == "Bernoulli" else n.tensor("x")
    drawn = _uniform(n, n.out().shape)
    return n.cast(n.op("Less", drawn, n.cast(given, "float32")), n.out().dtype)


# -- choices -----------------------------------------------------------------------------------------------------


@primitive("RandpermV2 RandpermExt")
def _permutation(n: MsNode) -> Any:
    drawn = _drawn(n, "RandomPermutation", shape=list(n.out().shape), dtype="int64")
    return n.cast(drawn, n.out().dtype)


@primitive("RandomShuffle", "x")
def _shuffled(n: MsNode) -> Any:
    x = n.tensor("x")
    if not desc_of(x).shape:
        return n.op("Identity", x)
    order = _drawn(n, "RandomPermutation", shape=[desc_of(x).shape[0]], dtype="int64")
    return n.op("Gather", x, order, axis=0)


def _classes(n: MsNode, logits: Any) -> Any:
    """Classes drawn with replacement, under the shape of the result."""
    rows = n.shaped(logits, [1, *desc_of(logits).shape]) if desc_of(logits).rank == 1 else logits
    drawn = _drawn(n, "Multinomial", rows, samples=n.out().shape[-1], dtype="int64")
    return n.cast(n.shaped(drawn, n.out().shape), n.out().dtype)


@primitive("Multinomial MultinomialWithReplacement", "x")
def _multinomial(n: MsNode) -> Any:
    return _classes(n, n.op("Log", n.cast(n.tensor("x"), "float32")))


@primitive("MultinomialExt", "input num_samples replacement=False")
def _multinomial_ext(n: MsNode) -> Any:
    if not n.setting("replacement", False) and n.out().shape[-1] > 1:
        raise Unsupported("samples without replacement", "draw with replacement=True")
    return _classes(n, n.op("Log", n.cast(n.tensor("input"), "float32")))


@primitive("RandomCategorical", "logits")
def _categorical(n: MsNode) -> Any:
    return _classes(n, n.cast(n.tensor("logits"), "float32"))


# -- seeds -------------------------------------------------------------------------------------------------------


@primitive("Generator")
def _generator(n: MsNode) -> Any:
    """The seed and offset that operators of `mint` get; the state of the engine takes their place."""
    return tuple(n.filled(0, desc) for desc in n.results if desc is not None)


# -- dropout -----------------------------------------------------------------------------------------------------


@primitive("Dropout", "x keep_prob=0.5 Seed0=0 Seed1=0")
def _dropout(n: MsNode) -> Any:
    return _dropped(n, n.tensor("x"), float(n.setting("keep_prob", 0.5)))


@primitive("DropoutExt", "input p seed offset")
def _dropout_ext(n: MsNode) -> Any:
    """Its mask is packed on some devices; a gradient on the engine has to see one element for each."""
    return _dropped(n, n.tensor("input"), 1.0 - float(n.setting("p", 0.5)))


@primitive("FuncDropoutExt Dropout2dExt", "input p training=True inplace=False")
def _dropout_function(n: MsNode) -> Any:
    x, keep = n.tensor("input"), 1.0 - float(n.setting("p", 0.5))
    if n.setting("inplace", False):
        raise Unsupported("a dropout in place", "use inplace=False")
    if not n.setting("training", True) or keep == 1.0:
        return n.op("Identity", x)
    shape = desc_of(x).shape
    if n.type == "Dropout2dExt":
        shape = (*shape[:2], *[1] * (len(shape) - 2))
    return _kept(n, x, n.op("Less", _uniform(n, shape), keep), keep)


@primitive("Dropout2D Dropout3D", "x keep_prob=0.5")
def _dropout_of_channels(n: MsNode) -> Any:
    """Whole channels, and the mask of their elements."""
    x, keep = n.tensor("x"), float(n.setting("keep_prob", 0.5))
    desc, mask = desc_of(x), n.out(1)
    if keep == 1.0:
        return [n.op("Identity", x), n.filled(1, mask)]
    kept = n.op("Less", _uniform(n, (*desc.shape[:2], *[1] * (desc.rank - 2))), keep)
    return [_kept(n, x, kept, keep), n.cast(n.spread(kept, mask.shape), mask.dtype)]


def _dropped(n: MsNode, x: Any, keep: float) -> Any:
    """Elements kept with a probability, the others zero, and the mask."""
    desc = desc_of(x)
    if keep == 1.0:
        return [n.op("Identity", x), n.filled(1, n.out(1))]
    if n.out(1).shape != desc.shape:
        raise Unsupported("its mask is packed", "use ops.Dropout or nn.Dropout")
    mask = n.op("Less", _uniform(n, desc.shape), keep)
    return [_kept(n, x, mask, keep), n.cast(mask, n.out(1).dtype)]


def _kept(n: MsNode, x: Any, mask: Any, keep: float) -> Any:
    kept = n.op("Mul", x, n.cast(mask, desc_of(x).dtype))
    return n.op("Div", kept, keep) if keep else kept
