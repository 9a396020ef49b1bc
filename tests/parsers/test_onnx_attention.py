"""Attention as ONNX files have it runs as one task, with ONNX Runtime's numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.ir.types import TensorDesc
from ge.ops.nn.attention import is_fused
from ge.target import host

BATCH, HEADS, LENGTH, DEPTH = 2, 3, 20, 8
_SAMPLE = TensorDesc((1, 1, LENGTH, DEPTH), "float32")
pytestmark = pytest.mark.skipif(
    not is_fused(_SAMPLE, _SAMPLE, _SAMPLE, None, host(), gradient=False),
    reason="this machine has no task for attention",
)

Nodes = list[onnx.NodeProto]


def _number(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def _node(type_: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(type_, inputs.split(), [output], **attrs)


def _split(name: str, perm: list[int]) -> Nodes:
    return [
        _node("Reshape", f"{name} heads", f"{name}_r"),
        _node("Transpose", f"{name}_r", f"{name}_t", perm=perm),
    ]


def _around(inner: Nodes) -> Nodes:
    """Heads of a token lie side by side before and after; keys come turned."""
    ends = [
        _node("MatMul", "p v_t", "mixed"),
        _node("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        _node("Reshape", "back tokens", "out"),
    ]
    return [*_split("q", [0, 2, 1, 3]), *_split("k", [0, 2, 3, 1]), *_split("v", [0, 2, 1, 3]), *inner, *ends]


def _divided() -> Nodes:
    return [_node("MatMul", "q_t k_t", "s"), _node("Div", "s four", "d"), _node("Softmax", "d", "p", axis=-1)]


def _both_scaled() -> Nodes:
    """As newer exports of PyTorch have it: the root of the scale on queries and on keys."""
    return [
        _node("Mul", "q_t half", "q_s"),
        _node("Mul", "k_t half", "k_s"),
        _node("MatMul", "q_s k_s", "s"),
        _node("Softmax", "s", "p", axis=3),
    ]


def _added() -> Nodes:
    return [
        _node("MatMul", "q_t k_t", "s"),
        _node("Mul", "s half", "m"),
        _node("Add", "m added", "a"),
        _node("Softmax", "a", "p", axis=-1),
    ]


def _where() -> Nodes:
    """Hidden where true, by the least float."""
    return [
        _node("MatMul", "q_t k_t", "s"),
        _node("Div", "s four", "d"),
        _node("Where", "hidden least d", "w"),
        _node("Softmax", "w", "p", axis=-1),
    ]


def _written_out() -> Nodes:
    """A softmax in simpler operators."""
    return [
        _node("MatMul", "q_t k_t", "s"),
        _node("ReduceMax", "s", "top", axes=[-1]),
        _node("Sub", "s top", "less"),
        _node("Exp", "less", "e"),
        _node("ReduceSum", "e last", "total"),
        _node("Div", "e total", "p"),
    ]


FORMS: dict[str, tuple[Callable[[], Nodes], int]] = {
    "divided": (_divided, 11),
    "both scaled": (_both_scaled, 14),
    "added mask": (_added, 13),
    "hidden keys": (_where, 17),
    "written out": (_written_out, 13),
}


def _model(nodes: Nodes, opset: int) -> onnx.ModelProto:
    width = HEADS * DEPTH
    rng = np.random.default_rng(1)
    hidden = rng.random((BATCH, 1, LENGTH, LENGTH)) < 0.4
    hidden[0, 0, 3] = True  # a query that sees nothing
    constants = [
        _number("heads", np.array([BATCH, LENGTH, HEADS, DEPTH])),
        _number("tokens", np.array([BATCH, LENGTH, width])),
        _number("four", np.float32(4)),
        _number("half", np.float32(0.5)),
        _number("least", np.float32(np.finfo(np.float32).min)),
        _number("last", np.array([-1])),
        _number("added", np.where(hidden[:, :, :1], np.float32(-1e4), np.float32(0))),
        _number("hidden", hidden),
    ]
    used = {name for node in nodes for name in node.input}
    shape = (BATCH, LENGTH, width)
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkv"],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)],
        [c for c in constants if c.name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _feeds() -> list[np.ndarray]:
    rng = np.random.default_rng(2)
    return [rng.standard_normal((BATCH, LENGTH, HEADS * DEPTH)).astype(np.float32) for _ in "qkv"]


def _check(proto: onnx.ModelProto, tolerance: float = 1e-5) -> Any:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = _feeds()
    wanted = session.run(None, dict(zip("qkv", feeds, strict=True)))[0]
    model = ge.compile(proto)
    np.testing.assert_allclose(model.run(feeds)[0], wanted, rtol=tolerance, atol=tolerance)
    return model


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_exports(name: str) -> None:
    make, opset = FORMS[name]
    kinds = [task.kind for task in _check(_model(_around(make()), opset)).plan.tasks]
    assert kinds.count("attention") == 1 and "matmul" not in kinds


def test_the_operator_of_opset_23() -> None:
    """Its definition in simpler operators is recognised, too."""
    call = helper.make_node(
        "Attention", ["q", "k", "v"], ["out"], q_num_heads=HEADS, kv_num_heads=HEADS, is_causal=1
    )
    proto = _model([call], 23)
    model = ge.compile(proto)
    q, k, v = (a.reshape(BATCH, LENGTH, HEADS, DEPTH).swapaxes(1, 2).astype(np.float64) for a in _feeds())
    scores = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), q @ k.swapaxes(2, 3) / DEPTH**0.5, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (powers / powers.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(BATCH, LENGTH, -1)
    np.testing.assert_allclose(model.run(_feeds())[0], wanted, rtol=1e-5, atol=1e-5)
    assert [task.kind for task in model.plan.tasks].count("attention") == 1
