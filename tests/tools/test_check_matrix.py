"""The check of many scripts and model files: each statement of its report is held against what is known of them.

`make check-matrix` runs it; it takes about six minutes on two cores.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.command_line import ROOT, run_command
from tests.tools.test_check_files import chain, overflowing
from tests.tools.test_check_scripts import SCRIPTS

pytestmark = pytest.mark.exhaustive

GUIDE = ["original_resnet.py", "adapted_resnet.py"]
KERAS = sorted(p.name for p in (SCRIPTS / "keras").glob("*.py"))
VERSION1 = sorted(p.name for p in (SCRIPTS / "tensorflow1").glob("*.py"))
TORCH = sorted(p.name for p in (SCRIPTS / "torch").glob("*.py"))
LISTED = [*GUIDE, *(f"keras/{n}" for n in KERAS), *(f"tensorflow1/{n}" for n in VERSION1),
          *(f"torch/{n}" for n in TORCH)]  # fmt: skip


def test_there_are_as_many_as_promised() -> None:
    assert (len(GUIDE), len(KERAS), len(VERSION1), len(TORCH), len(FILES)) == (2, 10, 3, 3, 5)


@pytest.mark.parametrize("name", LISTED)
def test_a_script(name: str, tmp_path: Path) -> None:
    layers = () if "resnet" in name else ("--layers", "--precision-modes", "must_keep_origin_dtype")
    page = tmp_path / "r.html"
    done = run_command("check", "--steps", "8", *layers, "--output", page, SCRIPTS / name, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(page.with_suffix(".json").read_text())
    verify(report)
    source = (SCRIPTS / name).read_text().splitlines()
    for place in locations(report):
        file, _, number = place.rpartition(":")
        assert file.endswith(name) and source[int(number) - 1].strip(), place
    if layers:
        verify_layers(report, "PyTorch" if name.startswith("torch") else "TensorFlow")
    if name.startswith(("keras/", "tensorflow1/")):
        assert len(report["losses"]["npu"]) == len(report["losses"]["plain"]) == 8
        assert report["figures"]["loss_error"] < 1e-3
    if "resnet" not in name and "monitored" not in name:
        verify_batches(report)


def locations(report: dict[str, Any]) -> set[str]:
    """Every line that a report names."""
    found = {f["location"] for f in report["findings"]}
    found |= {line for row in report["operators"] for line in row["locations"]}
    found |= {stage["location"] for pipeline in report["pipelines"] for stage in pipeline["stages"]}
    found |= {
        row["location"] for data in report["precision"].get("modes", {}).values() for row in data["layers"]
    }
    return found - {""}


def verify(report: dict[str, Any]) -> None:
    """Statements that hold for a script or file without faults, each against the data that it is made of."""
    runs, figures = report["runs"], report["figures"]
    assert not runs["npu"]["error"] and not runs["plain"].get("error"), runs
    assert not runs["npu"].get("incomplete"), runs["npu"]
    assert not [f for f in report["findings"] if f["level"] == "error"], report["findings"]
    states = {item["item"]: item["state"] for item in report["checklist"]}
    assert states["The NPU is there"] == "pass"
    compiled = [row for row in report["operators"] if not row["eager"]]
    assert sum(row["count"] for row in compiled) >= figures["operators"]
    if compiled:
        assert (states["Every operator runs on the NPU"] == "pass") == (figures["host_operators"] == 0)
        assert figures["operators"] > 0
    for row in report["outputs"]:
        assert row["error"] < 0.01 and not row["not_finite"], row
    for side in ("plain", "npu"):
        if not report["speed"].get(side, {}).get("steps"):
            continue
        times = report["speed"][side]["milliseconds"]
        later = times[1:][len(times[1:]) // 2 :] or times
        assert report["speed"][side]["step_seconds"] == pytest.approx(statistics.median(later) / 1e3, rel=0.2)
        assert report["memory"][side]["peak"] > 10 << 20
    spent = report["spent"]
    if spent.get("total"):
        parts = spent["NPU"] + spent["input"] + spent["host"] + spent["between"]
        assert parts <= 1.2 * spent["total"], spent
    assert report["kernels"] and all(k["seconds"] > 0 and k["calls"] > 0 for k in report["kernels"])
    assert "memory-growth" not in {f["id"] for f in report["findings"]}, report["findings"]
    assert report["environment"]["tf-adapter"]


def verify_layers(report: dict[str, Any], framework: str) -> None:
    """Layers of a network that is stable: the NPU is as near to float64 as the framework."""
    kept = report["precision"]["modes"]["must_keep_origin_dtype"]
    assert report["precision"]["framework"].startswith(framework)
    assert "as near to float64 as" in kept["verdict"] and kept["first_overflow"] is None, kept["verdict"]
    assert any(row["framework"] is not None for row in kept["layers"]), report["precision"]["notes"]
    assert max(row["error"] for row in kept["layers"]) == kept["worst"]
    # The gradient of a bias before a normalisation is 0: its relative error means nothing, in float32 either.
    assert max(row["error"] for row in kept["layers"] if row["reference"] < 1e-3) < 1e-2


def verify_trial(report: dict[str, Any]) -> None:
    """The largest batch was tried where it could be computed."""
    trial = report["batch_trial"]
    if trial:
        assert any("seconds" in row for row in trial["rows"]) and "tried" in trial["text"], trial
        assert report["largest_batch"] >= max(row["batch"] for row in trial["rows"] if "seconds" in row)


def verify_batches(report: dict[str, Any]) -> None:
    rows = report["batches"]  # as many as the time allows
    assert rows and all(math.isfinite(row["seconds"]) for row in rows if "refused" not in row), rows
    sizes = [row["arena"] for row in rows if "arena" in row]
    assert max(sizes, default=0) == (sizes[-1] if sizes else 0), "neighbours may be planned in other ways"
    verify_trial(report)


# -- model files --------------------------------------------------------------------------------------------------


def _onnx_products(folder: Path) -> Path:
    return chain(folder / "chain.onnx", [0.2, 0.2, 0.2])


def _onnx_scaled(folder: Path) -> Path:
    return overflowing(folder / "net.onnx")


def _offline(folder: Path) -> Path:
    import ge
    from ge.options import CompileOptions

    model = ge.compile(_onnx_products(folder), CompileOptions(input_shapes={"x": (4, 32)}))
    model.save(folder / "chain.om")
    return folder / "chain.om"


def _saved_model(folder: Path) -> Path:
    import tensorflow as tf

    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(np.random.default_rng(0).standard_normal((8, 3)).astype("float32"))

        @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32)])
        def __call__(self, x: Any) -> dict[str, Any]:
            return {"y": tf.nn.softmax(tf.matmul(x, self.w))}

    net = Net()
    tf.saved_model.save(net, str(folder / "saved"), signatures={"serving_default": net.__call__})
    return folder / "saved"


def _frozen(folder: Path) -> Path:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [1, 6, 6, 2], name="x")
        weights = np.random.default_rng(0).standard_normal((3, 3, 2, 4)).astype("float32")
        tf.nn.relu(tf.nn.conv2d(x, weights, 1, "SAME", name="conv"), name="y")
    (folder / "net.pb").write_bytes(graph.as_graph_def().SerializeToString())
    return folder / "net.pb"


FILES = {
    "products": _onnx_products,
    "scaled": _onnx_scaled,
    "offline": _offline,
    "saved_model": _saved_model,
    "frozen": _frozen,
}


@pytest.mark.parametrize("name", FILES)
def test_a_model_file(name: str, tmp_path: Path) -> None:
    page, file = tmp_path / "r.html", FILES[name](tmp_path)
    done = run_command("check", "--steps", "8", "--layers", "--output", page, file)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(page.with_suffix(".json").read_text())
    verify(report)
    if name == "offline":  # a compiled model: nothing else runs it, and its layers are fused
        assert report["runs"]["plain"]["no_reference"] and not report["precision"]["modes"]
        assert "compiled from" in report["precision"]["verdict"]
        assert len(report["drawing"]["layers"]) == 3 and report["drawing"]["edges"] == [[0, 1], [1, 2]]
        return
    verify_layers(report, "TensorFlow" if name in ("saved_model", "frozen") else "")
    kept = report["precision"]["modes"]["must_keep_origin_dtype"]["layers"]
    assert any(row["framework"] is not None for row in kept), report["precision"]["notes"]
    assert report["runs"]["plain"]["reference"]
    if name != "frozen":  # its batch is fixed
        verify_batches(report)
        assert len(report["batches"]) < 2 or report["largest_batch"] > 32
