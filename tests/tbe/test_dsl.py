"""Every function of the vector DSL over types and shapes, against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tbe
import te.lang.cce
from tbe import dsl, tvm
from tbe.dsl.running import Runner
from tests.tbe.operator_references import numpy_type, wide
from tests.tbe.ulps import ulps

FLOATS = ("float16", "float32", "bfloat16", "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "int64")
NUMBERS = (*FLOATS, *INTS)
SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33]), min_size=1, max_size=3).map(tuple)


@dataclass(frozen=True)
class Function:
    """A function of the DSL: types, number of tensors, further arguments, NumPy's answer."""

    dtypes: tuple[str, ...]
    tensors: int
    reference: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    ulp: float = 0
    positive: bool = False
    options: tuple[tuple[str, Any], ...] = ()


def k(value: float, x: np.ndarray) -> Any:
    return x.dtype.type(value)


def half_up(x: np.ndarray) -> np.ndarray:
    return np.floor(x.astype(np.float64) + 0.5).astype(np.int32)


def clipped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x.astype(np.float64)).astype(np.int32)


def truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind in "iu":
        return np.trunc(a.astype(np.float64) / b.astype(np.float64)).astype(a.dtype)
    return a / b


def real(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of real numbers; integers are taken as float32."""
    return lambda x: wide(
        function, x, dtype=x.dtype if x.dtype.kind != "i" and x.dtype.kind != "u" else np.float32
    )


ELEMENTWISE: dict[str, Function] = {
    "vadd": Function(NUMBERS, 2, np.add),
    "vsub": Function(NUMBERS, 2, np.subtract),
    "vmul": Function(NUMBERS, 2, np.multiply),
    "vdiv": Function(NUMBERS, 2, truncated, positive=True),
    "vmod": Function(("float32", "float64", *INTS), 2, np.mod, positive=True),
    "vmax": Function(NUMBERS, 2, np.maximum),
    "vmin": Function(NUMBERS, 2, np.minimum),
    "vand": Function((*INTS, "bool"), 2, np.bitwise_and),
    "vor": Function((*INTS, "bool"), 2, np.bitwise_or),
    "vaddrelu": Function(NUMBERS, 2, lambda a, b: np.maximum(a + b, k(0, a))),
    "vsubrelu": Function(NUMBERS, 2, lambda a, b: np.maximum(a - b, k(0, a))),
    "vadds": Function(NUMBERS, 1, lambda x, s: x + k(s, x), (3,)),
    "vmuls": Function(NUMBERS, 1, lambda x, s: x * k(s, x), (2,)),
    "vmaxs": Function(NUMBERS, 1, lambda x, s: np.maximum(x, k(s, x)), (1,)),
    "vmins": Function(NUMBERS, 1, lambda x, s: np.minimum(x, k(s, x)), (1,)),
    "vlrelu": Function(FLOATS, 1, lambda x, a: np.where(x > 0, x, x * k(a, x)), (0.25,)),
    "round_to": Function(NUMBERS, 1, lambda x, hi, lo: np.maximum(np.minimum(x, k(hi, x)), k(lo, x)), (2, 1)),
    "vmla": Function(("float16", "bfloat16", *INTS), 3, lambda x, y, z: x * y + z),
    "vmadd": Function(("float16", "bfloat16", *INTS), 3, lambda x, y, z: x * z + y),
    "vmaddrelu": Function(("float16", "bfloat16", *INTS), 3, lambda x, y, z: np.maximum(x * z + y, k(0, x))),
    "vaxpy": Function(("float16", "bfloat16", *INTS), 2, lambda x, y, s: x * k(s, x) + y, (2,)),
    "vabs": Function(("float16", "float32", "bfloat16", "float64", "int32", "int8"), 1, np.abs),
    "vrelu": Function(NUMBERS, 1, lambda x: np.maximum(x, k(0, x))),
    "vnot": Function((*INTS, "bool"), 1, np.invert),
    "vexp": Function((*FLOATS, "int32"), 1, real(np.exp), ulp=1),
    "vlog": Function((*FLOATS, "int32"), 1, real(np.log), ulp=2, positive=True),
    "vsqrt": Function((*FLOATS, "int32"), 1, real(np.sqrt), positive=True),
    "vrsqrt": Function(
        ("float16", "float32", "bfloat16"), 1, real(lambda v: 1 / np.sqrt(v)), ulp=1, positive=True
    ),
    "vrec": Function(FLOATS, 1, lambda x: k(1, x) / x, positive=True),
    "vlogic": Function(("bool",), 2, np.logical_and),
    "floor": Function(FLOATS, 1, clipped(np.floor)),
    "ceil": Function(FLOATS, 1, clipped(np.ceil)),
    "trunc": Function(FLOATS, 1, clipped(np.trunc)),
    "round": Function(FLOATS, 1, clipped(np.rint)),
    "round_half_up": Function(FLOATS, 1, half_up),
    "cast_to": Function(FLOATS, 1, lambda x, t: np.trunc(x).astype(t), ("int32",)),
    "cast_to_round": Function(FLOATS, 1, lambda x, t: np.rint(x).astype(t), ("int32",)),
}


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, positive: bool) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTS:
        low = 1 if positive else 0 if dtype.startswith("u") else -9
        return rng.integers(low, 10, shape).astype(dtype)
    x = rng.choice([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, *rng.uniform(-4, 4, 20)], shape)
    return (np.abs(x) + 0.01 if positive else x).astype(numpy_type(dtype))


def evaluate(
    function: Callable[..., Any], arrays: list[np.ndarray], *arguments: Any, **options: Any
) -> list[np.ndarray]:
    places = [tbe.placeholder(a.shape, a.dtype.name) for a in arrays]
    result = function(*places, *arguments, **options)
    results = list(result) if isinstance(result, (list, tuple)) else [result]
    return Runner(places, results)(*arrays)


def agree(got: np.ndarray, expected: Any, limit: float = 0) -> None:
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        assert ulps(got, expected) <= limit


@pytest.mark.parametrize("name", list(ELEMENTWISE))
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_elementwise(name: str, data: st.DataObject) -> None:
    case = ELEMENTWISE[name]
    dtype, shape = data.draw(st.sampled_from(case.dtypes)), data.draw(SHAPES)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = [values(rng, shape, dtype, case.positive) for _ in range(case.tensors)]
    (got,) = evaluate(getattr(dsl, name), arrays, *case.arguments, **dict(case.options))
    with np.errstate(all="ignore"):
        agree(got, case.reference(*arrays, *case.arguments), case.ulp)


@pytest.mark.parametrize("name", ["vmla", "vmadd", "vmaddrelu", "vaxpy"])
def test_products_added_at_once_may_round_once(name: str) -> None:
    rng = np.random.default_rng(3)
    x, y, z = (values(rng, (50, 7), "float32", False) for _ in range(3))
    exact = {
        "vmla": x.astype(float) * y + z,
        "vmadd": x.astype(float) * z + y,
        "vmaddrelu": np.maximum(x.astype(float) * z + y, 0),
        "vaxpy": x.astype(float) * 1.5 + y,
    }[name]
    arguments = (1.5,) if name == "vaxpy" else ()
    (got,) = evaluate(getattr(dsl, name), [x, y] if name == "vaxpy" else [x, y, z], *arguments)
    assert ulps(got, exact.astype(np.float32), scale=16) <= 1


RELATIONS = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


@pytest.mark.parametrize("relation", list(RELATIONS))
@settings(max_examples=8, deadline=None)
@given(dtype=st.sampled_from(NUMBERS), shape=SHAPES, seed=st.integers(0, 99))
def test_comparisons_and_choices(relation: str, dtype: str, shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c, d = (values(rng, shape, dtype, False) for _ in range(4))
    holds = RELATIONS[relation](a, b)
    agree(evaluate(dsl.vcmp, [a, b], relation)[0], holds)
    agree(evaluate(lambda x: dsl.vcmp(x, 2, relation), [a])[0], RELATIONS[relation](a, k(2, a)))
    agree(evaluate(dsl.vsel, [holds, c, d])[0], np.where(holds, c, d))
    agree(evaluate(lambda m, x: dsl.vsel(m, x, 1), [holds, c])[0], np.where(holds, c, k(1, c)))
    agree(
        evaluate(lambda w, x, y, z: dsl.vcmpsel(w, x, relation, y, z), [a, b, c, d])[0], np.where(holds, c, d)
    )
    two = RELATIONS[relation](a, k(2, a))
    agree(evaluate(lambda x: dsl.vcmpsel(x, operation=relation), [a])[0], np.where(two, a, k(0, a)))


def test_a_mask_of_bits() -> None:
    rng = np.random.default_rng(0)
    a, b = values(rng, (3, 24), "float32", False), values(rng, (3, 24), "float32", False)
    (packed,) = evaluate(lambda x, y: dsl.vcmp(x, y, "lt", "bit"), [a, b])
    agree(packed, np.packbits(a < b, axis=-1, bitorder="little"))
    (chosen,) = evaluate(dsl.vsel, [packed, a, b])
    agree(chosen, np.where(a < b, a, b))
    (same,) = evaluate(lambda x, y: dsl.vsel(dsl.vcmp(x, y, "lt", "bit"), x, y), [a, b])
    agree(same, chosen)


@pytest.mark.parametrize("operation", ["logic_or", "logic_not"])
def test_logic(operation: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 40)).astype(bool)
    if operation == "logic_not":
        agree(evaluate(lambda x: dsl.vlogic(x, operation=operation), [a])[0], ~a)
    else:
        agree(evaluate(lambda x, y: dsl.vlogic(x, y, operation), [a, b])[0], a | b)


@pytest.mark.parametrize(
    "mode, rounded",
    [
        ("trunc", np.trunc),
        ("floor", np.floor),
        ("ceil", np.ceil),
        ("round", np.rint),
        ("half_up", lambda v: np.floor(v + 0.5)),
    ],
)
@pytest.mark.parametrize("to", ["int32", "int8", "uint8", "int64"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_modes_of_casts(mode: str, rounded: Callable[..., Any], to: str, dtype: str) -> None:
    x = np.array([-2.5, -1.5, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 1.5, 2.5, 2.75], numpy_type(dtype))
    limits = np.iinfo(to)
    expected = np.clip(rounded(x.astype(np.float64)), limits.min, limits.max).astype(to)
    agree(evaluate(lambda v: dsl.cast_to(v, to, round_mode=mode), [x])[0], expected)


@settings(max_examples=40, deadline=None)
@given(source=st.sampled_from([*NUMBERS, "bool"]), to=st.sampled_from([*NUMBERS, "bool"]), shape=SHAPES)
def test_casts_between_all_types(source: str, to: str, shape: tuple[int, ...]) -> None:
    x = values(np.random.default_rng(5), shape, source, True)
    expected = (
        (x != 0)
        if to == "bool"
        else np.trunc(x.astype(np.float64)).astype(to)
        if to in INTS
        else x.astype(numpy_type(to))
    )
    agree(evaluate(lambda v: dsl.cast_to(v, to), [x])[0], expected)


REDUCTIONS: dict[str, tuple[tuple[str, ...], Callable[..., Any], float]] = {
    "reduce_sum": (NUMBERS, np.add.reduce, 3),
    "sum": (NUMBERS, np.add.reduce, 3),
    "reduce_max": (NUMBERS, np.maximum.reduce, 0),
    "reduce_min": (NUMBERS, np.minimum.reduce, 0),
    "reduce_prod": (("float32", "float64", "int32", "int64"), np.multiply.reduce, 8),
    "reduce_any": (("bool",), np.logical_or.reduce, 0),
    "reduce_all": (("bool",), np.logical_and.reduce, 0),
}


@pytest.mark.parametrize("name", list(REDUCTIONS))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_reductions(name: str, data: st.DataObject) -> None:
    dtypes, reference, limit = REDUCTIONS[name]
    dtype, shape = data.draw(st.sampled_from(dtypes)), data.draw(SHAPES)
    axes = sorted(data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1)))
    keepdims = data.draw(st.booleans())
    x = values(np.random.default_rng(1), shape, dtype, True)
    if name == "reduce_prod":
        x = np.where(x > 1.5, k(2, x), k(1, x))
    accumulated = x.astype(np.float64) if dtype in FLOATS else x
    kind = bool if dtype == "bool" else accumulated.dtype
    with np.errstate(over="ignore"):
        expected = reference(accumulated, axis=tuple(axes), keepdims=keepdims, dtype=kind).astype(x.dtype)
    shifted = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    (got,) = evaluate(lambda v: getattr(dsl, name)(v, shifted, keepdims), [x])
    added = math.prod(shape[a] for a in axes)
    agree(
        got, expected, limit and limit + added // 8
    )  # a sum of positive numbers errs by half a unit a number at most


def test_means_and_several_sums() -> None:
    x = values(np.random.default_rng(1), (5, 7), "float32", True)
    agree(evaluate(lambda v: dsl.reduce_mean(v, 1), [x])[0], x.astype(float).mean(1).astype(np.float32), 2)
    total, square = evaluate(lambda v: dsl.tuple_sum([v, dsl.vmul(v, v)], [0]), [x])
    agree(total, x.astype(float).sum(0).astype(np.float32), 2)
    agree(square, (x.astype(float) ** 2).sum(0).astype(np.float32), 2)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([*NUMBERS, "bool"]))
def test_rearrangements(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(SHAPES)
    x = values(np.random.default_rng(2), shape, dtype, False)
    axis = data.draw(st.integers(0, len(shape) - 1))
    perm = data.draw(st.permutations(range(len(shape))))
    agree(evaluate(lambda v: dsl.transpose(v, perm), [x])[0], x.transpose(perm))
    agree(evaluate(lambda v: dsl.concat([v, v, v], axis), [x])[0], np.concatenate([x, x, x], axis))
    agree(evaluate(lambda v: dsl.reshape(v, (x.size,)), [x])[0], x.reshape(-1))
    cut = data.draw(st.integers(0, shape[axis]))
    parts = [p for p in np.split(x, [cut], axis) if p.size]
    sizes = [p.shape[axis] for p in parts]
    for got, expected in zip(
        evaluate(lambda v: dsl.split_compute_com(v, axis, sizes), [x]), parts, strict=True
    ):
        agree(got, expected)
    wider = (3, *shape)
    agree(evaluate(lambda v: dsl.broadcast(v, wider), [x])[0], np.broadcast_to(x, wider))
    begin, end = [0] * len(shape), list(shape)
    begin[axis] = min(cut, shape[axis] - 1)
    agree(
        evaluate(lambda v: dsl.slice(v, begin, end), [x])[0],
        np.take(x, range(begin[axis], shape[axis]), axis),
    )


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("widths", [((1, 2), (0, 3)), ((2, 0), (3, 3))])
def test_pads(mode: str, widths: Any) -> None:
    x = values(np.random.default_rng(2), (4, 5), "float32", False)
    agree(evaluate(lambda v: dsl.pad(v, widths, mode), [x])[0], np.pad(x, widths, mode))


def test_numbers_are_broadcast() -> None:
    tensor = dsl.broadcast(tvm.const(2.5, "float16"), (3, 2))
    assert tensor.dtype == "float16"
    (got,) = tbe.evaluate([tensor.expression], {})
    agree(got, np.full((3, 2), 2.5, np.float16))


SEGMENTS: dict[str, Callable[[np.ndarray], Any]] = {
    "unsorted_segment_sum": lambda rows: rows.sum(0),
    "unsorted_segment_prod": lambda rows: rows.prod(0),
    "unsorted_segment_max": lambda rows: rows.max(0),
    "unsorted_segment_min": lambda rows: rows.min(0),
    "unsorted_segment_mean": lambda rows: rows.mean(0),
}


@pytest.mark.parametrize("name", list(SEGMENTS))
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("listed", [True, False])
def test_segments(name: str, dtype: str, listed: bool) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(1, 4, (11, 6)).astype(dtype)
    ids = rng.choice([0, 1, 3], 11).astype(np.int32)
    if name.endswith("mean") and dtype == "int32":
        x = x * 0 + 2
    expected = np.zeros((5, 6), dtype)
    for segment in range(5):
        rows = x[ids == segment].astype(np.float64)
        expected[segment] = SEGMENTS[name](rows) if len(rows) else 7
    function = getattr(dsl, name)
    if listed:
        (got,) = evaluate(lambda v: function(v, ids.tolist(), 5, 7), [x])
    else:
        (got,) = evaluate(lambda v, i: function(v, i, 5, 7), [x, ids])
    agree(got, expected, 1)


@pytest.mark.parametrize("name", ["inplace_add", "inplace_sub", "inplace_update"])
@settings(max_examples=10, deadline=None)
@given(ids=st.lists(st.integers(0, 8), min_size=1, max_size=12))
def test_rows_in_place(name: str, ids: list[int]) -> None:
    rng = np.random.default_rng(len(ids))
    x, v = rng.integers(-9, 9, (9, 3)).astype(np.int32), rng.integers(-9, 9, (len(ids), 3)).astype(np.int32)
    expected = x.copy()
    for row, value in zip(ids, v, strict=True):
        expected[row] = {"inplace_add": expected[row] + value, "inplace_sub": expected[row] - value}.get(
            name, value
        )
    agree(evaluate(lambda a, b: getattr(dsl, name)(a, ids, b), [x, v])[0], expected)


def test_gather() -> None:
    x = values(np.random.default_rng(2), (5, 6), "float32", False)
    i = np.array([[4, 0], [2, 2]], np.int32)
    agree(evaluate(lambda a, b: dsl.gather(a, b, 1), [x, i])[0], x[:, i])


def test_values_set_by_index() -> None:
    x = values(np.random.default_rng(2), (5, 6), "float32", False)
    agree(
        evaluate(lambda v: dsl.set_value(v, lambda i, j: i == j, 0.0), [x])[0],
        np.where(np.eye(5, 6, dtype=bool), 0, x).astype(np.float32),
    )


def test_every_function_is_swept_and_has_its_older_name() -> None:
    from tbe.dsl import elementwise, structure

    swept = {*ELEMENTWISE, *REDUCTIONS, *SEGMENTS, "vcmp", "vsel", "vcmpsel", "reduce_mean", "tuple_sum"}
    swept |= {
        "transpose",
        "concat",
        "reshape",
        "split",
        "split_compute_com",
        "broadcast",
        "slice",
        "pad",
        "gather",
    }
    swept |= {"inplace_add", "inplace_sub", "inplace_update", "set_value"}
    assert {*elementwise.__all__, *structure.__all__} == swept
    for name in swept:
        assert getattr(te.lang.cce, name) is getattr(dsl, name)


def test_special_values() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    one = np.ones_like(x)
    assert math.isnan(evaluate(dsl.vmax, [x, one])[0][0])
    agree(evaluate(dsl.vexp, [x])[0], np.exp(x), 1)
    agree(evaluate(dsl.vrec, [x])[0], np.array([np.nan, 0, -0.0, np.inf, -np.inf], np.float32))
    agree(
        evaluate(lambda v: dsl.cast_to(v, "int32"), [x])[0],
        np.array([0, 2**31 - 1, -(2**31), 0, 0], np.int32),
    )
