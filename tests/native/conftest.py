"""What the tests of the runtime share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import npu_runtime as rt
from tests.native.native_support import BF16, HAS_BF16_VECTORS, HAS_VECTORS


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Programs made in a test run on two threads, whatever the machine has."""
    before = rt.num_threads()
    rt.set_num_threads(2)
    yield
    rt.set_num_threads(before)


def _is_bfloat16(parameter: Any) -> bool:
    return parameter == "bfloat16" or (
        isinstance(parameter, (type, np.dtype)) and np.dtype(parameter) == BF16
    )


@pytest.fixture
def own_kernels(request: pytest.FixtureRequest) -> None:
    """Skips a test whose kernels this processor, or NPU_MAX_ISA, does not have for the types among its parameters."""
    if not HAS_VECTORS:
        pytest.skip("these kernels need AVX2")
    parameters = request.node.callspec.params.values() if hasattr(request.node, "callspec") else ()
    if not HAS_BF16_VECTORS and any(_is_bfloat16(p) for p in parameters):
        pytest.skip("for bfloat16 these kernels need AVX-512 with its products")
