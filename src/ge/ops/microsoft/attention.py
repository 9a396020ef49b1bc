"""ONNX Runtime's attention operators: with projections, caches, masks in several forms, groups and rotations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.values import constant_of, desc_of
from ge.ops.microsoft.standard import DOMAIN, standard
from ge.ops.nn.quantise import integer_matmul
from ge.ops.plugins import Node, Results, Unsupported, plugin

FILTER = -10000.0  # the score of a masked key unless `mask_filter_value` is set


@dataclass
class _Heads:
    """Queries, keys and values, each (batch, heads, length, size)."""

    q: Any
    k: Any
    v: Any


def _cut(n: Node, value: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    return list(n.builder.ops("Split", [value], axis=axis, sizes=list(sizes)))


def _split_heads(n: Node, value: Any, heads: int) -> Any:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    batch, length, width = desc_of(value).shape
    if width % heads:
        raise Unsupported(f"{width} columns do not make {heads} heads", "check num_heads")
    apart = n.op("Reshape", value, shape=[batch, length, heads, width // heads])
    return n.op("Transpose", apart, perm=[0, 2, 1, 3])


def _joined_heads(n: Node, value: Any) -> Any:
    batch, heads, length, size = desc_of(value).shape
    turned = n.op("Transpose", value, perm=[0, 2, 1, 3])
    return n.op("Reshape", turned, shape=[batch, length, heads * size])


def _refuse_shared_cache(n: Node, *inputs: int) -> None:
    if n.attr("past_present_share_buffer", 0) or any(n.input(i) is not None for i in inputs):
        raise Unsupported(f"{n.type} with a cache that its results share", "export without a shared buffer")


def _scale(n: Node, size: int) -> float:
    given = n.attr("scale")
    return float(given) if given else 1.0 / math.sqrt(size)


# -- masks -------------------------------------------------------------------------------------------------


def _mask(n: Node, mask: Any, queries: int, keys: int) -> Any:
    """The additive form of any mask, (batch, 1, queries or 1, keys); None without one."""
    if mask is None:
        return None
    desc = desc_of(mask)
    batch = n.desc(0).shape[0]
    position = n.builder.constant(np.arange(keys, dtype=desc.dtype).reshape(1, keys))
    if desc.rank == 1 and desc.shape[0] == batch:  # lengths
        kept = n.op("Less", position, n.op("Reshape", mask, shape=[batch, 1]))
    elif desc.rank == 1 and desc.shape[0] == 2 * batch:  # ends, then starts
        end, start = _cut(n, mask, [batch, batch], 0)
        before = n.op("Less", position, n.op("Reshape", end, shape=[batch, 1]))
        kept = n.op("And", before, n.op("GreaterEqual", position, n.op("Reshape", start, shape=[batch, 1])))
    elif desc.rank in (2, 3) and desc.shape[-1] == keys:
        kept = n.op("Greater", mask, 0)
    else:
        raise Unsupported(f"a mask {desc} for {queries} queries and {keys} keys", "use a mask of 0 and 1")
    kept_shape = desc_of(kept).shape
    shape = [batch, 1, 1, keys] if len(kept_shape) == 2 else [batch, 1, queries, keys]
    hidden = float(n.attr("mask_filter_value", FILTER) or FILTER)
    return n.op("Select", n.op("Reshape", kept, shape=shape), 0.0, hidden)


def _attend(n: Node, heads: _Heads, mask: Any, extra: Any, causal: bool) -> Any:
    """softmax(q k' scale + mask + extra) v, heads merged; a causal query sees keys up to its own, which is last."""
    queries, keys = desc_of(heads.q).shape[2], desc_of(heads.k).shape[2]
    dtype = desc_of(heads.q).dtype
    added = mask if mask is None or desc_of(mask).dtype == dtype else n.op("Cast", mask, to=dtype)
    if extra is not None:
        added = extra if added is None else n.op("Add", added, extra)
    if causal:
        hidden = np.triu(np.full((queries, keys), np.finfo(np.float32).min), 1 + keys - queries)
        band = n.builder.constant(hidden.astype(np.float32).reshape(1, 1, queries, keys))
        band = band if dtype == "float32" else n.op("Cast", n.op("Clip", band, min=-65504.0), to=dtype)
        added = band if added is None else n.op("Maximum", n.op("Add", added, band), float(np.finfo("f").min))
    given = [heads.q, heads.k, heads.v] + ([] if added is None else [added])
    y, _ = n.builder.ops("Attention", given, scale=_scale(n, desc_of(heads.q).shape[3]))
    return _joined_heads(n, y)


# -- Attention ---------------------------------------------------------------------------------------------


@plugin(onnx="Attention", domain=DOMAIN)
def _attention(n: Node) -> Results:
    """Self-attention with the projections of queries, keys and values in one matrix."""
    _refuse_shared_cache(n, 6)
    projected = standard(n, "MatMul", n.inputs[0], n.inputs[1])
    if n.input(2) is not None:
        projected = n.op("Add", projected, n.inputs[2])
    return _self_attention(n, projected, n.input(3), n.input(4), n.input(5))


@plugin(onnx="QAttention", domain=DOMAIN)
def _quantised_attention(n: Node) -> Results:
    """The same with a projection of 8-bit integers."""
    _refuse_shared_cache(n)
    x, w, bias, x_scale, w_scale = n.inputs[:5]
    total = integer_matmul(n, x, w, n.input(6), n.input(7))
    scale = n.op("Mul", _number(n, x_scale), w_scale)
    real = n.op("Mul", n.op("Cast", total, to=desc_of(scale).dtype), scale)
    return _self_attention(n, n.op("Add", real, bias), n.input(5), n.input(8), None)


def _number(n: Node, value: Any) -> Any:
    """A tensor of one element as a scalar."""
    return value if not desc_of(value).rank else n.op("Reshape", value, shape=[])


def _self_attention(n: Node, projected: Any, mask: Any, past: Any, extra: Any) -> Results:
    if n.attr("do_rotary", 0):
        raise Unsupported(f"{n.type} with rotary embeddings", "export with GroupQueryAttention")
    width = desc_of(projected).shape[2]
    sizes = [int(v) for v in n.attr("qkv_hidden_sizes") or [width // 3] * 3]
    count = int(n.attr("num_heads"))
    q, k, v = (_split_heads(n, part, count) for part in _cut(n, projected, sizes, 2))
    present = None
    if past is not None:
        k, v = (n.op("Concat", old, new, axis=2) for old, new in zip(_pair(n, past), (k, v), strict=True))
    if n.outputs > 1:
        present = n.op("Concat", *(n.op("Reshape", t, shape=[1, *desc_of(t).shape]) for t in (k, v)), axis=0)
    shape = desc_of(k).shape
    added = _mask(n, mask, desc_of(q).shape[2], shape[2])
    y = _attend(n, _Heads(q, k, v), added, extra, bool(n.attr("unidirectional", 0)))
    return (y, present)[: max(n.outputs, 1)]


def _pair(n: Node, past: Any) -> list[Any]:
    """Keys and values of a state (2, batch, heads, length, size)."""
    shape = desc_of(past).shape[1:]
    return [n.op("Reshape", t, shape=list(shape)) for t in _cut(n, past, [1, 1], 0)]


# -- MultiHeadAttention ------------------------------------------------------------------------------------


@plugin(onnx=["MultiHeadAttention", "DecoderMaskedMultiHeadAttention"], domain=DOMAIN)
def _multi_head_attention(n: Node) -> Results:
    masked = n.type.startswith("Decoder")
    bias, mask, extra, past_k, past_v = (
        (n.input(i) for i in (10, 3, 4, 5, 6)) if masked else (n.input(i) for i in (3, 4, 5, 6, 7))
    )
    _refuse_shared_cache(n, *((7, 8, 9) if masked else (8, 9)))
    if n.outputs > 3:
        raise Unsupported(f"the scores that {n.type} gives as its fourth result", "leave them out")
    heads = _given_heads(n, bias)
    if past_k is not None:
        heads.k = n.op("Concat", past_k, heads.k, axis=2)
        heads.v = n.op("Concat", past_v, heads.v, axis=2)
    queries, keys = desc_of(heads.q).shape[2], desc_of(heads.k).shape[2]
    y = _attend(n, heads, _mask(n, mask, queries, keys), extra, bool(n.attr("unidirectional", 0)))
    return (y, heads.k, heads.v)[: max(n.outputs, 1)]


def _given_heads(n: Node, bias: Any) -> _Heads:
    """Queries, keys and values separate, keys and values packed, or all packed; the last two may have heads already."""
    count = int(n.attr("num_heads"))
    q: Any
    k: Any
    v: Any
    q, k, v = n.inputs[0], n.input(1), n.input(2)
    if desc_of(q).rank == 5:  # (batch, length, heads, 3, size)
        if bias is not None:
            raise Unsupported(f"a bias beside packed queries, keys and values of {n.type}", "add it before")
        return _Heads(*_unpacked(n, q, 3))
    parts: list[Any] = [None] * 3
    if bias is not None:
        width = desc_of(q).shape[2]
        last = desc_of(bias).shape[0] - 2 * width
        parts = _cut(n, bias, [width, width, last], 0)
    if k is None:  # packed for one step: (batch, 1, q + k + v)
        width = desc_of(q).shape[2] // 3
        q, k, v = _cut(n, q, [width] * 3, 2)
    q = _split_heads(n, q if parts[0] is None else n.op("Add", q, parts[0]), count)
    if v is None and desc_of(k).rank == 5:
        return _Heads(q, *_unpacked(n, k, 2))
    found = []
    for value, part in ((k, parts[1]), (v, parts[2])):
        if desc_of(value).rank == 4:
            found.append(value)
        else:
            found.append(_split_heads(n, value if part is None else n.op("Add", value, part), count))
    return _Heads(q, *found)


def _unpacked(n: Node, value: Any, count: int) -> list[Any]:
    batch, length, heads, _, size = desc_of(value).shape
    cut = _cut(n, value, [1] * count, 3)
    apart = (n.op("Reshape", t, shape=[batch, length, heads, size]) for t in cut)
    return [n.op("Transpose", t, perm=[0, 2, 1, 3]) for t in apart]


# -- rotary embeddings -------------------------------------------------------------------------------------


@plugin(onnx="RotaryEmbedding", domain=DOMAIN)
def _rotary_embedding(n: Node) -> Results:
    x: Any
    positions: Any
    x, positions, cos, sin = n.inputs[:4]
    assert cos is not None
    x = _heads_to_turn(n, x, cos)
    batch, _, length, _ = desc_of(x).shape
    if n.desc(1).shape == (1,) and (batch, length) != (1, 1):  # the position of the first token
        steps = n.builder.constant(np.arange(length, dtype=np.int64).reshape(1, length))
        positions = n.op("Add", n.op("Reshape", positions, shape=[1, 1]), steps)
    elif n.desc(1).rank == 1:
        positions = n.op("Reshape", positions, shape=[1, 1])
    return _scaled_heads(n, rotated(n, x, positions, cos, sin, bool(n.attr("interleaved", 0))))


def _heads_to_turn(n: Node, x: Any, cos: Any) -> Any:
    """x as (batch, heads, length, size)."""
    if n.attr("is_packed_batching", 0):
        raise Unsupported("rotary embeddings of packed batches", "give batches of one length")
    if n.desc().rank != 3:
        return x
    count = int(n.attr("num_heads", 0) or 0) or n.desc().shape[2] // (2 * desc_of(cos).shape[1])
    return _split_heads(n, x, count)


def _scaled_heads(n: Node, y: Any) -> Any:
    """Turned heads times the attribute `scale`, in the form of the input."""
    scale = float(n.attr("scale", 1.0) or 1.0)
    y = y if scale == 1 else n.op("Mul", y, scale)
    return _joined_heads(n, y) if n.desc().rank == 3 else y


@plugin(onnx="MRotaryEmbedding", domain=DOMAIN)
def _multimodal_rotary_embedding(n: Node) -> Results:
    """Each angle is that of the token's time, row or column (positions: 3, batch, length)."""
    x: Any
    cos: Any
    x, positions, cos, sin = n.inputs[:4]
    sections = [int(v) for v in n.attr("mrope_section")]
    half = desc_of(cos).shape[1]
    if len(sections) != 3 or sum(sections) != half:
        raise Unsupported(f"sections {sections} of {half} angles", "give three sizes that add up to them")
    stream = np.zeros(half, np.int64)  # which of the three positions an angle has
    if n.attr("mrope_layout", 0):
        for k in (1, 2):
            stream[k : sections[k] * 3 : 3] = k
    else:
        stream = np.repeat(np.arange(3), sections)

    def mixed(table: Any) -> Any:
        rows = standard(n, "Gather", table, positions, axis=0)  # (3, batch, length, half)
        parts = [n.op("Gather", rows, np.asarray(k), axis=0) for k in range(3)]
        found = parts[0]
        for k in (1, 2):
            found = n.op("Select", n.builder.constant(stream == k), parts[k], found)
        return found

    heads = _heads_to_turn(n, x, cos)
    return _scaled_heads(n, _turned(n, heads, mixed(cos), mixed(sin), bool(n.attr("interleaved", 0))))


def rotated(n: Node, x: Any, positions: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Rotate heads (batch, heads, length, size) by the angles of their positions (batch or 1, length)."""
    c, s = (standard(n, "Gather", table, positions, axis=0) for table in (cos, sin))
    return _turned(n, x, c, s, interleaved)


def _turned(n: Node, x: Any, cos: Any, sin: Any, interleaved: bool) -> Any:
    """Rotate heads (batch, heads, length, size) by angles (batch or 1, length, half of the turned columns)."""
    batch, heads, length, size = desc_of(x).shape
    rows, _, half = desc_of(cos).shape
    turned, rest = (x, None) if 2 * half == size else _cut(n, x, [2 * half, size - 2 * half], 3)
    c, s = (n.op("Reshape", table, shape=[rows, 1, length, half]) for table in (cos, sin))
    if interleaved:
        pairs = n.op("Reshape", turned, shape=[batch, heads, length, half, 2])
        a, b = (n.op("Gather", pairs, np.asarray(i), axis=4) for i in range(2))
    else:
        a, b = _cut(n, turned, [half, half], 3)
    real = n.op("Sub", n.op("Mul", a, c), n.op("Mul", b, s))
    imaginary = n.op("Add", n.op("Mul", a, s), n.op("Mul", b, c))
    if interleaved:
        apart = [n.op("Reshape", t, shape=[batch, heads, length, half, 1]) for t in (real, imaginary)]
        y = n.op("Reshape", n.op("Concat", *apart, axis=4), shape=[batch, heads, length, 2 * half])
    else:
        y = n.op("Concat", real, imaginary, axis=3)
    return y if rest is None else n.op("Concat", y, rest, axis=3)


# -- GroupQueryAttention -----------------------------------------------------------------------------------


@plugin(onnx="SparseAttention", domain=DOMAIN)
def _sparse_attention(n: Node) -> Results:
    """GroupQueryAttention in which each block of queries sees some blocks of keys only, in layouts of heads in turn."""
    block, count = int(n.attr("sparse_block_size")), int(n.attr("num_heads"))
    rows, columns = (n.const(i, what) for i, what in ((5, "block_row_indices"), (6, "block_col_indices")))
    layouts, blocks = rows.shape[0], rows.shape[1] - 1
    kept = np.zeros((layouts, blocks, blocks), bool)
    for layout in range(layouts):
        for row in range(blocks):
            kept[layout, row, columns[layout, rows[layout, row] : rows[layout, row + 1]]] = True
    length, total = n.desc().shape[1], int(n.const(7, "total_sequence_length").reshape(-1)[0])
    lengths = n.op("Sub", n.inputs[8], 1)
    inputs = [*n.inputs[:5], lengths, n.inputs[7], n.input(9), n.input(10)]
    grouped = dataclasses.replace(n, inputs=inputs)
    start = _first_position(grouped, length, total)
    batch = desc_of(start).shape[0]
    own = n.op("Add", start, n.builder.constant(np.arange(length, dtype=np.int64).reshape(1, length)))
    seen = np.repeat(np.where(kept, np.float32(0), np.float32(-np.inf)), block, axis=2)[:, :, :total]
    by_row = n.builder.constant(np.ascontiguousarray(seen.transpose(1, 0, 2)))  # (blocks, layouts, total)
    picked = standard(n, "Gather", by_row, n.op("FloorDiv", own, block), axis=0)
    bias = n.op("Transpose", picked, perm=[0, 2, 1, 3])  # (batch, layouts, length, total)
    order = np.arange(count) % layouts
    bias = n.op("Cast", n.op("Gather", bias, order, axis=1), to=n.desc().dtype)
    bias = n.op("Reshape", bias, shape=[batch, count, length, total])
    return _group_query_attention(dataclasses.replace(grouped, inputs=[*inputs, None, bias]))


@plugin(onnx="GroupQueryAttention", domain=DOMAIN)
def _group_query_attention(n: Node) -> Results:
    """Causal attention whose keys and values are shared by several heads, with a cache that receives the new ones."""
    _refuse_group_options(n)
    count, groups = int(n.attr("num_heads")), int(n.attr("kv_num_heads"))
    q, k, v = _grouped_heads(n, count, groups)
    length = desc_of(q).shape[2]
    total = int(n.const(6, "total_sequence_length").reshape(-1)[0])
    start = _first_position(n, length, total)
    if n.attr("do_rotary", 0):
        q, k = _rotated_pair(n, q, k, start, length)
    past_k, past_v = n.input(3), n.input(4)
    k, v = (_placed(n, old, new, start, total) for old, new in ((past_k, k), (past_v, v)))
    y = _attend_in_groups(n, q, k, v, start, total)
    return (_joined_heads(n, y), k, v)[: max(n.outputs, 1)]


def _refuse_group_options(n: Node) -> None:
    refused = {
        "a quantised cache": str(n.attr("k_quant_type", "NONE")) != "NONE" or n.input(12) is not None,
        "a cache of the window's size": bool(n.attr("sliding_window_cache", 0)),
        "scores as a result": n.outputs > 3 or bool(n.attr("qk_output", 0)),
        "attention in both directions": not n.attr("causal", 1),
        "a smooth softmax without a head_sink": n.attr("smooth_softmax", -1) == 1 and n.input(11) is None,
    }
    for what, asked in refused.items():
        if asked:
            raise Unsupported(f"GroupQueryAttention with {what}", "export the model without it")


def _grouped_heads(n: Node, count: int, groups: int) -> tuple[Any, Any, Any]:
    q, k, v = n.inputs[0], n.input(1), n.input(2)
    if k is None:
        size = n.desc().shape[2] // (count + 2 * groups)
        q, k, v = _cut(n, q, [count * size, groups * size, groups * size], 2)
    q, k, v = _split_heads(n, q, count), _split_heads(n, k, groups), _split_heads(n, v, groups)
    if n.input(14) is not None:
        epsilon = float(n.attr("qk_norm_epsilon", 1e-6))
        q, k = (
            n.op("RmsNorm", x, w, axes=[3], epsilon=epsilon)
            for x, w in ((q, n.inputs[14]), (k, n.inputs[15]))
        )
    return q, k, v


def _first_position(n: Node, length: int, total: int) -> Any:
    """The position of the first new token of each sequence (batch, 1); a prompt starts at 0."""
    batch = n.desc().shape[0]
    if length == total:
        return n.builder.constant(np.zeros((batch, 1), np.int64))
    last = n.op("Cast", n.op("Reshape", n.inputs[5], shape=[batch, 1]), to="int64")
    return n.op("Add", last, 1 - length)


def _rotated_pair(n: Node, q: Any, k: Any, start: Any, length: int) -> tuple[Any, Any]:
    steps = np.arange(length, dtype=np.int64).reshape(1, length)
    positions = n.input(9)
    if positions is None:
        positions = n.op("Add", start, n.builder.constant(steps))
    cos, sin = n.input(7), n.input(8)
    if cos is None or sin is None:
        raise Unsupported(
            "GroupQueryAttention with do_rotary lacks its tables", "give cos_cache and sin_cache"
        )
    interleaved = bool(n.attr("rotary_interleaved", 0))
    return rotated(n, q, positions, cos, sin, interleaved), rotated(n, k, positions, cos, sin, interleaved)


def _placed(n: Node, past: Any, new: Any, start: Any, total: int) -> Any:
    """The cache with new rows from `start` on; as long as the past one, or as all tokens."""
    batch, heads, length, size = desc_of(new).shape
    held = 0 if past is None else desc_of(past).shape[2]
    rows = max(held, total)
    if not held and rows == length:
        return new
    known = constant_of(start)
    if (
        known is not None
        and (known == known.reshape(-1)[0]).all()
        and int(known.reshape(-1)[0]) + length == rows
    ):
        first = int(known.reshape(-1)[0])
        return new if not first else n.op("Concat", _rows(n, past, 0, first), new, axis=2)
    old = past
    if rows > held:
        pad = [0, 0, rows - held, 0]
        old = n.op("Pad", past, low=[0] * 4, high=pad)
    position = n.builder.constant(np.arange(rows, dtype=np.int64).reshape(1, rows))
    offset = n.op("Sub", position, start)  # (batch, rows)
    inside = n.op("And", n.op("GreaterEqual", offset, 0), n.op("Less", offset, length))
    picked = n.op("Maximum", n.op("Minimum", offset, length - 1), 0)
    index = n.op(
        "BroadcastTo", n.op("Reshape", picked, shape=[batch, 1, rows, 1]), shape=[batch, heads, rows, size]
    )
    moved = n.op("GatherElements", new, index, axis=2)
    return n.op("Select", n.op("Reshape", inside, shape=[batch, 1, rows, 1]), moved, old)


def _rows(n: Node, value: Any, first: int, end: int) -> Any:
    batch, heads, _, size = desc_of(value).shape
    return n.op("Slice", value, starts=[0, 0, first, 0], ends=[batch, heads, end, size])


def _attend_in_groups(n: Node, q: Any, k: Any, v: Any, start: Any, total: int) -> Any:
    """Heads that share keys become rows of one head: (batch, groups, heads of a group * length, size)."""
    batch, count, length, size = desc_of(q).shape
    groups, rows = desc_of(k).shape[1:3]
    if rows > total:
        k, v = (_rows(n, x, 0, total) for x in (k, v))
    shared = count // groups
    stacked = n.op("Reshape", q, shape=[batch, groups, shared * length, size])
    scale, sink = _scale(n, size), n.input(11)
    cap = float(n.attr("softcap", 0.0) or 0.0)
    mask = _causal_mask(n, start, length, total)
    kept = n.op("Reshape", mask, shape=[batch, 1, 1, length, total])
    extra = n.input(10)
    if extra is None and sink is None and not cap:
        every = n.op("BroadcastTo", kept, shape=[batch, 1, shared, length, total])
        every = n.op("Reshape", every, shape=[batch, 1, shared * length, total])
        y, _ = n.builder.ops("Attention", [stacked, k, v, every], scale=scale)
        return n.op("Reshape", y, shape=[batch, count, length, size])
    scores = n.op("Mul", n.op("MatMul", stacked, k, transpose_b=True), scale)
    if cap:
        scores = n.op("Mul", n.op("Tanh", n.op("Mul", scores, 1 / cap)), cap)
    scores = n.op("Reshape", scores, shape=[batch, groups, shared, length, total])
    if extra is not None:
        b, h = desc_of(extra).shape[:2]
        per_head = [b, groups, shared, length, total] if h > 1 else [b, 1, 1, length, total]
        scores = n.op("Add", scores, n.op("Reshape", extra, shape=per_head))
    scores = n.op("Select", kept, scores, -math.inf)
    weights = _softmax_with_sink(n, scores, sink, groups, shared)
    weights = n.op("Reshape", weights, shape=[batch, groups, shared * length, total])
    return n.op("Reshape", n.op("MatMul", weights, v), shape=[batch, count, length, size])


def _causal_mask(n: Node, start: Any, length: int, total: int) -> Any:
    """The keys that each query sees, (batch, length, total): from the start of the window to its own position."""
    steps = np.arange(length, dtype=np.int64).reshape(1, length)
    batch = desc_of(start).shape[0]
    own = n.op("Reshape", n.op("Add", start, n.builder.constant(steps)), shape=[batch, length, 1])
    position = n.builder.constant(np.arange(total, dtype=np.int64).reshape(1, 1, total))
    kept = n.op("LessEqual", position, own)
    window = int(n.attr("local_window_size", -1))
    if window > 0:
        kept = n.op("And", kept, n.op("Greater", position, n.op("Sub", own, window)))
    return kept


def _softmax_with_sink(n: Node, scores: Any, sink: Any, groups: int, shared: int) -> Any:
    """softmax along the last axis; a sink is one more score per head, whose weight is discarded."""
    axis = desc_of(scores).rank - 1
    if sink is None:
        return n.op("Softmax", scores, axes=[axis])
    extra = n.op("Reshape", sink, shape=[1, groups, shared, 1, 1])
    top = n.op("Maximum", n.op("ReduceMax", scores, axes=[axis], keepdims=True), extra)
    powers = n.op("Exp", n.op("Sub", scores, top))
    total = n.op(
        "Add", n.op("ReduceSum", powers, axes=[axis], keepdims=True), n.op("Exp", n.op("Sub", extra, top))
    )
    return n.op("Div", powers, total)
