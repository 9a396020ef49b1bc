"""acl.media: pictures from JPEG files to a model's input, in the style of the classic samples."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import acl
from ge import atc

Image = pytest.importorskip("PIL.Image")
OK = acl.ACL_SUCCESS
NV12, NV21 = acl.PIXEL_FORMAT_YUV_SEMIPLANAR_420, acl.PIXEL_FORMAT_YVU_SEMIPLANAR_420
RGB, BGR, GREY = acl.PIXEL_FORMAT_RGB_888, acl.PIXEL_FORMAT_BGR_888, acl.PIXEL_FORMAT_YUV_400


def up(value: int, step: int) -> int:
    return -(-value // step) * step


class Dvpp:
    """What samples wrap around a channel."""

    def __init__(self) -> None:
        self.stream, ret = acl.rt.create_stream()
        assert ret == OK
        self.channel = acl.media.dvpp_create_channel_desc()
        assert acl.media.dvpp_create_channel(self.channel) == OK
        self.resize_config = acl.media.dvpp_create_resize_config()

    def close(self) -> None:
        assert acl.media.dvpp_destroy_resize_config(self.resize_config) == OK
        assert acl.media.dvpp_destroy_channel(self.channel) == OK
        assert acl.media.dvpp_destroy_channel_desc(self.channel) == OK
        assert acl.rt.destroy_stream(self.stream) == OK

    def wait(self) -> int:
        return int(acl.rt.synchronize_stream(self.stream))

    def picture(self, width: int, height: int, pixels: int = NV12, steps: tuple[int, int] = (16, 2)) -> int:
        depth = 1 if pixels in (NV12, NV21, GREY) else 3
        stride, rows = up(width * depth, steps[0]), up(height, steps[1])
        size = stride * rows * 3 // 2 if pixels in (NV12, NV21) else stride * rows
        data, ret = acl.media.dvpp_malloc(size)
        assert ret == OK
        desc = acl.media.dvpp_create_pic_desc()
        for name, value in {
            "data": data, "size": size, "format": pixels, "width": width, "height": height,
            "width_stride": stride, "height_stride": rows,
        }.items():  # fmt: skip
            assert getattr(acl.media, f"dvpp_set_pic_desc_{name}")(desc, value) == OK
        return desc


@pytest.fixture
def dvpp(device: int) -> Iterator[Dvpp]:
    made = Dvpp()
    yield made
    made.close()


def photograph(width: int, height: int) -> np.ndarray:
    """A smooth picture, which JPEG keeps well."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1).astype(
        np.uint8
    )


def jpeg(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def rgb_of(desc: int) -> np.ndarray:
    """The pixels of an RGB picture."""
    width, height = acl.media.dvpp_get_pic_desc_width(desc), acl.media.dvpp_get_pic_desc_height(desc)
    stride = acl.media.dvpp_get_pic_desc_width_stride(desc)
    data = acl.util.ptr_to_bytes(
        acl.media.dvpp_get_pic_desc_data(desc), acl.media.dvpp_get_pic_desc_size(desc)
    )
    rows = np.frombuffer(data, np.uint8).reshape(-1, stride)[:height, : width * 3]
    return rows.reshape(height, width, 3)


def decoded(dvpp: Dvpp, pixels: np.ndarray, form: int = NV12) -> int:
    file = jpeg(pixels)
    address = acl.util.bytes_to_ptr(file)
    width, height, components, ret = acl.media.dvpp_jpeg_get_image_info(address, len(file))
    assert (width, height, components, ret) == (pixels.shape[1], pixels.shape[0], 3, OK)
    needed, ret = acl.media.dvpp_jpeg_predict_dec_size(address, len(file), form)
    desc = dvpp.picture(width, height, form, (128, 16))
    assert ret == OK and needed == acl.media.dvpp_get_pic_desc_size(desc)
    assert acl.media.dvpp_jpeg_decode_async(dvpp.channel, address, len(file), desc, dvpp.stream) == OK
    assert dvpp.wait() == OK and acl.media.dvpp_get_pic_desc_ret_code(desc) == OK
    return desc


def test_a_file_is_decoded_and_its_colours_converted(dvpp: Dvpp) -> None:
    pixels = photograph(101, 59)  # odd sides have colours of their own at the end
    for form in (NV12, NV21):
        source = decoded(dvpp, pixels, form)
        target = dvpp.picture(101, 59, RGB)
        assert acl.media.dvpp_vpc_convert_color_async(dvpp.channel, source, target, dvpp.stream) == OK
        assert dvpp.wait() == OK
        assert abs(rgb_of(target).astype(int) - pixels).max() <= 12
    swapped = dvpp.picture(101, 59, BGR)
    assert acl.media.dvpp_vpc_convert_color_async(dvpp.channel, target, swapped, dvpp.stream) == OK
    assert dvpp.wait() == OK
    np.testing.assert_array_equal(rgb_of(swapped)[..., ::-1], rgb_of(target))


def test_pictures_are_resized_cropped_and_pasted(dvpp: Dvpp) -> None:
    pixels = photograph(128, 64)
    source = decoded(dvpp, pixels)
    small, part = dvpp.picture(32, 16), dvpp.picture(64, 32)
    assert acl.media.dvpp_vpc_resize_async(dvpp.channel, source, small, dvpp.resize_config, dvpp.stream) == OK
    area = acl.media.dvpp_create_roi_config(32, 95, 16, 47)
    assert acl.media.dvpp_vpc_crop_async(dvpp.channel, source, part, area, dvpp.stream) == OK
    canvas = dvpp.picture(64, 64)
    place = acl.media.dvpp_create_roi_config(0, 31, 32, 63)
    ret = acl.media.dvpp_vpc_crop_and_paste_async(dvpp.channel, source, canvas, area, place, dvpp.stream)
    assert ret == OK and dvpp.wait() == OK
    for made, wanted in (
        (small, np.asarray(Image.fromarray(pixels).resize((32, 16), Image.BILINEAR))),
        (part, pixels[16:48, 32:96]),
    ):
        target = dvpp.picture(wanted.shape[1], wanted.shape[0], RGB)
        assert acl.media.dvpp_vpc_convert_color_async(dvpp.channel, made, target, dvpp.stream) == OK
        assert dvpp.wait() == OK
        assert abs(rgb_of(target).astype(int) - wanted).max() <= 14
    for config in (area, place):
        assert acl.media.dvpp_destroy_roi_config(config) == OK


def test_a_picture_is_written_as_a_file(dvpp: Dvpp) -> None:
    pixels = photograph(64, 48)
    source = decoded(dvpp, pixels)
    config = acl.media.dvpp_create_jpege_config()
    assert acl.media.dvpp_set_jpege_config_level(config, 90) == OK
    size, ret = acl.media.dvpp_jpeg_predict_enc_size(source, config)
    buffer, ret = acl.media.dvpp_malloc(size)
    room = np.array([size], np.int32)
    ret = acl.media.dvpp_jpeg_encode_async(
        dvpp.channel, source, buffer, acl.util.numpy_to_ptr(room), config, dvpp.stream
    )
    assert ret == OK and dvpp.wait() == OK
    found = np.asarray(Image.open(io.BytesIO(acl.util.ptr_to_bytes(buffer, int(room[0])))))
    assert 0 < room[0] < size and abs(found.astype(int) - pixels).max() <= 16
    assert acl.media.dvpp_destroy_jpege_config(config) == OK and acl.media.dvpp_free(buffer) == OK


def test_what_does_not_fit_is_a_code(dvpp: Dvpp) -> None:
    desc = dvpp.picture(64, 48)
    junk = acl.util.bytes_to_ptr(b"no picture at all")
    assert acl.media.dvpp_jpeg_get_image_info(junk, 17)[3] == acl.ACL_ERROR_INVALID_PARAM
    assert acl.media.dvpp_jpeg_decode_async(dvpp.channel, junk, 17, desc, dvpp.stream) == OK
    assert dvpp.wait() != OK and acl.media.dvpp_get_pic_desc_ret_code(desc) == acl.ACL_ERROR_INVALID_PARAM
    assert acl.media.dvpp_set_pic_desc_size(desc, 10) == OK
    target = dvpp.picture(32, 32)
    assert acl.media.dvpp_vpc_resize_async(dvpp.channel, desc, target, dvpp.resize_config, dvpp.stream) == OK
    assert dvpp.wait() != OK
    assert acl.media.dvpp_create_channel(12345) == acl.ACL_ERROR_INVALID_PARAM
    assert acl.media.dvpp_set_pic_desc_width(desc, -1) == acl.ACL_ERROR_INVALID_PARAM
    with pytest.raises(AttributeError, match="decode videos"):
        _ = acl.media.vdec_create_channel


def test_from_a_picture_to_a_label(dvpp: Dvpp, tmp_path: Path) -> None:
    """A JPEG file is decoded, resized to the model's size and classified; AIPP makes pixels of the bytes."""
    weights = np.asarray([[1, -1, 0], [-1, 1, 0], [0, 0, 0]], np.float32)  # more red, more green, neither
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["m", "w"], ["y"], transB=1),
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [1, 3, 32, 32]), ("y", [1, 3]))
    ]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
        tmp_path / "net.onnx",
    )
    (tmp_path / "aipp.cfg").write_text(
        "aipp_op { aipp_mode: static input_format: YUV420SP_U8 csc_switch: true\n"
        "src_image_size_w: 32 src_image_size_h: 32\n"
        "matrix_r0c0: 256 matrix_r0c1: 0 matrix_r0c2: 359 matrix_r1c0: 256 matrix_r1c1: -88 matrix_r1c2: -183\n"
        "matrix_r2c0: 256 matrix_r2c1: 454 matrix_r2c2: 0 input_bias_0: 0 input_bias_1: 128 input_bias_2: 128\n"
        "var_reci_chn_0: 0.00392 var_reci_chn_1: 0.00392 var_reci_chn_2: 0.00392 }"
    )
    command = [f"--model={tmp_path}/net.onnx", "--framework=5", f"--output={tmp_path}/net", "--soc_version=cpu",
               f"--insert_op_conf={tmp_path}/aipp.cfg"]  # fmt: skip
    assert atc.run(command) == 0
    model, ret = acl.mdl.load_from_file(f"{tmp_path}/net.om")
    desc = acl.mdl.create_desc()
    assert ret == OK and acl.mdl.get_desc(desc, model) == OK
    for colour, label in (((200, 40, 60), 0), ((30, 180, 60), 1)):
        source = decoded(dvpp, np.full((90, 120, 3), colour, np.uint8))
        small = dvpp.picture(32, 32)
        assert (
            acl.media.dvpp_vpc_resize_async(dvpp.channel, source, small, dvpp.resize_config, dvpp.stream)
            == OK
        )
        assert dvpp.wait() == OK
        inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
        size = acl.mdl.get_input_size_by_index(desc, 0)
        assert size == acl.media.dvpp_get_pic_desc_size(small)
        acl.mdl.add_dataset_buffer(
            inputs, acl.create_data_buffer(acl.media.dvpp_get_pic_desc_data(small), size)
        )
        room, ret = acl.rt.malloc(12, acl.ACL_MEM_MALLOC_HUGE_FIRST)
        acl.mdl.add_dataset_buffer(outputs, acl.create_data_buffer(room, 12))
        assert acl.mdl.execute(model, inputs, outputs) == OK
        scores = np.frombuffer(acl.util.ptr_to_bytes(room, 12), np.float32)
        assert scores.argmax() == label, scores
        share = (np.asarray(colour) / 255) @ weights.T
        np.testing.assert_allclose(scores, share, atol=0.03)
    assert acl.mdl.unload(model) == OK


def test_the_status_of_a_device(device: int) -> None:
    assert acl.rt.query_device_status(0) == (acl.ACL_RT_DEVICE_STATUS_NORMAL, OK)
    assert acl.rt.query_device_status(99)[1] == acl.ACL_ERROR_RT_INVALID_DEVICEID
