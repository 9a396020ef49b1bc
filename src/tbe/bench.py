"""A workbench for operator files: `python -m tbe.bench my_op.py --input 1024x768:float32 --attr axis=1`.

The file holds an operator function of the vector DSL, or an operator class. Shown are the expression graph, the
generated code, the error in units in the last place against a NumPy reference (given by the file, or else the same
expression evaluated by NumPy in double precision), and the time against what the memory's bandwidth allows. `--tune`
measures other loops and keeps what is faster for every later build.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tbe import expr as e
from tbe.dsl.running import Runner, aligned_empty
from tbe.dsl.tracing import (
    OperatorError,
    OperatorFile,
    is_operator_class,
    load_operator,
    of_class,
    trace,
)
from tbe.dtypes import dtype_of, numpy_dtype
from tbe.evaluate import evaluate
from tbe.kernel import Kernel, build
from tbe.serialize import structure
from tbe.substitute import inputs_first
from tbe.tuning import Tuning, forget, remember, tuning_file, tuning_of
from tbe.widen import widened

__all__ = [
    "Measurement",
    "Memory",
    "Reference",
    "bandwidth",
    "graph_text",
    "main",
    "measure",
    "tune",
    "ulp_errors",
]

LARGE = 64 << 20  # bytes that no cache holds
_EPSILON_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    try:
        file = load_operator(options.file, options.entry)
        inputs = [_input(text) for text in options.input or ["1024x1024:float32"] * _count(file.entry)]
        attrs = dict(_attribute(text) for text in options.attr)
        places = [i and e.placeholder(*i, f"x{n}") for n, i in enumerate(inputs)]
        outputs = _expressions(file.entry, places, attrs)
    except (OperatorError, ValueError, TypeError) as error:
        print(error, file=sys.stderr)
        return 1
    present = [p for p in places if p is not None]
    arrays = [_values(p, options.low, options.high, n) for n, p in enumerate(present)]
    print(f"== {file.entry.__name__} of {', '.join(f'{p.dtype}{list(p.shape)}' for p in present)}\n")
    print(graph_text(outputs), "\n")
    if options.tune:
        _print_tuning(present, outputs, arrays)
    _print_code(present, outputs, options.code)
    rest = iter(arrays)
    given = [None if p is None else next(rest) for p in places]
    print(measure(present, outputs, arrays, _own_reference(file, given, attrs)).text())
    return 0


def _expressions(
    entry: Callable[..., Any], places: Sequence[e.Tensor | None], attrs: dict[str, Any]
) -> tuple[e.Tensor, ...]:
    return of_class(entry, places, attrs) if is_operator_class(entry) else trace(entry, places, None, attrs)


def _own_reference(
    file: OperatorFile, arrays: Sequence[np.ndarray | None], attrs: dict[str, Any]
) -> Reference | None:
    """What the file's own reference gives: `reference` of the class, or the first of some functions of the file."""
    entry: Any = file.entry
    function = getattr(entry, "reference", None)
    for name in (f"{entry.__name__}_reference", "numpy_reference", "reference"):
        function = function or getattr(file.module, name, None)
    if function is None:
        return None
    whole = entry.complete(attrs) if is_operator_class(entry) else attrs
    known = inspect.signature(function).parameters
    every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    with np.errstate(all="ignore"):
        found = function(*arrays, **{k: v for k, v in whole.items() if every or k in known})
    results = list(found) if isinstance(found, (list, tuple)) else [found]
    return Reference(f"NumPy: {function.__qualname__} of {file.path.name}", results)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tbe.bench", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument(
        "file", type=Path, help="an operator file: of the vector DSL, or with an operator class"
    )
    parser.add_argument("--entry", help="the operator function or class, when it is not named like the file")
    parser.add_argument(
        "--input",
        action="append",
        help="an input as 1024x768:float32 (one option for each; none for one left out)",
    )
    parser.add_argument("--attr", action="append", default=[], help="an attribute as name=value")
    parser.add_argument("--low", type=float, default=-2.0, help="the least value of the inputs")
    parser.add_argument("--high", type=float, default=2.0, help="the greatest")
    parser.add_argument(
        "--code", choices=["ir", "loops", "none"], default="loops", help="how much code to show"
    )
    parser.add_argument("--tune", action="store_true", help="measure other loops and keep what is faster")
    return parser


def _count(function: Callable[..., Any]) -> int:
    """How many inputs an operator asks for; one when it does not say."""
    if is_operator_class(function):
        ports = function.prototype.inputs.values()  # type: ignore[attr-defined]
        return sum(1 for port in ports if not port.optional) or 1
    kinds = getattr(function, "op_params", ())
    return sum(1 for kind in kinds if kind == "required_input") or 1


def _input(text: str) -> tuple[tuple[int, ...], str] | None:
    """A shape and a type, None for an input left out.

    >>> _input("2x3:float16"), _input("none")
    (((2, 3), 'float16'), None)
    """
    if text == "none":
        return None
    shape, _, dtype = text.partition(":")
    return tuple(int(d) for d in shape.split("x")), dtype_of(dtype or "float32").name


def _attribute(text: str) -> tuple[str, Any]:
    """A name and a value.

    >>> _attribute("axis=[0, 1]"), _attribute("mode=sum")
    (('axis', [0, 1]), ('mode', 'sum'))
    """
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _values(place: e.Tensor, low: float, high: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = dtype_of(place.dtype)
    if kind.is_float:
        return rng.uniform(low, high, place.shape).astype(kind.numpy)
    least = max(int(low), int(kind.min))
    return rng.integers(least, max(int(high), least) + 1, place.shape).astype(kind.numpy)


# -- the graph ------------------------------------------------------------------------------------------------


def graph_text(outputs: Sequence[e.Tensor]) -> str:
    """The expression, one line per node.

    >>> import tbe
    >>> x = tbe.placeholder((2, 3), "float32", "x")
    >>> print(graph_text([tbe.reduce("sum", tbe.unary("exp", x), 1)]))
    %0 = placeholder x            float32[2, 3]
    %1 = exp %0                   float32[2, 3]
    %2 = reduce sum %1 over (1,)  float32[2]     -> output 0
    """
    order = inputs_first(outputs)
    number = {id(t): n for n, t in enumerate(order)}
    rows = []
    for t in order:
        reads = " ".join(f"%{number[id(x)]}" for x in t.inputs)
        marks = " ".join(f"output {n}" for n, o in enumerate(outputs) if o is t)
        rows.append((f"%{number[id(t)]} = {_label(t, reads)}", f"{t.dtype}{list(t.shape)}", marks))
    first, second = (max(len(r[c]) for r in rows) for c in (0, 1))
    lines = [f"{a:<{first}}  {b:<{second}}{f'  -> {m}' if m else ''}".rstrip() for a, b, m in rows]
    return "\n".join(lines)


def _label(t: e.Tensor, reads: str) -> str:
    kind = type(t).__name__.lower()
    table: dict[type, Callable[[Any], str]] = {
        e.Placeholder: lambda t: f"placeholder {t.name}",
        e.Constant: lambda t: f"constant {t.value!r}",
        e.Unary: lambda t: f"{t.op} {reads}",
        e.Binary: lambda t: f"{t.op} {reads}",
        e.Reduce: lambda t: f"reduce {t.op} {reads} over {t.axes}",
        e.Scan: lambda t: f"scan {t.op} {reads} along {t.axis}",
        e.Transpose: lambda t: f"transpose {reads} by {t.perm}",
        e.Concat: lambda t: f"concat {reads} along {t.axis}",
        e.Slice: lambda t: f"slice {reads} from {t.starts} by {t.steps}",
        e.Pad: lambda t: f"pad {reads} with {t.value!r}",
        e.Take: lambda t: f"take {reads} along {t.axis}",
    }
    return table[type(t)](t) if type(t) in table else f"{kind} {reads}"


# -- code -----------------------------------------------------------------------------------------------------


def _print_code(inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor], how: str) -> None:
    runner = Runner(inputs, outputs)
    for number, (step, kernel) in enumerate(zip(runner.parts.steps, runner.kernels, strict=True)):
        plan = step.plan
        chosen = tuning_of(structure(step.inputs, step.outputs))
        print(
            f"-- kernel {number}: {len(kernel.object)} bytes for {kernel.target}, {kernel.total} units of work, "
            f"{plan.flops / 1e6:.1f} Mflop, {plan.bytes_moved / 1e6:.1f} MB"
            + (f", tuned {chosen.given()}" if chosen else "")
        )
        for nest in plan.nests:
            loops = " ".join(f"{v.name}:{v.extent}" for v in nest.outer) or "-"
            inner = " | ".join(" ".join(f"{v.name}:{v.extent}" for v in g) for g in nest.groups) or "-"
            side = "rows share vectors" if nest.lane_outer else "vectors along the row"
            print(f"   loops {loops}; reduced {inner}; lane {nest.lane.name}:{nest.lane.extent} ({side})")
        if how == "ir":
            print(kernel.ir)
    print()


# -- accuracy and speed ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The right answer, and where it comes from."""

    source: str
    results: list[Any]


@dataclass(frozen=True)
class Measurement:
    """Accuracy and speed of an operator."""

    worst_ulp: list[float]
    mean_ulp: list[float]
    seconds: float
    bytes_moved: int
    flops: int
    bandwidth: float
    against: str

    @property
    def share(self) -> float:
        """The part of the memory's bandwidth that is used."""
        return self.bytes_moved / self.seconds / self.bandwidth

    def _why_more(self) -> str:
        fits = self.bytes_moved < LARGE
        return "the data fits the caches" if fits else "more than large copies and sums reach"

    def text(self) -> str:
        """The report as it is printed."""
        lines = [f"-- error against {self.against}"]
        for number, (worst, mean) in enumerate(zip(self.worst_ulp, self.mean_ulp, strict=True)):
            lines.append(f"   output {number}: {worst:.2f} ulp at most, {mean:.3f} on average")
        rate = self.bytes_moved / self.seconds
        lines += [
            f"-- time {self.seconds * 1e6:.1f} µs: {rate / 1e9:.1f} GB/s, "
            f"{self.flops / self.seconds / 1e9:.1f} Gflop/s",
            f"   {self.share:.0%} of the memory's {self.bandwidth / 1e9:.1f} GB/s"
            + (f" ({self._why_more()})" if self.share > 1 else ""),
        ]
        return "\n".join(lines)


def measure(
    inputs: Sequence[e.Tensor],
    outputs: Sequence[e.Tensor],
    arrays: Sequence[np.ndarray],
    reference: Reference | None = None,
) -> Measurement:
    """Error and time of an expression on arrays."""
    runner = Runner(inputs, outputs)
    results = runner(*arrays)
    right = reference or _in_double(inputs, outputs, arrays)
    if len(right.results) != len(results):
        raise ValueError(f"{right.source} gives {len(right.results)} results, the operator {len(results)}")
    expected = right.results
    errors = [ulp_errors(g, np.asarray(x).reshape(g.shape)) for g, x in zip(results, expected, strict=True)]
    moved = sum(a.nbytes for a in arrays) + sum(r.nbytes for r in results)
    flops = sum(step.plan.flops for step in runner.parts.steps)
    if moved >= LARGE:
        seconds, share = _memory().beside(lambda: runner.into(arrays, results), moved)
        limit = moved / seconds / share
    else:
        seconds, limit = _time(runner, arrays), bandwidth()
    worst, mean = (
        [float(x.max(initial=0)) for x in errors],
        [float(x.mean()) if x.size else 0.0 for x in errors],
    )
    return Measurement(worst, mean, seconds, moved, flops, limit, right.source)


def _in_double(
    inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor], arrays: Sequence[np.ndarray]
) -> Reference:
    """The same expression in double precision by NumPy."""
    wide_inputs, wide_outputs = widened(inputs, outputs)
    feeds = {p: a.astype(numpy_dtype(p.dtype)) for p, a in zip(wide_inputs, arrays, strict=True)}
    return Reference("NumPy: the same expression in double precision", evaluate(wide_outputs, feeds))


def ulp_errors(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Errors in units in the last place of `got`'s type; for integers, plain differences.

    >>> ulp_errors(np.float32([1.0, 2.0]), np.float64([1.0, 2.0 + 2**-22])).tolist()
    [0.0, 1.0]
    """
    a, b = got.astype(np.float64), expected.astype(np.float64)
    bits = _EPSILON_BITS.get(got.dtype.name)
    if bits is None:
        return np.abs(a - b)
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.floor(np.log2(np.abs(b))), float(_least_exponent(got.dtype.name)))
        error = np.abs(a - b) / 2.0 ** (exponent - bits)
    error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, error)
    return np.where(np.isnan(error), np.inf, error)


def _least_exponent(dtype: str) -> int:
    return {"float16": -14, "float64": -1022}.get(dtype, -126)


def _time(runner: Runner, arrays: Sequence[np.ndarray], seconds: float = 0.3) -> float:
    """The median time of a call into given memory."""
    results = [aligned_empty(shape, dtype) for shape, dtype in runner.outputs]
    taken: list[float] = []
    runner.into(arrays, results)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 5:
        start = time.perf_counter()
        runner.into(arrays, results)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


class Memory:
    """Large copies and sums by all cores at once, whose speed is the limit of kernels bound by memory."""

    def __init__(self, megabytes: int = 256) -> None:
        import npu_runtime

        threads = npu_runtime.num_threads()
        count = (megabytes << 20) // 2 // threads // 8 * 8
        self.nbytes = count * threads
        self._parts = [(np.ones(count, np.uint8), np.ones(count, np.uint8)) for _ in range(threads)]
        self._workers = ThreadPoolExecutor(threads)

    def copy(self) -> None:
        """Read and write `nbytes` each."""
        list(self._workers.map(lambda part: np.copyto(part[1], part[0]), self._parts))

    def read(self) -> None:
        """Read `nbytes`."""
        list(self._workers.map(lambda part: np.sum(part[0].view(np.float64)), self._parts))

    def limit(self, copy_seconds: float, read_seconds: float) -> float:
        """Bytes a second, given the times of both."""
        return max(2 * self.nbytes / copy_seconds, self.nbytes / read_seconds)

    def beside(self, call: Callable[[], Any], moved: int, turns: int = 21) -> tuple[float, float]:
        """The median time of a call that moves so many bytes, and the median of the shares of the limit it reaches.

        Calls take turns with copies and sums, and each is held against those right beside it: what else goes on in the
        machine slows all of them.
        """
        times, shares = [], []
        for work in (call, self.copy, self.read):
            work()
        for _ in range(turns):
            copy, first, read, second = map(_seconds, (self.copy, call, self.read, call))
            times += [first, second]
            shares.append(2 * moved / (first + second) / self.limit(copy, read))
        return statistics.median(times), statistics.median(shares)


@lru_cache(maxsize=1)
def _memory() -> Memory:
    return Memory()


@lru_cache(maxsize=1)
def bandwidth() -> float:
    """Bytes a second that all cores read and write together, measured once: the best of large copies and sums."""
    memory = _memory()
    return memory.limit(*(min(_seconds(work) for _ in range(5)) for work in (memory.copy, memory.read)))


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# -- tuning ---------------------------------------------------------------------------------------------------


def candidates(plan: Any) -> Iterator[Tuning]:
    """Choices worth measuring for a schedule."""
    nest = plan.nests[0]
    plain = nest.lane_outer and not nest.groups and nest.tile is None
    chunks: list[int | None] = [None, 1024, 16384] if plain and nest.lane.extent > 1024 else [None]
    pairs: list[bool | None] = [None, False, True] if not nest.lane_outer and nest.groups else [None]
    streams: list[bool | None] = [None, not plan.streams] if plan.bytes_moved > 16 << 20 else [None]
    tiles: list[int | None] = [None, 16, 32, 64] if nest.tile is not None else [None]
    unrolls: list[int | None] = [None, 1, 2, 4, 8] if nest.tile is None else [None]
    for unroll, chunk, tile, pair, stream in itertools.product(unrolls, chunks, tiles, pairs, streams):
        choice = Tuning(unroll, chunk, tile, pair, stream)
        if choice.given():
            yield choice


def tune(
    inputs: Sequence[e.Tensor],
    outputs: Sequence[e.Tensor],
    arrays: Sequence[np.ndarray],
    least_gain: float = 0.03,
) -> list[tuple[int, Tuning | None, float, float]]:
    """Measure choices for every kernel of an expression and keep those that are faster.

    Gives, for each kernel, the choice kept (None for the rules' own), the time before and after.
    """
    runner = Runner(inputs, outputs)
    found = []
    for number, step in enumerate(runner.parts.steps):
        if not step.plan.nests:
            continue
        hashed = structure(step.inputs, step.outputs)
        forget(hashed)

        def with_kernel(kernel: Kernel, number: int = number) -> Runner:
            kernels = list(runner.kernels)
            kernels[number] = kernel
            return Runner(inputs, outputs, kernels)

        own = with_kernel(build(step.inputs, step.outputs, plan=step.plan))
        chosen, best, tried = None, own, 1 - least_gain
        for choice in candidates(step.plan):
            other = with_kernel(build(step.inputs, step.outputs, plan=step.plan, tuning=choice))
            before, after, gain = _compare(own, other, arrays, 0.08)
            if gain < tried:
                chosen, best, tried = choice, other, gain
        before, after, gain = _compare(own, best, arrays, 0.3)
        if chosen is not None and gain < 1 - least_gain:
            remember(hashed, chosen)
        else:
            chosen, after = None, before
        found.append((number, chosen, before, after))
    return found


def _compare(
    own: Runner, other: Runner, arrays: Sequence[np.ndarray], seconds: float
) -> tuple[float, float, float]:
    """The median times of two programs that take turns, and the median of the second's time over the first's."""
    runs = [(r, [aligned_empty(shape, dtype) for shape, dtype in r.outputs]) for r in (own, other)]
    for run, results in runs:
        run.into(arrays, results)
    times: list[list[float]] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        times.append([_seconds(partial(run.into, arrays, results)) for run, results in runs])
    first, second = zip(*times, strict=True)
    return (
        statistics.median(first),
        statistics.median(second),
        statistics.median(b / a for a, b in times),
    )


def _print_tuning(
    inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor], arrays: Sequence[np.ndarray]
) -> None:
    for number, chosen, before, after in tune(inputs, outputs, arrays):
        what = (
            f"{chosen.given()}, kept in {tuning_file()}" if chosen else "the rules' own choice is the fastest"
        )
        print(f"-- tuning of kernel {number}: {before * 1e6:.1f} -> {after * 1e6:.1f} µs, {what}")


if __name__ == "__main__":
    sys.exit(main())
