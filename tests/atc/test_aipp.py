"""Static AIPP: the operators put in front of a model compute what the configuration says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ge
from ge import aipp, atc
from ge.errors import GeError
from tests.atc import model_files

YUV_TO_RGB = """
    csc_switch: true
    matrix_r0c0: 256  matrix_r0c1: 0    matrix_r0c2: 359
    matrix_r1c0: 256  matrix_r1c1: -88  matrix_r1c2: -183
    matrix_r2c0: 256  matrix_r2c1: 454  matrix_r2c2: 0
    input_bias_0: 0   input_bias_1: 128 input_bias_2: 128
"""
MATRIX = np.array([[256, 0, 359], [256, -88, -183], [256, 454, 0]])


def processed(body: str, shape: tuple[int, ...], raw: np.ndarray, layout: str = "NCHW") -> np.ndarray:
    """What AIPP makes of raw bytes for a model whose input has this shape."""
    g = ge.Graph("net")
    g.output(ge.ops.identity(g.input("image", shape)), "y")
    aipp.insert(g.ir, aipp.parse_text("aipp_op {" + body + "}"), layout)
    model = ge.compile(g)
    assert [p.name for p in model.inputs] == ["image"]
    assert model.inputs[0].desc.dtype == "uint8"
    return np.asarray(model(raw))


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def nv12(raw: np.ndarray) -> np.ndarray:
    """YUV pixels (batch, height, width, 3) of NV12 images."""
    height = raw.shape[1] * 2 // 3
    luma = raw[:, :height, :, None].astype(np.int64)
    chroma = raw[:, height:].reshape(len(raw), height // 2, -1, 2).repeat(2, 1).repeat(2, 2)
    return np.concatenate([luma, chroma], -1)


def to_rgb(yuv: np.ndarray) -> np.ndarray:
    return np.clip((yuv - [0, 128, 128]) @ MATRIX.T >> 8, 0, 255).astype(np.float32)


def test_normalisation() -> None:
    raw = pixels(2, 4, 6, 3)
    body = "input_format: RGB888_U8 mean_chn_0: 104 mean_chn_1: 117 min_chn_2: 2.5 var_reci_chn_0: 0.25"
    result = processed(body, (2, 3, 4, 6), raw)
    expected = (raw - np.float32([104, 117, 2.5])) * np.float32([0.25, 1, 1])
    np.testing.assert_allclose(result, expected.transpose(0, 3, 1, 2), rtol=1e-6)


def test_channels_last_models_get_channels_last() -> None:
    raw = pixels(1, 4, 6, 3)
    np.testing.assert_array_equal(processed("input_format: RGB888_U8", (1, 4, 6, 3), raw, "NHWC"), raw)


def test_red_and_blue_are_swapped() -> None:
    raw = pixels(1, 4, 6, 3)
    result = processed("input_format: RGB888_U8 rbuv_swap_switch: true", (1, 4, 6, 3), raw, "NHWC")
    np.testing.assert_array_equal(result, raw[..., ::-1])


def test_nv12_becomes_rgb() -> None:
    raw = pixels(2, 6, 6)
    result = processed("input_format: YUV420SP_U8" + YUV_TO_RGB, (2, 3, 4, 6), raw)
    np.testing.assert_array_equal(result, to_rgb(nv12(raw)).transpose(0, 3, 1, 2))


def test_nv21_becomes_rgb() -> None:
    raw = pixels(1, 6, 6)
    body = "input_format: YUV420SP_U8 rbuv_swap_switch: true" + YUV_TO_RGB
    result = processed(body, (1, 3, 4, 6), raw)
    np.testing.assert_array_equal(result, to_rgb(nv12(raw)[..., [0, 2, 1]]).transpose(0, 3, 1, 2))


def test_crop_and_padding() -> None:
    raw = pixels(1, 10, 12, 3)
    body = """input_format: RGB888_U8 src_image_size_w: 12 src_image_size_h: 10
        crop: true load_start_pos_w: 3 load_start_pos_h: 2 crop_size_w: 6 crop_size_h: 4
        padding: true left_padding_size: 1 right_padding_size: 1 top_padding_size: 2 padding_value: 7"""
    result = processed(body, (1, 6, 8, 3), raw, "NHWC")
    part = raw[:, 2:6, 3:9].astype(np.float32)
    np.testing.assert_array_equal(result, np.pad(part, [(0, 0), (2, 0), (1, 1), (0, 0)], constant_values=7))


def test_resize_interpolates() -> None:
    raw = np.repeat(np.arange(0, 80, 10, dtype=np.uint8)[None, None, :, None], 3, -1).repeat(4, 1)
    body = "input_format: RGB888_U8 src_image_size_w: 8 src_image_size_h: 4 resize: true"
    result = processed(body, (1, 4, 4, 3), raw, "NHWC")
    np.testing.assert_allclose(result[0, 0, :, 0], [5, 25, 45, 65])


def test_four_channels_and_one() -> None:
    raw = pixels(1, 4, 6, 4)
    result = processed("input_format: XRGB8888_U8 ax_swap_switch: true", (1, 4, 6, 3), raw, "NHWC")
    np.testing.assert_array_equal(result, raw[..., 1:])
    gray = pixels(1, 4, 6, 1)
    np.testing.assert_array_equal(processed("input_format: YUV400_U8", (1, 4, 6, 1), gray, "NHWC"), gray)


def test_a_model_compiled_with_aipp_takes_bytes(tmp_path: Path) -> None:
    model = model_files.images(tmp_path / "m.onnx")
    config = tmp_path / "aipp.cfg"
    config.write_text(
        "# comment\naipp_op {\n  aipp_mode: static\n  related_input_rank: 0\n  input_format : YUV420SP_U8\n"
        "  src_image_size_w : 8\n  src_image_size_h : 8\n  var_reci_chn_0: 0.0039\n" + YUV_TO_RGB + "}\n"
    )
    command = [f"--model={model}", f"--insert_op_conf={config}", f"--output={tmp_path}/out"]
    assert atc.run(command) == 0
    raw = pixels(1, 12, 8)
    image = to_rgb(nv12(raw)).transpose(0, 3, 1, 2) * np.float32([0.0039, 1, 1])[:, None, None]
    np.testing.assert_allclose(
        ge.load(tmp_path / "out.om")(raw), ge.compile(model)(image), rtol=1e-4, atol=1e-3
    )


def test_gears_of_image_sizes_with_aipp(tmp_path: Path) -> None:
    model = model_files.images(tmp_path / "m.onnx", size="s")
    config = tmp_path / "aipp.cfg"
    config.write_text("aipp_op { aipp_mode: static input_format: RGB888_U8 mean_chn_0: 3 }")
    shapes = ["--input_shape=image:1,3,-1,-1", "--dynamic_image_size=8,8;16,12"]
    assert (
        atc.run([f"--model={model}", f"--insert_op_conf={config}", f"--output={tmp_path}/out", *shapes]) == 0
    )
    loaded = ge.load(tmp_path / "out.om")
    raw = pixels(1, 16, 12, 3)
    image = (raw - np.float32([3, 0, 0])).transpose(0, 3, 1, 2)
    options = ge.CompileOptions(input_shapes={"image": (1, 3, 16, 12)})
    np.testing.assert_allclose(loaded(raw), ge.compile(model, options)(image), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "aipp_op",
        "aipp_op {",
        "aipp_op { input_format RGB888_U8 }",
        "aipp_op { input_format: NONSENSE }",
        "aipp_op { nonsense: 1 }",
        "aipp_op { crop: maybe }",
        "aipp_op { mean_chn_0: much }",
        "aipp_op { mean_chn_9: 1 }",
        "aipp_op { aipp_mode: dynamic }",
        "other { }",
        "aipp_op { input_format: RGB888_U8 } %",
    ],
)
def test_texts_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(GeError) as caught:
        aipp.parse_text(text)
    assert caught.value.code == "E13001"


@pytest.mark.parametrize(
    "body",
    [
        "input_format: RGB888_U8 src_image_size_w: 5 src_image_size_h: 5",  # another size, no crop
        "input_format: RGB888_U8 crop: true load_start_pos_w: 3",  # leaves the image
        "input_format: YUV400_U8",  # too few channels
        "input_format: YUV400_U8 csc_switch: true",
        "input_format: YUV420SP_U8 src_image_size_w: 7 src_image_size_h: 7 crop: true",  # odd sides
        "related_input_rank: 3",
        'related_input_name: "other"',
    ],
)
def test_configurations_that_do_not_fit_are_refused(body: str) -> None:
    with pytest.raises(GeError) as caught:
        processed(body, (1, 3, 4, 6), pixels(1, 4, 6, 3))
    assert caught.value.code == "E13002"
