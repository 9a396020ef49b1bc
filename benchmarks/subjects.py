"""Models with the framework's own answer, written as the files people have, for checking what we compute.

A subject is a network of some family in one file form: a keras.applications family or a model of the zoo, as
a frozen TensorFlow graph, a SavedModel or an ONNX file.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.families import FAMILIES, Family, freeze_model, save_model

__all__ = ["FORMS", "FULL_SIZE_ONLY", "LIMITS", "Subject", "compiled_error", "names", "open_subject"]

FORMS = ("frozen", "saved_model", "onnx")
LIMITS = {"fp32": 1e-4, "bf16": 1e-2}  # largest error allowed, relative to the largest value
# Deep networks that small images leave one to four pixels in their last layers: nothing averages rounding errors out.
FULL_SIZE_ONLY = frozenset(
    {"InceptionV3", "NASNetMobile", "DenseNet121", "MobileNet", "MobileNetV2", "MobileNetV3Small"}
    | {"EfficientNetB0", "EfficientNetV2B0"}
)
ZOO = ("bert", "gpt2", "vit", "lstm", "dlrm", "regnet")
_FAMILIES = {family.name: family for family in FAMILIES}


@dataclass
class Subject:
    """A model and its answer; `write` gives the file and the inputs it takes, for each form."""

    name: str
    source: Any
    small: bool
    _keras: Any = None

    def write(self, form: str, folder: Path) -> tuple[Path, list[np.ndarray], np.ndarray]:
        """The file, its inputs, and what the framework answers for them."""
        if isinstance(self.source, Family):
            return self._write_family(self.source, form, folder)
        return self._write_zoo(form, folder)

    def framework_bf16_error(self) -> float:
        """How far the framework's own bf16 answer is from its float32 one."""
        from benchmarks.measure import relative_error

        if isinstance(self.source, Family):
            if self._keras is None:
                self._keras = self.source.build(self.small)
            lowered = self.source.build_bf16(self._keras, self.small)
            x = self.source.inputs(self.small, 2 if self.small else 1)
            answers = [np.asarray(m(x, training=False)).astype(np.float32) for m in (lowered, self._keras)]
            return relative_error(answers[:1], answers[1:])
        import torch

        module = self.source.module()
        inputs = [torch.from_numpy(x) for x in self.source.inputs(2 if self.small else 1)]
        expected = module(*inputs).numpy()
        low = [x.bfloat16() if x.is_floating_point() else x for x in inputs]
        return relative_error([module.bfloat16()(*low).float().numpy()], [expected])

    def _write_family(
        self, family: Family, form: str, folder: Path
    ) -> tuple[Path, list[np.ndarray], np.ndarray]:
        if form == "onnx" and family.name == "ConvNeXtTiny":  # tf2onnx does not know its operators
            return _write_convnext(self.small, folder)
        if self._keras is None:
            self._keras = family.build(self.small)
        x = family.inputs(self.small, 2 if self.small else 1)
        expected = np.asarray(self._keras(x, training=False))
        if form == "saved_model":
            return save_model(self._keras, x, folder / "saved_model"), [x], expected
        frozen = freeze_model(self._keras, x, folder / "frozen.pb")
        return (_convert(frozen) if form == "onnx" else frozen), [x], expected

    def _write_zoo(self, form: str, folder: Path) -> tuple[Path, list[np.ndarray], np.ndarray]:
        import torch

        from benchmarks.models import channels_last, keras_model
        from benchmarks.models.export import write_frozen, write_onnx

        model = self.source
        batch = 2 if self.small else 1
        inputs = list(model.inputs(batch))
        module = model.module()
        expected = module(*map(torch.from_numpy, inputs)).numpy()
        if form == "onnx":
            write_onnx(module, inputs, model.input_names, folder / "model.onnx")
            return folder / "model.onnx", inputs, expected
        assert form == "frozen", f"{self.name} is not offered as {form}"
        write_frozen(keras_model(model, batch, module), folder / "frozen.pb")
        return folder / "frozen.pb", channels_last(inputs), expected


def _convert(frozen: Path) -> Path:
    """A frozen graph as ONNX, by tf2onnx.

    The converter copies every constant again and again (24 GiB for VGG16), so large weights go around it: they are
    inputs while it works, and initializers afterwards.
    """
    import logging

    import onnx
    import tensorflow as tf
    import tf2onnx

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    graph = tf.compat.v1.GraphDef.FromString(frozen.read_bytes())
    weights = _take_large_weights(graph)
    inputs = ["x:0", *(f"{name}:0" for name in weights)]
    model, _ = tf2onnx.convert.from_graph_def(graph, input_names=inputs, output_names=["y:0"], opset=17)
    for value in [v for v in model.graph.input if v.name.removesuffix(":0") in weights]:
        weight = weights[value.name.removesuffix(":0")]
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, value.name))
        model.graph.input.remove(value)
    path = frozen.with_suffix(".onnx")
    onnx.save(model, path)
    return path


def _take_large_weights(graph: Any, elements: int = 1 << 22) -> dict[str, np.ndarray]:
    """Turn the large constants of a GraphDef into placeholders; their values by name."""
    import tensorflow as tf

    weights = {}
    for node in graph.node:
        if (
            node.op != "Const"
            or tf.TensorShape(node.attr["value"].tensor.tensor_shape).num_elements() < elements
        ):
            continue
        weights[node.name] = tf.make_ndarray(node.attr["value"].tensor)
        node.op = "Placeholder"
        node.attr["shape"].shape.CopyFrom(node.attr["value"].tensor.tensor_shape)
        del node.attr["value"]
    return weights


def _write_convnext(small: bool, folder: Path) -> tuple[Path, list[np.ndarray], np.ndarray]:
    import torch

    from benchmarks.models.convnext import ConvNeXt
    from benchmarks.models.export import write_onnx

    torch.manual_seed(7)
    module = (ConvNeXt((1, 1, 2, 1), (16, 32, 64, 128)) if small else ConvNeXt()).eval().requires_grad_(False)
    size = 64 if small else 224
    x = np.random.default_rng(0).standard_normal((1, 3, size, size), np.float32)
    write_onnx(module, [x], ["x"], folder / "convnext.onnx")
    return folder / "convnext.onnx", [x], module(torch.from_numpy(x)).numpy()


def names() -> list[str]:
    """All subjects, the light ones of the zoo first."""
    return [*ZOO, *_FAMILIES]


@contextmanager
def open_subject(name: str, small: bool) -> Iterator[Subject]:
    """A subject; what TensorFlow kept for it is let go at the end."""
    if name in _FAMILIES:
        yield Subject(name, _FAMILIES[name], small)
        import keras

        keras.backend.clear_session()
    else:
        from benchmarks.models import zoo

        yield Subject(name, zoo(small)[name], small)
    gc.collect()


def compiled_error(path: Path, inputs: list[np.ndarray], expected: np.ndarray, precision: str) -> float:
    """Compile the file, run it, and say how far the answer is from the framework's."""
    import ge
    from benchmarks.measure import relative_error
    from ge.options import CompileOptions, PrecisionMode

    mode = PrecisionMode.MIX_BF16 if precision == "bf16" else PrecisionMode.KEEP
    model = ge.compile(path, CompileOptions(precision_mode=mode))
    return relative_error(model.run(inputs), [expected])
