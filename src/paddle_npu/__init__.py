"""PaddlePaddle's front door: programs of `paddle.jit.to_static` run on the Graph Engine.

    import paddle, paddle_npu

    network = paddle.jit.to_static(network)   # forward and backward pass run on the NPU
    print(paddle_npu.counts())                # calls on the NPU, calls that PaddlePaddle kept, and why

What the engine cannot run stays with PaddlePaddle, with a warning that names every operator and the reason;
`paddle_npu.enable(strict=True)` raises instead.
"""

from __future__ import annotations

import logging

try:
    import paddle  # noqa: F401
except ImportError as error:
    raise ImportError("paddle_npu needs PaddlePaddle: pip install 'tf-adapter[paddle]'") from error

from paddle_npu.door import Counts, counts, disable, enable, explain, reset_counts

__all__ = ["Counts", "counts", "disable", "enable", "explain", "reset_counts"]

# PaddlePaddle sets the root logger to INFO, which would print every stage of every compile.
if logging.getLogger("ge").level == logging.NOTSET:
    logging.getLogger("ge").setLevel(logging.WARNING)

enable()
