"""From an operator file to an expression: calls its functions on given inputs and finds what they compute."""

from __future__ import annotations

import contextvars
import importlib.util
import inspect
import linecache
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from tbe import expr as e
from tbe.dsl.registry import at_work, computes, operators
from tbe.dsl.tensor import SymbolicVar, Tensor, dtype_name, lift
from tbe.dtypes import DTYPES
from tbe.substitute import substitute

__all__ = [
    "OperatorError",
    "OperatorFile",
    "Signature",
    "compute_function",
    "description",
    "dimensions",
    "load_operator",
    "trace",
]

_OWN = frozenset(["tbe", "te", "topi", "impl", "ge"])
_HERE = Path(__file__).resolve().parents[2]


class OperatorError(RuntimeError):
    """An operator file that fails; the message has the file, the line and the cause."""

    def __init__(self, message: str, filename: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.filename = filename
        self.line = line


def located(error: BaseException, what: str) -> OperatorError:
    """The error with the innermost place in a file that is not ours."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not _is_own(f.filename)]
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        outside, line, name = [], error.lineno or 0, error.filename
        return OperatorError(f"{name}:{line}: {cause}", name, line)
    if not outside:
        return OperatorError(f"{what}: {cause}")
    place = outside[-1]
    text = linecache.getline(place.filename, place.lineno or 0).strip()
    message = f"{place.filename}:{place.lineno}: in {place.name}: {cause}\n    {text}"
    return OperatorError(message, place.filename, place.lineno or 0)


def _is_own(filename: str) -> bool:
    try:
        first = Path(filename).resolve().relative_to(_HERE).parts[0]
    except ValueError:
        return filename.startswith("<") or "contextlib" in filename or "functools" in filename
    return first in _OWN


# -- descriptions ---------------------------------------------------------------------------------------------


def description(
    shape: Sequence[int], dtype: str, format: str = "ND", name: str = "", **more: Any
) -> dict[str, Any]:
    """The dictionary by which operator functions are told of a tensor.

    >>> description((2, 3), "float16")["ori_shape"]
    (2, 3)
    """
    shape = tuple(int(d) for d in shape)
    bounds = [(d, d) if d >= 0 else (1, None) for d in shape]
    return {
        "shape": shape,
        "dtype": dtype,
        "format": format,
        "ori_shape": shape,
        "ori_format": format,
        "range": bounds,
        "param_name": name,
        **more,
    }


def _describe(tensor: Any) -> Any:
    if tensor is None:
        return None
    if isinstance(tensor, (list, tuple)):
        return [_describe(t) for t in tensor]
    return description(tensor.shape, tensor.dtype)


# -- signatures -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """Which parameters of an operator function are inputs, outputs and attributes."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    defaults: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(
        cls, function: Callable[..., Any], inputs: int, outputs: int | None, attrs: Mapping[str, Any]
    ) -> Signature:
        """The signature of a function given so many inputs.

        Kinds declared by `check_op_params` decide; without them the first parameters are the inputs, those
        without a default that are no attributes are the outputs.
        """
        parameters = [
            p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        defaults = tuple((p.name, p.default) for p in parameters if p.default is not p.empty)
        names = [p.name for p in parameters if p.name != "kernel_name"]
        kinds = getattr(function, "op_params", None)
        if kinds is not None:
            return cls._declared(names, kinds, defaults)
        if outputs is None:
            rest = [p.name for p in parameters[inputs:] if p.default is p.empty]
            outputs = sum(1 for n in rest if n != "kernel_name" and n not in attrs)
        end = inputs + outputs
        return cls(tuple(names[:inputs]), tuple(names[inputs:end]), tuple(names[end:]), defaults=defaults)

    @classmethod
    def _declared(
        cls, names: Sequence[str], kinds: Sequence[Any], defaults: tuple[tuple[str, Any], ...]
    ) -> Signature:
        found: dict[str, list[str]] = {"input": [], "output": [], "attr": []}
        optional = set()
        kinds = [k for k in kinds if k != "kernel_name"]
        for name, kind in zip(names, kinds, strict=False):
            group = next((g for g in ("input", "output") if str(kind).endswith(g)), "attr")
            found[group].append(name)
            if str(kind).startswith("option"):
                optional.add(name)
        found["attr"] += names[len(kinds) :]
        return cls(
            tuple(found["input"]), tuple(found["output"]), tuple(found["attr"]), frozenset(optional), defaults
        )

    def arguments(
        self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Keyword arguments of a call."""
        if len(inputs) > len(self.inputs):
            raise TypeError(f"takes {len(self.inputs)} inputs ({', '.join(self.inputs)}), got {len(inputs)}")
        unknown = sorted(set(attrs) - set(self.attrs))
        if unknown:
            raise TypeError(
                f"has no attribute {', '.join(unknown)}; it has {', '.join(self.attrs) or 'none'}"
            )
        given = dict(zip(self.inputs, [*inputs, *[None] * (len(self.inputs) - len(inputs))], strict=True))
        absent = [
            n
            for n, v in given.items()
            if v is None and n not in self.optional and n not in dict(self.defaults)
        ]
        if absent and self.optional:
            raise TypeError(f"input {', '.join(absent)} is missing")
        given.update(zip(self.outputs, outputs, strict=False))
        return {**given, **attrs}


# -- compute functions ----------------------------------------------------------------------------------------


def compute_function(
    function: Callable[..., Any] | str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
    kernel_name: str = "kernel",
) -> tuple[e.Tensor, ...]:
    """The expressions a compute function gives for expressions as inputs.

    `inputs` are tensors of `tbe` (None for an absent optional input, a list for a dynamic one), `outputs` are (shape,
    dtype) pairs or description dictionaries. The function may be the name it was registered under. An error is an
    OperatorError that names the line of the operator file.

    >>> import tbe
    >>> from tbe import dsl
    >>> def twice_compute(x, y, kernel_name="twice"):
    ...     return dsl.vadd(x, x)
    >>> x = tbe.placeholder((4,), "float32")
    >>> compute_function(twice_compute, [x], [((4,), "float32")])
    (Binary(float32[4]),)
    """
    if isinstance(function, str):
        function = computes[function].function
    described = [o if isinstance(o, Mapping) else description(*o) for o in outputs]
    attrs = dict(attrs or {})
    name = _name_of(function)
    signature = Signature.of(function, len(inputs), len(described), attrs)
    try:
        arguments = signature.arguments([lift(x, "input") for x in inputs], described, attrs)
        result = function(**arguments, **_kernel_name(function, kernel_name))
    except Exception as error:
        raise located(error, name) from error
    return _shaped(_results(result, name), described, name)


def _kernel_name(function: Callable[..., Any], name: str) -> dict[str, str]:
    return {"kernel_name": name} if "kernel_name" in inspect.signature(function).parameters else {}


def _results(result: Any, name: str) -> list[e.Tensor]:
    values = list(result) if isinstance(result, (list, tuple)) else [result]
    flat = [x for v in values for x in (v if isinstance(v, (list, tuple)) else [v])]
    for value in flat:
        if not isinstance(value, (Tensor, e.Tensor)):
            raise OperatorError(f"{name} returned {type(value).__name__} instead of a tensor")
    return [v.expression if isinstance(v, Tensor) else v for v in flat]


def _shaped(results: list[e.Tensor], described: Sequence[Any], name: str) -> tuple[e.Tensor, ...]:
    """Results under the shapes and types that were declared for them."""
    wanted = [d for o in described for d in (o if isinstance(o, (list, tuple)) else [o]) if d is not None]
    if len(results) != len(wanted):
        raise OperatorError(f"{name} gives {len(results)} results where {len(wanted)} outputs are declared")
    shaped = []
    for number, (value, want) in enumerate(zip(results, wanted, strict=True)):
        shape, dtype = tuple(want["shape"]), dtype_name(want["dtype"])
        if value.size != math.prod(shape):
            raise OperatorError(
                f"output {number} of {name} has shape {value.shape} where {shape} is declared"
            )
        if value.dtype != dtype and not _same_bytes(value.dtype, dtype):
            raise OperatorError(f"output {number} of {name} is {value.dtype} where {dtype} is declared")
        shaped.append(e.cast(e.reshape(value, shape), dtype))
    return tuple(shaped)


def _same_bytes(a: str, b: str) -> bool:
    """Whether one is a bool and the other a byte, which operator files use for each other."""
    return {a, b} <= {"bool", "int8", "uint8"} and "bool" in (a, b)


# -- operator functions ---------------------------------------------------------------------------------------

_traced: contextvars.ContextVar[list[tuple[int, ...]] | None] = contextvars.ContextVar("traced", default=None)


def dimensions(dims: Sequence[Any]) -> list[int]:
    """The dimensions of a placeholder; variables get their values from the input it stands for."""
    waiting = _traced.get()
    shape = waiting.pop(0) if waiting else None
    unknown = [d for d in dims if isinstance(d, SymbolicVar) and d.known is None]
    if unknown and (shape is None or len(shape) != len(dims)):
        names = ", ".join(v.name for v in unknown)
        raise ValueError(f"dimension {names} is not known here; run the operator on arrays, or give shapes")
    for d, value in zip(dims, shape or (), strict=False):
        if isinstance(d, SymbolicVar):
            d.bind(value)
    return [int(d) for d in dims]


def trace(
    function: Callable[..., Any] | str,
    inputs: Sequence[Any],
    outputs: Sequence[Any] | None = None,
    attrs: Mapping[str, Any] | None = None,
    kernel_name: str = "kernel",
) -> tuple[e.Tensor, ...]:
    """The expressions an operator function builds for expressions as inputs.

    The function is called with descriptions, as a build does; what it hands to `build` is the result. Without
    `outputs`, their number is read from the function, and shapes and types are those it gives.
    """
    if isinstance(function, str):
        function = operators[function].function
    attrs = dict(attrs or {})
    name = _name_of(function)
    signature = Signature.of(function, len(inputs), None if outputs is None else len(outputs), attrs)
    if outputs is not None:
        described = [o if isinstance(o, (Mapping, type(None))) else description(*o) for o in outputs]
        results = _run(function, signature, inputs, described, attrs, kernel_name)
        return _shaped(results, described, name)
    guess = _guess(inputs, len(signature.outputs))
    results = _run(function, signature, inputs, guess, attrs, kernel_name)
    found = [description(_unflattened(t, inputs), t.dtype) for t in results]
    if len(found) == len(guess) and [_plain(d) for d in found] != [_plain(d) for d in guess]:
        results = _run(function, signature, inputs, found, attrs, kernel_name)
    return tuple(e.reshape(t, _unflattened(t, inputs)) for t in results)


def tik_program(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any] | None,
    attrs: Mapping[str, Any],
    kernel_name: str = "kernel",
) -> Any:
    """The TIK program that an operator function of a file with `tik` builds; None for other functions."""
    if not _uses_tik(function):
        return None
    from tbe.tik import builds_of

    signature = Signature.of(function, len(inputs), None if outputs is None else len(outputs), attrs)
    if outputs is None:
        described = _guess(inputs, len(signature.outputs))
    else:
        described = [o if isinstance(o, (Mapping, type(None))) else description(*o) for o in outputs]
    made = _builds(function, signature, inputs, described, attrs, kernel_name, builds_of)
    if not made:
        raise OperatorError(f"{_name_of(function)} returned without calling BuildCCE")
    return made[-1]


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "operator")


def _builds(
    function: Callable[..., Any],
    signature: Signature,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    attrs: Mapping[str, Any],
    kernel_name: str,
    builds_of: Callable[[list[Any]], AbstractContextManager[Any]],
) -> list[Any]:
    """Call an operator function with descriptions and collect what it builds."""
    made: list[Any] = []
    try:
        arguments = signature.arguments([_describe(x) for x in inputs], outputs, attrs)
        arguments |= _kernel_name(function, kernel_name)
        with builds_of(made), at_work(function, (), arguments):
            function(**arguments)
    except OperatorError:
        raise
    except Exception as error:
        raise located(error, _name_of(function)) from error
    return made


def _uses_tik(function: Callable[..., Any]) -> bool:
    """Whether the module of an operator function imports TIK."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    return getattr(names.get("tik"), "__name__", "") in ("tbe.tik", "te.tik")


def _plain(described: Mapping[str, Any]) -> tuple[Any, str]:
    return described["shape"], described["dtype"]


def _flat(values: Sequence[Any]) -> Iterator[e.Tensor]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        elif value is not None:
            yield value


def _guess(inputs: Sequence[Any], count: int) -> list[Any]:
    tensors = list(_flat(inputs))
    try:
        shape = np.broadcast_shapes(*(t.shape for t in tensors))
    except ValueError:
        shape = tensors[0].shape
    dtype = tensors[0].dtype if tensors else "float32"
    return [description(shape, dtype) for _ in range(count)]


def _unflattened(result: e.Tensor, inputs: Sequence[Any]) -> tuple[int, ...]:
    """The shape of a result; operators that flatten their inputs give it back under the inputs' shape."""
    if len(result.shape) == 1:
        try:
            shape = np.broadcast_shapes(*(t.shape for t in _flat(inputs)))
        except ValueError:
            return result.shape
        if math.prod(shape) == result.size:
            return tuple(shape)
    return result.shape


def _run(
    function: Callable[..., Any],
    signature: Signature,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    attrs: Mapping[str, Any],
    kernel_name: str,
) -> list[e.Tensor]:
    from tbe.dsl.building import builds_of

    name = _name_of(function)
    token = _traced.set([tuple(t.shape) for t in _flat(inputs)])
    try:
        made = _builds(function, signature, inputs, outputs, attrs, kernel_name, builds_of)
    finally:
        _traced.reset(token)
    if not made and _uses_tik(function):
        raise OperatorError(
            f"{name} is a TIK program: run it with tbe.run_operator; in a model write it in the vector DSL (tbe.dsl), "
            "or as an AI CPU kernel in C++"
        )
    if not made:
        raise OperatorError(f"{name} returned without calling build")
    return _connected(made[-1].inputs, made[-1].outputs, list(_flat(inputs)), name)


def _connected(
    places: Sequence[e.Tensor], outputs: Sequence[e.Tensor], inputs: Sequence[e.Tensor], name: str
) -> list[e.Tensor]:
    """The outputs over the given inputs in place of the operator's own placeholders."""
    if len(places) != len(inputs):
        raise OperatorError(f"{name} lists {len(places)} inputs in tensor_list, {len(inputs)} were given")
    replaced: dict[e.Tensor, e.Tensor] = {}
    for number, (place, given) in enumerate(zip(places, inputs, strict=True)):
        if place.size != given.size:
            raise OperatorError(
                f"input {number} of {name} is a placeholder of {place.shape} for {given.shape}"
            )
        if place.dtype != given.dtype and DTYPES[place.dtype].size != DTYPES[given.dtype].size:
            raise OperatorError(
                f"input {number} of {name} is a placeholder of {place.dtype} for {given.dtype}"
            )
        replaced[place] = e.cast(e.reshape(given, place.shape), place.dtype)
    return substitute(outputs, replaced)


# -- operator files -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorFile:
    """A loaded operator file: its operator function, its compute functions and what else it offers."""

    path: Path
    module: ModuleType
    entry: Callable[..., Any]
    computes: dict[str, Callable[..., Any]]

    @property
    def check_supported(self) -> Callable[..., Any] | None:
        """The file's own test whether it can do what it is asked for."""
        return getattr(self.module, "check_supported", None)

    @property
    def op_select_format(self) -> Callable[..., Any] | None:
        """The file's own list of types and formats for given inputs."""
        return getattr(self.module, "op_select_format", None)

    def supports(
        self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: Mapping[str, Any] | None = None
    ) -> tuple[bool, str]:
        """Whether `check_supported` accepts the descriptions, and its reason when it does not."""
        check = self.check_supported
        if check is None:
            return True, ""
        answer = self._ask(check, inputs, outputs, attrs)
        if isinstance(answer, tuple):
            return bool(answer[0]), "" if answer[0] else str(answer[1])
        return bool(answer), "" if answer else "check_supported says no"

    def formats(
        self, inputs: Sequence[Any], outputs: Sequence[Any], attrs: Mapping[str, Any] | None = None
    ) -> dict[str, dict[str, Any]]:
        """What `op_select_format` offers: {"input0": {"name", "dtype", "format"}, ...}, {} without it."""
        import json

        if self.op_select_format is None:
            return {}
        return dict(json.loads(self._ask(self.op_select_format, inputs, outputs, attrs)))

    def _ask(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        attrs: Mapping[str, Any] | None,
    ) -> Any:
        given = dict(attrs or {})
        signature = Signature.of(self.entry, len(inputs), len(outputs), given)
        try:
            return function(
                **signature.arguments(inputs, outputs, given), **_kernel_name(function, self.path.stem)
            )
        except Exception as error:
            raise located(error, function.__name__) from error


def is_operator_class(value: Any) -> bool:
    """Whether this is a class that declares an operator in the form of the layer above."""
    return isinstance(value, type) and callable(getattr(value, "on_tensors", None))


def of_class(operator: Any, places: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[e.Tensor, ...]:
    """The expressions of an operator class."""
    try:
        return tuple(operator.on_tensors(list(places), attrs))
    except Exception as error:
        raise located(error, operator.__name__) from error


def load_operator(path: str | Path, entry: str | None = None) -> OperatorFile:
    """Load an operator file; its operator is `entry`, or the function named like the file or registered, or a class."""
    path = Path(path)
    known = dict(computes), dict(operators)
    name = f"_operator_{path.stem}_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OperatorError(f"{path} is not a Python file", str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise located(error, str(path)) from error
    added = [_new(now, before) for now, before in zip((computes, operators), known, strict=True)]
    declared = [n for n, x in vars(module).items() if is_operator_class(x) and x.__module__ == name]
    candidates = [entry] if entry else [path.stem, *(f.__name__ for f in added[1].values()), *declared]
    found = next((getattr(module, n) for n in candidates if callable(getattr(module, n or "", None))), None)
    if found is None:
        raise OperatorError(f"{path} has no operator {' or '.join(map(str, candidates))}", str(path))
    return OperatorFile(path, module, found, added[0])


def _new(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    return {k: v.function for k, v in now.items() if before.get(k) is not v}
