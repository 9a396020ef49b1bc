"""Elementary functions: errors in units in the last place, and IEEE special values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tbe
from tbe.evaluate import _BINARY, _UNARY
from tests.tbe.running import run

# Largest error allowed on float32, and the interval to look at closely.
SINGLE = {
    "exp": (1.0, -105, 90), "exp2": (1.2, -151, 130), "expm1": (1.5, -20, 90), "log": (1.0, 0, 10),
    "log2": (1.2, 0, 10), "log1p": (1.6, -1, 10), "sigmoid": (2.5, -110, 100), "softplus": (2.0, -105, 100),
    "tanh": (1.6, -10, 10), "erf": (1.4, -5, 5), "erfc": (4.0, -7, 12), "sin": (0.6, -1e4, 1e4),
    "gelu_slope": (6.0, -7, 7), "normal_excess": (6.0, -7, 7), "tanh_gelu_slope": (6.0, -7, 7),
    "tanh_normal_excess": (6.0, -7, 7),
    "cos": (0.6, -1e4, 1e4), "tan": (0.6, -1e4, 1e4), "asin": (0.6, -1, 1), "acos": (0.6, -1, 1),
    "atan": (0.6, -100, 100), "sinh": (0.6, -90, 90), "cosh": (0.6, -90, 90), "asinh": (0.6, -100, 100),
    "acosh": (0.6, 1, 100), "atanh": (0.6, -1, 1), "lgamma": (0.6, -50, 100), "digamma": (0.6, -20, 50),
    "rsqrt": (1.6, 0, 1e3), "sqrt": (0.5, 0, 1e3), "reciprocal": (0.5, -1e3, 1e3),
}  # fmt: skip
SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    2.0,
    0.5,
    -0.5,
    1e-45,
    -1e-45,
    1e-39,
    3e38,
    -3e38,
    1e-4,
]
TANH = ("tanh_gelu_slope", "tanh_normal_excess")
SLOW_ORACLE = ("erf", "erfc", "gelu_slope", "normal_excess", *TANH, "lgamma", "digamma")


def ulps(got: np.ndarray, truth: np.ndarray, kind: type) -> np.ndarray:
    """Errors against a truth of more digits; 0 where both are the same special value."""
    near = truth.astype(kind)
    with np.errstate(all="ignore"):
        error = np.abs(got.astype(truth.dtype) - truth) / np.spacing(np.abs(near)).astype(truth.dtype)
    same = (np.isnan(got) & np.isnan(near)) | (got == near)
    error = np.where(same & ~np.isfinite(error), 0.0, error)
    return np.where(np.isnan(error), np.inf, error).astype(float)


def inputs32(op: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    count = 4000 if op in SLOW_ORACLE else 60_000
    _, lo, hi = SINGLE[op]
    anything = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    parts = [np.array(SPECIAL), anything, rng.uniform(lo, hi, count), rng.standard_normal(count) * 1e-3]
    return np.concatenate([p.astype(np.float32) for p in [*parts, 1 + parts[-1]]])


@pytest.mark.parametrize("target", ["host", "portable"])
@pytest.mark.parametrize("op", SINGLE)
def test_float32_functions(op: str, target: str) -> None:
    data = inputs32(op)
    x = tbe.placeholder(data.shape, "float32")
    (got,) = run([x], [tbe.unary(op, x)], {x: data}, target)
    with np.errstate(all="ignore"):
        error = ulps(got, _UNARY[op](data.astype(np.float64)), np.float32)
    worst = int(np.argmax(error))
    assert error[worst] <= SINGLE[op][0], (
        f"{op}({data[worst]!r}) = {got[worst]!r}, {error[worst]:.2f} ulp off"
    )


@pytest.mark.parametrize("op", ["exp", "tanh", "erf", "erfc", "sigmoid"])
@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_narrow_vectors_are_as_good(op: str, lanes: int) -> None:
    data = np.random.default_rng(2).uniform(-5, 5, (500, lanes)).astype(np.float32)
    x, shift = tbe.placeholder(data.shape, "float32"), tbe.placeholder((lanes,), "float32")
    (got,) = run([x, shift], [tbe.unary(op, x + shift)], {x: data, shift: np.zeros(lanes, np.float32)})
    error = ulps(got, _UNARY[op](data.astype(np.float64)), np.float32)
    assert error.max() <= max(2.5, SINGLE[op][0])


DOUBLE = [op for op in SINGLE if op not in SLOW_ORACLE]


@pytest.mark.parametrize("target", ["host", "portable"])
@pytest.mark.parametrize("op", DOUBLE)
def test_float64_functions(op: str, target: str) -> None:
    rng = np.random.default_rng(4)
    _, lo, hi = SINGLE[op]
    scale = 8 if op in ("exp", "exp2", "sinh", "cosh", "sigmoid", "expm1", "softplus") else 1
    parts = [np.array([*SPECIAL, 5e-324, -1e-310, 1.7e308]), rng.uniform(lo * scale, hi * scale, 20_000)]
    data = np.concatenate([*parts, rng.standard_normal(5000) * 1e-3, 1 + rng.standard_normal(5000) * 1e-3])
    x = tbe.placeholder(data.shape, "float64")
    (got,) = run([x], [tbe.unary(op, x)], {x: data}, target)
    wide = data.astype(np.longdouble)
    with np.errstate(all="ignore"):
        truth = (1 / wide) if op == "reciprocal" else _UNARY[op](wide)
        error = ulps(got, truth, np.float64)
    worst = int(np.argmax(error))
    assert error[worst] <= 4, f"{op}({data[worst]!r}) = {got[worst]!r}, {error[worst]:.2f} ulp off"


@pytest.mark.parametrize("target", ["host", "portable"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
def test_angles_of_every_binade(op: str, dtype: str, target: str) -> None:
    info, rng = np.finfo(dtype), np.random.default_rng(5)
    exponents = np.arange(int(info.minexp) - int(info.nmant), int(info.maxexp))
    factors = rng.uniform(1, 2 - 2.0**-10, (9, 1)) * rng.choice([-1, 1], (9, 1))
    hardest = [] if dtype != "float64" else [6381956970095103 * 2.0**797]  # the nearest to a multiple of pi/2
    data = np.concatenate([np.ldexp(factors, exponents).ravel(), hardest]).astype(dtype)
    # vectors with one large argument among small ones, and with infinities and NaN
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0], dtype)
    data = np.concatenate([data, rng.permutation(data), special])
    x = tbe.placeholder(data.shape, dtype)
    (got,) = run([x], [tbe.unary(op, x)], {x: data}, target)
    with np.errstate(all="ignore"):
        error = ulps(got, _UNARY[op](data.astype(np.longdouble)), np.dtype(dtype).type)
    worst = int(np.argmax(error))
    assert error[worst] <= 2, f"{op}({data[worst]!r}) = {got[worst]!r}, {error[worst]:.2f} ulp off"
    zeros = data == 0
    assert op == "cos" or np.array_equal(np.signbit(got[zeros]), np.signbit(data[zeros]))


@pytest.mark.parametrize("target", ["host", "portable"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "op", ["sin", "tan", "asin", "atan", "sinh", "asinh", "tanh", "atanh", "erf", "expm1", "log1p"]
)
def test_odd_functions_keep_the_sign_of_zero(op: str, dtype: str, target: str) -> None:
    data = np.array([0.0, -0.0] * 20, dtype)
    x = tbe.placeholder(data.shape, dtype)
    (got,) = run([x], [tbe.unary(op, x)], {x: data}, target)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(data))


@pytest.mark.parametrize("target", ["host", "portable"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_sign_of_either_zero_is_zero_without_a_sign(dtype: str, target: str) -> None:
    data = np.array([0.0, -0.0, np.nan, -2.0, np.inf] * 8, dtype)
    x = tbe.placeholder(data.shape, dtype)
    (got,) = run([x], [tbe.unary("sign", x)], {x: data}, target)
    np.testing.assert_array_equal(got, np.sign(data))
    assert not np.signbit(got[data == 0]).any()


@pytest.mark.parametrize("op", SLOW_ORACLE)
def test_float64_special_functions(op: str) -> None:
    mp = pytest.importorskip("mpmath")
    rng = np.random.default_rng(4)
    lo, hi = {
        "erf": (-6, 6),
        "erfc": (-5, 26),
        "gelu_slope": (-9, 9),
        "normal_excess": (-9, 9),
        **dict.fromkeys(TANH, (-4, 4)),
        "lgamma": (0.01, 60),
        "digamma": (2, 60),
    }[op]
    data = rng.uniform(lo, hi, 300)
    x = tbe.placeholder(data.shape, "float64")
    (got,) = run([x], [tbe.unary(op, x)], {x: data})

    root, cube = mp.sqrt(2 / mp.pi), mp.mpf("0.044715")

    def inner(v: Any) -> Any:
        return root * (v + cube * v**3)

    exact = {
        "erf": mp.erf,
        "erfc": mp.erfc,
        "gelu_slope": lambda v: mp.erf(v * mp.sqrt(0.5)) / 2 + v * mp.npdf(v),
        "normal_excess": lambda v: mp.erf(v * mp.sqrt(0.5)) / 2,
        "tanh_gelu_slope": lambda v: (
            mp.tanh(inner(v)) / 2 + v * root * (1 + 3 * cube * v**2) * mp.sech(inner(v)) ** 2 / 2
        ),
        "tanh_normal_excess": lambda v: mp.tanh(inner(v)) / 2,
        "lgamma": mp.loggamma,
        "digamma": mp.digamma,
    }[op]
    truth = np.array([float(exact(mp.mpf(v))) for v in data])
    assert ulps(got, truth, np.float64).max() <= 4


@pytest.mark.parametrize("target", ["host", "portable"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["pow", "atan2"])
def test_powers_and_angles(op: str, dtype: str, target: str) -> None:
    kind = np.dtype(dtype).type
    rng = np.random.default_rng(6)
    edge = np.array([*SPECIAL, 3.0, -3.0, 7.5, 1e300 if dtype == "float64" else 1e30])
    grid = np.meshgrid(edge, edge)
    a = np.concatenate([grid[0].ravel(), np.abs(rng.standard_normal(5000)) * 10, rng.standard_normal(2000)])
    b = np.concatenate(
        [grid[1].ravel(), rng.standard_normal(5000) * 20, np.round(rng.standard_normal(2000) * 5)]
    )
    a, b = a.astype(kind), b.astype(kind)
    x, y = tbe.placeholder(a.shape, dtype), tbe.placeholder(b.shape, dtype)
    (got,) = run([x, y], [tbe.binary(op, x, y)], {x: a, y: b}, target)
    wide = np.float64 if dtype == "float32" else np.longdouble
    with np.errstate(all="ignore"):
        error = ulps(got, _BINARY[op](a.astype(wide), b.astype(wide)), kind)
    worst = int(np.argmax(error))
    assert error[worst] <= 2, f"{op}({a[worst]!r}, {b[worst]!r}) = {got[worst]!r}, {error[worst]:.2f} ulp off"


def test_huge_angles_stay_in_range() -> None:
    data = np.array([1e10, -1e15, 3e38, 1e9], np.float32)
    x = tbe.placeholder(data.shape, "float32")
    for op in ("sin", "cos"):
        (got,) = run([x], [tbe.unary(op, x)], {x: data})
        assert (np.abs(got) <= 1).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["exp", "tanh", "log", "erf", "sigmoid", "sin"])
def test_short_floats_round_once(op: str, dtype: str) -> None:
    data = np.linspace(-4, 4, 500).astype(tbe.numpy_dtype(dtype))
    x = tbe.placeholder(data.shape, dtype)
    (got,) = run([x], [tbe.unary(op, x)], {x: data})
    with np.errstate(all="ignore"):
        want = _UNARY[op](data.astype(np.float64)).astype(data.dtype)
    wrong = (got != want) & ~(np.isnan(got.astype(float)) & np.isnan(want.astype(float)))
    assert wrong.mean() < 0.002  # only where float32 itself falls on the other side of a tie


@pytest.mark.parametrize("op", ["erf", "gelu_slope", "normal_excess", *TANH])
def test_tables_for_narrow_numbers(op: str) -> None:
    """More lanes than the table has entries."""
    x = tbe.placeholder((4096,), "bfloat16")
    data = np.linspace(-5, 5, 4096, dtype=np.float32).astype(ml_dtypes.bfloat16)
    (found,) = run([x], [tbe.unary(op, x)], {x: data})
    expected = _UNARY[op](data.astype(np.float64))
    assert np.abs(found.astype(np.float64) - expected).max() <= 2.0**-9
