"""Attention and its gradient are found in graphs that spell them out, and nothing else is taken for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge.ir.types import TensorDesc
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.nn.attention import is_fused
from ge.options import CompileOptions, PrecisionMode
from ge.passes import STAGES, fusion_names
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.fusion.fuse_attention import FuseAttention
from ge.passes.rewrite import attrs_of
from ge.target import host
from ge.target import named as named_target
from tests.passes.pass_support import transformed, types
from tests.support.small_graphs import compiled, kinds

BATCH, HEADS, QUERIES, KEYS, DEPTH = 2, 3, 20, 24, 8
_SAMPLE = TensorDesc((1, 1, 32, 16), "float32")
_NARROW = TensorDesc((1, 1, 32, 16), "bfloat16")
FUSES_BF16 = is_fused(_NARROW, _NARROW, _NARROW, None, host(), gradient=True)
pytestmark = pytest.mark.skipif(
    not is_fused(_SAMPLE, _SAMPLE, _SAMPLE, None, host(), gradient=True),
    reason="this machine has no task for attention",
)

Scores = Callable[[GraphBuilder, ir.Value], ir.Value]


def _turned(b: GraphBuilder, value: ir.Value) -> ir.Value:
    rank = desc_of(value).rank
    return b.op("Transpose", value, perm=[*range(rank - 2), rank - 1, rank - 2])


def _heads(b: GraphBuilder, name: str, length: int, dtype: str = "float32", depth: int = DEPTH) -> ir.Value:
    """Heads of a token side by side, as products with weights leave them."""
    x = b.input(name, (BATCH, length, HEADS, depth), dtype)
    return b.op("Transpose", x, perm=[0, 2, 1, 3])


def _operands(b: GraphBuilder, queries: int = QUERIES, dtype: str = "float32") -> list[ir.Value]:
    return [_heads(b, name, n, dtype) for name, n in (("q", queries), ("k", KEYS), ("v", KEYS))]


def _forward(b: GraphBuilder, operands: list[ir.Value], scores: Scores) -> tuple[ir.Value, ir.Value]:
    """The result and the weights."""
    q, k, v = operands
    weights = b.op("Softmax", scores(b, b.op("MatMul", q, _turned(b, k))), axes=[-1])
    return b.op("MatMul", weights, v), weights


def _backward(
    b: GraphBuilder, operands: list[ir.Value], weights: ir.Value, slopes: Scores, dy: ir.Value
) -> list[ir.Value]:
    """As TensorFlow's gradients are written."""
    q, k, v = operands
    through = b.op("MatMul", dy, v, transpose_b=True)
    total = b.op("ReduceSum", b.op("Mul", through, weights), axes=[-1], keepdims=True)
    inner = slopes(b, b.op("Mul", b.op("Sub", through, total), weights))
    dv = b.op("MatMul", weights, dy, transpose_a=True)
    return [b.op("MatMul", inner, k), b.op("MatMul", inner, q, transpose_a=True), dv]


def _scaled(b: GraphBuilder, scores: ir.Value) -> ir.Value:
    return b.op("Mul", scores, 0.25)


def _trained(b: GraphBuilder, scores: Scores = _scaled, slopes: Scores = _scaled) -> list[ir.Value]:
    operands = _operands(b)
    y, weights = _forward(b, operands, scores)
    return [y, *_backward(b, operands, weights, slopes, _heads(b, "dy", QUERIES))]


# -- what is found -----------------------------------------------------------------------------------------------


def _added(shape: tuple[int, ...], first: bool = False) -> Scores:
    def apply(b: GraphBuilder, scores: ir.Value) -> ir.Value:
        mask = b.input("mask", shape, "float32")
        return b.op("Add", mask, scores) if first else b.op("Add", scores, mask)

    return apply


def _replaced(shape: tuple[int, ...], fill: float, hides: bool = False) -> Scores:
    def apply(b: GraphBuilder, scores: ir.Value) -> ir.Value:
        mask = b.input("mask", shape, "bool")
        return b.op("Select", mask, fill, scores) if hides else b.op("Select", mask, scores, fill)

    return apply


FORMS: dict[str, Scores] = {
    "plain": lambda b, s: s,
    "multiplied": _scaled,
    "number first": lambda b, s: b.op("Mul", np.float32(0.25), s),
    "divided": lambda b, s: b.op("Div", s, 4.0),
    "twice": lambda b, s: b.op("Div", b.op("Mul", s, 0.5), 2.0),
    "added": lambda b, s: _added((BATCH, 1, 1, KEYS))(b, _scaled(b, s)),
    "added first": lambda b, s: _added((QUERIES, KEYS), True)(b, _scaled(b, s)),
    "added row": lambda b, s: _added((KEYS,))(b, _scaled(b, s)),
    "added to each": lambda b, s: _added((BATCH, HEADS, QUERIES, KEYS))(b, s),
    "kept": lambda b, s: _replaced((BATCH, 1, QUERIES, KEYS), -1e9)(b, _scaled(b, s)),
    "kept or little": lambda b, s: _replaced((BATCH, 1, QUERIES, KEYS), -1.5)(b, _scaled(b, s)),
    "hidden": lambda b, s: _replaced((1, 1, 1, KEYS), -3e38, hides=True)(b, _scaled(b, s)),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_scores(name: str) -> None:
    found = transformed(lambda b: _forward(b, _operands(b), FORMS[name])[0], FuseAttention())
    assert [t for t in types(found) if t not in ("Transpose", "Reshape", "Not")] == ["Attention"]


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_scores_run(name: str) -> None:
    model = compiled(lambda b: _forward(b, _operands(b), FORMS[name])[0])
    assert "attention" in kinds(model) and "matmul" not in kinds(model)


def _keys_first(b: GraphBuilder) -> ir.Value:
    """As an Einsum that names keys before queries and values before weights."""
    q, k, v = _operands(b)
    scores = _turned(b, b.op("MatMul", k, _turned(b, q)))
    weights = b.op("Softmax", _scaled(b, scores), axes=[3])
    return b.op("MatMul", _turned(b, v), weights, transpose_b=True)


def test_operands_in_the_other_order() -> None:
    assert "Attention" in types(transformed(_keys_first, FuseAttention()))


def test_one_head_without_leading_axes() -> None:
    def build(b: GraphBuilder) -> ir.Value:
        operands = [b.input(n, (length, 8), "float32") for n, length in (("q", 20), ("k", 24), ("v", 24))]
        return _forward(b, operands, _scaled)[0]

    assert [t for t in types(transformed(build, FuseAttention())) if t != "Transpose"] == ["Attention"]


def test_queries_and_masks_that_are_constants() -> None:
    """Learned queries that gather from a sequence."""
    rng = np.random.default_rng(4)
    queries = rng.standard_normal((BATCH, HEADS, QUERIES, DEPTH)).astype(np.float32)
    mask = rng.standard_normal((QUERIES, KEYS)).astype(np.float32)

    def build(b: GraphBuilder) -> ir.Value:
        operands = [b.constant(queries), _heads(b, "k", KEYS), _heads(b, "v", KEYS)]
        return _forward(b, operands, lambda b, s: b.op("Add", _scaled(b, s), mask))[0]

    assert "attention" in kinds(compiled(build))


def test_casts_on_the_way_are_left_out() -> None:
    def build(b: GraphBuilder) -> ir.Value:
        q, k, v = _operands(b, dtype="bfloat16")
        scores = b.op("Cast", b.op("MatMul", q, k, transpose_b=True), to="float32")
        weights = b.op("Cast", b.op("Softmax", _scaled(b, scores), axes=[-1]), to="bfloat16")
        return b.op("MatMul", weights, v)

    options = CompileOptions(target=named_target("avx512_bf16"))
    found = transformed(build, FuseAttention(), tolerance=3e-2, options=options)
    assert [t for t in types(found) if t != "Transpose"] == ["Attention"]


CAUSAL = np.tril(np.ones((QUERIES, QUERIES), bool))
TRIANGLES: dict[str, tuple[Scores, bool]] = {
    "added": (lambda b, s: b.op("Add", s, np.where(CAUSAL, 0, -1e9).astype(np.float32)), True),
    "kept": (lambda b, s: b.op("Select", b.constant(CAUSAL), s, -1e10), True),
    "hidden": (lambda b, s: b.op("Select", b.constant(~CAUSAL), -math.inf, s), True),
    "too little": (lambda b, s: b.op("Select", b.constant(CAUSAL), s, -100.0), False),
    "one more": (
        lambda b, s: b.op("Select", b.constant(np.tril(CAUSAL, -1) | CAUSAL[:, :1]), s, -1e10),
        False,
    ),
    "above": (lambda b, s: b.op("Add", s, np.where(CAUSAL, 0.5, -1e9).astype(np.float32)), False),
}


@pytest.mark.parametrize("name", TRIANGLES)
def test_triangles_are_the_operators_own(name: str) -> None:
    form, wanted = TRIANGLES[name]

    def build(b: GraphBuilder) -> ir.Value:
        operands = [_heads(b, n, QUERIES) for n in "qkv"]
        return _forward(b, operands, lambda b, s: form(b, _scaled(b, s)))[0]

    node = next(n for n in transformed(build, FuseAttention()) if n.op_type == "Attention")
    assert attrs_of(node)["causal"] is wanted and (len(node.inputs) > 3) is not wanted


# -- gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["added", "kept", "kept or little", "hidden", "plain", "divided"])
def test_gradients(way: str) -> None:
    """dq, dk and dv come from one node, also of queries whose keys are all hidden."""
    kept: list[ir.Value] = []

    def scores(b: GraphBuilder, s: ir.Value) -> ir.Value:
        if way in ("kept", "kept or little", "hidden"):
            kept.append(b.input("mask", (BATCH, 1, QUERIES, KEYS), "bool"))
            kept.append(b.op("And", kept[0], b.constant(np.arange(QUERIES)[:, None] > 2)))
            fill = {"kept": -1e9, "kept or little": -1.5, "hidden": -3e38}[way]
            scaled = _scaled(b, s)
            return b.op("Select", kept[1], *((fill, scaled) if way == "hidden" else (scaled, fill)))
        return FORMS[way](b, s)

    def slopes(b: GraphBuilder, s: ir.Value) -> ir.Value:
        if kept:
            s = b.op("Select", kept[1], *((0.0, s) if way == "hidden" else (s, 0.0)))
        return s if way == "plain" else b.op("Div", s, 4.0) if way == "divided" else _scaled(b, s)

    def build(b: GraphBuilder) -> list[ir.Value]:
        kept.clear()
        return _trained(b, scores, slopes)

    found = transformed(build, FuseAttention(), tolerance=4e-5)
    assert "Softmax" not in types(found) and types(found).count("AttentionGrad") == 1
    model = compiled(build, tolerance=4e-5)
    assert kinds(model).count("attention_grad") == 1 and "matmul" not in kinds(model)


def test_gradients_through_einsums() -> None:
    """As Keras' layer has them: values turned anew for every product, dv as the transpose of dy' p."""

    def build(b: GraphBuilder) -> list[ir.Value]:
        raw = {n: b.input(n, (BATCH, length, HEADS, DEPTH), "float32") for n, length in
               (("q", QUERIES), ("k", KEYS), ("v", KEYS), ("dy", QUERIES))}  # fmt: skip
        rows = {n: b.op("Transpose", x, perm=[0, 2, 1, 3]) for n, x in raw.items()}
        columns = {n: b.op("Transpose", x, perm=[0, 2, 3, 1]) for n, x in raw.items()}
        weights = b.op("Softmax", _scaled(b, b.op("MatMul", rows["q"], columns["k"])), axes=[-1])
        y = b.op("MatMul", weights, rows["v"])
        through = b.op("MatMul", rows["dy"], columns["v"])
        total = b.op("ReduceSum", b.op("Mul", through, weights), axes=[-1], keepdims=True)
        slopes = _scaled(b, b.op("Mul", b.op("Sub", through, total), weights))
        dq = b.op("MatMul", slopes, rows["k"])
        dk = b.op("MatMul", _turned(b, slopes), rows["q"])
        return [y, dq, dk, b.op("MatMul", columns["dy"], weights)]

    found = transformed(build, FuseAttention(), tolerance=4e-5)
    assert {t for t in types(found) if t != "Transpose"} == {"Attention", "AttentionGrad"}


# -- what is not -------------------------------------------------------------------------------------------------


def _seen_weights(b: GraphBuilder) -> list[ir.Value]:
    return list(_forward(b, _operands(b), _scaled))


def _seen_scores(b: GraphBuilder) -> list[ir.Value]:
    seen: list[ir.Value] = []

    def scores(b: GraphBuilder, s: ir.Value) -> ir.Value:
        seen.append(s)
        return _scaled(b, s)

    return [_forward(b, _operands(b), scores)[0], b.op("Relu", seen[0])]


def _other_axis(b: GraphBuilder) -> ir.Value:
    q, k, v = _operands(b)
    return b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k, transpose_b=True), axes=[2]), v)


def _dropped(b: GraphBuilder) -> ir.Value:
    q, k, v = _operands(b)
    weights = b.op("Softmax", b.op("MatMul", q, k, transpose_b=True), axes=[-1])
    return b.op("MatMul", b.op("Mul", weights, b.input("kept", (BATCH, HEADS, QUERIES, KEYS), "float32")), v)


def _shared_keys(b: GraphBuilder) -> ir.Value:
    q = _heads(b, "q", QUERIES)
    k, v = (b.input(n, (BATCH, 1, KEYS, DEPTH), "float32") for n in "kv")
    return _forward(b, [q, k, v], _scaled)[0]


def _scaled_mask(b: GraphBuilder) -> ir.Value:
    return _forward(b, _operands(b), lambda b, s: _scaled(b, _added((QUERIES, KEYS))(b, s)))[0]


def _scale_of_each(b: GraphBuilder) -> ir.Value:
    scales = np.linspace(0.1, 1, QUERIES, dtype=np.float32)[:, None]
    return _forward(b, _operands(b), lambda b, s: b.op("Mul", s, scales))[0]


def _two_numbers(b: GraphBuilder) -> ir.Value:
    fills = np.linspace(-9, -8, KEYS, dtype=np.float32)
    mask = b.input("mask", (QUERIES, KEYS), "bool")
    return _forward(b, _operands(b), lambda b, s: b.op("Select", mask, s, fills))[0]


def _few_queries(b: GraphBuilder) -> ir.Value:
    return _forward(b, _operands(b, queries=3), _scaled)[0]


def _doubles(b: GraphBuilder) -> ir.Value:
    return _forward(b, _operands(b, dtype="float64"), _scaled)[0]


def _other_scale(b: GraphBuilder) -> list[ir.Value]:
    return _trained(b, slopes=lambda b, s: b.op("Mul", s, 0.26))


def _unmasked_slopes(b: GraphBuilder) -> list[ir.Value]:
    return _trained(b, FORMS["kept"])


def _other_mask(b: GraphBuilder) -> list[ir.Value]:
    other: list[ir.Value] = []

    def slopes(b: GraphBuilder, s: ir.Value) -> ir.Value:
        other.append(b.input("other", (BATCH, 1, QUERIES, KEYS), "bool"))
        return _scaled(b, b.op("Select", other[0], s, 0.0))

    return _trained(b, FORMS["kept"], slopes)


def _learning_mask(b: GraphBuilder) -> list[ir.Value]:
    made: list[ir.Value] = []

    def slopes(b: GraphBuilder, s: ir.Value) -> ir.Value:
        made.append(s)
        return s

    return [*_trained(b, FORMS["added to each"], slopes), b.op("ReduceSum", made[0], axes=[0, 1])]


def _without_dk(b: GraphBuilder) -> list[ir.Value]:
    y, dq, _, dv = _trained(b)
    return [y, dq, dv]


def _gradient_of_others(index: int) -> Callable[[GraphBuilder], list[ir.Value]]:
    """q, k or v is another one in the gradient."""

    def build(b: GraphBuilder) -> list[ir.Value]:
        operands = _operands(b)
        y, weights = _forward(b, operands, _scaled)
        changed = list(operands)
        changed[index] = b.op("Add", operands[index], 1.0)
        return [y, *_backward(b, changed, weights, _scaled, _heads(b, "dy", QUERIES))]

    return build


NEARLY: dict[str, Callable[[GraphBuilder], Any]] = {
    "weights are an output": _seen_weights,
    "scores have another reader": _seen_scores,
    "softmax over queries": _other_axis,
    "dropped weights": _dropped,
    "keys for all heads": _shared_keys,
    "mask is scaled too": _scaled_mask,
    "several scales": _scale_of_each,
    "several numbers for hidden keys": _two_numbers,
    "few queries": _few_queries,
    "doubles": _doubles,
    "another scale of slopes": _other_scale,
    "slopes without the mask": _unmasked_slopes,
    "slopes with another mask": _other_mask,
    "mask learns": _learning_mask,
    "no gradient of keys": _without_dk,
    "gradient with other queries": _gradient_of_others(0),
    "gradient with other keys": _gradient_of_others(1),
    "gradient with other values": _gradient_of_others(2),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_only_nearly_attention_stays(name: str) -> None:
    assert "Softmax" in types(transformed(NEARLY[name], DeadCode(), FuseAttention()))


def test_precision_is_asked_first() -> None:
    """Products in float16, or with a mode of their own, stay what they are."""

    def build(b: GraphBuilder) -> ir.Value:
        return _forward(b, _operands(b), _scaled)[0]

    forced = CompileOptions(precision_mode=PrecisionMode.FORCE_FP16)
    assert "Softmax" in types(transformed(build, FuseAttention(), options=forced))
    named = CompileOptions(
        precision_mode=PrecisionMode.MIX_BF16, op_precision={"MatMul": "must_keep_origin_dtype"}
    )
    assert "Softmax" in types(transformed(build, FuseAttention(), options=named))


@pytest.mark.skipif(not FUSES_BF16, reason="this machine has no task for attention in bfloat16")
@pytest.mark.parametrize("mask", ["bool", "float32"])
def test_masks_keep_their_type_in_bf16(mask: str) -> None:
    def build(b: GraphBuilder) -> list[ir.Value]:
        if mask == "float32":
            return _trained(b, FORMS["added"])
        kept: list[ir.Value] = []

        def scores(b: GraphBuilder, s: ir.Value) -> ir.Value:
            kept.append(b.input("mask", (BATCH, 1, QUERIES, KEYS), "bool"))
            return b.op("Select", kept[0], _scaled(b, s), -1e9)

        return _trained(b, scores, lambda b, s: _scaled(b, b.op("Select", kept[0], s, 0.0)))

    model = compiled(build, CompileOptions(precision_mode=PrecisionMode.MIX_BF16), tolerance=6e-2)
    tasks = [t for t in model.plan.tasks if t.kind.startswith("attention")]
    assert [t.inputs[0].dtype for t in tasks] == ["bfloat16"] * 2
    assert [t.inputs[-1].dtype for t in tasks] == [mask] * 2


def test_it_can_be_switched_off_by_its_name() -> None:
    assert "fuse_attention" in fusion_names()
    stage = next(s for s in STAGES if s.name == "attention")
    options = CompileOptions(disabled_passes=frozenset({"fuse_attention"}))
    found = transformed(lambda b: _forward(b, _operands(b), _scaled)[0], *stage.passes, options=options)
    assert "Softmax" in types(found)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 3),
    queries=st.sampled_from([16, 17, 40, 65]),
    keys=st.sampled_from([2, 5, 40, 65]),
    depth=st.sampled_from([4, 16, 34]),
    width=st.sampled_from([2, 16, 34]),
    form=st.sampled_from(["plain", "multiplied", "divided"]),
    mask=st.sampled_from([None, "keys", "all", "kept"]),
    bf16=st.booleans(),
)
def test_shapes(
    heads: int, queries: int, keys: int, depth: int, width: int, form: str, mask: str | None, bf16: bool
) -> None:
    """Values and gradients of random shapes are those of the graph as it was written."""

    def build(b: GraphBuilder) -> list[ir.Value]:
        shapes = {"q": (queries, depth), "k": (keys, depth), "v": (keys, width), "dy": (queries, width)}
        q, k, v, dy = (b.input(n, (2, heads, *s), "float32") for n, s in shapes.items())
        kept = b.input("mask", (2, 1, queries, keys), "bool") if mask == "kept" else None

        def scores(b: GraphBuilder, s: ir.Value) -> ir.Value:
            s = FORMS[form](b, s)
            if kept is not None:
                return b.op("Select", kept, s, -1e9)
            shape = {"keys": (2, 1, 1, keys), "all": (queries, keys), None: ()}[mask]
            return b.op("Add", s, b.input("mask", shape, "float32")) if shape else s

        def slopes(b: GraphBuilder, s: ir.Value) -> ir.Value:
            return FORMS[form](b, s if kept is None else b.op("Select", kept, s, 0.0))

        y, weights = _forward(b, [q, k, v], scores)
        return [y, *_backward(b, [q, k, v], weights, slopes, dy)]

    mode = PrecisionMode.MIX_BF16 if bf16 else PrecisionMode.KEEP
    model = compiled(build, CompileOptions(precision_mode=mode), tolerance=8e-2 if bf16 else 1e-4)
    fused = int(FUSES_BF16 or not bf16)
    assert kinds(model).count("attention") == kinds(model).count("attention_grad") == fused
