"""The shared derivatives agree with differences of the functions, in every floating-point type."""

from __future__ import annotations

import numpy as np
import pytest

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.ops.math.derivatives import DERIVATIVES, OF_RESULT, derived, summed_to

POSITIVE = {"Log", "Sqrt", "Rsqrt", "Reciprocal"}
X = np.array([-4.1, -2.3, -0.61, 0.37, 0.83, 1.9, 3.4])


def _operands(type_: str) -> np.ndarray:
    if type_ == "Acosh":
        return np.abs(X) + 1.2
    if type_ in POSITIVE:
        return np.abs(X)
    return np.tanh(X) * 0.9 if type_ in ("Acos", "Asin", "Atanh", "Log1p", "Tan") else X


def _values(type_: str, x: np.ndarray) -> np.ndarray:
    b = GraphBuilder()
    b.output(b.op(type_, b.input("x", x.shape, "float64")))
    return np.asarray(interpret(b.graph, {"x": x})[0])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("type_", DERIVATIVES)
def test_a_derivative_is_the_limit_of_differences(type_: str, dtype: str) -> None:
    x, step = _operands(type_), 1e-5
    slope = (_values(type_, x + step) - _values(type_, x - step)) / (2 * step)
    b = GraphBuilder()
    g, value = (b.input(name, x.shape, dtype) for name in ("g", "value"))
    b.output(derived(b.op, type_, g, value))
    assert desc_of(b.graph.outputs[0]).dtype == dtype
    given = _values(type_, x) if type_ in OF_RESULT else x
    kind = numpy_dtype(dtype)
    (found,) = interpret(b.graph, {"g": np.full(x.shape, 3.0).astype(kind), "value": given.astype(kind)})
    least = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 6e-2, "float16": 1e-2}[dtype]
    np.testing.assert_allclose(found.astype(np.float64), 3 * slope, rtol=least, atol=least)


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1), (4,), (), (1, 1)])
def test_a_gradient_is_summed_over_the_axes_of_broadcasting(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    b.output(summed_to(b.op, b.input("g", (3, 4), "float32"), shape))
    g = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = interpret(b.graph, {"g": g})
    lead = (1,) * (2 - len(shape)) + shape
    axes = tuple(i for i, d in enumerate(lead) if d == 1 and g.shape[i] != 1)
    np.testing.assert_array_equal(found, g.sum(axes).reshape(shape))
