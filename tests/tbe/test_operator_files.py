"""Operator files of the vector DSL, in old and new spelling, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tbe
from tbe import dsl
from tests.tbe.operator_references import REFERENCES, Reference, array
from tests.tbe.ulps import ulps

FOLDER = Path(__file__).parent / "operators"
CASES = [
    pytest.param(name, dtype, id=f"{name}-{dtype}") for name, r in REFERENCES.items() for dtype in r.dtypes
]


def inputs_of(case: Reference, dtype: str) -> list[np.ndarray]:
    kinds = case.kinds or (None,) * len(case.shapes)
    return [
        array(shape, kind or dtype, case.low, case.high, seed)
        for seed, (shape, kind) in enumerate(zip(case.shapes, kinds, strict=True))
    ]


def compare(got: list[np.ndarray], expected: list[np.ndarray], limit: float, scale: float) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        other = np.asarray(other).reshape(one.shape)
        assert one.dtype == other.dtype
        if one.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other)
        else:
            assert ulps(one, other, scale) <= limit


def as_list(value: object) -> list[np.ndarray]:
    return list(value) if isinstance(value, (list, tuple)) else [np.asarray(value)]


@pytest.mark.parametrize("name, dtype", CASES)
def test_an_operator_file_runs_as_it_is(name: str, dtype: str) -> None:
    case = REFERENCES[name]
    arrays = inputs_of(case, dtype)
    with np.errstate(all="ignore"):
        expected = as_list(case.function(*arrays, **case.attrs))
    outputs = case.outputs(*arrays) if case.outputs else None
    got = as_list(tbe.run_operator(FOLDER / f"{name}.py", *arrays, outputs=outputs, **case.attrs))
    if got[0].shape != expected[0].shape:  # a reduction to one element
        assert got[0].size == expected[0].size
    compare(got, expected, case.ulp, case.scale)


def test_every_file_has_a_reference_and_every_reference_a_file() -> None:
    assert {p.stem for p in FOLDER.glob("*.py")} == set(REFERENCES)
    assert sum(r.ulp == 0 for r in REFERENCES.values()) >= 60  # of these every bit is NumPy's


@pytest.mark.parametrize("name", ["add", "gelu", "softmax", "layer_norm", "apply_adam"])
def test_the_registered_compute_function_gives_the_same_expression(name: str) -> None:
    """What fusion uses and what the operator function builds agree."""
    case = REFERENCES[name]
    loaded = dsl.load_operator(FOLDER / f"{name}.py")
    (compute,) = loaded.computes.values()
    arrays = inputs_of(case, "float32")
    places = [tbe.placeholder(a.shape, a.dtype.name) for a in arrays]
    traced = dsl.trace(loaded.entry, places, None, case.attrs)
    described = [(t.shape, t.dtype) for t in traced]
    direct = dsl.compute_function(compute, places, described, case.attrs)
    values = dict(zip(places, arrays, strict=True))
    for a, b in zip(tbe.evaluate(traced, values), tbe.evaluate(direct, values), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", [(1,), (5,), (3, 1, 4), (2, 3, 4, 5), (1023,), (64, 65)])
@pytest.mark.parametrize("name", ["gelu", "tanh", "leaky_relu", "softplus"])
def test_a_dynamic_operator_takes_every_shape(name: str, shape: tuple[int, ...]) -> None:
    case = REFERENCES[name]
    x = array(shape, "float32", -2, 2)
    got = tbe.run_operator(FOLDER / f"{name}.py", x, **case.attrs)
    assert got.shape == shape
    assert ulps(got, case.function(x, **case.attrs), case.scale) <= case.ulp


def test_a_build_for_unknown_dimensions_is_specialised_later() -> None:
    loaded = dsl.load_operator(FOLDER / "maximum.py")
    unknown = dsl.description((-1, 9), "float32")
    found: list[dsl.Built] = []
    from tbe.dsl.building import builds_of

    with builds_of(found):
        loaded.entry(unknown, unknown, unknown, kernel_name="maximum")
    built = found[-1]
    assert built.dynamic
    with pytest.raises(ValueError, match="specialise"):
        _ = built.kernels
    known = dsl.description((4, 9), "float32")
    special = built.specialise(known, known, known)
    assert not special.dynamic and special.outputs[0].shape == (4, 9) and len(special.kernels) == 1
