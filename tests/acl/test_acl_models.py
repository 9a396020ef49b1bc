"""acl.mdl and acl.Model: the way of the public samples from a file to results, and what can go wrong."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import acl
from tests.model.plans import expected

OK = acl.ACL_SUCCESS


class Net:
    """What the public inference samples do, in one class."""

    def __init__(self, path: str, input_sizes: list[int] | None = None) -> None:
        self.model_id, ret = acl.mdl.load_from_file(path)
        assert ret == OK, acl.get_recent_err_msg()
        self.desc = acl.mdl.create_desc()
        assert acl.mdl.get_desc(self.desc, self.model_id) == OK
        self.inputs = self._dataset(acl.mdl.get_num_inputs, acl.mdl.get_input_size_by_index)
        self.outputs = self._dataset(acl.mdl.get_num_outputs, acl.mdl.get_output_size_by_index)

    def _dataset(self, count: Any, size_of: Any) -> int:
        dataset = acl.mdl.create_dataset()
        for index in range(count(self.desc)):
            size = size_of(self.desc, index)
            pointer, ret = acl.rt.malloc(size, acl.ACL_MEM_MALLOC_NORMAL_ONLY)
            assert ret == OK
            assert acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(pointer, size))[1] == OK
        return dataset

    def feed(self, x: np.ndarray, index: int = 0) -> None:
        data = x.tobytes()
        pointer = acl.util.bytes_to_ptr(data)
        target = acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(self.inputs, index))
        size = acl.get_data_buffer_size(acl.mdl.get_dataset_buffer(self.inputs, index))
        assert acl.rt.memcpy(target, size, pointer, len(data), acl.ACL_MEMCPY_HOST_TO_DEVICE) == OK

    def result(self) -> np.ndarray:
        dims, ret = acl.mdl.get_cur_output_dims(self.desc, 0)
        assert ret == OK
        count = int(np.prod(dims["dims"])) * 4
        host, ret = acl.rt.malloc_host(count)
        source = acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(self.outputs, 0))
        assert acl.rt.memcpy(host, count, source, count, acl.ACL_MEMCPY_DEVICE_TO_HOST) == OK
        array = np.frombuffer(acl.util.ptr_to_bytes(host, count), np.float32).reshape(dims["dims"])
        assert acl.rt.free_host(host) == OK
        return array

    def release(self) -> None:
        for dataset in (self.inputs, self.outputs):
            for index in range(acl.mdl.get_dataset_num_buffers(dataset)):
                buffer = acl.mdl.get_dataset_buffer(dataset, index)
                assert acl.rt.free(acl.get_data_buffer_addr(buffer)) == OK
                assert acl.destroy_data_buffer(buffer) == OK
            assert acl.mdl.destroy_dataset(dataset) == OK
        assert acl.mdl.destroy_desc(self.desc) == OK
        assert acl.mdl.unload(self.model_id) == OK


def test_the_way_of_the_samples(device: int, model_file: str) -> None:
    net = Net(model_file)
    x = np.random.default_rng(1).standard_normal((2, 4), np.float32)
    net.feed(x)
    assert acl.mdl.execute(net.model_id, net.inputs, net.outputs) == OK
    np.testing.assert_allclose(net.result(), expected(x), rtol=1e-6)
    net.release()


def test_execution_in_a_stream(device: int, model_file: str) -> None:
    net = Net(model_file)
    stream, _ = acl.rt.create_stream()
    x = np.full((2, 4), 2, np.float32)
    net.feed(x)
    for _ in range(20):
        assert acl.mdl.execute_async(net.model_id, net.inputs, net.outputs, stream) == OK
    assert acl.rt.synchronize_stream(stream) == OK
    np.testing.assert_allclose(net.result(), expected(x), rtol=1e-6)
    assert acl.rt.destroy_stream(stream) == OK
    net.release()


def test_a_model_from_memory(device: int, model_file: str) -> None:
    data = Path(model_file).read_bytes()
    model_id, ret = acl.mdl.load_from_mem(acl.util.bytes_to_ptr(data), len(data))
    assert ret == OK
    assert acl.mdl.unload(model_id) == OK


def test_a_model_by_configuration(device: int, model_file: str) -> None:
    handle = acl.mdl.create_config_handle()
    assert acl.mdl.load_with_config(handle)[1] != OK
    assert acl.mdl.set_config_opt(handle, acl.ACL_MDL_PATH_PTR, model_file) == OK
    model_id, ret = acl.mdl.load_with_config(handle)
    assert (ret, acl.mdl.unload(model_id), acl.mdl.destroy_config_handle(handle)) == (OK, OK, OK)


def test_a_description_tells_names_shapes_types_and_formats(device: int, model_file: str) -> None:
    net = Net(model_file)
    assert acl.mdl.get_num_inputs(net.desc) == 1
    assert acl.mdl.get_input_name_by_index(net.desc, 0) == "x"
    assert acl.mdl.get_output_name_by_index(net.desc, 0) == "y"
    assert acl.mdl.get_input_dims(net.desc, 0) == ({"name": "x", "dimCount": 2, "dims": [2, 4]}, OK)
    assert acl.mdl.get_output_dims(net.desc, 0) == ({"name": "y", "dimCount": 2, "dims": [2, 3]}, OK)
    assert acl.mdl.get_input_data_type(net.desc, 0) == acl.ACL_FLOAT
    assert acl.mdl.get_output_format(net.desc, 0) == acl.ACL_FORMAT_ND
    assert acl.mdl.get_input_index_by_name(net.desc, "x") == (0, OK)
    assert acl.mdl.get_input_index_by_name(net.desc, "z")[1] != OK
    assert acl.mdl.get_output_index_by_name(net.desc, "y") == (0, OK)
    assert acl.mdl.get_input_dims(net.desc, 5)[1] != OK
    assert acl.mdl.get_output_size_by_index(net.desc, 9) == 0
    work, weight, ret = acl.mdl.query_size(model_file)
    assert (work > 0, weight, ret) == (True, 60, OK)


def test_files_that_are_no_models_give_codes(device: int, tmp_path: Path, model_file: str) -> None:
    foreign = tmp_path / "foreign.om"
    foreign.write_bytes(b"IMOD" + bytes(1000))
    broken = tmp_path / "broken.om"
    broken.write_bytes(Path(model_file).read_bytes()[:-10])
    assert acl.mdl.load_from_file(str(tmp_path / "none.om")) == (0, acl.ACL_ERROR_INVALID_FILE)
    assert acl.mdl.load_from_file(str(foreign)) == (0, acl.ACL_ERROR_PARSE_MODEL)
    assert "Ascend" in acl.get_recent_err_msg()
    assert acl.mdl.load_from_file(str(broken)) == (0, acl.ACL_ERROR_INVALID_FILE_SIZE)
    assert acl.mdl.load_from_mem(0, 100)[1] != OK


def test_datasets_that_do_not_fit_give_codes(device: int, model_file: str) -> None:
    net = Net(model_file)
    empty, small = acl.mdl.create_dataset(), acl.mdl.create_dataset()
    pointer, _ = acl.rt.malloc(8, 0)
    acl.mdl.add_dataset_buffer(small, acl.create_data_buffer(pointer, 8))
    execute = acl.mdl.execute
    assert execute(net.model_id, empty, net.outputs) == acl.ACL_ERROR_MODEL_INPUT_NOT_MATCH
    assert execute(net.model_id, small, net.outputs) == acl.ACL_ERROR_MODEL_INPUT_NOT_MATCH
    assert execute(net.model_id, net.inputs, small) == acl.ACL_ERROR_MODEL_OUTPUT_NOT_MATCH
    assert execute(net.model_id + 1, net.inputs, net.outputs) == acl.ACL_ERROR_INVALID_MODEL_ID
    acl.rt.free(acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(net.inputs, 0)))
    # The freed memory may still be mapped, so this run may succeed; it must not crash.
    assert isinstance(execute(net.model_id, net.inputs, net.outputs), int)


def test_gears_are_set_before_execution(device: int, geared_file: str) -> None:
    net = Net(geared_file)
    index, ret = acl.mdl.get_input_index_by_name(net.desc, "ascend_mbatch_shape_data")
    assert (index, ret) == (1, OK)
    assert acl.mdl.get_dynamic_batch(net.desc) == ({"batchCount": 3, "batch": [1, 2, 8]}, OK)
    assert acl.mdl.get_input_dims(net.desc, 0)[0]["dims"] == [-1, 4]
    assert acl.mdl.get_output_size_by_index(net.desc, 0) == 8 * 3 * 4
    assert acl.mdl.execute(net.model_id, net.inputs, net.outputs) != OK
    for batch in (2, 8, 1):
        assert acl.mdl.set_dynamic_batch_size(net.model_id, net.inputs, index, batch) == OK
        x = np.full((batch, 4), batch, np.float32)
        net.feed(x)
        assert acl.mdl.execute(net.model_id, net.inputs, net.outputs) == OK
        np.testing.assert_allclose(net.result(), expected(x), rtol=1e-6)
    assert acl.mdl.set_dynamic_batch_size(net.model_id, net.inputs, index, 3) != OK
    assert acl.mdl.set_dynamic_batch_size(net.model_id, net.inputs, 0, 1) != OK
    assert (
        acl.mdl.set_dynamic_hw_size(net.model_id, net.inputs, index, 1, 1) == acl.ACL_ERROR_MODEL_NOT_DYNAMIC
    )
    net.release()


def test_a_model_without_gears_says_so(device: int, model_file: str) -> None:
    net = Net(model_file)
    code = acl.mdl.set_dynamic_batch_size(net.model_id, net.inputs, 0, 1)
    assert code == acl.ACL_ERROR_MODEL_NOT_DYNAMIC
    assert acl.mdl.get_dynamic_batch(net.desc) == ({"batchCount": 0, "batch": []}, OK)


def test_one_model_in_several_threads(device: int, model_file: str) -> None:
    context, _ = acl.rt.get_context()
    model_id, _ = acl.mdl.load_from_file(model_file)
    failures: list[Any] = []

    def work(value: int) -> None:
        acl.rt.set_context(context)
        x, y = np.full((2, 4), value, np.float32), np.zeros((2, 3), np.float32)
        inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
        acl.mdl.add_dataset_buffer(inputs, acl.create_data_buffer(acl.util.numpy_to_ptr(x), x.nbytes))
        acl.mdl.add_dataset_buffer(outputs, acl.create_data_buffer(acl.util.numpy_to_ptr(y), y.nbytes))
        for _ in range(50):
            ret = acl.mdl.execute(model_id, inputs, outputs)
            if ret != OK or not np.allclose(y, expected(x)):
                failures.append((ret, y))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_the_pythonic_model(model_file: str, geared_file: str) -> None:
    model = acl.Model(model_file)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(model(x), expected(x), rtol=1e-6)
    np.testing.assert_allclose(model(x=x), expected(x), rtol=1e-6)
    np.testing.assert_allclose(model.run([x])[0], expected(x), rtol=1e-6)
    assert [p.name for p in model.inputs] == ["x"]
    assert acl.Model(geared_file)(np.ones((8, 4), np.float32)).shape == (8, 3)


def test_a_profile_of_a_model(model_file: Path, tmp_path: Path) -> None:
    text = acl.Model(model_file).profile(tmp_path / "trace.json", repeats=1)
    assert "total" in text
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize("name", ["mdl", "rt", "op", "util"])
def test_every_function_is_documented(name: str) -> None:
    module = getattr(acl, name)
    for key, value in vars(module).items():
        if callable(value) and not key.startswith("_") and getattr(value, "__module__", "").startswith("acl"):
            assert value.__doc__, f"acl.{name}.{key}"
