"""PaddlePaddle looks for devices when it is imported: `paddle_npu` comes first."""

import importlib.util

if importlib.util.find_spec("paddle") is not None:
    import paddle_npu  # noqa: F401
