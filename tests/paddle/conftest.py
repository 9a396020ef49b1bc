"""PaddlePaddle looks for devices when it is imported: `paddle_npu` comes first."""

import importlib.util

import pytest

if importlib.util.find_spec("paddle") is not None:
    import paddle_npu  # noqa: F401


@pytest.fixture(autouse=True)
def on_the_cpu_device() -> None:
    """PaddlePaddle's default is the device that it found; tests begin on the CPU in whatever order they run."""
    if importlib.util.find_spec("paddle") is not None:
        import paddle

        paddle.set_device("cpu")
