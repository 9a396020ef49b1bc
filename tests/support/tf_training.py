"""Training steps of TensorFlow compiled as one model, run with their variables updated in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ge.compiler import compile_graph
from ge.ir.types import TensorDesc, numpy_dtype
from ge.model.model import Model
from ge.options import CompileOptions
from ge.parsers.tensorflow.parser import Parsed, VariableSpec, parse_graph

__all__ = ["TrainStep", "keras_step", "losses_of"]

Batch = Sequence[np.ndarray]


class TrainStep:
    """A function that updates variables, compiled; the variables' values live in arrays of its own.

    >>> step = TrainStep(train, [x, y])          # doctest: +SKIP
    >>> loss = step(x, y)[0]                     # doctest: +SKIP
    """

    def __init__(
        self, function: Callable[..., Any], batch: Batch, options: CompileOptions | None = None
    ) -> None:
        self.traced = _traced(function, batch)
        self.parsed, self._variables = _parsed(self.traced)
        given = len(self.parsed.inputs)
        results = len(self.parsed.outputs)
        position = {name: given + i for i, name in enumerate(self.parsed.reads)}
        written = [n for n in self.parsed.updates if n not in position]
        self.donated = [
            (results + i, position[name]) for i, name in enumerate(self.parsed.updates) if name in position
        ]
        self.model: Model = compile_graph(self.parsed.graph, options, "step", donated=self.donated)
        self.state = {n: np.array(self._variables[n].numpy()) for n in (*self.parsed.reads, *written)}

    def __call__(self, *batch: np.ndarray) -> list[np.ndarray]:
        """One step: the function's results; the variables have their new values after it."""
        feeds = [np.ascontiguousarray(a) for a in batch] + [self.state[n] for n in self.parsed.reads]
        outputs = [
            np.empty(p.desc.shape, numpy_dtype(p.desc.dtype))
            for p in self.model.outputs[: len(self.parsed.outputs)]
        ]
        outputs += [self.state[n] for n in self.parsed.updates]
        self.model.program.run_pointers([a.ctypes.data for a in feeds], [a.ctypes.data for a in outputs])
        return outputs[: len(self.parsed.outputs)]

    def reference(self, *batch: np.ndarray) -> list[np.ndarray]:
        """One step by TensorFlow, on TensorFlow's variables."""
        return [t.numpy() for t in tf.nest.flatten(self.traced(*map(tf.constant, batch)))]

    def store(self) -> None:
        """Put the values into TensorFlow's variables."""
        for name in self.parsed.updates:
            self._variables[name].assign(self.state[name])

    def differences(self) -> dict[str, float]:
        """How far each variable is from TensorFlow's, relative to its largest element."""
        found = {}
        for name in self.parsed.updates:
            mine, theirs = self.state[name], self._variables[name].numpy()
            scale = np.abs(theirs.astype(np.float64)).max(initial=1e-6)
            found[self._variables[name].name] = float(
                np.abs(mine.astype(np.float64) - theirs.astype(np.float64)).max(initial=0.0) / scale
            )
        return found


class _Slot:
    """A variable of which only the handle is known (slots of version 1 optimizers)."""

    def __init__(self, handle: Any) -> None:
        described = handle._handle_data.shape_and_type[0]
        self.handle = handle
        self.name = "slot"
        self.shape = tf.TensorShape(described.shape)
        self.dtype = tf.as_dtype(described.dtype)

    def numpy(self) -> np.ndarray:
        return np.asarray(tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.dtype))


def _traced(function: Callable[..., Any], batch: Batch) -> Any:
    specs = [
        tf.TensorSpec(np.shape(a), tf.as_dtype(np.asarray(a).dtype), name=f"x{i}")
        for i, a in enumerate(batch)
    ]
    return tf.function(function).get_concrete_function(*specs)


def _parsed(traced: Any) -> tuple[Parsed, dict[str, Any]]:
    """The step's graph, with variables named by the placeholders they come in by, which are unique."""
    graph = traced.graph
    captured = {inner.op.name: outer for outer, inner in graph.captures}
    owners = {v.handle.ref(): v for v in graph.variables}
    variables = {
        n: owners[t.ref()] if t.ref() in owners else _Slot(t)
        for n, t in captured.items()
        if t.dtype == tf.resource
    }
    specs = {
        n: VariableSpec(n, TensorDesc(tuple(v.shape), v.dtype.base_dtype.name), None)
        for n, v in variables.items()
    }
    parsed = parse_graph(
        graph.as_graph_def(),
        inputs={
            t.op.name: TensorDesc(tuple(t.shape), t.dtype.name)
            for t in graph.inputs
            if t.op.name not in captured
        },
        outputs=[t.name for t in graph.outputs],
        constants={n: t.numpy() for n, t in captured.items() if n not in variables},
        variables=specs,
        updates=True,
        effects=[op.name for op in graph.control_outputs],
    )
    return parsed, variables


def keras_step(model: Any, loss: Callable[[Any, Any], Any], optimizer: Any) -> Callable[[Any, Any], Any]:
    """A training step as a user writes it: forward, gradients, update."""
    weights = model.trainable_variables
    optimizer.build(weights)

    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
        return value

    return train


def losses_of(step: TrainStep, batches: Sequence[Batch]) -> tuple[list[float], list[float]]:
    """The first result of each step, ours and TensorFlow's."""
    mine, theirs = [], []
    for batch in batches:
        theirs.append(float(step.reference(*batch)[0]))
        mine.append(float(step(*batch)[0]))
    return mine, theirs
