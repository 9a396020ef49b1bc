"""The stages of an input pipeline: their times add up, and the slow one is named."""

from __future__ import annotations

import time

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from npu_tools.check.observe.input_pipeline import measure  # noqa: E402


def slow(row: object) -> object:
    return tf.numpy_function(lambda r: (time.sleep(0.001), r)[1], [row], tf.float32)


def test_the_slow_stage_before_the_batch_is_named_and_the_stages_add_up() -> None:
    rows = tf.data.Dataset.from_tensor_slices(np.zeros((512, 4), np.float32)).shuffle(64)
    found = measure(rows.map(slow).batch(16).prefetch(2))
    assert found is not None
    seconds = {stage["stage"]: stage["seconds"] for stage in found["stages"]}
    assert list(seconds) == ["TensorSlice", "Shuffle", "Map", "Batch"]
    assert sum(seconds.values()) == pytest.approx(found["seconds"]) and found["seconds"] > 0.016
    assert seconds["Map"] > 0.6 * found["seconds"]


def test_a_source_of_one_element_costs_nothing_and_one_batch_tells_nothing() -> None:
    one = tf.data.Dataset.from_tensors(np.zeros((64, 4), np.float32))
    found = measure(one.unbatch().batch(8))
    assert found is not None and found["stages"][0]["seconds"] == 0
    assert measure(one) is None
