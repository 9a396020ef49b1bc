"""`tf-adapter explain`: model files and scripts, with reasons and remedies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ge
from npu_tools.main import main
from npu_tools.outcome import Failure
from npu_tools.scripts import framework_of
from tests.tools.command_line import run_command

TORCH_SCRIPT = """
import sys
import torch
print("arguments", sys.argv[1:])
model = torch.compile(torch.nn.Linear(4, 3).cuda(), backend="npu")
print(model(torch.ones(2, 4, device="cuda")).device)
print(torch.compile(lambda x: torch.fft.fft(x).abs() + x.sin(), backend="npu")(torch.ones(8)).shape)
sys.exit(int(sys.argv[1]))
"""
TENSORFLOW_SCRIPT = """
import tensorflow as tf

@tf.function
def length(x):
    return tf.strings.length(tf.strings.as_string(tf.reduce_sum(tf.nn.relu(x @ x))))

print(int(length(tf.ones([8, 8]))))
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    g = ge.Graph("net")
    x = g.input("x", (4, 5), "float32")
    g.output(ge.ops.softmax(ge.ops.relu(x)), "y")
    return Path(ge.compile(g).save(tmp_path / "net.om"))


def test_a_model_file_is_explained(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json", "--nodes", str(model_file)]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"]
    assert part["npu"] == len(part["nodes"]) == sum(part["engines"].values()) > 0 and part["host"] == []
    assert main(["explain", str(model_file)]) == 0
    assert "nodes on the NPU" in capsys.readouterr().out


def test_what_cannot_be_explained_is_an_error_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / "broken.onnx").write_text("no model")
    for name in ("missing.onnx", "data.csv", "broken.onnx"):
        assert main(["explain", str(tmp_path / name)]) == 3
        assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import tensorflow as tf\ntf.keras.Sequential()", "tensorflow"),
        ("from keras import layers", "tensorflow"),
        ("import tensorflow as tf\ntf.Session()", "tensorflow1"),
        ("import tensorflow.compat.v1 as tf", "tensorflow1"),
        ("from tensorflow.compat import v1 as tf", "tensorflow1"),
        ("from npu_bridge.npu_init import *", "tensorflow1"),
        ("import tensorflow as tf\ntf.compat.v1.Session()", "tensorflow1"),
        ("import tensorflow as flow\nflow.estimator.Estimator(model_fn=f)", "tensorflow1"),
        ("from tensorflow.estimator import Estimator", "tensorflow1"),
        ("import tensorflow as tf\ntf.compat.v1.train.MonitoredTrainingSession()", "tensorflow1"),
        ("import tensorflow as tf\nclass A:\n  def f(self): self.Session", "tensorflow"),
        ("import torch.nn as nn", "torch"),
        ("import numpy", "none"),
    ],
)
def test_the_framework_of_a_script_is_recognised(source: str, framework: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    assert framework_of(script) == framework


def test_a_script_that_is_not_python_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("def broken(:\n")
    with pytest.raises(Failure, match=r"script\.py:1"):
        framework_of(tmp_path / "script.py")


@pytest.mark.slow
def test_a_pytorch_script_is_explained_with_its_arguments_and_status(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TORCH_SCRIPT)
    done = run_command("explain", "--json", script, "5", "--flag", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    data = json.loads(done.stdout)
    assert data["status"] == 5 and "arguments ['5', '--flag']" in done.stderr and "npu:0" in done.stderr
    host = [row for part in data["parts"] for row in part["host"]]
    assert sum(part["npu"] for part in data["parts"]) >= 3
    assert {"aten._fft_r2c.default", "aten.abs.default"} == {row["operator"] for row in host}
    assert all(row["reason"] and row["nodes"] for row in host)


@pytest.mark.slow
def test_a_tensorflow_script_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TENSORFLOW_SCRIPT)
    done = run_command("explain", "--json", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (part,) = json.loads(done.stdout)["parts"]
    host = {row["operator"]: row for row in part["host"]}
    assert {"AsString", "StringLength"} <= set(host) and part["npu"] == 3
    assert host["AsString"]["remedy"] == "process text on the host and feed numbers"
