"""The classes of expressions, by which operator files tell numbers from variables."""

from tbe.dsl.tensor import Expr, FloatImm, IntImm
from tbe.dsl.tensor import IterVar as IterVar
from tbe.dsl.tensor import SymbolicVar as Var

ConstExpr = (IntImm, FloatImm)

__all__ = ["ConstExpr", "Expr", "FloatImm", "IntImm", "IterVar", "Var"]
