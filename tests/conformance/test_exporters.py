"""Files of PyTorch's and TensorFlow's exporters with an open batch, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from ge.conformance import exporters
from ge.conformance.__main__ import app

QUICK = ("TorchScript, 9", "TorchScript, 20", "torch.export, 18", "torch.export, 24")


def test_a_network_of_every_exporter_agrees_with_onnx_runtime() -> None:
    import torch

    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.SiLU(),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(5),
    ).eval()
    inputs = (torch.randn(2, 3, 6, 6),)
    network(*inputs)
    found = list(exporters.run_network(network, inputs, list(QUICK)))
    assert found == [(form, "pass", "") for form in QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keras residual", "keras lstm", "bert", "gru"])
def test_networks_of_a_checkout_agree(name: str) -> None:
    result = CliRunner().invoke(app, ["exporters", "--networks", name])
    assert result.exit_code == 0, result.output


def test_a_wrong_result_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(form: str, network: Any, inputs: tuple[Any, ...], path: Path) -> None:
        x = helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["batch", 2])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])
        graph = helper.make_graph([helper.make_node("Neg", ["x0"], ["y"])], "g", [x], [y])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    def doubled(path: Path, feeds: list[exporters.Feeds]) -> tuple[list[str], list[list[np.ndarray]]]:
        return ["x0"], [[-2 * feed["x0"]] for feed in feeds]

    monkeypatch.setattr(exporters, "write", write)
    monkeypatch.setattr(exporters, "_theirs", doubled)
    ((_, outcome, detail),) = exporters.run_network(None, (np.ones((2, 2), np.float32),), ["TorchScript, 9"])
    assert outcome == "wrong" and detail.startswith("differs by")
