"""Random numbers, reproducible from a seed or from an explicit state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ops.base import Attr, Input, NodeView, Operator, Output, lookup, register
from ge.ops.math.elementwise import erfinv
from ge.ops.plugins import Node, Results, plugin

_MASK = (1 << 62) - 1
_counter = itertools.count(1)


class Random(Operator):
    """Random numbers. A state (key and counter, int64) can come in; the state after it then goes out.

    Without one, every run draws new numbers: a sequence that the seed decides, or another one for every program that is
    loaded where the seed is 0.
    """

    foldable = False
    seed = Attr(int, 0)

    @staticmethod
    def described(op: NodeView) -> TensorDesc:
        """The shape and type of the numbers."""
        return TensorDesc(op.shape, op.dtype)

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        numbers = lookup(op.type).described(op)  # type: ignore[attr-defined]
        return [numbers, *(d for d in op.inputs[-1:] if d is not None and d.dtype == "int64")]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        has_state = len(op.outputs) == 2
        state = np.asarray(arrays[-1]) if has_state else np.asarray([op.seed or next(_counter), 0])
        generator = np.random.Generator(
            np.random.Philox(key=int(state[0]) & _MASK, counter=int(state[1]) & _MASK)
        )
        numbers = lookup(op.type).draw(op, generator, arrays)  # type: ignore[attr-defined]
        after = state + np.asarray([0, max(numbers.size, 1)])
        return [numbers.astype(numpy_dtype(op.outputs[0].dtype)), *([after] if has_state else [])]


class Distribution(Random):
    """Numbers of a given shape."""

    state = Input("", frozenset({"int64"}), optional=True)
    y = Output()
    next_state = Output()
    shape = Attr(list)
    dtype = Attr(str, "float32", choices=tuple(sorted(FLOATS)))
    piecewise_constant = True


@register
class RandomUniform(Distribution):
    """Evenly spread over low..high, high left out."""

    low = Attr(float, 0.0)
    high = Attr(float, 1.0)
    aicpu = "random_uniform"

    @staticmethod
    def draw(op: NodeView, generator: np.random.Generator, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        return generator.uniform(op.low, op.high, op.shape)


@register
class RandomInteger(Distribution):
    """Integers from low up to but without high."""

    dtype = Attr(str, "int32", choices=("int32", "int64", "uint32", "uint64"))
    low = Attr(int, 0)
    high = Attr(int)
    aicpu = "random_uniform"

    @staticmethod
    def draw(op: NodeView, generator: np.random.Generator, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        return generator.integers(op.low, op.high, op.shape)


@register
class RandomNormal(Distribution):
    """Normally distributed."""

    mean = Attr(float, 0.0)
    scale = Attr(float, 1.0)
    aicpu = "random_normal"

    @staticmethod
    def draw(op: NodeView, generator: np.random.Generator, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        return generator.normal(op.mean, op.scale, op.shape)


@register
class RandomPermutation(Distribution):
    """The numbers 0 to size - 1 in random order."""

    dtype = Attr(str, "int64", choices=("int32", "int64"))
    aicpu = "random_permutation"

    @staticmethod
    def draw(op: NodeView, generator: np.random.Generator, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        return generator.permutation(int(np.prod(op.shape))).reshape(op.shape)


@register
class Multinomial(Random):
    """Classes drawn at random, `samples` a row, given unnormalised log probabilities (N, C)."""

    logits = Input("T", FLOATS)
    state = Input("", frozenset({"int64"}), optional=True)
    y = Output()
    next_state = Output()
    samples = Attr(int)
    dtype = Attr(str, "int32", choices=("int32", "int64"))
    aicpu = "multinomial"

    @staticmethod
    def described(op: NodeView) -> TensorDesc:
        return TensorDesc((op.inputs[0].shape[0], op.samples), op.dtype)  # type: ignore[union-attr]

    @staticmethod
    def draw(op: NodeView, generator: np.random.Generator, arrays: Sequence[np.ndarray | None]) -> np.ndarray:
        logits = np.asarray(arrays[0], np.float64)
        noise = generator.gumbel(size=(logits.shape[0], op.samples, logits.shape[1]))
        return np.argmax(logits[:, None, :] + noise, -1)


# -- ONNX --------------------------------------------------------------------------------------------------


def seed_of(n: Node) -> int:
    """ONNX seeds are floats; 0 stands for none."""
    seed = n.attr("seed")
    return 0 if seed is None else int(np.float32(seed).view(np.uint32)) or 1


@plugin(onnx=["RandomUniform", "RandomUniformLike"])
def _random_uniform(n: Node) -> Results:
    shape, dtype = _described(n)
    low, high = float(n.attr("low", 0.0)), float(n.attr("high", 1.0))
    return n.op("RandomUniform", shape=shape, dtype=dtype, low=low, high=high, seed=seed_of(n))


@plugin(onnx=["RandomNormal", "RandomNormalLike"])
def _random_normal(n: Node) -> Results:
    shape, dtype = _described(n)
    mean, scale = float(n.attr("mean", 0.0)), float(n.attr("scale", 1.0))
    return n.op("RandomNormal", shape=shape, dtype=dtype, mean=mean, scale=scale, seed=seed_of(n))


def _described(n: Node) -> tuple[list[int], str]:
    if n.type.endswith("Like"):
        return list(n.desc().shape), n.element_type("dtype", n.desc().dtype)
    return [int(d) for d in n.attr("shape")], n.element_type("dtype", "float32")


@plugin(onnx="Bernoulli")
def _bernoulli(n: Node) -> Results:
    """1 with probability x."""
    noise = n.op("RandomUniform", shape=list(n.desc().shape), seed=seed_of(n))
    x: Any = n.inputs[0] if n.desc().dtype == "float32" else n.op("Cast", n.inputs[0], to="float32")
    drawn = n.op("Less", noise, x)
    return n.op("Cast", drawn, to=n.element_type("dtype", n.desc().dtype))


@plugin(onnx="Multinomial")
def _multinomial(n: Node) -> Results:
    return n.op(
        "Multinomial",
        n.inputs[0],
        samples=int(n.attr("sample_size", 1)),
        dtype=n.element_type("dtype", "int32"),
        seed=seed_of(n),
    )


@plugin(onnx="Dropout")
def _dropout(n: Node) -> Results:
    """The identity in inference; in training elements are dropped at random and the rest scaled up."""
    ratio, training = _dropout_mode(n)
    x, desc = n.inputs[0], n.desc()
    if not training or ratio == 0:
        ones = n.builder.constant(np.True_)
        mask = () if n.outputs == 1 else (n.op("BroadcastTo", ones, shape=list(desc.shape)),)
        return (x, *mask)
    noise = n.op("RandomUniform", shape=list(desc.shape), seed=seed_of(n))
    kept = n.op("GreaterEqual", noise, ratio)
    y = n.op("Select", kept, n.op("Mul", x, 1 / (1 - ratio) if ratio < 1 else 0.0), 0.0)
    return (y, kept)[: n.outputs]


def _dropout_mode(n: Node) -> tuple[float, bool]:
    if n.version < 12:
        return float(n.attr("ratio", 0.5)), n.version < 7 and not n.attr("is_test", 0)
    training = n.input(2) is not None and bool(n.const(2, "training_mode").reshape(-1)[0])
    if not training:
        return 0.0, False
    return 0.5 if n.input(1) is None else float(n.const(1, "ratio").reshape(-1)[0]), True


# -- TensorFlow --------------------------------------------------------------------------------------------


def _seed_tf(n: Node) -> int:
    """One seed from a node's two; 0 stands for none."""
    first, second = int(n.attr("seed", 0)), int(n.attr("seed2", 0))
    return (first * 1_000_003 + second) & _MASK if first or second else 0


def _drawn(n: Node, type_: str, **attrs: Any) -> Any:
    """Numbers of the shape and type that a node requests; 16-bit ones are drawn in float32."""
    dtype = str(n.attr("dtype", "float32"))
    wide = dtype if dtype in ("float32", "float64") else "float32"
    y = n.op(type_, shape=n.ints(0, "the shape"), dtype=wide, seed=_seed_tf(n), **attrs)
    return y if wide == dtype else n.op("Cast", y, to=dtype)


@plugin(tensorflow="RandomUniform")
def _random_uniform_tf(n: Node) -> Results:
    return _drawn(n, "RandomUniform")


@plugin(tensorflow="RandomStandardNormal")
def _random_normal_tf(n: Node) -> Results:
    return _drawn(n, "RandomNormal")


@plugin(tensorflow="TruncatedNormal")
def _truncated_normal_tf(n: Node) -> Results:
    """Normal numbers within two deviations: the inverse distribution function of uniform numbers over their share."""
    within = math.erf(math.sqrt(2))
    spread = n.op("Mul", n.op("Sub", n.op("Mul", _drawn(n, "RandomUniform"), 2.0), 1.0), within)
    return n.op("Mul", erfinv(n, spread), math.sqrt(2))


@plugin(tensorflow="RandomUniformInt")
def _random_integers_tf(n: Node) -> Results:
    low, high = (int(n.const(i, "a bound").reshape(())) for i in (1, 2))
    dtype = str(n.attr("Tout", n.desc(1).dtype))
    return n.op(
        "RandomInteger", shape=n.ints(0, "the shape"), dtype=dtype, low=low, high=high, seed=_seed_tf(n)
    )


@plugin(tensorflow="RandomShuffle")
def _random_shuffle(n: Node) -> Results:
    order = n.op("RandomPermutation", shape=[n.desc().shape[0]], seed=_seed_tf(n))
    return n.op("Gather", n.inputs[0], order, axis=0)


@plugin(tensorflow="Multinomial")
def _multinomial_tf(n: Node) -> Results:
    samples, dtype = n.ints(1, "the number of samples")[0], str(n.attr("output_dtype", "int64"))
    return n.op("Multinomial", n.inputs[0], samples=samples, dtype=dtype, seed=_seed_tf(n))
