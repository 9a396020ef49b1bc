"""oneDNN is this project's own, whatever other oneDNN and OpenMP the process has loaded, before or after."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import npu_runtime as rt

OURS = Path(rt.__file__).parent / "libnpu_dnnl.so"

# A convolution that oneDNN computes on two threads, against NumPy.
CHECK = """
import ge, npu_runtime, numpy as np, onnx
from onnx import helper
def describe(name, *shape):
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
random = np.random.default_rng(0)
x, w = (random.standard_normal(shape, np.float32) for shape in [(2, 16, 20, 20), (32, 16, 5, 5)])
node = helper.make_node("Conv", ["x", "w"], ["y"])
inputs = [describe("x", *x.shape), describe("w", *w.shape)]
graph = helper.make_graph([node], "g", inputs, [describe("y", 2, 32, 16, 16)])
model = ge.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
windows = np.lib.stride_tricks.sliding_window_view(x, (5, 5), (2, 3))
np.testing.assert_allclose(model(x, w), np.einsum("nchwij,kcij->nkhw", windows, w), rtol=1e-4, atol=1e-4)
print("right", npu_runtime.version()["onednn"])
"""

LOAD = """
import ctypes, os
ctypes.CDLL(os.environ["OTHER_ONEDNN"], ctypes.RTLD_GLOBAL)
assert ctypes.CDLL(None).dnnl_version() == 7, "the other library is not the first"
"""


def symbols(*kind: str) -> list[str]:
    """Names of the private copy's dynamic symbols."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--format=posix", *kind, str(OURS)], capture_output=True, text=True, check=True
    )
    return [line.split()[0] for line in listed.stdout.splitlines()]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another oneDNN together with an OpenMP: the same names, whose functions end the process."""
    names = [
        name.removeprefix("npu_") for name in symbols() if re.match("npu_(dnnl_|_ZN4dnnl|GOMP_|omp_)", name)
    ]
    assert {"dnnl_primitive_execute", "GOMP_parallel_start", "omp_get_max_threads"} <= set(names)
    folder = tmp_path_factory.mktemp("other")
    source, library = folder / "other.c", folder / "libdnnl.so.3"
    bodies = [f"void {name}(void) {{ abort(); }}" for name in names if name != "dnnl_version"]
    source.write_text("\n".join(["#include <stdlib.h>", "int dnnl_version(void) { return 7; }", *bodies]))
    command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", "-Wl,-soname,libdnnl.so.3", "-o"]
    subprocess.run([*command, str(library), str(source)], check=True)
    return library


@pytest.mark.parametrize(
    "order",
    [LOAD + CHECK, "import npu_runtime\n" + LOAD + CHECK, CHECK + LOAD + CHECK],
    ids=["before", "after", "between"],
)
def test_another_onednn_in_the_process_changes_nothing(order: str, other: Path) -> None:
    environment = {**os.environ, "OTHER_ONEDNN": str(other), "NPU_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", order], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["right", rt.version()["onednn"]]


def test_every_symbol_of_the_copy_has_the_prefix() -> None:
    assert [name for name in symbols("--defined-only") if not name.startswith("npu_")] == []
    openmp = [name for name in symbols("--undefined-only") if re.match("(GOMP_|omp_|__kmpc_)", name)]
    assert openmp == []


def test_the_copy_needs_no_openmp_library() -> None:
    command = ["readelf", "--dynamic", "--version-info", str(OURS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    dynamic = done.stdout + done.stderr
    assert "Warning" not in dynamic
    assert "libstdc++.so.6" in dynamic
    assert "libgomp" not in dynamic
