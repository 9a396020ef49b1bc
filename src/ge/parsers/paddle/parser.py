"""Parses PaddlePaddle's programs into GE graphs.

    graph = parse("model.json")                       # or model.pdmodel; parameters from model.pdiparams
    graph = convert(program, shapes={"x": (1, 3)})    # parameters are inputs

Everything that cannot be mapped is reported at once, as UnsupportedOperatorsError.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

import ge.ops  # noqa: F401  the operators
from ge.errors import GeError, UnmappedOperator, UnsupportedOperatorsError, UserCodeError
from ge.faults import absorb
from ge.ir import facts
from ge.ir.types import TENSORS, TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.custom import search
from ge.ops.plugins import Unsupported, find, mapped
from ge.options import CompileOptions
from ge.parsers.paddle import (  # noqa: F401  (declare the plugins)
    control,
    ctc,
    elementwise,
    layers,
    movement,
    recurrent,
    reduce,
)
from ge.parsers.paddle.files import load
from ge.parsers.paddle.node import PaddleNode
from ge.parsers.paddle.program import Block, Operation, Port, Program

__all__ = ["HANDED", "Converted", "Converter", "Draw", "convert", "names", "parse"]

HANDED = "%"  # begins the names of values that one part of a program hands to another
_IGNORED = {"builtin.shadow_output", "cf.yield", "pd_op.fetch", "pd_op.print"}
_SOURCES = {"builtin.parameter", "pd_op.data", "pd_op.feed"}


@dataclass(frozen=True)
class Draw:
    """Random numbers that the framework draws before a run: the input they are fed to, and the operation.

    `operands` are its constant operands by position.
    """

    name: str
    operation: Operation
    shape: tuple[int, ...]
    dtype: str
    operands: Mapping[int, np.ndarray]


@dataclass
class Converted:
    """A graph, its random inputs, and the parameters that it updates (by name, with the output that holds each)."""

    graph: ir.Graph
    draws: list[Draw] = field(default_factory=list)
    updates: dict[str, str] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)  # outputs with a known value, by name


def names() -> list[str]:
    """The operators with a plugin.

    >>> "conv2d" in names()
    True
    """
    return mapped("paddle")


def parse(source: str | os.PathLike[str], options: CompileOptions | None = None) -> ir.Graph:
    """The GE graph of a model that `paddle.jit.save` wrote."""
    options = options or CompileOptions()
    program = load(source)
    converter = Converter(program, dict(options.input_shapes))
    made = converter.finished()
    if made.draws:
        label = f"pd_op.{made.draws[0].operation.type.partition('.')[2]}"
        raise UnsupportedOperatorsError(
            program.name,
            [
                UnmappedOperator(
                    label,
                    len(made.draws),
                    (),
                    "its random numbers are PaddlePaddle's own",
                    "save the model after model.eval(), or run it through paddle.jit.to_static",
                )
            ],
        )
    return made.graph


def convert(
    program: Program,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Converted:
    """The graph of a program for a front door: without inputs that nothing reads, with updated parameters as outputs.

    `constants` are the values of inputs that are known.
    """
    converter = Converter(program, dict(shapes or {}), constants or {})
    return converter.finished(for_door=True)


class Converter:
    """Walks a program once; values of the program are kept by their numbers.

    `host` are positions of operations that the framework runs: their results are inputs. Given, refusals are not
    raised: `unconverted` has the positions of what else the framework has to run.
    """

    def __init__(
        self,
        program: Program,
        shapes: dict[str, Sequence[int]],
        constants: Mapping[str, np.ndarray] | None = None,
        host: Container[int] | None = None,
    ) -> None:
        search.refresh()
        self.program, self.shapes = program, shapes
        self.constants = {**program.parameters, **(constants or {})}
        self.builder = self.outermost = GraphBuilder(program.name)
        self.values: dict[int, Any] = {0: None}
        self.roots: dict[int, str] = {}  # parameters and inputs, by the numbers of their values
        self.written: dict[str, int] = {}  # roots that were updated in place, and the value each has now
        self.outputs: list[tuple[str, int]] = []
        self.draws: list[Draw] = []
        self.refused: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        self.failed: set[int] = set()
        self.unconverted: set[int] = set()
        self.formless: set[int] = set()  # results of the host whose sizes only the run knows
        known = {o.attrs["name"] for o in program.block.operations if o.type in _SOURCES} | {
            *program.arguments
        }
        for name in self.shapes:
            if name not in known:
                raise GeError(
                    "E10020",
                    f"the model has no input {name}",
                    remedy=f"its inputs are {', '.join(sorted(known))}",
                )
        for name, port in program.arguments.items():
            self._input(name, port)
        if host is None:
            self.run(program.block)
        else:
            self._convert_rest(program.block, host)
        if self.refused and host is None:
            raise UnsupportedOperatorsError(program.name, self.refusals())

    def run(self, block: Block) -> None:
        for operation in block.operations:
            self.step(operation)

    def _convert_rest(self, block: Block, host: Container[int]) -> None:
        """Convert what the framework does not run."""
        for position, operation in enumerate(block.operations):
            if position in host:
                for port in operation.results:
                    self._from_host(port)
                continue
            before = sum(map(len, self.refused.values()))
            self.step(operation)
            formless = any(i in self.formless for i in operation.operands)
            if formless or sum(map(len, self.refused.values())) > before:
                self.unconverted.add(position)

    def _from_host(self, port: Port) -> None:
        desc = _desc(port)
        if desc is None or desc.dtype not in TENSORS:
            self.failed.add(port.number)
            self.formless.add(port.number)
        else:
            self.values[port.number] = self.builder.input(
                f"{HANDED}{port.number}", list(desc.shape), desc.dtype
            )

    def step(self, operation: Operation) -> None:
        """Convert one operation; what cannot be converted is collected."""
        if operation.type in _SOURCES:
            self._source(operation)
        elif operation.type in ("builtin.shadow_output", "pd_op.fetch"):
            name = operation.attrs.get("output_name") or operation.attrs.get("name")
            self.outputs.append((str(name), operation.operands[0]))
        elif operation.type == "builtin.combine":
            self.values[operation.results[0].number] = [self.values.get(i) for i in operation.operands]
            if any(i in self.failed for i in operation.operands):
                self.failed.add(operation.results[0].number)
        elif operation.type in ("builtin.split", "builtin.slice"):
            self._split_list(operation)
        elif operation.type not in _IGNORED:
            self._operator(operation)

    def _split_list(self, operation: Operation) -> None:
        """The tensors of a list, all or one."""
        number = operation.operands[0]
        if number in self.failed:
            self.failed.update(p.number for p in operation.results)
            return
        parts = self.values.get(number) or [None] * len(operation.results)
        if operation.type == "builtin.slice":
            parts = [parts[int(operation.attrs["index"])]]
        for port, value in zip(operation.results, parts, strict=True):
            self.values[port.number] = value

    def _source(self, operation: Operation) -> None:
        port, name = operation.results[0], str(operation.attrs["name"])
        is_parameter = operation.type == "builtin.parameter"
        if is_parameter and name not in self.constants and not operation.attrs["stored"]:
            self.values[port.number] = None
        else:
            self._input(name, port)

    def _input(self, name: str, port: Port) -> None:
        if not name.startswith(HANDED):
            self.roots[port.number] = name
        if name in self.constants:
            self.values[port.number] = self.builder.constant(np.array(self.constants[name]), name)
        elif port.dtype not in TENSORS:
            self.values[port.number] = None  # an operator that reads it says so
        else:
            self.values[port.number] = self.builder.input(name, self._shape(name, port), port.dtype)

    def _shape(self, name: str, port: Port) -> list[int]:
        """The shape of an input; if only the first dimension is open, it is 1, with a note."""
        given = list(self.shapes.get(name, port.shape))
        fits = len(given) == len(port.shape) and all(
            d in (-1, g) for d, g in zip(port.shape, given, strict=True)
        )
        if not fits:
            raise GeError("E10020", f"input {name} is {list(port.shape)} in the model, {given} does not fit")
        if given and given[0] == -1 and -1 not in given[1:]:
            facts.add_note(self.builder.graph, f"the open first dimension of input {name} was taken as 1")
            given[0] = 1
        if -1 in given:
            text = ", ".join("?" if d == -1 else str(d) for d in given)
            raise GeError(
                "E10020",
                f"input {name} has open dimensions ({text})",
                remedy=f'give its shape, for example input_shapes={{"{name}": (1, …)}}',
            )
        return [int(d) for d in given]

    def _operator(self, operation: Operation) -> None:
        if any(i in self.failed for i in operation.operands):
            self.failed.update(p.number for p in operation.results)
            return
        name = operation.type.partition(".")[2]
        label = str(operation.attrs.get("struct_name") or name)
        self.builder.set_origin(label)
        try:
            results = control.convert(self, operation) if operation.blocks else self._mapped(name, operation)
        except Unsupported as error:
            self._refuse(operation.type, error.reason, error.remedy, label, operation)
            return
        except GeError as error:
            if isinstance(error, UserCodeError):
                raise
            self._refuse(operation.type, error.cause, error.remedy, label, operation)
            return
        except MemoryError:
            self._refuse(operation.type, "its result does not fit into memory", "", label, operation)
            return
        except Exception as error:
            fault = str(absorb(f"{operation.type} '{label}'", error))
            self._refuse(operation.type, fault, "", label, operation)
            return
        for port, value in zip(operation.results, results, strict=False):
            if port.number:  # 0 stands for what is absent, as an operand too
                self.values[port.number] = value
        self._follow_updates(name, operation)

    def _mapped(self, name: str, operation: Operation) -> list[Any]:
        found = find("paddle", name)
        base = name.removesuffix("_")
        found = found or find("paddle", base)
        if found is None:
            raise Unsupported("no plugin maps it", "it runs in PaddlePaddle; replace it, or report it")
        node = PaddleNode(
            base,
            name,
            [self.values[i] for i in operation.operands],
            operation.attrs,
            len(operation.results),
            self.builder,
            parser=self,
            results=[_desc(p) for p in operation.results],
            operation=operation,
        )
        made: Any = found.apply(node)
        values = [made] if isinstance(made, ir.Value) or made is None else list(made)
        if len(operation.results) == 1 and len(values) > 1:
            values = [values]  # a list of tensors is one result
        return [_checked(port, value) for port, value in zip(operation.results, values, strict=False)]

    def _follow_updates(self, name: str, operation: Operation) -> None:
        """An operator that ends in an underscore writes its results over operands, of which others may be views."""
        if not name.endswith("_"):
            return
        for result, operand in control.UPDATES.get(name, {0: 0}).items():
            if result >= len(operation.results) or operand >= len(operation.operands):
                continue
            number, port = operation.operands[operand], operation.results[result]
            value = self.values.get(port.number)
            if number and value is not None and value is not self.values.get(number):
                self.values[number] = value
                if number in self.roots:
                    self.written[self.roots[number]] = port.number
                    self.roots[port.number] = self.roots[number]

    def draw(self, node: PaddleNode, desc: TensorDesc) -> ir.Value:
        """An input for random numbers that the framework draws."""
        if self.builder is not self.outermost:
            raise Unsupported("random numbers in a branch or loop")
        name = f"draw_{len(self.draws)}"
        known = {i: v for i in range(len(node.inputs)) if (v := node.maybe_const(i)) is not None}
        self.draws.append(Draw(name, node.operation, desc.shape, desc.dtype, known))
        return self.builder.input(name, list(desc.shape), desc.dtype)

    def _refuse(self, type_: str, reason: str, remedy: str, name: str, operation: Operation) -> None:
        self.refused[type_, reason, remedy].append(name)
        self.failed.update(p.number for p in operation.results)

    def refusals(self) -> list[UnmappedOperator]:
        """What could not be converted, by operator and reason."""
        return [
            UnmappedOperator(type_, len(found), tuple(found[:10]), reason, remedy)
            for (type_, reason, remedy), found in self.refused.items()
        ]

    def finished(self, for_door: bool = False) -> Converted:
        """The graph with its outputs; for a front door updated parameters are outputs after those of the program."""
        made = Converted(self.builder.graph, self.draws)
        for name, number in self.outputs:
            value = self.values[number]
            if value is None:
                continue
            known = constant_of(value)
            if for_door and known is not None:
                made.constants[name] = known
            else:
                self.builder.output(value, name)
        if for_door:
            for root, number in self.written.items():
                made.updates[root] = f"{root}.updated"
                self.builder.output(self.values[number], made.updates[root])
            graph = self.builder.graph
            graph.inputs[:] = [v for v in graph.inputs if v.uses() or v.is_graph_output()]
        return made


def _desc(port: Port) -> TensorDesc | None:
    known = port.number and port.dtype and -1 not in port.shape
    return TensorDesc(port.shape, port.dtype) if known else None


def _checked(port: Port, value: Any) -> Any:
    """A result, after a look at whether it is what the framework says."""
    if not isinstance(value, ir.Value) or not port.number or not port.dtype:
        return value
    desc = desc_of(value)
    fits = desc.rank == len(port.shape) and all(
        p in (-1, d) for p, d in zip(port.shape, desc.shape, strict=True)
    )
    if not fits or desc.dtype != port.dtype:
        raise Unsupported(f"its result would be {desc} where PaddlePaddle has {port.dtype}{list(port.shape)}")
    return value
