"""Which operations of a version-1 graph run on the NPU, and the parts (GEOPs) they form.

1. Operations that belong together form a unit: a loop of version 1 from Enter to Exit, a branch from Switch to
   Merge, all users of one TensorArray, stack or reference variable. An operation that is both a predecessor and a
   successor of a unit belongs to it.
2. A unit stays on the host if it contains an operation that only the host can run, that the user keeps there
   (`without_npu_compile_scope`), or that the parser rejects. All updates of a variable are on one side.
3. Stages alternate between host and NPU; a unit's stage follows those of its dependencies. All units of
   one NPU stage form one part.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ge.hybrid import Groups, assign_stages, follow, in_order
from npu_bridge.estimator.npu.npu_scope import HOST_ATTRIBUTE
from npu_bridge.variables import (
    ASSIGNS,
    bytes_of,
    changes_rows,
    is_update,
    read_resource,
    read_variable,
    sizes_of,
    type_of,
    updated_variables,
    variable_of,
)

__all__ = [
    "ASSERT",
    "CONTROL",
    "ENDS",
    "Partition",
    "Region",
    "classify",
    "has_effect",
    "is_free",
    "may_wait",
    "partition",
]

CONTROL = frozenset(
    {"Enter", "Exit", "Switch", "Merge", "NextIteration", "LoopCond"}
    | {"RefEnter", "RefExit", "RefSwitch", "RefMerge", "RefNextIteration", "ControlTrigger"}
)
# Stateful but non-blocking: variables, tables, checkpoints, random numbers, collections of a run.
_PROMPT = re.compile(
    "Var.*|ReadVariableOp|IsVariableInitialized|Assign.*|(Resource)?(Sparse)?(Apply|Scatter|Gather).*"
    "|.*HashTable.*|LookupTable.*|SaveV2|RestoreV2|.*Random.*|TruncatedNormal|Multinomial"
    "|TensorArray.*|Stack.*|Assert|NpuGraph"
)
_ENTER, _EXIT = ("Enter", "RefEnter"), ("Exit", "RefExit")
_SWITCH, _MERGE = ("Switch", "RefSwitch"), ("Merge", "RefMerge")
ENDS = frozenset({*_EXIT, *_MERGE})
_HANDLES = frozenset({"TensorArrayV3", "TensorArrayGradV3", "StackV2"})
ASSERT = "Assert"  # on the NPU if the shapes decide it
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
    | {"VarIsInitializedOp", "IsVariableInitialized", "VariableShape"}
)
_LARGE = 1 << 20  # bytes from which a table is not copied to update some rows


def is_free(operation: Any) -> bool:
    """True if an operation is duplicated into its consumers' parts: constants, and reads of version-1 variables."""
    return operation.type == "Const" or read_variable(operation) is not None


@dataclass(frozen=True)
class Region:
    """The operations that a run needs, indexed for fast traversal."""

    operations: Mapping[str, Any]  # name -> tf.Operation
    inputs: Mapping[str, tuple[str, ...]]  # names of the producers that are not fed
    controls: Mapping[str, tuple[str, ...]]
    fed: frozenset[str]  # names of fed tensors

    @classmethod
    def of(cls, roots: Iterable[Any], fed: Collection[str]) -> Region:
        """The region that `roots` need, up to fed tensors."""
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
        """All predecessors of an operation."""
        return (*self.inputs[name], *self.controls[name])

    def consumers(self) -> dict[str, list[str]]:
        """The successors of each operation."""
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
    units: tuple[tuple[str, ...], ...] = ()  # units with more than one operation

    def part_of(self) -> dict[str, int]:
        """The part of each offloaded operation."""
        return {name: index for index, names in enumerate(self.parts) for name in names}


def _through_groups(operation: Any) -> list[Any]:
    """Predecessors of an operation; groups are replaced by their members."""
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


def _units(region: Region) -> Groups[str]:
    units = Groups[str]()
    consumers = region.consumers()
    for name, operation in region.operations.items():
        if operation.type in _ENTER or operation.type in _SWITCH:
            _join_until(units, region, consumers, name)
    units.join_cycles(region.operations, region.before)
    return units


def _sharers(region: Region) -> list[tuple[str, ...]]:
    """Operations that share a TensorArray, stack, variant or reference; they run on one side, in one part."""
    groups = Groups[str]()
    for name, operation in region.operations.items():
        for tensor in operation.inputs:
            kind = tensor.dtype.base_dtype.name
            handle = kind == "variant" or (kind == "resource" and _is_handle(tensor))
            if handle and tensor.name in region.fed:
                continue
            if handle or (tensor.dtype._is_ref_dtype and is_update(tensor.op)):
                groups.join(name, tensor.op.name)
    return groups.joined()


def _updates(region: Region) -> list[tuple[str, ...]]:
    """Operations that update the same variable; they run on one side."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, operation in region.operations.items():
        for variable in updated_variables(operation):
            if variable is not None:
                groups[variable.name].append(name)
    return [tuple(names) for names in groups.values() if len(names) > 1]


def _idle_reads(region: Region, reasons: Mapping[str, str]) -> list[str]:
    """Reads of variables that only the host uses; reads that are only control dependencies belong to neither side."""
    used: set[str] = set()  # by the NPU
    waited: set[str] = set()
    read: set[str] = set()
    for name in region.operations:
        read.update(region.inputs[name])
        waited.update(region.controls[name])
        if name not in reasons:
            used.update(region.inputs[name])
    return [
        name
        for name, operation in region.operations.items()
        if operation.type == "ReadVariableOp"
        and name not in reasons
        and name not in used
        and (name in read or name not in waited)
    ]


def _join_until(units: Groups[str], region: Region, consumers: Mapping[str, list[str]], start: str) -> None:
    """Join all operations from an Enter or Switch to the end of its loop or branch, nested ones included."""
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
    """Operations that stay on the host for any shapes, with reasons; `wanted` are the fetched tensors."""
    found = {}
    for name, operation in region.operations.items():
        reason = _reason(operation, mapped, supported)
        if not reason and is_update(operation) and any(t.name in wanted for t in operation.outputs):
            reason = "its result, a variable, is fetched"
        crossing = [t for t in operation.inputs if t.name in region.fed]
        crossing += [t for t in operation.outputs if t.name in wanted]
        if not reason and any(t.dtype.base_dtype.name == "variant" for t in crossing):
            reason = "it has a list of tensors, or another variant, from outside of the run"
        if not reason and operation.type in ASSIGNS and not _has_value(region, operation):
            reason = "its variable may not have a value yet"
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
    if is_update(operation) or read_resource(operation) is not None:
        return _variable_reason(operation, mapped, supported)
    if _takes_reference(operation):
        handed = operation.type in CONTROL and variable_of(operation.inputs[0]) is not None
        return "" if handed else "it works on a variable in place"
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


def _takes_reference(operation: Any) -> bool:
    """True if an operation takes or returns a reference to a variable."""
    refs = any(t.dtype._is_ref_dtype for t in operation.outputs)
    return refs or any(a.is_ref for a in operation.op_def.input_arg)


def _variable_reason(operation: Any, mapped: Callable[[str], bool], supported: Callable[[str], bool]) -> str:
    """Reason why an operation that reads or updates variables stays on the host; "" if it need not."""
    if not mapped(operation.type):
        return "no plugin maps it"
    variables = updated_variables(operation) or [read_resource(operation)]
    if any(v is None for v in variables):
        return "it works on a variable in place"
    if any(sizes_of(v) is None for v in variables):
        return "the size of its variable is not known"
    kinds = [type_of(v).name for v in variables]
    if not all(map(supported, kinds)):
        return f"no engine accepts {next(k for k in kinds if not supported(k))}"
    if changes_rows(operation) and max(map(bytes_of, variables)) > _LARGE:
        return "it changes rows of a large table, which the host does in place"
    return ""


def _has_value(region: Region, operation: Any) -> bool:
    """True if a predecessor of an assignment uses the assigned variable."""
    variable = variable_of(operation.inputs[0])
    todo, seen = list(region.before(operation.name)), {operation.name}
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        other = region.operations[name]
        used = [read_variable(other), read_resource(other)]
        used += updated_variables(other) if other.type not in ASSIGNS else []
        if any(v is not None and v.name == variable.name for v in used):
            return True
        todo += region.before(name)
    return False


def _is_handle(tensor: Any) -> bool:
    """True if a resource tensor is a TensorArray or stack passed into a loop."""
    seen = 0
    while tensor.op.type in CONTROL and len(tensor.op.inputs) and seen < 64:
        tensor, seen = tensor.op.inputs[0], seen + 1
    return tensor.op.type in _HANDLES


def has_effect(operation: Any) -> bool:
    """True if an operation of the host has side effects (is not idempotent)."""
    if operation.type in _KEPT_ON_HOST - {"PyFunc", "EagerPyFunc", "Print", "PrintV2"} | {ASSERT}:
        return False
    if read_variable(operation) is not None or read_resource(operation) is not None:
        return False
    written = any(t.dtype._is_ref_dtype for t in operation.inputs)
    return written or bool(operation.op_def is not None and operation.op_def.is_stateful)


def may_wait(operation: Any) -> bool:
    """True if an operation of the host may block on external events, or repeats others."""
    if operation.type in CONTROL:
        return True
    stateful = operation.op_def is not None and operation.op_def.is_stateful
    return stateful and not _PROMPT.fullmatch(operation.type)


def _stays_within(operation: Any) -> bool:
    """True if the effect of a stateful operation is local to the part."""
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
    """Partition a region into stages and parts; `reasons` are the operations that must stay on the host."""
    units = _units(region)
    members = units.members(region.operations)
    reasons = dict(reasons)
    sharers, updates = _sharers(region), _updates(region)
    for name in (n for names in members.values() if len(names) > 1 for n in names):
        if region.operations[name].type == ASSERT:
            reasons.setdefault(name, "it belongs to the host")
    follow(members.values(), reasons, "it belongs to a loop or branch with")
    while True:
        before = len(reasons)
        follow(sharers, reasons, "it shares a TensorArray, a stack or a reference with")
        follow(updates, reasons, "it updates the same variable as")
        follow(members.values(), reasons, "it belongs to a loop or branch with")
        reasons.update(dict.fromkeys(_idle_reads(region, reasons), "only the host reads it"))
        if len(reasons) > before:
            continue
        stages = _stages(region, units, members, reasons)
        apart = [
            names for names in sharers if len({stages[n] for n in names}) > 1 and names[0] not in reasons
        ]
        if not apart:
            break
        reasons.update(
            dict.fromkeys(
                apart[0], "a host operation is between its uses of one TensorArray, stack or reference"
            )
        )
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


def _stages(
    region: Region, units: Groups[str], members: Mapping[str, Sequence[str]], reasons: Mapping[str, str]
) -> dict[str, int]:
    before = {
        unit: {units.find(o) for name in names for o in region.before(name)} - {unit}
        for unit, names in members.items()
    }
    staged = [
        unit for unit in in_order(members, before.__getitem__) if not _is_anywhere(region, members[unit])
    ]
    found = assign_stages(
        staged, before.__getitem__, lambda unit: int(not any(n in reasons for n in members[unit]))
    )
    return {name: stage for unit, stage in found.items() for name in members[unit]}


def _is_anywhere(region: Region, names: Sequence[str]) -> bool:
    """True for a unit that is duplicated into its consumers' parts."""
    return len(names) == 1 and is_free(region.operations[names[0]]) and not region.controls[names[0]]
