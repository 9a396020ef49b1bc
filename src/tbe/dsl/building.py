"""Schedules and builds of operator files: `auto_schedule`, `build`, `cce_build_code`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tbe import expr as e
from tbe.collected import Collected
from tbe.dsl.registry import Call, current_call
from tbe.dsl.tensor import Tensor
from tbe.kernel import Kernel
from tbe.kernel import build as build_kernel
from tbe.kernel_sequence import KernelSequence, split_into_kernels

__all__ = [
    "Built",
    "Schedule",
    "auto_schedule",
    "build",
    "builds_of",
    "cce_build_code",
    "compute",
    "has_unknown",
    "is_unknown",
]

UNKNOWN = (-1, -2)  # a dimension, a rank that is not known


class Schedule:
    """What `auto_schedule` gives: the tensors to compute. Loops are chosen when the kernel is built."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = list(outputs)
        self.cce_special: dict[str, Any] = {"op_placeholder": [], "real_out_tensor": self.outputs}

    def __getitem__(self, tensor: Any) -> Any:
        raise NotImplementedError(
            "schedules written by hand (sch[tensor].split, .compute_at, ...) are for other hardware; "
            "leave the loops to auto_schedule"
        )


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, Tensor):
        yield values
    elif values is not None:
        raise TypeError(f"expected tensors, got {type(values).__name__}")


def auto_schedule(outs: Any, option: Any = None) -> Schedule:
    """A schedule for one or several tensors."""
    outputs = list(_tensors(outs))
    if not outputs:
        raise ValueError("auto_schedule needs a tensor")
    return Schedule(outputs)


@dataclass
class Built:
    """A built operator: its inputs and outputs as expressions, and its kernels.

    With dimensions that were unknown it has no kernels; `specialise` builds it for given descriptions.
    """

    name: str
    inputs: list[e.Tensor]
    outputs: list[e.Tensor]
    dynamic: bool = False
    call: Call | None = None
    _parts: KernelSequence | None = field(default=None, repr=False)
    _kernels: list[Kernel] | None = field(default=None, repr=False)

    @property
    def parts(self) -> KernelSequence:
        """The kernels to be, and the values between them."""
        if self.dynamic:
            raise ValueError(f"{self.name} was built for unknown dimensions; use specialise()")
        if self._parts is None:
            import npu_runtime

            self._parts = split_into_kernels(self.inputs, self.outputs, npu_runtime.num_threads())
        return self._parts

    @property
    def kernels(self) -> list[Kernel]:
        """Machine code, a kernel a step."""
        if self._kernels is None:
            self._kernels = [build_kernel(s.inputs, s.outputs, plan=s.plan) for s in self.parts.steps]
        return self._kernels

    def specialise(self, *descriptions: Mapping[str, Any]) -> Built:
        """The same operator for other (known) descriptions of its inputs and outputs."""
        if self.call is None:
            raise ValueError(
                f"{self.name} is not registered with register_operator, so it cannot be traced again"
            )
        made: list[Built] = []
        call = self.call
        with builds_of(made):
            call.function(*descriptions, *call.args[len(descriptions) :], **call.kwargs)
        return made[-1]


_builds: Collected[Built] = Collected("builds")
builds_of = _builds.inside  # collects what is built inside, without making machine code


def build(sch: Any, config_map: Mapping[str, Any] | None = None) -> Built:
    """Build an operator from its schedules; `config_map` has "name" and "tensor_list" (inputs, then outputs).

    A list of schedules with a list of tensor lists is an operator for several shapes; they are the same
    computation, of which one is kept.
    """
    config = dict(config_map or {})
    schedules = list(sch) if isinstance(sch, (list, tuple)) else [sch]
    if not schedules or not all(isinstance(s, Schedule) for s in schedules):
        raise TypeError("build takes what auto_schedule gives")
    tensors = config.get("tensor_list", config.get("op_placeholder"))
    if not tensors:
        raise ValueError('build needs config["tensor_list"]: the inputs, then the outputs')
    first = tensors[0] if isinstance(tensors[0], (list, tuple)) and len(schedules) > 1 else tensors
    flat = list(_tensors(first))
    inputs, outputs = _sides(flat)
    outputs = outputs or [t.expression for t in schedules[0].outputs]
    built = Built(str(config.get("name", "kernel")), inputs, outputs)
    built.call = current_call.get()
    built.dynamic = built.call is not None and has_unknown((built.call.args, built.call.kwargs))
    found = _builds.found
    if found is not None:
        found.append(built)
    elif not built.dynamic and config.get("need_build", True):
        _ = built.kernels
    return built


def _sides(tensors: Sequence[Tensor]) -> tuple[list[e.Tensor], list[e.Tensor]]:
    """The inputs and the outputs of a tensor list; a placeholder named again is an output that is an input."""
    inputs: list[e.Tensor] = []
    outputs: list[e.Tensor] = []
    for tensor in tensors:
        value = tensor.expression
        known = any(value is x for x in inputs)
        (inputs if isinstance(value, e.Placeholder) and not known else outputs).append(value)
    return inputs, outputs


def cce_build_code(sch: Any, config_map: Mapping[str, Any] | None = None) -> Built:
    """Build an operator; the older name."""
    return build(sch, config_map)


def is_unknown(description: Any) -> bool:
    """Whether a description has a dimension, or a rank, that is not known."""
    shape = description.get("shape") if isinstance(description, Mapping) else None
    return any(d in UNKNOWN for d in shape or ())


def has_unknown(value: Any) -> bool:
    """Whether a description among arguments has a dimension that is not known."""
    if isinstance(value, (list, tuple)):
        return any(has_unknown(v) for v in value)
    if isinstance(value, Mapping):
        return is_unknown(value) or any(has_unknown(v) for v in value.values() if isinstance(v, Mapping))
    return False


@contextlib.contextmanager
def compute(*_: Any, **__: Any) -> Iterator[None]:
    """One of the computations of an operator for several shapes (`with tbe.dsl.compute():`)."""
    yield
