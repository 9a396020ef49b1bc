"""JSON: every node survives the round trip, and hostile text is refused or harmless."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tbe
from tests.tbe.running import run


def everything() -> tuple[list[tbe.Tensor], list[tbe.Tensor]]:
    """A graph with every kind of node."""
    x, i = tbe.placeholder((4, 6), "float32", "x"), tbe.placeholder((3,), "int32", "i")
    y = tbe.transpose(tbe.reshape(tbe.pad(x, (0, 1), (0, 1), 1.5), (8, 4)), (1, 0))
    y = tbe.concat([tbe.slice(y, (0, 7), (1, -1), (4, 8)), y], 1)
    y = tbe.take(y, i, 0) + tbe.cast(tbe.iota((3, 16), 1, "int64"), "float32")
    y = tbe.select(
        y > 2.0, tbe.unary("exp", y * 0.1), tbe.broadcast_to(tbe.constant(-0.0, "float32"), (3, 16))
    )
    y = tbe.compute((3, 16), lambda a, b: tbe.select(b < 4, y[a, b - 1], y[a, (b * 2 + 1) // 3]) * 2.0)
    return [x, i], [y - tbe.reduce("max", y, 1, True), tbe.scan("sum", y, 0, True, True)]


def test_round_trip_keeps_meaning_and_fingerprint() -> None:
    inputs, outputs = everything()
    again_inputs, again_outputs = tbe.from_json(tbe.to_json(inputs, outputs))
    assert tbe.fingerprint(again_inputs, again_outputs) == tbe.fingerprint(inputs, outputs)
    assert again_inputs[0].name == "x"
    data = [np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6), np.array([0, -1, 9], np.int32)]
    a = tbe.evaluate(outputs, dict(zip(inputs, data, strict=True)))
    b = tbe.evaluate(again_outputs, dict(zip(again_inputs, data, strict=True)))
    for p, q in zip(a, b, strict=True):
        np.testing.assert_array_equal(p, q)


def test_special_constants_survive() -> None:
    for value in (float("nan"), float("inf"), -0.0, 1e-45, 0.1):
        c = tbe.constant(value, "float32")
        _, (again,) = tbe.from_json(tbe.to_json([], [c + c]))
        got = again.inputs[0].value
        assert np.float32(got).tobytes() == np.float32(c.value).tobytes()


def document() -> dict:
    return json.loads(tbe.to_json(*everything()))


def change(path: str, value) -> str:
    doc = document()
    *way, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    place = doc
    for step in way:
        place = place[step]
    place[last] = value
    return json.dumps(doc)


def find(kind: str) -> int:
    return next(n for n, node in enumerate(document()["nodes"]) if node["kind"] == kind)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("slice", "starts", [0, 8]),
        ("slice", "starts", [-1, 7]),
        ("slice", "shape", [4, 9]),
        ("slice", "steps", [1, 1]),
        ("slice", "steps", [1, 2**70]),
        ("reshape", "shape", [8, 5]),
        ("reshape", "shape", [-8, -4]),
        ("transpose", "perm", [0, 0]),
        ("transpose", "perm", [0]),
        ("pad", "low", [0, -1]),
        ("pad", "high", [0, 2**60]),
        ("pad", "value", "zz"),
        ("concat", "axis", 2),
        ("concat", "axis", True),
        ("take", "axis", -1),
        ("take", "batch_dims", 1),
        ("take", "inputs", [0, 0]),
        ("iota", "shape", [3, 2**50]),
        ("iota", "dtype", "complex64"),
        ("iota", "axis", 7),
        ("unary", "op", "system"),
        ("unary", "inputs", [10**6]),
        ("binary", "inputs", [0]),
        ("binary", "op", ["add"]),
        ("cast", "dtype", "float32\n"),
        ("constant", "value", 1.5),
        ("constant", "value", "0x1p99999999"),
        ("broadcast", "shape", [2, 2]),
        ("reduce", "axes", [5]),
        ("reduce", "op", "mean"),
        ("reduce", "keepdims", 1),
        ("scan", "axis", 2),
        ("scan", "op", "any"),
        ("placeholder", "shape", [4, 1.5]),
        ("placeholder", "shape", "46"),
        ("placeholder", "name", 5),
        ("compute", "shape", [3]),
        ("compute", "scalars", []),
        ("compute", "scalars", [["var", 9]]),
        ("compute", "scalars", [["load", 0, [0, 0]]]),
        ("compute", "scalars", [["const", "float32", "0x1p0"]]),
        ("compute", "scalars", [["eval", "x", []]]),
    ],
)
def test_hostile_fields_are_refused(kind: str, field: str, value) -> None:
    with pytest.raises(ValueError):
        tbe.from_json(change(f"nodes.{find(kind)}.{field}", value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "[" * 100_000,
        '{"format":1,"inputs":[],"outputs":[],"nodes":[]}',
        '{"format":2,"inputs":[],"outputs":[0],"nodes":[]}',
    ],
)
def test_hostile_documents_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        tbe.from_json(text)


def test_unknown_fields_and_kinds_are_refused() -> None:
    for path, value in (("nodes.0.extra", 1), ("nodes.0.kind", "exec"), ("inputs", [1]), ("outputs", [[0]])):
        with pytest.raises(ValueError):
            tbe.from_json(change(path, value))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_mutated_text_is_refused_or_harmless(data: st.DataObject) -> None:
    """Whatever is accepted either cannot be built or runs without touching anything but its tensors."""
    doc = document()
    for _ in range(data.draw(st.integers(1, 3))):
        node = data.draw(st.sampled_from(doc["nodes"]))
        field = data.draw(st.sampled_from(sorted(node)))
        number = st.integers(-3, 40)
        scalar = st.one_of(number, st.sampled_from(["sum", "float32", "int8", True, None]))
        node[field] = data.draw(st.one_of(scalar, st.lists(number, max_size=3)))
    try:
        inputs, outputs = tbe.from_json(json.dumps(doc))
        if sum(t.size for t in outputs) < 10_000:
            values = {t: np.ones(t.shape, tbe.numpy_dtype(t.dtype)) for t in inputs}
            run(inputs, outputs, values)
    except (ValueError, tbe.Unfusable):
        return


def test_indices_in_a_body_stay_inside() -> None:
    """A body may ask for any element: it gets the nearest one there is."""
    x = tbe.placeholder((5, 7), "float32", "x")
    t = tbe.compute((9, 9), lambda a, b: x[a * 1000 - 3, b * -1000000007 + 4])
    text = tbe.to_json([x], [t])
    inputs, outputs = tbe.from_json(text)
    data = np.arange(35, dtype=np.float32).reshape(5, 7)
    (got,) = run(inputs, outputs, {inputs[0]: data})
    np.testing.assert_array_equal(got, tbe.evaluate([t], {x: data})[0])
    assert copy.copy(text) == tbe.to_json(inputs, outputs)
