"""Which operations of a version-1 graph run on the NPU, and the parts (GEOPs) they form.

1. Operations that belong together form a unit: a loop of version 1 from Enter to Exit, a branch from Switch to
   Merge, whatever shares a TensorArray or a stack.
2. A unit stays on the host when it holds an operation that only the host can run, that the user keeps there
   (`without_npu_compile_scope`), or that the parser refuses.
3. Stages alternate between host and NPU; a unit's stage follows those of everything it waits for. All units of
   one NPU stage form one part.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npu_bridge.estimator.npu.npu_scope import HOST_ATTRIBUTE

__all__ = [
    "ASSERT",
    "CONTROL",
    "Partition",
    "Region",
    "classify",
    "has_effect",
    "is_free",
    "may_wait",
    "partition",
    "read_variable",
    "updated_variables",
]

_UPDATE = re.compile("Apply[A-Z].*|AssignAdd|AssignSub|Scatter(Add|Sub|Update|Mul|Div|Max|Min)")
CONTROL = frozenset(
    {"Enter", "Exit", "Switch", "Merge", "NextIteration", "LoopCond"}
    | {"RefEnter", "RefExit", "RefSwitch", "RefMerge", "RefNextIteration", "ControlTrigger"}
)
# Stateful, yet done at once: variables, tables, checkpoints, random numbers, collections of a run.
_PROMPT = re.compile(
    "Var.*|ReadVariableOp|IsVariableInitialized|Assign.*|(Resource)?(Sparse)?(Apply|Scatter|Gather).*"
    "|.*HashTable.*|LookupTable.*|SaveV2|RestoreV2|.*Random.*|TruncatedNormal|Multinomial"
    "|TensorArray.*|Stack.*|Assert|NpuGraph"
)
_ENTER, _EXIT = ("Enter", "RefEnter"), ("Exit", "RefExit")
_SWITCH, _MERGE = ("Switch", "RefSwitch"), ("Merge", "RefMerge")
_HANDLES = frozenset({"TensorArrayV3", "TensorArrayGradV3", "StackV2"})
ASSERT = "Assert"  # on the NPU where the shapes at hand decide it
RANDOM = frozenset({"RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomUniformInt"})
_KEPT_ON_HOST = frozenset(
    {
        "Placeholder",
        "PlaceholderV2",
        "PlaceholderWithDefault",
        "VariableV2",
        "Variable",
        "VarHandleOp",
        "NoOp",
    }
    | {"Print", "PrintV2", "CheckNumerics", "PyFunc", "EagerPyFunc", "PyFuncStateless", "NpuGraph"}
    | {"ReadVariableOp", "VarIsInitializedOp", "IsVariableInitialized", "VariableShape"}
)


def read_variable(operation: Any) -> Any:
    """The tensor of the version-1 variable that an operation does nothing but read; None for all others."""
    if operation.type != "Identity":
        return None
    source = operation.inputs[0]
    return source if source.op.type in ("VariableV2", "Variable") else None


def updated_variables(operation: Any) -> list[Any]:
    """The tensors of the version-1 variables that an operation of the NPU writes to."""
    if not _UPDATE.fullmatch(operation.type):
        return []
    return [t for t in operation.inputs if t.dtype._is_ref_dtype]


def is_free(operation: Any) -> bool:
    """Whether an operation is repeated wherever it is read: constants, and reads of version-1 variables."""
    return operation.type == "Const" or read_variable(operation) is not None


@dataclass(frozen=True)
class Region:
    """The operations that a run needs, in a form that is quick to walk."""

    operations: Mapping[str, Any]  # name -> tf.Operation
    inputs: Mapping[str, tuple[str, ...]]  # names of the producers that are not fed
    controls: Mapping[str, tuple[str, ...]]
    fed: frozenset[str]  # names of fed tensors

    @classmethod
    def of(cls, roots: Iterable[Any], fed: Collection[str]) -> Region:
        """What `roots` need, up to the tensors that are fed."""
        found: dict[str, Any] = {}
        inputs, controls = {}, {}
        todo = list(roots)
        while todo:
            operation = todo.pop()
            if operation.name in found:
                continue
            found[operation.name] = operation
            producers = [t.op for t in operation.inputs if t.name not in fed]
            awaited = _through_groups(operation)
            inputs[operation.name] = tuple(p.name for p in producers)
            controls[operation.name] = tuple(c.name for c in awaited)
            todo += [*producers, *awaited]
        return cls(found, inputs, controls, frozenset(fed))

    def before(self, name: str) -> Iterable[str]:
        """All operations that one waits for."""
        return (*self.inputs[name], *self.controls[name])

    def consumers(self) -> dict[str, list[str]]:
        """Who waits for each operation."""
        found: dict[str, list[str]] = defaultdict(list)
        for name in self.operations:
            for other in self.before(name):
                found[other].append(name)
        return found


@dataclass(frozen=True)
class Partition:
    """The stages of a region. Odd stages are the NPU's; `reasons` say why operations are on the host."""

    stages: Mapping[str, int]
    reasons: Mapping[str, str]
    parts: tuple[tuple[str, ...], ...] = ()
    units: tuple[tuple[str, ...], ...] = ()  # those of more than one operation

    def part_of(self) -> dict[str, int]:
        """The part that each offloaded operation belongs to."""
        return {name: index for index, names in enumerate(self.parts) for name in names}


def _through_groups(operation: Any) -> list[Any]:
    """The operations that one waits for; groups stand for their members, wherever those run."""
    found: dict[str, Any] = {}
    todo, seen = list(operation.control_inputs), set()
    while todo:
        other = todo.pop()
        if other.name in seen:
            continue
        seen.add(other.name)
        if other.type == "NoOp":
            todo += other.control_inputs
        else:
            found[other.name] = other
    return list(found.values())


# -- rule 1 --------------------------------------------------------------------------------------------------


@dataclass
class _Units:
    """Operations that must be on one side, by union and find."""

    parent: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> str:
        root = name
        while self.parent.get(root, root) != root:
            root = self.parent[root]
        while self.parent.get(name, name) != root:
            self.parent[name], name = root, self.parent[name]
        return root

    def join(self, first: str, second: str) -> None:
        self.parent[self.find(first)] = self.find(second)


def _units(region: Region) -> _Units:
    units = _Units()
    consumers = region.consumers()
    for name, operation in region.operations.items():
        if operation.type in _ENTER or operation.type in _SWITCH:
            _join_until(units, region, consumers, name)
    return units


def _sharers(region: Region) -> list[tuple[str, ...]]:
    """Operations that share a TensorArray or a stack: they are on one side, and on the NPU in one part."""
    groups = _Units()
    for name, operation in region.operations.items():
        for tensor in operation.inputs:
            if tensor.dtype.base_dtype.name == "resource" and _is_handle(tensor):
                groups.join(name, tensor.op.name)
    members: dict[str, list[str]] = defaultdict(list)
    for name in {*groups.parent, *groups.parent.values()}:
        members[groups.find(name)].append(name)
    return [tuple(names) for names in members.values()]


def _join_until(units: _Units, region: Region, consumers: Mapping[str, list[str]], start: str) -> None:
    """Join everything from an Enter or a Switch forward to what ends its loop or branch, loops inside included."""
    loop = region.operations[start].type in _ENTER
    todo, seen = [(start, 0)], {start}
    while todo:
        name, depth = todo.pop()
        units.join(name, start)
        kind = region.operations[name].type
        depth += (kind in _ENTER) - (kind in _EXIT)
        ended = depth <= 0 if loop else depth < 0 or (depth == 0 and kind in _MERGE)
        if ended and name != start:
            continue
        for other in consumers.get(name, ()):
            if other not in seen:
                seen.add(other)
                todo.append((other, depth))


# -- rule 2 --------------------------------------------------------------------------------------------------


def classify(
    region: Region, mapped: Callable[[str], bool], supported: Callable[[str], bool], wanted: Collection[str]
) -> dict[str, str]:
    """The operations that stay on the host whatever the shapes, and why; `wanted` are tensors to be fetched."""
    found = {}
    for name, operation in region.operations.items():
        reason = _reason(operation, mapped, supported)
        if not reason and updated_variables(operation) and any(t.name in wanted for t in operation.outputs):
            reason = "its result, a variable, is fetched"
        if reason:
            found[name] = reason
    return found


def _reason(operation: Any, mapped: Callable[[str], bool], supported: Callable[[str], bool]) -> str:
    if is_free(operation):
        return ""
    if _has_attribute(operation, HOST_ATTRIBUTE):
        return "the script keeps it on the host"
    if operation.type in _KEPT_ON_HOST:
        return "it belongs to the host"
    if any(t.dtype._is_ref_dtype for t in (*operation.inputs, *operation.outputs)):
        return (
            "" if mapped(operation.type) and _updates_alone(operation) else "it works on a variable in place"
        )
    if operation.type in CONTROL or operation.type in RANDOM:
        return ""
    if not mapped(operation.type):
        return "it calls Python" if "PyFunc" in operation.type else "no plugin maps it"
    for tensor in (*operation.inputs, *operation.outputs):
        kind = tensor.dtype.base_dtype.name
        if kind == "resource":
            if tensor.op.type not in _HANDLES and operation.type not in _HANDLES and not _is_handle(tensor):
                return "it uses a resource of the host"
        elif kind != "variant" and not supported(kind) and not is_free(tensor.op):
            return f"no engine accepts {kind}"
    if operation.op_def is not None and operation.op_def.is_stateful and not _stays_within(operation):
        return "it has an effect outside of the model"
    return ""


def _updates_alone(operation: Any) -> bool:
    """Whether an update writes to variables whose sizes are known and nobody reads its result."""
    targets = updated_variables(operation)
    known = all(t.op.type in ("VariableV2", "Variable") and t.shape.is_fully_defined() for t in targets)
    return bool(targets) and known and not any(t.consumers() for t in operation.outputs)


def _is_handle(tensor: Any) -> bool:
    """Whether a resource tensor is a TensorArray or a stack on its way into a loop."""
    seen = 0
    while tensor.op.type in CONTROL and len(tensor.op.inputs) and seen < 64:
        tensor, seen = tensor.op.inputs[0], seen + 1
    return tensor.op.type in _HANDLES


def has_effect(operation: Any) -> bool:
    """Whether running an operation of the host twice is not running it once."""
    if operation.type in _KEPT_ON_HOST - {"PyFunc", "EagerPyFunc", "Print", "PrintV2"} | {ASSERT}:
        return False
    written = any(t.dtype._is_ref_dtype for t in operation.inputs) and read_variable(operation) is None
    return written or bool(operation.op_def is not None and operation.op_def.is_stateful)


def may_wait(operation: Any) -> bool:
    """Whether an operation of the host may wait for what happens elsewhere, or repeats others."""
    if operation.type in CONTROL:
        return True
    stateful = operation.op_def is not None and operation.op_def.is_stateful
    return stateful and not _PROMPT.fullmatch(operation.type)


def _stays_within(operation: Any) -> bool:
    """Whether the effect of an operation that TensorFlow calls stateful is the part's own affair."""
    return operation.type.startswith(("TensorArray", "Stack")) or operation.type in (
        "If",
        "While",
        "Case",
        ASSERT,
    )


def _has_attribute(operation: Any, name: str) -> bool:
    try:
        return bool(operation.get_attr(name))
    except ValueError:
        return False


# -- rule 3 --------------------------------------------------------------------------------------------------


def partition(region: Region, reasons: Mapping[str, str]) -> Partition:
    """Stages and parts of a region; `reasons` are the operations that must stay on the host."""
    units = _units(region)
    members: dict[str, list[str]] = defaultdict(list)
    for name in region.operations:
        members[units.find(name)].append(name)
    reasons = dict(reasons)
    sharers = _sharers(region)
    for name in (n for names in members.values() if len(names) > 1 for n in names):
        if region.operations[name].type == ASSERT:
            reasons.setdefault(name, "it belongs to the host")
    _follow(members.values(), reasons, "it belongs to a loop or branch with")
    while True:
        before = len(reasons)
        _follow(sharers, reasons, "it shares a TensorArray or a stack with")
        _follow(members.values(), reasons, "it belongs to a loop or branch with")
        if len(reasons) > before:
            continue
        stages = _stages(region, units, members, reasons)
        apart = [
            names for names in sharers if len({stages[n] for n in names}) > 1 and names[0] not in reasons
        ]
        if not apart:
            break
        reasons.update(dict.fromkeys(apart[0], "a host operation lies between the uses of a TensorArray"))
    parts: dict[int, list[str]] = defaultdict(list)
    for name, stage in stages.items():
        if stage % 2 and name not in reasons:
            parts[stage].append(name)
    return Partition(
        stages,
        reasons,
        tuple(tuple(parts[stage]) for stage in sorted(parts)),
        tuple(tuple(names) for names in members.values() if len(names) > 1),
    )


def _follow(groups: Iterable[Sequence[str]], reasons: dict[str, str], why: str) -> None:
    """Whoever belongs together with a host operation joins it."""
    for names in groups:
        blamed = next((n for n in names if n in reasons), None)
        if blamed is not None:
            for name in names:
                reasons.setdefault(name, f"{why} {blamed}: {reasons[blamed]}")


def _stages(
    region: Region, units: _Units, members: Mapping[str, list[str]], reasons: Mapping[str, str]
) -> dict[str, int]:
    stages: dict[str, int] = {}
    for unit in _unit_order(region, units, members):
        names = members[unit]
        if len(names) == 1 and is_free(region.operations[names[0]]) and not region.controls[names[0]]:
            continue
        side = 0 if any(n in reasons for n in names) else 1
        inside = set(names)
        earlier = [o for n in names for o in region.before(n) if o not in inside]
        least = max((stages[o] for o in earlier if o in stages), default=0)
        stages.update(dict.fromkeys(names, least + (least - side) % 2))
    return stages


def _unit_order(region: Region, units: _Units, members: Mapping[str, list[str]]) -> list[str]:
    """Units, dependencies first."""
    done: dict[str, bool] = {}
    order: list[str] = []
    for root in members:
        stack = [root]
        while stack:
            unit = stack[-1]
            if done.get(unit):
                stack.pop()
            elif unit in done:
                stack.pop()
                done[unit] = True
                order.append(unit)
            else:
                done[unit] = False
                before = {units.find(o) for n in members[unit] for o in region.before(n)}
                stack += [o for o in before if o not in done]
    return order
