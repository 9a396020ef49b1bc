"""Mixed programs: stages that the engine and PaddlePaddle run alternately.

1. PaddlePaddle runs the operators that the engine rejects, and their consumers with data-dependent sizes.
2. `ge.hybrid` assigns the stages; an operator that overwrites an operand follows all its readers.
3. The gradient of an operator reads that operator's further results (statistics, masks) on the side that made them.
4. A program that cannot be divided by these rules stays entirely with PaddlePaddle.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from ge.errors import GeError
from ge.hybrid import assign_stages
from ge.ir.values import constant_of, desc_of
from ge.parsers.paddle import control
from ge.parsers.paddle.parser import HANDED, Converter
from ge.parsers.paddle.program import Block, Operation, Port, Program
from paddle_npu.programs import Written
from paddle_npu.sides import Side, compiled

__all__ = ["Parts", "divided", "further_results"]

_SOURCES = ("builtin.parameter", "pd_op.data", "pd_op.feed")
_SINKS = ("builtin.shadow_output", "pd_op.fetch")
_TAKEN_APART = ("builtin.split", "builtin.slice")
_CODES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "bool": "bool",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "ui8",
}


def _label(number: int) -> str:
    return f"{HANDED}{number}"


# -- what runs -------------------------------------------------------------------------------------------------------


class HostPart:
    """Operators that PaddlePaddle runs as a separate program in its executor."""

    def __init__(self, operations: list[dict[str, Any]], inputs: list[str], outputs: list[str]) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.names = [str(o["#"]).partition(".")[2] for o in operations]
        content = {
            "base_code": {"magic": "pir", "trainable": False, "version": 1},
            "program": {
                "regions": [{"#": "region_0", "blocks": [{"#": "block_0", "args": [], "ops": operations}]}]
            },
        }
        self.program = paddle.static.Program()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "part.json"
            path.write_text(json.dumps(content))
            paddle.base.core.deserialize_pir_program(str(path), self.program, 1)
        self.executors: dict[str, tuple[Any, Any]] = {}

    def run(self, values: dict[str, Any], place: Any) -> None:
        """Add the outputs to the tensors by name."""
        core = paddle.base.core
        if str(place) not in self.executors:
            scope = core.Scope()
            plan = core.Plan([core.Job("default")], {"default": self.program})
            where = core.Place()
            where.set_place(place)
            self.executors[str(place)] = core.StandaloneExecutor(where, plan, scope), scope
        executor, scope = self.executors[str(place)]
        for index, name in enumerate(self.inputs):
            core.set_feed_variable(scope, values[name].get_tensor(), name, index)
        made = executor.run(self.inputs, False)._move_to_list()
        for name, tensor in zip(self.outputs, made, strict=True):
            values[name] = paddle.Tensor(tensor)


@dataclass
class Parts:
    """A divided program; the counterpart of `Side`."""

    parts: list[Side | HostPart]
    results: dict[str, str]  # outputs of the program by tensor
    shapes: dict[str, tuple[int, ...]]
    updates: dict[str, str]
    constants: dict[str, np.ndarray]
    further: dict[
        str, str
    ]  # outputs that are further results of operators on the NPU, and the types of these
    refused: str

    @property
    def models(self) -> list[Any]:
        """The compiled models."""
        return [model for part in self.parts if isinstance(part, Side) for model in part.models]

    def run(self, values: dict[str, Any], place: Any) -> None:
        """Add the outputs to the tensors by name."""
        inner = dict(values)
        for name, value in self.constants.items():
            inner[name] = paddle.to_tensor(value, place=place)
        for part in self.parts:
            part.run(inner, place)
        for name, source in self.results.items():
            values[name] = inner[source]
        for name in self.constants:
            if not name.startswith(HANDED):
                values[name] = inner[name]


# -- units -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Unit:
    """An operator with the lists of tensors that it reads and writes, by position."""

    operation: Operation
    positions: list[int]
    reads: list[int]
    results: list[int]


def _captured(operation: Operation) -> list[int]:
    """Operands of an operation, including those of its blocks."""
    found = [*operation.operands]
    for block in operation.blocks:
        own = {p.number for p in block.arguments}
        for inner in block.operations:
            found += [n for n in _captured(inner) if n not in own]
            own.update(p.number for p in inner.results)
    return [n for n in dict.fromkeys(found) if n]


def _renamed(operation: Operation, names: Mapping[int, int]) -> Operation:
    blocks = [Block(b.arguments, [_renamed(o, names) for o in b.operations]) for b in operation.blocks]
    return replace(operation, operands=[names.get(n, n) for n in operation.operands], blocks=blocks)


def _in_one_assignment(operations: Iterable[Operation]) -> list[Operation]:
    """Rename operands so that readers of an in-place result refer to that result."""
    now: dict[int, int] = {}
    made = []
    for operation in operations:
        here = _renamed(operation, now)
        made.append(here)
        for result, operand in _writes(operation):
            old, new = operation.operands[operand], operation.results[result].number
            now.update({n: new for n, m in now.items() if m == now.get(old, old)})
            now[old] = new
    return made


def _writes(operation: Operation) -> list[tuple[int, int]]:
    name = operation.type.partition(".")[2]
    if not name.endswith("_"):
        return []
    pairs = control.UPDATES.get(name, {0: 0}).items()
    return [
        (r, o)
        for r, o in pairs
        if r < len(operation.results) and o < len(operation.operands) and operation.operands[o]
    ]


def _units(operations: Sequence[Operation]) -> list[_Unit]:
    joined: dict[int, int] = {}  # positions of lists of tensors, by number
    makers: dict[int, _Unit] = {}
    units: list[_Unit] = []
    for position, operation in enumerate(operations):
        if operation.type in (*_SOURCES, *_SINKS):
            continue
        if operation.type == "builtin.combine":
            joined[operation.results[0].number] = position
            continue
        if operation.type in _TAKEN_APART and operation.operands[0] in makers:
            unit = makers[operation.operands[0]]
            unit.positions.append(position)
            unit.results += [p.number for p in operation.results]
            continue
        lists = [joined[n] for n in _captured(operation) if n in joined]
        reads = [n for n in _captured(operation) if n not in joined]
        reads += [n for p in lists for n in operations[p].operands if n]
        unit = _Unit(operation, [*lists, position], reads, [p.number for p in operation.results if p.number])
        units.append(unit)
        makers.update(dict.fromkeys(unit.results, unit))
    return units


def further_results(program: Program) -> dict[str, str]:
    """The outputs of a program that are further results of operators (statistics, masks, reserves), and the types."""
    inner = {n: unit.operation.type for unit in _units(program.block.operations) for n in unit.results[1:]}
    sinks = [o for o in program.block.operations if o.type in _SINKS]
    return {_output_name(o): inner[o.operands[0]] for o in sinks if o.operands[0] in inner}


def _is_gradient(operation: Operation, forward: str) -> bool:
    return operation.type.endswith("_grad") and operation.type.startswith(forward.removesuffix("_") + "_")


def _output_name(sink: Operation) -> str:
    return str(sink.attrs.get("output_name") or sink.attrs.get("name"))


# -- division --------------------------------------------------------------------------------------------------------


def divided(
    written: Written,
    shapes: Mapping[str, Any],
    constants: Mapping[str, np.ndarray],
    further: Mapping[str, str],
) -> Parts:
    """A program in parts; `further` are its inputs that are further results of operators on the NPU, and the types."""
    return _Division(written, shapes, constants, further).parts()


class _Division:
    """One division of a program."""

    def __init__(
        self,
        written: Written,
        shapes: Mapping[str, Any],
        constants: Mapping[str, np.ndarray],
        further: Mapping[str, str],
    ) -> None:
        self.written, self.further, program = written, further, written.program
        self.given = {*shapes, *constants}
        known = {
            *program.arguments,
            *(o.attrs["name"] for o in program.block.operations if "name" in o.attrs),
        }
        self.shapes = {k: v for k, v in shapes.items() if k in known}
        self.operations = _in_one_assignment(program.block.operations)
        self.program = replace(program, block=Block(program.block.arguments, self.operations))
        self.units = _units(self.operations)
        self.makers = {n: unit for unit in self.units for n in unit.results}
        self.names = {port.number: name for name, port in program.arguments.items()}
        for operation in self.operations:
            if operation.type in _SOURCES:
                self.names[operation.results[0].number] = str(operation.attrs["name"])
        self.host: set[_Unit] = set()
        self.trial = self._settled(constants)
        self.constants = self._known()

    def _settled(self, constants: Mapping[str, np.ndarray]) -> Converter:
        """Convert repeatedly, moving rejected operators to the host, until none is rejected."""
        while True:
            positions = {p for unit in self.host for p in unit.positions}
            trial = Converter(self.program, dict(self.shapes), constants, positions)
            more = {
                u for u in self.units if u not in self.host and trial.unconverted.intersection(u.positions)
            }
            more |= {u for u in self.units if u not in self.host and self._is_torn(u)}
            if not more:
                return trial
            if not self.host:
                self.refused = "; ".join(f"{r.operator}: {r.reason}" for r in trial.refusals())
            self.host |= more

    def _is_torn(self, unit: _Unit) -> bool:
        """Rule 3, for gradients on the NPU."""
        makers = [(n, self.makers[n]) for n in unit.reads if n in self.makers]
        return any(m in self.host and self._keeps(m, n, unit) for n, m in makers)

    @staticmethod
    def _keeps(maker: _Unit, number: int, unit: _Unit) -> bool:
        """True if a value is a further result of the operator whose gradient reads it."""
        return number in maker.results[1:] and _is_gradient(unit.operation, maker.operation.type)

    def _known(self) -> dict[int, np.ndarray]:
        found = {}
        for unit in self.units:
            for number in unit.results if unit not in self.host else ():
                value = self.trial.values.get(number)
                array = constant_of(value) if value is not None and not isinstance(value, list) else None
                if array is not None:
                    found[number] = array
        return found

    def _refuse(self, why: str) -> GeError:
        return GeError("E10022", f"{self.refused}; the program cannot be divided: {why}")

    def parts(self) -> Parts:
        live = [u for u in self.units if not u.results or any(n not in self.constants for n in u.results)]
        work = [u for u in live if u not in self.host]
        if not work:
            raise self._refuse("nothing would run on the NPU")
        self._check(live)
        stages = assign_stages(live, self._before(live), lambda u: int(u not in self.host))
        wanted = {o.operands[0] for o in self.operations if o.type in _SINKS}
        parts: list[Side | HostPart] = []
        updates: dict[str, str] = {}
        for stage in sorted({*stages.values()}):
            units = [u for u in live if stages[u] == stage]
            inside = {n for u in units for n in u.results}
            outside = {n for u in live if stages[u] != stage for n in u.reads}
            outputs = [n for n in sorted(inside) if n in wanted | outside and n not in self.constants]
            reads = dict.fromkeys(n for u in units for n in u.reads if n not in inside)
            if stage % 2:
                side = self._on_npu(units, list(reads), outputs)
                updates |= side.updates
                parts.append(side)
            else:
                parts.append(self._on_host(units, list(reads), outputs))
        return self._joined(parts, updates)

    def _check(self, live: list[_Unit]) -> None:
        for unit in self.host:
            if _writes(unit.operation):
                raise self._refuse(f"{unit.operation.type} writes over its operand")
            if unit.operation.blocks:
                raise self._refuse(f"{unit.operation.type} has blocks")
            for n in unit.reads:
                made = self.makers.get(n)
                torn = made is not None and made not in self.host and self._keeps(made, n, unit)
                outside = self.further.get(self.names.get(n, ""))
                if torn or (outside and _is_gradient(unit.operation, outside)):
                    raise self._refuse(f"{unit.operation.type} reads what another side keeps for it")
        roots = [
            self.names[u.operation.operands[o]]
            for u in live
            for _, o in _writes(u.operation)
            if u.operation.operands[o] in self.names
        ]
        if len(roots) > len({*roots}):
            raise self._refuse("a parameter is written twice")

    def _before(self, live: list[_Unit]) -> Any:
        """Dependencies of a unit: its operands, and all readers of an operand that it overwrites."""
        order = {unit: place for place, unit in enumerate(live)}
        readers: dict[int, list[_Unit]] = {}
        for unit in live:
            for n in unit.reads:
                readers.setdefault(n, []).append(unit)

        def before(unit: _Unit) -> list[_Unit]:
            found = [self.makers[n] for n in unit.reads if n in self.makers]
            for _, operand in _writes(unit.operation):
                others = readers.get(unit.operation.operands[operand], [])
                found += [u for u in others if order[u] < order[unit]]
            return found

        return before

    def _value(self, number: int) -> Any:
        value = self.trial.values.get(number)
        if value is None or isinstance(value, list):
            raise self._refuse(f"the value {number} is not a tensor that could be handed over")
        return value

    def _port(self, number: int) -> Port:
        desc = desc_of(self._value(number))
        return Port(number, desc.shape, desc.dtype)

    def _name(self, number: int) -> str:
        return self.names.get(number, _label(number))

    def _on_npu(self, units: list[_Unit], reads: list[int], outputs: list[int]) -> Side:
        made, known = [], {}
        for n in reads:
            if n in self.trial.failed:
                raise self._refuse(f"the value {n} has no known form")
            if self.trial.values.get(n) is None:
                continue  # absent
            if isinstance(self.trial.values[n], list):
                raise self._refuse("a list of tensors is handed over")
            if n in self.constants:
                known[_label(n)] = self.constants[n]
            made.append(Operation("pd_op.data", {"name": self._name(n)}, (), (self._port(n),)))
        absent = {n for n in reads if self.trial.values.get(n) is None}
        for p in sorted(p for u in units for p in u.positions):
            made.append(_renamed(self.operations[p], dict.fromkeys(absent, 0)))
        for n in outputs:
            if self.trial.values.get(n) is not None:
                made.append(Operation("builtin.shadow_output", {"output_name": _label(n)}, (n,), ()))
        constants = known | {k: v for k, v in self.trial.constants.items() if k in self.names.values()}
        return compiled(Program(self.program.name, Block((), made)), {}, constants)

    def _on_host(self, units: list[_Unit], reads: list[int], outputs: list[int]) -> HostPart:
        missing = [
            n for n in reads if self.names.get(n, _label(n)) not in self.given and n not in self.makers
        ]
        if missing:
            raise self._refuse(f"{self._name(missing[0])} has no value")
        ports = [self._port(n) for n in reads]
        numbers = {n: place + 1 for place, n in enumerate(reads)}
        free = len(reads) + 1
        raw = [_data(self._name(p.number), numbers[p.number], p) for p in ports]
        types: dict[int, Any] = {}
        written = self.written.operations
        now = {p: self.operations[p] for u in units for p in u.positions}
        for p in sorted(now):
            given = written[p]["O"] if isinstance(written[p]["O"], list) else [written[p]["O"]]
            for result in given:
                if result["%"]:
                    numbers[result["%"]] = free
                    types[result["%"]] = result.get("TT")
                    free += 1
            raw.append(_renumbered(written[p], now[p], numbers))
        for column, n in enumerate(outputs):
            raw.append(_fetch(_label(n), column, numbers[n], free + column, types[n]))
        return HostPart(raw, [self._name(n) for n in reads], [_label(n) for n in outputs])

    def _joined(self, parts: list[Side | HostPart], updates: dict[str, str]) -> Parts:
        results, shapes, known, further = {}, {}, {}, {}
        for operation in self.operations:
            if operation.type not in _SINKS:
                continue
            name, number = _output_name(operation), operation.operands[0]
            if number in self.constants:
                known[name] = self.constants[number]
                continue
            maker = self.makers.get(number)
            if number in self.trial.formless and maker in self.host:
                results[name] = _label(number)
                continue
            if self.trial.values.get(number) is None:
                continue
            shapes[name] = desc_of(self._value(number)).shape
            results[name] = self._name(number)
            if maker is not None and maker not in self.host and number in maker.results[1:]:
                further[name] = maker.operation.type
        inner = {_label(n): v for n, v in self.constants.items()}
        return Parts(parts, results, shapes, updates, known | inner, further, self.refused)


# -- the written form of operations ----------------------------------------------------------------------------------


def _type(port: Port) -> dict[str, Any]:
    return {"#": "0.t_dtensor", "D": [{"#": f"0.t_{_CODES[port.dtype]}"}, [*port.shape], "NCHW", [], 0]}


def _attribute(name: str, kind: str, value: Any) -> dict[str, Any]:
    return {"AT": {"#": kind, "D": value}, "N": name}


def _data(name: str, number: int, port: Port) -> dict[str, Any]:
    attributes = [
        _attribute("name", "0.a_str", name),
        _attribute("shape", "1.a_intarray", [*port.shape]),
        _attribute("dtype", "1.a_dtype", port.dtype),
        _attribute("place", "1.a_place", [0, 0, ""]),
    ]
    return {"#": "1.data", "A": attributes, "I": [], "O": [{"%": number, "TT": _type(port)}]}


def _fetch(name: str, column: int, number: int, result: int, form: Any) -> dict[str, Any]:
    attributes = [_attribute("name", "0.a_str", name), _attribute("col", "0.a_i32", column)]
    return {"#": "1.fetch", "A": attributes, "I": [{"%": number}], "O": [{"%": result, "TT": form}]}


def _renumbered(written: dict[str, Any], now: Operation, numbers: Mapping[int, int]) -> dict[str, Any]:
    """The text of an operation with the numbering of a part."""
    operands = [{"%": numbers.get(n, n)} for n in now.operands]
    given = written["O"] if isinstance(written["O"], list) else [written["O"]]
    results = [{**o, "%": numbers.get(o["%"], o["%"])} for o in given]
    return {**written, "I": operands, "O": results}
