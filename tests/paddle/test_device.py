"""`paddle.set_device("npu")`: eager operators have the values of the CPU device, hot ones run on the engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle has an environment of its own: make test-paddle")

import paddle
import paddle.nn.functional as F

import paddle_npu
from ge.errors import GeError
from paddle_npu import eager, native
from paddle_npu.__main__ import main

RANDOM = np.random.default_rng(5)


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return np.abs(real(*shape)) + np.float32(0.3)


def results(device: str, function: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """What a function gives on a device, and the gradients of a weighted sum by its arguments."""
    paddle.set_device(device)
    tensors = [paddle.to_tensor(a, stop_gradient=a.dtype.kind != "f") for a in arrays]
    made = function(*tensors)
    assert str(made.place) == f"Place({'npu:0' if device == 'npu' else 'cpu'})"
    found = [made.numpy()]
    if not made.stop_gradient:
        weights = np.random.default_rng(3).random(made.shape).astype(np.float32)
        (made.astype("float32") * paddle.to_tensor(weights)).sum().backward()
        found += [t.grad.numpy() for t in tensors if not t.stop_gradient]
    return found


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "matmul": (paddle.matmul, (real(3, 4, 5), real(5, 6))),
    "matmul of transposed": (lambda x, y: paddle.matmul(x, y, True, True), (real(2, 5, 4), real(2, 6, 5))),
    "matmul of vectors": (paddle.matmul, (real(3, 4), real(4))),
    "bmm": (paddle.bmm, (real(2, 3, 4), real(2, 4, 5))),
    "conv2d": (lambda x, w: F.conv2d(x, w, None, 2, 1), (real(2, 3, 8, 8), real(4, 3, 3, 3))),
    "conv2d of groups": (
        lambda x, w: F.conv2d(x, w, None, 1, "SAME", 2, 2),
        (real(2, 4, 8, 8), real(6, 2, 3, 3)),
    ),
    "depthwise conv2d": (lambda x, w: F.conv2d(x, w, None, 1, 1, 1, 4), (real(2, 4, 8, 8), real(4, 1, 3, 3))),
    "conv2d of channels last": (
        lambda x, w: F.conv2d(x, w, None, 1, [1, 0], data_format="NHWC"),
        (real(2, 6, 7, 3), real(4, 3, 3, 2)),
    ),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, 6, w, b), (real(3, 4, 6), real(6), real(6))),
    "layer_norm of two axes": (lambda x: F.layer_norm(x, (4, 6)), (real(3, 4, 6),)),
    "softmax": (lambda x: F.softmax(x, 1), (real(3, 4, 5),)),
    "gelu": (F.gelu, (real(3, 4),)),
    "gelu by tanh": (lambda x: F.gelu(x, True), (real(3, 4),)),
    "relu": (F.relu, (real(3, 4),)),
    "relu in place": (lambda x: F.relu_(x * 1), (real(3, 4),)),
    "sigmoid": (F.sigmoid, (real(3, 4),)),
    "tanh": (paddle.tanh, (real(3, 4),)),
    "exp": (paddle.exp, (real(3, 4),)),
    "add": (paddle.add, (real(3, 4), real(3, 4))),
    "add of a row": (paddle.add, (real(3, 4), real(4))),
    "add of a column": (paddle.add, (real(3, 1), real(3, 4))),
    "add to itself": (lambda x: x + x, (real(3, 4),)),
    "subtract": (paddle.subtract, (real(3, 4), real(4))),
    "multiply": (paddle.multiply, (real(3, 4), real(2, 3, 4))),
    "multiply by a number": (lambda x, y: x * y, (real(3, 4), real())),
    "divide": (paddle.divide, (real(3, 4), positive(4))),
    "batch norm in training": (
        lambda x, w, b: F.batch_norm(x, paddle.zeros([3]), paddle.ones([3]), w, b, training=True),
        (real(4, 3, 5, 5), real(3), real(3)),
    ),
    "batch norm in inference": (
        lambda x, w, b: F.batch_norm(x, paddle.ones([3]), paddle.full([3], 2.0), w, b),
        (real(4, 3, 5), real(3), real(3)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hot_operator_runs_on_the_engine(name: str) -> None:
    function, arrays = CASES[name]
    before = paddle_npu.counts().eager
    ours = results("npu", function, arrays)
    assert paddle_npu.counts().eager > before
    for mine, theirs in zip(ours, results("cpu", function, arrays), strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


COPIES: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.transpose([1, 0, 2]).contiguous(),
    "every second": lambda x: x[:, ::2].contiguous(),
    "written into a slice": lambda x: paddle.zeros_like(x).slice_scatter(x[:, :2], [1], [1], [3], [1]),
    "broadcast": lambda x: x[:, :1].expand([3, 4, 2]).contiguous(),
    "no element": lambda x: x[:, :0].transpose([1, 0, 2]).contiguous(),
    "without axes": lambda x: x[0, 0, 0].contiguous(),
}


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float64", "complex64"]
)
@pytest.mark.parametrize("name", COPIES)
def test_views_are_copied_in_every_element_type(name: str, dtype: str) -> None:
    found = []
    for device in ("npu", "cpu"):
        paddle.set_device(device)
        x = paddle.to_tensor(np.arange(24).reshape(3, 4, 2) % 5).astype(dtype)
        found.append(COPIES[name](x).astype("complex64").numpy())
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "bfloat16", "float64", "complex64"])
def test_gradients_of_views_begin_with_zeros(dtype: str) -> None:
    """PaddlePaddle fills the memory that a view's gradient is put into with its kernel `fill`."""
    paddle.set_device("npu")
    x = paddle.to_tensor(np.ones((3, 4)), stop_gradient=False)
    x[:, 1].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.eye(4)[[1, 1, 1]])
    y = paddle.zeros([2, 3], dtype)
    y.fill_(1)
    np.testing.assert_array_equal(y.astype("float32").numpy(), np.ones((2, 3)))


def test_other_operators_run_on_paddles_kernels() -> None:
    paddle.set_device("npu")
    x = paddle.to_tensor(real(4, 4))
    q, r = paddle.linalg.qr(x)
    assert str(r.place) == "Place(npu:0)"
    np.testing.assert_allclose(paddle.matmul(q, r).numpy(), x.numpy(), rtol=1e-5, atol=1e-5)
    assert int((paddle.arange(5) + 1).sum()) == 15


def joined(a: Any, b: Any) -> Any:
    return paddle.concat([a, b], axis=1) * 2


def over_one_axis(x: Any, w: Any) -> Any:
    return F.conv1d(x, w, padding=1)


_kept: list[Any] = []  # see tests/paddle/support.py


def _compiled_results(device: str, function: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    paddle.set_device(device)
    _kept.append(paddle.jit.to_static(function, full_graph=True))
    tensors = [paddle.to_tensor(a, stop_gradient=False) for a in arrays]
    result = _kept[-1](*tensors)
    (result**2).sum().backward()
    return [result.numpy(), *(t.grad.numpy() for t in tensors)]


@pytest.mark.parametrize("engine", [True, False])
def test_a_copy_in_a_program_of_the_device(engine: bool) -> None:
    """`conv1d` assigns its filter; PaddlePaddle's own executor runs that by the device's kernel."""
    (paddle_npu.enable if engine else paddle_npu.disable)()
    arrays = real(2, 4, 9), real(6, 4, 3)
    ours = _compiled_results("npu", over_one_axis, *arrays)
    for mine, theirs in zip(ours, _compiled_results("cpu", over_one_axis, *arrays), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5)


def test_paddles_own_executor_has_no_gradient_of_concat_on_a_device() -> None:
    """It copies operands to the CPU whose memory it has let go; a device's kernel cannot take its kind of axis."""
    arrays = real(3, 4), real(3, 2)
    paddle_npu.disable()
    expected = _compiled_results("cpu", joined, *arrays)
    with pytest.raises(RuntimeError, match="Tensor holds no memory"):
        _compiled_results("npu", joined, *arrays)
    paddle_npu.enable(strict=True)
    for mine, theirs in zip(_compiled_results("npu", joined, *arrays), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_streams_events_and_copies_between_devices() -> None:
    paddle.set_device("npu")
    x = paddle.to_tensor(real(3, 4))
    stream, event = paddle.device.Stream(), paddle.device.Event()
    event.record(stream)
    stream.wait_event(event)
    event.synchronize()
    stream.synchronize()
    paddle.device.synchronize("npu")
    assert event.query() and stream.query()
    host = x.cpu()
    assert str(host.place) == "Place(cpu)"
    np.testing.assert_array_equal(host.to("npu").numpy(), x.numpy())


def test_what_the_engine_refuses_runs_on_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = eager._on_engine

    def choose(signature: Any) -> Any:
        if signature.name.startswith("matmul"):
            raise GeError("E10022", "refused for a test")
        return accept(signature)

    monkeypatch.setattr(eager, "_on_engine", choose)
    paddle_npu.enable()
    paddle_npu.reset_counts()
    function, arrays = paddle.matmul, (real(5, 7), real(7, 3))
    with pytest.warns(UserWarning, match=r"pd_op\.matmul"):
        ours = results("npu", function, arrays)
    for mine, theirs in zip(ours, results("cpu", function, arrays), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def test_a_script_needs_no_import_of_paddle_npu(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, paddle\n"
        "paddle.set_device('npu')\n"
        "x = paddle.ones([2, 3])\n"
        "print('sum', float((x @ x.T).sum()), sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "paddle_npu", "run", str(script), "last"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert not done.returncode, done.stderr[-3000:]
    assert "sum 12.0 last" in done.stdout
    assert "1 eager operators on the NPU" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run"], ["run", "absent.py"]])
def test_a_wrong_command_line_shows_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "usage: python -m paddle_npu" in capsys.readouterr().err


def test_the_device_is_copied_to_where_paddle_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_installed", lambda: tmp_path / "paddle_custom_device" / "paddle_npu.so")
    assert native.install().read_bytes() == native.library().read_bytes()
