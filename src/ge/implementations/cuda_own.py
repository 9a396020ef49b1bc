"""Our own kernels for NVIDIA GPUs (native/cuda/kernels), which fuse several library calls."""

from __future__ import annotations

import math

from ge.implementations.base import Candidate, Operation
from ge.plan import View
from ge.target import Target

__all__ = ["AttentionGradient", "Bottleneck", "Stem"]

_SHARED_LIMIT = 227 * 1024  # bytes of a block on Hopper


class _Own(Candidate):
    device = "cuda"

    def unfit(self, op: Operation) -> str:
        if any(v.dtype != "float16" for v in (*op.inputs, *op.outputs)):
            return "it takes float16 throughout"
        if any(not v.contiguous for v in (*op.inputs, *op.outputs)) or 0 in op.inputs[0].shape:
            return "it takes dense operands"
        return self._operands(op)

    def _operands(self, op: Operation) -> str:
        raise NotImplementedError


class Stem(_Own):
    """Convolution and pooling of a strip of the image, with all intermediate values in shared memory; `mma.sync`."""

    name = "own"
    _MOST_THREADS = 512  # one per pixel of an image row
    _SHARED_LIMIT = 163 * 1024  # of sm_80; sm_86 and sm_89 have 99 KB

    def refuse(self, op: Operation, target: Target) -> str:
        if target.name in ("sm_86", "sm_89"):
            return "a block has too little shared memory"
        return super().refuse(op, target)

    def _operands(self, op: Operation) -> str:
        x, w = op.inputs[:2]
        channels, height, width = x.shape[1:] if op.flag("channels_first") else (x.shape[3], *x.shape[1:3])
        if (w.shape[0], channels) != (64, 3):
            return "it makes 64 channels of 3"
        if height % 4 or width % 32 or width > self._MOST_THREADS:
            return "the images are no multiple of 4 by 32 pixels"
        if self.shared_bytes(width) > self._SHARED_LIMIT:
            return "rows of the images are too wide for shared memory"
        return ""

    @staticmethod
    def shared_bytes(width: int) -> int:
        """A ring of 16 rows of the image, the weights, and three rows of the convolution.

        >>> Stem.shared_bytes(224)
        101120
        """
        return 16 * (width + 6) * 8 + 14 * 2048 + 3 * width // 2 * 128


class Bottleneck(_Own):
    """All products of 64 pixels, with intermediate values in registers and the weights in shared memory; `wgmma`."""

    name = "own"
    _LEAST_TILES = 256  # with fewer, loading the weights dominates on most multiprocessors

    def refuse(self, op: Operation, target: Target) -> str:
        if target.name != "sm_90":
            return "only Hopper has its instructions"
        return super().refuse(op, target)

    def _operands(self, op: Operation) -> str:
        t, residual = op.inputs[:2]
        wide, onward = op.outputs
        short = len(op.inputs) > 8
        if t.shape[3] != 64 or wide.shape[3] != 256 or residual.shape[3] != (64 if short else 256):
            return "it makes 256 channels of 64"
        if onward.shape[3] not in ((64,) if short else (64, 128)):
            return "it hands on 64 channels, or 128 without weights for the shortcut"
        if t.shape[1] * t.shape[2] % 64:
            return "the pixels of an image are no multiple of 64"
        if math.prod(t.shape[:3]) < 64 * self._LEAST_TILES:
            return "there are too few pixels for all multiprocessors"
        if self.shared_bytes(op, 1) > _SHARED_LIMIT:
            return "rows of the images are too wide for shared memory"
        return ""

    @classmethod
    def groups(cls, op: Operation, tiles: int, multiprocessors: int) -> int:
        """Warpgroups per block: as many as have work and shared memory."""
        if tiles <= multiprocessors:
            return 1
        most = 3 if len(op.inputs) <= 8 and op.outputs[1].shape[3] == 64 else 2
        return next(n for n in range(most, 0, -1) if n == 1 or cls.shared_bytes(op, n) <= _SHARED_LIMIT)

    @staticmethod
    def weight_bytes(op: Operation) -> int:
        """Bytes of weights and biases in shared memory."""
        weights = sum(v.nbytes for v in op.inputs[2::2])
        return weights + 4 * (64 + 256 + op.outputs[1].shape[3])

    @classmethod
    def shared_bytes(cls, op: Operation, groups: int) -> int:
        """The weights, a pixel of zeros, and for each group the pixels that the windows of a tile read."""
        pixels = 64 + 2 * (op.inputs[0].shape[2] + 1)
        return cls.weight_bytes(op) + 128 + groups * pixels * 128


class AttentionGradient(Candidate):
    """One block per head, with scores and their gradients in registers and shared memory; `mma.sync`."""

    name = "own"
    device = "cuda"
    ROWS = 128  # queries and keys of a head
    _COLUMNS = (32, 64)
    _VECTOR = 8  # elements per vector load

    def refuse(self, op: Operation, target: Target) -> str:
        if target.name in ("sm_86", "sm_89"):
            return "a block has too little shared memory"
        return super().refuse(op, target)

    def unfit(self, op: Operation) -> str:
        matrices = (*op.inputs[:4], *op.outputs)
        q, k, v = op.inputs[1:4]
        if q.dtype not in ("float16", "bfloat16") or any(w.dtype != q.dtype for w in matrices):
            return "it takes float16 or bfloat16 throughout"
        if len(op.inputs) > 6:
            return "it takes no mask"
        if not 2 <= len(q.shape) <= 4 or any(w.shape[:-2] != q.shape[:-2] for w in (k, v)):
            return "it takes at most two leading axes, the same of all operands"
        if q.shape[-1] not in self._COLUMNS or v.shape[-1] != q.shape[-1]:
            return f"heads are not of {' or '.join(map(str, self._COLUMNS))} columns"
        if 0 in q.shape or not 0 < k.shape[-2] <= self.ROWS or q.shape[-2] > self.ROWS:
            return f"it takes up to {self.ROWS} queries and keys"
        if any(w.strides[-1] != 1 or self._is_uneven(w) for w in matrices):
            return "rows do not begin at multiples of 16 bytes"
        return ""

    def _is_uneven(self, view: View) -> bool:
        steps = (s for n, s in zip(view.shape[:-1], view.strides, strict=False) if n > 1)
        return any(n % self._VECTOR for n in (view.offset, *steps))

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return 2.0

    @classmethod
    def shared_bytes(cls, columns: int) -> int:
        """Queries, keys, values and the result's gradient, and the weights of all keys.

        >>> AttentionGradient.shared_bytes(64)
        108544
        """
        return 2 * cls.ROWS * (4 * (columns + cls._VECTOR) + cls.ROWS + cls._VECTOR)
