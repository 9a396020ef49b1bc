"""The tests of TensorFlow on a GPU instead of the simulation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda.test_on_gpu import _architecture

if not _architecture():
    pytest.skip("this machine has no GPU", allow_module_level=True)
pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

from tests.tensorflow.conftest import npu_is_default  # noqa: F401
from tests.tensorflow.test_cuda_device import *  # noqa: F403


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The real driver."""
    from npu_runtime import tensorflow as native

    monkeypatch.setenv("NPU_DEVICE", "cuda")
    yield
    native.forget_all()
