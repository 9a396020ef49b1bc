"""Compiles a program for the shapes of its inputs and runs it on the tensors' own memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle

from ge.compiler import compile_graph
from ge.parsers.paddle.parser import Draw, convert
from ge.parsers.paddle.program import Program
from paddle_npu.draws import drawn

__all__ = ["Side", "compiled"]


@dataclass
class Side:
    """A compiled program: its inputs and outputs by name, and the outputs' tensor types.

    `updates` maps outputs to the parameters that they update in place.
    """

    model: Any
    inputs: list[str]
    outputs: list[str]
    forms: list[tuple[list[int], Any]]
    draws: list[Draw]
    updates: dict[str, str]
    constants: dict[str, np.ndarray]
    further: dict[str, str] = field(default_factory=dict)  # as of `Parts`

    @property
    def models(self) -> list[Any]:
        """The compiled models."""
        return [] if self.model is None else [self.model]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs by name."""
        return {name: tuple(form[0]) for name, form in zip(self.outputs, self.forms, strict=True)}

    def run(self, values: dict[str, Any], place: Any) -> None:
        """Add the outputs to the tensors by name."""
        for draw in self.draws:
            values[draw.name] = drawn(draw)
        for name, value in self.constants.items():
            values[name] = paddle.to_tensor(value, place=place)
        if self.model is None:
            return
        for name, (shape, dtype) in zip(self.outputs, self.forms, strict=True):
            updated = self.updates.get(name)
            values[name] = values[updated] if updated else paddle._C_ops.empty(shape, dtype, place)
        self.model.run_addresses(
            [values[name].data_ptr() for name in self.inputs],
            [values[name].data_ptr() for name in self.outputs],
        )


def compiled(program: Program, shapes: Mapping[str, Any], constants: Mapping[str, np.ndarray]) -> Side:
    """Compile a program for the shapes of its inputs."""
    known = {*program.arguments, *(o.attrs["name"] for o in program.block.operations if "name" in o.attrs)}
    made = convert(program, {k: v for k, v in shapes.items() if k in known}, constants)
    graph = made.graph
    updates = {output: parameter for parameter, output in made.updates.items()}
    inputs, outputs = ([str(v.name) for v in side] for side in (graph.inputs, graph.outputs))
    read_too = [(output, parameter) for output, parameter in updates.items() if parameter in inputs]
    donated = [(outputs.index(output), inputs.index(parameter)) for output, parameter in read_too]
    model = compile_graph(graph, None, program.name, donated) if outputs else None
    ports = model.outputs if model is not None else ()
    forms = [(list(p.desc.shape), getattr(paddle, p.desc.dtype)) for p in ports]
    return Side(model, inputs, outputs, forms, made.draws, updates, made.constants)
