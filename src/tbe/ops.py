"""The scalar operations of the language, with operand types, result types and costs."""

from __future__ import annotations

from dataclasses import dataclass

from tbe.dtypes import DTYPES, dtype_of

__all__ = ["BINARY", "REDUCTIONS", "SCANS", "UNARY", "Op", "binary_dtype", "unary_dtype"]

_FLOAT = frozenset(n for n, d in DTYPES.items() if d.is_float)
_INT = frozenset(n for n, d in DTYPES.items() if d.is_int)
_BOOL = frozenset(["bool"])
_NUMBER = _FLOAT | _INT
_ANY = _NUMBER | _BOOL


@dataclass(frozen=True)
class Op:
    """One scalar operation; `cost` is approximately in vector instructions on float32."""

    name: str
    accepts: frozenset[str]
    cost: float
    to_bool: bool = False
    exact: bool = False  # the result for rounded operands needs no rounding (max, neg, floor...)


def _table(*rows: tuple[str, frozenset[str], float, str]) -> dict[str, Op]:
    table: dict[str, Op] = {}
    for names, accepts, cost, flags in rows:
        for name in names.split():
            table[name] = Op(name, accepts, cost, "bool" in flags, "exact" in flags)
    return table


UNARY: dict[str, Op] = _table(
    ("abs neg sign relu", _NUMBER, 1, "exact"),
    ("square", _NUMBER, 1, ""),
    ("floor ceil round trunc", _NUMBER, 1, "exact"),
    ("sqrt reciprocal", _FLOAT, 5, ""),
    ("rsqrt", _FLOAT, 9, ""),
    ("exp exp2", _FLOAT, 13, ""),
    ("expm1 log log2 sigmoid tanh", _FLOAT, 20, ""),
    ("log1p softplus erf", _FLOAT, 24, ""),
    ("gelu_slope normal_excess tanh_gelu_slope tanh_normal_excess", _FLOAT, 20, ""),
    ("narrow_gelu_slope narrow_normal_share narrow_tanh_gelu_slope", _FLOAT, 20, ""),
    ("sin cos", _FLOAT, 30, ""),
    ("tan asin acos atan sinh cosh asinh acosh atanh erfc", _FLOAT, 70, ""),
    ("lgamma digamma", _FLOAT, 200, ""),
    ("not", _BOOL, 1, "exact"),
    ("bitwise_not", _INT, 1, "exact"),
    ("isnan isinf isfinite", _FLOAT, 1, "bool"),
)

BINARY: dict[str, Op] = _table(
    ("add sub mul", _NUMBER, 1, ""),
    ("div", _NUMBER, 5, ""),
    ("floordiv", _NUMBER, 8, ""),
    ("fmod", _NUMBER, 40, "exact"),
    ("mod", _NUMBER, 40, ""),
    ("pow atan2", _NUMBER, 80, ""),
    ("max min", _NUMBER, 1, "exact"),
    ("and or xor", _BOOL, 1, "exact"),
    ("bitand bitor bitxor shl shr", _INT, 1, "exact"),
    ("eq ne lt le gt ge", _ANY, 1, "bool"),
)
BINARY["atan2"] = Op("atan2", _FLOAT, 80)

REDUCTIONS: dict[str, frozenset[str]] = {
    "sum": _NUMBER,
    "prod": _NUMBER,
    "max": _NUMBER,
    "min": _NUMBER,
    "any": _BOOL,
    "all": _BOOL,
    "argmax": _NUMBER,
    "argmin": _NUMBER,
}

SCANS: dict[str, frozenset[str]] = {"sum": _NUMBER, "prod": _NUMBER, "max": _NUMBER, "min": _NUMBER}


def _checked(table: dict[str, Op], kind: str, name: str, dtype: str) -> str:
    op = table.get(name)
    if op is None:
        raise ValueError(f"unknown {kind} operation {name!r}; expected one of {' '.join(table)}")
    if dtype not in op.accepts:
        dtype_of(dtype)
        raise TypeError(f"{name} does not take {dtype}; it takes {', '.join(sorted(op.accepts))}")
    return "bool" if op.to_bool else dtype


def unary_dtype(name: str, dtype: str) -> str:
    """The result type of a unary operation on `dtype`; raises if it does not support that type."""
    return _checked(UNARY, "unary", name, dtype)


def binary_dtype(name: str, left: str, right: str) -> str:
    """The result type of a binary operation; both operands must have one type."""
    if left != right:
        raise TypeError(f"{name} needs operands of one dtype, got {left} and {right}; cast one of them")
    return _checked(BINARY, "binary", name, left)
