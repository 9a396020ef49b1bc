"""Reference values of the nodes of a model file, from ONNX Runtime, ONNX's evaluator or TensorFlow."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.check.layers import Drawn, Framework

__all__ = ["nodes_of"]


def nodes_of(path: str, kind: str, arrays: Sequence[np.ndarray]) -> Framework | None:
    """Reference for the nodes of a file with these inputs; None if there is none."""
    if kind == "onnx":
        return _OnnxNodes(path, arrays)
    if kind in ("pb", "saved_model") and importlib.util.find_spec("tensorflow") is not None:
        return _TensorFlowNodes(path, kind, arrays)
    return None


class _OnnxNodes:
    """The nodes of an ONNX file."""

    def __init__(self, path: str, arrays: Sequence[np.ndarray]) -> None:
        self._path, self._arrays = path, arrays
        self._runtime = importlib.util.find_spec("onnxruntime") is not None
        self.name = "ONNX Runtime" if self._runtime else "onnx.reference"

    def values(self, nodes: Sequence[str], drawn: Drawn) -> Mapping[str, np.ndarray]:
        """The results of nodes by name."""
        del drawn
        import onnx

        model = onnx.load(self._path)
        made = {n.name or n.output[0]: n.output[0] for n in model.graph.node if len(n.output) == 1}
        known = {node: made[node] for node in nodes if node in made}
        there = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in known.values() if v not in there)
        return dict(zip(known, self._run(model, list(known.values())), strict=True))

    def _run(self, model: Any, outputs: list[str]) -> list[np.ndarray]:
        constants = {i.name for i in model.graph.initializer}
        names = [i.name for i in model.graph.input if i.name not in constants]
        feeds = dict(zip(names, self._arrays, strict=True))
        if not self._runtime:
            from onnx.reference import ReferenceEvaluator

            return [np.asarray(a) for a in ReferenceEvaluator(model).run(outputs, feeds)]
        import onnxruntime

        folder = str(Path(self._path).parent)  # of external data
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [np.asarray(a) for a in session.run(outputs, feeds)]


def _plain(name: str) -> str:
    """The name of a node without the function calls that enclose it.

    >>> _plain("StatefulPartitionedCall/PartitionedCall_1/dense/MatMul")
    'dense/MatMul'
    """
    return re.sub(r"^((Stateful)?PartitionedCall(_\d+)?/)+", "", name)


class _TensorFlowNodes:
    """The nodes of a frozen graph or of the serving signature of a SavedModel."""

    def __init__(self, path: str, kind: str, arrays: Sequence[np.ndarray]) -> None:
        import tensorflow as tf

        self.name = f"TensorFlow {tf.__version__}"
        self._path, self._kind, self._arrays = path, kind, arrays

    def values(self, nodes: Sequence[str], drawn: Drawn) -> Mapping[str, np.ndarray]:
        """The results of nodes by name."""
        del drawn
        import tensorflow as tf

        definition, graph = self._definition(tf), tf.Graph()
        with graph.as_default():
            tf.import_graph_def(definition, name="")
        operations: dict[str, list[Any]] = {}
        for operation in graph.get_operations():
            operations.setdefault(_plain(operation.name), []).append(operation)
        holders = [o.outputs[0] for o in graph.get_operations() if o.type == "Placeholder"]
        candidates = {n: operations.get(_plain(n), []) for n in nodes}
        known = {n: o[0].outputs[0] for n, o in candidates.items() if len(o) == 1 and len(o[0].outputs) == 1}
        feeds = dict(zip(holders, self._arrays, strict=True))
        with tf.compat.v1.Session(graph=graph) as session:
            found: dict[str, np.ndarray] = session.run(known, feeds)
        return found

    def _definition(self, tf: Any) -> Any:
        if self._kind == "saved_model":
            from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

            loaded = tf.saved_model.load(self._path)  # keeps its variables alive
            frozen = convert_variables_to_constants_v2(loaded.signatures["serving_default"])
            return frozen.graph.as_graph_def()
        definition = tf.compat.v1.GraphDef()
        definition.ParseFromString(Path(self._path).read_bytes())
        return definition
