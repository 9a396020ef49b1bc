"""Gradients of the table's operators and of some programs: on the NPU, by TensorFlow on the CPU, and by differences.

The process that runs the cases, as `worker` is for the operators themselves. A case's gradient is the product of a
fixed row of weights with the derivatives of its results by its floating point and complex arguments; the results of
complex numbers are their real and imaginary parts.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tf_adapter.conformance import registered, worker
from tf_adapter.conformance.rows import Case, cases

__all__ = ["CHECKED", "MODES", "check", "collect", "main", "reached"]

MODES = ("eager", "function")
TYPES = ("float32", "float64", "complex64")
CHECKED = ("npu", "host", "unlike")  # statuses of gradients that are TensorFlow's
ULPS = 1024.0  # of the largest element: a gradient is a longer calculation than its operator

# Operators that TensorFlow computes in float32, whatever the type of the image: so are their gradients.
_IN_FLOAT32 = frozenset(
    {"ResizeBilinear", "ResizeBicubic", "CropAndResize", "ScaleAndTranslate"}
    | {"ImageProjectiveTransformV2", "ImageProjectiveTransformV3"}
)

# Operators whose results are not a function of their arguments alone, so that a gradient has no single value.
_RANDOM = ("shapes", "none")

Arrays = list[np.ndarray]


def collect(quick: bool = False) -> dict[str, Case]:
    """The programs, and the cases of the table that have floating point arguments and certain results, by name."""
    from tf_adapter.conformance.programs import PROGRAMS

    programs = cases(worker._allowed, rows=PROGRAMS)
    known = worker.collect(quick)
    known |= {c.name: c for c in programs if not quick or c.dtype == c.row.dtypes[0]}
    return {
        name: case
        for name, case in known.items()
        if case.dtype in TYPES and case.row.compare not in _RANDOM and _fit(case.arguments()[1])
    }


def _fit(arrays: Sequence[np.ndarray]) -> bool:
    """Whether there is something to differentiate by; which part of an infinite complex product is NaN is chance."""
    finite = all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "c")
    return finite and bool(_sources(arrays))


def _sources(arrays: Sequence[np.ndarray]) -> list[int]:
    """The places of the arguments to differentiate by."""
    return [i for i, a in enumerate(arrays) if a.dtype.name in _WIDER]


# Element types to differentiate by, and the type of the same kind to take differences in, by the width of its parts.
_WIDER = {
    "float32": {"float32": "float32", "float64": "float64"},
    "float64": {"float32": "float32", "float64": "float64"},
    "complex64": {"float32": "complex64", "float64": "complex128"},
}


@dataclass(frozen=True)
class _Problem:
    """One case, ready to be differentiated."""

    case: Case
    function: Callable[..., Any]
    arrays: Arrays
    sources: list[int]

    def results(self, tensors: Sequence[Any]) -> list[Any]:
        """The results that have derivatives, in real numbers."""
        import tensorflow as tf

        found = tf.nest.flatten(self.function(*tensors))
        wanted = [found[i] for i in self.case.row.outputs or range(len(found)) if tf.is_tensor(found[i])]
        return [_real(r) for r in wanted if r.dtype.is_floating or r.dtype.is_complex]

    def gradients(self, *tensors: Any) -> list[Any]:
        """The weighted derivatives by the sources."""
        import tensorflow as tf

        return [tf.convert_to_tensor(g) for g in self._derived(tensors)]

    def _derived(self, tensors: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            watched = [tensors[i] for i in self.sources]
            tape.watch(watched)
            results = self.results(tensors)
        return list(tape.gradient(results, watched, output_gradients=[_weights(r) for r in results]))

    def connected(self) -> _Problem:
        """The problem restricted to the sources that TensorFlow has gradients for."""
        import tensorflow as tf

        found = self._derived([tf.constant(a) for a in self.arrays])
        return replace(self, sources=[i for i, g in zip(self.sources, found, strict=True) if g is not None])

    def value(self, arrays: Sequence[np.ndarray], kind: str) -> float:
        """The weighted sum of the results, on the CPU; an error where they are not of the type."""
        import tensorflow as tf

        with tf.device("/CPU:0"):
            results = self.results([tf.constant(a) for a in arrays])
            if any(r.dtype.name != kind for r in results):
                raise TypeError(f"the results are not {kind}")
            sums = [np.sum(r.numpy().astype(np.float64) * _weights(r).numpy()) for r in results]
        return float(sum(sums))


def _real(result: Any) -> Any:
    """Real numbers as they are, of complex ones both parts."""
    import tensorflow as tf

    return tf.stack([tf.math.real(result), tf.math.imag(result)]) if result.dtype.is_complex else result


def _weights(result: Any) -> Any:
    """Fixed numbers between -1 and 1, one per element."""
    import tensorflow as tf

    places = tf.cumsum(tf.reshape(tf.ones_like(result), [-1]))
    return tf.reshape(tf.cos(places * 1.7), tf.shape(result))


def check(case: Case, mode: str) -> dict[str, Any]:
    """Compare one gradient: status npu, host, none, unlike, wrong or crash, with a reason.

    `none` is an operator without a gradient, `unlike` one whose gradient is TensorFlow's but not the derivative. With
    the gradients that TensorFlow registers and the case needed, `gradients`, where they are right.
    """
    with registered.recorded() as used:
        result = _compared(case, mode)
    return result | ({"gradients": sorted(used)} if result["status"] in CHECKED else {})


def reached(case: Case) -> set[str]:
    """The registered gradients that a case needs, by tracing it for the CPU only."""
    import tensorflow as tf

    constants, arrays = case.arguments()
    problem = _Problem(case, worker._callable(case, constants), arrays, _sources(arrays))
    specs = [tf.TensorSpec(a.shape, tf.as_dtype(a.dtype)) for a in arrays]

    def traced(*tensors: Any) -> list[Any]:
        return [tf.convert_to_tensor(g) for g in problem._derived(tensors) if g is not None]

    with registered.recorded() as used, tf.device("/CPU:0"):
        found = tf.function(traced, autograph=False).get_concrete_function(*specs).outputs
    return used if found else set()


def _compared(case: Case, mode: str) -> dict[str, Any]:
    import tensorflow as tf

    constants, arrays = case.arguments()
    problem = _Problem(case, worker._callable(case, constants), arrays, _sources(arrays))
    try:
        with tf.device("/CPU:0"):
            tensors = [tf.constant(a) for a in arrays]
            if not problem.results(tensors):
                return {"status": "none", "reason": "no result is a real number"}
            problem = problem.connected()
            expected = worker._flat(problem.gradients(*tensors))
    except Exception as error:
        return {"status": "none", "reason": worker._told(error)[:200]}
    if not expected:
        return {"status": "none", "reason": "the results depend on no argument by a gradient"}
    try:
        found, where, reason = worker._RUN[mode](problem.gradients, arrays)
    except Exception as error:
        return {"status": "crash", "reason": worker._told(error)}
    ulps = max(case.row.ulps, ULPS)
    if case.operator in _IN_FLOAT32 and case.dtype == "float64":
        ulps *= float(np.finfo(np.float32).eps / np.finfo(np.float64).eps)
    row = replace(case.row, ulps=ulps, elementwise=False, outputs=())
    fault = worker._difference(row, found or [], expected)
    if fault:
        return {"status": "wrong", "reason": fault}
    with np.errstate(all="ignore"):
        unlike = _numerically(problem, found or [], expected)
    return unlike or {"status": where, "reason": reason}


# -- differences ---------------------------------------------------------------------------------------------

# Step, and what a derivative may differ by, relative to the size of the terms it is made of.
_FINE, _COARSE = (1e-5, 1e-4), (1e-2, 3e-2)


def _numerically(problem: _Problem, found: Arrays, expected: Arrays) -> dict[str, Any] | None:
    """What is wrong with a gradient by differences of the results along one direction; None when nothing is."""
    random = np.random.default_rng(zlib.crc32(problem.case.name.encode()))
    directions = {i: _direction(random, problem.arrays[i]) for i in problem.sources}
    measured = _slope(problem, directions)
    if measured is None:
        return None
    slope, tolerance = measured
    along = list(directions.values())
    size = sum(float(np.sum(np.abs(g * d))) for g, d in zip(expected, along, strict=True))
    if not np.isfinite(size):
        return None

    def misses(gradients: Arrays) -> bool:
        sum_ = sum(float(np.sum(np.real(np.conj(g) * d))) for g, d in zip(gradients, along, strict=True))
        return abs(sum_ - slope) > tolerance * max(size, abs(slope), 1e-3)

    if not misses(found):
        return None
    told = f"the results change by {slope:.6g} along a direction, the gradient says otherwise"
    if misses(expected):
        return {"status": "unlike", "reason": f"{told}, and so does TensorFlow's"}
    return {"status": "wrong", "reason": told}


def _direction(random: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """Steps of every element, for complex ones in both parts."""
    steps = random.uniform(0.5, 1, array.shape)
    return steps + 1j * random.uniform(0.5, 1, array.shape) if array.dtype.kind == "c" else steps


def _slope(problem: _Problem, directions: dict[int, np.ndarray]) -> tuple[float, float] | None:
    """The derivative along a direction and its tolerance: in float64 where the operator has it, else coarsely."""

    def value(kind: str, by: float) -> float:
        types = [_WIDER.get(a.dtype.name, {}).get(kind, a.dtype) for a in problem.arrays]
        moved = [a.astype(t) for a, t in zip(problem.arrays, types, strict=True)]
        for i, direction in directions.items():
            moved[i] = (problem.arrays[i] + by * direction).astype(types[i])
        return problem.value(moved, kind)

    for kind, (step, tolerance) in (("float64", _FINE), ("float32", _COARSE)):
        try:
            slope = (value(kind, step) - value(kind, -step)) / (2 * step)
        except Exception:  # the operator does not take this type, or these values
            continue
        if np.isfinite(slope):
            return slope, tolerance
    return None


def main() -> None:
    """Answer requests until the input ends; the first line is the settings."""
    worker.serve(collect, check)


if __name__ == "__main__":
    main()
