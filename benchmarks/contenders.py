"""Who runs a model in a benchmark: this project and its peers, each set up as its own documentation advises.

Every contender is pinned to the precision asked for and to the same number of threads. A contender that has
no way to run a case raises `NotApplicable` with the reason.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "CONTENDERS",
    "LABELS",
    "OURS",
    "THREADS",
    "Case",
    "FileCase",
    "NotApplicable",
    "Runner",
    "add_threads_option",
    "clock",
    "limit_threads",
    "reference",
    "rows_take",
    "start_tensorflow",
    "timed",
]

THREADS = int(os.environ.get("BENCHMARK_THREADS", "2"))
OURS = "ours"
Arrays = list[np.ndarray]


class NotApplicable(Exception):
    """The contender cannot run this case at all; the message says why."""


@dataclass
class FileCase:
    """An ONNX file with its inputs: what contenders that read files need."""

    onnx: Path
    feeds: dict[str, np.ndarray]
    precision: str = "fp32"

    @property
    def inputs(self) -> Arrays:
        return list(self.feeds.values())


@dataclass
class Case:
    """One row of a benchmark: a model at a batch and a precision ("fp32", "bf16" or "int8")."""

    model: Any  # ZooModel
    batch: int
    precision: str

    @functools.cached_property
    def feeds(self) -> dict[str, np.ndarray]:
        """Inputs by name, in PyTorch's layout."""
        return dict(zip(self.model.input_names, self.model.inputs(self.batch), strict=True))

    @property
    def inputs(self) -> Arrays:
        return list(self.feeds.values())

    @functools.cached_property
    def module(self) -> Any:
        """The PyTorch module; shared by those who need its weights, changed by none."""
        return self.model.module()

    @functools.cached_property
    def onnx(self) -> Path:
        from benchmarks.models import onnx_file, quantised_file

        if self.precision == "int8":
            return quantised_file(self.model, self.batch)
        return onnx_file(self.model, self.batch, self.module)

    @functools.cached_property
    def keras(self) -> Any:
        """The model in Keras with the module's weights."""
        from benchmarks.models import keras_model

        policy = {"fp32": "float32", "bf16": "mixed_bfloat16"}[self.precision]
        return keras_model(self.model, self.batch, self.module, policy)


@dataclass(frozen=True)
class Runner:
    """A prepared contender: `call` runs once, `answer` turns what it gave into arrays."""

    call: Callable[[], Any]
    answer: Callable[[Any], Arrays]


def add_threads_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--threads` of a benchmark whose rows are processes of their own."""
    parser.add_argument("--threads", type=int, default=THREADS, help="with 1, times are the processor's")


def rows_take(threads: int) -> None:
    """Give the processes of rows a number of threads."""
    os.environ["BENCHMARK_THREADS"] = str(threads)


def clock(threads: int = THREADS) -> Callable[[], float]:
    """What times a call: the processor's time on one thread, where other processes do not disturb it."""
    return time.process_time if threads == 1 else time.perf_counter


def limit_threads(threads: int = THREADS) -> None:
    """Give every library the same number of threads; to be called before any of them is imported."""
    for name in ("NPU_NUM_THREADS", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers that starts during a measurement
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def start_tensorflow() -> Any:
    """Import TensorFlow and start its runtime without the lines they print."""
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            import tensorflow as tf

            tf.zeros([1]).numpy()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return tf


def _ours(case: Case | FileCase) -> Runner:
    import ge
    import npu_runtime
    from ge.options import CompileOptions, PrecisionMode

    npu_runtime.set_num_threads(THREADS)
    mode = PrecisionMode.MIX_BF16 if case.precision == "bf16" else PrecisionMode.KEEP
    model = ge.compile(case.onnx, CompileOptions(precision_mode=mode))
    inputs = case.inputs
    return Runner(lambda: model.run(inputs), list)


def _onnxruntime(case: Case | FileCase) -> Runner:
    import onnxruntime

    if case.precision == "bf16":
        raise NotApplicable("ONNX Runtime has no bf16 kernels on the CPU")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(case.onnx, options, providers=["CPUExecutionProvider"])
    feeds = case.feeds
    return Runner(lambda: session.run(None, feeds), list)


def _openvino(case: Case | FileCase) -> Runner:
    import openvino

    # Left alone, OpenVINO runs a float32 model in bf16 on a machine that has it.
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if case.precision == "bf16" else "f32",
        "INFERENCE_NUM_THREADS": THREADS,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if os.environ.get("BENCHMARK_CACHE"):
        settings["CACHE_DIR"] = os.environ["BENCHMARK_CACHE"]
    compiled = openvino.Core().compile_model(case.onnx, "CPU", settings)
    request = compiled.create_infer_request()
    inputs = case.inputs
    return Runner(
        lambda: request.infer(inputs, share_inputs=True, share_outputs=True),
        lambda results: [np.array(results[port]) for port in compiled.outputs],
    )


def _tensorflow(case: Case, form: str) -> Runner:
    import tensorflow as tf

    from benchmarks.models import channels_last
    from benchmarks.models.export import freeze

    if case.precision == "int8":
        raise NotApplicable("the quantised model is an ONNX file")
    keras = case.keras
    inputs = [tf.constant(x) for x in channels_last(case.inputs)]
    packed = inputs[0] if len(inputs) == 1 else inputs

    if form == "frozen":
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
        frozen = freeze(lambda *x: keras(x[0] if len(x) == 1 else list(x), training=False), specs)
        return Runner(lambda: frozen(*inputs), lambda result: [result[0].numpy()])

    @tf.function(jit_compile=form == "xla")
    def function(x: Any) -> Any:
        return keras(x, training=False)

    return Runner(lambda: function(packed), lambda result: [result.numpy()])


def _torch_compile(case: Case) -> Runner:
    import copy

    import torch
    import torch._inductor.config

    if case.precision == "int8":
        raise NotApplicable("the quantised model is an ONNX file")
    torch.set_num_threads(THREADS)
    torch._inductor.config.freezing = True
    module = copy.deepcopy(case.module).to(memory_format=torch.channels_last)
    inputs = [torch.from_numpy(x) for x in case.inputs]
    inputs = [x.to(memory_format=torch.channels_last) if x.ndim == 4 else x for x in inputs]
    low = torch.bfloat16 if case.precision == "bf16" else torch.float32
    module = module.to(low)

    def forward(*arguments: torch.Tensor) -> torch.Tensor:
        return module(*(x.to(low) if x.is_floating_point() else x for x in arguments)).float()

    compiled = torch.compile(forward, dynamic=False)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return compiled(*inputs)

    return Runner(call, lambda result: [result.numpy()])


CONTENDERS: dict[str, Callable[[Any], Runner]] = {
    OURS: _ours,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "tensorflow": lambda case: _tensorflow(case, "function"),
    "tensorflow-frozen": lambda case: _tensorflow(case, "frozen"),
    "xla": lambda case: _tensorflow(case, "xla"),
    "torch": _torch_compile,
}
LABELS = {
    OURS: "ours",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorflow": "tf.function",
    "tensorflow-frozen": "TF frozen",
    "xla": "TF-XLA",
    "torch": "torch.compile",
}


def reference(case: Case) -> Arrays:
    """The answer to check against: PyTorch's in float32, or for int8 the quantised graph run as written."""
    if case.precision == "int8":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(case.onnx, options, providers=["CPUExecutionProvider"])
        return list(session.run(None, case.feeds))
    import torch

    with torch.no_grad():
        return [case.module(*map(torch.from_numpy, case.inputs)).numpy()]


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds taken, and the result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result
