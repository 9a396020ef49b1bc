"""The gradients that TensorFlow registers: which of them a calculation uses, and why some are in no case."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["EXCUSED", "excuse", "recorded", "registered", "unchecked"]

# Why a gradient is in no case, as expressions the operator's name matches as a whole.
EXCUSED = {
    r"Floor|Ceil|Round|Rint|FloorDiv|TruncateDiv|ArgMax|ArgMin|LoopCond": (
        "its function gives no gradient: it decides, or moves in steps"
    ),
    r"PreventGradient|SparseDenseCwiseAdd|SparseMatrixMul": "its function is an error",
    r"QuantizeAndDequantizeV4Grad|SparseSparse(Maximum|Minimum)": "its function takes too few arguments to be called",
    r"AllToAll|CollectivePermute|CrossReplicaSum|Nccl\w+|TPUEmbeddingActivations": "joins several accelerators",
    r"CopyToMesh(Grad)?|Relayout(Like)?": "lays tensors out over a mesh of devices",
    r"Xla\w+": "is made by XLA's compiler",
    r"CudnnRNN(V\d)?": "has a kernel for CUDA alone",
    r"AccumulateNV2|CTCLossV2|SparseMatrix(Add|Softmax)": "has no kernel on the CPU",
    r"Debug\w+": "is put in by the debugger",
    r"Ref\w+": "works on references to version 1's variables, which functions cannot hold",
    r"BatchNormWithGlobalNormalization|QuantizeAndDequantize|TopK": "withdrawn: new graphs may not hold it",
    r"TensorArray(Concat|Gather|Read|Scatter|Split|Write)(V2)?": "withdrawn: new graphs may not hold it",
    r"_EagerConst": "is how eager calls make constants",
}


def registered() -> set[str]:
    """The operators that this TensorFlow itself has a gradient for."""
    from tensorflow.python.framework import ops

    known = ops._gradient_registry
    found = {name: known.lookup(name) for name in known.list()}
    return {n for n, f in found.items() if f is not None and _of_tensorflow(n, f)}


def _of_tensorflow(name: str, function: Callable[..., Any]) -> bool:
    """Neither one of another package nor one that a traced function made for itself."""
    module = getattr(function, "__module__", "") or ""
    return module.startswith("tensorflow.") and name.isidentifier()


class _Watched:
    """TensorFlow's table of gradients, keeping the names of those that give one."""

    def __init__(self, table: Any) -> None:
        self.table, self.found = table, set[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def lookup(self, name: str) -> Any:
        function = self.table.lookup(name)
        return None if function is None else self._noting(name, function)

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def gradient(*given: Any) -> Any:
            results = function(*given)
            listed = results if isinstance(results, (list, tuple)) else [results]
            if any(r is not None for r in listed):
                self.found.add(name)
            return results

        return gradient


@contextlib.contextmanager
def recorded() -> Iterator[set[str]]:
    """The operators whose gradient functions are called, and give a gradient, inside the block.

    >>> import tensorflow as tf
    >>> x = tf.constant(2.0)
    >>> with recorded() as found, tf.GradientTape() as tape:
    ...     tape.watch(x)
    ...     slope = tape.gradient(tf.floor(x) + tf.sin(x), x)
    >>> sorted(found)
    ['AddV2', 'Sin']
    """
    from tensorflow.python.framework import ops

    table = ops._gradient_registry
    watched = _Watched(table)
    ops._gradient_registry = ops.gradient_registry = watched  # tapes know it by one name, graphs by the other
    try:
        yield watched.found
    finally:
        ops._gradient_registry = ops.gradient_registry = table


def excuse(name: str) -> str:
    """Why an operator's gradient is in no case, "" where it should be in one."""
    return next((why for pattern, why in EXCUSED.items() if re.fullmatch(pattern, name)), "")


def unchecked(checked: Iterable[str]) -> dict[str, list[str]]:
    """The registered gradients that are not among the checked ones, by the reason; "" where there is none."""
    found: dict[str, list[str]] = {}
    for name in sorted(registered() - set(checked)):
        found.setdefault(excuse(name), []).append(name)
    return found
