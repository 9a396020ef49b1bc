"""ge.Graph, ge.Tensor and the functions of ge.ops: networks written in Python compute what NumPy computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ge
from ge.errors import GeError
from ge.ops.functions import snake_case

A = np.random.default_rng(0).standard_normal((3, 4), np.float32)
B = np.random.default_rng(1).standard_normal((3, 4), np.float32) + 2
INTS = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]], np.int32)


def compute(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """A function of tensors, compiled and run on arrays."""
    g = ge.Graph("test")
    g.output(function(*[g.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]), "y")
    return np.asarray(ge.compile(g)(*arrays))


OPERATORS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "add": (lambda a, b: a + b, (A, B)),
    "number on the right": (lambda a: a * 2.5 - 1, (A,)),
    "number on the left": (lambda a: 1 - 2 / (a + 10), (A,)),
    "array on the left": (lambda a: B - a, (A,)),
    "array on the right": (lambda a: a / B, (A,)),
    "power": (lambda a: abs(a) ** 2, (A,)),
    "negative": (lambda a: -a, (A,)),
    "whole numbers": (lambda a: a // 3 + a % 3, (INTS,)),
    "matmul": (lambda a, b: a @ b.T, (A, B)),
    "matmul on the left": (lambda a: B @ a.T, (A,)),
    "comparison": (lambda a, b: (a < b) & (a > -1) | (b >= 3), (A, B)),
    "bits": (lambda a: (a & 6) ^ 1 | 8, (INTS,)),
    "inversion": (lambda a: ~(a > 0), (A,)),
    "row": (lambda a: a[1], (A,)),
    "negative index": (lambda a: a[-1, -2], (A,)),
    "slice": (lambda a: a[1:, ::2], (A,)),
    "backwards": (lambda a: a[::-1, 3:0:-2], (A,)),
    "ellipsis and new axis": (lambda a: a[..., None, 1:3], (A,)),
    "reshape": (lambda a: a.reshape(2, -1), (A,)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_numpy_computes(name: str) -> None:
    function, arrays = OPERATORS[name]
    np.testing.assert_allclose(compute(function, *arrays), function(*arrays), rtol=1e-5, atol=1e-6)


def test_the_network_of_the_documentation() -> None:
    w, b = np.ones((4, 5), np.float32), np.arange(5, dtype=np.float32)
    result = compute(lambda x: ge.ops.relu(ge.ops.matmul(x, w) + b), A)
    np.testing.assert_allclose(result, np.maximum(A @ w + b, 0), rtol=1e-5)


def test_attributes_go_by_name_or_place() -> None:
    np.testing.assert_allclose(compute(lambda a: ge.ops.clip(a, -0.5, 0.5), A), A.clip(-0.5, 0.5))
    np.testing.assert_allclose(compute(lambda a: ge.ops.clip(a, max=0.5), A), np.minimum(A, 0.5))
    np.testing.assert_allclose(compute(lambda a: ge.ops.reduce_sum(a, axes=[1]), A), A.sum(1), rtol=1e-5)


def test_lists_are_taken_where_any_number_is() -> None:
    np.testing.assert_array_equal(
        compute(lambda a, b: ge.ops.concat([a, b], axis=0), A, B), np.concatenate([A, B])
    )
    np.testing.assert_array_equal(
        compute(lambda a, b: ge.ops.concat(a, b, axis=0), A, B), np.concatenate([A, B])
    )


def test_several_outputs_come_as_a_tuple() -> None:
    g = ge.Graph()
    left, right = ge.ops.split(g.input("x", (3, 4)), axis=1, sizes=[1, 3])
    assert (left.shape, right.shape) == ((3, 1), (3, 3))


def test_operators_without_tensors_need_a_graph() -> None:
    g = ge.Graph()
    with pytest.raises(GeError, match="graph"):
        ge.ops.eye(shape=[3, 3])
    with g:
        eye = ge.ops.eye(shape=[3, 3])
    assert eye.graph is g


def test_branches_are_chosen_at_run_time() -> None:
    g = ge.Graph()
    flag, x = g.input("flag", (), "bool"), g.input("x", (3, 4))
    shifted = x + 1.0
    g.output(g.cond(flag, lambda: ge.ops.exp(shifted) * 2.0, lambda: 1.0 - x), "y")
    model = ge.compile(g)
    np.testing.assert_allclose(model(np.array(True), A), np.exp(A + 1) * 2, rtol=1e-5)
    np.testing.assert_allclose(model(np.array(False), A), 1 - A, rtol=1e-5)


def test_branches_may_nest_and_give_several_results() -> None:
    g = ge.Graph()
    flag, other, x = g.input("flag", (), "bool"), g.input("other", (), "bool"), g.input("x", (3, 4))

    def inner() -> ge.Tensor:
        return g.cond(other, lambda: x * 2.0, lambda: x * 3.0)

    y, z = g.cond(flag, lambda: (inner(), x), lambda: (x, -x))
    g.output(y, "y")
    g.output(z, "z")
    model = ge.compile(g)
    for first, second, factor, sign in ((1, 1, 2, 1), (1, 0, 3, 1), (0, 1, 1, -1)):
        results = model(np.array(bool(first)), np.array(bool(second)), A)
        np.testing.assert_allclose(results[0], A * factor, rtol=1e-6)
        np.testing.assert_allclose(results[1], A * sign)


def test_loops_run_until_their_condition_fails() -> None:
    g = ge.Graph()
    x, limit = g.input("x", (), "float32"), g.input("limit", (), "float32")
    value, steps = g.while_loop(lambda v, n: v < limit, lambda v, n: (v * 2.0, n + 1), x, np.int64(0))
    g.output(value, "value")
    g.output(steps, "steps")
    model = ge.compile(g)
    for start, top in ((1.0, 100.0), (3.0, 2.0), (1.0, 1025.0)):
        wanted, count = start, 0
        while wanted < top:
            wanted, count = wanted * 2, count + 1
        value, steps = model(np.float32(start), np.float32(top))
        assert (float(value), int(steps)) == (wanted, count)


def test_shapes_and_types_are_known_while_building() -> None:
    g = ge.Graph()
    x = g.input("x", (2, 3), "float16")
    assert (x.shape, x.dtype, x.rank, x.cast("int32").dtype) == ((2, 3), "float16", 2, "int32")
    assert repr(x) == "Tensor(float16[2,3])"


def test_mistakes_are_reported_where_they_are_made() -> None:
    g, other = ge.Graph("one"), ge.Graph("other")
    x, y = g.input("x", (2, 3)), other.input("y", (2, 3))
    for wrong in (
        lambda: x + y,  # two graphs
        lambda: g.input("x", (1,)),  # a name twice
        lambda: g.output(y),
        lambda: x @ x,
        lambda: bool(x),
        lambda: x[5],
        lambda: x[0, 0, 0],
        lambda: x[..., ...],
        lambda: x["a"],
        lambda: g.op("Nonsense", x),
        lambda: ge.ops.softmax(x, axis=1),
        lambda: g.input("n", (2,), "int32") + 1.5,
        lambda: ge.ops.relu(1.0),
    ):
        with pytest.raises((GeError, TypeError)):
            wrong()
    with pytest.raises(AttributeError):
        _ = ge.ops.nonsense  # type: ignore[attr-defined]


def test_an_array_changed_later_does_not_change_the_model() -> None:
    w = np.ones((4, 4), np.float32)
    g = ge.Graph()
    g.output(g.input("x", (3, 4)) @ g.constant(w))
    model = ge.compile(g)
    before = model(A).copy()
    w[:] = 0
    np.testing.assert_array_equal(model(A), before)


def test_every_operator_has_a_documented_function() -> None:
    for type_ in ge.ops.registered():
        function = getattr(ge.ops, snake_case(type_))
        assert callable(function), type_
        assert function.__doc__
        assert "name" in inspect.signature(function).parameters


def test_a_graph_can_be_compiled_twice() -> None:
    g = ge.Graph()
    g.output(ge.ops.exp(g.input("x", (3, 4))))
    np.testing.assert_array_equal(ge.compile(g)(A), ge.compile(g)(A))


_ROWS = np.arange(12, dtype=np.int32).reshape(4, 3)

_CHECKED: dict[str, tuple[Any, np.ndarray, np.ndarray]] = {  # operator, indices or divisors that are right, and wrong
    "div": (lambda x, i: x / i, np.array([1, -2, 3]), np.array([1, 0, 3])),
    "floor_div": (lambda x, i: x // i, np.array([1, -2, 3]), np.array([1, 0, 3])),
    "mod": (lambda x, i: x % i, np.array([1, -2, 3]), np.array([1, 0, 3])),
    "fmod": (lambda x, i: ge.ops.fmod(x, i), np.array([1, -2, 3]), np.array([1, 0, 3])),
    "gather": (lambda x, i: ge.ops.gather(x, i, axis=0), np.array([0, -4]), np.array([0, 4])),
    "gather_elements": (lambda x, i: ge.ops.gather_elements(x, i), np.array([[3]]), np.array([[-5]])),
    "gather_nd": (lambda x, i: ge.ops.gather_nd(x, i), np.array([[3, -3]]), np.array([[0, 3]])),
    "scatter_elements": (
        lambda x, i: ge.ops.scatter_elements(x, i, x[:1]), np.array([[0, 1, -4]]), np.array([[0, 4, 1]])
    ),
    "scatter_nd": (lambda x, i: ge.ops.scatter_nd(x, i, x[:1]), np.array([[3]]), np.array([[4]])),
    "reverse_sequence": (
        lambda x, i: ge.ops.reverse_sequence(x, i), np.array([0, 4, 1]), np.array([0, 5, 1])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _CHECKED)
def test_wrong_indices_and_divisors_are_reported(name: str) -> None:
    make, right, wrong = _CHECKED[name]
    dtype = "int32" if "div" in name or "mod" in name else "int64"
    g = ge.Graph()
    x, numbers = g.input("x", (4, 3), "int32"), g.input("numbers", right.shape, dtype)
    g.output(make(x, numbers))
    model = ge.compile(g)
    with pytest.raises(GeError, match="E10024"):
        model(_ROWS, wrong.astype(dtype))
    model(_ROWS, right.astype(dtype))
    h = ge.Graph()
    with pytest.raises(GeError, match="E10024"):
        make(h.input("x", (4, 3), "int32"), h.constant(wrong.astype(dtype)))


def test_an_operator_run_by_itself_reports_a_division_by_zero() -> None:
    assert ge.run_operator("Div", np.array([4], np.int32), np.array([2], np.int32)).tolist() == [2]
    with pytest.raises(GeError, match="E10024"):
        ge.run_operator("Div", np.array([4], np.int32), np.array([0], np.int32))
