"""acl.rt: devices, contexts, memory, streams, events, callbacks; wrong handles and addresses give codes."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

import acl

OK = acl.ACL_SUCCESS


def test_init_and_finalize_answer_a_second_time_with_a_code() -> None:
    assert acl.init() == OK
    assert acl.init() == acl.ACL_ERROR_REPEAT_INITIALIZE
    assert acl.finalize() == OK
    assert acl.finalize() == acl.ACL_ERROR_REPEAT_FINALIZE
    assert acl.init("no/such/file.json") == acl.ACL_ERROR_INVALID_FILE


def test_devices_are_counted(device: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert acl.rt.get_device_count() == (1, OK)
    assert acl.rt.get_device() == (0, OK)
    assert acl.rt.set_device(7) == acl.ACL_ERROR_RT_INVALID_DEVICEID
    assert acl.rt.set_device(None) == acl.ACL_ERROR_RT_INVALID_DEVICEID  # type: ignore[arg-type]
    assert acl.rt.get_run_mode() == (acl.ACL_HOST, OK)
    assert isinstance(acl.get_soc_name(), str)


def test_a_thread_needs_a_context(device: int) -> None:
    codes: list[int] = []
    context, ret = acl.rt.create_context(0)
    assert ret == OK

    def work() -> None:
        codes.append(acl.rt.malloc(16, 0)[1])
        codes.append(acl.rt.set_context(context))
        codes.append(acl.rt.malloc(16, 0)[1])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert codes == [acl.ACL_ERROR_RT_CONTEXT_NULL, OK, OK]
    assert acl.rt.get_context() == (context, OK)
    assert acl.rt.destroy_context(context) == OK
    assert acl.rt.set_context(context) == acl.ACL_ERROR_RT_CONTEXT_NULL


def test_a_wrong_number_of_arguments_raises(device: int) -> None:
    with pytest.raises(TypeError):
        acl.rt.malloc()  # type: ignore[call-arg]


# -- memory -----------------------------------------------------------------------------------------


def test_data_goes_to_the_device_and_back(device: int) -> None:
    source = np.arange(100, dtype=np.float32)
    target = np.zeros_like(source)
    pointer, ret = acl.rt.malloc(source.nbytes, acl.ACL_MEM_MALLOC_HUGE_FIRST)
    assert ret == OK
    to_device, to_host = acl.ACL_MEMCPY_HOST_TO_DEVICE, acl.ACL_MEMCPY_DEVICE_TO_HOST
    assert acl.rt.memcpy(pointer, 400, acl.util.numpy_to_ptr(source), 400, to_device) == OK
    assert acl.rt.memcpy(acl.util.numpy_to_ptr(target), 400, pointer, 400, to_host) == OK
    np.testing.assert_array_equal(source, target)
    assert acl.rt.memset(pointer, 400, 0, 400) == OK
    assert acl.util.ptr_to_bytes(pointer, 400) == bytes(400)
    assert acl.rt.free(pointer) == OK


def test_memory_is_given_back_once(device: int) -> None:
    pointer, _ = acl.rt.malloc(64, 0)
    assert acl.rt.free(pointer + 8) == acl.ACL_ERROR_RT_PARAM_INVALID
    assert acl.rt.free_host(pointer) == acl.ACL_ERROR_RT_PARAM_INVALID
    assert acl.rt.free(pointer) == OK
    assert acl.rt.free(pointer) == acl.ACL_ERROR_RT_PARAM_INVALID
    assert "free" in acl.get_recent_err_msg()
    assert acl.get_recent_err_msg() == ""


def test_copies_stay_within_their_memory(device: int) -> None:
    device_pointer, _ = acl.rt.malloc(64, 0)
    host_pointer, _ = acl.rt.malloc_host(64)
    to_device = acl.ACL_MEMCPY_HOST_TO_DEVICE
    assert acl.rt.memcpy(device_pointer, 64, host_pointer, 64, to_device) == OK
    assert acl.rt.memcpy(device_pointer + 32, 32, host_pointer, 32, to_device) == OK
    for wrong in (
        (device_pointer, 64, host_pointer, 65, to_device),  # more than fits
        (device_pointer, 128, host_pointer, 100, to_device),  # more than there is
        (device_pointer + 32, 64, host_pointer, 64, to_device),
        (device_pointer, 64, 0, 64, to_device),
        (device_pointer, 64, 12345, 64, to_device),  # not memory of ours at all
        (8, 64, host_pointer, 64, acl.ACL_MEMCPY_HOST_TO_HOST),
        (host_pointer, 64, host_pointer, 64, to_device),  # host memory called device memory
        (host_pointer, 64, host_pointer, 64, acl.ACL_MEMCPY_DEVICE_TO_HOST),
        (device_pointer, 64, host_pointer, 0, to_device),
        (device_pointer, 64, host_pointer, 64, 17),
        (device_pointer, 64, None, 64, to_device),
        (device_pointer, 64, 1 << 70, 64, to_device),
        (-1, 64, host_pointer, 64, to_device),
    ):
        assert acl.rt.memcpy(*wrong) != OK, wrong


def test_code_cannot_be_overwritten(device: int) -> None:
    host_pointer, _ = acl.rt.malloc_host(64)
    code = ctypes.cast(ctypes.pythonapi.Py_GetVersion, ctypes.c_void_p).value
    assert code is not None
    assert acl.rt.memcpy(code, 64, host_pointer, 64, acl.ACL_MEMCPY_HOST_TO_HOST) != OK


def test_impossible_sizes_are_refused(device: int) -> None:
    assert acl.rt.malloc(1 << 50, 0) == (0, acl.ACL_ERROR_RT_MEMORY_ALLOCATION)
    assert acl.rt.malloc(0, 0)[1] == acl.ACL_ERROR_INVALID_PARAM
    assert acl.rt.malloc(-5, 0)[1] == acl.ACL_ERROR_INVALID_PARAM
    assert acl.rt.malloc_host(1 << 50)[1] == acl.ACL_ERROR_RT_MEMORY_ALLOCATION


def test_device_memory_is_accounted(device: int) -> None:
    free, total, ret = acl.rt.get_mem_info(acl.ACL_HBM_MEM)
    assert ret == OK
    assert 0 < free <= total
    pointer, _ = acl.rt.malloc(1 << 20, 0)
    assert free - acl.rt.get_mem_info(acl.ACL_HBM_MEM)[0] >= 1 << 20
    acl.rt.free(pointer)


def test_an_array_over_memory_survives_its_release(device: int) -> None:
    pointer, _ = acl.rt.malloc(16, 0)
    acl.rt.memset(pointer, 16, 1, 16)
    array = acl.util.ptr_to_numpy(pointer, (16,), 2)
    acl.rt.free(pointer)
    assert array.tolist() == [1] * 16


def test_addresses_of_temporaries_hold_for_the_next_call(device: int) -> None:
    pointer, _ = acl.rt.malloc(1 << 20, 0)
    data = np.arange(1 << 17, dtype=np.int64)
    address = acl.util.bytes_to_ptr(data.tobytes())
    assert acl.rt.memcpy(pointer, 1 << 20, address, 1 << 20, acl.ACL_MEMCPY_HOST_TO_DEVICE) == OK
    np.testing.assert_array_equal(acl.util.ptr_to_numpy(pointer, (1 << 17,), 7), data)


def test_util_refuses_what_is_no_memory(device: int) -> None:
    with pytest.raises(ValueError):
        acl.util.ptr_to_bytes(12345, 10)
    with pytest.raises(TypeError):
        acl.util.numpy_to_ptr([1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        acl.util.bytes_to_ptr("text")  # type: ignore[arg-type]
    pointer, whole = acl.util.numpy_contiguous_to_ptr(np.arange(6).reshape(2, 3).T)
    assert whole.flags.c_contiguous
    assert acl.util.ptr_to_bytes(pointer, whole.nbytes) == whole.tobytes()


def test_memory_for_images_is_device_memory(device: int) -> None:
    pointer, ret = acl.media.dvpp_malloc(64)
    assert ret == OK
    assert acl.rt.memset(pointer, 64, 1, 64) == OK
    assert acl.media.dvpp_free(pointer) == OK


# -- streams ----------------------------------------------------------------------------------------


def test_a_stream_keeps_the_order(device: int) -> None:
    stream, ret = acl.rt.create_stream()
    assert ret == OK
    pointer, _ = acl.rt.malloc(64, 0)
    for value in range(50):
        assert acl.rt.memset_async(pointer, 64, value, 64, stream) == OK
    assert acl.rt.synchronize_stream(stream) == OK
    assert acl.util.ptr_to_bytes(pointer, 1) == bytes([49])
    assert acl.rt.stream_query(stream) == (acl.ACL_STREAM_STATUS_COMPLETE, OK)
    assert acl.rt.destroy_stream(stream) == OK
    assert acl.rt.synchronize_stream(stream) == acl.ACL_ERROR_RT_PARAM_INVALID


def test_memory_freed_early_lives_until_the_stream_is_done(device: int) -> None:
    stream, _ = acl.rt.create_stream()
    gate, _ = acl.rt.create_event()
    other, _ = acl.rt.create_stream()
    source, _ = acl.rt.malloc(1 << 20, 0)
    target, _ = acl.rt.malloc(1 << 20, 0)
    acl.rt.memset(source, 1 << 20, 7, 1 << 20)
    assert acl.rt.stream_wait_event(stream, gate) == OK
    assert (
        acl.rt.memcpy_async(target, 1 << 20, source, 1 << 20, acl.ACL_MEMCPY_DEVICE_TO_DEVICE, stream) == OK
    )
    assert acl.rt.free(source) == OK
    assert acl.rt.record_event(gate, other) == OK
    assert acl.rt.synchronize_stream(stream) == OK
    assert acl.util.ptr_to_bytes(target, 1 << 20) == b"\x07" * (1 << 20)


def test_events_mark_and_measure(device: int) -> None:
    stream, _ = acl.rt.create_stream()
    start, end = acl.rt.create_event()[0], acl.rt.create_event()[0]
    assert acl.rt.query_event(start) == (acl.ACL_EVENT_STATUS_NOT_READY, OK)
    begun = time.perf_counter()
    assert acl.rt.record_event(start, stream) == OK
    acl.rt.synchronize_event(start)
    time.sleep(0.01)
    assert acl.rt.record_event(end, stream) == OK
    assert acl.rt.synchronize_event(end) == OK
    passed = time.perf_counter() - begun
    assert acl.rt.query_event(end) == (acl.ACL_EVENT_STATUS_COMPLETE, OK)
    milliseconds, ret = acl.rt.event_elapsed_time(start, end)
    assert ret == OK
    assert 5 < milliseconds < 1e3 * passed + 1
    assert acl.rt.destroy_event(start) == OK
    assert acl.rt.event_elapsed_time(start, end)[1] != OK


def test_a_stream_waits_for_another(device: int) -> None:
    first, second = acl.rt.create_stream()[0], acl.rt.create_stream()[0]
    event, _ = acl.rt.create_event()
    pointer, _ = acl.rt.malloc(64, 0)
    acl.rt.stream_wait_event(second, event)
    acl.rt.memset_async(pointer, 64, 2, 64, second)
    time.sleep(0.02)
    acl.rt.memset_async(pointer, 64, 1, 64, first)
    acl.rt.record_event(event, first)
    assert acl.rt.synchronize_device() == OK
    assert acl.util.ptr_to_bytes(pointer, 1) == b"\x02"


def test_destroying_a_stream_gives_up_waiting_for_an_event_that_never_comes(device: int) -> None:
    stream, _ = acl.rt.create_stream()
    event, _ = acl.rt.create_event()
    acl.rt.stream_wait_event(stream, event)
    assert acl.rt.synchronize_stream_with_timeout(stream, 20) == acl.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
    assert acl.rt.destroy_stream(stream) == OK


def test_callbacks_run_in_the_subscribed_thread(device: int) -> None:
    context, _ = acl.rt.get_context()
    stream, _ = acl.rt.create_stream()
    seen: list[tuple[str, int]] = []
    stop = threading.Event()

    def serve(arguments: list[int]) -> None:
        acl.rt.set_context(arguments[0])
        while not stop.is_set():
            acl.rt.process_report(arguments[1])

    thread, ret = acl.util.start_thread(serve, [context, 20])
    assert ret == OK
    assert acl.rt.launch_callback(print, "x", 1, stream) == acl.ACL_ERROR_STREAM_NOT_SUBSCRIBE
    assert acl.rt.subscribe_report(thread, stream) == OK
    assert acl.rt.subscribe_report(thread, stream) == acl.ACL_ERROR_REPEAT_SUBSCRIBE
    for word in ("a", "b"):
        assert (
            acl.rt.launch_callback(lambda w: seen.append((w, threading.get_ident())), word, 1, stream) == OK
        )
    assert acl.rt.synchronize_stream(stream) == OK
    assert seen == [("a", thread), ("b", thread)]
    assert acl.rt.unsubscribe_report(thread, stream) == OK
    stop.set()
    assert acl.util.stop_thread(thread) == OK
    assert acl.util.stop_thread(thread) == acl.ACL_ERROR_INVALID_PARAM


@pytest.mark.parametrize("handle", [0, -1, 12345, None, "stream", 1 << 80])
def test_wrong_handles_give_codes(device: int, handle: object) -> None:
    wrong: tuple[object, ...] = (
        acl.rt.destroy_stream(handle),  # type: ignore[arg-type]
        acl.rt.destroy_event(handle),  # type: ignore[arg-type]
        acl.rt.record_event(handle, 0),  # type: ignore[arg-type]
        acl.rt.set_context(handle),  # type: ignore[arg-type]
        acl.rt.free(handle),  # type: ignore[arg-type]
        acl.mdl.unload(handle),  # type: ignore[arg-type]
        acl.mdl.destroy_dataset(handle),  # type: ignore[arg-type]
        acl.mdl.destroy_desc(handle),  # type: ignore[arg-type]
        acl.mdl.get_desc(handle, 1),  # type: ignore[arg-type]
        acl.mdl.execute(handle, handle, handle),  # type: ignore[arg-type]
        acl.destroy_data_buffer(handle),
        acl.destroy_tensor_desc(handle),
        acl.mdl.get_input_dims(handle, 0)[1],  # type: ignore[arg-type]
    )
    assert all(isinstance(ret, int) and ret != OK for ret in wrong)
    assert acl.mdl.get_num_inputs(handle) == 0
    assert acl.create_data_buffer(handle, 16) == 0
    assert acl.get_data_buffer_addr(handle) == 0
