"""Base class of doors whose programs are Python functions on a framework's tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ge.conformance.programs.door import Door, Place, Rounding, Runs
from ge.conformance.programs.record import Block, Noise, Program, Statement, numpy_dtype
from ge.conformance.programs.standalone import runs_text

__all__ = ["Mode", "PythonDoor", "source"]

Mode = Callable[..., list[list[np.ndarray]]]
STEP = "    "


def source(program: Program, noisy: bool = False) -> str:
    """Source of the program as a function; `noisy` wraps rounded values in `_(…)`."""
    names = ", ".join(i.value.name for i in program.inputs)
    lines = _lines(program.statements, STEP, noisy)
    results = ", ".join(v.name for v in program.results)
    return "\n".join([f"def program({names}):", *lines, f"{STEP}return [{results}]", ""])


_RESULT_HOOKS = {Noise.UNIT: "_unit", Noise.ARGUMENTS: "_sum", Noise.WINDOW: "_windowed"}
_HOOKS = {Noise.ARGUMENTS: "_term", Noise.WINDOW: "_window"}


def _lines(statements: Iterable[Statement], indent: str, noisy: bool) -> list[str]:
    lines: list[str] = []
    for statement in statements:
        blocks = {f"b{i}": f"body_{statement.results[0].name}_{i}" for i in range(len(statement.blocks))}
        for block, name in zip(statement.blocks, blocks.values(), strict=True):
            lines += _function(block, name, indent, noisy)
        noise = statement.noise if noisy else Noise.NONE
        hook = _HOOKS.get(noise, "_argument")
        plain = noise is Noise.NONE or statement.effect
        kind = statement.results[0].dtype
        precision = f", {kind!r}" if hook in ("_term", "_window") and "float" in kind else ""
        arguments = [a if plain else f"{hook}({a}{precision})" for a in statement.arguments]
        text = statement.text.format(*arguments, **blocks)
        several = len(statement.results) > 1
        if noise not in (Noise.NONE, Noise.FLUSH):
            hook = "_written" if statement.effect else _RESULT_HOOKS.get(noise, "_")
            text = f"map({hook}, {text})" if several else f"{hook}({text})"
        lines.append(f"{indent}{', '.join(v.name for v in statement.results)} = {text}")
    return lines


def _function(block: Block, name: str, indent: str, noisy: bool) -> list[str]:
    parameters = ", ".join(v.name for v in block.parameters)
    results = ", ".join(v.name for v in block.results)
    return [
        f"{indent}def {name}({parameters}):",
        *_lines(block.statements, indent + STEP, noisy),
        f"{indent}{STEP}return {results}",
    ]


class PythonDoor(Door):
    """A door whose framework is a Python module.

    A mode is a function of the program, its runs, the roles of its inputs, its options and a device. It may use only
    the module's `names` and `helpers`, since its source is copied into failing tests.
    """

    names: Mapping[str, Any]  # names available to programs and modes
    imports: str  # their import statements
    helpers: Sequence[Callable[..., Any]] = ()
    ways: Mapping[str, Mode]
    host: str
    device: str
    plain = "eager"  # the mode that is the reference on the host

    def scaled(self, tensor: Any, factors: Callable[[np.ndarray], np.ndarray], written: bool) -> Any:
        """Multiply a floating-point tensor by the factors of its elements; other tensors are returned unchanged.

        written: multiply in place.
        """
        raise NotImplementedError

    def finite(self, tensor: Any, number: Callable[[float], float]) -> Any:
        """Replace NaN and infinities of a floating-point tensor; other tensors are returned unchanged.

        number: the replacement for an element type, by its largest number.
        """
        raise NotImplementedError

    def changed_back(self, tensor: Any, change: Callable[[Any], Any]) -> Any:
        """A tensor whose gradient is modified in the backward pass."""
        raise NotImplementedError

    def _hooks(self, rounding: Rounding, gradient: bool) -> dict[str, Callable[..., Any]]:
        """Functions that the noisy source calls."""

        def narrowed(array: np.ndarray, kind: str) -> np.ndarray:  # sums are in the type of the result
            narrow = numpy_dtype(kind or array.dtype.name)
            with np.errstate(over="ignore"):
                return array.astype(narrow) if narrow.itemsize < array.dtype.itemsize else array

        def result(x: Any) -> Any:
            return self.scaled(x, lambda a: rounding(a, Place.RESULT), False)

        def summand(x: Any, kind: str = "") -> Any:
            return self.scaled(x, lambda a: rounding(narrowed(a, kind), Place.TERM), False)

        def term(x: Any, kind: str = "") -> Any:
            return self.changed_back(summand(x, kind), result) if gradient else summand(x, kind)

        def argument(x: Any) -> Any:
            x = self.scaled(x, lambda a: rounding(a, Place.ARGUMENT), False)
            return self.changed_back(x, result) if gradient else x

        def sums(x: Any) -> Any:  # its gradients are sums of products
            return self.changed_back(result(x), summand) if gradient else result(x)

        def window(x: Any, kind: str = "") -> Any:
            finite = x if rounding.replacement is None else self.finite(x, rounding.replacement_below)
            return term(finite, kind)

        def windowed(x: Any) -> Any:
            outcome = rounding.outcome
            return sums(x if outcome is None else self.finite(x, lambda largest: outcome))

        return {
            "_": result,
            "_sum": sums,
            "_unit": lambda x: result(result(x + 1) - 1),
            "_term": term,
            "_window": window,
            "_windowed": windowed,
            "_argument": argument,
            "_written": lambda x: self.scaled(x, lambda a: rounding(a, Place.RESULT), True),
        }

    def evaluate(self, statement: Statement, scope: Mapping[str, Any]) -> list[Any]:
        found = dict(self.names) | dict(scope)
        exec("\n".join(_lines([statement], "", False)), found)
        return [found[v.name] for v in statement.results]

    def function(self, program: Program, rounding: Rounding | None = None) -> Callable[..., Any]:
        """The program itself."""
        found = dict(self.names)
        if rounding is not None:
            found |= self._hooks(rounding, "gradient" in program.options)
        exec(source(program, rounding is not None), found)
        made: Callable[..., Any] = found["program"]
        return made

    def reference(self, program: Program, runs: Runs, rounding: Rounding | None) -> Any:
        way = self.ways[self.plain if self.same_reference(program) or rounding is not None else program.mode]
        return self._called(way, program, runs, self.host, rounding)

    def run(self, program: Program, runs: Runs) -> Any:
        return self._called(self.ways[program.mode], program, runs, self.device, None)

    def _called(self, way: Mode, program: Program, runs: Runs, device: str, rounding: Rounding | None) -> Any:
        copies = [[a.copy() for a in arrays] for arrays in runs]
        roles = [i.role.value for i in program.inputs]
        return way(self.function(program, rounding), copies, roles, program.options, device)

    def standalone(self, program: Program, runs: Runs, comparison: str) -> str:
        way = self.ways[program.mode]
        plain = self.ways[self.plain] if self.same_reference(program) else way
        sources = [inspect.getsource(f) for f in dict.fromkeys([*self.helpers, plain, way])]
        return _STANDALONE.format(
            imports=self.imports,
            functions="\n\n".join(sources),
            program=source(program),
            runs=runs_text(runs),
            roles=[i.role.value for i in program.inputs],
            options=program.options,
            plain=plain.__name__,
            way=way.__name__,
            host=self.host,
            device=self.device,
            comparison=comparison,
        )


_STANDALONE = """{imports}

{functions}

{program}

RUNS = {runs}
ROLES = {roles}
OPTIONS = {options}


def test_results_are_those_of_the_framework() -> None:
    expected = {plain}(program, RUNS, ROLES, OPTIONS, {host!r})
    found = {way}(program, RUNS, ROLES, OPTIONS, {device!r})
{comparison}"""
