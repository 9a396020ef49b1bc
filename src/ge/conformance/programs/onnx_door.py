"""Random ONNX models, interpreted, compiled and loaded from a file, against ONNX's reference implementation."""

from __future__ import annotations

import inspect
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from ge.conformance.programs.door import Door, Refused, Rounding, Runs
from ge.conformance.programs.onnx_operators import OPERATORS
from ge.conformance.programs.onnx_reference import Evaluator
from ge.conformance.programs.record import Block, Input, Program, Role, Statement, Value, walk
from ge.conformance.programs.sampling import feeds
from ge.conformance.programs.standalone import runs_text

__all__ = ["door", "model_text"]

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'
TYPES = {"float32": "float", "float64": "double"}


def _port(value: Value, shape: str = "[]") -> str:
    return f"{TYPES.get(value.dtype, value.dtype)}{shape} {value.name}"


def _lines(statements: Sequence[Statement], fresh: Iterator[int]) -> list[str]:
    return [
        f"{', '.join(v.name for v in s.results)} = "
        + s.text.format(*s.arguments, **{f"b{i}": _body(b, fresh) for i, b in enumerate(s.blocks)})
        for s in statements
    ]


def _body(block: Block, fresh: Iterator[int]) -> str:
    """A graph attribute. Results are copied, since a body may not return values of an outer scope."""
    number = next(fresh)
    lines = _lines(block.statements, fresh)
    results = [Value(f"r{number}_{i}", v.dtype, v.shape) for i, v in enumerate(block.results)]
    lines += [f"{r.name} = Identity ({v.name})" for r, v in zip(results, block.results, strict=True)]
    given = ", ".join(_port(v, "[]" if v.shape else "") for v in block.parameters)
    return f"g{number} ({given}) => ({', '.join(_port(v) for v in results)}) {{ {' '.join(lines)} }}"


def model_text(program: Program) -> str:
    """The program in ONNX's textual syntax. Constants are inputs here; `_model` makes them initializers."""
    ports = ", ".join(
        _port(
            i.value,
            f"[{','.join(['N' if i.open and j == 0 else str(n) for j, n in enumerate(i.value.shape)])}]"
            if i.value.shape
            else "",
        )
        for i in program.inputs
    )
    results = ", ".join(_port(v) for v in program.results)
    lines = "\n".join(f"  {line}" for line in _lines(program.statements, itertools.count()))
    return f"{HEADER}\nprogram ({ports}) => ({results}) {{\n{lines}\n}}"


def _model(program: Program, arrays: Sequence[np.ndarray]) -> onnx.ModelProto:
    model = parser.parse_model(model_text(program))
    for given, array in zip(program.inputs, arrays, strict=True):
        if given.role is Role.CONSTANT:
            model.graph.initializer.append(
                numpy_helper.from_array(np.array(array, order="C"), given.value.name)
            )
            model.graph.input.remove(next(p for p in model.graph.input if p.name == given.value.name))
    return model


class _OnnxDoor(Door):
    name = "onnx"
    operators = OPERATORS
    dtypes = {  # noqa: RUF012
        "float32": 10,
        "float64": 2,
        "float16": 3,
        "bfloat16": 3,
        "int32": 3,
        "int64": 3,
        "bool": 1,
        "int8": 1,
        "int16": 0.5,
        "uint8": 1,
        "uint16": 0.3,
        "uint32": 0.5,
        "uint64": 0.5,
    }
    modes = {"compiled": 0.6, "saved": 0.2, "interpreted": 0.2}  # noqa: RUF012
    statements = 7
    roles = {"fed": 0.8, "constant": 0.2}  # noqa: RUF012

    def tensor(self, array: np.ndarray, role: str) -> Any:
        return array

    def array(self, tensor: Any) -> np.ndarray | None:
        return np.asarray(tensor) if isinstance(tensor, (np.ndarray, np.generic)) else None

    def evaluate(self, statement: Statement, scope: Mapping[str, Any]) -> list[Any]:
        names = [r.name for r in statement.results]
        node = parser.parse_node(_lines([statement], itertools.count())[0])
        graph = onnx.helper.make_graph([node], "one", [], [onnx.ValueInfoProto(name=n) for n in names])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
        with np.errstate(all="ignore"):
            return list(Evaluator(model).run(names, scope))

    def accepts(self, statement: Statement, scope: Mapping[str, Value], tensors: Mapping[str, Any]) -> bool:
        if statement.blocks:
            return True
        names = {a: f"a{i}" for i, a in enumerate(dict.fromkeys(statement.arguments))}
        results = tuple(replace(v, name=f"r{i}") for i, v in enumerate(statement.results))
        plain = replace(statement.renamed(names.__getitem__), results=results)
        return _accepted(
            plain,
            tuple((replace(scope[a], name=n), _deciding(scope[a], tensors[a])) for a, n in names.items()),
        )

    def accepts_all(self, program: Program) -> bool:
        from ge.errors import GeError

        arrays = feeds(program)[0]
        try:
            _parsed(_model(program, arrays), _fed(program, arrays))
        except GeError:
            return False
        return True

    def reference(self, program: Program, runs: Runs, rounding: Rounding | None) -> Any:
        model = _model(program, runs[0])
        evaluator = Evaluator(model)
        Evaluator.rounding = rounding
        try:
            with np.errstate(all="ignore"):
                return [
                    [np.asarray(v) for v in evaluator.run(None, _fed(program, arrays))] for arrays in runs
                ]
        finally:
            Evaluator.rounding = None

    def second_opinion(self, program: Program, runs: Runs) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        read = set[str]().union(*(s.reads() for s in program.statements))
        kept = [n for n, i in enumerate(program.inputs) if i.value.name in read]
        program = replace(program, inputs=tuple(program.inputs[n] for n in kept))
        runs = [[arrays[n] for n in kept] for arrays in runs]
        session = onnxruntime.InferenceSession(_model(program, runs[0]).SerializeToString(), options)
        return [session.run(None, _fed(program, arrays)) for arrays in runs]

    def run(self, program: Program, runs: Runs) -> Any:
        from ge.errors import GeError, UnsupportedOperatorsError

        model = _model(program, runs[0])
        try:
            return _MODES[program.mode](model, [_fed(program, arrays) for arrays in runs])
        except UnsupportedOperatorsError as error:
            raise Refused(str(error)) from error
        except GeError as error:
            if self._invalid(program, runs) or _names_a_body(str(error), program):
                raise Refused(str(error)) from error
            raise

    def _invalid(self, program: Program, runs: Runs) -> bool:
        """True if another implementation also rejects the model, and not only because of an element type."""
        try:
            self.second_opinion(program, runs)
        except Exception as error:
            return "NOT_IMPLEMENTED" not in str(error)
        return False

    def standalone(self, program: Program, runs: Runs, comparison: str) -> str:
        way = _MODES[program.mode]
        sources: list[Any] = [_parsed, _model_for, way]
        return STANDALONE.format(
            text=model_text(
                replace(program, inputs=tuple(replace(i, role=Role.FED) for i in program.inputs))
            ),
            names=[i.value.name for i in program.inputs],
            constants=[i.value.name for i in program.inputs if i.role is Role.CONSTANT],
            runs=runs_text(runs),
            mode="\n\n\n".join(map(inspect.getsource, sources)),
            call=way.__name__,
            comparison=comparison,
        )


STANDALONE = '''import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy import array, inf, nan
from onnx import numpy_helper, parser

from ge.conformance.programs.onnx_reference import Evaluator

MODEL = """{text}"""
NAMES = {names}
CONSTANTS = {constants}
RUNS = {runs}


{mode}

def test_results_are_those_of_the_reference() -> None:
    model = parser.parse_model(MODEL)
    for name in CONSTANTS:
        value = RUNS[0][NAMES.index(name)]
        model.graph.initializer.append(numpy_helper.from_array(value, name))
        model.graph.input.remove(next(p for p in model.graph.input if p.name == name))
    runs = [{{n: a for n, a in zip(NAMES, arrays) if n not in CONSTANTS}} for arrays in RUNS]
    expected = [Evaluator(model).run(None, feeds) for feeds in runs]
    found = {call}(model, runs)
{comparison}'''


def _fed(program: Program, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {
        i.value.name: a for i, a in zip(program.inputs, arrays, strict=True) if i.role is not Role.CONSTANT
    }


def _names_a_body(message: str, program: Program) -> bool:
    """True if a node inside a branch or loop that the reference never runs has mismatched sizes."""
    bodies = [b for s in walk(program.statements) for b in s.blocks]
    inner = {v.name for b in bodies for s in b.statements for v in s.results}
    return "[E10002]" in message and any(f"(node {name})" in message for name in inner)


def _deciding(value: Value, array: np.ndarray) -> tuple[int, ...] | None:
    """The elements of an integer list that may have to be constant."""
    return (
        tuple(array.ravel().tolist())
        if value.dtype == "int64" and array.ndim <= 1 and array.size < 9
        else None
    )


@lru_cache(maxsize=100_000)
def _accepted(statement: Statement, given: tuple[tuple[Value, tuple[int, ...] | None], ...]) -> bool:
    """True if the parser takes a model of one statement."""
    from ge.errors import GeError
    from ge.parsers.onnx.parser import parse

    inputs = tuple(
        Input(v)
        if known is None
        else Input.given(v.name, np.array(known, np.int64).reshape(v.shape), Role.CONSTANT)
        for v, known in given
    )
    program = Program(inputs, (statement,), statement.results)
    try:
        parse(_model(program, feeds(program)[0]))
    except GeError:
        return False
    return True


# -- modes; their source becomes part of failing tests, so they use nothing of this package ---------------------


def _parsed(model: Any, feeds: Any) -> Any:
    """Parse the graph for the shapes and values of one run."""
    from ge.parsers.onnx.parser import parse

    return parse(model, input_shapes={name: a.shape for name, a in feeds.items()}, values=feeds)


def _model_for(model: Any, feeds: Any, kept: Any) -> Any:
    """Compiled model for these shapes and for the values of shape-deciding inputs."""
    from ge.compiler import compile_graph
    from ge.ir import facts

    shapes = {name: a.shape for name, a in feeds.items()}
    for known, fixed, compiled in kept:
        if known == shapes and all(np.array_equal(v, feeds[n]) for n, v in fixed.items()):
            return compiled
    graph = _parsed(model, feeds)
    kept.append((shapes, dict(facts.specialised(graph)), compile_graph(graph)))
    return kept[-1][2]


def compiled(model: Any, runs: Any) -> Any:
    """Run one compiled model repeatedly; compile again for other sizes."""
    kept: list[Any] = []
    return [
        m.run([feeds[p.name] for p in m.inputs])
        for m, feeds in ((_model_for(model, feeds, kept), feeds) for feeds in runs)
    ]


def saved(model: Any, runs: Any) -> Any:
    """Run through an .om file, one for each set of sizes."""
    import ge

    kept: list[Any] = []
    loaded: dict[int, Any] = {}
    found: list[Any] = []
    with tempfile.TemporaryDirectory() as folder:
        for feeds in runs:
            compiled_model = _model_for(model, feeds, kept)
            key = id(compiled_model)
            if key not in loaded:
                path = Path(folder) / f"{len(loaded)}.om"
                compiled_model.save(path)
                loaded[key] = ge.load(path)
            found.append(loaded[key].run([feeds[p.name] for p in loaded[key].inputs]))
    return found


def interpreted(model: Any, runs: Any) -> Any:
    """Run with the interpreter that folds constants."""
    from ge.ops.interpret import interpret

    graphs = [_parsed(model, f) for f in runs]
    return [interpret(g, [f[v.name] for v in g.inputs]) for g, f in zip(graphs, runs, strict=True)]


_MODES = {"compiled": compiled, "saved": saved, "interpreted": interpreted}


def door() -> Door:
    """The ONNX door."""
    return _OnnxDoor()
