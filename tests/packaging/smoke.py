"""Runs a door of installed wheels on a small network: ``python -I smoke.py PREFIX engine|ascend|tensorflow|torch``.

Uses nothing but installed packages. PREFIX is the environment that the project's packages must come from. A door whose
framework is absent says so and is left out. Names of the Ascend ecosystem are tried where they are installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ENGINE = ("ge", "tbe", "npu_runtime")
ASCEND = ("acl", "te", "topi", "impl", "hccl")
DOORS = {"tensorflow": ("tf_adapter", "npu_device", "npu_bridge"), "torch": ("torchair", "torch_npu")}
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 2, 2)


def network(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Writes a convolution with Relu and a softmax over channels; returns what it computes."""
    from onnx import TensorProto, helper, numpy_helper, save

    weights = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=1),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 3, 2, 2]), ("y", [2, 4, 2, 2]))
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)

    def wanted(x: np.ndarray) -> np.ndarray:
        e = np.exp(np.maximum(np.einsum("oi,bihw->bohw", weights[:, :, 0, 0], x), 0))
        return e / e.sum(axis=1, keepdims=True)

    return wanted


def check(found: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-6)


def come_from(prefix: Path, names: Sequence[str]) -> None:
    """Packages come from the environment."""
    for name in names:
        place = Path(importlib.import_module(name).__file__ or "")
        assert prefix in place.parents, f"{name} comes from {place}, not from {prefix}"


def installed(names: Sequence[str]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is not None]


def engine(prefix: Path, folder: Path) -> None:
    """A model compiles, is written, read and run; `atc` is a command."""
    come_from(prefix, ENGINE)
    import ge

    source, compiled = folder / "net.onnx", folder / "net.om"
    wanted = network(source)(X)
    model = ge.compile(str(source))
    check(model(X), wanted)
    model.save(str(compiled))
    check(ge.load(str(compiled))(X), wanted)
    atc = [str(Path(sysconfig.get_path("scripts")) / "atc"), f"--model={source}", "--framework=5"]
    subprocess.run(
        [*atc, f"--output={folder / 'atc'}", "--soc_version=cpu"], check=True, stdout=subprocess.DEVNULL
    )
    check(ge.load(str(folder / "atc.om"))(X), wanted)


def ascend(prefix: Path, folder: Path) -> None:
    """pyACL runs a compiled model; an operator file runs."""
    come_from(prefix, ASCEND)
    import acl
    import ge

    wanted = network(folder / "net.onnx")(X)
    ge.compile(str(folder / "net.onnx")).save(str(folder / "net.om"))
    check(acl.Model(str(folder / "net.om"))(X), wanted)
    operators()


def operators() -> None:
    """An operator file of the vector language."""
    import tbe
    from te import tvm
    from te.lang import cce

    def doubled(x: dict[str, Any], y: dict[str, Any], kernel_name: str = "doubled") -> None:
        data = tvm.placeholder(x["shape"], name="data", dtype=x["dtype"])
        result = cce.vmuls(data, 2.0)
        with tvm.target.cce():
            schedule = cce.auto_schedule(result)
        cce.cce_build_code(schedule, {"name": kernel_name, "tensor_list": [data, result]})

    check(tbe.run_operator(doubled, X), 2 * X)


def tensorflow() -> None:
    import tensorflow as tf

    import tf_adapter

    if installed(["npu_device"]):
        assert importlib.import_module("npu_device").open() is not None
    call = tf.function(lambda x: tf.nn.softmax(tf.nn.relu(x), axis=1))
    result = call(tf.constant(X))
    assert "NPU" in result.device, result.device
    e = np.exp(np.maximum(X, 0))
    check(result.numpy(), e / e.sum(axis=1, keepdims=True))
    assert tf_adapter.is_default()


def torch() -> None:
    import torch

    import torchair

    e = np.exp(np.maximum(X, 0))
    call = torch.compile(lambda x: torch.softmax(torch.relu(x), 1), backend=torchair.get_npu_backend())
    check(call(torch.from_numpy(X)), e / e.sum(axis=1, keepdims=True))
    if not installed(["torch_npu"]):
        return
    import torch_npu

    moved = torch.from_numpy(X).npu()
    assert torch_npu.is_npu(moved) and moved.device.type == "npu"
    check((moved * 2).cpu(), 2 * X)


def main(prefix: Path, door: str) -> None:
    if door in ("engine", "ascend"):
        with tempfile.TemporaryDirectory() as folder:
            {"engine": engine, "ascend": ascend}[door](prefix, Path(folder))
        print(f"{', '.join(ENGINE if door == 'engine' else ASCEND)}: ok")
    elif importlib.util.find_spec(door) is None:
        print(f"{', '.join(DOORS[door])}: left out, {door} is not installed")
    else:
        {"tensorflow": tensorflow, "torch": torch}[door]()
        print(f"{', '.join(installed(DOORS[door]))}: ok")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
