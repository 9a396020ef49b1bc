"""Profiling writes when calls ran, how long they took, and the tasks of what was compiled."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import npu_device
import tf_adapter
from tests.tensorflow.comparing import same


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_calls_and_tasks_are_written(tmp_path: Path) -> None:
    v = tf.Variable(tf.zeros([4]))

    @tf.function
    def on_npu(x: Any) -> Any:
        v.assign_add(tf.reduce_sum(x, 0))
        return tf.linalg.matmul(x, x) + tf.random.uniform([4])

    @tf.function
    def on_host(x: Any) -> Any:
        return tf.py_function(lambda a: a + 1.0, [x], tf.float32)

    x = tf.ones([4, 4])
    on_npu(x)
    with tf_adapter.options.override(profiling=True, profiling_dir=tmp_path):
        for _ in range(3):
            on_npu(x)
            on_host(x)
    on_npu(x)
    np.testing.assert_array_equal(v.numpy(), np.full(4, 20.0, np.float32))
    names = {"on_npu", "on_host"}
    rows = {n: row for row in _rows(tmp_path / "summary.csv") for n in names if n in row["function"]}
    assert (rows["on_npu"]["place"], rows["on_npu"]["calls"]) == ("NPU", "3")
    assert (rows["on_host"]["place"], rows["on_host"]["calls"]) == ("host", "3")
    for row in rows.values():
        assert 0 < float(row["least ms"]) <= float(row["median ms"]) <= float(row["most ms"])
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and "on_npu" in e["name"]]
    assert len(spans) == 3
    assert all(e["dur"] > 0 and e["cat"] == "NPU" for e in spans)
    (tasks,) = (tmp_path / "tasks").glob("*on_npu*.csv")
    assert any("MatMul" in row["name"] and float(row["us"]) > 0 for row in _rows(tasks))
    assert json.loads(tasks.with_suffix(".json").read_text())["traceEvents"]


def test_the_option_tree_says_where(tmp_path: Path) -> None:
    config = npu_device.global_options().profiling_config
    before = tf_adapter.options.profiling_dir
    function = tf.function(lambda x: x * 2.0 + 1.0)
    try:
        config.profiling_options = json.dumps({"output": str(tmp_path), "task_trace": "on"})
        config.enable_profiling = True
        function(tf.ones([3]))
    finally:
        config.enable_profiling = False
        tf_adapter.options.profiling_dir = before
    assert len(_rows(tmp_path / "summary.csv")) == 1
    with pytest.raises(ValueError, match="not valid JSON"):
        config.profiling_options = "{"


def test_the_environment_turns_it_on_and_the_end_of_the_program_writes(tmp_path: Path) -> None:
    code = """
        import tensorflow as tf, tf_adapter
        f = tf.function(lambda x: tf.nn.softmax(x))
        f(tf.ones([2, 3]))
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "NPU_PROFILING": "1", "NPU_PROFILING_DIR": str(tmp_path / "profile")},
        capture_output=True,
        check=True,
        timeout=900,
    )
    assert _rows(tmp_path / "profile" / "summary.csv")
    assert list((tmp_path / "profile" / "tasks").glob("*.csv"))


def test_a_product_added_to_a_variable_is_written_in_place() -> None:
    v = tf.Variable(tf.ones([64, 64]))
    ran = same(lambda x: v.assign_add(tf.matmul(x, x)), tf.eye(64) * 2.0, variables=[v])
    assert ran.wholly
