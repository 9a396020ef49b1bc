"""Functions on a GPU (NPU_DEVICE=cuda): programs over the GPU's memory, in which variables and results stay.

Tensors have memory of the host as well, which is filled when somebody reads it: a host kernel, a checkpoint, eager
code. `copies()` counts both ways. Operators without a GPU kernel run on the host between a program's graphs;
`hosted()` counts them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ge.errors import OutOfMemoryError
from ge.model.model import Model
from npu_runtime import TaskError
from npu_runtime import tensorflow as native

__all__ = ["Runner", "copies", "hosted", "program_of"]

_hosted: Counter[str] = Counter()


def copies() -> dict[str, int]:
    """Copies between the host and GPUs since the process began: how often, and how many bytes."""
    return native.gpu_copies()


def hosted() -> dict[str, int]:
    """How often programs of GPUs ran operators on the host since the process began, by operator."""
    return dict(_hosted)


def program_of(model: Model) -> Any:
    """What a plan runs: the program itself, or a GPU's program on the stream of tensors."""
    return Runner(model) if hasattr(model.program, "run_on_gpu") else model.program


@functools.cache
def _stream(device: int) -> Any:
    from npu_runtime import cuda

    return cuda.Stream.borrowed(device, cuda.tensor_stream(device))


@functools.cache
def _introduce() -> None:
    from npu_runtime import cuda

    native.use_gpus(cuda.gpu_calls())


class Runner:
    """A GPU's program as plans call it."""

    def __init__(self, model: Model) -> None:
        from ge.model.cuda.host import runs_on_host

        _introduce()
        self.model, self.name = model, model.name
        # The runtime reads both (native/python/tensorflow.cc).
        self.input_bytes = [p.desc.nbytes for p in model.inputs]
        self.output_bytes = [p.desc.nbytes for p in model.outputs]
        self._on_host = [str(t.attrs.get("op", t.kind)) for t in model.plan.tasks if runs_on_host(t)]

    def __call__(
        self, device: int, inputs: Sequence[int], outputs: Sequence[int]
    ) -> list[tuple[int, list[int]]]:
        """Put a run on the stream; the shapes of outputs that only the run decides."""
        try:
            shapes = self.model.program.run_on_gpu(inputs, outputs, _stream(device))
        except TaskError as error:
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
        except OutOfMemoryError as error:
            raise tf.errors.ResourceExhaustedError(None, None, str(error)) from error
        _hosted.update(self._on_host)
        return [(index, list(shape)) for index, shape in shapes.items()]
