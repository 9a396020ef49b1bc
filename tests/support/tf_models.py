"""TensorFlow models as graphs and files, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from ge.ir.types import TensorDesc
from ge.ops.interpret import interpret
from ge.parsers.tensorflow.parser import Parsed, VariableSpec, parse_graph, parse_model

__all__ = ["concrete", "export", "feeds", "freeze", "freeze_keras", "parse_function", "run_both", "run_file"]


def concrete(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Any:
    """The concrete function for arguments of given shapes and types."""
    specs = [
        tf.TensorSpec(np.shape(a), tf.as_dtype(np.asarray(a).dtype), name=f"x{i}")
        for i, a in enumerate(arrays)
    ]
    return tf.function(function).get_concrete_function(*specs)


def parse_function(traced: Any, *, updates: bool = False) -> Parsed:
    """A concrete function's graph as GE's; captured variables are constants unless they may be updated."""
    graph = traced.graph
    captured = {inner.op.name: outer for outer, inner in graph.captures}
    variables = {v.handle.ref(): v for v in graph.variables}
    given: dict[str, VariableSpec] = {}
    constants: dict[str, np.ndarray] = {}
    for name, outer in captured.items():
        if outer.dtype == tf.resource:
            variable = variables[outer.ref()]
            value = variable.numpy()
            desc = TensorDesc(tuple(value.shape), value.dtype.name)
            given[name] = VariableSpec(variable.name, desc, None if updates else value)
        else:
            constants[name] = outer.numpy()
    inputs = {
        t.op.name: TensorDesc(tuple(t.shape), t.dtype.name) for t in graph.inputs if t.op.name not in captured
    }
    return parse_graph(
        graph.as_graph_def(),
        inputs=inputs,
        outputs=[t.name for t in graph.outputs],
        constants=constants,
        variables=given,
        updates=updates,
        effects=[op.name for op in graph.control_outputs] if updates else (),
    )


def run_both(function: Callable[..., Any], *arrays: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What GE's interpreter and TensorFlow make of a function of arrays."""
    given = [np.asarray(a) for a in arrays]
    traced = concrete(function, given)
    expected = [t.numpy() for t in tf.nest.flatten(traced(*(tf.constant(a) for a in given)))]
    return interpret(parse_function(traced).graph, given), expected


def freeze(traced: Any) -> Any:
    """The GraphDef of a concrete function with its variables as constants."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    return convert_variables_to_constants_v2(traced).graph.as_graph_def()


def freeze_keras(model: Any, path: Path | None = None, batch: int | None = 1) -> Any:
    """The frozen GraphDef of a Keras model, also written as a .pb file when a path is given."""
    specs = [tf.TensorSpec((batch, *t.shape[1:]), t.dtype, name=t.name.split(":")[0]) for t in model.inputs]

    def call(*xs: Any) -> Any:
        return model(list(xs) if len(xs) > 1 else xs[0], training=False)

    graph = freeze(tf.function(call).get_concrete_function(*specs))
    if path is not None:
        path.write_bytes(graph.SerializeToString())
    return graph


def export(model: Any, folder: Path) -> Path:
    """A SavedModel of a Keras model or a tf.Module."""
    if isinstance(model, tf.keras.Model):
        model.export(str(folder), verbose=False)
    else:
        tf.saved_model.save(model, str(folder))
    return folder


def feeds(model: Any, batch: int = 1, seed: int = 0) -> list[np.ndarray]:
    """Random inputs of a Keras model."""
    random = np.random.default_rng(seed)
    return [random.standard_normal((batch, *t.shape[1:])).astype(t.dtype) for t in model.inputs]


def run_file(path: Any, arrays: Sequence[np.ndarray], **options: Any) -> list[np.ndarray]:
    """What GE's interpreter makes of a model file."""
    return interpret(parse_model(path, **options).graph, list(arrays))
