"""Writes a failing program as a self-contained test file."""

from __future__ import annotations

import textwrap

import numpy as np

from ge.conformance.programs.door import Door
from ge.conformance.programs.judge import Verdict
from ge.conformance.programs.record import Program
from ge.conformance.programs.sampling import feeds

__all__ = ["array_text", "runs_text", "test_file"]


def array_text(array: np.ndarray) -> str:
    """Python expression for an array; uses NumPy's `array`, `nan` and `inf`."""
    if array.dtype.name == "bfloat16":
        return f"array({array.astype(np.float32).tolist()}, ml_dtypes.bfloat16).reshape({array.shape})"
    return f"array({array.tolist()}, {array.dtype.name!r}).reshape({array.shape})"


def runs_text(runs: list[list[np.ndarray]]) -> str:
    """Python expression for the inputs of all runs."""
    lines = [", ".join(array_text(a) for a in arrays) for arrays in runs]
    return "[\n" + "".join(f"    [{line}],\n" for line in lines) + "]"


def test_file(door: Door, program: Program, verdict: Verdict, seed: str) -> str:
    """Source of a pytest file that fails like the program."""
    runs = feeds(program)[: verdict.run + 1] if verdict.status == "wrong" else feeds(program)
    reason = (
        textwrap.fill(verdict.reason, 110, break_long_words=False).replace("\\", "/").replace('"""', "'''")
    )
    note = (
        f"{verdict.status} ({door.name}, {verdict.mode}): {reason}\n\nFound by a random program, seed {seed}."
    )
    note = f'"""{note}\n"""\n\n'
    body = textwrap.indent(_comparison(verdict), "    ")
    return note + door.standalone(program, runs, body)


def _comparison(verdict: Verdict) -> str:
    if verdict.status != "wrong":
        return "assert len(found) == len(expected)\n"
    lines = [
        f"wanted, result = (np.asarray(r[{verdict.run}][{verdict.result}]) for r in (expected, found))",
        "assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)",
    ]
    if verdict.unstable:
        lines.append(
            f"wanted, result = (np.delete(r.ravel(), {list(verdict.unstable)}) for r in (wanted, result))"
        )
    if verdict.floating:
        allowed = [float(f"{t:.2e}") for t in verdict.tolerances]
        lines.append(f"allowed = np.array({allowed if len(set(allowed)) > 1 else max(allowed, default=0.0)})")
        if len(set(allowed)) > 1 and not verdict.unstable:
            lines.append("allowed = allowed.reshape(wanted.shape)")
        lines.append(
            "np.testing.assert_allclose(result.astype(complex), wanted.astype(complex), rtol=0, atol=allowed)"
        )
    else:
        lines.append("np.testing.assert_array_equal(result, wanted)")
    return "\n".join(lines) + "\n"
