"""Rule-based graph rewriting: a rule matches one node, returns early if it does not apply, ends in one replacement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Engine, NodeView, lookup
from ge.ops.builder import GraphBuilder
from ge.ops.traits import WeightAxes
from ge.options import CompileOptions
from ge.passes.base import Pass

__all__ = [
    "RewritePass",
    "Rewriter",
    "Rule",
    "Rules",
    "attrs_of",
    "is_pure",
    "only_use",
    "producer",
    "product_of",
    "remove_dead",
    "replace_node",
    "scalar",
    "sole_consumer",
    "weight_axes_of",
]

_REWRITES_PER_NODE = 16  # bounds rules that undo each other


class Rewriter(GraphBuilder):
    """Builds the replacement of a node: inserts new nodes before it, with the origins of the nodes they replace."""

    _origin: tuple[str, ...]

    def __init__(self, graph: ir.Graph, node: ir.Node, options: CompileOptions | None = None) -> None:
        self._behind: list[ir.Node] = []  # nodes whose origins are not added yet: most rules create nothing
        super().__init__(graph=graph, before=node, target=None if options is None else options.target)
        self.options = options or CompileOptions()
        self.created: list[ir.Node] = []
        self._keep_dtype = False
        self._choice = ""
        self.stands_for(node)

    def stands_for(self, *nodes: ir.Node | None) -> None:
        """Add these nodes to the origins of new nodes."""
        self._behind += [node for node in nodes if node is not None]

    @property
    def origin(self) -> tuple[str, ...]:
        """The origins of new nodes."""
        if self._behind:
            names = dict.fromkeys(self._origin)
            for node in self._behind:
                names.update(dict.fromkeys(facts.origin(node) or (node.name or node.op_type,)))
                self._keep_dtype |= facts.keep_dtype(node)
                self._choice = self._choice or facts.choice(node)
            self._behind.clear()
            self._origin = tuple(names)
        return self._origin

    @origin.setter
    def origin(self, names: tuple[str, ...]) -> None:
        self._behind.clear()
        self._origin = names

    def op_like(self, node: ir.Node, inputs: Sequence[Any], **changes: Any) -> Any:
        """Create the same operator on other inputs, with some attributes changed."""
        given = {name: attr.value for name, attr in node.attributes.items()}
        results = self.ops(node.op_type, inputs, **{**given, **changes})
        return results[0] if len(results) == 1 else results

    def _append(
        self,
        type_: str,
        values: Sequence[ir.Value | None],
        attrs: dict[str, Any],
        descs: Sequence[TensorDesc],
        name: str = "",
    ) -> tuple[ir.Value, ...]:
        outputs = super()._append(type_, values, attrs, descs, name)
        node = outputs[0].producer()
        assert node is not None
        if self._keep_dtype:
            facts.set_keep_dtype(node)
        if self._choice and lookup(type_).engine is Engine.CONTROL:
            facts.set_choice(node, self._choice)
        self.created.append(node)
        return outputs


Replacement = ir.Value | Sequence[ir.Value] | None
Rule = Callable[[Rewriter, ir.Node], Replacement]
Rules = Mapping[str, Sequence[Rule]]


class RewritePass(Pass):
    """A pass made of rules; each rule is tried on the nodes of its operator types until no rule applies."""

    rules: ClassVar[Rules] = {}

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        """The rules to try on a node, in order."""
        return self.rules.get(node.op_type, ())

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        queue = deque(node for node in graph if self.rules_of(node))
        waiting = set(queue)
        budget = _REWRITES_PER_NODE * len(queue) + 64
        changed = False
        while queue and budget:
            node = queue.popleft()
            waiting.discard(node)
            if node.graph is not graph:
                continue
            touched = self._rewrite(graph, node, options)
            if touched is None:
                continue
            changed = True
            budget -= 1
            for other in touched:
                if other.graph is graph and other not in waiting and self.rules_of(other):
                    queue.append(other)
                    waiting.add(other)
        return changed

    def _rewrite(self, graph: ir.Graph, node: ir.Node, options: CompileOptions) -> list[ir.Node] | None:
        """Apply the first matching rule; return the nodes to visit again, None if no rule applied."""
        rewriter = Rewriter(graph, node, options)
        for rule in self.rules_of(node):
            if rewriter.created:  # by a rule that created nodes and then did not apply
                remove_dead(graph, rewriter.created)
                rewriter = Rewriter(graph, node, options)
            result = rule(rewriter, node)
            if result is None:
                continue
            values = [result] if isinstance(result, ir.Value) else list(result)
            touched = [*rewriter.created, *(c for v in values for c in v.consumers())]
            touched += [c for v in node.outputs for c in v.consumers()]
            replace_node(graph, node, values)
            return touched
        remove_dead(graph, rewriter.created)
        return None


def replace_node(graph: ir.Graph, node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Replace a node's outputs by values and remove dead nodes. Graph outputs keep their names."""
    for old, new in zip(node.outputs, values, strict=True):
        if old is new:
            continue
        if old.is_graph_output():
            if new.producer() is None or new.is_graph_output() or new.graph is not graph:
                new = _identity(graph, node, new)
            name, old.name = old.name, f"{old.name}.replaced"
            new.name = name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    remove_dead(graph, [node])


def _identity(graph: ir.Graph, before: ir.Node, value: ir.Value) -> ir.Value:
    rewriter = Rewriter(graph, before)
    return rewriter._append("Identity", [value], {}, [desc_of(value)])[0]


def remove_dead(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove nodes whose outputs are unused, then their producers if these become unused."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node.graph is not graph or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        sources = [v.producer() for v in node.inputs if v is not None]
        graph.remove(node, safe=True)
        stack.extend(s for s in sources if s is not None)


# -- matching graphs -------------------------------------------------------------------------------------------


def attrs_of(node: ir.Node) -> Mapping[str, Any]:
    """A node's attributes, including defaults."""
    return NodeView.of(node).attrs


def producer(value: ir.Value | None, *types: str) -> ir.Node | None:
    """The producer of a value if it is of one of the types."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in types else None


def product_of(value: ir.Value | None) -> ir.Node | None:
    """The product or convolution that produces a value, if its operator takes epilogues."""
    node = None if value is None else value.producer()
    return node if node is not None and lookup(node.op_type).takes_epilogues else None


def weight_axes_of(node: ir.Node) -> WeightAxes | None:
    """The channel axes of a product, None if its operator does not declare them."""
    declared = lookup(node.op_type).weight_axes
    return None if declared is None else declared(NodeView.of(node))


def is_pure(node: ir.Node) -> bool:
    """True if a node is pure: the same inputs give the same results, wherever and however often it runs."""
    operator = lookup(node.op_type)
    return operator.foldable and not operator.dynamic_outputs and not operator.may_fail


def only_use(value: ir.Value) -> bool:
    """True if exactly one input of one node reads the value and it is not a graph output."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def sole_consumer(value: ir.Value, *types: str) -> ir.Node | None:
    """The only consumer of a value, if it is of one of the types."""
    if not only_use(value):
        return None
    node = value.uses()[0].node  # type: ignore[index]
    return node if node.op_type in types or not types else None


def scalar(value: ir.Value | None) -> float | None:
    """The number if a value is a constant whose elements are all equal, else None."""
    array = constant_of(value)
    if array is None or array.size == 0:
        return None
    first = array.reshape(-1)[0]
    if array.size > 1 and not np.all(array == first):
        return None
    return first.item() if array.dtype.kind != "V" else float(first)
