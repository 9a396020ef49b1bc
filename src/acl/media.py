"""acl.media: memory for images. Decoding and scaling belong to hardware that this device does not have."""

from __future__ import annotations

from typing import Any

from acl import _memory
from acl._conventions import returns_code, returns_value
from acl._state import current_context

__all__ = ["dvpp_free", "dvpp_malloc"]


@returns_value(0)
def dvpp_malloc(size: int) -> int:
    """Device memory for an image. Returns (address, ret)."""
    return _memory.memory.allocate(size, current_context().device).address


@returns_code
def dvpp_free(dev_ptr: int) -> None:
    """Give memory of an image back. Returns ret."""
    _memory.memory.release(dev_ptr, device=True)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"acl.media.{name}: this device has no image decoder or scaler. Decode images on the host "
        "(Pillow, OpenCV), and let AIPP (atc --insert_op_conf) crop, convert and normalise them"
    )
