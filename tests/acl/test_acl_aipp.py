"""Dynamic AIPP through acl.mdl, and what is told about static AIPP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import acl
import ge
from ge import aipp, atc
from ge.ops.builder import GraphBuilder
from tests.atc import model_files

OK = acl.ACL_SUCCESS
RNG = np.random.default_rng(0)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return model_files.images(tmp_path / "m.onnx")


def compiled(network: Path, text: str, folder: Path) -> int:
    (folder / "aipp.cfg").write_text(text)
    assert atc.run([f"--model={network}", f"--insert_op_conf={folder}/aipp.cfg", f"--output={folder}/m"]) == 0
    model, ret = acl.mdl.load_from_file(f"{folder}/m.om")
    assert ret == OK
    return int(model)


def dataset(*arrays: np.ndarray) -> int:
    made = acl.mdl.create_dataset()
    for array in arrays:
        address, ret = acl.rt.malloc(max(array.nbytes, 1), acl.ACL_MEM_MALLOC_HUGE_FIRST)
        assert ret == OK
        host = acl.util.numpy_to_ptr(array)
        assert acl.rt.memcpy(address, array.nbytes, host, array.nbytes, acl.ACL_MEMCPY_HOST_TO_DEVICE) == OK
        acl.mdl.add_dataset_buffer(made, acl.create_data_buffer(address, array.nbytes))
    return int(made)


def run(model: int, inputs: int, shape: tuple[int, ...]) -> np.ndarray:
    outputs = dataset(np.zeros(shape, np.float32))
    assert acl.mdl.execute(model, inputs, outputs) == OK, acl.get_recent_err_msg()
    buffer = acl.mdl.get_dataset_buffer(outputs, 0)
    content = acl.util.ptr_to_bytes(acl.get_data_buffer_addr(buffer), acl.get_data_buffer_size_v2(buffer))
    return np.frombuffer(content, np.float32).reshape(shape)


def test_settings_of_a_run(device: int, network: Path, tmp_path: Path) -> None:
    plain = ge.compile(network)
    batch, channels, height, width = plain.inputs[0].desc.shape
    model = compiled(network, "aipp_op { aipp_mode: dynamic max_src_image_size: 4096 }", tmp_path)
    desc = acl.mdl.create_desc()
    assert acl.mdl.get_desc(desc, model) == OK and acl.mdl.get_num_inputs(desc) == 2
    index, ret = acl.mdl.get_input_index_by_name(desc, acl.ACL_DYNAMIC_AIPP_NAME)
    assert (index, ret, acl.mdl.get_input_size_by_index(desc, 0)) == (1, OK, 4096)
    assert acl.mdl.get_aipp_type(model, 0) == (acl.ACL_DATA_WITH_DYNAMIC_AIPP, 1, OK)
    shape = plain.outputs[0].desc.shape
    for swap, mean in ((0, 0.0), (1, 10.0)):
        images = RNG.integers(0, 256, (batch, height + 2, width + 4, 3), np.uint8)
        inputs = dataset(images, np.zeros(acl.mdl.get_input_size_by_index(desc, 1), np.uint8))
        handle = acl.mdl.create_aipp(batch)
        assert acl.mdl.set_aipp_input_format(handle, acl.ACL_RGB888_U8) == OK
        assert acl.mdl.set_aipp_src_image_size(handle, width + 4, height + 2) == OK
        assert acl.mdl.set_aipp_rbuv_swap_switch(handle, swap) == OK
        for image in range(batch):
            assert acl.mdl.set_aipp_crop_params(handle, 1, 4, 2, width, height, image) == OK
            assert acl.mdl.set_aipp_dtc_pixel_mean(handle, mean, mean, mean, 0, image) == OK
            assert acl.mdl.set_aipp_pixel_var_reci(handle, 0.5, 0.25, 0.125, 1, image) == OK
        setter, place = (acl.mdl.set_aipp_by_input_index, 0) if swap else (acl.mdl.set_input_aipp, index)
        assert setter(model, inputs, place, handle) == OK
        wanted = images[:, 2:, 4:].astype(np.float32)[..., :: -1 if swap else 1]
        wanted = ((wanted - np.float32(mean)) * np.float32([0.5, 0.25, 0.125])).transpose(0, 3, 1, 2)
        found = run(model, inputs, shape)
        np.testing.assert_allclose(
            found, plain(np.ascontiguousarray(wanted[:, :channels])), rtol=1e-4, atol=1e-3
        )
        assert acl.mdl.destroy_aipp(handle) == OK


def test_what_is_not_set_or_does_not_fit_is_a_code(device: int, network: Path, tmp_path: Path) -> None:
    model = compiled(network, "aipp_op { aipp_mode: dynamic max_src_image_size: 4096 }", tmp_path)
    inputs = dataset(np.zeros(16, np.uint8), np.zeros(4096, np.uint8))
    outputs = dataset(np.zeros(ge.compile(network).outputs[0].desc.shape, np.float32))
    assert acl.mdl.execute(model, inputs, outputs) == acl.ACL_ERROR_INVALID_PARAM
    assert "set_input_aipp" in acl.get_recent_err_msg()
    handle = acl.mdl.create_aipp(1)
    assert acl.mdl.set_input_aipp(model, inputs, 0, handle) == acl.ACL_ERROR_INVALID_PARAM
    assert acl.mdl.set_aipp_by_input_index(model, inputs, 1, handle) == acl.ACL_ERROR_INVALID_PARAM
    assert acl.mdl.set_aipp_input_format(handle, 99) == acl.ACL_ERROR_INVALID_PARAM
    assert acl.mdl.set_aipp_crop_params(handle, 1, 0, 0, 2, 2, 5) == acl.ACL_ERROR_INVALID_PARAM
    assert acl.mdl.set_input_aipp(model, inputs, 1, handle) == OK
    assert acl.mdl.execute(model, inputs, outputs) != OK
    assert acl.mdl.get_first_aipp_info(model, 0)[1] == acl.ACL_ERROR_GE_AIPP_NOT_EXIST
    assert acl.mdl.create_aipp(0) == 0


def test_static_pre_processing_is_told(device: int, network: Path, tmp_path: Path) -> None:
    text = "aipp_op { aipp_mode: static input_format: RGB888_U8 mean_chn_1: 7 var_reci_chn_2: 0.5 }"
    model = compiled(network, text, tmp_path)
    found, ret = acl.mdl.get_first_aipp_info(model, 0)
    assert ret == OK and found["input_format"] == "RGB888_U8"
    assert (found["mean_chn_1"], found["var_reci_chn_2"], found["matrix_r0c0"]) == (7, 0.5, 256)
    assert acl.mdl.get_aipp_type(model, 0)[::2] == (acl.ACL_DATA_WITH_STATIC_AIPP, OK)


def test_a_dynamic_block_only_has_its_record() -> None:
    builder = GraphBuilder("net")
    builder.output(builder.op("Relu", builder.input("x", (1, 3, 4, 4), "float32")))
    configs = aipp.parse_text("aipp_op { aipp_mode: dynamic max_src_image_size: 48 }")
    (record,) = aipp.insert(builder.graph, configs)
    assert (record["input"], record["mode"], record["config"]["max_src_image_size"]) == (0, "dynamic", 48)
    assert len(builder.graph) == 1
