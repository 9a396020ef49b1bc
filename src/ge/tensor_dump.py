"""Dumps the tensors of operators as they run, and the operators that overflow: `dump_config` and related options.

    <dump_path>/<time>/<device>/<program>/<number>/<step>/
        <operators>.<node>.<task>.<turn>.<microseconds>.<input|output>.<index>.npy
        tensors.csv           one line a tensor: nodes, type, shape, least, greatest, mean, values that are not finite
    <dump_path>/<time>/overflow.csv

An operator is a task of a compiled program, which may stand for several nodes of the framework. A step is a run of its
program; a turn counts how often a task has run in it (loops, parts of a batch). bfloat16 is written as float32.
An operator overflows if a floating-point result is not finite while all its inputs are, or if a weight is not finite
after rounding to float16. Settings apply to the process. Programs on GPUs are not observed.
"""

from __future__ import annotations

import csv
import ctypes
import re
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ge.ir.types import numpy_dtype
from ge.options.table import OPTIONS, tell_once
from ge.plan import Plan, Task, View
from npu_runtime import _native

__all__ = [
    "NAMES",
    "Overflow",
    "Settings",
    "apply",
    "dump_to",
    "folders",
    "overflows",
    "register",
    "settings_of",
]

NAMES = (
    *("enable_dump", "dump_path", "dump_step", "dump_mode", "dump_data", "dump_layer"),
    *("enable_dump_debug", "dump_debug_mode"),
)
_FOLDER = Path("npu_dump")  # without a dump_path
_SIDES = {"input": ("input",), "output": ("output",), "all": ("input", "output")}
_MOST_OVERFLOWS = 1000
_MOST_RUNS = 64  # runs whose turns are counted at a time
_CORE = ("AI Core", "vector")  # engines whose overflows are "aicore_overflow"
_COLUMNS = ("task", "turn", "operators", "node", "origin", "side", "index", "dtype", "shape", "least", "greatest",
            "mean", "not_finite", "file")  # fmt: skip


class Loaded(Protocol):
    """A loaded model, as far as it is needed here."""

    plan: Plan
    unknown_constants: frozenset[int]  # of which only the packed form is in memory


@dataclass(frozen=True)
class Settings:
    """What to write, and where."""

    folder: Path = _FOLDER
    tensors: bool = True
    sides: tuple[str, ...] = ("output",)
    steps: str = ""  # "0|5-10"; "" for all
    layers: frozenset[str] = frozenset()  # nodes; none for all
    statistics: bool = False  # tensors.csv only
    overflow: str = ""  # "" | "all" | "aicore_overflow" | "atomic_overflow"
    models: frozenset[str] = frozenset()  # programs by name; none for all

    def wants_step(self, step: int) -> bool:
        """
        >>> [step for step in range(12) if Settings(steps="0|5-7|10").wants_step(step)]
        [0, 5, 6, 7, 10]
        """
        if not self.steps:
            return True
        ends = (part.partition("-") for part in self.steps.split("|"))
        return any(int(first) <= step <= int(last or first) for first, _, last in ends)

    def wants(self, plan: Plan, task: Task) -> bool:
        """True if the tensors of a task are written."""
        if self.models and plan.name not in self.models:
            return False
        return not self.layers or bool(self.layers & {task.name, _node(task), *task.origin})


def settings_of(values: Mapping[str, Any]) -> Settings | None:
    """The settings that options by name (parsed values) ask for; None if they ask for nothing.

    >>> settings_of({"enable_dump": True, "dump_path": Path("out"), "dump_mode": "all"}).sides
    ('input', 'output')
    >>> settings_of({"dump_path": Path("out")}) is None
    True
    """
    given = {name: OPTIONS[name].default for name in NAMES}
    given |= {name: values[name] for name in NAMES if values.get(name) is not None}
    if not given["enable_dump"] and not given["enable_dump_debug"]:
        return None
    return Settings(
        given["dump_path"] or _FOLDER,
        given["enable_dump"],
        _SIDES[given["dump_mode"]],
        given["dump_step"],
        frozenset(given["dump_layer"].split()),
        given["dump_data"] == "stats",
        given["dump_debug_mode"] if given["enable_dump_debug"] else "",
    )


@dataclass(frozen=True)
class Overflow:
    """An operator that overflowed: the number of values and the output, and the largest finite value that it read."""

    program: str
    step: int
    task: int
    turn: int
    operators: str
    node: str
    origin: tuple[str, ...]
    output: int
    dtype: str
    not_finite: int
    size: int
    largest_input: float


# -- active dumps ---------------------------------------------------------------------------------------------------


@dataclass
class _Dump:
    """One owner's dump: its settings, the folder of this start, the overflows it has found."""

    settings: Settings
    began: str = field(default_factory=lambda: time.strftime("%Y%m%d%H%M%S"))
    found: list[Overflow] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.settings.folder / self.began

    def before(self, plan: Plan, task: Task, step: int) -> bool:
        """True if a task is observed."""
        chosen = self.settings.wants_step(step) and self.settings.wants(plan, task)
        return chosen and (self.settings.tensors or self._detects(task))

    def _detects(self, task: Task) -> bool:
        mode = self.settings.overflow
        return mode == "all" or (mode == "aicore_overflow" and task.engine in _CORE)

    def after(self, seen: _Seen, results: Sequence[np.ndarray]) -> None:
        """Write what a task has read and computed, and whether it overflowed."""
        flaw = self._overflow(seen, results) if self._detects(seen.task) else None
        if flaw is not None and len(self.found) < _MOST_OVERFLOWS:
            self.found.append(flaw)
            self._note(flaw)
        if self.settings.tensors:
            self._write(seen, results, self.settings.sides)
        elif flaw is not None:
            self._write(seen, results, _SIDES["all"])

    @staticmethod
    def _overflow(seen: _Seen, results: Sequence[np.ndarray]) -> Overflow | None:
        views = zip(seen.task.inputs, seen.inputs, strict=True)
        if any(_not_finite(a) and not seen.is_weight(view, a) for view, a in views if a is not None):
            return None
        for index, array in enumerate(results):
            lost = _not_finite(array)
            if lost:
                largest = max((_largest(a) for a in seen.inputs if a is not None), default=0.0)
                return Overflow(
                    seen.plan.name, seen.step, seen.number, seen.turn, _operators(seen.task), _node(seen.task),
                    seen.task.origin, index, seen.task.outputs[index].dtype, lost, array.size, largest,
                )  # fmt: skip
        return None

    def _note(self, flaw: Overflow) -> None:
        if sum((flaw.program, flaw.task) == (other.program, other.task) for other in self.found) == 1:
            tell_once(
                f"{flaw.operators} (node {flaw.node}) overflows in step {flaw.step} of {flaw.program}: "
                f"{flaw.not_finite} of {flaw.size} values ({flaw.dtype}) are not finite. Keep it in float32 "
                "(modify_mixlist), or scale what it reads; tf-adapter check --mixlist finds which operators to keep"
            )
        names = tuple(Overflow.__dataclass_fields__)
        row = [" ".join(v) if isinstance(v, tuple) else v for v in (getattr(flaw, name) for name in names)]
        _append(self.folder / "overflow.csv", names, [row])

    def _write(self, seen: _Seen, results: Sequence[np.ndarray], sides: Iterable[str]) -> None:
        place = (
            self.folder / str(seen.device) / _file_name(seen.plan.name) / str(seen.program) / str(seen.step)
        )
        place.mkdir(parents=True, exist_ok=True)
        start = (
            f"{_file_name(_operators(seen.task))}.{_file_name(_node(seen.task))}.{seen.number}.{seen.turn}"
        )
        stamp = time.time_ns() // 1000
        rows = []
        for side in sides:
            views = seen.task.inputs if side == "input" else seen.task.outputs
            arrays: Sequence[np.ndarray | None] = seen.inputs if side == "input" else results
            for index, (view, array) in enumerate(zip(views, arrays, strict=True)):
                name = ""
                if array is not None and not self.settings.statistics:
                    name = f"{start}.{stamp}.{side}.{index}.npy"
                    np.save(place / name, _writable(array))
                rows.append(
                    [seen.number, seen.turn, _operators(seen.task), _node(seen.task), " ".join(seen.task.origin), side,
                     index, view.dtype, "x".join(map(str, view.shape)), *_statistics(array), name]
                )  # fmt: skip
        _append(place / "tensors.csv", _COLUMNS, rows)


_lock = threading.Lock()
_dumps: dict[str, _Dump] = {}
_models: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def register(program: Any, model: Any) -> None:
    """Register the model (a `Loaded`) of a program, so that its tasks can be identified."""
    if isinstance(program, _native.Program):
        _models[program.number] = model
    elif _dumps:
        tell_once(f"the tensors of '{model.name}' are not written: its program runs on a GPU")


def apply(values: Mapping[str, Any], owner: str = "options") -> None:
    """Apply the options of a front door to the whole process."""
    dump_to(settings_of(values), owner)


def dump_to(settings: Settings | None, owner: str) -> None:
    """Start, change or end the dump of an owner."""
    with _lock:
        before = _dumps.get(owner)
        if (before.settings if before else None) == settings:
            return
        if settings is None:
            del _dumps[owner]
        else:
            _dumps[owner] = _Dump(settings)
        _native.set_observer(_OBSERVER if _dumps else None)


def folders() -> list[Path]:
    """The folders of the active dumps."""
    return [dump.folder for dump in tuple(_dumps.values())]


def overflows() -> list[Overflow]:
    """The overflows found since the active dumps started."""
    return [flaw for dump in tuple(_dumps.values()) for flaw in dump.found]


# -- the observer ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """A task that has started, with copies of its inputs; None for a constant that is only in memory in packed form."""

    device: int
    program: int
    plan: Plan
    number: int
    step: int
    turn: int
    inputs: list[np.ndarray | None]
    dumps: tuple[_Dump, ...]

    @property
    def task(self) -> Task:
        return self.plan.tasks[self.number]

    def is_weight(self, view: View, array: np.ndarray) -> bool:
        """True if an input is a weight that became non-finite when rounded to float16; a mask of -inf is not."""
        constant = self.plan.buffers[view.buffer].kind == "constant"
        return constant and not bool(np.isneginf(array[~np.isfinite(array)]).all())


class _Observer:
    """Called by the runtime around every task."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, int, int], _Seen] = {}
        self._turns: dict[tuple[int, int], Counter[int]] = {}

    def __call__(
        self,
        device: int,
        program: int,
        run: int,
        task: int,
        done: bool,
        arena: int,
        inputs: list[int],
        outputs: list[int],
    ) -> None:
        """Observe a task before (not `done`) and after it has run."""
        model: Loaded | None = _models.get(program)
        if model is None:
            return
        memory = _Memory(model, arena, inputs, outputs)
        try:
            if not done:
                self._begin(device, program, run, task, memory)
            elif (seen := self._begun.pop((program, run, task), None)) is not None:
                results = [memory.read(view) for view in seen.task.outputs]
                for dump in seen.dumps:
                    dump.after(seen, [array for array in results if array is not None])
        except OSError as error:
            tell_once(f"tensors are not written: {error}. Name a dump_path that can be written")

    def _begin(self, device: int, program: int, run: int, number: int, memory: _Memory) -> None:
        plan = memory.model.plan
        task = plan.tasks[number]
        dumps = tuple(dump for dump in tuple(_dumps.values()) if dump.before(plan, task, run))
        turns = self._turns.setdefault((program, run), Counter())
        turns[number] += 1
        while len(self._turns) > _MOST_RUNS:
            self._turns.pop(next(iter(self._turns)))
        if dumps:
            read = [memory.read(view) for view in task.inputs]
            seen = _Seen(device, program, plan, number, run, turns[number] - 1, read, dumps)
            self._begun[program, run, number] = seen


_OBSERVER = _Observer()


class _Memory:
    """The memory of a run: resolves views of a plan to tensors."""

    def __init__(self, model: Loaded, arena: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.model = model
        self._bases = {"input": inputs, "output": outputs}
        self._arena = arena

    def read(self, view: View) -> np.ndarray | None:
        """A copy of the tensor of a view."""
        buffer = self.model.plan.buffers[view.buffer]
        kind = np.dtype(numpy_dtype(view.dtype))
        if not view.nbytes:
            return np.empty(view.shape, kind)
        strides = tuple(s * kind.itemsize for s in view.strides)
        if buffer.kind == "constant":
            if buffer.index in self.model.unknown_constants:
                return None
            held: Any = (
                np.ascontiguousarray(self.model.plan.constants[buffer.index]).reshape(-1).view(np.uint8)
            )
        else:
            base = (
                self._arena + buffer.offset
                if buffer.kind == "arena"
                else self._bases[buffer.kind][buffer.index]
            )
            held = (ctypes.c_uint8 * buffer.nbytes).from_address(base)
        return np.ndarray(view.shape, kind, held, view.offset * kind.itemsize, strides).copy()


# -- tensors --------------------------------------------------------------------------------------------------------


def _floats(array: np.ndarray) -> np.ndarray | None:
    """A floating-point tensor in a type that NumPy computes in; None for others."""
    if array.dtype.kind == "f":
        return array
    return (
        array.astype(np.float32) if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") else None
    )


def _not_finite(array: np.ndarray) -> int:
    values = _floats(array)
    return 0 if values is None else int(values.size - np.isfinite(values).sum())


def _largest(array: np.ndarray) -> float:
    values = _floats(array)
    finite = np.empty(0) if values is None else np.abs(values[np.isfinite(values)])
    return float(np.max(finite, initial=0.0))


def _writable(array: np.ndarray) -> np.ndarray:
    """The tensor in a type that `.npy` files support."""
    values = _floats(array)
    if values is not None:
        return values
    return array if array.dtype.kind in "biuc" else array.astype(np.int8)


def _statistics(array: np.ndarray | None) -> tuple[Any, ...]:
    """Minimum, maximum and mean of the finite values, and the number of non-finite ones."""
    if array is None:
        return ("", "", "", "")
    values = _writable(array)
    values = (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64)
    finite = values[np.isfinite(values)]
    lost = values.size - finite.size
    return (finite.min(), finite.max(), finite.mean(), lost) if finite.size else ("", "", "", lost)


def _operators(task: Task) -> str:
    """The operators of a task.

    >>> _operators(Task("matmul", "MatMul+relu:dense/Relu", [], [])), _operators(Task("copy", "x", [], []))
    ('MatMul+relu', 'copy')
    """
    found, colon, _ = task.name.partition(":")
    return found if colon else task.kind


def _node(task: Task) -> str:
    return task.name.partition(":")[2] or task.name


def _file_name(text: str) -> str:
    """
    >>> _file_name("block/conv:0 +relu")
    'block_conv_0__relu'
    """
    return re.sub(r"[^\w-]", "_", text)[:120]


def _append(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with open(path, "a", newline="") as file:
        table = csv.writer(file)
        if new:
            table.writerow(columns)
        table.writerows(rows)
