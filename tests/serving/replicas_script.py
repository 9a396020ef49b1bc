"""Run by test_replicas.py with two NPUs: prints `done`, or fails."""

from __future__ import annotations

import threading

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import acl
import ge
import npu_runtime


def classifier(batch: int | str) -> onnx.ModelProto:
    weights = np.linspace(-1, 1, 64 * 8).astype(np.float32).reshape(64, 8)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def arenas() -> list[int]:
    return [npu_runtime.memory_info(n)["arenas"] for n in range(2)]


def a_call_runs_where_it_is_told(model: ge.Model, rows: np.ndarray) -> None:
    before = arenas()
    with ge.on_device(1):
        other = model(rows[:4])
        assert npu_runtime.selected_device() == 1
    assert npu_runtime.selected_device() == -1
    assert arenas()[1] > before[1] and arenas()[0] == before[0], (before, arenas())
    np.testing.assert_array_equal(other, model(rows[:4]))
    assert arenas()[0] > before[0]
    seen: list[int] = []
    with ge.on_device(1):  # the choice is this thread's
        thread = threading.Thread(target=lambda: seen.append(npu_runtime.selected_device()))
        thread.start()
        thread.join()
    assert seen == [-1]


def batches_are_split(rows: np.ndarray, want: np.ndarray) -> None:
    for batch in (4, "n"):
        model = ge.compile(classifier(batch))
        with ge.Replicas(model) as npus:
            assert npus.devices == [0, 1]
            for count in (1, 4, 5, 11):
                (got,) = npus.run([rows[:count]])
                np.testing.assert_allclose(got, want[:count], rtol=1e-6)


def requests_keep_their_answers(model: ge.Model, rows: np.ndarray, want: np.ndarray) -> None:
    with ge.Replicas(model) as npus:
        answers = [npus.submit([np.roll(rows, n, axis=0)[:4]]) for n in range(60)]
        wrong = npus.submit([rows[:3]])
        for n, answer in enumerate(answers):
            np.testing.assert_allclose(answer.result()[0], np.roll(want, n, axis=0)[:4], rtol=1e-6)
        assert isinstance(wrong.exception(), ge.GeError)
        last = npus.submit([rows[:4]])
    np.testing.assert_allclose(last.result()[0], want[:4], rtol=1e-6)  # closing answers what was submitted
    for refused in (
        lambda: npus.submit([rows[:4]]),
        lambda: ge.Replicas(model, [0, 0]),
        lambda: ge.Replicas(model, [2]),
    ):
        try:
            refused()
        except ge.GeError:
            continue
        raise AssertionError("no error")


def acl_runs_on_the_device_of_the_context(model: ge.Model, rows: np.ndarray, want: np.ndarray) -> None:
    path = str(model.save("classifier.om"))
    acl.init()
    assert acl.rt.set_device(1) == 0
    npu_runtime.trim(0)
    npu_runtime.trim(1)
    before = arenas()
    np.testing.assert_allclose(acl.Model(path)(rows[:4]), want[:4], rtol=1e-6)
    assert arenas()[1] > before[1] and arenas()[0] == before[0], (before, arenas())
    npu_runtime.trim(1)
    number, _ = acl.mdl.load_from_file(path)
    results, sets = np.empty((4, 8), np.float32), []
    for array in (rows[:4].copy(), results):
        address = acl.util.numpy_to_ptr(array)
        sets.append((acl.mdl.create_dataset(), acl.create_data_buffer(address, array.nbytes), array))
        acl.mdl.add_dataset_buffer(*sets[-1][:2])
    assert acl.mdl.execute(number, sets[0][0], sets[1][0]) == 0
    np.testing.assert_allclose(results, want[:4], rtol=1e-6)
    assert arenas()[1] > before[1] and arenas()[0] == before[0], (before, arenas())


fixed = ge.compile(classifier(4))
ROWS = np.random.default_rng(0).standard_normal((11, 64)).astype(np.float32)
WANT = ge.compile(classifier(11))(ROWS)
npu_runtime.trim(0)
a_call_runs_where_it_is_told(fixed, ROWS)
batches_are_split(ROWS, WANT)
requests_keep_their_answers(fixed, ROWS, WANT)
acl_runs_on_the_device_of_the_context(fixed, ROWS, WANT)
print("done")
