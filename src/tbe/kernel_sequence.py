"""Splits an expression into several kernels if one cannot compute it, or cannot use all cores.

1. Large reductions with few results run in two steps: partial results on all cores, then their combination.
2. What one kernel can compute stays one kernel.
3. Otherwise the innermost reductions and scans become separate kernels, those over the same loops together, and the
   rest is examined again; an expression without reductions is cut by outputs, and finally in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tbe import expr as e
from tbe.lower import Unfusable
from tbe.processor import Processor
from tbe.schedule import Schedule, schedule
from tbe.substitute import inputs_first, substitute

__all__ = ["KernelSequence", "Step", "in_two_steps", "split_into_kernels"]

PIECES_PER_CORE = 16  # of a reduction in two steps
LEAST_PER_CORE = 2  # fewer pieces leave cores idle when one takes longer
_JOINED = frozenset(["sum", "prod", "max", "min", "any", "all"])


@dataclass(frozen=True)
class Step:
    """One kernel: its expressions, and the numbers of the values it reads and writes."""

    inputs: tuple[e.Tensor, ...]
    outputs: tuple[e.Tensor, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    plan: Schedule


@dataclass
class KernelSequence:
    """Kernels in execution order over numbered values: the inputs, then the results of the kernels."""

    values: list[tuple[e.Shape, str]]
    outputs: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def split_into_kernels(
    inputs: Sequence[e.Tensor],
    outputs: Sequence[e.Tensor],
    cores: int,
    teams: bool = False,
    processor: Processor | None = None,
) -> KernelSequence:
    """The kernels that compute `outputs` on `cores` cores; raises Unfusable if some part has no kernel.

    >>> import tbe
    >>> x = tbe.placeholder((64, 64), "float32")
    >>> both = tbe.reduce("sum", x - tbe.reduce("max", x, 0, keepdims=True), 1)
    >>> [len(step.outputs) for step in split_into_kernels([x], [both], cores=2).steps]
    [1, 1]
    """
    return _Cutter(inputs, outputs, cores, teams, processor or Processor()).run()


class _Cutter:
    def __init__(
        self,
        inputs: Sequence[e.Tensor],
        outputs: Sequence[e.Tensor],
        cores: int,
        teams: bool,
        processor: Processor,
    ) -> None:
        self.processor = processor
        self.result = KernelSequence([(t.shape, t.dtype) for t in inputs])
        self.number = {t: n for n, t in enumerate(inputs)}  # of placeholders
        self.given = len(inputs)
        split, self.forced = in_two_steps(outputs, cores, teams, processor)
        self.left = list(split)

    def run(self) -> KernelSequence:
        while True:
            self._copy_inputs()
            if not self._open():
                break
            forced = [t for t in self.forced if self._is_below(t)]
            if forced:
                alike = [t for t in forced if _loops(t) == _loops(forced[0])]
                self.forced = [t for t in self.forced if all(t is not other for other in alike)]
                if len(alike) == 1 or not self._make(alike):
                    for tensor in alike:
                        self._make([tensor])
                continue
            plan = self._plan(self._open())
            if plan is not None:
                self._emit(self._open(), plan)
                break
            self._cut()
        self.result.outputs = [self.number[t] for t in self.left]
        return self.result

    def _open(self) -> list[e.Tensor]:
        """The outputs that no kernel computes yet, without duplicates."""
        return list({id(t): t for t in self.left if t not in self.number}.values())

    def _copy_inputs(self) -> None:
        """Copy an output that is an input with a kernel."""
        for t in list(self.left):
            if self.number.get(t, self.given) < self.given:
                self._emit([t], schedule([t], [t], self.processor))

    def _is_below(self, tensor: e.Tensor) -> bool:
        return any(t is tensor for t in inputs_first(self.left))

    def _inputs(self, outputs: Sequence[e.Tensor]) -> list[e.Tensor]:
        return [t for t in inputs_first(outputs) if isinstance(t, e.Placeholder)]

    def _plan(self, outputs: Sequence[e.Tensor]) -> Schedule | None:
        if not outputs:
            return None
        try:
            return schedule(self._inputs(outputs), outputs, self.processor)
        except Unfusable:
            return None

    def _emit(self, outputs: Sequence[e.Tensor], plan: Schedule) -> None:
        """Add a kernel; its outputs become inputs of the rest."""
        inputs = self._inputs(outputs)
        first = len(self.result.values)
        self.result.values += [(t.shape, t.dtype) for t in outputs]
        writes = tuple(range(first, first + len(outputs)))
        reads = tuple(self.number[t] for t in inputs)
        self.result.steps.append(Step(tuple(inputs), tuple(outputs), reads, writes, plan))
        places = {t: e.placeholder(t.shape, t.dtype, f"v{n}") for t, n in zip(outputs, writes, strict=True)}
        self.number.update({places[t]: n for t, n in zip(outputs, writes, strict=True)})
        waiting = len(self.left)
        rebuilt = substitute([*self.left, *self.forced], places)
        self.left, self.forced = rebuilt[:waiting], rebuilt[waiting:]

    def _make(self, outputs: list[e.Tensor]) -> bool:
        """Compute some tensors in a separate kernel, if possible."""
        plan = self._plan(outputs)
        if plan is not None:
            self._emit(outputs, plan)
        return plan is not None

    def _cut(self) -> None:
        reductions = self._innermost()
        same = [t for t in reductions if _loops(t) == _loops(reductions[0])]
        if len(same) > 1 and self._make(list(same)):
            return
        for tensor in reductions:
            if self._make([tensor]) or self._make([tensor.inputs[0]]):
                return
        opened = self._open()
        if len(opened) > 1:
            for tensor in opened:
                if self._make([tensor]):
                    return
        inside = [t for t in inputs_first(opened) if not isinstance(t, (e.Placeholder, e.Constant, e.Iota))]
        for tensor in sorted(inside[:-1], key=lambda t: abs(2 * inside.index(t) - len(inside)))[:8]:
            if self._make([tensor]):
                return
        schedule(self._inputs(opened), opened, self.processor)  # raises the reason

    def _innermost(self) -> list[e.Tensor]:
        """Reductions and scans without others below them."""
        above: set[int] = set()
        found: list[e.Tensor] = []
        for t in inputs_first(self.left):
            late = any(id(x) in above for x in t.inputs)
            if isinstance(t, (e.Reduce, e.Scan)):
                if not late:
                    found.append(t)
                late = True
            if late:
                above.add(id(t))
        return found


def _loops(t: e.Tensor) -> tuple[e.Shape, e.Shape]:
    """The loops that reductions of one kernel must share."""
    return t.inputs[0].shape, t.shape


def in_two_steps(
    outputs: Sequence[e.Tensor], cores: int, teams: bool = False, processor: Processor | None = None
) -> tuple[list[e.Tensor], list[e.Tensor]]:
    """The outputs with large reductions of few results split, and the first steps of these reductions.

    teams: a core has many threads that share a row (the multiprocessors of a GPU), so only very long rows are split.
    """
    processor = processor or Processor()
    found: list[e.Tensor] = [
        t for t in inputs_first(outputs) if isinstance(t, e.Reduce) and _is_serial(t, cores, teams, processor)
    ]
    if not found:
        return list(outputs), []
    firsts: list[e.Tensor] = []
    left = list(outputs)
    for position in range(len(found)):
        parts, joined = _split(found[position], PIECES_PER_CORE * cores)
        rebuilt = substitute([*left, *found, *firsts], {found[position]: joined})
        left, found = rebuilt[: len(left)], [*rebuilt[len(left) : len(left) + len(found)]]
        firsts = rebuilt[len(left) + len(found) :] + parts
    return left, firsts


def _is_serial(t: e.Reduce, cores: int, teams: bool, processor: Processor) -> bool:
    """True if one core would compute all of a large reduction."""
    x = t.inputs[0]
    if t.op not in _JOINED or x.size < processor.serial_elements or t.size * 64 > x.size:
        return False
    if any(isinstance(s, (e.Reduce, e.Scan)) for s in inputs_first([x])):
        return False
    if teams:
        return x.size // t.size >= processor.serial_elements and t.size < LEAST_PER_CORE * cores
    try:
        plan = schedule([p for p in inputs_first([t]) if isinstance(p, e.Placeholder)], [t], processor)
    except Unfusable:
        return False
    return plan.total < LEAST_PER_CORE * cores


def _split(t: e.Tensor, most: int) -> tuple[list[e.Tensor], e.Tensor]:
    """A reduction as the reduction of partial results: the tensors to compute first, and the result from them."""
    assert isinstance(t, e.Reduce)
    x = t.inputs[0]
    wide = e.cast(x, "float32") if t.op in ("sum", "prod") and x.dtype in ("float16", "bfloat16") else x
    axis = max(t.axes, key=lambda a: (min(x.shape[a], most), -a))
    extent = x.shape[axis]
    pieces = min(most, extent)
    length = extent // pieces
    shape = (*x.shape[:axis], pieces, length, *x.shape[axis + 1 :])
    axes = [a if a < axis else a + 1 for a in t.axes]
    whole = wide if pieces * length == extent else _rows(wide, axis, 0, pieces * length)
    parts = [e.reduce(t.op, e.reshape(whole, shape), axes, keepdims=True)]
    joined = e.reduce(t.op, parts[0], [axis])
    rest = extent - pieces * length
    if rest:
        tail = e.reduce(t.op, _rows(wide, axis, pieces * length, rest), t.axes)
        parts.append(tail)
        joined = e.binary(_JOIN[t.op], e.reshape(joined, tail.shape), tail)
    return parts, e.cast(e.reshape(joined, t.shape), t.dtype)


_JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def _rows(x: e.Tensor, axis: int, start: int, count: int) -> e.Tensor:
    starts = [start if a == axis else 0 for a in range(len(x.shape))]
    shape = [count if a == axis else d for a, d in enumerate(x.shape)]
    return e.slice(x, starts, [1] * len(shape), shape)
