"""Runs graphs of symbolic sizes on the NPU without one program per size.

1. Calls that keep rows apart (`torchair.rows`) are parts of the NPU; a part has programs for a few numbers of rows and
   runs them over as many rows as there are. The other calls, and all arithmetic of sizes, stay with ATen.
2. Numbers of rows come from a ladder. Rows that are left over are computed once more together with rows before them;
   where there are fewer rows than the smallest program takes, the first one is repeated.
3. Programs are compiled when they are first needed, so a graph has at most three programs a part.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ge.compiler import compile_graph
from ge.model.model import Model
from ge.options import CompileOptions
from torchair.gpu import Gpu
from torchair.layouts import memory_order
from torchair.lowering import (
    READ_MEMORY,
    Layout,
    Lowered,
    NpuPart,
    Refusal,
    contiguous_strides,
    draws,
    lower,
    placed_by_size,
    views_below,
)
from torchair.plan import Former, HostStep, getter, host_runner, make_strided
from torchair.rows import RESHAPES_TO_SIZES, Key, Rows, Symbol, is_number, keeps_rows, rows_of

__all__ = ["Ladder", "SymbolicPlan", "cover"]

LARGE_ROW = 32 << 10  # bytes of the largest value of a row: images, whole sequences
STEP_BYTES = 2 << 20  # what a run of small rows works on
_COPY = torch.ops.aten.copy_.default
_VIEWS = frozenset(
    {torch.ops.aten.t.default, torch.ops.aten.permute.default, torch.ops.aten.transpose.int,
     torch.ops.aten.view.default, torch.ops.aten.unsqueeze.default, torch.ops.aten.expand.default,
     torch.ops.aten.detach.default, torch.ops.aten.alias.default}
)  # fmt: skip
Sizes = Mapping[Symbol, int]


@dataclass(frozen=True)
class Ladder:
    """Numbers of rows that have programs, and what a run costs beside its rows, in rows.

    >>> Ladder.of(1 << 20), Ladder.of(1 << 12), Ladder.of(1 << 7)
    (Ladder(rungs=(1, 8), start=0.25), Ladder(rungs=(8, 64, 512), start=4.0), Ladder(rungs=(8, 256, 8192), start=64.0))
    """

    rungs: tuple[int, ...]
    start: float

    @classmethod
    def of(cls, row: int) -> Ladder:
        """The ladder for rows whose largest value has that many bytes."""
        if row >= LARGE_ROW:
            return cls((1, 8), 0.25)
        wider = min(max(STEP_BYTES // (512 * max(row, 1)), 1), 16).bit_length() - 1
        return cls((8, 64 << wider // 2, 512 << wider), 4.0 * (1 << wider))


@functools.lru_cache(4096)
def cover(rows: int, ladder: Ladder) -> tuple[tuple[int, int], ...]:
    """Which programs run, and at which row each begins; the last runs of each size may overlap.

    >>> cover(20, Ladder((1, 8), 0.25))
    ((0, 8), (8, 8), (16, 1), (17, 1), (18, 1), (19, 1))
    >>> cover(700, Ladder((8, 64, 512), 4.0))
    ((0, 512), (512, 64), (576, 64), (636, 64))
    """
    _, sizes = _cheapest(rows, ladder.rungs, ladder.start)
    found, place = [], 0
    for size in sizes:
        begin = max(min(place, rows - size), 0)
        found.append((begin, size))
        place = begin + size
    return tuple(found)


def _cheapest(rows: int, ladder: tuple[int, ...], start: float) -> tuple[float, tuple[int, ...]]:
    if rows <= 0:
        return 0.0, ()
    if not ladder:
        return math.inf, ()
    largest = ladder[-1]
    times, rest = divmod(rows, largest)
    once_more = (largest + start, (largest,)) if rest else (0.0, ())
    cost, sizes = min(once_more, _cheapest(rest, ladder[:-1], start))
    return times * (largest + start) + cost, (largest,) * times + sizes


# -- expressions of sizes ----------------------------------------------------------------------------------------


def _function(sizes: Sequence[Any], symbols: Sequence[Symbol]) -> Callable[..., tuple[int, ...]] | None:
    """Several sizes as one function of the symbols; None where it takes more than sums and products."""
    expressions = [sympy.Integer(s) if isinstance(s, int) else s.node.expr for s in sizes]
    if any(not e.free_symbols <= set(symbols) or not e.is_polynomial(*symbols) for e in expressions):
        return None
    names = {s: sympy.Symbol(f"s{i}") for i, s in enumerate(symbols)}
    body = "".join(f"{e.xreplace(names)}," for e in expressions)
    found: Callable[..., tuple[int, ...]] = eval(f"lambda {','.join(map(str, names.values()))}: ({body})")
    return found


def _at(size: Any, sizes: Sizes) -> Any:
    """A size where the symbols have these values."""
    if isinstance(size, torch.SymInt):
        return int(size.node.expr.xreplace({s: sympy.Integer(v) for s, v in sizes.items()}))
    return size


def _sources(places: Sequence[fx.Node]) -> dict[Symbol, tuple[int, int | None]]:
    """Which argument tells a symbol: a number itself (no axis), or an axis of a tensor."""
    found: dict[Symbol, tuple[int, int | None]] = {}
    for position, node in enumerate(places):
        value = node.meta.get("val")
        told: list[tuple[int | None, Any]] = [(None, value)]
        if isinstance(value, torch.Tensor):
            told = list(enumerate(value.shape))
        for axis, size in told:
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                found.setdefault(size.node.expr, (position, axis))
    return found


def _own_tensors(module: fx.GraphModule) -> dict[fx.Node, torch.Tensor]:
    """The tensors that the graph itself holds (`torch.tensor(2.)` in the traced code): they never change."""
    held = {n: operator.attrgetter(str(n.target))(module) for n in module.graph.nodes if n.op == "get_attr"}
    return {n: value for n, value in held.items() if isinstance(value, torch.Tensor)}


def _dense(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor with this axis order in memory."""
    stored = contiguous_strides([shape[a] for a in order])
    strides = [0] * len(order)
    for axis, stride in zip(order, stored, strict=True):
        strides[axis] = stride
    return tuple(strides)


def _order(node: fx.Node) -> tuple[int, ...] | None:
    """The order of a value's axes in memory, told by sizes that are all different; None where it has gaps."""
    value = node.meta["val"]
    symbols = {s for d in (*value.shape, *value.stride()) if isinstance(d, torch.SymInt)
               for s in d.node.expr.free_symbols}  # fmt: skip
    sizes = dict(zip(sorted(symbols, key=str), (1009, 1013, 1019, 1021, 1031, 1033), strict=False))
    if len(sizes) < len(symbols):
        return None
    return memory_order([_at(d, sizes) for d in value.shape], [_at(d, sizes) for d in value.stride()])


# -- the graph ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cut:
    """Calls of one stage: the NPU's, of rows in one order, or ATen's."""

    key: Key | None  # None: ATen's
    nodes: tuple[fx.Node, ...]


class SymbolicPlan:
    """A graph of symbolic sizes as a function of a list of arguments.

    `constants` are arguments that do not change; `on_program` is told of each model that is compiled.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        places: Sequence[fx.Node],
        constants: Mapping[fx.Node, torch.Tensor],
        options: CompileOptions,
        on_program: Callable[[Model], None],
        gpu: Gpu | None = None,
    ) -> None:
        self.module, self.places, self.options, self.gpu = module, places, options, gpu
        self.constants = {**constants, **_own_tensors(module)}
        self.on_program = on_program
        self.lock = threading.Lock()
        self.rows = rows_of(module.graph)
        self.refusals: dict[fx.Node, Refusal] = {}
        self.telling = _sources(places)
        self.symbols = tuple(self.telling)
        self.body, self.writes = self._body()
        self.native = {n for n in self.body if n.target is not operator.getitem and self._may_be_native(n)}
        for node in self.body:
            if node.target in READ_MEMORY:  # ATen's: it reads the memory of views, so these are too
                self.native -= {node, *views_below(node)[0]}
        for node in self.module.graph.output_node().all_input_nodes:
            self.native -= set(placed_by_size(node))
        self.cuts = self._settle()
        self._form()

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        values = list(args) + [None] * (self.slots - len(args))
        sizes = [
            args[position] if axis is None else args[position].shape[axis]
            for position, axis in self.telling.values()
        ]
        with torch.no_grad():
            for step in self.steps:
                step(values, sizes)
            for slot, value in self.left:
                values[slot].copy_(value(values))
        return tuple([r(values) for r in self.returned])

    @property
    def operators(self) -> dict[str, bool]:
        """The operators of the graph, and whether all their calls are the NPU's."""
        found: dict[str, bool] = {}
        for node in self.body:
            if isinstance(node.target, torch._ops.OpOverload):
                name = str(node.target)
                found[name] = found.get(name, True) and (self.key(node) is not None or self.inlined(node))
        return found

    def reasons(self) -> list[Refusal]:
        """The calls that stay with ATen, and why."""
        why = "its result mixes rows of an open number, or no rule says that it does not"
        return [
            self.refusals.get(node) or Refusal(node.name, str(node.target), why)
            for node in self.body
            if isinstance(node.target, torch._ops.OpOverload)
            and self.key(node) is None
            and not self.inlined(node)
        ]

    # -- which calls are the NPU's -----------------------------------------------------------------------------

    def _body(self) -> tuple[list[fx.Node], list[tuple[Any, Any]]]:
        calls = [n for n in self.module.graph.nodes if n.op == "call_function"]
        writes = [n for n in calls if n.target is _COPY and n.args[0].op == "placeholder"]
        return [n for n in calls if n not in set(writes)], [(n.args[0], n.args[1]) for n in writes]

    def _may_be_native(self, node: fx.Node) -> bool:
        """Whether a call keeps rows apart, and the sizes of its results follow from arguments."""
        if not keeps_rows(node, self.rows):
            return False
        values = node.meta["val"] if isinstance(node.meta["val"], (list, tuple)) else [node.meta["val"]]
        sizes = [d for v in values if isinstance(v, torch.Tensor) for d in v.shape]
        return _function(sizes, self.symbols) is not None

    def inlined(self, node: fx.Node) -> bool:
        """Whether parts make this value of fixed sizes themselves: from constants, or as a view."""
        if node.op != "call_function" or node not in self.native or self.rows[node].order:
            return False
        return node.target in _VIEWS or all(
            s in self.constants or self.inlined(s) for s in node.all_input_nodes
        )

    def key(self, node: fx.Node) -> Key | None:
        """The rows of a call of the NPU, None for ATen's."""
        while node.target is operator.getitem:
            node = node.args[0]  # type: ignore[assignment]
        return self.rows[node].key if node in self.native and not self.inlined(node) else None

    def _settle(self) -> list[_Cut]:
        """Cut the graph until everything that is the NPU's is mapped."""
        while True:
            cuts = self._cuts()
            refused: dict[fx.Node, Refusal] = {}
            for cut in cuts:
                if cut.key is not None:
                    refused.update(_Part(self, cut).refused())
            if not refused:
                return cuts
            self.refusals.update(refused)
            self.native -= set(refused)

    def _cuts(self) -> list[_Cut]:
        keys = [None, *dict.fromkeys(k for k in map(self.key, self.body) if k is not None)]
        stages: dict[fx.Node, int] = {}
        drawn = 0
        for node in self.body:
            mine = keys.index(self.key(node))
            stage = mine
            for source in node.all_input_nodes:
                before = stages.get(source, 0)
                stage = max(stage, before + (mine - before) % len(keys))
            if mine == 0 and draws(node):
                stage = drawn = max(stage, drawn)
            stages[node] = stage
        groups: dict[int, list[fx.Node]] = {}
        for node in self.body:
            groups.setdefault(stages[node], []).append(node)
        return [_Cut(keys[s % len(keys)], tuple(groups[s])) for s in sorted(groups)]

    # -- steps ---------------------------------------------------------------------------------------------------

    def _form(self) -> None:
        former = Former(self.module, self.places, {})
        parts = {i: _Part(self, cut) for i, cut in enumerate(self.cuts) if cut.key is not None}
        self.parts = list(parts.values())
        wanted = self._wanted()
        self.steps: list[Callable[[list[Any], Sequence[int]], None]] = []
        for index, cut in enumerate(self.cuts):
            if index in parts:
                parts[index].place(former)
                self.steps.append(parts[index])
            else:
                self.steps.extend(_late(former.host_step(n)) for n in cut.nodes if n in wanted)
        output = next(n for n in self.module.graph.nodes if n.op == "output")
        self.returned = [getter(former.argument(r)) for r in output.args[0]]
        self.left = [(former.slot(t), getter(former.argument(v))) for t, v in self.writes]
        self.slots = len(former.slots)

    def _wanted(self) -> set[fx.Node]:
        """ATen's calls with readers; values that parts make themselves may have none left."""
        output = next(n for n in self.module.graph.nodes if n.op == "output")
        found = {*output.all_input_nodes, *(v for _, v in self.writes)}
        found.update(n for part in self.parts for n in part.reads)
        for node in reversed(self.body):
            if self.key(node) is None and (node in found or not self.inlined(node)):
                found.add(node)
                found.update(node.all_input_nodes)
        return found


def _late(step: HostStep) -> Callable[[list[Any], Sequence[int]], None]:
    run = host_runner(step)
    return lambda values, sizes: run(values)


# -- parts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Port:
    """A value that goes into a part or comes out of it."""

    node: fx.Node
    order: tuple[int, ...]  # of its axes in memory
    shape: Callable[..., tuple[int, ...]]  # of the values of all symbols
    itemsize: int

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _dense(shape, self.order)

    def is_laid_out(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's rows can be read one after another."""
        if self.order == tuple(range(len(self.order))):
            return tensor.is_contiguous()
        return memory_order(tensor.shape, tensor.stride()) == self.order

    def laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.is_laid_out(tensor):
            return tensor
        fresh = torch.empty_strided(
            tensor.shape, self.strides(tensor.shape), dtype=tensor.dtype, device=tensor.device
        )
        return fresh.copy_(tensor)


@dataclass(frozen=True)
class _Program:
    """A part for one number of rows: bytes of a row of each input and output, 0 for those without rows."""

    run: Callable[[list[int], list[int]], Any]
    model: Model
    inputs: tuple[_Port, ...]
    steps_in: tuple[int, ...]
    steps_out: tuple[int, ...]


class _Part:
    """Calls that keep rows apart, as programs for several numbers of rows."""

    def __init__(self, plan: SymbolicPlan, cut: _Cut) -> None:
        assert cut.key is not None
        self.plan, (self.fixed, self.key) = plan, cut.key
        self.positions = [plan.symbols.index(s) for s in self.key]
        self.nodes: dict[fx.Node, None] = {}
        self.reads: dict[fx.Node, None] = {}
        for node in cut.nodes:
            self._take(node, set(cut.nodes))
        inside = set(cut.nodes)
        written = {v for _, v in plan.writes}
        self.makes = [
            n
            for n in cut.nodes
            if isinstance(n.meta["val"], torch.Tensor)
            and (n in written or any(u not in inside for u in n.users))
        ]
        self.ladder = self._ladder()
        self.programs: dict[int, _Program] = {}
        self.outputs = [self._port(n) for n in self.makes]

    def _take(self, node: fx.Node, inside: set[fx.Node]) -> None:
        for source in node.all_input_nodes:
            if source in inside or source in self.nodes or is_number(source.meta.get("val")):
                continue
            if self.plan.inlined(source):
                self._take(source, inside)
            else:
                self.reads[source] = None
        self.nodes[node] = None

    def _ladder(self) -> Ladder:
        if not self.key:
            return Ladder((1,), 0.0)
        largest = max(
            (self._row_bytes(n) for n in (*self.nodes, *self.reads)
             if isinstance(n.meta.get("val"), torch.Tensor) and self.plan.rows[n].order),
            default=0,
        )  # fmt: skip
        return Ladder.of(largest)

    def _port(self, node: fx.Node) -> _Port:
        value, rows = node.meta["val"], self.plan.rows[node]
        order = _order(node) or tuple(range(value.dim()))
        if order[: rows.lead] != tuple(range(rows.lead)):
            order = tuple(range(value.dim()))
        shape = _function(value.shape, self.plan.symbols)
        assert shape is not None, "sizes that do not follow from arguments are ATen's"
        return _Port(node, order, shape, value.element_size())

    def place(self, former: Former) -> None:
        """Set the positions of values in the list of all values."""
        self.slots_in = {n: former.slot(n) for n in self.reads}
        self.slots_out = [former.slot(n) for n in self.makes]

    # -- compiling ------------------------------------------------------------------------------------------------

    def refused(self) -> dict[fx.Node, Refusal]:
        """The calls that cannot be the NPU's after all."""
        lowered, names = self._lowered(self.ladder.rungs[0])
        found = {names[r.node]: r for r in lowered.refusals}
        for node in self.makes:
            order, lead = _order(node), self.plan.rows[node].lead
            if order is not None and order[:lead] != tuple(range(lead)):
                reason = "its rows are not consecutive in memory"
                found[node if node.target is not operator.getitem else node.args[0]] = Refusal(  # type: ignore[index]
                    node.name, str(node.target), reason
                )
        return found

    def _lowered(self, rows: int) -> tuple[Lowered, dict[str, fx.Node]]:
        """The part as a graph for a number of rows; and the nodes of the whole graph by their names in it."""
        sizes = dict.fromkeys(self.key, 1) | ({self.key[-1]: rows} if self.key else {})
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        values: dict[fx.Node, Any] = {}
        layouts: dict[fx.Node, Layout] = {}
        with FakeTensorMode(), torch.no_grad():
            for node in self.reads:
                copies[node] = graph.placeholder(node.name)
                values[copies[node]] = fake = self._fake(node, sizes)
                layouts[copies[node]] = Layout.of(fake)
            for node in self.nodes:
                copies[node] = graph.node_copy(node, lambda n: self._argument(n, copies, sizes))
                several = isinstance(node.meta["val"], (list, tuple))
                made: Any = (
                    [_plain(v, self.plan.rows[node], sizes) for v in node.meta["val"]]
                    if several
                    else self._fake(node, sizes)
                )
                values[copies[node]] = made
                if node.target in RESHAPES_TO_SIZES and self.plan.rows[node].fixed > 1:
                    copies[node].args = (copies[node].args[0], list(made.shape))
        graph.output(tuple(copies[n] for n in self.makes))
        constants = {copies[n]: self.plan.constants[n] for n in self.reads if n in self.plan.constants}
        lowered = lower(fx.GraphModule(self.plan.module, graph), values, constants, layouts)
        self.originals = {copy: node for node, copy in copies.items()}
        return lowered, {copy.name: node for node, copy in copies.items()}

    def _argument(self, node: fx.Node, copies: Mapping[fx.Node, fx.Node], sizes: Sizes) -> Any:
        return _at(node.meta["val"], sizes) if is_number(node.meta.get("val")) else copies[node]

    def _fake(self, node: fx.Node, sizes: Sizes) -> torch.Tensor:
        value = node.meta["val"]
        if not self.plan.rows[node].order:
            shape, stride = [_at(d, {}) for d in value.shape], value.stride()
            known = all(isinstance(d, int) or d.node.expr.is_Integer for d in stride)
            # What is cut out of a tensor of open size is laid out anew.
            stride = [_at(d, {}) for d in stride] if known else self._port(node).strides(shape)
            return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)
        if node not in self.reads and node not in self.makes:
            return _plain(value, self.plan.rows[node], sizes)
        shape = _shape_at(value, self.plan.rows[node], sizes)
        return torch.empty_strided(
            shape, self._port(node).strides(shape), dtype=value.dtype, device=value.device
        )

    def program(self, rows: int) -> _Program:
        """The program for a number of rows, compiled the first time."""
        with self.plan.lock:
            if rows not in self.programs:
                self.programs[rows] = self._compiled(rows)
                self.plan.on_program(self.programs[rows].model)
            return self.programs[rows]

    def _compiled(self, rows: int) -> _Program:
        lowered, _ = self._lowered(rows)
        (part,) = lowered.steps
        assert isinstance(part, NpuPart) and not lowered.refusals
        model = compile_graph(part.graph, self.plan.options, "torch", ())
        read = [self.originals[n] for n in part.inputs]
        made = [self.originals[n] for n in part.outputs]
        assert made == self.makes, "a part gives its results in order"
        ports = tuple(self._port(n) for n in read)
        return _Program(
            model.program.run_pointers if self.plan.gpu is None else self.plan.gpu.runner(model),
            model,
            ports,
            tuple(self._row_bytes(n) for n in read),
            tuple(self._row_bytes(n) for n in made),
        )

    def _row_bytes(self, node: fx.Node) -> int:
        value = node.meta["val"]
        if not self.plan.rows[node].order:
            return 0
        one = dict.fromkeys(self.key, 1)
        return int(math.prod(_shape_at(value, self.plan.rows[node], one))) * value.element_size()

    # -- running --------------------------------------------------------------------------------------------------

    def __call__(self, values: list[Any], sizes: Sequence[int]) -> None:
        if self.plan.gpu is None:
            self._call(values, sizes, make_strided)
            return
        with self.plan.gpu.guard():
            self._call(values, sizes, self.plan.gpu.make)

    def _call(self, values: list[Any], sizes: Sequence[int], make: Callable[..., torch.Tensor]) -> None:
        count = self.fixed * math.prod(sizes[p] for p in self.positions)
        results = []
        for port in self.outputs:
            shape = port.shape(*sizes)
            results.append(make(shape, port.strides(shape), port.node.meta["val"].dtype))
        if count:
            self._run(values, results, count)
        for slot, port, result in zip(self.slots_out, self.outputs, results, strict=True):
            values[slot] = _moved(result, port.node.meta["val"].device)

    def _run(self, values: list[Any], results: list[torch.Tensor], count: int) -> None:
        runs = cover(count, self.ladder)
        held: dict[fx.Node, torch.Tensor] = {}
        outputs = [r.data_ptr() for r in results]
        for begin, rows in runs:
            program = self.programs.get(rows) or self.program(rows)
            for port in program.inputs:
                if port.node not in held:
                    held[port.node] = port.laid_out(self._taken(values[self.slots_in[port.node]]))
            if rows > count:
                self._run_padded(program, [held[p.node] for p in program.inputs], results, count, rows)
                return
            addresses = [
                held[p.node].data_ptr() + begin * step
                for p, step in zip(program.inputs, program.steps_in, strict=True)
            ]
            program.run(
                addresses, [o + begin * step for o, step in zip(outputs, program.steps_out, strict=True)]
            )

    def _taken(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.plan.gpu is None else self.plan.gpu.take(tensor)

    def _run_padded(
        self,
        program: _Program,
        inputs: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        count: int,
        rows: int,
    ) -> None:
        """Fewer rows than the program takes: the first one stands in for those that are not there."""
        padded = [
            _padded(t, count, rows) if step else t for t, step in zip(inputs, program.steps_in, strict=True)
        ]
        large = [
            torch.empty(rows * step, dtype=torch.uint8, device=r.device) if step else r
            for r, step in zip(results, program.steps_out, strict=True)
        ]
        program.run([t.data_ptr() for t in padded], [t.data_ptr() for t in large])
        for result, whole, step in zip(results, large, program.steps_out, strict=True):
            if step:
                _flat(result).copy_(whole[: count * step].view(result.dtype))


def _plain(value: Any, rows: Rows, sizes: Sizes) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(_shape_at(value, rows, sizes), dtype=value.dtype, device=value.device)


def _shape_at(value: torch.Tensor, rows: Rows, sizes: Sizes) -> list[int]:
    """The shape where the symbols have these values, and one of a known number of rows before them."""
    if rows.fixed == 1:
        return [_at(d, sizes) for d in value.shape]
    parts = rows.one_of_fixed(value.shape[: rows.lead])
    assert parts is not None, "rows are the slowest of a value"
    lead = [
        _at(d, sizes) if part is None else part[0] * math.prod(sizes[s] for s in part[1])
        for d, part in zip(value.shape, parts, strict=False)
    ]
    return lead + [_at(d, sizes) for d in value.shape[rows.lead :]]


def _moved(result: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type != "npu":
        return result.to(device)
    from torch_npu.memory import as_npu

    return as_npu(result, device.index or 0)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _padded(tensor: torch.Tensor, count: int, rows: int) -> torch.Tensor:
    given = _flat(tensor).view(count, -1)
    return torch.cat([given, given[:1].expand(rows - count, -1)])
