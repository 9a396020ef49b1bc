"""Candidate parts: subgraphs for the NPU before they join the graph; compiles them ahead if sizes are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tensorflow.python.framework.errors_impl import InvalidArgumentError, OpError

from ge import faults
from ge.errors import GeError, UserCodeError
from ge.options import CompileOptions
from npu_bridge.partition import CONTROL
from npu_bridge.variables import is_resource, sizes_of, type_of
from tf_adapter.graphs import FlatGraph, Functions
from tf_adapter.lowering import Lowered, lower
from tf_adapter.parts import Known
from tf_adapter.resident import Given, Layout, given_inputs, number_of

__all__ = ["UNKNOWN_SIZES", "CandidatePart", "Verdict", "judge"]

UNKNOWN_SIZES = "it works on tensors whose sizes are not known before the run, and has an effect"


@dataclass(frozen=True)
class CandidatePart:
    """A candidate subgraph: its boundary tensors, control dependencies and the variables it writes."""

    graph: FlatGraph
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    controls: Sequence[str]
    written: frozenset[int]
    given: Mapping[int, int] = field(
        default_factory=dict
    )  # resident inputs: index of the producing part's output
    left: tuple[int, ...] = ()  # outputs that stay resident for another part

    @property
    def assigned(self) -> dict[int, int]:
        """Inputs that are handles of assigned variables, and the results that hold their new values."""
        places = [p for p in sorted(self.written) if is_resource(self.inputs[p])]
        return {place: len(self.outputs) + k for k, place in enumerate(places)}

    def has_loops(self) -> bool:
        """True if it contains version-1 control flow, which cannot be part of a host function."""
        return any(node.op in CONTROL for node in self.graph.nodes.values())


@dataclass
class Verdict:
    """Result of compiling a part. Neither `lowered` nor `refused`: unknown until it runs."""

    candidate: CandidatePart
    lowered: Lowered | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    shapes: tuple[tuple[int, ...], ...] = ()
    layout: int = 0  # of the resident inputs

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Sizes of the part's outputs, by name."""
        assert self.lowered is not None
        ports = zip(self.lowered.ports.outputs, self.lowered.model.outputs, strict=True)
        made = {
            self.candidate.outputs[index].name: tuple(port.desc.shape)
            for (kind, index), port in ports
            if kind == "output" and not port.dynamic
        }
        made.update({self.candidate.outputs[p.result].name: p.shape for p in self.lowered.left})
        passed = [(j, index) for j, (kind, index) in self.lowered.ports.others if kind != "constant"]
        return {**made, **{self.candidate.outputs[j].name: self.shapes[index] for j, index in passed}}

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Values of the part's outputs that do not depend on the run, by name."""
        assert self.lowered is not None
        ports = self.lowered.ports
        known = [(j, index) for j, (kind, index) in ports.others if kind == "constant"]
        return {self.candidate.outputs[j].name: ports.constants[index] for j, index in known}

    def ready(self) -> dict[Known, Lowered]:
        """Compiled models by input shapes and layout of resident inputs."""
        if self.lowered is None or self.lowered.ports.specialised:
            return {}
        return {(self.shapes, self.layout): self.lowered}


class _ValueNeeded(Exception):
    """The structure of a part depends on a run-time value."""


@dataclass(frozen=True)
class _Expected:
    """An input as known before the run."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    value: np.ndarray | None
    version: int = 0
    variable: int = 0

    def numpy(self) -> np.ndarray:
        if self.value is None:
            raise _ValueNeeded
        return self.value


def judge(
    candidate: CandidatePart,
    functions: Functions,
    fed: Mapping[str, np.ndarray | None],
    sizes: Mapping[str, tuple[int, ...]],
    options: CompileOptions,
    layout: Layout | None = None,
) -> Verdict:
    """Compile a part if the sizes of all its inputs are known; `sizes` are those of tensors from other parts.

    `layout` is the placement of resident inputs; None if unknown.
    """
    resident = given_inputs(layout or ())
    expected = [
        resident.get(candidate.given[i])
        if i in candidate.given
        else _expected(t, i in candidate.written, fed, sizes)
        for i, t in enumerate(candidate.inputs)
    ]
    unsure = Verdict(candidate, None, dict.fromkeys(candidate.graph.effects, UNKNOWN_SIZES))
    inputs = [e for e in expected if e is not None]
    if len(inputs) < len(expected):
        return unsure
    try:
        found = lower(
            candidate.graph,
            functions,
            inputs,
            options,
            name=candidate.graph.name,
            kept=candidate.assigned,
            given={i: e.offset for i, e in enumerate(inputs) if isinstance(e, Given)},
            left=candidate.left,
        )
    except _ValueNeeded:
        return unsure
    except UserCodeError as error:
        raise InvalidArgumentError(None, None, str(error)) from error
    except GeError as error:
        return Verdict(candidate, None, candidate.graph.refused(error.cause, error.node))
    except OpError:
        raise
    except Exception as error:
        fault = faults.absorb(f"graph part {candidate.graph.name}", error)
        return Verdict(candidate, None, candidate.graph.refused(str(fault)))
    if isinstance(found, Lowered):
        number = number_of(layout or ()) if candidate.given else 0
        return Verdict(candidate, found, shapes=tuple(e.shape for e in inputs), layout=number)
    return Verdict(candidate, None, {node: why.reason for node, why in found.nodes.items()})


def _expected(
    tensor: Any, written: bool, fed: Mapping[str, np.ndarray | None], sizes: Mapping[str, tuple[int, ...]]
) -> _Expected | None:
    """The known facts of a tensor; None if its size is unknown."""
    value = fed.get(tensor.name)
    if value is not None:
        shape: tuple[int, ...] | None = value.shape
    elif tensor.name in fed:
        shape = None
    elif tensor.name in sizes:
        shape = sizes[tensor.name]
    else:
        shape = sizes_of(tensor)
    if shape is None:
        return None
    kind = "variable" if written else "tensor"
    return _Expected(kind, type_of(tensor).name, tuple(map(int, shape)), value)
