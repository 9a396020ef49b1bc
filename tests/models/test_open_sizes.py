"""Models whose files leave sizes open, called with many sizes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import ge
from ge import atc
from ge.errors import GeError
from ge.hybrid import specialise
from ge.open_model import MOST_PROGRAMS, OpenModel
from ge.options import CompileOptions
from ge.parsers.onnx import model as onnx_model

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[N, length, 4] x, float[N, 1, 4] y) => (float[N, K, 4] z, float[N, length] s)
<float[4, 4] w = {1.,2.,0.,1.,0.,1.,3.,1.,2.,2.,1.,0.,1.,1.,1.,1.}>
{
  a = MatMul (x, w)
  b = Add (a, y)
  z = Relu (b)
  s = ReduceMax <axes = [2], keepdims = 0> (z)
}
"""


def _inputs(batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(batch * 100 + length)
    return (
        rng.normal(size=(batch, length, 4)).astype(np.float32),
        rng.normal(size=(batch, 1, 4)).astype(np.float32),
    )


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def _check(model: Any, proto: onnx.ModelProto, batch: int, length: int) -> None:
    x, y = _inputs(batch, length)
    expected = ReferenceEvaluator(proto).run(None, {"x": x, "y": y})
    for found, want in zip(model(x, y), expected, strict=True):
        assert found.shape == want.shape
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_sizes_come_with_the_calls(proto: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "net.onnx")
    model = ge.compile(tmp_path / "net.onnx")
    assert isinstance(model, OpenModel)
    assert model.sizes == {"x": (-1, -1, 4), "y": (-1, 1, 4)}
    for batch, length in ((2, 3), (1, 1), (2, 3), (5, 7), (0, 2)):
        _check(model, proto, batch, length)
    x, y = _inputs(2, 3)
    np.testing.assert_array_equal(model(x=x, y=y)[1], model(x, y)[1])
    assert len(model._programs) == 4


def test_programs_are_bounded(proto: onnx.ModelProto) -> None:
    model = ge.compile(proto)
    for length in range(1, MOST_PROGRAMS + 4):
        _check(model, proto, 1, length)
    assert len(model._programs) == MOST_PROGRAMS
    _check(model, proto, 1, 1)


def test_programs_with_heavy_weights_are_fewer(
    proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is lowered to the weights of two programs: of a model of gigabytes it holds as it is."""
    model = ge.compile(proto)
    assert isinstance(model, OpenModel)
    _check(model, proto, 1, 3)
    assert model.packed_bytes > 0
    monkeypatch.setattr(specialise, "MOST_BYTES", 2 * model.packed_bytes)
    for length in range(4, 9):
        _check(model, proto, 1, length)
    assert len(model._programs) == 2


def test_programs_share_large_weights_of_external_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_model, "_SHARED_BYTES", 64)
    table = np.arange(40, dtype=np.float32).reshape(10, 4)
    text = '<ir_version: 8, opset_import: ["" : 17]> net (int64[n] x) => (float[n, 4] y) { y = Gather (table, x) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="net.bin", size_threshold=0)
    model = ge.compile(path)
    assert isinstance(model, OpenModel)
    for count in (2, 3):
        np.testing.assert_array_equal(model(np.arange(count)), table[:count])
    held = [c for m in model._programs.values() for c in m.plan.constants if c.shape == table.shape]
    assert len(held) == 3 and all(np.shares_memory(c, held[0]) for c in held)
    assert not held[0].flags.writeable
    (tmp_path / "net.bin").write_bytes((table + 1).tobytes())
    np.testing.assert_array_equal(model(np.arange(4)), table[:4] + 1)


def test_what_is_not_open_is_refused(proto: onnx.ModelProto) -> None:
    model = ge.compile(proto)
    with pytest.raises(GeError, match=r"no program yet.*x: \[-1, -1, 4\]"):
        _ = model.plan
    x, y = _inputs(2, 3)
    with pytest.raises(GeError, match=r"input 'x' has the shape \[2, 3, 5\], the model takes \[-1, -1, 4\]"):
        model(np.zeros((2, 3, 5), np.float32), y)
    with pytest.raises(GeError, match=r"float64\[2,3,4\], the model takes float32"):
        model(x.astype(np.float64), y)
    with pytest.raises(GeError, match="takes 2 inputs, got 1"):
        model(x)
    _check(model, proto, 2, 3)


def test_some_sizes_given(proto: onnx.ModelProto, tmp_path: Path) -> None:
    """A size of -1 among the given ones is open; the same name elsewhere takes the given size."""
    model = ge.compile(proto, CompileOptions(input_shapes={"x": (3, -1, 4)}))
    assert model.sizes == {"x": (3, -1, 4), "y": (3, 1, 4)}
    _check(model, proto, 3, 5)
    with pytest.raises(GeError, match=r"the model takes \[3, -1, 4\]"):
        model(*_inputs(2, 5))
    whole = ge.compile(proto, CompileOptions(input_shapes={"x": (3, 2, 4)}))
    assert not isinstance(whole, OpenModel)


def test_an_open_batch_has_a_program_at_once(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> net (float[N, 3] x) => (float[N, 3] y) { y = Exp (x) }'
    )
    model = ge.compile(proto)
    assert model.inputs[0].desc.shape == (1, 3)
    for batch in (4, 1, 2):
        x = np.random.default_rng(batch).normal(size=(batch, 3)).astype(np.float32)
        np.testing.assert_allclose(model(x), np.exp(x), rtol=1e-6)
    assert ge.load(model.save(tmp_path / "one.om")).inputs[0].desc.shape == (1, 3)


def test_threads_share_programs(proto: onnx.ModelProto) -> None:
    model = ge.compile(proto)
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for i in range(8):
                _check(model, proto, 1 + (first + i) % 3, 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert model._programs.made == 3


def test_a_graph_of_tensorflow(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")

    @tf.function(input_signature=[tf.TensorSpec((None, None, 3), name="x")])
    def mean(x: Any) -> Any:
        return tf.reduce_mean(x, 1) * tf.cast(tf.shape(x)[1], tf.float32)

    module = tf.Module()
    module.mean = mean
    tf.saved_model.save(module, str(tmp_path / "saved"), mean)
    model = ge.compile(tmp_path / "saved")
    assert list(model.sizes.values()) == [(-1, -1, 3)]
    for shape in ((2, 5, 3), (1, 1, 3), (4, 2, 3)):
        x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(model(x), mean(x).numpy(), rtol=1e-5, atol=1e-6)


def test_ranges_are_gears(proto: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(proto, tmp_path / "net.onnx")
    arguments = [f"--model={tmp_path / 'net.onnx'}", f"--output={tmp_path / 'net'}"]
    assert atc.run([*arguments, "--input_shape=x:1~2,2~3,4;y:1~2,1,4"]) == 0
    model = ge.load(tmp_path / "net.om")
    _check(model, proto, 2, 3)
    with pytest.raises(GeError, match="no gear of the model fits"):
        model(*_inputs(3, 3))
    assert atc.run([*arguments, "--input_shape=x:1~20,1~20,4;y:1,1,4"]) != 0
    assert atc.run([*arguments, "--input_shape=x:3~2,1,4;y:1,1,4"]) != 0
