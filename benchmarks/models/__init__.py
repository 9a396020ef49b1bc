"""Deterministic model builders: the same weights in PyTorch, in Keras and as files. Nothing is downloaded."""

from benchmarks.models.export import channels_last, frozen_file, keras_model, onnx_file, quantised_file
from benchmarks.models.zoo import ZooModel, zoo

__all__ = ["ZooModel", "channels_last", "frozen_file", "keras_model", "onnx_file", "quantised_file", "zoo"]
