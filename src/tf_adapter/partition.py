"""Mixed computing: which nodes of a function run on the NPU, and the steps it is cut into.

1. A node stays on the host when no plugin maps it, when it does something that only the host can do (print,
   check, look up, call Python), when it handles something that the NPU has no type for, or when a loop or
   branch holds such a node.
2. Lists of tensors (variants) exist on one side only: nodes that share one with a host node stay on the host.
3. Steps alternate between host and NPU. A node's step follows all steps it depends on, by data or, where it
   changes state, by order; so nothing ever waits for a later step. A loop or branch that the device runs itself,
   turn by turn, is a step of its own.
4. An NPU step that would save less than its crossing costs stays on the host.
5. Constants are repeated in every step that reads them; light nodes and reads of variables wait for the step
   that uses them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import tensorflow as tf

from ge.hybrid import assign_stages
from ge.ir.types import TENSORS
from ge.ops.plugins import find
from ge.parsers.tensorflow.convert import EFFECTS, HANDLERS, Refusal, remedy_of
from tf_adapter.graphs import (
    ARGUMENT,
    IMPLEMENTS,
    FlatGraph,
    FlatNode,
    Functions,
    Ref,
    called_functions,
    is_stateful,
)
from tf_adapter.graphs import read_function as _read
from tf_adapter.randomness import COUNTED

__all__ = [
    "FREE",
    "HEAVY",
    "Alone",
    "Cut",
    "Cutter",
    "Source",
    "Step",
    "Writer",
    "cut",
    "host_nodes",
    "keeps_variables",
    "old_control_flow",
    "single_operator",
    "written_arguments",
]

_RESOURCE = tf.resource.as_datatype_enum
_VARIANT = tf.variant.as_datatype_enum
READS = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"}
    | {"DisableCopyOnRead"}
)
STRUCTURE = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"})
FREE = frozenset({"Const"})
_NO_EFFECT = frozenset({"Const", "Empty", "NoOp", "Identity", "IdentityN"}) | COUNTED

# What only the host can do, although a compiled model may do without.
_HOST_ONLY = {
    "Assert": "a failed check is reported by the host",
    "CheckNumerics": "a failed check is reported by the host",
    "CheckNumericsV2": "a failed check is reported by the host",
    "Print": "it writes text",
    "PrintV2": "it writes text",
    "Abort": "it ends the process",
    "VarHandleOp": "it makes a variable",
    "VariableV2": "it makes a variable",
    "Variable": "it makes a variable",
    "DestroyResourceOp": "it removes a variable",
    "Placeholder": "it has no value",
    "RemoteCall": "it calls another device",
    "RandomShuffle": "its state is the host's",
}
_STATELESS_REMEDY = "draw the numbers before the loop, or use tf.random.stateless_*"
_REMEDIES = {
    "Assert": "drop the check where it is not needed",
    "PrintV2": "print outside of the function, or less often",
    "EagerPyFunc": "write it with TensorFlow's operators",
    "PyFunc": "write it with TensorFlow's operators",
    "PyFuncStateless": "write it with TensorFlow's operators",
}
# Work that is worth a crossing by itself.
HEAVY = frozenset(
    {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D", "Conv3D"}
    | {"DepthwiseConv2dNative", "Conv2DBackpropInput", "Conv2DBackpropFilter", "Conv3DBackpropInputV2"}
    | {"Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropInput", "SparseTensorDenseMatMul"}
    | {"DepthwiseConv2dNativeBackpropFilter", "ResizeBilinear", "ResizeBicubic", "Cholesky", "MatrixInverse"}
    | {"MatrixSolve", "MatrixTriangularSolve", "TopKV2", "While", "StatelessWhile", "Conv", "Svd", "Qr"}
)
LIGHT = frozenset(
    {"Const", "Identity", "IdentityN", "NoOp", "Reshape", "Shape", "ExpandDims", "Squeeze", "StridedSlice"}
    | {"Pack", "Rank", "Size", "StopGradient", "ReadVariableOp", "ShapeN", "EnsureShape", "PreventGradient"}
    | {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "BroadcastGradientArgs", "Fill"}
    | {"Range", "VarIsInitializedOp", "VariableShape", "Cast", "ZerosLike", "OnesLike", "ConcatOffset"}
)
_SETTLING = 16  # rounds in which lists may move to a later step
_WORTH_A_CROSSING = 6  # plain nodes whose dispatch costs the host about what a step costs


def _type_name(number: int) -> str:
    return str(tf.dtypes.as_dtype(number).name)


def _device_type(number: int) -> bool:
    return _type_name(number) in TENSORS


def _no_engine(number: int) -> str:
    name = _type_name(number)
    return "complex numbers are the host's" if name.startswith("complex") else f"no engine accepts {name}"


def _mapped(op: str) -> bool:
    return op in HANDLERS or find("tensorflow", op) is not None


# -- rule 1 ----------------------------------------------------------------------------------------------------


def _unmapped(op: str) -> str:
    """Why no plugin maps an operator."""
    from ge.parsers.tensorflow.host import OPERATORS  # only models with such operators pay for it

    if "PyFunc" in op:
        return "it calls Python"
    if op in OPERATORS:
        return "text, tables and ragged or sparse structure are the host's"
    return "no plugin maps it"


class _Classifier:
    """Finds the nodes that cannot leave the host, whatever the shapes."""

    def __init__(self, functions: Functions) -> None:
        import ge.ops
        import ge.parsers.tensorflow.parser  # noqa: F401  (declares the handlers)

        self.functions = functions
        self._bodies: dict[str, Refusal | None] = {}

    def refusals(
        self, graph: FlatGraph, variables: Collection[str], *, outermost: bool = True
    ) -> dict[str, Refusal]:
        found = {}
        for node in graph.nodes.values():
            if node.op == ARGUMENT or node.op in FREE or (outermost and node.op in COUNTED):
                continue
            refusal = self._node(graph, node, variables)
            if refusal is not None:
                found[node.name] = refusal
        return found

    def _node(self, graph: FlatGraph, node: FlatNode, variables: Collection[str]) -> Refusal | None:
        if node.op in _HOST_ONLY:
            return Refusal(node.op, _HOST_ONLY[node.op], _REMEDIES.get(node.op, ""))
        if not _mapped(node.op):
            return Refusal(node.op, _unmapped(node.op), _REMEDIES.get(node.op) or remedy_of(node.op))
        if node.op in COUNTED:
            return Refusal(node.op, "its state is the host's inside loops and branches", _STATELESS_REMEDY)
        known = any(node.op in ops for ops in (EFFECTS, READS, STRUCTURE, _NO_EFFECT))
        if is_stateful(node.op) and not known:
            return Refusal(node.op, "it has an effect outside of the model")
        return self._types(graph, node, variables) or self._called(node)

    def _types(self, graph: FlatGraph, node: FlatNode, variables: Collection[str]) -> Refusal | None:
        for ref in node.inputs:
            number = graph.type_of(ref)
            source = graph.nodes[ref[0]]
            if number == _RESOURCE:
                if source.name not in variables:
                    return Refusal(node.op, "it uses a resource that is not a variable")
            elif number == _VARIANT:
                if source.op == ARGUMENT:
                    return Refusal(node.op, "a list of tensors comes from outside of the function")
            elif not _device_type(number) and source.op not in FREE:
                return Refusal(node.op, _no_engine(number))
        for number in node.types:
            if number == _RESOURCE and "While" in node.op:
                continue  # a handle that the loop hands on
            if number != _VARIANT and not _device_type(number):
                return Refusal(node.op, _no_engine(number))
        return None

    def _called(self, node: FlatNode) -> Refusal | None:
        for name in called_functions(node.op, node.attr):
            if name not in self._bodies:
                self._bodies[name] = None  # a function that calls itself
                self._bodies[name] = self._body(name)
            inner = self._bodies[name]
            if inner is not None:
                return replace(inner, reason=f"its body holds {inner.operator}: {inner.reason}")
        return None

    def _body(self, name: str) -> Refusal | None:
        if IMPLEMENTS in self.functions[name].attr:  # the operator it stands for is taken instead
            return None
        graph = _read(name, self.functions)
        args = [a for a in graph.args if graph.nodes[a].types[0] == _RESOURCE]
        inner = self.refusals(graph, args, outermost=False)
        # A list may enter a body: its own caller decides whether it may.
        kept = [r for r in inner.values() if "comes from outside" not in r.reason]
        return kept[0] if kept else None


def host_nodes(graph: FlatGraph, functions: Functions, variables: Collection[str]) -> dict[str, Refusal]:
    """The nodes that stay on the host whatever the shapes, and why. `variables` are arguments."""
    refused = _Classifier(functions).refusals(graph, variables)
    _follow_lists(graph, refused)
    return refused


_OF_VERSION_1 = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"})


def old_control_flow(graph: FlatGraph) -> dict[str, Refusal]:
    """Loops and branches of version 1's graphs: values between them may be absent, so such a graph is never cut."""
    why = "it belongs to a loop or branch of version 1, which TensorFlow runs as a whole"
    return {n.name: Refusal(n.op, why) for n in graph.nodes.values() if n.op in _OF_VERSION_1}


# -- rule 2 ----------------------------------------------------------------------------------------------------


def _follow_lists(graph: FlatGraph, refused: dict[str, Refusal]) -> None:
    """Nodes that share a list with the host go to the host as well."""
    shared: dict[str, list[str]] = {name: [] for name in graph.nodes}
    todo = []
    for node in graph.nodes.values():
        for ref in node.inputs:
            if graph.type_of(ref) == _VARIANT:
                shared[ref[0]].append(node.name)
                shared[node.name].append(ref[0])
    for ref in graph.results:
        if graph.type_of(ref) == _VARIANT and ref[0] not in refused:
            reason = "it makes a list of tensors that leaves the function"
            refused[ref[0]] = Refusal(graph.nodes[ref[0]].op, reason)
    todo = list(refused)
    while todo:
        name = todo.pop()
        for other in shared[name]:
            if other not in refused and graph.nodes[other].op != ARGUMENT:
                why = f"it shares a list of tensors with {name}, which is on the host"
                refused[other] = Refusal(graph.nodes[other].op, why)
                todo.append(other)


def written_arguments(graph: FlatGraph, functions: Functions) -> set[str]:
    """The resource arguments that a function may write (anything but plain reads counts)."""
    return {graph.args[i] for i in _written(graph, functions, {})}


def _written(graph: FlatGraph, functions: Functions, seen: dict[str, set[int]]) -> set[int]:
    place = {name: i for i, name in enumerate(graph.args)}
    found: set[int] = set()
    for node in graph.nodes.values():
        taken = [(k, place[n]) for k, (n, _) in enumerate(node.inputs) if n in place]
        taken = [(k, i) for k, i in taken if graph.nodes[graph.args[i]].types[0] == _RESOURCE]
        if not taken or node.op in READS:
            continue
        if node.op not in STRUCTURE:
            found.update(i for _, i in taken)
            continue
        first = 0 if "While" in node.op else 1
        for name in called_functions(node.op, node.attr):
            if name not in seen:
                seen[name] = set()
                seen[name] = _written(_read(name, functions), functions, seen)
            found.update(i for k, i in taken if k - first in seen[name])
    return found


def keeps_variables(graph: FlatGraph) -> bool:
    """Whether something that a function makes may use its variables later (a dataset that reads them, say)."""
    resources = {a for a in graph.args if graph.nodes[a].types[0] == _RESOURCE}
    return any(
        any(name in resources for name, _ in node.inputs)
        and not (node.op in READS or node.op in EFFECTS or node.op in STRUCTURE)
        and any(t in (_RESOURCE, _VARIANT) for t in node.types)
        for node in graph.nodes.values()
    )


Alone = tuple[str, tuple[tuple[str, bytes], ...], tuple[int, ...], int, tuple[int, ...]]
"""Name, attributes, arguments of the function that it takes, number of outputs, those that the function returns."""

# Operators that move batches in and out of a step: a function of only these takes less time than its call.
_MOVES = frozenset(
    {"IteratorGetNext", "IteratorGetNextAsOptional"} | {"OptionalFromValue", "OptionalGetValue"}
)


def single_operator(graph: FlatGraph) -> Alone | None:
    """The operator that is all of a function of the host; None where there is more, or what needs a function."""
    nodes = [n for n in graph.nodes.values() if n.op not in (ARGUMENT, "Identity")]
    if len(nodes) != 1 or nodes[0].op not in _MOVES or any(n not in graph.args for n, _ in nodes[0].inputs):
        return None
    (node,) = nodes
    returned = [_skip_identities(graph, ref) for ref in graph.results]
    results = tuple(index for name, index in returned if name == node.name)
    if len(results) != len(graph.results) or len(set(results)) != len(results):
        return None
    attrs = tuple((k, node.attr[k].SerializeToString()) for k in sorted(node.attr) if not k.startswith("_"))
    taken = tuple(graph.args.index(name) for name, _ in node.inputs)
    return node.op, attrs, taken, len(node.types), results


def _skip_identities(graph: FlatGraph, ref: Ref) -> Ref:
    while graph.nodes[ref[0]].op == "Identity":
        ref = graph.nodes[ref[0]].inputs[0]
    return ref


# -- rules 3 to 5 ----------------------------------------------------------------------------------------------

Source = tuple[str, int, int]
"""Where a step's input comes from: ("input", argument, 0) or ("step", step, result)."""


_HOST, _NPU, _STRUCTURE = 0, 1, 2
_SIDES = 3  # a stage's number modulo this says what runs it


@dataclass(frozen=True)
class Step:
    """One step: a function of its own, where its inputs come from."""

    graph: FlatGraph
    on_npu: bool
    sources: tuple[Source, ...]
    structure: str = ""  # the loop or branch that is all of it, for the device to run
    npu: int = -1  # the NPU that runs it; -1: the one that runs the function
    stage: int = -1  # steps of one stage run at the same time; -1: alone


@dataclass(frozen=True)
class Cut:
    """A function in steps. `sources` are its results. `refused` says why nodes are on the host."""

    steps: tuple[Step, ...]
    sources: tuple[Source, ...]
    refused: Mapping[str, Refusal]


def cut(graph: FlatGraph, refused: Mapping[str, Refusal], structures: Collection[str] = ()) -> Cut:
    """Cut a function into steps; `refused` are the nodes that must stay on the host.

    `structures` are loops and branches among them that the device runs, calling their functions.
    """
    all_refused = dict(refused)
    _follow_lists(graph, all_refused)
    cutter = Cutter(graph, frozenset(structures))
    for _ in range(len(graph.nodes)):
        stages = cutter.stages(all_refused)
        moved = cutter.crossing_lists(stages, all_refused) or cutter.too_small(stages, all_refused)
        if not moved:
            break
        all_refused.update(moved)
        _follow_lists(graph, all_refused)
    return Writer(graph, cutter, cutter.stages(all_refused), all_refused).write()


@dataclass
class Cutter:
    """Assigns nodes to stages: the host's, the NPU's, and those of one loop or branch each, in turns."""

    graph: FlatGraph
    structures: frozenset[str] = frozenset()
    order: list[str] = field(default_factory=list)
    before: dict[str, set[str]] = field(default_factory=dict)  # effects that must precede an effect

    def __post_init__(self) -> None:
        self.order = self.graph.order()
        self._find_effects()

    def has_effect(self, node: FlatNode) -> bool:
        return node.op != ARGUMENT and node.op not in _NO_EFFECT and is_stateful(node.op)

    def _find_effects(self) -> None:
        """The effects nearest before each node, looking through nodes that have none."""
        nodes = self.graph.nodes
        nearest: dict[str, set[str]] = {}
        for name in self.order:
            node = nodes[name]
            found: set[str] = set()
            for other in node.controls:
                found |= {other} if self.has_effect(nodes[other]) else nearest[other]
            for other, _ in node.inputs:
                if not self.has_effect(nodes[other]):
                    found |= nearest[other]
                elif nodes[other].op not in READS:
                    found.add(other)
            nearest[name] = found
            if self.has_effect(node):
                self.before[name] = found

    def stages(self, refused: Collection[str]) -> dict[str, int]:
        """The stage of each node that belongs to one; who makes a list waits for who reads it, if it can."""
        least: dict[str, int] = {}
        for _ in range(_SETTLING):
            stage = self._stages(refused, least)
            late = {
                ref[0]: stage[node.name]
                for node in self.graph.nodes.values()
                for ref in node.inputs
                if node.name not in refused
                and self.graph.type_of(ref) == _VARIANT
                and stage.get(ref[0], stage.get(node.name, 0)) < stage.get(node.name, 0)
            }
            if not late:
                break
            least.update(late)
        return self._sunk(stage, refused)

    def _sunk(self, stage: dict[str, int], refused: Collection[str]) -> dict[str, int]:
        """Light nodes, and reads of variables, in the step of who uses them rather than in an earlier one.

        A read stays before every write that follows it.
        """
        latest: dict[str, int] = {}  # no later than this
        for name, before in self.before.items():
            for read in before:
                latest[read] = min(latest.get(read, stage[name]), stage[name])
        for name in reversed(self.order):
            node = self.graph.nodes[name]
            limit = latest.get(name)
            light = node.op in LIGHT and (not self.has_effect(node) or node.op in READS)
            if name in stage and light and name not in refused and limit is not None:
                stage[name] = max(stage[name], limit - (limit - _NPU) % _SIDES)
            if name in stage:
                for other, _ in node.inputs:
                    latest[other] = min(latest.get(other, stage[name]), stage[name])
        return stage

    def _stages(self, refused: Collection[str], floor: Mapping[str, int]) -> dict[str, int]:
        nodes = self.graph.nodes
        return assign_stages(
            [n for n in self.order if nodes[n].op not in (ARGUMENT, "NoOp") and nodes[n].op not in FREE],
            lambda name: [*(n for n, _ in nodes[name].inputs), *self.before.get(name, ())],
            lambda name: _STRUCTURE if name in self.structures else _HOST if name in refused else _NPU,
            _SIDES,
            floor=floor,
            alone=_STRUCTURE,
        )

    def crossing_lists(self, stages: Mapping[str, int], refused: Collection[str]) -> dict[str, Refusal]:
        """NPU nodes that would hand a list from one NPU step to another."""
        moved = {}
        for node in self.graph.nodes.values():
            for ref in node.inputs:
                here, there = stages.get(node.name), stages.get(ref[0])
                if self.graph.type_of(ref) != _VARIANT or here == there or None in (here, there):
                    continue
                if node.name not in refused:
                    reason = f"a host node is between it and the list of tensors from {ref[0]}"
                    moved[node.name] = Refusal(node.op, reason)
        return moved

    def too_small(self, stages: Mapping[str, int], refused: Collection[str]) -> dict[str, Refusal]:
        """The nodes of the NPU steps that are not worth their crossing."""
        members: dict[int, list[FlatNode]] = {}
        for name, stage in stages.items():
            if name not in refused:
                members.setdefault(stage, []).append(self.graph.nodes[name])
        moved = {}
        for nodes in members.values():
            plain = [n for n in nodes if n.op not in LIGHT]
            if any(n.op in HEAVY for n in plain) or len(plain) >= _WORTH_A_CROSSING:
                continue
            why = f"the {len(nodes)} node(s) between host nodes cost less than crossing to the NPU and back"
            moved.update({n.name: Refusal(n.op, why, "see the host nodes around it") for n in nodes})
        return moved


def effects_order(graph: FlatGraph) -> dict[str, set[str]]:
    """The nodes with effects, and the nearest ones that must run before each."""
    return Cutter(graph).before


class Writer:
    """Writes stages as graphs of their own."""

    def __init__(
        self, graph: FlatGraph, cutter: Cutter, stages: Mapping[str, int], refused: Mapping[str, Refusal]
    ) -> None:
        self.graph = graph
        self.cutter = cutter
        self.stages = stages
        self.refused = refused
        used = sorted(set(stages.values())) or [0]
        self.index = {stage: i for i, stage in enumerate(used)}
        self.members: list[list[str]] = [[] for _ in used]
        for name in cutter.order:
            if name in stages:
                self.members[self.index[stages[name]]].append(name)
        if (
            cutter.structures
            and used[-1] % _SIDES == _STRUCTURE
            and any(n not in stages for n, _ in graph.results)
        ):
            self.members.append([])  # a step for constants among the results
        self.produced = self._produced()

    def write(self) -> Cut:
        steps = tuple(self._step(i) for i in range(len(self.members)))
        return Cut(steps, tuple(self._source(ref) for ref in self.graph.results), self.refused)

    def _home(self, name: str) -> int:
        """The step of a node; constants that no other step has belong to the last."""
        return self.index[self.stages[name]] if name in self.stages else len(self.members) - 1

    def _produced(self) -> list[list[Ref]]:
        """What each step has to hand out, in order."""
        wanted: list[dict[Ref, None]] = [{} for _ in self.members]
        for place, names in enumerate(self.members):
            for name in names:
                for ref in self.graph.nodes[name].inputs:
                    if ref[0] in self.stages and self._home(ref[0]) != place:
                        wanted[self._home(ref[0])][ref] = None
        for ref in self.graph.results:
            if self.graph.nodes[ref[0]].op != ARGUMENT:
                wanted[self._home(ref[0])][ref] = None
        return [list(refs) for refs in wanted]

    def _source(self, ref: Ref) -> Source:
        if self.graph.nodes[ref[0]].op == ARGUMENT:
            return ("input", self.graph.args.index(ref[0]), 0)
        home = self._home(ref[0])
        return ("step", home, self.produced[home].index(ref))

    def _step(self, place: int) -> Step:
        members = set(self.members[place])
        piece = FlatGraph(f"{self.graph.name}_step{place}")
        taken: dict[Ref, str] = {}
        for name in self.members[place]:
            node = self.graph.nodes[name]
            inputs = [self._input(piece, taken, members, ref) for ref in node.inputs]
            controls = [n for n in self._controls(name) if n in members]
            piece.nodes[name] = replace(node, inputs=inputs, controls=controls)
        for ref in self.produced[place]:
            if ref[0] not in members:
                piece.nodes[ref[0]] = replace(self.graph.nodes[ref[0]], controls=[])
        piece.results = list(self.produced[place])
        piece.effects = [
            n
            for n in self.members[place]
            if self.cutter.has_effect(self.graph.nodes[n]) and self.graph.nodes[n].op not in READS
        ]
        on_npu = any(n not in self.refused for n in members)
        structure = next((n for n in members if n in self.cutter.structures), "")
        return Step(piece, on_npu, tuple(self._source(ref) for ref in taken), structure)

    def _controls(self, name: str) -> Iterable[str]:
        return sorted(self.cutter.before.get(name, ()))

    def _input(self, piece: FlatGraph, taken: dict[Ref, str], members: Collection[str], ref: Ref) -> Ref:
        node = self.graph.nodes[ref[0]]
        if ref[0] in members:
            return ref
        if node.op in FREE:
            piece.nodes.setdefault(node.name, replace(node, controls=[]))
            return ref
        if ref not in taken:
            name = node.name if node.op == ARGUMENT else f"{node.name}.{ref[1]}"
            taken[ref] = name
            piece.nodes[name] = FlatNode(name, ARGUMENT, [], [], {}, (self.graph.type_of(ref),))
            piece.args.append(name)
        return taken[ref], 0
