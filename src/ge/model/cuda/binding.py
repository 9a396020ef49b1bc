"""Bindings: which memory the inputs and outputs of a GPU's program are in.

A graph holds addresses. It is captured for each set of addresses that callers come with, and the last few are kept: in
a steady loop a framework's allocator gives the same addresses again and again, and parameters stay where they are.
Inputs and outputs with ever new addresses are copied from and to memory of the program's own instead, which takes less
time than to capture anew. So are those that do not begin at a multiple of 16 bytes.
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
    """The bindings that graphs are captured for, and the program's own memory for inputs and outputs."""

    def __init__(self, plan: Plan, device: int) -> None:
        self.plan, self.device = plan, device
        self._known: OrderedDict[Binding, None] = OrderedDict()
        self._inputs: dict[int, cuda.Memory] = {}
        self._outputs: dict[int, cuda.Memory] = {}
        self._scratch: list[cuda.Memory] = []
        self._over = {source: output for output, source in plan.donated}  # input -> output in its memory
        self.moving: set[tuple[str, int]] = set()  # inputs and outputs with ever new addresses

    def __contains__(self, binding: Binding) -> bool:
        if binding in self._known:
            self._known.move_to_end(binding)
            return True
        return False

    def add(self, binding: Binding) -> list[Binding]:
        """Keep a binding; those that it replaces."""
        self._known[binding] = None
        dropped = []
        while len(self._known) > MOST_BINDINGS:
            dropped.append(self._known.popitem(last=False)[0])
        return dropped

    def forget(self) -> None:
        """Let all graphs be captured anew."""
        self._known.clear()

    def own(self) -> Binding:
        """All inputs and outputs in memory of the program's own."""
        return Binding(
            tuple(self._own("input", i) for i in range(len(self.plan.inputs))),
            tuple(self._own("output", i) for i in range(len(self.plan.outputs))),
        )

    def scratch(self, given: Binding | None) -> Binding:
        """A binding for first runs, whose results mean nothing: inputs that take new values are not the caller's."""
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
        """Give back what first runs needed."""
        self._scratch.clear()

    def choose(self, given: Binding) -> Binding:
        """The binding to run with: the caller's memory, but for what is copied."""
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
