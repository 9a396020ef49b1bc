"""The door of ONNX with a fault: ONNX's Neg gives absolute values; FAULT=crash or hang make it worse.

As a plugin of pytest (`-p tests.support.faulty_door`) it brings the fault into a test that was written down.
"""

from __future__ import annotations

import os
import time
from typing import Any

import ge.parsers.onnx.parser  # noqa: F401  (the plugin to replace)
from ge.conformance.programs import load_door
from ge.conformance.programs.door import Door
from ge.ops import plugins


def _wrong(n: plugins.Node) -> Any:
    if os.environ.get("FAULT") == "crash":
        os.abort()
    if os.environ.get("FAULT") == "hang":
        time.sleep(1000)
    return n.op("Abs", n.inputs[0])


_wrong.__module__ = "ge.ops"  # one of the library's own, not a user's
plugins.add(plugins.Plugin("onnx", "Neg", 21, "", _wrong))


def door() -> Door:
    """ONNX, with only a few operators."""
    found = load_door("onnx")
    found.operators = {
        n: o for n, o in found.operators.items() if n in ("Neg", "Add", "Mul", "Reshape", "If")
    }
    if "FAULT" in os.environ:  # operators are tried one by one as programs are made
        type(found).accepts = type(found).accepts_all = lambda *arguments: True  # type: ignore[method-assign]
    return found
