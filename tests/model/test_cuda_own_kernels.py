"""Kernels of our own: their PTX belongs to the sources, and packed weights are where the threads read them."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ge.implementations import Operation
from ge.implementations.cuda_own import AttentionGradient
from ge.ir.types import TensorDesc
from ge.model.cuda import own
from ge.plan import View
from ge.target.cuda import named

KERNELS = Path(__file__).parents[2] / "native" / "cuda" / "kernels"


def _make() -> object:
    spec = importlib.util.spec_from_file_location("make_kernels", KERNELS / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["stem", "bottleneck", "attention_gradient"])
def test_ptx_was_made_from_the_sources(name) -> None:
    first = own.code(name).decode().splitlines()[0]
    assert first == f"// from sources {_make().fingerprint(name)}", "run native/cuda/kernels/make.py"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="the CUDA toolkit is not installed")
@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("stem", "sm_80"),
        ("stem", "sm_90"),
        ("bottleneck", "sm_90a"),
        ("attention_gradient", "sm_80"),
        ("attention_gradient", "sm_90"),
    ],
)
def test_ptx_assembles_without_spilling(name, architecture, tmp_path) -> None:
    (tmp_path / "code.ptx").write_bytes(own.code(name))
    command = ["ptxas", "-v", f"-arch={architecture}", "code.ptx", "-o", "code.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "serialized" not in done.stderr  # products of warpgroups that wait for one another
    if name == "bottleneck":
        assert done.stderr.count(" 0 bytes spill stores") == 6
    if name == "attention_gradient":
        assert done.stderr.count(" 0 bytes spill stores") == 4


def fragments(packed: np.ndarray) -> np.ndarray:
    """The right operands of m16n8k16 as its lanes hold them, as [k 224][n 64]."""
    found = np.zeros((14, 16, 64), np.float16)
    for lane in range(32):
        n, k = lane // 4, lane % 4 * 2
        for j in range(8):  # two registers of two numbers: rows k and k + 8
            for register in range(2):
                numbers = packed[:, j // 2, lane, 4 * (j % 2) + 2 * register :][:, :2]
                found[:, k + 8 * register : k + 8 * register + 2, 8 * j + n] = numbers
    return found.reshape(224, 64)


def test_weights_of_the_stem_multiply_eight_pixels_of_four_channels() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 3, 7, 7)).astype(np.float16)
    window = rng.standard_normal((7, 8, 4)).astype(
        np.float16
    )  # what is beyond 7 pixels and 3 channels is multiplied by 0
    found = window.reshape(-1).astype(np.float64) @ fragments(own.pack_stem(weights)).astype(np.float64)
    want = np.einsum("hwc,ochw->o", window[:, :7, :3].astype(np.float64), weights.astype(np.float64))
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12)


def product(rows: np.ndarray, blocks: np.ndarray, columns: int) -> np.ndarray:
    """rows times packed weights, which are [n / 64][k / 16][k / 8 % 2][n / 8 % 8][n % 8][k % 8] in shared memory."""
    matrix = blocks.reshape(columns // 64, -1, 2, 8, 8, 8).transpose(1, 2, 5, 0, 3, 4).reshape(-1, columns)
    return rows @ matrix.astype(np.float64)


def stored(values: np.ndarray) -> np.ndarray:
    """The channels of a pixel as a warpgroup's threads store the columns of their products."""
    pixel = np.empty_like(values)
    for group in range(values.shape[-1] // 64):
        for j in range(8):
            for q in range(4):
                for e in range(2):
                    channel = 64 * group + j // 4 * 32 + q * 8 + 2 * (j % 4) + e
                    pixel[..., channel] = values[..., 64 * group + 8 * j + 2 * q + e]
    return pixel


@pytest.mark.parametrize("short", [False, True])
def test_weights_of_the_bottleneck_give_channels_in_their_order(short) -> None:
    rng = np.random.default_rng(1)
    shapes = [(64, 64, 3, 3), (64,), (256, 64, 1, 1), (256,), (64, 256, 1, 1), (64,)]
    shapes += [(256, 64, 1, 1), (256,)] if short else []
    arrays = [rng.standard_normal(s).astype(np.float16) for s in shapes]
    image, biases = own.pack_bottleneck(arrays)
    sizes = [64 * 576, 256 * 64, 64 * 256, *([256 * 64] if short else [])]
    middle, wide, onward, *rest = np.split(image, np.cumsum(sizes)[:-1])
    window, residual = rng.standard_normal((64, 3, 3)), rng.standard_normal(64)
    m = product(window.transpose(1, 2, 0).reshape(-1), middle, 64) + biases[:64]
    want = [a.astype(np.float64) for a in arrays]
    np.testing.assert_allclose(m, np.einsum("chw,ochw->o", window, want[0]) + want[1], rtol=1e-5)
    columns = product(m, wide, 256)
    expected = want[2][..., 0, 0] @ m
    if short:  # pixels in memory are read as left operands in the order in which they would have been stored
        columns = columns + product(residual[own.channel_order(64)], rest[0], 256)
        expected = expected + want[6][..., 0, 0] @ residual
    np.testing.assert_allclose(stored(columns), expected, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(biases[64:320], want[3] + (want[7] if short else 0), rtol=1e-3)
    following = stored(product(columns, onward, 64))
    np.testing.assert_allclose(following, want[4][..., 0, 0] @ expected, rtol=1e-4, atol=1e-9)


def operation(batch: int, side: int, onward: int, short: bool) -> Operation:
    shapes = [(batch, side, side, 64), (batch, side, side, 64 if short else 256)]
    shapes += [(64, 64, 3, 3), (64,), (256, 64, 1, 1), (256,), (onward, 256, 1, 1), (onward,)]
    shapes += [(256, 64, 1, 1), (256,)] if short else []
    views = [View.of(n, TensorDesc(s, "float16")) for n, s in enumerate(shapes)]
    results = [
        View.of(20 + n, TensorDesc((batch, side, side, c), "float16")) for n, c in enumerate((256, onward))
    ]
    return Operation("bottleneck", tuple(views), tuple(results))


@pytest.mark.parametrize(
    ("batch", "onward", "short", "threads", "symbol"),
    [
        (1, 64, False, 128, "bottleneck_to_64_of_56"),
        (32, 64, False, 384, "bottleneck_to_64_of_56"),
        (32, 128, False, 256, "bottleneck_to_128_of_56"),
        (32, 64, True, 256, "bottleneck_with_shortcut_to_64_of_56"),
    ],
)
def test_bottlenecks_take_the_groups_that_shared_memory_holds(batch, onward, short, threads, symbol) -> None:
    launch = own.bottleneck_launch(operation(batch, 56, onward, short), 132)
    assert (launch.threads, launch.symbol, launch.numbers) == (threads, symbol, (49 * batch, 56, 56))
    assert launch.shared <= 227 * 1024 and launch.blocks == min(132, -(-49 * batch // (threads // 128)))
    assert f".entry {symbol}(" in own.code("bottleneck").decode()


def gradient(shape, keys=None, dtype="bfloat16", mask=False, heads_last=False) -> Operation:
    """The gradient of attention with dense heads, or with heads where a projection has them."""

    def matrix(number: int, rows: int) -> View:
        stacks, heads, _, columns = shape
        if not heads_last:
            return View.of(number, TensorDesc((stacks, heads, rows, columns), dtype))
        strides = (rows * heads * columns, columns, heads * columns, 1)
        return View(number, dtype, (stacks, heads, rows, columns), strides)

    rows, keys = shape[2], keys or shape[2]
    inputs = [matrix(n, size) for n, size in enumerate((rows, rows, keys, keys, rows))]
    inputs.append(View.of(5, TensorDesc(shape[:3], "float32")))
    if mask:
        inputs.append(View.of(6, TensorDesc((rows, keys), "float32")))
    outputs = tuple(matrix(7 + n, size) for n, size in enumerate((rows, keys, keys)))
    return Operation("attention_grad", tuple(inputs), outputs, {"scale": 0.125, "causal": True})


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (gradient((2, 3, 128, 64)), ""),
        (gradient((2, 3, 77, 32), 5, "float16"), ""),
        (gradient((2, 3, 128, 64), heads_last=True), ""),
        (gradient((2, 3, 129, 64)), "up to 128"),
        (gradient((2, 3, 128, 64), 200), "up to 128"),
        (gradient((2, 3, 128, 48)), "columns"),
        (gradient((2, 3, 128, 64), dtype="float32"), "throughout"),
        (gradient((2, 3, 128, 64), mask=True), "mask"),
    ],
)
def test_what_the_kernel_of_gradients_of_attention_takes(op, reason) -> None:
    found = AttentionGradient().refuse(op, named("sm_90"))
    assert reason in found if reason else not found
    assert "shared memory" in AttentionGradient().refuse(op, named("sm_86"))


def test_gradients_of_attention_have_a_block_for_each_head() -> None:
    launch = own.attention_gradient_launch(gradient((2, 3, 100, 64), heads_last=True))
    assert (launch.symbol, launch.blocks) == ("attention_gradient_bfloat16_64", 6)
    assert launch.numbers[:5] == (3, 100, 100, int(np.float32(0.125).view(np.uint32)), 1)
    assert launch.numbers[5:] == (19200, 64, 192) * 7
    assert launch.symbol in own.code(launch.file).decode()
