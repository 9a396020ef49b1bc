"""`tf-adapter check` of scripts: planted faults are found with their lines; the folder stays as it is."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tools.command_line import ROOT, run_command, run_python
from tests.tools.test_check_units import problems

SCRIPTS = Path(__file__).parent / "scripts"


def checked(
    name: str, folder: Path, *arguments: str, options: tuple[str, ...] = ("--steps", "12")
) -> dict[str, Any]:
    """The report of a check of one of the scripts, run from a folder of its own."""
    script = folder / name
    shutil.copy(SCRIPTS / name, script)
    page = folder.parent / f"{folder.name}-report" / "r.html"
    done = run_command("check", *options, "--output", page, script, *arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(page.with_suffix(".json").read_text())
    assert not report["runs"]["npu"].get("incomplete"), report["runs"]["npu"]
    assert problems(report) == []
    count = len(report["drawing"].get("layers", ()))
    assert bool(count) == bool(report["graph"])
    assert all(0 <= end < count for edge in report["drawing"].get("edges", ()) for end in edge)
    return report


def line(name: str, comment: str) -> str:
    """The line of a script that ends with a comment."""
    lines = (SCRIPTS / name).read_text().splitlines()
    (number,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# {comment}")]
    return f"{name}:{number}"


def found(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(f["id"], f["location"]) for f in report["findings"]}


@pytest.mark.slow
def test_planted_faults_of_a_training_loop_are_found_with_their_lines(tmp_path: Path) -> None:
    name = "planted_tensorflow.py"
    report = checked(name, tmp_path)
    for finding, comment in [
        ("host-operator", "unsupported operator"),
        ("host-round-trip", "host round trip"),
        ("read-in-every-step", "read in every step"),
        ("slow-input", "slow input"),
        ("memory-growth", "leak"),
    ]:
        assert (finding, line(name, comment)) in found(report), (finding, found(report))
    assert report["figures"]["loss_error"] < 1e-4 and len(report["losses"]["npu"]) == 12
    assert report["runs"]["npu"]["stopped"] == "after 12 calls of train_step"
    assert {g["place"] for g in report["graph"]} == {"NPU", "host"}
    assert "FFT" in [layer["name"] for layer in report["drawing"]["layers"] if layer["place"] == "host"]
    assert report["kernels"] and report["timeline"] and report["spent"]["input"] > 0
    assert all("seconds" in row and "plain_seconds" in row for row in report["batches"]), report["batches"]


@pytest.mark.slow
def test_a_keras_script_is_checked_and_its_folder_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    options = ("--steps", "12", "--layers", "--precision-modes", "must_keep_origin_dtype,force_fp16")
    report = checked("classifier.py", tmp_path, "4", options=options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["classifier.py", "notes.txt"]
    assert report["subject"]["arguments"] == ["4"]
    states = {item["item"]: item["state"] for item in report["checklist"]}
    assert states["Every operator runs on the NPU"] == states["The NPU is there"] == "pass"
    assert report["figures"]["output_error"] < 0.01 and report["figures"]["host_operators"] == 0
    assert report["speed"]["npu"]["kind"] == "fit" and report["speed"]["npu"]["steps"] == 12
    kept = report["precision"]["modes"]["must_keep_origin_dtype"]
    assert kept["first_overflow"] is None
    assert "as near to float64 as TensorFlow" in kept["verdict"], kept["verdict"]
    assert sum(row["framework"] is not None for row in kept["layers"]) > len(kept["layers"]) / 2
    sizes = [row["batch"] for row in report["batches"]]  # as many as the time allows
    assert len(sizes) > 1 and sizes == [16, 32, 64, 128][: len(sizes)] and report["largest_batch"] > 128
    convolutions = [row for row in kept["layers"] if row["operator"] == "Conv"]
    assert convolutions[0]["location"] == "classifier.py:14" and convolutions[0]["error"] < 1e-5
    assert any("Gradient" in row["operator"] or "gradient" in row["layer"] for row in kept["layers"])


@pytest.mark.slow
def test_the_guides_own_script_runs_on_both_sides(tmp_path: Path) -> None:
    report = checked("adapted_resnet.py", tmp_path)
    assert report["speed"]["npu"]["kind"] == report["speed"]["plain"]["kind"] == "call"
    assert report["outputs"][0]["shape"] == [1, 10] and report["outputs"][0]["error"] < 0.01
    assert not report["runs"]["npu"]["error"] and not report["runs"]["plain"]["error"]


@pytest.mark.slow
def test_planted_faults_of_a_pytorch_loop_are_found_with_their_lines(tmp_path: Path) -> None:
    name = "planted_torch.py"
    report = checked(name, tmp_path)
    leak = line(name, "leak and read in every step")
    for finding, where in [
        ("host-operator", line(name, "unsupported operator")),
        ("read-in-every-step", leak),
        ("memory-growth", leak),
        ("slow-input", line(name, "slow input")),
    ]:
        assert (finding, where) in found(report), (finding, found(report))
    assert report["figures"]["output_error"] < 1e-4 and report["figures"]["loss_error"] < 1e-4


@pytest.mark.slow
def test_a_script_that_asks_for_overflow_detection_gets_the_layer_and_a_mixlist_that_it_loads(
    tmp_path: Path,
) -> None:
    name, mixlist = "planted_overflow.py", tmp_path.parent / f"{tmp_path.name}-mix.json"
    report = checked(name, tmp_path, options=("--steps", "6", "--mixlist", str(mixlist)))
    assert ("layer-overflow", line(name, "overflows in fp16")) in found(report), found(report)
    assert ("overflow", "") in found(report) and "enable_dump_debug" in report["precision"]["notes"][0]
    assert ("operator-overflow", line(name, "overflows in fp16")) in found(report), found(report)
    flaws = report["dump"]["overflows"]
    assert {(row["node"], row["location"]) for row in flaws} == {
        ("MatMul_1", line(name, "overflows in fp16"))
    }
    assert {row["step"] for row in flaws} == set(range(6)) and report["dump"]["tensors"][0]["not_finite"] == 0
    kept = report["precision"]["modes"]["must_keep_origin_dtype"]
    assert "as near to float64 as TensorFlow" in kept["verdict"] and kept["layers"][0]["framework"] < 1e-6
    assert report["mixlist"]["mode"] == "force_fp16" and report["mixlist"]["error"] < 0.01
    assert json.loads(mixlist.read_text())["black-list"]["to-add"] == ["MatMul_1", "MatMul_2"]
    assert "finite: False" in run_python(str(SCRIPTS / name), cwd=tmp_path)
    assert "finite: True" in run_python(str(SCRIPTS / name), str(mixlist), cwd=tmp_path)


@pytest.mark.slow
def test_layers_of_a_pytorch_module_beside_pytorch(tmp_path: Path) -> None:
    name = "planted_overflow_torch.py"
    report = checked(name, tmp_path, options=("--steps", "6", "--layers"))
    assert ("layer-overflow", line(name, "overflows in fp16")) in found(report), found(report)
    kept = report["precision"]["modes"]["must_keep_origin_dtype"]
    assert "as near to float64 as PyTorch" in kept["verdict"] and report["kernels"] and report["timeline"]
    assert [row["batch"] for row in report["batches"]] == [4, 8, 16, 32]
    assert all(row["seconds"] > 0 and row["plain_seconds"] > 0 for row in report["batches"])
    rows = {row["operator"]: row["count"] for row in report["operators"]}
    assert rows["aten.addmm.default"] == 3


@pytest.mark.slow
def test_a_training_that_no_two_runs_repeat_is_called_unstable(tmp_path: Path) -> None:
    report = checked("unstable.py", tmp_path, options=("--steps", "30"))
    assert [f["id"] for f in report["findings"] if f["id"].startswith("loss")] == ["loss-unstable"]
    assert report["figures"]["framework_loss_error"] > 0.05 and report["figures"]["output_error"] < 1e-4


@pytest.mark.slow
def test_a_session_of_tensorflow_1_is_checked(tmp_path: Path) -> None:
    name = "sessions.py"
    report = checked(
        name, tmp_path, options=("--steps", "12", "--layers", "--precision-modes", "must_keep_origin_dtype")
    )
    assert ("host-round-trip", line(name, "host round trip")) in found(report), found(report)
    assert report["speed"]["npu"]["kind"] == "session" and report["figures"]["loss_error"] < 1e-4
    assert [i["state"] for i in report["checklist"] if "loss" in i["item"]] == ["pass"]
    spent = report["spent"]
    assert spent["host"] > 0 and spent["NPU"] + spent["host"] + spent["between"] <= spent["total"] * 1.001
    layers = report["precision"]["modes"]["must_keep_origin_dtype"]["layers"]
    theirs = {row["layer"]: row["framework"] for row in layers if row["framework"] is not None}
    assert {"MatMul", "Mean", "gradients/MatMul_grad/MatMul_1"} <= theirs.keys() and max(
        theirs.values()
    ) < 1e-5
    assert report["precision"]["notes"] == []
    assert [row["batch"] for row in report["batches"] if row.get("seconds")] == [16, 32, 64, 128]
    assert report["batch_trial"]["rows"][-1].get("seconds"), report["batch_trial"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_an_interrupted_check_leaves_a_partial_report(tmp_path: Path) -> None:
    script, page = tmp_path / "endless.py", tmp_path / "r.html"
    script.write_text(
        "import pathlib, sys, time\nimport torch\nnet = torch.nn.Linear(4, 4)\n"
        "while True:\n    net(torch.ones(2, 4))\n    pathlib.Path(sys.argv[1]).touch()\n    time.sleep(0.05)\n"
    )
    seen = tmp_path / "seen"
    process = subprocess.Popen(
        [sys.executable, "-m", "npu_tools", "check", "--steps", "100000", "--output", page, script, seen],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a parent may ignore it
    )
    try:
        until = time.monotonic() + 300
        while not seen.exists() and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    finally:
        process.kill()
        process.wait()
    report = json.loads(page.with_suffix(".json").read_text())
    assert report["complete"] is False and report["speed"]["plain"]["steps"] >= 1
    assert "Interrupted" in page.read_text()


@pytest.mark.slow
def test_steps_on_several_npus_are_measured(tmp_path: Path) -> None:
    report = checked("mirrored.py", tmp_path, options=("--steps", "6", "--npus", "1,2"))
    one, two = report["scaling"]
    assert (one["npus"], two["npus"]) == (1, 2) and one["speedup"] == 1
    assert two["speedup"] == pytest.approx(one["step_seconds"] / two["step_seconds"])
    assert report["figures"]["loss_error"] < 1e-5
    (item,) = [item for item in report["checklist"] if "NPUs" in item["item"]]
    assert "2 NPUs" in item["evidence"], item
