"""Alias analysis: finds values that are views of another value's memory and need no allocation.

1. Reshape and Identity always alias their input's memory.
2. A Slice or Split whose result is contiguous does so too.
3. A strided Slice or Split does so if every reader accepts it: primitives take strides, and vector kernels recompute a
   movement from its source. A Transpose does so only if an AI Core operator is among the readers.
4. The result of an AI Core operator is written directly into the memory of the Transpose or Concat that reads it, if
   the primitive can write with those strides and all other readers can read them (kernels read their part of the
   whole); a Concat inside a Concat likewise. Operands of a Concat that cannot be written in place are copied there. A
   Concat whose only reader is one kernel is left to that kernel.
5. A check aliases its input's memory, unless a kernel computes the input: that kernel could then not fuse with the
   readers of the checked value.
6. A value returned to the caller aliases only memory that the caller passed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from ge.build.views import (
    is_filled_in_place,
    is_joint,
    is_view,
    permutes,
    view_backward,
    view_forward,
)
from ge.engines.aicore import accepts_input, accepts_output
from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Engine, Pattern, is_whole_view, lookup, pattern_of
from ge.plan import View
from ge.target import Target

__all__ = ["Aliases", "find_aliases", "is_free", "root_of"]

# Share of a Concat's bytes that in-place writes must save for the rest to be copied: where both move the same bytes.
_CONCAT_SHARE = 0.5


@dataclass
class Aliases:
    """The aliases of a graph: nodes whose outputs are views of their first input, and values written into another."""

    forward: set[ir.Node] = field(default_factory=set)
    backward: dict[ir.Value, tuple[ir.Node, int]] = field(default_factory=dict)
    joined: set[ir.Node] = field(
        default_factory=set
    )  # Concat and Transpose nodes whose inputs are written in place
    scattered: set[ir.Value] = field(default_factory=set)  # views that are not contiguous


def root_of(value: ir.Value, aliases: Aliases) -> ir.Value:
    """The value whose memory a value aliases."""
    node = value.producer()
    while node in aliases.forward and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def is_free(node: ir.Node, aliases: Aliases) -> bool:
    """True if a node emits no task: its outputs are views, and it checks nothing."""
    return node in aliases.forward and not lookup(node.op_type).may_fail


def find_aliases(graph: ir.Graph, target: Target, *, strided: bool = True) -> Aliases:
    """Decide for every movement of a graph; `strided` allows non-contiguous views."""
    return _Finder(graph, target, strided).find()


class _Finder:
    def __init__(self, graph: ir.Graph, target: Target, strided: bool) -> None:
        self.graph = graph
        self.target = target
        self.strided = strided
        self.result = Aliases()
        self.views: dict[ir.Value, View] = {}  # tentative
        self.visited: set[ir.Node] = set()
        self.trail: list[tuple[ir.Value, View | None, ir.Node | None]] = []  # undo log of `_written_as`

    def find(self) -> Aliases:
        for node in self.graph:
            self._forward(node)
            self.visited.add(node)
        if self.strided:
            for node in reversed(self.graph):
                self._backward(node)
        self._mark_scattered()
        return self.result

    def _mark_scattered(self) -> None:
        """Record the views that are strided, once all memory is decided."""
        views: dict[ir.Value, View | None] = {v: self.views[v] for v in self.result.backward}
        self.result.scattered.update(
            v for v, view in views.items() if view is not None and not view.contiguous
        )
        for node in self.graph:
            if node not in self.result.forward:
                continue
            source = node.inputs[0]
            assert source is not None
            before = views[source] if source in views else self.plain(source)
            for index, value in enumerate(node.outputs):
                view = (
                    before
                    if node.op_type == "Cast"
                    else None
                    if before is None
                    else view_forward(node, index, before)
                )
                views[value] = view
                if view is not None and not view.contiguous:
                    self.result.scattered.add(value)

    @staticmethod
    def plain(value: ir.Value) -> View:
        """A value in its own memory."""
        return View.of(0, TensorDesc(desc_of(value).shape, facts.storage_dtype(value)))

    def view(self, value: ir.Value) -> View:
        if value not in self.views:
            self.views[value] = self.plain(value)
        return self.views[value]

    # -- forward -----------------------------------------------------------------------------------------------

    def _forward(self, node: ir.Node) -> None:
        if not is_view(node):
            if _is_free_cast(node):
                self.result.forward.add(node)
                self.views[node.outputs[0]] = self.view(node.inputs[0])  # type: ignore[arg-type]
            return
        source = node.inputs[0]
        assert source is not None
        whole = is_whole_view(node)
        if (constant_of(source) is not None and not whole) or self._checks_a_kernel(node):
            return
        if any(facts.storage_dtype(v) != facts.storage_dtype(source) for v in node.outputs):
            assert not whole, f"{node.name} is stored in another type than what it views"
            return
        views = [view_forward(node, i, self.view(source)) for i in range(len(node.outputs))]
        if not whole and not self._is_profitable(node, views):
            return
        self.result.forward.add(node)
        for value, view in zip(node.outputs, views, strict=True):
            if view is not None:
                self.views[value] = view

    def _checks_a_kernel(self, node: ir.Node) -> bool:
        """True if a node checks the result of a kernel; undecided movements count as views."""
        if not lookup(node.op_type).may_fail:
            return False
        value = node.inputs[0]
        maker = None if value is None else value.producer()
        while maker is not None and (maker in self.result.forward or self._may_become_view(maker)):
            value = maker.inputs[0]
            maker = None if value is None else value.producer()
        return maker is not None and facts.engine(maker) == Engine.VECTOR.value

    def _may_become_view(self, node: ir.Node) -> bool:
        return node not in self.visited and (is_view(node) or _is_free_cast(node))

    def _is_profitable(self, node: ir.Node, views: list[View | None]) -> bool:
        gain = False
        for value, view in zip(node.outputs, views, strict=True):
            if view is None or value.is_graph_output():
                return False
            if view.contiguous:
                gain = True
                continue
            if not self.strided:
                return False
            readable, by_cube = self._readable(value, view)
            if not readable:
                return False
            gain |= by_cube or not permutes(node)
        return gain

    def _readable(self, value: ir.Value, view: View, ignore: ir.Node | None = None) -> tuple[bool, bool]:
        """Whether all readers accept the value as this view, and whether one of them is an AI Core operator."""
        if view.contiguous:
            return True, any(facts.engine(n) == Engine.AI_CORE.value for n in value.consumers())
        if value.is_graph_output():
            return False, False
        by_cube = False
        for node, index in value.uses():
            if node is ignore:
                continue
            engine = facts.engine(node)
            if engine == Engine.AI_CORE.value and accepts_input(node, index, view, self.target):
                by_cube = True
            elif _is_free_cast(node):
                readable, cube = self._readable(node.outputs[0], view)
                if not readable:
                    return False, False
                by_cube |= cube
            elif is_view(node) and not self._checks_a_kernel(node):
                for number, result in enumerate(node.outputs):
                    beyond = view_forward(node, number, view)
                    if beyond is None:
                        return False, False
                    readable, cube = self._readable(result, beyond)
                    if not readable:
                        return False, False
                    by_cube |= cube
            elif engine != Engine.VECTOR.value:
                return False, False
        return True, by_cube

    # -- backward ----------------------------------------------------------------------------------------------

    def _backward(self, node: ir.Node) -> None:
        if node in self.result.forward or facts.engine(node) != Engine.VECTOR.value:
            return
        if is_joint(node):
            self._join(node)
            return
        if not is_filled_in_place(node):
            return
        source = node.inputs[0]
        assert source is not None
        if self._written_as(source, node, 0, view_backward(node, 0, self.view(node.outputs[0]))):
            self.result.joined.add(node)

    def _join(self, node: ir.Node) -> None:
        parts = [v for v in node.inputs if v is not None]
        whole = self.view(node.outputs[0])
        if len(set(parts)) != len(parts) or self._read_by_one_kernel(node.outputs[0]):
            return
        mark = len(self.trail)
        placed = [self._written_as(v, node, i, view_backward(node, i, whole)) for i, v in enumerate(parts)]
        share = sum(desc_of(v).nbytes for v, ok in zip(parts, placed, strict=True) if ok and not _fuses(v))
        enough = share >= _CONCAT_SHARE * max(desc_of(node.outputs[0]).nbytes, 1) and any(placed)
        if enough and (all(placed) or self.target.kind == "cpu"):  # a GPU has no copies to strided memory
            self.result.joined.add(node)
        else:
            self._undo(mark)

    def _read_by_one_kernel(self, value: ir.Value) -> bool:
        """True if the value's only consumer is a vector node, which can concatenate as it reads."""
        readers = value.consumers()
        if value.is_graph_output() or len(readers) != 1:
            return False
        if readers[0] in self.result.forward:
            return len(readers[0].outputs) == 1 and self._read_by_one_kernel(readers[0].outputs[0])
        return facts.engine(readers[0]) == Engine.VECTOR.value and not is_joint(readers[0])

    def _undo(self, mark: int) -> None:
        """Undo all decisions since a mark."""
        while len(self.trail) > mark:
            value, view, through = self.trail.pop()
            del self.result.backward[value]
            if view is None:
                self.views.pop(value, None)
            else:
                self.views[value] = view
            if through is not None:
                self.result.joined.discard(through)
                self.result.forward.add(through)

    def _writable(self, source: ir.Node, view: View) -> bool:
        """True if a node can write its result to a view of another value's memory."""
        engine = facts.engine(source)
        if engine == Engine.AI_CORE.value:
            return accepts_output(source, view, self.target)
        if self.target.kind != "cpu":
            return view.contiguous and engine == Engine.VECTOR.value
        if engine == Engine.VECTOR.value and is_joint(source) and not view.contiguous:
            parts = [v for v in source.inputs if v is not None]
            ready = [
                v
                for v in parts
                if (n := v.producer()) is not None and facts.engine(n) == Engine.AI_CORE.value
            ]
            return sum(desc_of(v).nbytes for v in ready) >= _CONCAT_SHARE * desc_of(source.outputs[0]).nbytes
        return view.contiguous and engine in (Engine.VECTOR.value, Engine.AI_CPU.value)

    def _through(self, node: ir.Node, view: View) -> bool:
        """Choose the layout of a Reshape's source so that the Reshape's result has the layout of the view."""
        if not _is_whole(node):
            return False
        source = node.inputs[0]
        assert source is not None
        if not self._written_as(source, node, 0, view_backward(node, 0, view)):
            return False
        self.result.forward.discard(node)
        self.result.joined.add(node)
        return True

    def _written_as(self, value: ir.Value, by: ir.Node, index: int, view: View | None) -> bool:
        """Write a value as a view of another's memory, if its producer and all readers allow it."""
        source = value.producer()
        if view is None or source is None or value.is_graph_output() or value in self.result.backward:
            return False
        if source.graph is not self.graph or source in self.result.joined:
            return False
        if not self._readable(value, view, ignore=by)[0]:
            return False
        through = source if source in self.result.forward else None
        if not (self._through(source, view) if through is not None else self._writable(source, view)):
            return False
        self.trail.append((value, self.views.get(value), through))
        self.result.backward[value] = (by, index)
        self.views[value] = view
        return True


def _fuses(value: ir.Value) -> bool:
    """True if a kernel that computes a value could compute it as part of a concatenation instead."""
    node = value.producer()
    while node is not None and _is_whole(node):
        node = node.inputs[0].producer()  # type: ignore[union-attr]
    if node is None or lookup(node.op_type).engine is not Engine.VECTOR:
        return False
    return pattern_of(node) is not Pattern.REDUCE


def _is_whole(node: ir.Node) -> bool:
    return is_whole_view(node) and node.inputs[0] is not None


def _is_free_cast(node: ir.Node) -> bool:
    """True for a cast between two types that are stored in memory as the same element type."""
    if node.op_type != "Cast" or node.inputs[0] is None or constant_of(node.inputs[0]) is not None:
        return False
    return facts.storage_dtype(node.inputs[0]) == facts.storage_dtype(node.outputs[0])
