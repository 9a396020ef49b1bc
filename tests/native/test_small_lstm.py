"""LSTM layers of small batches, with their own kernel, give what PyTorch gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import npu_runtime as rt
from tests.native.native_support import needs_own_kernels

TYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def _view(buffer: int, array: np.ndarray) -> tuple:
    name = next(n for n, t in TYPES.items() if t == array.dtype)
    strides = tuple(int(np.prod(array.shape[i + 1 :])) for i in range(array.ndim))
    return (buffer, name, array.shape, strides, 0)


def _run(dtype: np.dtype, direction: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The runtime's answers; weights (D, I, 4, H) and (D, H, 4, H), bias (D, 4, H)."""
    x, w, r, bias, h0, c0 = (arrays[k] for k in ("x", "w", "r", "bias", "h0", "c0"))
    steps, batch, _ = x.shape
    directions, hidden = w.shape[0], w.shape[3]
    state = (1, directions, batch, hidden)
    outputs = [np.zeros(s, dtype) for s in ((steps, batch, directions * hidden), state, state)]
    program = rt.Program("lstm")
    feeds = [x.astype(dtype), h0.astype(dtype), c0.astype(dtype)]
    inputs = [_view(program.input(i, f.nbytes), f) for i, f in enumerate(feeds)]
    inputs += [
        _view(program.constant(a), a) for a in (w.astype(dtype)[None], r.astype(dtype)[None], bias[None])
    ]
    results = [_view(program.output(i, o.nbytes), o) for i, o in enumerate(outputs)]
    program.task(
        "rnn",
        "lstm",
        inputs,
        results,
        {"cell": "lstm", "direction": direction, "implementation": "small_batch"},
    )
    program.finalize(0)
    program.run(feeds, outputs)
    assert program.task_info()[0]["impl"].startswith("small_batch")
    return [o.astype(np.float32) for o in outputs]


def _torch(direction: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """PyTorch's answers; its gates come in the same order."""
    w, r = arrays["w"], arrays["r"]
    both = direction == "bidirectional"
    layer = torch.nn.LSTM(w.shape[1], w.shape[3], bidirectional=both)
    for d in range(w.shape[0]):
        suffix = "_reverse" if d else ""
        rows = {"weight_ih": w[d], "weight_hh": r[d]}
        for name, value in rows.items():
            weight = value.reshape(value.shape[0], -1).T.copy()
            getattr(layer, f"{name}_l0{suffix}").data = torch.from_numpy(weight)
        getattr(layer, f"bias_ih_l0{suffix}").data = torch.from_numpy(arrays["bias"][d].reshape(-1).copy())
        getattr(layer, f"bias_hh_l0{suffix}").data.zero_()
    x = torch.from_numpy(arrays["x"])
    flipped = direction == "reverse"
    states = tuple(torch.from_numpy(arrays[k][0]) for k in ("h0", "c0"))
    with torch.no_grad():
        y, (h, c) = layer(x.flip(0) if flipped else x, states)
    return [(y.flip(0) if flipped else y).numpy(), h.numpy()[None], c.numpy()[None]]


@needs_own_kernels
@pytest.mark.parametrize("bias_type", ["float32", "bfloat16"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden"), [(7, 1, 24, 48), (1, 3, 5, 16), (12, 4, 64, 128)]
)
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_small_batches_equal_pytorch(
    name: str, steps: int, batch: int, inputs: int, hidden: int, direction: str, bias_type: str
) -> None:
    rng = np.random.default_rng(0)
    directions = 2 if direction == "bidirectional" else 1
    arrays = {
        "x": rng.standard_normal((steps, batch, inputs)).astype(np.float32),
        "w": (rng.standard_normal((directions, inputs, 4, hidden)) / np.sqrt(inputs)).astype(np.float32),
        "r": (rng.standard_normal((directions, hidden, 4, hidden)) / np.sqrt(hidden)).astype(np.float32),
        "bias": rng.standard_normal((directions, 4, hidden)).astype(np.float32),
        "h0": rng.standard_normal((1, directions, batch, hidden)).astype(np.float32),
        "c0": rng.standard_normal((1, directions, batch, hidden)).astype(np.float32),
    }
    rounded = arrays["bias"].astype(TYPES[bias_type])
    arrays["bias"] = rounded.astype(np.float32)
    got = _run(TYPES[name], direction, {**arrays, "bias": rounded})
    tolerance = 2e-6 if name == "float32" else 3e-2
    for mine, theirs in zip(got, _torch(direction, arrays), strict=True):
        assert np.abs(mine - theirs).max() <= tolerance * max(1.0, float(np.abs(theirs).max()))


@needs_own_kernels
def test_large_batches_are_refused() -> None:
    arrays = {
        "x": np.zeros((2, 8, 16), np.float32),
        "w": np.zeros((1, 16, 4, 16), np.float32),
        "r": np.zeros((1, 16, 4, 16), np.float32),
        "bias": np.zeros((1, 4, 16), np.float32),
        "h0": np.zeros((1, 1, 8, 16), np.float32),
        "c0": np.zeros((1, 1, 8, 16), np.float32),
    }
    with pytest.raises(rt.UnsupportedTask, match="up to four rows"):
        _run(TYPES["float32"], "forward", arrays)
