"""Hashes of tokens and numbers: MurmurHash3, n-grams of tokens as rows of embedding tables."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.ops.microsoft.standard import DOMAIN, Writer
from ge.ops.plugins import Node, Results, Unsupported, plugin

_WORDS = {"int32": 1, "uint32": 1, "float32": 1, "int64": 2, "uint64": 2, "float64": 2}
_FIRST, _SECOND, _STEP = np.uint32(0xCC9E2D51), np.uint32(0x1B873593), np.uint32(0xE6546B64)
_FINAL = ((16, np.uint32(0x85EBCA6B)), (13, np.uint32(0xC2B2AE35)), (16, None))


@plugin(onnx="MurmurHash3", domain=DOMAIN)
def _murmur(n: Node) -> Results:
    """The 32-bit hash of each element's bytes, four at a time."""
    dtype = n.desc().dtype
    if dtype not in _WORDS:
        raise Unsupported(f"MurmurHash3 of {dtype}", "hash numbers of 32 or 64 bits")
    w = Writer(n, n.builder)

    def rotated(x: Any, bits: int) -> Any:
        left, right = np.uint32(bits), np.uint32(32 - bits)
        return w.op(
            "BitwiseOr",
            w.op("BitShift", x, left, direction="LEFT"),
            w.op("BitShift", x, right, direction="RIGHT"),
        )

    h: Any = n.builder.constant(np.full(n.desc().shape, int(n.attr("seed", 0)) & 0xFFFFFFFF, np.uint32))
    for word in _words(n, w, _WORDS[dtype]):
        mixed = w.op("Mul", rotated(w.op("Mul", word, _FIRST), 15), _SECOND)
        h = w.op("Add", w.op("Mul", rotated(w.op("BitwiseXor", h, mixed), 13), np.uint32(5)), _STEP)
    h = w.op("BitwiseXor", h, np.uint32(4 * _WORDS[dtype]))
    for bits, factor in _FINAL:
        h = w.op("BitwiseXor", h, w.op("BitShift", h, np.uint32(bits), direction="RIGHT"))
        h = h if factor is None else w.op("Mul", h, factor)
    return h if n.attr("positive", 1) else n.op("BitCast", h, to="int32")


def _words(n: Node, w: Writer, count: int) -> list[Any]:
    """The 32-bit words of each element, the lowest first."""
    if count == 1:
        return [n.inputs[0] if n.desc().dtype == "uint32" else n.op("BitCast", n.inputs[0], to="uint32")]
    x = n.inputs[0] if n.desc().dtype == "uint64" else n.op("BitCast", n.inputs[0], to="uint64")
    low = w.op("BitwiseAnd", x, np.uint64(0xFFFFFFFF))
    return [w.cast(v, "uint32") for v in (low, w.op("BitShift", x, np.uint64(32), direction="RIGHT"))]


# -- n-grams of tokens -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Packed:
    """Tokens of several texts in a row, each text with the `reach` tokens before it."""

    w: Writer
    starts: Any  # the first token of each text (texts,)
    lengths: Any
    reach: int

    def at(self, values: Any, past: Any, texts: Any, positions: Any) -> Any:
        """The elements at positions of texts; negative ones are those before the text."""
        w, last = self.w, desc_of(values).size - 1
        place = w.op("Add", w.op("Gather", self.starts, texts), positions)
        here = w.op("Gather", values, w.op("Clip", place, np.int64(0), np.int64(last)))
        if not self.reach:
            return here
        before = w.op(
            "Clip", w.op("Add", positions, np.int64(self.reach)), np.int64(0), np.int64(self.reach - 1)
        )
        place = w.op("Add", w.op("Mul", texts, np.int64(self.reach)), before)
        return w.op("Where", w.op("Less", positions, np.int64(0)), w.op("Gather", past, place), here)


@plugin(onnx=["NGramHashMapping", "VarlenNGramHashMapping"], domain=DOMAIN)
def _ngram_hashes(n: Node) -> Results:
    """For each order, the exclusive or of the last tokens times their factors, modulo the size of each head's table."""
    packed = n.type.startswith("Varlen")
    w, order, dtype = Writer(n, n.builder), int(n.attr("max_ngram_size")), n.desc().dtype
    past_ids, offsets, eos, segments = (n.input(i + packed) for i in range(3, 7))
    past_segments = n.input(8) if packed else None
    if packed:
        total, texts = n.desc().size, n.desc(3).size - 1
        ends = w.cast(n.inputs[3], "int64")
        starts, ends = w.part(ends, 0, 0, texts), w.part(ends, 0, 1, texts + 1)
        token = np.arange(total)
        passed = w.cast(w.op("GreaterOrEqual", token[:, None], w.reshape(ends, 1, texts)), "int64")
        text = w.op("Clip", n.op("ReduceSum", passed, axes=[1]), np.int64(0), np.int64(texts - 1))
    else:
        texts, length = n.desc().shape
        total, token = texts * length, np.arange(texts * length)
        starts = n.builder.constant(np.arange(texts) * length)
        ends = n.builder.constant((np.arange(texts) + 1) * length)
        text = n.builder.constant(token // max(length, 1))
    reach = order - 1
    lists = _Packed(w, starts, w.op("Sub", ends, starts), reach)
    ids = w.reshape(n.inputs[0], total)
    kind = numpy_dtype(dtype)
    pad = n.builder.constant(np.asarray([int(n.attr("pad_id"))], kind))
    fill = pad if eos is None else w.reshape(eos, 1)
    count = np.array([texts * reach])
    past = w.op("Expand", fill, count) if past_ids is None else w.reshape(past_ids, texts * reach)
    position = w.op("Sub", token, w.op("Gather", starts, text))
    old_segments: Any = None
    if segments is not None:  # those before a text are its first token's unless they are inputs
        segments = w.reshape(segments, total)
        first = w.op("Gather", segments, w.op("Gather", starts, np.arange(texts).repeat(reach)))
        old_segments = first if past_segments is None else w.reshape(past_segments, texts * reach)

    cut: Any = None  # tokens whose history ended between them and the place looked at
    mix = w.op("Mul", ids, w.part(n.inputs[1], 0, 0, 1))
    heads, hashes = int(n.attr("n_head_per_ngram")), []
    for k in range(1, order):
        there = w.op("Sub", position, np.int64(k))
        shifted = lists.at(ids, past, text, there)
        ended = [] if cut is None else [cut]
        if eos is not None and n.attr("reset_on_eos", 0):
            ended.append(w.op("Equal", shifted, fill))
        if segments is not None:
            here = lists.at(segments, old_segments, text, w.op("Add", there, np.int64(1)))
            then = lists.at(segments, old_segments, text, there)
            ended.append(w.op("Not", w.op("Equal", here, then)))
        if ended:
            cut = functools.reduce(functools.partial(w.op, "Or"), ended)
        kept = shifted if cut is None else w.op("Where", cut, fill, shifted)
        mix = w.op("BitwiseXor", mix, w.op("Mul", kept, w.part(n.inputs[1], 0, k, k + 1)))
        sizes = w.part(n.inputs[2], 0, (k - 1) * heads, k * heads)
        hashes.append(w.op("Mod", w.reshape(mix, total, 1), w.reshape(sizes, 1, heads)))
    found = w.op("Concat", *hashes, axis=1)
    found = found if offsets is None else w.op("Add", found, w.reshape(offsets, 1, heads * reach))
    results = [w.reshape(found, *n.desc().shape, heads * reach)]

    def trailing(values: Any, held: Any, after: Any) -> Any:
        """The last tokens of each text's first `after` ones (texts, places): (texts * places, reach)."""
        places = desc_of(after).shape[1]
        spot = w.op("Add", w.reshape(after, texts * places, 1), np.arange(-reach, 0)[None])
        rows = np.arange(texts).repeat(places * reach)
        moved = lists.at(values, held, n.builder.constant(rows), w.reshape(spot, texts * places * reach))
        return w.reshape(moved, texts, places, reach)

    whole = w.reshape(lists.lengths, texts, 1)
    if n.outputs > 1:
        results.append(w.reshape(trailing(ids, past, whole), texts, reach))
    if n.outputs > 2:
        if segments is None:
            raise Unsupported(f"segments as a result of {n.type} without segments", "give segment_ids")
        results.append(w.reshape(trailing(segments, old_segments, whole), texts, reach))
    if n.outputs > 3:
        places = int(n.attr("state_update_capacity", 0))
        steps = np.arange(1, places + 1)[None].repeat(texts, 0)
        states = trailing(ids, past, n.builder.constant(steps))
        asked = w.op("Min", w.cast(w.reshape(n.inputs[9], texts, 1), "int64"), whole)
        used = w.reshape(w.op("LessOrEqual", steps, asked), texts, places, 1)
        results.append(w.op("Where", used, states, pad))
    return results[: n.outputs]
