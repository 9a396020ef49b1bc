"""TensorFlow 2 and Keras: detects steps and maps operators to source lines.

1. `fit`, `evaluate`, `predict`: a batch is a step; `fit` and `evaluate` end after the steps that were asked for.
2. A loop over a `tf.function`: a call is a step; the script ends after the steps that were asked for.
3. An eager loop: a step ends with `apply_gradients`; its loss is what a tape differentiates.
4. A model that is only called: a call is a step.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.eager import backprop
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import func_graph, ops

from npu_tools.check.observe.batch_sizes import Repeatable, common_batch, resized
from npu_tools.check.observe.patching import around
from npu_tools.check.recorder import Recorder

__all__ = ["TensorFlowHooks", "on_host"]

_READS = ("numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "__format__", "__str__")
_LINE = "_npu_check_line"
_MOST_DATASETS = 4
_PIPELINE = ("Dataset_", "generator_", "finalize_")  # graphs of tf.data
_GENERATED = "__autograph_generated_file"
_HERE = str(Path(__file__).parent)


def _floats(value: Any) -> list[np.ndarray]:
    """The floating-point tensors among results."""
    found = []
    for item in tf.nest.flatten(value):
        if isinstance(item, tf.Tensor) and hasattr(item, "_numpy") and item.dtype.is_floating:
            found.append(np.asarray(item._numpy()).astype(np.float32, copy=True))
    return found


def _loss(value: Any) -> float | None:
    """The loss among results: the one with that name, else the only or first scalar."""
    if isinstance(value, dict) and "loss" in value:
        value = value["loss"]
    scalars = [a for a in _floats(value) if a.size == 1]
    return float(scalars[0].reshape(())) if scalars else None


class TensorFlowHooks:
    """Watches TensorFlow for a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.lines: dict[
            str, dict[str, str]
        ] = {}  # line by the names of a node and of the graph it was traced in
        self._called = threading.local()  # .lines: where the layers that are being called were made
        self.datasets: list[Any] = []
        self._steps: dict[tuple[str, str], Repeatable] = {}  # by the kind and name of a series
        self._scoped: tuple[int, dict[str, str]] = (0, {})
        self._last_end = 0.0
        self._reading = False

    def install(self) -> None:
        """Start watching."""
        around(polymorphic_function.Function, "__call__", self._function_call)
        for name in ("fit", "evaluate", "predict"):
            around(tf.keras.Model, name, functools.partial(self._loop, name))
        around(tf.keras.Model, "__call__", self._model_call)
        tf.keras.layers.Layer.__new__ = self._layer_made(tf.keras.layers.Layer.__new__)
        around(tf.keras.layers.Layer, "__call__", self._layer_called)
        around(tf.keras.optimizers.Optimizer, "apply_gradients", self._apply)
        around(backprop.GradientTape, "gradient", self._gradient)
        around(func_graph.FuncGraph, "_create_op_internal", self._op_made)
        around(dataset_ops.DatasetV2, "__init__", self._dataset_made)
        around(dataset_ops.DatasetV2, "__iter__", self._dataset_read)
        around(iterator_ops.OwnedIterator, "__next__", self._next)
        for name in _READS:
            around(ops._EagerTensorBase, name, functools.partial(self._read, name))

    # -- steps -------------------------------------------------------------------------------------------------

    def _function_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.busy or not tf.executing_eagerly():
                return original(function, *args, **kwargs)
            location = recorder.roots.here()
            name = getattr(function, "_name", "") or getattr(function.python_function, "__name__", "function")
            if not location:
                return original(function, *args, **kwargs)
            recorder.check_limit("function", name)
            begin = recorder.now()
            with recorder.inside():
                result = original(function, *args, **kwargs)
                loss = _loss(result)
                recorder.output(name, _floats(result))
            recorder.step("function", name, begin, loss, location)
            self._keep(("function", name), function, args, kwargs)
            return result

        return call

    def _model_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.busy or not tf.executing_eagerly() or _symbolic((args, kwargs)):
                return original(model, *args, **kwargs)
            location, name = recorder.roots.here(), str(getattr(model, "name", "model"))
            if not location:
                return original(model, *args, **kwargs)
            recorder.check_limit("call", name)
            begin = recorder.now()
            with recorder.inside():
                result = original(model, *args, **kwargs)
                recorder.output(name, _floats(result))
            recorder.step("call", name, begin, None, location)
            self._keep(("call", name), model, args, kwargs)
            return result

        return call

    def _apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def apply_gradients(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.busy or not tf.executing_eagerly() or tf.distribute.in_cross_replica_context():
                return original(optimizer, *args, **kwargs)
            name = str(getattr(optimizer, "name", "optimizer"))
            recorder.check_limit("optimizer", name)
            with recorder.inside():
                result = original(optimizer, *args, **kwargs)
            recorder.step("optimizer", name, self._last_end, None, recorder.roots.here())
            self._last_end = recorder.now()
            return result

        return apply_gradients

    def _gradient(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def gradient(tape: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.busy and tf.executing_eagerly():
                with recorder.inside():
                    value = _loss(target)
                if value is not None:
                    recorder.loss(value)
            return original(tape, target, *args, **kwargs)

        return gradient

    def _loop(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def loop(model: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.busy:
                return original(model, *args, **kwargs)
            watcher = _Batches(recorder, kind, str(getattr(model, "name", "model")), recorder.roots.here())
            given = kwargs.get("callbacks")
            if not (given is None or isinstance(given, (list, tuple))):
                raise TypeError("the check of a script needs `callbacks` to be a list")
            kwargs["callbacks"] = [*(given or ()), watcher]
            if kind == "fit":
                self._keep_fit((kind, watcher.name), model, args, kwargs)
            with recorder.inside():
                result = original(model, *args, **kwargs)
                if kind == "predict":
                    recorder.output(
                        f"{watcher.name}.predict", [np.asarray(a) for a in tf.nest.flatten(result)]
                    )
            return result

        return loop

    # -- other batch sizes -------------------------------------------------------------------------------------

    def _keep(self, key: tuple[str, str], call: Any, args: Any, kwargs: Any) -> None:
        """Remember how to call a function or model with more or fewer rows."""
        if key in self._steps:
            return
        given = (args, kwargs)

        def step(batch: int) -> Callable[[], Any]:
            more, named = tf.nest.map_structure(lambda a: _rows(a, batch), given)
            return lambda: tf.nest.map_structure(_awaited, call(*more, **named))

        self._steps[key] = Repeatable(lambda: _batch_of(given), step)

    def _keep_fit(self, key: tuple[str, str], model: Any, args: Any, kwargs: Any) -> None:
        """Remember how to train a Keras model with more or fewer rows: its own train function on such batches."""
        x = args[0] if args else kwargs.get("x")
        y = args[1] if len(args) > 1 else kwargs.get("y")
        batch = (args[2] if len(args) > 2 else kwargs.get("batch_size")) or 32
        if key in self._steps or x is None or not isinstance(x, (tf.data.Dataset, np.ndarray, tf.Tensor)):
            return

        def element() -> Any:
            if isinstance(x, tf.data.Dataset):
                return next(iter(x))
            return x[:batch] if y is None else (x[:batch], y[:batch])

        def step(size: int) -> Callable[[], Any]:
            with tf.device("/CPU:0"):
                rows = tf.nest.map_structure(lambda a: _rows(a, size), element())
                data = iter(tf.data.Dataset.from_tensors(rows).repeat())
            model.make_train_function()
            return lambda: tf.nest.map_structure(_awaited, model.train_function(data))

        self._steps[key] = Repeatable(lambda: _batch_of(element()), step)

    def repeatable(self) -> Repeatable | None:
        """The main series' step for other batch sizes; None where it cannot be repeated."""
        series = self.recorder.main_series()
        key = ("", "") if series is None else (series.kind, series.name)
        if key[0] == "optimizer":  # an eager loop: only the call of the model can be repeated
            key = next((k for k in self._steps if k[0] == "call"), key)
        return self._steps.get(key)

    # -- where things come from --------------------------------------------------------------------------------

    def _op_made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def create(graph: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(graph, *args, **kwargs)
            location = self._mapped(made) if _in_generated_code() else recorder.roots.here()
            layers = getattr(self._called, "lines", None)
            if (
                layers and location == layers[-1][0]
            ):  # nothing of the user's between the layer and its operator
                location = layers[-1][1]
            if location:
                self.lines.setdefault(made.name, {})[graph.name] = location
            return made

        return create

    def _mapped(self, operation: Any) -> str:
        """Original line of an operator in code that AutoGraph rewrote."""
        roots = self.recorder.roots
        for frame in reversed(list(operation.traceback)):
            if roots.owns(frame.filename):
                return f"{roots.name(frame.filename)}:{frame.lineno}"
        return ""

    def _layer_made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A `__new__` that records the line; `__init__` stays unchanged because Keras reads its signature."""
        recorder = self.recorder

        def make(kind: Any, *args: Any, **kwargs: Any) -> Any:
            layer = original(kind, *args, **kwargs)
            object.__setattr__(layer, _LINE, recorder.roots.here())
            return layer

        return make

    def _layer_called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            made = getattr(layer, _LINE, "")
            if not made or tf.executing_eagerly():
                return original(layer, *args, **kwargs)
            lines = self._called.__dict__.setdefault("lines", [])
            lines.append((recorder.roots.here(), made))
            try:
                return original(layer, *args, **kwargs)
            finally:
                lines.pop()

        return call

    def location_of(self, node: str, function: str = "") -> str:
        """Source line of a function's node; for gradients, that of the forward nodes."""
        parts = node.split("/")
        inner = ("/".join(parts[start:]) for start in range(len(parts)))
        own = next((self._line(name, function) for name in inner if name in self.lines), "")
        if "gradient_tape" not in parts:
            return own
        forward = parts[parts.index("gradient_tape") + 1 :]
        scopes = self._scopes()
        shorter = ("/".join(forward[:end]) for end in range(len(forward), 0, -1))
        return next((scopes[scope] for scope in shorter if scope in scopes), own)

    def _line(self, name: str, function: str = "") -> str:
        """The line of a node: in the graph of that function, else in one that is not part of an input pipeline."""
        by_graph = self.lines[name]
        for graph, line in by_graph.items():
            if function and re.fullmatch(rf"(__\w+?_)?{re.escape(graph)}(_\d+)*", function):
                return line
        steps = [line for graph, line in by_graph.items() if not graph.startswith(_PIPELINE)]
        return (steps or list(by_graph.values()))[-1]

    def _scopes(self) -> dict[str, str]:
        """The line of the first operator in each scope of the forward pass."""
        if len(self.lines) != self._scoped[0]:
            found: dict[str, str] = {}
            for name in self.lines:
                if "gradient_tape" not in name:
                    line = self._line(name)
                    found.setdefault(name, line)
                    found.setdefault(name.rpartition("/")[0], line)
            found.pop("", None)
            self._scoped = len(self.lines), found
        return self._scoped[1]

    # -- input -------------------------------------------------------------------------------------------------

    def _dataset_made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def make(dataset: Any, *args: Any, **kwargs: Any) -> None:
            original(dataset, *args, **kwargs)
            setattr(dataset, _LINE, recorder.roots.here())

        return make

    def _dataset_read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(dataset: Any) -> Any:
            if tf.executing_eagerly() and len(self.datasets) < _MOST_DATASETS:
                self.datasets.append(dataset)
            return original(dataset)

        return read

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def following(iterator: Any) -> Any:
            if recorder.busy:
                return original(iterator)
            begin = time.perf_counter()
            try:
                with recorder.inside():
                    return original(iterator)
            finally:
                recorder.wait(time.perf_counter() - begin, recorder.roots.here())

        return following

    def _read(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not recorder.busy and not self._reading:
                self._reading = True
                try:
                    recorder.read(name.strip("_"), sys._getframe(1))
                    return original(tensor, *args, **kwargs)
                finally:
                    self._reading = False
            return original(tensor, *args, **kwargs)

        return read


def _rows(value: Any, batch: int) -> Any:
    """A tensor or array with another number of rows; anything else as it is."""
    if not isinstance(value, (tf.Tensor, np.ndarray)):
        return value
    return tf.convert_to_tensor(resized(np.asarray(value), batch))


def _batch_of(structure: Any) -> int:
    leaves = [a for a in tf.nest.flatten(structure) if isinstance(a, (tf.Tensor, np.ndarray))]
    return common_batch([tuple(a.shape) for a in leaves])


def _awaited(value: Any) -> Any:
    """Wait for a result."""
    return value.numpy() if hasattr(value, "numpy") else value


def _in_generated_code() -> bool:
    """True if the innermost frame outside TensorFlow is AutoGraph's generated code."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if _GENERATED in file:
            return True
        if "/site-packages/" not in file and not file.startswith(_HERE):
            return False
        frame = frame.f_back
    return False


def _symbolic(values: Any) -> bool:
    tensors = [v for v in tf.nest.flatten(values) if hasattr(v, "shape")]
    return any(not hasattr(v, "numpy") and not isinstance(v, np.ndarray) for v in tensors)


class _Batches(tf.keras.callbacks.Callback):
    """Turns batches of Keras loops into steps."""

    def __init__(self, recorder: Recorder, kind: str, name: str, location: str) -> None:
        super().__init__()
        self.recorder, self.kind, self.name, self.location = recorder, kind, name, location
        self._begin = recorder.now()  # the first step includes tracing, compiling and the start of the input

    def _end(self, logs: Any = None) -> None:
        loss = None if not logs or "loss" not in logs else float(logs["loss"])
        self.recorder.step(self.kind, self.name, self._begin, loss, self.location)
        self._begin = self.recorder.now()
        if (
            self.kind != "predict"
            and len(self.recorder.of(self.kind, self.name).steps) >= self.recorder.most_steps
        ):
            if self.kind == "fit":
                self.model.stop_training = True
            else:
                self.model.stop_evaluating = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch
        self._end(logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch
        if self.kind == "evaluate":
            self._end(logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        del batch, logs
        self._end()


def on_host(devices: int) -> None:
    """Let a script that names NPUs run without one: map `/NPU:n` to `/CPU:n`."""
    if devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    for owner in (tf, tf.compat.v1):
        around(owner, "device", lambda original: lambda name: original(_host_name(name)))
    around(
        tf.distribute.MirroredStrategy,
        "__init__",
        lambda original: (
            lambda self, devices=None, *args, **kwargs: original(
                self, [_host_name(d) for d in devices] if devices else devices, *args, **kwargs
            )
        ),
    )


def _host_name(name: Any) -> Any:
    """The host's device for a device name.

    >>> _host_name("/NPU:1"), _host_name("/job:localhost/device:npu:0"), _host_name(None)
    ('/CPU:1', '/job:localhost/device:CPU:0', None)
    """
    if not isinstance(name, str):
        return name
    for spelling in ("NPU", "npu", "GPU", "gpu"):
        name = name.replace(f"{spelling}:", "CPU:")
    return name
