"""Our own depthwise and 1x1 convolutions give what PyTorch's give."""

from __future__ import annotations

import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import FLOATS, needs_own_kernels, view

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda y: y,
    "relu": torch.relu,
    "clip,0.0,6.0": lambda y: torch.clip(y, 0, 6),
    "swish,1.0": torch.nn.functional.silu,
    "swish,1.5": lambda y: y * torch.sigmoid(1.5 * y),
    "hardswish": torch.nn.functional.hardswish,
}
_LIMITS = {"float32": 2e-6, "bfloat16": 6e-3}  # of the largest result

pytestmark = needs_own_kernels


_CHANNELS_FIRST = (0, 3, 1, 2)


class _Case:
    """A convolution of random channels-last data, run by the runtime and by PyTorch."""

    def __init__(self, shape: tuple[int, ...], kernel: int, outputs: int, groups: int, dtype: str) -> None:
        rng = np.random.default_rng(0)
        self.type = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        depth = shape[3] // groups
        self.dtype, self.groups = dtype, groups
        self.x = rng.standard_normal(shape).astype(self.type)
        scale = np.sqrt(kernel * kernel * depth)
        self.w = (rng.standard_normal((kernel, kernel, depth, outputs)) / scale).astype(self.type)
        self.bias = rng.standard_normal(outputs).astype(np.float32)
        self.rng = rng

    def check(
        self,
        implementation: str,
        stride: int = 1,
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        activation: str = "",
        residual: str = "",
        bias: bool = True,
        gated: bool = False,
        extra_channels: int = 0,
    ) -> None:
        """Compare; `pads` are top, left, bottom, right; `extra_channels` widen the rows of the target."""
        n, height, width, _ = self.x.shape
        kernel, outputs = self.w.shape[0], self.w.shape[3]
        rows = (height + pads[0] + pads[2] - kernel) // stride + 1
        columns = (width + pads[1] + pads[3] - kernel) // stride + 1
        whole = np.zeros((n, rows, columns, outputs + extra_channels), self.type)
        y = whole[..., :outputs]
        extra = self.rng.standard_normal(y.shape).astype(self.type)
        gate = self.rng.uniform(0, 1, (n, 1, 1, self.x.shape[3])).astype(self.type)
        program = rt.Program("conv")
        inputs = [
            view(program.input(0, self.x.nbytes), self.x, _CHANNELS_FIRST),
            view(program.constant(self.w), self.w, (3, 2, 0, 1)),
        ]
        feeds = [self.x]
        inputs += [view(program.constant(self.bias), self.bias)] if bias else []
        post_ops = []
        if gated:
            inputs.append(view(program.input(1, gate.nbytes), gate, _CHANNELS_FIRST))
            feeds.append(gate)
        if residual:
            post_ops.append(residual)
            if residual == "add":
                inputs.append(view(program.input(len(feeds), extra.nbytes), extra, _CHANNELS_FIRST))
                feeds.append(extra)
            else:
                y[...] = extra
        post_ops += [activation] if activation else []
        attrs = {
            "strides": [stride] * 2,
            "pads_begin": list(pads[:2]),
            "pads_end": list(pads[2:]),
            "groups": self.groups,
            "has_bias": bias,
            "has_gate": gated,
            "post_ops": post_ops,
            "implementation": implementation,
        }
        out = view(program.output(0, whole.nbytes), y, _CHANNELS_FIRST)
        program.task("conv", "conv", inputs, [out], attrs)
        program.finalize(0)
        name = program.task_info()[0]["impl"]
        assert name.startswith(implementation) or implementation.startswith("onednn")
        program.run(feeds, [whole])
        assert not whole[..., outputs:].any()

        gated_x = self.x * gate if gated else self.x
        source = torch.from_numpy(gated_x.astype(np.float64)).permute(0, 3, 1, 2)
        source = torch.nn.functional.pad(source, (pads[1], pads[3], pads[0], pads[2]))
        weight = torch.from_numpy(self.w.astype(np.float64)).permute(3, 2, 0, 1)
        offset = torch.from_numpy(self.bias.astype(np.float64)) if bias else None
        expected = torch.nn.functional.conv2d(source, weight, offset, stride, groups=self.groups)
        if residual:
            expected = expected + torch.from_numpy(extra.astype(np.float64)).permute(0, 3, 1, 2)
        expected = _ACTIVATIONS[activation](expected).permute(0, 2, 3, 1).numpy()
        error = np.abs(y.astype(np.float64) - expected).max()
        assert error <= _LIMITS[self.dtype] * max(np.abs(expected).max(), 1e-3)


_SWISH = [a for a in _ACTIVATIONS if a.startswith("swish")]


@pytest.mark.parametrize("dtype", list(_LIMITS))
@pytest.mark.parametrize(
    ("shape", "kernel", "pads", "activation", "residual"),
    [
        ((1, 112, 112, 32), 3, (1, 1, 1, 1), "swish,1.0", ""),
        ((1, 14, 14, 40), 5, (2, 2, 2, 2), "swish,1.5", "add"),
        ((1, 9, 30, 7), 7, (3, 3, 3, 3), "swish,1.0", "sum"),
        ((3, 5, 4, 16), 3, (0, 0, 0, 0), "swish,1.0", ""),
    ],
)
def test_depthwise(
    shape: tuple[int, ...], kernel: int, pads: tuple, activation: str, residual: str, dtype: str
) -> None:
    case = _Case(shape, kernel, shape[3], shape[3], dtype)
    case.check("depthwise", 1, pads, activation, residual)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_depthwise_of_any_size(data: st.DataObject) -> None:
    kernel = data.draw(st.sampled_from([3, 5, 7]))
    pads = tuple(data.draw(st.integers(0, kernel - 1)) for _ in range(4))
    shape = tuple(
        data.draw(st.integers(low, high)) for low, high in ((1, 3), (kernel, 20), (kernel, 20), (2, 50))
    )
    case = _Case(shape, kernel, shape[3], shape[3], data.draw(st.sampled_from([d.name for d in FLOATS])))
    case.check("depthwise", 1, pads, data.draw(st.sampled_from(_SWISH)), bias=data.draw(st.booleans()))


@pytest.mark.parametrize("dtype", list(_LIMITS))
@pytest.mark.parametrize("activation", list(_ACTIVATIONS))
def test_strided_and_dense_convolutions_with_any_activation(activation: str, dtype: str) -> None:
    """Swish is done in place after these."""
    pads = (1, 1, 1, 1)
    name = "onednn_swish" if activation in _SWISH else "onednn"
    _Case((1, 60, 60, 48), 3, 48, 48, dtype).check(name, 2, pads, activation)
    _Case((2, 33, 31, 3), 3, 70, 1, dtype).check(name, 1, pads, activation, "add")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_pointwise_of_any_size(data: st.DataObject) -> None:
    depth = 2 * data.draw(st.integers(1, 60))
    shape = tuple(data.draw(st.integers(low, 12)) for low in (1, 4, 4))
    case = _Case(
        (*shape, depth),
        1,
        data.draw(st.integers(1, 150)),
        1,
        data.draw(st.sampled_from([d.name for d in FLOATS])),
    )
    case.check(
        "pointwise",
        activation=data.draw(st.sampled_from(_SWISH)),
        residual=data.draw(st.sampled_from(["", "add", "sum"])),
        bias=data.draw(st.booleans()),
        gated=data.draw(st.booleans()),
    )


@pytest.mark.parametrize("dtype", list(_LIMITS))
@pytest.mark.parametrize(
    ("shape", "outputs", "activation", "residual"),
    [
        ((1, 56, 56, 16), 96, "swish,1.0", ""),
        ((2, 7, 7, 112), 1280, "swish,1.0", ""),
        ((1, 28, 28, 40), 24, "", "add"),
        ((5, 14, 14, 48), 70, "relu", "sum"),
    ],
)
def test_pointwise(shape: tuple[int, ...], outputs: int, activation: str, residual: str, dtype: str) -> None:
    _Case(shape, 1, outputs, 1, dtype).check("pointwise", activation=activation, residual=residual)


@pytest.mark.parametrize("dtype", list(_LIMITS))
def test_targets_inside_wider_rows(dtype: str) -> None:
    _Case((2, 9, 9, 32), 1, 40, 1, dtype).check("pointwise", activation="swish,1.0", extra_channels=24)
    depthwise = _Case((2, 9, 9, 40), 3, 40, 40, dtype)
    depthwise.check("depthwise", pads=(1, 1, 1, 1), activation="swish,1.0", extra_channels=24)


@pytest.mark.parametrize("dtype", list(_LIMITS))
@pytest.mark.parametrize("batch", [1, 3])
def test_gated_convolutions_of_either_kind(batch: int, dtype: str) -> None:
    pointwise = _Case((batch, 9, 7, 34), 1, 50, 1, dtype)
    pointwise.check("pointwise", gated=True, residual="add")
    spatial = _Case((batch, 9, 7, 34), 3, 50, 1, dtype)
    spatial.check("onednn", pads=(1, 1, 1, 1), gated=True, residual="add", activation="relu")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30, -1e30])
def test_swish_of_special_values(value: float) -> None:
    """What x * sigmoid(x) is in floating point, NaN for minus infinity included."""
    x = np.full((1, 4, 4, 16), value, np.float32)
    w = np.eye(16, dtype=np.float32).reshape(1, 1, 16, 16)
    y = np.zeros((1, 4, 4, 16), np.float32)
    program = rt.Program("conv")
    inputs = [
        view(program.input(0, x.nbytes), x, _CHANNELS_FIRST),
        view(program.constant(w), w, (3, 2, 0, 1)),
    ]
    out = view(program.output(0, y.nbytes), y, _CHANNELS_FIRST)
    program.task("conv", "conv", inputs, [out], {"post_ops": ["swish,1.0"], "implementation": "pointwise"})
    program.finalize(0)
    assert program.task_info()[0]["impl"].startswith("pointwise")
    program.run([x], [y])
    expected = torch.nn.functional.silu(torch.full((1,), value)).item()
    if np.isinf(value):
        assert np.isnan(y).all()  # infinity times the zeros of the weights
    elif np.isnan(value):
        assert np.isnan(y).all()
    else:
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-20)


def test_one_program_runs_from_several_threads() -> None:
    """Each caller has a context of its own, scratch rows and gated rows included."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 20, 20, 48)).astype(np.float32)
    gate = rng.uniform(0, 1, (1, 1, 1, 48)).astype(np.float32)
    window = (rng.standard_normal((5, 5, 1, 48)) / 5).astype(np.float32)
    weight = (rng.standard_normal((1, 1, 48, 40)) / 7).astype(np.float32)
    program = rt.Program("threads")
    middle = program.arena(0, x.nbytes)
    between = (middle, "float32", *view(0, x, _CHANNELS_FIRST)[2:])
    swish = {"post_ops": ["swish,1.0"]}
    first = [
        view(program.input(0, x.nbytes), x, _CHANNELS_FIRST),
        view(program.constant(window), window, (3, 2, 0, 1)),
    ]
    pads = {"pads_begin": [2, 2], "pads_end": [2, 2], "groups": 48}
    program.task("conv", "depthwise", first, [between], swish | pads | {"implementation": "depthwise"})
    y = np.zeros((1, 20, 20, 40), np.float32)
    second = [
        between,
        view(program.constant(weight), weight, (3, 2, 0, 1)),
        view(program.input(1, gate.nbytes), gate, _CHANNELS_FIRST),
    ]
    out = view(program.output(0, y.nbytes), y, _CHANNELS_FIRST)
    program.task(
        "conv", "pointwise", second, [out], swish | {"has_gate": True, "implementation": "pointwise"}
    )
    program.finalize(x.nbytes)
    assert [info["impl"].split(":")[0] for info in program.task_info()] == ["depthwise", "pointwise"]
    program.run([x, gate], [y])

    def work(factor: float, found: list[np.ndarray]) -> None:
        for _ in range(20):
            result = np.zeros_like(y)
            program.run([x, gate * np.float32(factor)], [result])
            found.append(result)

    results: list[list[np.ndarray]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=work, args=(1.0, found)) for found in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found in results:
        for result in found:
            np.testing.assert_array_equal(result, y)
