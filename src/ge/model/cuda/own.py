"""Our own kernels: PTX compiled ahead of time from native/cuda/kernels, and weights in the order their threads read.

native/cuda/kernels/make.py regenerates the PTX; only that needs nvcc.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ge.implementations import Operation
from ge.implementations.cuda_own import AttentionGradient, Bottleneck, Stem
from ge.plan import View

__all__ = [
    "Launch",
    "attention_gradient_launch",
    "bottleneck_launch",
    "code",
    "pack_bottleneck",
    "pack_stem",
    "stem_launch",
]

_FOLDER = Path(__file__).with_name("kernels")
_HALVES = 8  # in 16 bytes


@dataclass(frozen=True)
class Launch:
    """A kernel of a file and the shape of its launch; `numbers` follow the addresses."""

    file: str
    symbol: str
    blocks: int
    threads: int
    shared: int
    numbers: tuple[int, ...]


def code(name: str) -> bytes:
    """The PTX of a file of kernels.

    >>> b".target sm_90a" in code("bottleneck")
    True
    """
    return lzma.decompress((_FOLDER / f"{name}.ptx.xz").read_bytes())


# -- the stem --------------------------------------------------------------------------------------------------


def stem_launch(op: Operation) -> Launch:
    """Strips long enough that few rows are computed twice, and short enough that every multiprocessor has some."""
    planes = op.flag("channels_first")
    shape = op.inputs[0].shape
    images = shape[0]
    height, width = shape[2:] if planes else shape[1:3]
    strip = next(rows for least, rows in ((12, 7), (6, 4), (2, 2), (0, 1)) if images >= least)
    strips = -(-height // 4 // strip)
    symbol = "stem_channels_first" if planes else "stem_channels_last"
    return Launch("stem", symbol, images * strips, width, Stem.shared_bytes(width), (height, width, strip))


def pack_stem(weights: np.ndarray) -> np.ndarray:
    """[64, 3, 7, 7] to the order in which lanes read B fragments: [step 14][4][lane 32][8]."""
    padded = np.zeros((64, 7, 8, 4), np.float16)
    padded[:, :, :7, :3] = weights.transpose(0, 2, 3, 1)
    wide = padded.reshape(64, 14, 16)  # channel, step, k
    packed = np.empty((14, 4, 32, _HALVES), np.float16)
    for lane in range(32):
        n, k = lane // 4, lane % 4 * 2
        for j in range(4):
            for t in range(2):
                row = wide[(2 * j + t) * 8 + n]
                packed[:, j, lane, 4 * t : 4 * t + 2] = row[:, k : k + 2]
                packed[:, j, lane, 4 * t + 2 : 4 * t + 4] = row[:, k + 8 : k + 10]
    return packed


# -- the bottleneck --------------------------------------------------------------------------------------------

_COMMON_SIDE = 56  # the image side with specialised kernels
_TILE = 64  # pixels of a warpgroup, and channels of a block of weights


def bottleneck_launch(op: Operation, multiprocessors: int) -> Launch:
    """Persistent blocks that share the tiles."""
    images, height, width, _ = op.inputs[0].shape
    tiles = images * height * width // _TILE
    groups = Bottleneck.groups(op, tiles, multiprocessors)
    onward = op.outputs[1].shape[3]
    symbol = f"bottleneck{'_with_shortcut' if len(op.inputs) > 8 else ''}_to_{onward}"
    if (height, width) == (_COMMON_SIDE, _COMMON_SIDE):
        symbol += f"_of_{_COMMON_SIDE}"
    blocks = min(multiprocessors, -(-tiles // groups))
    return Launch(
        "bottleneck",
        symbol,
        blocks,
        128 * groups,
        Bottleneck.shared_bytes(op, groups),
        (tiles, height, width),
    )


def channel_order(channels: int) -> np.ndarray:
    """The channel of each column of a product, so that a thread's channels are adjacent.

    >>> channel_order(64)[:10].tolist()
    [0, 1, 8, 9, 16, 17, 24, 25, 2, 3]
    """
    n = np.arange(_TILE)
    within = n // 32 * 32 + 8 * (n % 8 // 2) + 2 * (n // 8 % 4) + n % 2
    return np.concatenate([first + within for first in range(0, channels, _TILE)])


def _blocks(matrix: np.ndarray) -> np.ndarray:
    """[K, N] to blocks for m64n64k16 without swizzle: [n / 64][k / 16][k / 8 % 2][n / 8 % 8][n % 8][k % 8]."""
    k, n = matrix.shape
    return np.ascontiguousarray(
        matrix.reshape(k // 16, 2, 8, n // 64, 8, 8).transpose(3, 0, 1, 4, 5, 2)
    ).ravel()


def pack_bottleneck(arrays: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Weights (O, I, kernel) and biases of the operator, in operator order, packed for the kernel."""
    w_middle, b_middle, w_wide, b_wide, w_onward, b_onward, *short = arrays
    order = channel_order(len(w_wide))
    onward = w_onward.reshape(len(w_onward), -1)
    parts = [
        _blocks(w_middle.transpose(0, 2, 3, 1).reshape(len(w_middle), -1).T),
        _blocks(w_wide.reshape(len(w_wide), -1)[order].T),
        _blocks(onward[channel_order(len(onward))][:, order].T),
    ]
    sums = b_wide.astype(np.float32)
    if short:
        weights, bias = short
        parts.append(_blocks(weights.reshape(len(weights), -1)[order][:, channel_order(_TILE)].T))
        sums = sums + bias.astype(np.float32)
    biases = [b_middle.astype(np.float32), sums, b_onward.astype(np.float32)]
    return np.concatenate(parts), np.concatenate(biases)


# -- gradients of attention ------------------------------------------------------------------------------------


def attention_gradient_launch(op: Operation) -> Launch:
    """One block per head of each stack."""
    q, k = op.inputs[1:3]
    stacks, heads = (1, 1, *q.shape[:-2])[-2:]
    columns = q.shape[-1]
    scale = int(np.float32(op.attrs["scale"]).view(np.uint32))
    sizes = heads, q.shape[-2], k.shape[-2], scale, int(op.flag("causal"))
    steps = [step for v in (*op.inputs[:4], *op.outputs) for step in _distances(v)]
    return Launch(
        "attention_gradient",
        f"attention_gradient_{q.dtype}_{columns}",
        stacks * heads,
        256,
        AttentionGradient.shared_bytes(columns),
        (*sizes, *steps),
    )


def _distances(view: View) -> tuple[int, ...]:
    """The strides of stacks, heads and rows.

    >>> _distances(View(0, "float16", (3, 5, 64), (320, 64, 1)))
    (0, 320, 64)
    """
    return (0, 0, *view.strides[:-1])[-3:]
