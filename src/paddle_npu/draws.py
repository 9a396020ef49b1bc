"""Random numbers of a program, drawn by PaddlePaddle in the same order as without the NPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle

from ge.parsers.paddle.parser import Draw

__all__ = ["drawn"]


def _number(draw: Draw, index: int) -> Any:
    return draw.operands[index].reshape(-1)[0].item()


def _dropout(draw: Draw) -> Any:
    attrs, ones = draw.operation.attrs, paddle.ones(draw.shape, "float32")
    chosen = (_number(draw, 2), False, attrs["mode"], attrs["seed"], attrs["fix_seed"])
    kept = paddle._C_ops.dropout(ones, None, *chosen)
    return (kept != 0).astype("uint8")


def _uniform(draw: Draw) -> Any:
    seed = draw.operation.attrs["seed"]
    return paddle.uniform(draw.shape, draw.dtype, _number(draw, 1), _number(draw, 2), seed)


def _gaussian(draw: Draw) -> Any:
    attrs = draw.operation.attrs
    return paddle.tensor.random.gaussian(
        draw.shape, attrs["mean"], attrs["std"], attrs["seed"], dtype=draw.dtype
    )


def _randint(draw: Draw) -> Any:
    attrs = draw.operation.attrs
    return paddle.randint(attrs["low"], attrs["high"], draw.shape, draw.dtype)


def _randperm(draw: Draw) -> Any:
    return paddle.randperm(draw.operation.attrs["n"], draw.dtype)


_DRAWS: dict[str, Callable[[Draw], Any]] = {
    "pd_op.dropout": _dropout,
    "pd_op.uniform": _uniform,
    "pd_op.gaussian": _gaussian,
    "pd_op.randint": _randint,
    "pd_op.randperm": _randperm,
}


def drawn(draw: Draw) -> Any:
    """Draw the numbers of a random operator as a tensor."""
    with paddle.no_grad():
        return _DRAWS[draw.operation.type](draw)
