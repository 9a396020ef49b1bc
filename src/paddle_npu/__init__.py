"""PaddlePaddle's front door: a device for eager operators, and programs of `paddle.jit.to_static` on the Graph Engine.

    import paddle_npu, paddle

    paddle.set_device("npu")                  # eager operators; import paddle_npu before paddle for this
    network = paddle.jit.to_static(network, full_graph=True)  # forward and backward pass run on the NPU
    print(paddle_npu.counts())                # calls on the NPU, calls that PaddlePaddle kept, and why

Programs that the engine cannot run stay with PaddlePaddle, with a warning that names every operator and the reason;
`paddle_npu.enable(strict=True)` raises instead.
"""

from __future__ import annotations

import importlib.util
import logging

if importlib.util.find_spec("paddle") is None:
    raise ImportError("paddle_npu needs PaddlePaddle: pip install 'tf-adapter[paddle]'")

from paddle_npu.native import announce

announce()  # before PaddlePaddle is imported

from paddle_npu.compatibility import PATCHES  # noqa: E402
from paddle_npu.counting import Counts, counts, reset_counts  # noqa: E402
from paddle_npu.door import disable, enable, explain  # noqa: E402

__all__ = ["Counts", "counts", "disable", "enable", "explain", "reset_counts"]

# PaddlePaddle sets the root logger to INFO, which would print every stage of every compile.
if logging.getLogger("ge").level == logging.NOTSET:
    logging.getLogger("ge").setLevel(logging.WARNING)

PATCHES.apply()
enable()
