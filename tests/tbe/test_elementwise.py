"""Elementwise kernels of every dtype: operations, casts and broadcasts against the interpreter and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tbe
from tbe.ops import BINARY, UNARY
from tests.tbe.running import check, run

TARGETS = ("host", "portable")
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
PLAIN = [
    "abs",
    "neg",
    "sign",
    "relu",
    "square",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sqrt",
    "reciprocal",
    "rsqrt",
]
PLAIN += ["isnan", "isinf", "isfinite"]


def special_floats(dtype: str) -> np.ndarray:
    """Zeros, infinities, NaN, subnormal and extreme numbers, and plain ones."""
    info = {"float64": np.float64, "float32": np.float32}.get(dtype, np.float32)
    kind = tbe.numpy_dtype(dtype)
    tiny = {"float16": 6e-8, "bfloat16": 1e-40}.get(dtype, float(np.finfo(info).smallest_subnormal))
    large = {"float16": 65504.0, "bfloat16": 3.3e38}.get(dtype, float(np.finfo(info).max))
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.7, -3.7, tiny, -tiny, 100 * tiny, large, -large]
    return np.array([*values, np.inf, -np.inf, np.nan, 1e-3, 123.25]).astype(kind)


def special_ints(dtype: str) -> np.ndarray:
    """The ends of the range, zero, and small numbers of both signs."""
    kind = tbe.dtype_of(dtype)
    values = [0, 1, 2, 3, 5, 7, kind.max, kind.max - 1, kind.min, kind.min + 1]
    values += [-1, -2, -3, -7] if kind.kind == "int" else []
    return np.array(values, kind.numpy)


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(values, values)
    return np.ascontiguousarray(a.ravel()), np.ascontiguousarray(b.ravel())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_unary_functions_keep_special_values(dtype: str, target: str) -> None:
    data = special_floats(dtype)
    x = tbe.placeholder(data.shape, dtype)
    outputs = [tbe.unary(op, x) for op in PLAIN]
    expected = tbe.evaluate(outputs, {x: data})
    for op, t, want in zip(PLAIN, outputs, expected, strict=True):
        (got,) = run([x], [t], {x: data}, target)
        if want.dtype == np.bool_:
            np.testing.assert_array_equal(got, want, op)
        else:
            rtol = 1e-6 if op == "rsqrt" else 0
            np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=rtol, err_msg=op)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_arithmetic_is_ieee(dtype: str, target: str) -> None:
    a, b = pairs(special_floats(dtype))
    x, y = tbe.placeholder(a.shape, dtype), tbe.placeholder(b.shape, dtype)
    ops = [
        "add",
        "sub",
        "mul",
        "div",
        "max",
        "min",
        "floordiv",
        "fmod",
        "mod",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
    ]
    for op in ops:
        t = tbe.binary(op, x, y)
        (want,) = tbe.evaluate([t], {x: a, y: b})
        (got,) = run([x, y], [t], {x: a, y: b}, target)
        np.testing.assert_array_equal(got.astype(float), want.astype(float), f"{op} of {dtype}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", INTS)
def test_integer_arithmetic_never_traps(dtype: str, target: str) -> None:
    a, b = pairs(special_ints(dtype))
    x, y = tbe.placeholder(a.shape, dtype), tbe.placeholder(b.shape, dtype)
    outputs = [tbe.binary(op, x, y) for op in BINARY if dtype in BINARY[op].accepts]
    outputs += [tbe.unary(op, x) for op in UNARY if dtype in UNARY[op].accepts]
    got = [run([x, y], [t], {x: a, y: b}, target)[0] for t in outputs]
    for t, mine, want in zip(outputs, got, tbe.evaluate(outputs, {x: a, y: b}), strict=True):
        np.testing.assert_array_equal(mine, want, f"{t.op} of {dtype}")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", [*FLOATS, *INTS, "bool"])
def test_casts_between_all_types(source: str, target: str) -> None:
    if source == "bool":
        data = np.array([True, False] * 11)
    elif source in FLOATS:
        more = np.array(
            [127.5, 128.5, -128.9, 255.0, 256.0, 65519.0, 65520.0, 2147483648.0, 1e19, -1e19, 33e-9]
        )
        with np.errstate(over="ignore"):
            data = np.concatenate([special_floats(source), more.astype(tbe.numpy_dtype(source))])
    else:
        data = special_ints(source)
    x = tbe.placeholder(data.shape, source)
    for dtype in tbe.DTYPES:
        if dtype == source:
            continue
        t = tbe.cast(x, dtype)
        (want,) = tbe.evaluate([t], {x: data})
        (got,) = run([x], [t], {x: data}, target)
        same = np.float64 if tbe.dtype_of(dtype).is_float else got.dtype
        np.testing.assert_array_equal(got.astype(same), want.astype(same), f"{source} to {dtype}")


def test_rounding_to_sixteen_bits_is_exact_everywhere() -> None:
    """Every float32 near every float16 and bfloat16 boundary rounds as NumPy rounds."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 40_000, dtype=np.uint64).astype(np.uint32)
    ties = (rng.integers(0, 1 << 16, 5000, dtype=np.uint32) << 16) + 0x8000
    half = (rng.integers(0x33000000 >> 13, 0x47800000 >> 13, 5000, dtype=np.uint32) << 13) + 0x1000
    data = np.concatenate([bits, ties, half]).view(np.float32)
    x = tbe.placeholder(data.shape, "float32")
    for target in TARGETS:
        for dtype in ("float16", "bfloat16"):
            t = tbe.cast(x, dtype)
            (got,) = run([x], [t], {x: data}, target)
            (want,) = tbe.evaluate([t], {x: data})
            np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
            y = tbe.placeholder(got.shape, dtype)
            (back,) = run([y], [tbe.cast(y, "float32")], {y: got}, target)
            np.testing.assert_array_equal(back, want.astype(np.float32))


def test_double_to_half_rounds_once() -> None:
    data = np.array(
        [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11 - 2.0**-40, 65519.99999999, 2.0**-25 + 2.0**-60, 1e-320]
    )
    x = tbe.placeholder(data.shape, "float64")
    for target in TARGETS:
        (got,) = run([x], [tbe.cast(x, "float16")], {x: data}, target)
        np.testing.assert_array_equal(got, data.astype(np.float16))


_SHAPES = st.lists(st.sampled_from([1, 2, 3, 5, 8, 16, 17, 31, 40]), min_size=0, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(_SHAPES, st.data())
def test_broadcasting_of_any_shapes(shape: list[int], data: st.DataObject) -> None:
    while np.prod(shape) > 20_000:
        shape.pop()
    dtype = data.draw(st.sampled_from(["float32", "int16", "bfloat16", "float64", "uint8"]))
    operands = []
    for _ in range(3):
        kept = shape[data.draw(st.integers(0, len(shape))) :]
        operands.append(
            [1 if data.draw(st.booleans()) and d > 1 and i % 2 else d for i, d in enumerate(kept)]
        )
    tensors = [tbe.placeholder(shape, dtype)] + [tbe.placeholder(s, dtype) for s in operands]
    a, b, c, d = tensors
    t = tbe.select(a < b, a + c, tbe.binary("max", d, c))
    rng = np.random.default_rng(5)
    values = {x: rng.integers(0, 50, x.shape).astype(tbe.numpy_dtype(dtype)) for x in tensors}
    check(tensors, [t], values, data.draw(st.sampled_from(["host", "host", "portable"])), rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 7, 4096, 8191, 8192, 12_289, 40_000])
def test_long_vectors_are_cut_into_chunks(size: int) -> None:
    x, y = tbe.placeholder((size,), "float32"), tbe.placeholder((size,), "float32")
    rng = np.random.default_rng(0)
    values = {t: rng.standard_normal(size).astype(np.float32) for t in (x, y)}
    check([x, y], [x * y + 1.0, x - y], values, rtol=1e-6)
    assert tbe.schedule([x, y], [x * y]).total == (1 if size < 8192 else -(-size // 4096))


def test_fused_rounding_casts_are_kept() -> None:
    x = tbe.placeholder((64,), "float32")
    data = np.linspace(-3, 3, 64).astype(np.float32)
    t = tbe.cast(tbe.cast(x, "bfloat16"), "float32") * 3.0
    (got,) = run([x], [t], {x: data})
    np.testing.assert_array_equal(
        got, data.astype(tbe.numpy_dtype("bfloat16")).astype(np.float32) * np.float32(3)
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_vectors_become_narrow_integers_at_once(dtype: str) -> None:
    x = tbe.placeholder((64,), "float32")
    kernel = tbe.build([x], [tbe.cast(x, dtype)])
    assert ".sat." not in kernel.ir, "LLVM converts with saturation lane by lane"
