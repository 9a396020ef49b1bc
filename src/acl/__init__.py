"""Application runtime: pyACL's conventions (integer handles, return codes), and `acl.Model` for plain Python.

>>> import acl
>>> acl.init()
0
>>> acl.rt.set_device(0)
0
>>> pointer, ret = acl.rt.malloc(64, acl.ACL_MEM_MALLOC_HUGE_FIRST)
>>> ret, acl.rt.memset(pointer, 64, 0, 64), acl.rt.free(pointer), acl.rt.free(pointer)
(0, 0, 0, 107000)
>>> acl.get_recent_err_msg()[:5]
'free:'
>>> acl.rt.reset_device(0), acl.finalize()
(0, 0)
"""

from __future__ import annotations

import logging
import os

from acl import (
    _conventions,
    _dump,
    _memory,
    _state,
    _stream,
    _tensors,
    blas,
    mdl,
    media,
    op,
    prof,
    rt,
    tdt,
    util,
)
from acl import constants as _constants
from acl._conventions import AclError, plain, returns_code, returns_value
from acl._tensors import *  # noqa: F403
from acl.constants import *  # noqa: F403
from acl.model import Model

__all__ = [
    "Model",
    "app_log",
    "blas",
    "finalize",
    "get_recent_err_msg",
    "get_soc_name",
    "get_version",
    "init",
    "mdl",
    "media",
    "op",
    "prof",
    "rt",
    "tdt",
    "util",
]
__all__ += _tensors.__all__
__all__ += _constants.__all__

SOC_NAME = "NPU-CPU"
_LEVELS = {0: logging.DEBUG, 1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR}
_logger = logging.getLogger("acl")


@returns_code
def init(config_path: str | None = None) -> None:
    """Initialise the runtime. A second call returns ACL_ERROR_REPEAT_INITIALIZE. Returns ret.

    The configuration file is JSON; its "dump" entry enables dumps of models' and operators' tensors.
    """
    if _state.process.initialised:
        raise AclError(_constants.ACL_ERROR_REPEAT_INITIALIZE, "acl is initialised already")
    if config_path and not os.path.isfile(config_path):
        raise AclError(_constants.ACL_ERROR_INVALID_FILE, f"there is no file {config_path}")
    _dump.dumping.turn(_dump.parsed(config_path) if config_path else None)
    _state.process.initialised = True


@returns_code
def finalize() -> None:
    """Release everything: streams, models, memory. Returns ret."""
    if not _state.process.initialised:
        raise AclError(_constants.ACL_ERROR_REPEAT_FINALIZE, "acl is not initialised")
    _stream.close_all()
    for table in (_state.streams, _state.events, _state.contexts, _tensors.buffers, _tensors.specs):
        table.clear()
    _state.process.primary.clear()
    mdl.clear()
    media.clear()
    prof.clear()
    tdt.clear()
    op.clear()
    _memory.memory.clear()
    _dump.dumping.initialised = False
    _dump.dumping.turn(None)
    _state.process.initialised = False


@plain(SOC_NAME)
def get_soc_name() -> str:
    """The name of the device."""
    return SOC_NAME


@returns_value(0, 0, 0)
def get_version() -> tuple[int, int, int]:
    """(major, minor, patch, ret) of the interface."""
    return 1, 0, 0


def get_recent_err_msg() -> str:
    """Message of this thread's last failed call; reading clears it."""
    return _conventions.last_message()


def app_log(level: int, message: str) -> None:
    """Write a line to the application log (logger "acl")."""
    _logger.log(_LEVELS.get(level, logging.INFO), "%s", message)
