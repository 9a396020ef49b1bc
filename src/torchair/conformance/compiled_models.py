"""A pytest plugin: every call of a transformers model goes through torch.compile.

NPU_CONFORMANCE_BACKEND names another backend than "npu": a test that fails with "eager" too fails in torch.compile.
"""

from __future__ import annotations

import os
from typing import Any

import torch

import torchair  # noqa: F401  (registers the backend)


def pytest_configure(config: Any) -> None:
    from transformers import PreTrainedModel

    backend = os.environ.get("NPU_CONFORMANCE_BACKEND", "npu")
    models: Any = PreTrainedModel
    plain = models.__call__

    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return plain(self, *args, **kwargs)
        if self._compiled_call_impl is None:
            self.compile(backend=backend)
        return plain(self, *args, **kwargs)

    models.__call__ = compiled
    torch._dynamo.config.recompile_limit = 64  # tests call one model with inputs of many kinds


def pytest_runtest_teardown() -> None:
    torch._dynamo.reset()
