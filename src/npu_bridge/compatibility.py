"""All patches of TensorFlow for version-1 sessions, in one table."""

from __future__ import annotations

import functools

from ge.compatibility import Patch, PatchTable
from npu_bridge import session

__all__ = ["PATCHES", "patch_sessions"]

_SESSION = "tensorflow.python.client.session:BaseSession"

PATCHES = PatchTable(
    "TensorFlow",
    ("2.15.1", "2.21.0"),
    (
        Patch(f"{_SESSION}.__init__", session.with_options),
        Patch(f"{_SESSION}.make_callable", session.run_by_callable),
        Patch(f"{_SESSION}._do_run", session.offloaded_run),
        Patch(f"{_SESSION}._make_callable_from_options", session.offloaded_callable),
    ),
)


@functools.cache
def patch_sessions() -> None:
    """Make all new sessions offload, unless their configuration sets use_off_line=False."""
    PATCHES.apply()
