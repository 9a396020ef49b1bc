"""Random programs of TensorFlow 1, in processes of their own, against sessions without the NPU."""

from __future__ import annotations

import os
import subprocess
import sys

from ge.conformance.programs.hunt import hunt

COUNT = 1000

REFERENCE = """
from ge.conformance.programs import load_door
from ge.conformance.programs.generate import generate
from ge.conformance.programs.sampling import feeds
from npu_bridge import session
door = load_door("tensorflow_v1")
program = generate(door, "0/0")
rewritten, used = session._rewritten, []
session._rewritten = lambda *given, **more: used.append(1) or rewritten(*given, **more)
door.reference(program, feeds(program)[:1], None)
assert not used
door.run(program, feeds(program)[:1])
assert used
"""


def test_the_reference_does_not_offload() -> None:
    subprocess.run(
        [sys.executable, "-c", REFERENCE], check=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )


def test_programs_agree_with_sessions_without_the_npu() -> None:
    found = hunt("tensorflow_v1", seed=0, count=COUNT, seconds=1e9, short=True)
    assert not found.failures, [f"{f.text}\n" for f in found.failures]
    assert found.statuses["pass"] > 0.85 * COUNT
    assert found.judged > 0.8 * found.elements
