"""The NPU is TensorFlow's default device in these tests alone: elsewhere TensorFlow on the CPU is the oracle."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ["NPU_AS_DEFAULT"] = "0"
import tf_adapter

del os.environ["NPU_AS_DEFAULT"]


@pytest.fixture(autouse=True)
def npu_is_default() -> Iterator[None]:
    tf_adapter.as_default()
    yield
    tf_adapter.as_default(False)
