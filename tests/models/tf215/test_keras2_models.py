"""Models made by TensorFlow 2.15 with Keras 2 compile and agree; runs in the environment that has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow

from benchmarks.families import FAMILIES, freeze_model, save_model
from benchmarks.subjects import FULL_SIZE_ONLY, LIMITS, compiled_error
from tests.support.sampling import slow_except
from tests.tensorflow_v1.support import has_keras2

if not has_keras2():
    pytest.skip("needs TensorFlow 2.15 with Keras 2", allow_module_level=True)

SOME = {
    family.name: family for family in FAMILIES if family.name in ("ResNet50", "MobileNetV2", "EfficientNetB0")
}


def recurrent_model() -> tensorflow.keras.Model:
    keras = tensorflow.keras
    keras.utils.set_random_seed(7)
    layers = [keras.layers.LSTM(24, return_sequences=True), keras.layers.GRU(16), keras.layers.Dense(5)]
    return keras.Sequential([keras.Input((12, 8), 2), *layers])


@pytest.mark.parametrize("precision", list(LIMITS))
@pytest.mark.parametrize("name", slow_except(("ResNet50",), SOME))
def test_frozen_graph_agrees(name: str, precision: str, tmp_path: Path) -> None:
    family, small = SOME[name], name not in FULL_SIZE_ONLY
    model, x = family.build(small), family.inputs(small, batch=2)
    path = freeze_model(model, x, tmp_path / "frozen.pb")
    error = compiled_error(path, [x], np.asarray(model(x, training=False)), precision)
    assert error < LIMITS[precision]


def test_saved_model_agrees(tmp_path: Path) -> None:
    family = SOME["MobileNetV2"]
    model, x = family.build(small=True), family.inputs(small=True, batch=2)
    path = save_model(model, x, tmp_path / "saved_model")
    assert compiled_error(path, [x], np.asarray(model(x, training=False)), "fp32") < LIMITS["fp32"]


def test_recurrent_layers_agree(tmp_path: Path) -> None:
    model = recurrent_model()
    x = np.random.default_rng(0).standard_normal((2, 12, 8), np.float32)
    path = freeze_model(model, x, tmp_path / "frozen.pb")
    assert compiled_error(path, [x], np.asarray(model(x, training=False)), "fp32") < LIMITS["fp32"]
