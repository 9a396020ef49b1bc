"""acl.op: single operators by type, attributes and tensor descriptions, compiled when first used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import acl
from ge import atc

OK = acl.ACL_SUCCESS
A = np.random.default_rng(0).standard_normal((3, 4), np.float32)
CODES = {"float32": acl.ACL_FLOAT, "float16": acl.ACL_FLOAT16, "int32": acl.ACL_INT32, "int64": acl.ACL_INT64}


class Tensors:
    """Arrays as descriptions and data buffers."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = [np.ascontiguousarray(a) for a in arrays]
        self.descs = [
            acl.create_tensor_desc(CODES[a.dtype.name], list(a.shape), acl.ACL_FORMAT_ND) for a in self.arrays
        ]
        self.buffers = [acl.create_data_buffer(acl.util.numpy_to_ptr(a), a.nbytes) for a in self.arrays]


def execute(op: str, inputs: Tensors, outputs: Tensors, attr: int = 0) -> int:
    ret: int = acl.op.execute_v2(op, inputs.descs, inputs.buffers, outputs.descs, outputs.buffers, attr, 0)
    return ret or acl.rt.synchronize_stream(0)


def test_an_operator_runs(device: int) -> None:
    inputs, outputs = Tensors(A, A), Tensors(np.zeros_like(A))
    assert execute("Add", inputs, outputs) == OK, acl.get_recent_err_msg()
    np.testing.assert_allclose(outputs.arrays[0], A + A)


def test_attributes_are_given_by_name(device: int) -> None:
    attr = acl.op.create_attr()
    assert acl.op.set_attr_bool(attr, "transpose_x1", False) == OK
    assert acl.op.set_attr_bool(attr, "transpose_x2", True) == OK
    outputs = Tensors(np.zeros((3, 3), np.float32))
    assert execute("MatMul", Tensors(A, A), outputs, attr) == OK, acl.get_recent_err_msg()
    np.testing.assert_allclose(outputs.arrays[0], A @ A.T, rtol=1e-5)
    acl.op.destroy_attr(attr)
    lists = acl.op.create_attr()
    assert acl.op.set_attr_list_int(lists, "axes", [1]) == OK
    assert acl.op.set_attr_bool(lists, "keep_dims", False) == OK
    outputs = Tensors(np.zeros(3, np.float32))
    assert execute("ReduceSumD", Tensors(A), outputs, lists) == OK, acl.get_recent_err_msg()
    np.testing.assert_allclose(outputs.arrays[0], A.sum(1), rtol=1e-5)


def test_the_cast_of_the_samples(device: int) -> None:
    inputs, outputs = Tensors(A), Tensors(np.zeros_like(A, np.float16))
    ret = acl.op.cast(inputs.descs[0], inputs.buffers[0], outputs.descs[0], outputs.buffers[0], 0, 0)
    assert (ret, acl.rt.synchronize_stream(0)) == (OK, OK)
    np.testing.assert_array_equal(outputs.arrays[0], A.astype(np.float16))


def test_operators_of_a_frameworks_name_with_constant_inputs(device: int) -> None:
    inputs = Tensors(A, np.array(1, np.int32))
    dimension = np.array(1, np.int32)
    assert acl.set_tensor_const(inputs.descs[1], acl.util.numpy_to_ptr(dimension), 4) == OK
    outputs = Tensors(np.zeros(3, np.int32))
    assert execute("ArgMax", inputs, outputs) == OK, acl.get_recent_err_msg()
    np.testing.assert_array_equal(outputs.arrays[0], A.argmax(1))


def test_a_prepared_operator_runs_again_and_again(device: int) -> None:
    inputs, outputs = Tensors(A), Tensors(np.zeros_like(A))
    handle, ret = acl.op.create_handle("Relu", inputs.descs, outputs.descs, 0)
    assert ret == OK
    stream, _ = acl.rt.create_stream()
    for _ in range(10):
        assert acl.op.execute_with_handle(handle, inputs.buffers, outputs.buffers, stream) == OK
    assert acl.rt.synchronize_stream(stream) == OK
    np.testing.assert_array_equal(outputs.arrays[0], np.maximum(A, 0))
    acl.op.destroy_handle(handle)
    assert acl.op.execute_with_handle(handle, inputs.buffers, outputs.buffers, stream) != OK


def test_compiled_operators_are_found_in_a_directory(device: int, tmp_path: Path) -> None:
    tensor = {"format": "ND", "shape": [3, 4], "type": "float32"}
    (tmp_path / "ops.json").write_text(
        json.dumps([{"op": "Exp", "input_desc": [tensor], "output_desc": [tensor]}])
    )
    assert atc.run([f"--singleop={tmp_path}/ops.json", f"--output={tmp_path}/ops"]) == 0
    assert acl.op.set_model_dir(str(tmp_path / "ops")) == OK
    outputs = Tensors(np.zeros_like(A))
    assert execute("Exp", Tensors(A), outputs) == OK
    np.testing.assert_allclose(outputs.arrays[0], np.exp(A), rtol=1e-5)
    assert acl.op.set_model_dir(str(tmp_path / "none")) != OK


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "code"),
    [
        ("Nonsense", [A], [A], acl.ACL_ERROR_OP_NOT_FOUND),
        ("Add", [A], [A], acl.ACL_ERROR_OP_INPUT_NOT_MATCH),
        ("Relu", [A], [np.zeros(5, np.float32)], acl.ACL_ERROR_OP_INPUT_NOT_MATCH),
    ],
)
def test_mistakes_give_codes(
    device: int, op: str, inputs: list[np.ndarray], outputs: list[np.ndarray], code: int
) -> None:
    assert execute(op, Tensors(*inputs), Tensors(*outputs)) == code
    assert acl.get_recent_err_msg()


def test_buffers_that_are_too_small_give_codes(device: int) -> None:
    inputs, outputs = Tensors(A), Tensors(np.zeros_like(A))
    small = [acl.create_data_buffer(acl.util.numpy_to_ptr(A), 8)]
    assert acl.op.execute_v2("Relu", inputs.descs, small, outputs.descs, outputs.buffers, 0, 0) != OK
    assert acl.op.execute_v2("Relu", inputs.descs, inputs.buffers, outputs.descs, small, 0, 0) != OK
    assert acl.op.execute_v2("Relu", inputs.descs, [], outputs.descs, outputs.buffers, 0, 0) != OK
    assert acl.op.execute_v2("Relu", [1], inputs.buffers, outputs.descs, outputs.buffers, 0, 0) != OK


def test_descriptions_tell_what_they_hold() -> None:
    desc = acl.create_tensor_desc(acl.ACL_FLOAT16, [2, 3], acl.ACL_FORMAT_ND)
    assert acl.get_tensor_desc_type(desc) == acl.ACL_FLOAT16
    assert acl.get_tensor_desc_size(desc) == 12
    assert acl.get_tensor_desc_element_count(desc) == 6
    assert acl.get_tensor_desc_num_dims(desc) == 2
    assert acl.get_tensor_desc_dim_v2(desc, 1) == (3, OK)
    assert acl.get_tensor_desc_dim_v2(desc, 7)[1] != OK
    acl.set_tensor_desc_name(desc, "x")
    assert acl.get_tensor_desc_name(desc) == "x"
    assert acl.destroy_tensor_desc(desc) == OK
    assert acl.create_tensor_desc(99, [2], 2) == 0
    assert acl.data_type_size(acl.ACL_BF16) == 2
