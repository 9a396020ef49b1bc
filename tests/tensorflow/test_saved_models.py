"""SavedModels with text, tables, ragged and sparse inputs, compiled as files and compared with TensorFlow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import ge
from ge.errors import GeError
from tf_adapter.conformance.saved_models import SAMPLES, compare


@pytest.mark.parametrize("name", SAMPLES)
def test_a_signature_gives_what_tensorflow_gives(name: str) -> None:
    for outcome in compare(name):
        assert outcome.status == "pass", f"{outcome.signature}: {outcome.detail}"


def _saved(path: Path, function: object, **parts: object) -> str:
    module = tf.Module()
    for name, part in parts.items():
        setattr(module, name, part)
    with tf.device("/CPU:0"):
        tf.saved_model.save(module, str(path / "model"), signatures={"serve": function})
    return str(path / "model")


def test_text_operators_without_a_function_on_the_host_are_named(tmp_path: Path) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")])
    def script(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.strings.unicode_script(tf.strings.unicode_decode(x, "UTF-8").flat_values)}

    with pytest.raises(GeError, match="UnicodeScript"):
        ge.compile(_saved(tmp_path, script))


def test_malformed_text_is_an_error_of_the_data(tmp_path: Path) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")])
    def number(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.strings.to_number(x) * 2.0}

    model = ge.compile(_saved(tmp_path, number))
    np.testing.assert_array_equal(model(np.array(["1.5", "2"])), [3, 4])
    with pytest.raises(GeError, match="not a valid number"):
        model(np.array([b"one"], object))


def test_a_signature_that_counts_its_calls_is_refused(tmp_path: Path) -> None:
    calls = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")])
    def counted(x: tf.Tensor) -> dict[str, tf.Tensor]:
        calls.assign_add(1)
        return {"y": tf.strings.length(x)}

    with pytest.raises(GeError, match="writes a variable"):
        ge.compile(_saved(tmp_path, counted, calls=calls))


def test_layouts_of_tensorflow_hub_and_of_servers(tmp_path: Path) -> None:
    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32, "x")])
    def doubled(x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * 2.0}

    path = Path(_saved(tmp_path, doubled))
    served = tmp_path / "served"
    for version in ("3", "12"):
        shutil.copytree(path, served / version)
    (served / "3" / "saved_model.pb").write_bytes(b"damaged")
    np.testing.assert_array_equal(ge.compile(served)(np.ones(2, np.float32)), [2, 2])
    stored = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    stored.meta_graphs.add().CopyFrom(stored.meta_graphs[0])
    stored.meta_graphs[0].meta_info_def.tags[:] = ["train"]
    stored.meta_graphs[1].meta_info_def.tags[:] = []
    (path / "saved_model.pb").write_bytes(stored.SerializeToString())
    np.testing.assert_array_equal(ge.compile(path)(np.ones(2, np.float32)), [2, 2])


def test_a_model_without_signatures_says_how_to_save_it(tmp_path: Path) -> None:
    with tf.device("/CPU:0"):
        tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    with pytest.raises(GeError, match="save it with signatures"):
        ge.compile(tmp_path / "model")
