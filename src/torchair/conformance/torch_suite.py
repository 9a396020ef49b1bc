"""PyTorch's device-generic tests, instantiated for the npu device; they are in its repository only."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ge.conformance.suites.suite import MissingSuiteError, Side, Suite

__all__ = ["FILES", "VARIABLE", "find"]

VARIABLE = "PYTORCH_SOURCE"
FILES = (
    *("test_view_ops", "test_indexing", "test_reductions", "test_shape_ops", "test_sort_and_select"),
    *("test_type_promotion", "test_binary_ufuncs", "test_unary_ufuncs", "test_tensor_creation_ops"),
    *("test_scatter_gather_ops", "test_torch", "test_nn", "test_autograd", "test_linalg", "test_ops"),
)
# A test for a device has the device's type in its name and in the name of its class. Names such as
# test_activations_bfloat16_half_cpu_npu_bfloat16 name a device twice: the last one is the device of the test.
_CLASS, _TEST = r"(?<=[a-z0-9]){}(?=::)", r"(?<=_){0}(?=(_|$|:\d))(?!.*_{0}(_|$|:\d))"


def find(source: Path | None) -> Suite:
    """The tests of a checkout of the installed version."""
    version = torch.__version__.partition("+")[0]
    named = source or Path(os.environ.get(VARIABLE, ""))
    root = named / "test"
    files = tuple(f"{name}.py" for name in FILES if (root / f"{name}.py").is_file())
    if str(named) == "." or not files:
        raise MissingSuiteError(
            f"PyTorch's tests are in its repository, not in its packages, and "
            f"{'no folder is named' if str(named) == '.' else f'{root} has none of them'}: "
            f"git clone --depth 1 --branch v{version} https://github.com/pytorch/pytorch, then "
            f"--source pytorch or {VARIABLE}=pytorch"
        )
    return Suite(
        name="torch",
        version=version,
        root=root.resolve(),
        files=files,
        cpu=_side("cpu", "cpu", ()),
        npu=_side("privateuse1", "(npu|privateuse1)", ("torch_npu",)),
    )


def _side(device: str, names: str, plugins: tuple[str, ...]) -> Side:
    test, group = _TEST.format(names), _CLASS.format(names.upper())
    return Side(
        environment={"PYTORCH_TESTING_DEVICE_ONLY_FOR": device},
        plugins=plugins,
        renames=((group, "Device"), (test, "device")),
        only=group,
    )
