"""TensorFlow Lite files against TensorFlow Lite's own interpreter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

import ge
from ge import atc
from ge.errors import GeError, UnsupportedOperatorsError
from ge.options import CompileOptions
from ge.parsers.tflite import parser
from ge.parsers.tflite.operators import NAMES

pytestmark = pytest.mark.filterwarnings("ignore")
L = tf.keras.layers


def converted(
    function: Callable[..., Any], shapes: Sequence[Sequence[int]], dtype: Any = tf.float32
) -> bytes:
    """A function as a TensorFlow Lite file."""
    concrete = tf.function(function).get_concrete_function(*(tf.TensorSpec(s, dtype) for s in shapes))
    return tf.lite.TFLiteConverter.from_concrete_functions([concrete]).convert()


def of_model(model: Any, quantised: str = "", shape: Sequence[int] = ()) -> bytes:
    """A Keras model as a file, quantised in one of the converter's ways."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if quantised:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantised == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantised.startswith("int"):
        rng = np.random.default_rng(1)
        converter.representative_dataset = lambda: ([rng.random((1, *shape), np.float32)] for _ in range(8))
    if quantised == "int16":
        kinds = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [kinds]
    if quantised == "int8":
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def interpreted(content: bytes, feeds: Sequence[np.ndarray]) -> list[np.ndarray]:
    """TensorFlow Lite's own results, in the order of the file's outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    for detail, feed in zip(interpreter.get_input_details(), feeds, strict=True):
        interpreter.set_tensor(detail["index"], feed)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def ours(content: bytes, feeds: Sequence[np.ndarray], folder: Path, **options: Any) -> list[np.ndarray]:
    """The engine's results for the same file."""
    path = folder / "model.tflite"
    path.write_bytes(content)
    found = ge.compile(path, CompileOptions(**options))(*feeds)
    return [found] if isinstance(found, np.ndarray) else list(found)


def compare(content: bytes, feeds: Sequence[np.ndarray], folder: Path, tolerance: float = 1e-5) -> None:
    expected, found = interpreted(content, feeds), ours(content, feeds, folder)
    assert len(expected) == len(found)
    for want, got in zip(expected, found, strict=True):
        assert want.shape == got.shape and want.dtype == got.dtype
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )


def _arithmetic(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    p = tf.abs(x) + 0.5
    return [
        tf.nn.relu(x + y), x - y, tf.nn.relu6(x * y), x / p, tf.math.floordiv(x, p), tf.math.floormod(x, p),
        tf.math.squared_difference(x, y), tf.maximum(x, y), tf.minimum(x, y), tf.pow(p, y), tf.exp(x), tf.math.log(p),
        tf.sqrt(p), tf.math.rsqrt(p), tf.sin(x), tf.cos(x), tf.floor(x), tf.math.ceil(x), tf.round(x), tf.sign(x),
        tf.abs(x), -x, tf.square(x), tf.tanh(x), tf.sigmoid(x), tf.nn.elu(x), tf.nn.leaky_relu(x, 0.3),
        tf.nn.gelu(x, approximate=True), x * tf.nn.relu6(x + 3) / 6, tf.math.atan2(x, p),
        tf.nn.softmax(x * 2), tf.nn.log_softmax(x), tf.math.add_n([x, y, x]), tf.zeros_like(x),
        tf.clip_by_value(x, -1.0, 1.0), tf.math.l2_normalize(x, -1), tf.nn.softplus(x),
    ]  # fmt: skip


def _decisions(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    less = x < y
    return [
        tf.where(less, x, y), tf.where(tf.logical_or(less, x >= 0.5), x, tf.zeros([3, 4])),
        tf.cast(tf.logical_and(x > y, x <= 0.5), tf.int32), tf.cast(tf.logical_not(tf.equal(x, y)), tf.float32),
        tf.cast(tf.not_equal(x, 0.0), tf.int64), tf.argmax(x, 1), tf.argmin(x, 0, tf.int32), *tf.math.top_k(x, 2),
        tf.cast(tf.reduce_any(less, 1), tf.int32), tf.cast(tf.reduce_all(less, 0), tf.int32),
        tf.one_hot(tf.argmax(x, 1), 5), tf.cast(x * 3, tf.int32),
        tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 2.0]),
    ]  # fmt: skip


def _moves(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    return [
        tf.reshape(x, [2, 6]), tf.transpose(x), x[:, 1:3], x[::-1, ::2], x[1], x[tf.newaxis, ..., 0],
        tf.concat([x, y], 1), tf.stack([x, y], 1), *tf.unstack(x, axis=0), *tf.split(x, 2, 1), *tf.split(x, [1, 3], 1),
        tf.tile(x, [2, 1]), tf.pad(x, [[1, 0], [2, 1]]), tf.pad(x, [[1, 0], [0, 1]], constant_values=3.0),
        tf.pad(x, [[1, 1], [2, 1]], "REFLECT"), tf.pad(x, [[1, 1], [2, 1]], "SYMMETRIC"), tf.gather(x, [2, 0], axis=0),
        tf.gather(x, [[0, 3]] * 3, axis=1, batch_dims=1), tf.gather_nd(x, [[0, 1], [2, 3]]), tf.expand_dims(x, 1),
        tf.squeeze(tf.reshape(x, [3, 1, 4])), tf.reverse(x, [0]), tf.broadcast_to(x, [2, 3, 4]),
        tf.scatter_nd([[1], [3]], y[:2], [5, 4]), tf.slice(x, [1, 0], [2, 3]), tf.cumsum(x, 1, exclusive=True),
        tf.reduce_sum(x, 1), tf.reduce_mean(x, [0, 1], keepdims=True), tf.reduce_max(x, 0), tf.reduce_min(x, -1),
        tf.reduce_prod(x, 0), tf.fill([2, 3], x[0, 0]), tf.shape(x), tf.linalg.diag(x[0]),
        tf.reverse_sequence(x, [1, 4, 2], 1),
        tf.math.unsorted_segment_sum(x, [0, 2, 0], 3), tf.math.unsorted_segment_max(x, [0, 1, 0], 2),
        tf.range(3.0) + x[:, 0],
        tf.math.segment_sum(x, [0, 0, 1]), tf.matmul(x, y, transpose_b=True),
    ]  # fmt: skip


def _images(x: tf.Tensor) -> list[tf.Tensor]:
    return [
        tf.nn.conv2d(x, _weights(3, 3, 4, 6), 2, "SAME"),
        tf.nn.conv2d(x, _weights(2, 3, 4, 5), 1, "VALID", dilations=2),
        tf.nn.relu(tf.nn.bias_add(tf.nn.depthwise_conv2d(x, _weights(3, 3, 4, 2), [1, 1, 1, 1], "SAME"), [1.0] * 8)),
        tf.nn.conv2d_transpose(x, _weights(3, 3, 5, 4), [1, 16, 16, 5], 2), tf.nn.max_pool2d(x, 3, 2, "SAME"),
        tf.nn.avg_pool2d(x, 2, 2, "VALID"), tf.nn.avg_pool2d(x, 3, 1, "SAME"), tf.image.resize(x, [5, 7]),
        tf.image.resize(x, [16, 12], "nearest"), tf.compat.v1.image.resize_bilinear(x, [11, 5], align_corners=True),
        tf.nn.space_to_depth(x, 2), tf.nn.depth_to_space(x, 2), tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]),
        tf.nn.lrn(x, 2, 1.0, 0.5, 0.7), tf.nn.conv3d(x[:, tf.newaxis], _weights(1, 3, 3, 4, 2), [1] * 5, "SAME"),
        tf.batch_to_space(tf.tile(x, [4, 1, 1, 1]), [2, 2], [[0, 0], [1, 1]]),
    ]  # fmt: skip


def _weights(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(7).normal(size=shape), tf.float32)


def _control(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    chosen = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2 + y, lambda: y - 1)
    _, looped = tf.while_loop(
        lambda i, v: tf.reduce_sum(v) + tf.cast(i, tf.float32) < 100,
        lambda i, v: (i + 1, v * 2 + 1),
        [0, tf.abs(x)],
    )
    return [chosen, looped]


def _selections(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
    boxes = tf.concat([x[:, :2], x[:, :2] + tf.abs(y[:, 2:]) + 0.1], 1)
    chosen = tf.image.non_max_suppression(boxes, x[:, 0], 2, 0.4)  # has zeros behind the boxes that are kept
    same = x * 2
    return [*tf.unique(tf.cast(y[0], tf.int32)), tf.gather(x, chosen), same, same]


@pytest.mark.parametrize(
    "function", [_arithmetic, _decisions, _moves, _control, _selections], ids=lambda f: f.__name__[1:]
)
def test_operators(function: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    feeds = [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(2)]
    compare(converted(function, [(3, 4), (3, 4)]), feeds, tmp_path)


def test_spectrograms_agree(tmp_path: Path) -> None:
    def function(x: tf.Tensor) -> list[tf.Tensor]:
        frames = tf.signal.stft(x, 256, 128, 256)
        mel = tf.signal.linear_to_mel_weight_matrix(20, 129, 8000, 100.0, 3800.0)
        features = tf.math.log(tf.matmul(tf.abs(frames), mel) + 1e-6)
        return [features, tf.math.real(frames), tf.math.imag(frames)]

    sound = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32)
    content = converted(function, [sound.shape])
    model = schema.Model.GetRootAs(content)
    codes = {code.BuiltinCode() for code in map(model.OperatorCodes, range(model.OperatorCodesLength()))}
    assert {NAMES.index(name) for name in ("RFFT2D", "COMPLEX_ABS", "REAL", "IMAG")} <= codes
    compare(content, [sound], tmp_path, 1e-4)


def test_images(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(1, 8, 8, 4)).astype(np.float32)
    compare(converted(_images, [(1, 8, 8, 4)]), [x], tmp_path)


def _network() -> Any:
    tf.keras.utils.set_random_seed(0)
    return tf.keras.Sequential(
        [
            L.Input((16, 16, 3)),
            L.Conv2D(8, 3, padding="same", activation="relu"),
            L.DepthwiseConv2D(3, activation="relu6"),
            L.BatchNormalization(),
            L.MaxPool2D(),
            L.Conv2DTranspose(4, 3, strides=2, padding="same"),
            L.AveragePooling2D(2),
            L.Flatten(),
            L.Dense(10, activation="softmax"),
        ]
    )


@pytest.mark.parametrize(
    "quantised", [*(pytest.param(q, marks=pytest.mark.slow) for q in ("", "float16", "dynamic")), "int8"]
)
def test_a_quantised_network(quantised: str, tmp_path: Path) -> None:
    """Dynamically quantised layers round activations in TensorFlow Lite and do not here; 8-bit results may differ by
    one level."""
    content = of_model(_network(), quantised, (16, 16, 3))
    x = np.random.default_rng(5).random((1, 16, 16, 3), np.float32)
    feeds = [np.round(x * 255 - 128).astype(np.int8)] if quantised == "int8" else [x]
    compare(content, feeds, tmp_path, {"int8": 1.0, "dynamic": 2e-3}.get(quantised, 1e-5))


def test_biases_of_64_bits(tmp_path: Path) -> None:
    """Activations of 16 bits beside weights of 8."""
    tf.keras.utils.set_random_seed(0)
    layers = [L.Input((6, 6, 3), batch_size=1), L.Conv2D(4, 3, activation="relu"), L.Flatten(), L.Dense(5)]
    x = np.random.default_rng(5).random((1, 6, 6, 3), np.float32)
    compare(of_model(tf.keras.Sequential(layers), "int16", (6, 6, 3)), [x], tmp_path, 1e-3)


@pytest.mark.slow
def test_recurrent_layers(tmp_path: Path) -> None:
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            L.Input((6, 5), batch_size=1),
            L.LSTM(7, return_sequences=True),
            L.GRU(4, return_sequences=True),
            L.LSTM(3),
        ]
    )
    x = np.random.default_rng(5).normal(size=(1, 6, 5)).astype(np.float32)
    compare(of_model(model), [x], tmp_path)


def test_another_batch_and_an_inner_result(tmp_path: Path) -> None:
    model = tf.keras.Sequential([L.Input((4,)), L.Dense(3, activation="relu", name="hidden"), L.Dense(2)])
    content = of_model(model)
    x = np.random.default_rng(5).normal(size=(5, 4)).astype(np.float32)
    name = next(iter(parser.parse(content).inputs)).name
    assert name is not None
    np.testing.assert_allclose(
        ours(content, [x], tmp_path, input_shapes={name: (5, 4)})[0], model(x).numpy(), atol=1e-6
    )


def test_signatures_by_choice(tmp_path: Path) -> None:
    class Two(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((3,), name="a")])
        def double(self, a: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"twice": a * 2}

        @tf.function(input_signature=[tf.TensorSpec((3,), name="b"), tf.TensorSpec((3,), name="a")])
        def less(self, b: tf.Tensor, a: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"difference": b - a}

    module = Two()
    tf.saved_model.save(module, str(tmp_path / "saved"), {"double": module.double, "less": module.less})
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(tmp_path / "saved"), signature_keys=["double", "less"]
    )
    content = converter.convert()
    b, a = np.float32([5, 6, 7]), np.float32([1, 2, 4])
    (tmp_path / "m.tflite").write_bytes(content)
    for source in (tmp_path / "m.tflite", tmp_path / "saved"):
        less = ge.compile(source, CompileOptions(signature="less"))
        assert [i.name for i in less.inputs] and [o.name for o in less.outputs] == ["difference"]
        values = {"a": a, "b": b}
        np.testing.assert_array_equal(less(*(values[i.name] for i in less.inputs)), b - a)
        np.testing.assert_array_equal(ge.compile(source, CompileOptions(signature="double"))(a), a * 2)
        with pytest.raises(GeError, match=r"no signature 'nothing'.*double"):
            ge.compile(source, CompileOptions(signature="nothing"))


def test_operators_of_tensorflow_itself(tmp_path: Path) -> None:
    function = tf.function(lambda x: tf.math.erf(x) + tf.raw_ops.Roll(input=x, shift=[1], axis=[1]))
    concrete = function.get_concrete_function(tf.TensorSpec((3, 4)))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    x = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    np.testing.assert_allclose(ours(converter.convert(), [x], tmp_path)[0], function(x).numpy(), atol=1e-6)


def _with_detection(classes: int, background: int, options: dict[str, Any], folder: Path) -> bytes:
    """A network that ends in TensorFlow Lite's own operator for detections, as exporters of detectors write it."""
    values = {
        "max_detections": 6, "max_classes_per_detection": 1, "nms_score_threshold": 0.4, "nms_iou_threshold": 0.3,
        "num_classes": classes, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 4.0,
        "use_regular_nms": False, **options,
    }  # fmt: skip
    kinds = {bool: "b", int: "i", float: "f"}
    attributes = [
        f'attr {{ key: "{k}" value {{ {kinds[type(v)]}: {str(v).lower()} }} }}' for k, v in values.items()
    ]

    @tf.function(experimental_implements=" ".join(['name: "TFLite_Detection_PostProcess"', *attributes]))
    def detections(boxes: tf.Tensor, scores: tf.Tensor, anchors: tf.Tensor) -> list[tf.Tensor]:
        return [tf.constant(0.0, name=n) for n in ("boxes", "classes", "scores", "count")]

    rng = np.random.default_rng(0)
    anchors = np.concatenate([rng.random((40, 2)), rng.uniform(0.1, 0.4, (40, 2))], 1).astype(np.float32)
    module = tf.Module()
    module.run = tf.function(
        lambda boxes, scores: dict(zip("abcd", detections(boxes, tf.sigmoid(scores), anchors), strict=True)),
        input_signature=[tf.TensorSpec((1, 40, 4)), tf.TensorSpec((1, 40, classes + background))],
    )
    tf.saved_model.save(module, str(folder / "saved"), module.run)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "saved"))
    converter.allow_custom_ops = True
    return converter.convert()


@pytest.mark.parametrize(
    "background, options",
    [
        (1, {}),
        (0, {"max_classes_per_detection": 2, "nms_score_threshold": 0.7}),
        (1, {"use_regular_nms": True, "detections_per_class": 2}),
    ],
    ids=["best class", "two classes", "each class"],
)
def test_detections(background: int, options: dict[str, Any], tmp_path: Path) -> None:
    content = _with_detection(5, background, options, tmp_path)
    rng = np.random.default_rng(1)
    draws = {n: rng.normal(size=(1, 40, n)).astype(np.float32) for n in (4, 5 + background)}
    model = schema.Model.GetRootAsModel(content, 0).Subgraphs(0)
    feeds = [draws[model.Tensors(int(i)).Shape(2)] for i in model.InputsAsNumpy()]
    expected, found = interpreted(content, feeds), ours(content, feeds, tmp_path)
    (count,) = (int(e[0]) for e in expected if e.shape == (1,))
    assert count > 1
    for want, got in zip(expected, found, strict=True):  # what is behind them is left undefined there
        assert want.shape == got.shape and want.dtype == got.dtype
        kept = count * options.get("max_classes_per_detection", 1)
        places = (slice(None), slice(kept))[: want.ndim]
        np.testing.assert_allclose(got[places], want[places], rtol=1e-5, atol=1e-6)


def test_sizes_that_depend_on_data(tmp_path: Path) -> None:
    content = converted(lambda x: tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0), 0) + 1, [(5, 4)])
    compare(content, [np.random.default_rng(4).normal(size=(5, 4)).astype(np.float32)], tmp_path)


def test_slices_whose_ends_count_from_their_begins(tmp_path: Path) -> None:
    import flatbuffers

    model = schema.ModelT.InitFromPackedBuf(converted(lambda x: x[1:3:2, 2:3:2] * 2, [(5, 6)]), 0)
    (options,) = (
        o.builtinOptions for o in model.subgraphs[0].operators if hasattr(o.builtinOptions, "offset")
    )
    options.offset = True
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    content = bytes(builder.Output())
    x = np.arange(30, dtype=np.float32).reshape(5, 6)
    np.testing.assert_array_equal(ours(content, [x], tmp_path)[0], x[1:4:2, 2:5:2] * 2)


def test_what_is_not_mapped_is_named() -> None:
    content = converted(lambda x: x + tf.random.uniform([4, 4]), [(4, 4)])
    with pytest.raises(UnsupportedOperatorsError, match="RANDOM_UNIFORM"):
        parser.parse(content)


def test_complex_results_are_refused() -> None:
    with pytest.raises(GeError, match="a tensor of complex numbers"):
        parser.parse(converted(tf.signal.rfft2d, [(4, 4)]))


def test_the_command_line_chooses_a_signature(tmp_path: Path) -> None:
    content = of_model(tf.keras.Sequential([L.Input((4,)), L.Dense(2)]))
    (tmp_path / "m.tflite").write_bytes(content)
    arguments = [f"--model={tmp_path / 'm.tflite'}", f"--output={tmp_path / 'm'}", "--framework=7"]
    assert atc.run([*arguments, "--signature=serving_default"]) == 0
    assert (tmp_path / "m.om").is_file()
    assert atc.run([*arguments, "--signature=nothing"]) != 0


def test_damaged_files_raise_errors_of_ours() -> None:
    """Whatever a byte is changed to, the parser answers with a graph or a GeError."""
    content = converted(lambda x: tf.nn.relu(tf.matmul(x, _weights(4, 3)))[:, 1:], [(2, 4)])
    rng = np.random.default_rng(11)
    refused = 0
    for _ in range(150):
        data = bytearray(content)
        for place in rng.integers(8, min(len(data), 1200), 3):
            data[place] = rng.integers(256)
        try:
            parser.parse(bytes(data))
        except GeError:
            refused += 1
    assert refused
    for length in range(0, len(content), 97):
        with pytest.raises(GeError):
            parser.parse(content[:length])


def test_numbers_of_operators() -> None:
    """Names stand at the places of their numbers in TensorFlow's own schema."""
    for name in NAMES:
        assert NAMES.index(name) == getattr(schema.BuiltinOperator, name)
