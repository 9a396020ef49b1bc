"""TIK, the imperative kernel language: tensors in memory scopes, loops, masked vector instructions, block moves.

A program is recorded while the operator file runs and then compiled to machine code with the interpreter's semantics:
repeats in order, blocks of 32 bytes, masks by lane. Programs that cannot be compiled are interpreted.

>>> import numpy as np
>>> t = Tik(Dprofile())
>>> x = t.Tensor("float32", (64,), name="x", scope=scope_gm)
>>> y = t.Tensor("float32", (64,), name="y", scope=scope_gm)
>>> ub = t.Tensor("float32", (64,), name="ub", scope=scope_ubuf)
>>> t.data_move(ub, x, 0, 1, 8, 0, 0)
>>> t.vec_adds(64, ub, ub, 1.0, 1, 8, 8)
>>> t.data_move(y, ub, 0, 1, 8, 0, 0)
>>> t.BuildCCE(kernel_name="increment", inputs=[x], outputs=[y]).run(np.zeros(64, np.float32))[0][:3]
array([1., 1., 1.], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from tbe.tik.builder import Dprofile, Program, Tik, builds_of
from tbe.tik.expression import TikError, all, any, negate
from tbe.tik.tensor import SCOPES

__all__ = ["Dprofile", "Program", "Tik", "TikError", "all", "any", "builds_of", "negate", *SCOPES]

scope_gm, scope_ubuf, scope_cbuf = "global", "local.UB", "local.L1"
scope_cbuf_out, scope_ca, scope_cb, scope_cc = "local.L1_out_buffer", "local.L0A", "local.L0B", "local.L0C"
scope_ubuf_out = "local.UB_out"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise TikError(f"tik.{name} is not provided")
