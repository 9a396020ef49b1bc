"""Machine code of TIK programs beside their interpreter, on random programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tbe import tik
from tbe.dtypes import DTYPES, numpy_dtype

SIZE = 4096  # elements of each tensor
BINARY = ("add", "sub", "mul", "max", "min")
FLOAT_ONLY = ("div",)
FLOATS = ("abs", "exp", "relu", "rec", "rsqrt", "sqrt", "ln")
UNARY = {"float16": FLOATS, "float32": FLOATS, "int32": ("abs", "relu"), "int16": ("not", "relu")}
RELATIONS = ("lt", "le", "gt", "ge", "eq", "ne")


class Random:
    """A random program over three tensors of one type."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = str(self.rng.choice(["float16", "float32", "int32", "int16"]))
        self.width = 256 // DTYPES[self.dtype].size
        self.each = 32 // DTYPES[self.dtype].size
        self.t = tik.Tik(tik.Dprofile())
        self.x = self.t.Tensor(self.dtype, (SIZE,), name="x", scope=tik.scope_gm)
        self.y = self.t.Tensor(self.dtype, (SIZE - 3,), name="y", scope=tik.scope_gm)
        self.ub = [self.t.Tensor(self.dtype, (SIZE,), name=f"ub{i}", scope=tik.scope_ubuf) for i in range(3)]
        self.bits = self.t.Tensor("uint16", (SIZE // 8,), name="bits", scope=tik.scope_ubuf)
        self.n = self.t.InputScalar("int32", name="n")
        self.exact = True
        blocks = SIZE // self.each
        for tensor in self.ub:
            self.t.data_move(tensor, self.x, 0, 1, blocks, 0, 0)
        self.t.vec_dup(64, self.bits, 21845, SIZE // 8 // 64 // 2, 4)

    def of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def place(self) -> Any:
        return self.of(*self.ub)[self.of(0, 0, self.each, 5 * self.each)]

    def mask(self) -> Any:
        low = int(self.rng.integers(1, 2 ** min(self.width, 63)))
        return self.of(self.width, self.width, int(self.rng.integers(1, self.width + 1)), self.n, [0, low])

    def strides(self, count: int) -> list[int]:
        return [self.of(8, 8, 8, 0, 1, 9) for _ in range(count)]

    def step(self) -> None:
        t, repeats = self.t, self.of(1, 2, 3)
        kind = self.of(
            "binary", "unary", "scalar", "dup", "select", "reduce", "strided", "loop", "element", "move"
        )
        getattr(self, f"_{kind}")(t, repeats)

    def _binary(self, t: Any, repeats: int) -> None:
        name = self.of(*BINARY, *(FLOAT_ONLY if self.dtype.startswith("float") else ()))
        args = self.mask(), self.place(), self.place(), self.place(), repeats
        getattr(t, f"vec_{name}")(*args, *self.strides(3))

    def _strided(self, t: Any, repeats: int) -> None:
        blocks = [self.of(0, 1, 2, 3) for _ in range(3)]
        t.vadd(self.mask(), self.place(), self.place(), self.place(), repeats, *blocks, *self.strides(3))

    def _unary(self, t: Any, repeats: int) -> None:
        name = self.of(*UNARY[self.dtype])
        self.exact = self.exact and name not in ("exp", "ln")
        getattr(t, f"vec_{name}")(self.mask(), self.place(), self.place(), repeats, *self.strides(2))

    def _scalar(self, t: Any, repeats: int) -> None:
        name = self.of("adds", "muls", "maxs", "mins")
        getattr(t, f"vec_{name}")(self.mask(), self.place(), self.place(), 3, repeats, *self.strides(2))

    def _dup(self, t: Any, repeats: int) -> None:
        t.vec_dup(self.mask(), self.place(), self.of(2, self.ub[0][7]), repeats, self.of(8, 1, 9))

    def _select(self, t: Any, repeats: int) -> None:
        if self.dtype not in ("float16", "float32"):
            return
        first, second, third = (self.ub[i] for i in self.rng.permutation(3))
        getattr(t, f"vec_cmpv_{self.of(*RELATIONS)}")(self.bits, first, second, repeats, *self.strides(2))
        mode = self.of(0, 1, 2)
        t.vec_sel(self.mask(), mode, third, self.bits, first, 1.5 if mode == 1 else second, repeats, 8, 8, 8)

    def _reduce(self, t: Any, repeats: int) -> None:
        first, second, third = (self.ub[i] for i in self.rng.permutation(3))
        count = int(self.rng.integers(1, self.width + 1))
        name = self.of("vcadd", "vcmax", "vcmin", "vcgadd", "vcgmax", "vec_reduce_add", "vec_reduce_max")
        if name.startswith("vec_reduce"):
            more = {"cal_index": True} if name.endswith("max") else {}
            getattr(t, name)(count, first, second, third, repeats, 8, **more)
        elif name.startswith("vcg"):
            getattr(t, name)(self.width, first, second, repeats, self.of(1, 2), 1, 8)
        else:
            getattr(t, name)(count, first, second, repeats, self.of(1, 2), 1, 8)

    def _loop(self, t: Any, repeats: int) -> None:
        source, target = self.of(*self.ub), self.of(*self.ub)
        total = t.Scalar("int32", init_value=1)
        with t.for_range(0, self.of(3, self.n)) as i:
            with t.if_scope(tik.any(i % 2 == 0, i > 5)):
                total.set_as(total + i * 2)
            with t.else_scope():
                total.set_as(total - 1)
            with t.if_scope(i > 8):
                t.tik_break()
            t.vec_adds(self.width, target[i * self.each], source[(i + 1) * self.each], total, 1, 8, 8)

    def _element(self, t: Any, repeats: int) -> None:
        source, target = self.of(*self.ub), self.of(*self.ub)
        kept = t.Scalar(self.dtype)
        kept.set_as(source[self.n + 3])
        target[self.n * 2].set_as(kept)

    def _move(self, t: Any, repeats: int) -> None:
        t.data_move(self.of(*self.ub), self.x[self.each * 3], 0, repeats, 5, self.of(0, 3), self.of(0, 2))

    def build(self, steps: int) -> tik.Program:
        for _ in range(steps):
            self.step()
        with self.t.for_range(0, 3) as i:
            share = SIZE // 4
            self.t.data_move(self.y[i * share], self.ub[0][share], 0, 1, share // self.each, 0, 0)
        self.t.data_move(self.y[SIZE - 2 * self.each], self.ub[1], 0, 1, 2, 0, 0)
        for i, tensor in enumerate(self.ub):
            self.t.data_move(self.y[i * (SIZE // 4)], tensor, 0, 1, SIZE // 4 // self.each, 0, 0)
        return self.t.BuildCCE("random", inputs=[self.x, self.n], outputs=[self.y])


@pytest.mark.parametrize("seed", range(40))
def test_machine_code_does_what_the_interpreter_does(seed: int) -> None:
    made = Random(seed)
    program = made.build(6)
    assert not isinstance(program.native, str), program.native
    kind = numpy_dtype(made.dtype)
    for n in (1, 7):
        x = made.rng.uniform(-60, 60, SIZE).astype(kind)
        with np.errstate(all="ignore"):
            (wanted,) = program.interpret(x, n)
        found = program.native([x, n])
        assert found is not None, "a check that the interpreter does not make"
        if made.exact:
            np.testing.assert_array_equal(found[0], wanted)
        else:
            np.testing.assert_allclose(
                found[0].astype(np.float64),
                wanted.astype(np.float64),
                rtol=2e-3 if kind.itemsize == 2 else 2e-6,
            )


def test_what_has_no_machine_code_is_interpreted() -> None:
    t = tik.Tik(tik.Dprofile())
    x = t.Tensor("int32", (64,), name="x", scope=tik.scope_gm)
    ub = t.Tensor("int32", (64,), name="ub", scope=tik.scope_ubuf, init_value=np.full(64, 5, np.int32))
    t.vec_div(64, ub, ub, ub, 1, 8, 8, 8)
    t.data_move(x, ub, 0, 1, 8, 0, 0)
    program = t.BuildCCE("whole", inputs=[], outputs=[x])
    assert program.native == "tensor ub has an initial value"
    assert (program.run()[0] == 1).all()


def test_machine_code_of_a_broken_rule_ends_and_the_interpreter_names_it() -> None:
    t = tik.Tik(tik.Dprofile())
    x = t.Tensor("float32", (64,), name="x", scope=tik.scope_gm)
    ub = t.Tensor("float32", (64,), name="ub", scope=tik.scope_ubuf)
    n = t.InputScalar("int32", name="n")
    t.data_move(ub, x, 0, 1, 8, 0, 0)
    t.vec_adds(8, ub[n], ub, 1.0, 1, 8, 8)
    t.data_move(x, ub, 0, 1, 8, 0, 0)
    program = t.BuildCCE("broken", inputs=[x, n], outputs=[x])
    zeros = np.zeros(64, np.float32)
    assert program.run(zeros, 56)[0].sum() == 8
    for place, cause in (
        (64, "reaches elements 64 to 71"),
        (4, "not a multiple of 32"),
        (-8, "reaches elements -8"),
    ):
        assert not isinstance(program.native, str) and program.native([zeros, place]) is None
        with pytest.raises(tik.TikError, match=cause):
            program.run(zeros, place)
