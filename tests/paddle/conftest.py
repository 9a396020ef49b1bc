"""The tests of PaddlePaddle's front door run where PaddlePaddle is installed: `make test-paddle`."""

from __future__ import annotations

import pytest

pytest.importorskip("paddle", reason="PaddlePaddle is not installed: make test-paddle")
