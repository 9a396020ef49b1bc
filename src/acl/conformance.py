"""`python -m acl.conformance`: programs in the style of the pyACL samples, such as image classification.

Each program uses handles and checks every return code, as samples do. Its results are compared with NumPy or with a
direct call of the model.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import acl
import ge
from acl import constants as c
from ge import atc

__all__ = ["PROGRAMS", "run"]

OK = c.ACL_SUCCESS
HUGE = c.ACL_MEM_MALLOC_HUGE_FIRST
SIDE = 32
_YUV = (
    "src_image_size_w: 32 src_image_size_h: 32 csc_switch: true\n"
    "matrix_r0c0: 256 matrix_r0c1: 0 matrix_r0c2: 359 matrix_r1c0: 256 matrix_r1c1: -88 matrix_r1c2: -183\n"
    "matrix_r2c0: 256 matrix_r2c1: 454 matrix_r2c2: 0 input_bias_0: 0 input_bias_1: 128 input_bias_2: 128\n"
    "var_reci_chn_0: 0.00392 var_reci_chn_1: 0.00392 var_reci_chn_2: 0.00392"
)


def check(ret: Any, what: str) -> None:
    """Raise if a call failed, as samples do."""
    if ret != OK:
        raise AssertionError(f"{what} gives {ret}: {acl.get_recent_err_msg()}")


# -- models ------------------------------------------------------------------------------------------------------


def network(folder: Path, batch: str | int = 1) -> Path:
    """A small network: convolution, activation, mean, product."""
    rng = np.random.default_rng(1)
    weights: dict[str, np.ndarray] = {
        "k": rng.standard_normal((8, 3, 3, 3)).astype(np.float32) / 4,
        "w": rng.standard_normal((5, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ReduceMean", ["b"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Gemm", ["m", "w"], ["y"], transB=1),
    ]
    ports = (("x", [batch, 3, SIDE, SIDE]), ("y", [batch, 5]))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ports]
    constants = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = folder / f"net_{batch}.onnx"
    onnx.save(model, path)
    return path


def compiled(folder: Path, source: Path, *options: str, aipp: str = "") -> int:
    """The id of a loaded model."""
    arguments = [f"--model={source}", "--framework=5", f"--output={folder}/m", "--soc_version=cpu", *options]
    if aipp:
        (folder / "aipp.cfg").write_text(f"aipp_op {{ {aipp} }}")
        arguments.append(f"--insert_op_conf={folder}/aipp.cfg")
    assert atc.run(arguments) == 0
    model, ret = acl.mdl.load_from_file(f"{folder}/m.om")
    check(ret, "load_from_file")
    return int(model)


def dataset(*arrays: np.ndarray) -> int:
    """A dataset with copies of arrays in device memory."""
    made = acl.mdl.create_dataset()
    for array in arrays:
        address, ret = acl.rt.malloc(max(array.nbytes, 1), HUGE)
        check(ret, "malloc")
        host = acl.util.numpy_to_ptr(array)
        check(acl.rt.memcpy(address, array.nbytes, host, array.nbytes, c.ACL_MEMCPY_HOST_TO_DEVICE), "memcpy")
        acl.mdl.add_dataset_buffer(made, acl.create_data_buffer(address, array.nbytes))
    return int(made)


def taken(made: int, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """The first tensor of a dataset."""
    buffer = acl.mdl.get_dataset_buffer(made, 0)
    size = acl.get_data_buffer_size_v2(buffer)
    return np.frombuffer(acl.util.ptr_to_bytes(acl.get_data_buffer_addr(buffer), size), dtype).reshape(shape)


def same(found: np.ndarray, wanted: Any, tolerance: float = 1e-5) -> None:
    """Compare results."""
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=tolerance, atol=tolerance)


def picture(batch: int = 1) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((batch, 3, SIDE, SIDE)).astype(np.float32)


def model_from_an_array(folder: Path) -> None:
    source = network(folder)
    model, x = compiled(folder, source), picture()
    desc = acl.mdl.create_desc()
    check(acl.mdl.get_desc(desc, model), "get_desc")
    assert acl.mdl.get_num_inputs(desc) == 1 and acl.mdl.get_input_size_by_index(desc, 0) == x.nbytes
    outputs = dataset(np.zeros((1, 5), np.float32))
    check(acl.mdl.execute(model, dataset(x), outputs), "execute")
    same(taken(outputs, (1, 5)), ge.compile(source)(x))
    check(acl.mdl.unload(model), "unload")


def model_in_a_stream(folder: Path) -> None:
    source = network(folder)
    model, x = compiled(folder, source), picture()
    stream, ret = acl.rt.create_stream()
    check(ret, "create_stream")
    sets = [(dataset(x * k), dataset(np.zeros((1, 5), np.float32))) for k in (1, 2, 3)]
    for inputs, outputs in sets:
        check(acl.mdl.execute_async(model, inputs, outputs, stream), "execute_async")
    check(acl.rt.synchronize_stream(stream), "synchronize_stream")
    wanted = ge.compile(source)
    for k, (_, outputs) in enumerate(sets, 1):
        same(taken(outputs, (1, 5)), wanted(x * np.float32(k)))
    check(acl.rt.destroy_stream(stream), "destroy_stream")


def model_with_gears(folder: Path) -> None:
    source = network(folder, "n")
    model = compiled(folder, source, "--input_shape=x:-1,3,32,32", "--dynamic_batch_size=1,4")
    desc = acl.mdl.create_desc()
    check(acl.mdl.get_desc(desc, model), "get_desc")
    index, ret = acl.mdl.get_input_index_by_name(desc, "ascend_mbatch_shape_data")
    check(ret, "get_input_index_by_name")
    for batch in (1, 4):
        x = picture(batch)
        inputs = dataset(x, np.zeros(acl.mdl.get_input_size_by_index(desc, index), np.uint8))
        outputs = dataset(np.zeros((4, 5), np.float32))
        check(acl.mdl.set_dynamic_batch_size(model, inputs, index, batch), "set_dynamic_batch_size")
        check(acl.mdl.execute(model, inputs, outputs), "execute")
        same(taken(outputs, (4, 5))[:batch], ge.compile(network(folder, batch))(x))


def model_in_threads(folder: Path) -> None:
    source = network(folder)
    model, wanted = compiled(folder, source), ge.compile(source)
    faults: list[BaseException] = []

    def work(k: int) -> None:
        try:
            check(acl.rt.set_device(0), "set_device")
            x = picture() * np.float32(k)
            outputs = dataset(np.zeros((1, 5), np.float32))
            check(acl.mdl.execute(model, dataset(x), outputs), "execute")
            same(taken(outputs, (1, 5)), wanted(x))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


def dump_of_a_model(folder: Path) -> None:
    source, x = network(folder), picture()
    model = compiled(folder, source)
    said = {"dump": {"dump_path": str(folder / "dump"), "dump_mode": "all", "dump_list": []}}
    (folder / "acl.json").write_text(json.dumps(said))
    check(acl.mdl.init_dump(), "init_dump")
    check(acl.mdl.set_dump(str(folder / "acl.json")), "set_dump")
    outputs = dataset(np.zeros((1, 5), np.float32))
    check(acl.mdl.execute(model, dataset(x), outputs), "execute")
    check(acl.mdl.finalize_dump(), "finalize_dump")
    files = {p.name: np.load(p) for p in (folder / "dump").rglob("*.npy")}
    same(files["input.x.npy"], x)
    same(files["output.y.npy"], taken(outputs, (1, 5)))


# -- pictures ----------------------------------------------------------------------------------------------------


def jpeg(pixels: np.ndarray, form: str = "JPEG") -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, quality=95)
    return stream.getvalue()


class Dvpp:
    """Wrapper of a picture channel, as in samples."""

    def __init__(self) -> None:
        self.stream, ret = acl.rt.create_stream()
        check(ret, "create_stream")
        self.channel = acl.media.dvpp_create_channel_desc()
        check(acl.media.dvpp_create_channel(self.channel), "dvpp_create_channel")
        self.config = acl.media.dvpp_create_resize_config()

    def picture(
        self, width: int, height: int, steps: tuple[int, int] = (16, 2), pixels: int | None = None
    ) -> int:
        """Create a picture with its memory; NV12 by default."""
        form = c.PIXEL_FORMAT_YUV_SEMIPLANAR_420 if pixels is None else pixels
        stride, rows = (-(-v // s) * s for v, s in zip((width, height), steps, strict=True))
        if pixels is not None:
            stride *= 3
        size = stride * rows * 3 // 2 if pixels is None else stride * rows
        data, ret = acl.media.dvpp_malloc(size)
        check(ret, "dvpp_malloc")
        desc = acl.media.dvpp_create_pic_desc()
        values = {"data": data, "size": size, "format": form, "width": width, "height": height,
                  "width_stride": stride, "height_stride": rows}  # fmt: skip
        for name, value in values.items():
            check(getattr(acl.media, f"dvpp_set_pic_desc_{name}")(desc, value), name)
        return int(desc)

    def decoded(self, file: bytes) -> int:
        """Decode a JPEG file to a picture."""
        address = acl.util.bytes_to_ptr(file)
        width, height, _, ret = acl.media.dvpp_jpeg_get_image_info(address, len(file))
        check(ret, "dvpp_jpeg_get_image_info")
        desc = self.picture(width, height, (128, 16))
        check(acl.media.dvpp_jpeg_decode_async(self.channel, address, len(file), desc, self.stream), "decode")
        check(acl.rt.synchronize_stream(self.stream), "synchronize_stream")
        return desc

    def resized(self, source: int) -> int:
        """Resize a picture to the network's input size."""
        target = self.picture(SIDE, SIDE)
        check(
            acl.media.dvpp_vpc_resize_async(self.channel, source, target, self.config, self.stream), "resize"
        )
        check(acl.rt.synchronize_stream(self.stream), "synchronize_stream")
        return target

    def bytes_of(self, desc: int) -> np.ndarray:
        """The bytes of a picture."""
        size = acl.media.dvpp_get_pic_desc_size(desc)
        return np.frombuffer(acl.util.ptr_to_bytes(acl.media.dvpp_get_pic_desc_data(desc), size), np.uint8)


def coloured(colour: tuple[int, int, int]) -> np.ndarray:
    return np.full((90, 120, 3), colour, np.uint8)


COLOURS = ((200, 40, 60), (30, 180, 60), (40, 60, 210), (220, 210, 40))


def _labels(folder: Path, model: int, found: Callable[[Dvpp, np.ndarray], tuple[int, ...]]) -> None:
    """Classify pictures; the labels must equal the network's for their pixels."""
    plain, dvpp = ge.compile(network(folder)), Dvpp()
    for colour in COLOURS:
        pixels = coloured(colour)
        x = np.broadcast_to((np.asarray(colour, np.float32) * np.float32(0.00392))[None, :, None, None],
                            (1, 3, SIDE, SIDE))  # fmt: skip
        outputs = dataset(np.zeros((1, 5), np.float32))
        check(acl.mdl.execute(model, found(dvpp, pixels)[0], outputs), "execute")
        scores, wanted = taken(outputs, (1, 5)), plain(np.ascontiguousarray(x))
        assert np.argmax(scores) == np.argmax(wanted), (scores, wanted)
        same(scores, wanted, 0.05)


def jpeg_to_label(folder: Path) -> None:
    model = compiled(folder, network(folder), aipp=f"aipp_mode: static input_format: YUV420SP_U8 {_YUV}")
    _labels(folder, model, lambda d, p: (dataset(d.bytes_of(d.resized(d.decoded(jpeg(p))))),))


def jpeg_crop_to_label(folder: Path) -> None:
    model = compiled(folder, network(folder), aipp=f"aipp_mode: static input_format: YUV420SP_U8 {_YUV}")

    def cropped(dvpp: Dvpp, pixels: np.ndarray) -> tuple[int, ...]:
        framed = np.zeros((180, 240, 3), np.uint8)
        framed[32:122, 64:184] = pixels
        source, part = dvpp.decoded(jpeg(framed)), dvpp.picture(64, 64)
        area = acl.media.dvpp_create_roi_config(80, 143, 48, 111)
        check(acl.media.dvpp_vpc_crop_async(dvpp.channel, source, part, area, dvpp.stream), "crop")
        check(acl.rt.synchronize_stream(dvpp.stream), "synchronize_stream")
        return (dataset(dvpp.bytes_of(dvpp.resized(part))),)

    _labels(folder, model, cropped)


def dynamic_aipp_to_label(folder: Path) -> None:
    model = compiled(folder, network(folder), aipp="aipp_mode: dynamic max_src_image_size: 32768")
    desc = acl.mdl.create_desc()
    check(acl.mdl.get_desc(desc, model), "get_desc")
    assert acl.mdl.get_aipp_type(model, 0)[0] == c.ACL_DATA_WITH_DYNAMIC_AIPP

    def fed(_: Dvpp, pixels: np.ndarray) -> tuple[int, ...]:
        settings = np.zeros(acl.mdl.get_input_size_by_index(desc, 1), np.uint8)
        inputs = dataset(np.ascontiguousarray(pixels), settings)
        aipp = acl.mdl.create_aipp(1)
        check(acl.mdl.set_aipp_input_format(aipp, c.ACL_RGB888_U8), "set_aipp_input_format")
        check(acl.mdl.set_aipp_src_image_size(aipp, 120, 90), "set_aipp_src_image_size")
        check(acl.mdl.set_aipp_crop_params(aipp, 1, 8, 4, SIDE, SIDE, 0), "set_aipp_crop_params")
        check(
            acl.mdl.set_aipp_pixel_var_reci(aipp, 0.00392, 0.00392, 0.00392, 1, 0), "set_aipp_pixel_var_reci"
        )
        check(acl.mdl.set_aipp_by_input_index(model, inputs, 0, aipp), "set_aipp_by_input_index")
        return (inputs,)

    _labels(folder, model, fed)


def static_aipp_is_told(folder: Path) -> None:
    text = "aipp_mode: static input_format: RGB888_U8 mean_chn_1: 7 var_reci_chn_2: 0.5"
    found, ret = acl.mdl.get_first_aipp_info(compiled(folder, network(folder), aipp=text), 0)
    check(ret, "get_first_aipp_info")
    assert (found["input_format"], found["mean_chn_1"], found["var_reci_chn_2"]) == ("RGB888_U8", 7, 0.5)


def jpeg_is_encoded(folder: Path) -> None:
    from PIL import Image

    dvpp, pixels = Dvpp(), coloured(COLOURS[0])
    source = dvpp.decoded(jpeg(pixels))
    config = acl.media.dvpp_create_jpege_config()
    check(acl.media.dvpp_set_jpege_config_level(config, 95), "dvpp_set_jpege_config_level")
    size, ret = acl.media.dvpp_jpeg_predict_enc_size(source, config)
    check(ret, "dvpp_jpeg_predict_enc_size")
    buffer, ret = acl.media.dvpp_malloc(size)
    check(ret, "dvpp_malloc")
    room = np.array([size], np.int32)
    pointer = acl.util.numpy_to_ptr(room)
    ret = acl.media.dvpp_jpeg_encode_async(dvpp.channel, source, buffer, pointer, config, dvpp.stream)
    check(ret, "dvpp_jpeg_encode_async")
    check(acl.rt.synchronize_stream(dvpp.stream), "synchronize_stream")
    again = np.asarray(Image.open(io.BytesIO(acl.util.ptr_to_bytes(buffer, int(room[0])))))
    assert abs(again.astype(int) - pixels).max() <= 12


def colours_are_converted(folder: Path) -> None:
    dvpp, pixels = Dvpp(), coloured(COLOURS[1])
    target = dvpp.picture(120, 90, pixels=c.PIXEL_FORMAT_RGB_888)
    source = dvpp.decoded(jpeg(pixels))
    check(acl.media.dvpp_vpc_convert_color_async(dvpp.channel, source, target, dvpp.stream), "convert_color")
    check(acl.rt.synchronize_stream(dvpp.stream), "synchronize_stream")
    rows = dvpp.bytes_of(target).reshape(-1, acl.media.dvpp_get_pic_desc_width_stride(target))
    assert abs(rows[:90, :360].reshape(90, 120, 3).astype(int) - pixels).max() <= 12


# -- runtime, operators, queues ----------------------------------------------------------------------------------


def memory_there_and_back(folder: Path) -> None:
    x = np.arange(1000, dtype=np.int32)
    device, ret = acl.rt.malloc(x.nbytes, HUGE)
    check(ret, "malloc")
    host, ret = acl.rt.malloc_host(x.nbytes)
    check(ret, "malloc_host")
    source = acl.util.numpy_to_ptr(x)
    check(acl.rt.memcpy(device, x.nbytes, source, x.nbytes, c.ACL_MEMCPY_HOST_TO_DEVICE), "memcpy")
    check(acl.rt.memcpy(host, x.nbytes, device, x.nbytes, c.ACL_MEMCPY_DEVICE_TO_HOST), "memcpy")
    np.testing.assert_array_equal(np.frombuffer(acl.util.ptr_to_bytes(host, x.nbytes), np.int32), x)
    free, total, ret = acl.rt.get_mem_info(c.ACL_HBM_MEM)
    check(ret, "get_mem_info")
    assert 0 < free <= total
    check(acl.rt.free(device), "free")
    check(acl.rt.free_host(host), "free_host")


def device_is_normal(folder: Path) -> None:
    status, ret = acl.rt.query_device_status(0)
    check(ret, "query_device_status")
    assert status == c.ACL_RT_DEVICE_STATUS_NORMAL


def product_of_matrices(folder: Path) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((4, 6), (6, 5)))
    made, one, zero = np.zeros((4, 5), np.float32), np.ones(1, np.float32), np.zeros(1, np.float32)
    pointers = {}
    for name, array in {"a": a, "b": b, "c": made, "alpha": one, "beta": zero}.items():
        pointers[name], ret = acl.rt.malloc(array.nbytes, HUGE)
        check(ret, "malloc")
        host = acl.util.numpy_to_ptr(array)
        acl.rt.memcpy(pointers[name], array.nbytes, host, array.nbytes, c.ACL_MEMCPY_HOST_TO_DEVICE)
    stream, ret = acl.rt.create_stream()
    check(ret, "create_stream")
    kind, trans = c.ACL_FLOAT, c.ACL_TRANS_N
    ret = acl.blas.gemm_ex(trans, trans, trans, 4, 5, 6, pointers["alpha"], pointers["a"], -1, kind, pointers["b"],
                           -1, kind, pointers["beta"], pointers["c"], -1, kind, c.ACL_COMPUTE_HIGH_PRECISION,
                           stream)  # fmt: skip
    check(ret, "gemm_ex")
    check(acl.rt.synchronize_stream(stream), "synchronize_stream")
    same(np.frombuffer(acl.util.ptr_to_bytes(pointers["c"], made.nbytes), np.float32).reshape(4, 5), a @ b)


def tensors_through_a_channel(folder: Path) -> None:
    channel = acl.tdt.create_channel(0, "conformance")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = acl.util.numpy_to_ptr(x)
    item = acl.tdt.create_data_item(c.ACL_TENSOR_DATA_TENSOR, [2, 3], c.ACL_FLOAT, data, x.nbytes)
    sent = acl.tdt.create_dataset()
    check(acl.tdt.add_data_item(sent, item), "add_data_item")
    check(acl.tdt.send_tensor(channel, sent, 1000), "send_tensor")
    got = acl.tdt.create_dataset()
    check(acl.tdt.receive_tensor(channel, got, 1000), "receive_tensor")
    received = acl.tdt.get_data_item(got, 0)
    size = acl.tdt.get_data_size_from_item(received)
    raw = acl.util.ptr_to_bytes(acl.tdt.get_data_addr_from_item(received), size)
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32).reshape(2, 3), x)
    check(acl.tdt.stop_channel(channel), "stop_channel")
    check(acl.tdt.destroy_channel(channel), "destroy_channel")


def profile_of_a_model(folder: Path) -> None:
    model, x = compiled(folder, network(folder)), picture()
    check(acl.prof.init(str(folder / "prof")), "init")
    config = acl.prof.create_config([0], 0, 0, c.ACL_PROF_ACL_API | c.ACL_PROF_TASK_TIME)
    check(acl.prof.start(config), "start")
    check(acl.mdl.execute(model, dataset(x), dataset(np.zeros((1, 5), np.float32))), "execute")
    check(acl.prof.stop(config), "stop")
    check(acl.prof.destroy_config(config), "destroy_config")
    check(acl.prof.finalize(), "finalize")
    assert any(p.suffix == ".json" and "net" in p.read_text() for p in (folder / "prof").rglob("*"))


PROGRAMS: dict[str, tuple[Callable[[Path], None], ...]] = {
    "runtime": (memory_there_and_back, device_is_normal),
    "models": (model_from_an_array, model_in_a_stream, model_with_gears, model_in_threads, dump_of_a_model),
    "pictures to labels": (jpeg_to_label, jpeg_crop_to_label, dynamic_aipp_to_label),
    "pictures": (jpeg_is_encoded, colours_are_converted, static_aipp_is_told),
    "operators, channels, profiles": (product_of_matrices, tensors_through_a_channel, profile_of_a_model),
}


def run(program: Callable[[Path], None]) -> str:
    """Run a program between init and finalize; returns the reason for a failure, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(acl.init(), "init")
            check(acl.rt.set_device(0), "set_device")
            program(Path(folder))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            acl.rt.reset_device(0)
            acl.finalize()
    return ""


def main() -> int:
    """Run all programs and print counts by family; returns 1 if one fails."""
    failed: Counter[str] = Counter()
    for family, programs in PROGRAMS.items():
        for program in programs:
            why = run(program)
            failed[family] += bool(why)
            print(f"{'pass' if not why else 'fail'}  {program.__name__}  {why}".rstrip())
    for family, programs in PROGRAMS.items():
        print(f"{family}: {len(programs) - failed[family]} of {len(programs)} pass")
    return int(sum(failed.values()) > 0)


if __name__ == "__main__":
    sys.exit(main())
