"""Bindings: the memory of the inputs and outputs of a GPU program.

A CUDA graph holds addresses. It is captured for each set of addresses that callers pass, and the last few are cached:
in a steady loop a framework's allocator returns the same addresses repeatedly, and parameters do not move. Inputs and
outputs whose addresses keep changing are copied from and to the program's own memory instead, which is faster than
capturing again. So are those not aligned to 16 bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ge.plan import Plan, Port
from npu_runtime import cuda

__all__ = ["Binding", "Bindings"]

MOST_BINDINGS = 8
_ALIGNMENT = 16


@dataclass(frozen=True)
class Binding:
    """The addresses of all inputs and outputs."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Bindings:
    """The bindings with captured graphs, and the program's own memory for inputs and outputs."""

    def __init__(self, plan: Plan, device: int) -> None:
        self.plan, self.device = plan, device
        self._known: OrderedDict[Binding, None] = OrderedDict()
        self._inputs: dict[int, cuda.Memory] = {}
        self._outputs: dict[int, cuda.Memory] = {}
        self._scratch: list[cuda.Memory] = []
        self._over = {
            source: output for output, source in plan.donated
        }  # input -> output that takes its memory
        self.moving: set[tuple[str, int]] = set()  # inputs and outputs whose addresses keep changing

    def __contains__(self, binding: Binding) -> bool:
        if binding in self._known:
            self._known.move_to_end(binding)
            return True
        return False

    def add(self, binding: Binding) -> list[Binding]:
        """Add a binding; returns the evicted ones."""
        self._known[binding] = None
        dropped = []
        while len(self._known) > MOST_BINDINGS:
            dropped.append(self._known.popitem(last=False)[0])
        return dropped

    def forget(self) -> None:
        """Discard all bindings, so that their graphs are captured again."""
        self._known.clear()

    def own(self) -> Binding:
        """All inputs and outputs in the program's own memory."""
        return Binding(
            tuple(self._own("input", i) for i in range(len(self.plan.inputs))),
            tuple(self._own("output", i) for i in range(len(self.plan.outputs))),
        )

    def scratch(self, given: Binding | None) -> Binding:
        """A binding for warm-up runs, whose results are discarded: donated inputs are not the caller's."""
        if given is None:
            return self.own()
        inputs, outputs = list(given.inputs), list(given.outputs)
        for index, port in enumerate(self.plan.inputs):
            if index in self._over or inputs[index] % _ALIGNMENT or not inputs[index]:
                inputs[index] = self._temporary(port)
        for index, port in enumerate(self.plan.outputs):
            if outputs[index] % _ALIGNMENT or not outputs[index]:
                outputs[index] = self._temporary(port)
        for source, output in self._over.items():
            outputs[output] = inputs[source]
        return Binding(tuple(inputs), tuple(outputs))

    def drop_scratch(self) -> None:
        """Free the memory of warm-up runs."""
        self._scratch.clear()

    def choose(self, given: Binding) -> Binding:
        """The binding to run with: the caller's memory, except for what is copied."""
        binding = self._bound(given)
        if binding in self._known or len(self._known) < MOST_BINDINGS:
            return binding
        seen = [*self._known, binding]
        for side in ("input", "output"):
            ports = self.plan.inputs if side == "input" else self.plan.outputs
            self.moving |= {
                (side, index) for index in range(len(ports)) if len({_side(b, side)[index] for b in seen}) > 1
            }
        return self._bound(given)

    def _bound(self, given: Binding) -> Binding:
        inputs = tuple(self._place("input", i, a) for i, a in enumerate(given.inputs))
        outputs = [self._place("output", i, a) for i, a in enumerate(given.outputs)]
        for source, output in self._over.items():
            outputs[output] = inputs[source]
        return Binding(inputs, tuple(outputs))

    def _place(self, side: str, index: int, address: int) -> int:
        is_bound = address and not address % _ALIGNMENT and (side, index) not in self.moving
        return address if is_bound else self._own(side, index)

    def _own(self, side: str, index: int) -> int:
        if side == "output":
            for source, output in self._over.items():
                if output == index:
                    return self._own("input", source)
        memory = self._inputs if side == "input" else self._outputs
        if index not in memory:
            port = (self.plan.inputs if side == "input" else self.plan.outputs)[index]
            memory[index] = cuda.Memory(self.device, max(port.desc.nbytes, 1), port.name)
        return memory[index].address

    def _temporary(self, port: Port) -> int:
        self._scratch.append(cuda.Memory(self.device, max(port.desc.nbytes, 1), port.name))
        return self._scratch[-1].address


def _side(binding: Binding, side: str) -> tuple[int, ...]:
    return binding.inputs if side == "input" else binding.outputs
