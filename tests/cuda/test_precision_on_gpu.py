"""The tests of precision modes on a GPU instead of the simulation."""

from __future__ import annotations

from tests.cuda.test_on_gpu import pytestmark  # noqa: F401
from tests.model.test_cuda_precision import *  # noqa: F403
