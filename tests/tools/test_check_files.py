"""`tf-adapter check` of model files: both runs, layers, the mixlist, an operator that nothing maps, exit statuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ge
from npu_tools.check.drawing import of_plan
from tests.tools.command_line import run_command
from tests.tools.test_check_units import problems


def save(path: Path, nodes: list[Any], shapes: dict[str, list[Any]], weights: dict[str, np.ndarray]) -> Path:
    """An ONNX file; the first name of `shapes` is the input, the last one the output."""
    ports = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("user", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def overflowing(path: Path) -> Path:
    """A network whose middle product exceeds float16."""
    source = np.random.default_rng(0)
    weights = {
        "w1": source.standard_normal((32, 64)).astype(np.float32),
        "w2": (source.standard_normal((64, 64)) * 9000).astype(np.float32),
        "w3": (source.standard_normal((64, 8)) * 1e-5).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="huge"),
        helper.make_node("MatMul", ["c", "w3"], ["y"], name="last"),
    ]
    return save(path, nodes, {"x": ["N", 32], "y": ["N", 8]}, weights)


def chain(path: Path, scales: Sequence[float]) -> Path:
    """Products one after another with these scales of their weights."""
    source = np.random.default_rng(0)
    weights, nodes = {}, []
    for number, scale in enumerate(scales):
        weights[f"w{number}"] = (source.standard_normal((32, 32)) * scale).astype(np.float32)
        read = "x" if not number else f"y{number - 1}"
        nodes += [
            helper.make_node("MatMul", [read, f"w{number}"], [f"p{number}"], name=f"product{number}"),
            helper.make_node("Relu", [f"p{number}"], [f"y{number}"], name=f"relu{number}"),
        ]
    return save(path, nodes, {"x": ["N", 32], f"y{len(scales) - 1}": ["N", 32]}, weights)


def test_a_layer_that_overflows_is_named_and_a_mixlist_mends_it(tmp_path: Path) -> None:
    model, page, mixlist = (
        overflowing(tmp_path / "net.onnx"),
        tmp_path / "out" / "r.html",
        tmp_path / "mix.json",
    )
    done = run_command(
        *(
            "check",
            "--layers",
            "--precision-modes",
            "must_keep_origin_dtype,force_fp16",
            "--mixlist",
            mixlist,
        ),
        *("--output", page, "--steps", 5, "--batches", "1,4", "--fail-on", "error", model),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(page.with_suffix(".json").read_text())
    assert problems(report) == []
    (finding,) = [f for f in report["findings"] if f["id"] == "layer-overflow"]
    assert "huge" in finding["title"] and "force_fp16" in finding["title"]
    kept = report["precision"]["modes"]["must_keep_origin_dtype"]
    assert kept["first_departing"] is None and "as near to float64" in kept["verdict"]
    drawn = report["drawing"]
    assert [layer["name"] for layer in drawn["layers"]] == ["first", "relu", "huge", "last"]
    assert drawn["edges"] == [[0, 1], [1, 2], [2, 3]]
    assert [row["layer"] for row in kept["layers"]] == ["first", "relu", "huge", "last"]
    assert max(row["error"] for row in kept["layers"]) < 1e-5
    assert report["outputs"][0]["error"] < 1e-5 and report["runs"]["plain"]["reference"]
    assert (
        0 < report["outputs"][0]["npu_to_float64"] < 1e-5
        and report["outputs"][0]["framework_to_float64"] < 1e-5
    )
    assert [row["batch"] for row in report["batches"]] == [1, 4] and report["largest_batch"] > 1000
    assert {item["state"] for item in report["checklist"][:3]} == {"pass"}
    listed = json.loads(mixlist.read_text())["black-list"]["to-add"]
    assert "huge" in listed and "first" not in listed
    x = np.random.default_rng(1).standard_normal((1, 32)).astype(np.float32)
    exact = ge.compile(model)(x)
    shape = {"input_shapes": {"x": (1, 32)}}
    lowered = ge.CompileOptions(precision_mode="force_fp16", **shape)
    mended = ge.CompileOptions(
        precision_mode="force_fp16", op_precision=dict.fromkeys(listed, "must_keep_origin_dtype"), **shape
    )
    assert not np.isfinite(ge.compile(model, lowered)(x)).all()
    np.testing.assert_allclose(ge.compile(model, mended)(x), exact, rtol=0.05, atol=0.1)


def test_a_compiled_model_is_drawn_by_its_tasks(tmp_path: Path) -> None:
    source = chain(tmp_path / "net.onnx", [1.0, 1.0, 1.0])
    saved = ge.compile(source, ge.CompileOptions(input_shapes={"x": (4, 32)})).save(tmp_path / "net.om")
    drawn = of_plan(ge.load(saved).plan)
    assert [layer["name"] for layer in drawn["layers"]] == ["relu0", "relu1", "relu2"]
    assert drawn["edges"] == [[0, 1], [1, 2]] and {layer["engine"] for layer in drawn["layers"]} == {
        "AI Core"
    }


def test_an_operator_that_nothing_maps_fails_the_check(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["a"], name="frob", domain="user"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    model, page = save(tmp_path / "bad.onnx", nodes, {"x": [2, 3], "y": [2, 3]}, {}), tmp_path / "r.html"
    done = run_command("check", "--output", page, "--fail-on", "unsupported-operator", model)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(page.with_suffix(".json").read_text())
    (finding,) = [f for f in report["findings"] if f["id"] == "unsupported-operator"]
    assert "Frobnicate" in finding["title"] and "frob" in finding["detail"] and finding["remedy"]
    again = run_command(
        "check", "--output", tmp_path / "s.html", "--compare", page.with_suffix(".json"), model
    )
    assert again.returncode == 0
    assert json.loads((tmp_path / "s.json").read_text())["changes"]["new_findings"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.onnx"], "there is no file"),
        (["--fail-on", "speed<1", "net.onnx"], "there is no figure"),
        (["net.onnx", "--steps", "3"], "takes no arguments"),
        (["--npus", "one", "net.onnx"], "whole numbers"),
        (["--output", "report.txt", "net.onnx"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(tmp_path: Path, arguments: list[str], words: str) -> None:
    from npu_tools.check import command
    from npu_tools.outcome import Failure

    overflowing(tmp_path / "net.onnx")
    given = [str(tmp_path / a) if a.endswith((".onnx", ".txt")) else a for a in arguments]
    with pytest.raises(Failure, match=words):
        command.app(given, standalone_mode=False)
