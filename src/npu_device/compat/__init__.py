"""TensorFlow 1 sessions in scripts that use `npu_device`."""

from __future__ import annotations

from npu_device.compat import v1

__all__ = ["enable_v1", "v1"]


def enable_v1() -> None:
    """Run the sessions of `tf.compat.v1` on the NPU."""
    from npu_bridge.compatibility import patch_sessions

    patch_sessions()
