"""PyTorch's own suite: a test has one name on both devices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ge.conformance.suites.suite import Side
from torchair.conformance import torch_suite


@pytest.mark.parametrize(
    ("cpu", "npu", "name"),
    [
        (
            "test_nn.py::TestNNDeviceTypeCPU::test_pad_cpu_float32",
            "test_nn.py::TestNNDeviceTypePRIVATEUSE1::test_pad_npu_float32",
            "test_nn.py::TestNNDeviceTypeDevice::test_pad_device_float32",
        ),
        (  # the test's own name has a device in it
            "test_nn.py::TestNNDeviceTypeCPU::test_half_cpu_cpu_bfloat16",
            "test_nn.py::TestNNDeviceTypePRIVATEUSE1::test_half_cpu_npu_bfloat16",
            "test_nn.py::TestNNDeviceTypeDevice::test_half_cpu_device_bfloat16",
        ),
        (
            "test_ops.py::TestCommonCPU::test_compare_cpu_norm_cpu",
            "test_ops.py::TestCommonPRIVATEUSE1::test_compare_cpu_norm_privateuse1",
            "test_ops.py::TestCommonDevice::test_compare_cpu_norm_device",
        ),
    ],
)
def test_a_test_has_one_name_on_both_devices(tmp_path: Path, cpu: str, npu: str, name: str) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_nn.py").touch()
    suite = torch_suite.find(tmp_path)
    assert _renamed(cpu, suite.cpu) == name
    assert _renamed(npu, suite.npu) == name


def _renamed(node: str, side: Side) -> str:
    assert re.search(side.only, node)
    for pattern, replacement in side.renames:
        node = re.sub(pattern, replacement, node)
    return node
