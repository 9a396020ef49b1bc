"""Placement: assigns every node to the first engine in the preference list that accepts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ge.engines.aicore import refuse_aicore
from ge.errors import UnmappedOperator, UnsupportedOperatorsError
from ge.implementations.cuda import runs_ai_cpu
from ge.ir import facts
from ge.ir.graphs import subgraphs_of
from ge.ops.base import Engine, NodeView, Operator, candidates, is_custom, lookup, source_of
from ge.ops.custom.selection import refusals
from ge.target import Target, fallback

__all__ = ["ENGINES", "EngineRule", "place", "placement_of"]

_MAX_NAMES = 8
_ON_GPU = "a kernel of the GPU covers it"
_ON_HOST = "it runs on the host, between copies from and to the GPU"


@dataclass(frozen=True)
class EngineRule:
    """An engine's claim: `refuse` gives the reason against a node, "" if there is none; `accept` the reason for it."""

    engine: Engine
    refuse: Callable[[type[Operator], NodeView, Target], str]
    accept: str
    custom: bool = False


def _refuse_custom(engine: Engine) -> Callable[[type[Operator], NodeView, Target], str]:
    """The claim of a custom operator's implementation on one engine."""

    def refuse(operator: type[Operator], op: NodeView, target: Target) -> str:
        if not is_custom(operator):
            return "no custom operator of this type"
        return refusals(operator, op).get(engine, f"it has no {_WORDS[engine]}")

    return refuse


_WORDS = {
    Engine.AI_CORE: "AI Core primitive",
    Engine.VECTOR: "TBE computation",
    Engine.AI_CPU: "AI CPU kernel",
}


def _refuse_vector(operator: type[Operator], op: NodeView, target: Target) -> str:
    return "" if operator.compute is not None else "the operator has no tensor expression"


def _refuse_aicpu(operator: type[Operator], op: NodeView, target: Target) -> str:
    return "" if operator.aicpu else "the operator has no AI CPU kernel"


def _only(engine: Engine) -> Callable[[type[Operator], NodeView, Target], str]:
    return lambda operator, op, target: "" if operator.engine is engine else f"not a {engine.value} operator"


# In order of preference.
ENGINES: tuple[EngineRule, ...] = (
    EngineRule(Engine.CONTROL, _only(Engine.CONTROL), "run by the executor itself"),
    EngineRule(Engine.VIEW, _only(Engine.VIEW), "no work: the same memory under another shape"),
    *(
        EngineRule(engine, _refuse_custom(engine), f"custom {_WORDS[engine]}", custom=True)
        for engine in (Engine.AI_CORE, Engine.VECTOR, Engine.AI_CPU)
    ),
    EngineRule(Engine.AI_CORE, refuse_aicore, "an AI Core primitive covers it"),
    EngineRule(Engine.VECTOR, _refuse_vector, "its expression is compiled to a kernel"),
    EngineRule(Engine.AI_CPU, _refuse_aicpu, "a C++ kernel covers it"),
)


def place(graph: ir.Graph, target: Target) -> None:
    """Assign an engine and a reason to every node of a graph and of its nested graphs.

    Raises UnsupportedOperatorsError with all nodes that no engine accepts.
    """
    refused: dict[str, list[tuple[str, str]]] = {}
    _place(graph, target, refused)
    if refused:
        raise UnsupportedOperatorsError(
            graph.name or "the graph",
            [
                UnmappedOperator(type_, len(found), tuple(n for n, _ in found[:_MAX_NAMES]), found[0][1], "")
                for type_, found in refused.items()
            ],
        )


def _place(
    graph: ir.Graph, target: Target, refused: dict[str, list[tuple[str, str]]], *, nested: bool = False
) -> None:
    for node in graph:
        engine, reason = placement_of(node, target, nested=nested)
        if engine is None:
            refused.setdefault(node.op_type, []).append((node.name or "", reason))
        else:
            facts.set_engine(node, engine.value)
            facts.set_reason(node, reason)
    for inner in subgraphs_of(graph):
        _place(inner, target, refused, nested=True)


def placement_of(node: ir.Node, target: Target, *, nested: bool = False) -> tuple[Engine | None, str]:
    """The engine of a node and the reason; None with all reasons against it if no engine accepts it.

    `nested`: the node is in a branch or a loop.
    """
    operator = lookup(node.op_type)
    view = NodeView.of(node)
    custom = is_custom(operator)
    against: list[str] = []
    for rule in ENGINES:
        if rule.custom != custom and rule.engine not in (Engine.CONTROL, Engine.VIEW):
            continue
        why_not = rule.refuse(operator, view, target)
        if not why_not:
            reasons = [*_origin_words(operator, node, rule), *against]
            if rule.engine is Engine.AI_CPU and target.kind == "cuda":
                own = not custom and runs_ai_cpu(operator.aicpu, view.inputs, nested=nested)
                reasons = [_ON_GPU, *against] if own else [*reasons, _ON_HOST]
            return rule.engine, "; ".join([reason for reason in reasons if reason])
        if rule.engine in (refusals(operator, view) if custom else {operator.engine}):  # the expected engines
            against.append(f"not on {rule.engine.value}: {why_not}")
    if target.kind == "cuda" and not refuse_aicore(operator, view, fallback()):
        return Engine.AI_CORE, "; ".join([*against, _ON_HOST])
    return None, "; ".join(against) or "no engine has an implementation"


def _origin_words(operator: type[Operator], node: ir.Node, rule: EngineRule) -> list[str]:
    """Why this implementation was chosen, and why others of the same type were not."""
    if not rule.custom:
        return [rule.accept, facts.passed_over(node)]
    others = [o for o in candidates(node.op_type) if o is not operator]
    built_in = next((o for o in others if not is_custom(o)), None)
    older = ", ".join(source_of(o) for o in others if is_custom(o))
    aicpu = rule.engine is Engine.VECTOR and operator.aicpu
    return [
        f"{rule.accept} of {source_of(operator)}",
        f"before the built-in {operator.type}: custom operators come first" if built_in is not None else "",
        f"before its AI CPU kernel {operator.aicpu}: TBE comes before AI CPU" if aicpu else "",
        f"before the one of {older}: the newest comes first" if older else "",
        facts.passed_over(node),
    ]
