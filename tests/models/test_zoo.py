"""The zoo gives the same answers in every form, so that a benchmark compares like with like."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from benchmarks.measure import relative_error
from benchmarks.models import channels_last, keras_model, onnx_file, zoo

NAMES = tuple(zoo(small=True))


def reference(name: str) -> np.ndarray:
    model = zoo(small=True)[name]
    return model.module()(*map(torch.from_numpy, model.inputs(2))).numpy()


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_inputs_are_the_same_at_every_call(name: str) -> None:
    np.testing.assert_array_equal(reference(name), reference(name))


@pytest.mark.parametrize("name", NAMES)
def test_keras_model_agrees_with_the_module(name: str) -> None:
    model = zoo(small=True)[name]
    inputs = channels_last(model.inputs(2))
    keras = keras_model(model, 2, model.module())
    answer = np.asarray(keras(inputs[0] if len(inputs) == 1 else inputs, training=False))
    assert relative_error([answer], [reference(name)]) < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_onnx_file_agrees_with_the_module(name: str) -> None:
    model = zoo(small=True)[name]
    session = onnxruntime.InferenceSession(onnx_file(model, 2))
    answer = session.run(None, dict(zip(model.input_names, model.inputs(2), strict=True)))
    assert relative_error(answer, [reference(name)]) < 1e-5
