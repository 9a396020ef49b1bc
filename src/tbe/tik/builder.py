"""Records TIK programs: `tik.Tik` with its tensors, scalars, scopes and instructions."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tbe.collected import Collected
from tbe.dtypes import DTYPES, numpy_dtype
from tbe.tik import tensor as tensors
from tbe.tik.expression import TikError, Variable
from tbe.tik.instructions import INSTRUCTIONS
from tbe.tik.machine import Machine
from tbe.tik.statements import Assign, Branch, Call, End, Loop, Statement, Store
from tbe.tik.tensor import CAPACITY, Memory

if TYPE_CHECKING:
    from tbe.tik.native import NativeProgram

__all__ = ["Dprofile", "Program", "Tik", "builds_of"]

_programs: Collected[Program] = Collected("tik_builds")
builds_of = _programs.inside  # collects the programs built inside


class Dprofile:
    """Properties of the core that operator files query."""

    def __init__(self, arch: str = "v100", version: str = "cloud") -> None:
        self.arch, self.version = arch, version

    def get_aicore_num(self) -> int:
        """Number of cores: 1."""
        return 1

    def get_unified_buffer_size(self) -> int:
        """Bytes of the Unified Buffer."""
        return CAPACITY["local.UB"]

    def get_l1_buffer_size(self) -> int:
        """Bytes of the L1 Buffer."""
        return CAPACITY["local.L1"]


@dataclass
class Program:
    """A finished program: inputs, outputs and statements."""

    name: str
    inputs: list[Any]
    outputs: list[tensors.Tensor]
    memories: list[Memory]
    body: list[Statement]

    _native: NativeProgram | str | None = None

    @property
    def native(self) -> NativeProgram | str:
        """The machine code of the program, or the reason why it is interpreted."""
        if self._native is None:
            from tbe.tik.native import NativeProgram, NotNative

            try:
                self._native = NativeProgram(self)
            except NotNative as reason:
                self._native = str(reason)
        return self._native

    def run(self, *values: Any) -> list[np.ndarray]:
        """Run the program on arrays (numbers for InputScalars), in the order of `inputs`.

        If a check fails in the machine code, the interpreter reports the violated rule.
        """
        if len(values) != len(self.inputs):
            raise TikError(f"{self.name} takes {len(self.inputs)} inputs, got {len(values)}")
        if not isinstance(self.native, str) and all(map(_fits, self.inputs, values)):
            found = self.native(values)
            if found is not None:
                return found
        return self.interpret(*values)

    def interpret(self, *values: Any) -> list[np.ndarray]:
        """Interpret the program statement by statement."""
        machine = Machine(self.memories)
        for port, value in zip(self.inputs, values, strict=True):
            if isinstance(port, Variable):
                machine.set(port, value)
            else:
                machine.fill(port.memory, np.asarray(value), port.shape)
        machine.run(self.body)
        return [machine.array(t.memory)[: t.size].reshape(t.shape).copy() for t in self.outputs]


def _fits(port: Any, value: Any) -> bool:
    """True if a value matches a port."""
    if isinstance(port, Variable):
        return np.ndim(value) == 0
    array = np.asarray(value)
    return array.dtype == numpy_dtype(port.memory.dtype) and array.size == port.memory.size


@dataclass
class _Frame:
    """A scope being recorded."""

    body: list[Statement]
    allocated: list[Memory] = field(default_factory=list)


class _Debugger:
    """`tik_instance.tikdb`: runs the recorded program."""

    def __init__(self, owner: Tik) -> None:
        self._owner = owner

    def start_debug(self, feed_dict: dict[str, Any], interactive: bool = False) -> list[np.ndarray]:
        """Run on inputs by name; returns the outputs."""
        program = self._owner.program
        if program is None:
            raise TikError("start_debug comes after BuildCCE")
        return program.run(*(feed_dict[port.name] for port in program.inputs))

    def debug_print(self, *_: Any) -> None:
        """Has no effect: nothing is printed."""


class Tik:
    """Records an operator file; instructions are methods (`data_move`, `vec_add`, `vadd`, …)."""

    def __init__(self, profile: Dprofile | None = None, disable_debug: bool = True, **_: Any) -> None:
        self.profile = self.d_profiling = profile or Dprofile()
        self.program: Program | None = None
        self.tikdb = _Debugger(self)
        self._memories: list[Memory] = []
        self._frames = [_Frame([])]
        self._names = 0

    # -- values ---------------------------------------------------------------------------------------------

    def Tensor(
        self,
        dtype: str,
        shape: Sequence[int],
        scope: str = "",
        name: str = "",
        init_value: Any = None,
        is_workspace: bool = False,
        **_: Any,
    ) -> tensors.Tensor:
        """Allocate a tensor: `tik.scope_gm` for operands and results, `tik.scope_ubuf` for a core's own memory."""
        sides = tuple(shape) if isinstance(shape, list | tuple) else (shape,)
        if not all(isinstance(d, int | np.integer) and d > 0 for d in sides):
            raise TikError(f"the shape of a tensor has to be known and positive, not {shape}")
        if dtype not in DTYPES:
            raise TikError(f"{dtype!r} is no element type")
        if scope != "global" and scope not in CAPACITY:
            raise TikError(f"{scope!r} is no scope of tensors: use tik.scope_gm or tik.scope_ubuf")
        memory = Memory(
            name or self._fresh("tensor"), dtype, math.prod(sides), scope, init_value, is_workspace
        )
        self._check_room(memory)
        self._memories.append(memory)
        self._frames[-1].allocated.append(memory)
        return tensors.Tensor(self, memory, tuple(int(d) for d in sides))

    def _check_room(self, new: Memory) -> None:
        if new.scope == "global":
            return
        live = [*(m for frame in self._frames for m in frame.allocated if m.scope == new.scope), new]
        used = sum(-(-m.nbytes // 32) * 32 for m in live)
        if used > CAPACITY[new.scope]:
            names = ", ".join(f"{m.name} {m.nbytes}" for m in live)
            raise TikError(
                f"{new.scope} has {CAPACITY[new.scope]} bytes, the tensors in it need {used}: {names}"
            )

    def Scalar(
        self, dtype: str = "int64", name: str = "", init_value: Any = None, **_: Any
    ) -> tensors.Scalar:
        """A number computed by the program."""
        scalar = tensors.Scalar(self, dtype, name or self._fresh("scalar"))
        if init_value is not None:
            scalar.set_as(init_value)
        return scalar

    def InputScalar(self, dtype: str = "int64", name: str = "") -> tensors.Scalar:
        """A number passed by the caller."""
        return tensors.Scalar(self, dtype, name or self._fresh("input"))

    def _fresh(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    # -- statements -----------------------------------------------------------------------------------------

    def _add(self, statement: Statement) -> None:
        self._frames[-1].body.append(statement)

    def assign(self, scalar: Variable, value: Any) -> None:
        """Set a scalar."""
        self._add(Assign(scalar, value.element() if isinstance(value, tensors.Tensor) else value, _line()))

    def store(self, place: tensors.Tensor, value: Any) -> None:
        """Write one element of a tensor."""
        self._add(Store(place, value.element() if isinstance(value, tensors.Tensor) else value, _line()))

    @contextlib.contextmanager
    def _scope(self, body: list[Statement]) -> Iterator[None]:
        self._frames.append(_Frame(body))
        try:
            yield
        finally:
            self._frames.pop()

    @contextlib.contextmanager
    def for_range(
        self,
        begint: Any,
        endt: Any,
        name: str = "i",
        thread_num: int = 1,
        block_num: int = 1,
        dtype: str = "int32",
        **_: Any,
    ) -> Iterator[Variable]:
        """A loop. Iterations run sequentially; the numbers of threads and blocks have no effect."""
        step = Variable(dtype, name)
        loop = Loop(step, begint, endt, [], _line(3))
        self._add(loop)
        with self._scope(loop.body):
            yield step

    @contextlib.contextmanager
    def if_scope(self, condition: Any) -> Iterator[None]:
        """Statements that run if a condition holds."""
        branch = Branch([(condition, [])], _line(3))
        self._add(branch)
        with self._scope(branch.parts[0][1]):
            yield

    @contextlib.contextmanager
    def elif_scope(self, condition: Any) -> Iterator[None]:
        """Statements that run if this condition holds and the previous ones do not."""
        last = self._frames[-1].body[-1] if self._frames[-1].body else None
        if not isinstance(last, Branch) or last.closed:
            raise TikError("elif_scope and else_scope follow an if_scope")
        part: list[Statement] = []
        last.parts.append((condition, part))
        with self._scope(part):
            yield

    @contextlib.contextmanager
    def else_scope(self) -> Iterator[None]:
        """Statements that run if no previous condition holds."""
        with self.elif_scope(True):
            yield
        last = self._frames[-1].body[-1]
        assert isinstance(last, Branch)
        last.closed = True

    @contextlib.contextmanager
    def new_stmt_scope(self, disable_sync: bool = False) -> Iterator[None]:
        """A scope for tensors."""
        with self._scope(self._frames[-1].body):
            yield

    def tik_break(self) -> None:
        """Leave the loop."""
        self._add(End("break"))

    def tik_continue(self) -> None:
        """Continue with the next iteration."""
        self._add(End("continue"))

    def tik_return(self) -> None:
        """End the program."""
        self._add(End("return"))

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Record an instruction."""
        instruction = INSTRUCTIONS.get(name)
        if instruction is None or name.startswith("_"):
            raise TikError(f"tik has no instruction {name!r} here; there are {', '.join(_similar(name))}")
        signature = inspect.signature(instruction)

        def record(*args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(None, *args, **kwargs)
            except TypeError as error:
                raise TikError(f"{name}: {error}") from error
            given = dict(list(bound.arguments.items())[1:])
            given |= given.pop("others", {})
            self._add(Call(name, instruction, tuple(given.items()), _line()))

        return record

    # -- building -------------------------------------------------------------------------------------------

    def BuildCCE(
        self, kernel_name: str, inputs: Sequence[Any], outputs: Sequence[tensors.Tensor], *_: Any, **__: Any
    ) -> Program:
        """Finish the program."""
        ports = list(inputs)
        for tensor in (*(p for p in ports if isinstance(p, tensors.Tensor)), *outputs):
            if tensor.scope != "global":
                raise TikError(f"{tensor.name} is an input or output and has to be in tik.scope_gm")
        self.program = Program(kernel_name, ports, list(outputs), self._memories, self._frames[0].body)
        found = _programs.found
        if found is not None:
            found.append(self.program)
        return self.program


def _similar(name: str) -> list[str]:
    """Instructions with similar names."""
    return difflib.get_close_matches(name, INSTRUCTIONS, 6, 0.4) or sorted(INSTRUCTIONS)[:6]


def _line(depth: int = 2) -> str:
    """Line of the operator file that a statement comes from."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        ("tbe.tik", "contextlib")
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
