"""The process that runs cases: reads names, writes one JSON line a case; it may crash without harm."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_adapter.conformance.rows import Case, Row, Slot, cases

__all__ = ["MODES", "check", "collect", "main", "serve"]

MODES = ("eager", "function", "graph")


def collect(quick: bool = False) -> dict[str, Case]:
    """All cases by name."""
    from tf_adapter.conformance import arrays, elementwise, functions, images, linalg, nn  # noqa: F401  (fill the table)

    return {case.name: case for case in cases(_allowed, quick)}


def _allowed(row: Row) -> Sequence[str]:
    """The element types that an operator's definition lists for the arguments that vary."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    from tf_adapter.conformance.rows import TYPES, Each, L, Tensor

    definition = op_def_registry.get(row.operator)
    if definition is None:
        return ()

    def varies(item: Any) -> bool:
        if isinstance(item, (Each, L)):
            return any(varies(i) for i in item.items)
        return getattr(item, "dtype", "") == "swept" and (isinstance(item, Tensor) or hasattr(item, "value"))

    swept = [name for name, item in row.arguments.items() if varies(item)]
    names = {a.type_attr or a.type_list_attr for a in definition.input_arg if a.name in swept}
    attrs = [a for a in definition.attr if a.name in names]
    if not attrs:
        return TYPES[:1]
    allowed = [{tf.as_dtype(t).name for t in a.allowed_values.list.type} or set(TYPES) for a in attrs]
    return sorted(set.intersection(*allowed))


def check(case: Case, mode: str) -> dict[str, Any]:
    """Run one case: status npu, host, refused, wrong or crash, with a reason."""
    import tensorflow as tf

    constants, arrays = case.arguments()
    function = _callable(case, constants)
    try:
        with tf.device("/CPU:0"):
            expected = _flat(function(*(tf.constant(a) for a in arrays)))
    except Exception as error:
        return _refused(case, function, arrays, mode, error)
    try:
        found, where, reason = _RUN[mode](function, arrays)
    except Exception as error:
        return {"status": "crash", "reason": _told(error)}
    fault = _difference(case.row, found, expected) if found is not None else ""
    return {"status": "wrong", "reason": fault} if fault else {"status": where, "reason": reason}


def _callable(case: Case, constants: dict[str, Any]) -> Callable[..., Any]:
    import tensorflow as tf

    function = case.row.function or getattr(tf.raw_ops, case.operator, None)
    if function is None:
        raise LookupError(f"this TensorFlow has no {case.operator}")

    def fill(item: Any, tensors: Sequence[Any]) -> Any:
        if isinstance(item, list) and any(isinstance(i, Slot) for i in item):
            return [fill(i, tensors) for i in item]
        return tensors[item.index] if isinstance(item, Slot) else item

    def call(*tensors: Any) -> Any:
        return function(**{name: fill(item, tensors) for name, item in constants.items()})

    return call


def _flat(results: Any) -> list[np.ndarray]:
    import tensorflow as tf

    return [
        r.numpy() if hasattr(r, "numpy") else np.asarray(r) for r in tf.nest.flatten(results) if r is not None
    ]


def _told(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:400]}{where}"


def _refused(
    case: Case, function: Callable[..., Any], arrays: Sequence[np.ndarray], mode: str, error: Exception
) -> Any:
    """TensorFlow itself refuses the call: so must the device."""
    refused = {"status": "refused", "reason": _told(error)[:200]}
    if mode == "graph" or type(error).__name__ in _NO_KERNEL:
        return refused  # the device may well have more types than the CPU
    try:
        found, _, _ = _RUN[mode](function, arrays)
    except Exception as other:
        same = type(other).__name__ == type(error).__name__ or mode == "function"
        return (
            refused
            if same
            else {"status": "wrong", "reason": f"raises {_told(other)} instead of {_told(error)}"}
        )
    return {
        "status": "wrong",
        "reason": f"gives {len(found or [])} results where TensorFlow raises {_told(error)}",
    }


# TensorFlow's errors for a type without a kernel.
_NO_KERNEL = ("NotFoundError", "UnimplementedError")


# -- ways to run ---------------------------------------------------------------------------------------------

Ran = tuple[list[np.ndarray] | None, str, str]


def _graph(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ran:
    """Through the Graph Engine only, without the device."""
    import tensorflow as tf

    from ge.compiler import compile_graph
    from ge.errors import UnsupportedOperatorsError
    from ge.ir.types import TENSORS, TensorDesc
    from ge.parsers.tensorflow.parser import parse_graph

    specs = [tf.TensorSpec(a.shape, tf.as_dtype(a.dtype)) for a in arrays]
    graph = tf.function(function).get_concrete_function(*specs).graph
    kinds = [*(tf.as_dtype(a.dtype).name for a in arrays), *(t.dtype.name for t in graph.outputs)]
    unfit = [k for k in kinds if k not in TENSORS]
    if unfit:
        return None, "host", f"no engine accepts {unfit[0]}"
    inputs = {t.op.name: TensorDesc(tuple(t.shape), t.dtype.name) for t in graph.inputs}
    try:
        parsed = parse_graph(graph.as_graph_def(), inputs=inputs, outputs=[t.name for t in graph.outputs])
    except UnsupportedOperatorsError as error:
        return None, "host", str(error.cause)
    return list(compile_graph(parsed.graph).run(list(arrays))), "npu", ""


def _on_device(run: Callable[[], Any]) -> Ran:
    """On NPU:0: the results, and where the operators ran."""
    import tensorflow as tf

    from npu_runtime import tensorflow as native
    from tf_adapter import gpu

    native.take_counts()
    before = gpu.hosted()
    with tf.device("/NPU:0"):
        found = _flat(run())
    counts = {name: calls for name, calls in native.take_counts().items() if name not in _BESIDES}
    hosted = [name for name, (_, host) in counts.items() if host]
    hosted += [name for name, runs in gpu.hosted().items() if runs > before.get(name, 0)]
    placed = any(npu for npu, _ in counts.values())
    return found, "npu" if placed and not hosted else "host", ", ".join(hosted)


# What a case calls besides its operator.
_BESIDES = frozenset({"Const", "Identity", "_EagerConst", "Reshape"})


def _eager(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ran:
    import tensorflow as tf

    return _on_device(lambda: function(*(tf.constant(a) for a in arrays)))


def _function(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ran:
    import tensorflow as tf

    traced = tf.function(function, autograph=False)
    return _on_device(lambda: traced(*(tf.constant(a) for a in arrays)))


_RUN: dict[str, Callable[..., Ran]] = {"eager": _eager, "function": _function, "graph": _graph}


# -- comparison ----------------------------------------------------------------------------------------------


def _difference(row: Row, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """What is wrong with the results, "" when nothing is."""
    if row.compare == "none":
        return ""
    if len(found) != len(expected):
        return f"{len(found)} results where {len(expected)} are expected"
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        if row.outputs and index not in row.outputs:
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {index} is {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        if row.compare == "values":
            fault = _unequal(row, np.asarray(a), np.asarray(b))
            if fault:
                return f"result {index}: {fault}"
    return ""


def _unequal(row: Row, found: np.ndarray, expected: np.ndarray) -> str:
    if found.dtype.kind in "biu" or found.dtype.kind in "SO":
        different = found != expected
    else:
        different = _far(row, found, expected)
    if not np.any(different):
        return ""
    first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(different)))
    a, b = (np.atleast_1d(v)[first] for v in (found, expected))
    return f"{int(np.sum(different))} of {found.size} elements differ, at {first} {a} instead of {b}"


def _far(row: Row, found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    kind = found.dtype
    wide = np.complex128 if kind.kind == "c" else np.float64
    limits = _limits(kind)
    a, b = found.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a) & np.isfinite(b)
        size = np.abs(b)
        largest = size[np.isfinite(size)].max(initial=0.0)
        tolerance = (
            row.ulps * limits[0] * (np.maximum(size, 1e-3) if row.elementwise else np.maximum(size, largest))
        )
        near = np.abs(a - b) <= tolerance + 2 * limits[1]
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    return ~np.where(finite, near, same)


def _limits(kind: np.dtype[Any]) -> tuple[float, float]:
    """The unit in the last place of one, and the smallest normal number."""
    import ml_dtypes

    info = ml_dtypes.finfo(kind) if kind.kind != "c" else np.finfo(kind)
    return float(info.eps), float(info.tiny)


def serve(collect: Callable[[bool], dict[str, Case]], check: Callable[[Case, str], dict[str, Any]]) -> None:
    """Answer requests until the input ends; the first line is the settings."""
    settings = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a case prints does not disturb the answers
    warnings.simplefilter("ignore")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tf_adapter.device import everything_on_npu

    everything_on_npu()
    known = collect(settings["quick"])
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        mode, name = json.loads(line)
        try:
            result = check(known[name], mode)
        except LookupError as error:
            result = {"status": "absent", "reason": str(error)}
        print(json.dumps(result), file=answers, flush=True)


def main() -> None:
    """Run cases of the operators themselves."""
    serve(collect, check)


if __name__ == "__main__":
    main()
