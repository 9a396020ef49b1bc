"""acl.tdt: tensors through a channel."""

from __future__ import annotations

import threading

import numpy as np

import acl

OK = acl.ACL_SUCCESS


def dataset(*arrays: np.ndarray) -> int:
    made = acl.tdt.create_dataset()
    for array in arrays:
        kind = {"float32": acl.ACL_FLOAT, "int32": acl.ACL_INT32}[array.dtype.name]
        item = acl.tdt.create_data_item(
            acl.ACL_TENSOR_DATA_TENSOR, array.shape, kind, acl.util.numpy_to_ptr(array), array.nbytes
        )
        assert item and acl.tdt.add_data_item(made, item) == OK
    return int(made)


def test_what_is_sent_is_received_in_order(device: int) -> None:
    sender, receiver = (acl.tdt.create_channel_with_capacity(0, "train", 2) for _ in range(2))
    wanted = [(np.full((2, i + 1), i, np.float32), np.arange(i, dtype=np.int32)) for i in range(6)]

    def send() -> None:
        for pair in wanted:
            copies = [a.copy() for a in pair]
            assert acl.tdt.send_tensor(sender, dataset(*copies), -1) == OK
            for array in copies:
                array[...] = -1  # the channel has its own

    thread = threading.Thread(target=send)
    thread.start()
    for real, whole in wanted:
        got = acl.tdt.create_dataset()
        assert acl.tdt.receive_tensor(receiver, got, -1) == OK and acl.tdt.get_dataset_size(got) == 2
        for index, array in enumerate((real, whole)):
            item = acl.tdt.get_data_item(got, index)
            assert acl.tdt.get_tensor_type_from_item(item) == acl.ACL_TENSOR_DATA_TENSOR
            assert acl.tdt.get_dims_from_item(item) == list(array.shape)
            content = acl.util.ptr_to_bytes(
                acl.tdt.get_data_addr_from_item(item), acl.tdt.get_data_size_from_item(item)
            )
            assert content == array.tobytes()
        assert acl.tdt.destroy_dataset(got) == OK
    thread.join()
    assert acl.tdt.query_channel_size(receiver) == 0
    assert acl.tdt.destroy_channel(sender) == OK and acl.tdt.destroy_channel(receiver) == OK


def test_waiting_ends_in_time_and_when_a_channel_is_stopped(device: int) -> None:
    channel = acl.tdt.create_channel_with_capacity(0, "slow", 1)
    empty = acl.tdt.create_dataset()
    assert acl.tdt.receive_tensor(channel, empty, 1) == acl.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
    full = dataset(np.ones(3, np.float32))
    assert acl.tdt.send_tensor(channel, full, 0) == OK
    assert acl.tdt.send_tensor(channel, full, 1) == acl.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
    assert acl.tdt.stop_channel(channel) == OK
    assert acl.tdt.receive_tensor(channel, empty, -1) == OK  # what was sent before is still there
    assert acl.tdt.receive_tensor(channel, empty, -1) == acl.ACL_ERROR_FAILURE
    assert acl.tdt.send_tensor(channel, full, -1) == acl.ACL_ERROR_FAILURE
    assert acl.tdt.destroy_channel(channel) == OK
    assert acl.tdt.create_channel(99, "nowhere") == 0
    assert acl.tdt.get_data_item(empty, 5) == 0
