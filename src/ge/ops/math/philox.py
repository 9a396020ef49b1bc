"""Random numbers identical to those of TensorFlow's counter-based generator (Philox 4x32, ten rounds).

The generator maps a key and a counter to four 32-bit words; element i of a result is word i % 4 of counter i / 4. All
of it is integer arithmetic, so it is composed of elementwise operators and fuses into one kernel. Normal numbers are a
kernel of the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, register
from ge.ops.plugins import Node, Results, Unsupported, plugin

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_SEED_KEY = (0x3EC8F720, 0x02461E29)  # the key with which a seed is expanded to a key and a counter
_LOW = 0xFFFFFFFF
_ALGORITHMS = (1, 3)  # Philox, and the device's default, which is Philox too

Words = list[Any]


def _u64(n: Node, value: int) -> Any:
    return n.builder.constant(np.uint64(value))


def _low(n: Node, x: Any) -> Any:
    return n.op("BitwiseAnd", x, _u64(n, _LOW))


def _high(n: Node, x: Any) -> Any:
    return n.op("ShiftRight", x, _u64(n, 32))


def _joined(n: Node, low: Any, high: Any) -> Any:
    return n.op("BitwiseOr", low, n.op("ShiftLeft", high, _u64(n, 32)))


def philox(n: Node, counter: Words, key: Words) -> Words:
    """The four words of each counter; all values are 32-bit words in uint64 tensors."""
    for step in range(_ROUNDS):
        if step:
            key = [_low(n, n.op("Add", k, _u64(n, s))) for k, s in zip(key, _KEY_STEPS, strict=True)]
        first = n.op("Mul", counter[0], _u64(n, _MULTIPLIERS[0]))
        second = n.op("Mul", counter[2], _u64(n, _MULTIPLIERS[1]))
        counter = [
            n.op("BitwiseXor", n.op("BitwiseXor", _high(n, second), counter[1]), key[0]),
            _low(n, second),
            n.op("BitwiseXor", n.op("BitwiseXor", _high(n, first), counter[3]), key[1]),
            _low(n, first),
        ]
    return counter


def _unsigned(n: Node, value: Any, count: int) -> list[Any]:
    """The elements of a small vector as uint64 scalars."""
    flat = n.op("Reshape", value, shape=[count])
    flat = flat if desc_of(flat).dtype == "uint64" else n.op("Cast", flat, to="uint64")
    return [n.op("Reshape", n.op("Slice", flat, starts=[i], ends=[i + 1]), shape=[]) for i in range(count)]


def _key_and_counter(n: Node, seed: Any) -> tuple[Any, Any, Any]:
    """The key and the counter's two halves for a seed of two numbers."""
    words = [w for s in _unsigned(n, seed, 2) for w in (_low(n, s), _high(n, s))]
    mixed = philox(n, words, [_u64(n, k) for k in _SEED_KEY])
    return _joined(n, mixed[0], mixed[1]), _u64(n, 0), _joined(n, mixed[2], mixed[3])


def _blocks(n: Node, state: tuple[Any, Any, Any], count: int) -> Any:
    """The words (count, 4) of consecutive counters from the state's on."""
    key, low, high = state
    index = n.builder.constant(np.arange(count, dtype=np.uint64))
    moved = n.op("Add", index, low)
    carried = n.op("Add", high, n.op("Cast", n.op("Less", moved, index), to="uint64"))
    words = philox(
        n,
        [_low(n, moved), _high(n, moved), _low(n, carried), _high(n, carried)],
        [_low(n, key), _high(n, key)],
    )
    return n.op("Concat", *(n.op("Reshape", w, shape=[count, 1]) for w in words), axis=1)


def _flat_words(n: Node, state: tuple[Any, Any, Any], size: int) -> Any:
    """The first `size` words."""
    count = -(-size // 4)
    flat = n.op("Reshape", _blocks(n, state, count), shape=[4 * count])
    return flat if size == 4 * count else n.op("Slice", flat, starts=[0], ends=[size])


# Element type -> number of low bits of a word that form the fraction.
_FRACTIONS = {"float32": 23, "float16": 10, "bfloat16": 7}


def _uniform(n: Node, words: Any, dtype: str) -> Any:
    """Numbers in [0, 1) from the low bits of words."""
    bits = _FRACTIONS[dtype]
    real = n.op("Cast", n.op("BitwiseAnd", words, _u64(n, (1 << bits) - 1)), to="float32")
    return n.op("Mul", real, 2.0**-bits)


def _uniform_double(n: Node, state: tuple[Any, Any, Any], size: int) -> Any:
    pairs = n.op("Reshape", _flat_words(n, state, 2 * size), shape=[size, 2])
    high, low = n.builder.ops("Split", [pairs], axis=1, sizes=[1, 1])
    top = n.op("ShiftLeft", n.op("BitwiseAnd", high, _u64(n, 0xFFFFF)), _u64(n, 32))
    real = n.op("Cast", n.op("BitwiseOr", top, low), to="float64")
    return n.op("Reshape", n.op("Mul", real, 2.0**-52), shape=[size])


@register
class PhiloxNormal(Operator):
    """Normal numbers of a key and a counter, of those inside two deviations where `truncated`.

    TensorFlow takes logarithms, sines and cosines of the C library, whose last bits a kernel of our own does not have.
    """

    key = Input("", frozenset({"uint64"}))
    low = Input("", frozenset({"uint64"}))
    high = Input("", frozenset({"uint64"}))
    y = Output()
    size = Attr(int)
    truncated = Attr(bool, False)
    dtype = Attr(str, "float32", choices=tuple(sorted(FLOATS)))
    aicpu = "philox_normal"

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return TensorDesc((op.size,), op.dtype)


# -- TensorFlow ------------------------------------------------------------------------------------------------


def _state(n: Node) -> tuple[Any, Any, Any]:
    """Key and counter: explicit (version 2) or from a seed."""
    if not n.type.endswith("V2"):
        return _key_and_counter(n, n.inputs[1])
    if n.input(3) is not None and int(n.const(3, "the algorithm").reshape(())) not in _ALGORITHMS:
        raise Unsupported("only the Philox algorithm is known", "use tf.random.Algorithm.PHILOX")
    return (*_unsigned(n, n.inputs[1], 1), *_unsigned(n, n.inputs[2], 2))


def _shaped(n: Node, flat: Any, shape: Sequence[int], dtype: str) -> Any:
    flat = flat if desc_of(flat).dtype == dtype else n.op("Cast", flat, to=dtype)
    return n.op("Reshape", flat, shape=list(shape))


@plugin(tensorflow="StatelessRandomGetKeyCounter")
def _get_key_counter(n: Node) -> Results:
    key, low, high = (n.op("Reshape", v, shape=[1]) for v in _key_and_counter(n, n.inputs[0]))
    return [key, n.op("Concat", low, high, axis=0)]


@plugin(tensorflow="StatelessRandomGetKeyCounterAlg")
def _get_key_counter_alg(n: Node) -> Results:
    return [*_get_key_counter(n), n.builder.constant(np.int32(_ALGORITHMS[0]))]  # type: ignore[misc]


@plugin(tensorflow="StatelessRandomGetAlg")
def _get_alg(n: Node) -> Results:
    return n.builder.constant(np.int32(_ALGORITHMS[0]))


@plugin(
    tensorflow=[f"StatelessRandom{kind}{version}" for kind in ("Uniform", "Normal") for version in ("", "V2")]
    + ["StatelessTruncatedNormal", "StatelessTruncatedNormalV2"]
)
def _stateless(n: Node) -> Results:
    shape, dtype = n.ints(0, "the shape"), str(n.attr("dtype", "float32"))
    size, state = math.prod(shape), _state(n)
    if dtype not in FLOATS:
        raise Unsupported(f"{n.type} of {dtype}", "draw float32 numbers and cast them")
    if not size:
        return n.builder.constant(np.zeros(shape, numpy_dtype(dtype)))
    if "Normal" in n.type:
        flat = n.op("PhiloxNormal", *state, size=size, truncated="Truncated" in n.type, dtype=dtype)
    elif dtype == "float64":
        flat = _uniform_double(n, state, size)
    else:
        flat = _uniform(n, _flat_words(n, state, size), dtype)
    return _shaped(n, flat, shape, dtype)


@plugin(
    tensorflow=[
        f"StatelessRandomUniform{kind}{version}" for kind in ("Int", "FullInt") for version in ("", "V2")
    ]
)
def _stateless_integers(n: Node) -> Results:
    """Words, or pairs of them, unchanged or modulo the width of a range."""
    shape, dtype = n.ints(0, "the shape"), str(n.attr("dtype", "int32"))
    size, state = math.prod(shape), _state(n)
    if not size:
        return n.builder.constant(np.zeros(shape, numpy_dtype(dtype)))
    words = _flat_words(n, state, size if dtype.endswith("32") else 2 * size)
    if dtype.endswith("64"):
        low, high = n.builder.ops("Split", [n.op("Reshape", words, shape=[size, 2])], axis=1, sizes=[1, 1])
        words = n.op("Reshape", _joined(n, low, high), shape=[size])
    if "FullInt" in n.type:
        return _shaped(n, words, shape, dtype)
    first = 4 if n.type.endswith("V2") else 2
    low, high = (n.op("Cast", n.inputs[i], to="int64") for i in (first, first + 1))
    width = n.op("Cast", n.op("Sub", high, low), to="uint64")
    return _shaped(n, n.op("Add", n.op("Cast", n.op("Mod", words, width), to="int64"), low), shape, dtype)
