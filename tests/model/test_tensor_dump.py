"""Dumps of tensors and the detection of overflows: files, tables, steps, loops, weights that are only known packed."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ge
from ge import tensor_dump
from ge.options.table import tell_once


@pytest.fixture(autouse=True)
def no_dump_afterwards() -> Iterator[None]:
    tell_once.cache_clear()
    yield
    tensor_dump.apply({})


def network(width: int = 8, scale: float = 1.0) -> ge.Model:
    g = ge.Graph("net")
    x = g.input("x", (4, width), "float32")
    weights = np.full((width, width), scale, np.float32)
    g.output(ge.ops.softmax(ge.ops.relu(ge.ops.matmul(x, weights))), "y")
    return ge.compile(g, name="net")


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def start(folder: Path, **options: Any) -> None:
    tensor_dump.apply({"dump_path": folder, **options})


def test_every_operator_writes_what_it_reads_and_makes(tmp_path: Path) -> None:
    model, x = network(), np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    start(tmp_path, enable_dump=True, dump_mode="all")
    y = model(x)
    (step,) = tmp_path.glob("*/0/net/*/0")
    rows = table(step / "tensors.csv")
    files = {row["file"]: np.load(step / row["file"]) for row in rows}
    assert len(files) == len(rows) == sum(len(t.inputs) + len(t.outputs) for t in model.plan.tasks)
    (first,) = [r for r in rows if r["task"] == "0" and (r["side"], r["index"]) == ("input", "0")]
    np.testing.assert_array_equal(files[first["file"]], x)
    last = [r for r in rows if r["side"] == "output"][-1]
    np.testing.assert_array_equal(files[last["file"]], y)
    assert float(last["greatest"]) == y.max() and last["not_finite"] == "0"
    for row in rows:  # in place: what was read is what was there before the task ran
        assert float(row["least"]) == files[row["file"]].min()


@pytest.mark.parametrize(
    ("options", "steps", "files"),
    [
        ({}, {"0", "1", "2", "3"}, 4),
        ({"dump_step": "1|3"}, {"1", "3"}, 2),
        ({"dump_step": "1-2", "dump_data": "stats"}, {"1", "2"}, 0),
        ({"dump_layer": "nothing"}, set(), 0),
    ],
)
def test_steps_layers_and_statistics(
    tmp_path: Path, options: dict[str, Any], steps: set[str], files: int
) -> None:
    model = network()
    start(tmp_path, enable_dump=True, **options)
    for _ in range(4):
        model(np.ones((4, 8), np.float32))
    assert {path.name for path in tmp_path.glob("*/0/net/*/*")} == steps
    assert len(list(tmp_path.rglob("*.npy"))) == files * len(model.plan.tasks)


def test_a_layer_is_chosen_by_any_node_that_its_task_stands_for(tmp_path: Path) -> None:
    model = network()
    origin = next(task.origin[-1] for task in model.plan.tasks if task.origin)
    start(tmp_path, enable_dump=True, dump_layer=f"other {origin}")
    model(np.ones((4, 8), np.float32))
    (path,) = tmp_path.rglob("tensors.csv")
    assert all(origin in row["origin"].split() for row in table(path))


def test_nothing_is_written_once_the_dump_has_ended(tmp_path: Path) -> None:
    model = network()
    start(tmp_path, enable_dump=True)
    tensor_dump.apply({})
    model(np.ones((4, 8), np.float32))
    assert not list(tmp_path.iterdir())


def test_an_operator_that_overflows_is_named_and_its_tensors_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = network(scale=1e38)
    start(tmp_path, enable_dump_debug=True)
    model(np.zeros((4, 8), np.float32))
    assert not tensor_dump.overflows() and not list(tmp_path.iterdir())
    for _ in range(2):
        model(np.full((4, 8), 1e5, np.float32))
    first, second = tensor_dump.overflows()
    assert (first.step, second.step, first.not_finite, first.size) == (1, 2, 32, 32)
    assert "MatMul" in first.operators and first.largest_input == np.float32(1e38)
    assert len(caplog.messages) == 1 and first.node in caplog.messages[0] and "float32" in caplog.messages[0]
    (flaws,) = tmp_path.glob("*/overflow.csv")
    assert [row["node"] for row in table(flaws)] == [first.node] * 2
    assert len(list(tmp_path.rglob("*.npy"))) == 6  # two inputs and the output, twice


def test_what_reads_an_overflow_and_masks_of_infinity_have_not_overflowed(tmp_path: Path) -> None:
    g = ge.Graph("masked")
    x = g.input("x", (2, 4), "float32")
    mask = np.array([0, 0, -np.inf, -np.inf], np.float32)
    g.output(ge.ops.softmax(ge.ops.add(x, mask)), "y")
    model = ge.compile(g)
    start(tmp_path, enable_dump_debug=True)
    model(np.ones((2, 4), np.float32))
    model(np.full((2, 4), np.inf, np.float32))
    assert not tensor_dump.overflows()


def test_a_task_inside_of_a_loop_is_written_in_each_turn(tmp_path: Path) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("MatMul", ["state", "w"], ["next"], name="inner"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 2]),
        ],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 2]),
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
        [onnx.numpy_helper.from_array(2 * np.eye(2, dtype=np.float32), "w")],
    )
    model = ge.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    start(tmp_path, enable_dump=True)
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(model(x, np.int64(3)), 8 * x)
    turns = sorted(tmp_path.rglob("MatMul*.output.0.npy"), key=lambda path: int(path.name.split(".")[3]))
    assert [float(np.load(path).max()) for path in turns] == [2, 4, 8]


def test_weights_that_only_their_packed_form_is_kept_of_are_not_written_as_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path / "cache"))
    x = np.ones((4, 64), np.float32)
    model = network(64)
    model(x)
    again = network(64)
    start(tmp_path / "out", enable_dump=True, dump_mode="all")
    again(x)
    (path,) = (tmp_path / "out").rglob("tensors.csv")
    weights = [row for row in table(path) if row["shape"] == "64x64"]
    assert weights and all(row["least"] in ("", "1.0") for row in weights)
    assert again.unknown_constants or all(row["file"] for row in weights)


def test_a_folder_that_cannot_be_written_does_not_fail_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    model = network()
    start(tmp_path / "file", enable_dump=True)
    assert model(np.ones((4, 8), np.float32)).shape == (4, 8)
    assert len(caplog.messages) == 1 and "dump_path" in caplog.messages[0]
