"""Searches the operators to keep in float32 in a lowered precision mode and writes them as a mixlist.

1. The search begins with every operator in float32 and lowers groups of them, halving a group that costs too much
   accuracy, until those are left that cannot be lowered one by one.
2. These are ordered by their cost, the error of the results if they are lowered too. The list is as long as the
   accuracy requires or the request allows; the error of a shortened list is measured.
3. The mode is the first requested one whose results are not accurate enough.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ge.compiler import compile_graph
from ge.errors import GeError
from ge.ops.base import lookup
from ge.options.values import PrecisionMode
from npu_tools.check.assemble import errors
from npu_tools.check.layers import Piece, Tell, exact_outputs, origin_of
from npu_tools.check.request import Request

__all__ = ["search"]

_KEEP = "must_keep_origin_dtype"
_EXACT_MODES = (_KEEP, "force_fp32")


class _Trials:
    """Runs all pieces with some operators in float32."""

    def __init__(self, pieces: Sequence[Piece], mode: str, tell: Tell = lambda *_: None) -> None:
        self.pieces, self.mode, self._tell = pieces, mode, tell
        self._count = 0
        self._exact = [exact_outputs(piece.graph, piece.arrays) for piece in pieces]

    def names(self) -> list[str]:
        """Operators that a precision mode lowers, under the framework's node names if known."""
        lowered = [n for p in self.pieces for n in p.graph if lookup(n.op_type).precision.narrows]
        return list(dict.fromkeys(filter(None, map(origin_of, lowered))))

    def outcome(self, kept: Sequence[str]) -> dict[str, float]:
        """Maximum error of the results with these operators in float32, and the time of a run."""
        self._count += 1
        expected = max(self._count, 2 * len(self.names()))
        self._tell(f"mixlist for {self.mode}", self._count, expected)
        tried = [self._tried(p, e, kept) for p, e in zip(self.pieces, self._exact, strict=True)]
        return {"error": max(error for error, _ in tried), "seconds": sum(took for _, took in tried)}

    def error(self, kept: Sequence[str]) -> float:
        """Maximum error of the results with these operators in float32."""
        return self.outcome(kept)["error"]

    def _tried(self, piece: Piece, exact: Sequence[np.ndarray], kept: Sequence[str]) -> tuple[float, float]:
        chosen = {**piece.options.op_precision, **dict.fromkeys(kept, _KEEP)}
        options = replace(piece.options, precision_mode=PrecisionMode(self.mode), op_precision=chosen)
        try:
            model = compile_graph(piece.graph.clone(), options, "search")
        except GeError:
            return math.inf, math.inf
        results = model.run(list(piece.arrays))
        begin = time.perf_counter()
        model.run(list(piece.arrays))
        took = time.perf_counter() - begin
        worst = 0.0
        for wanted, found in zip(exact, results, strict=True):
            if wanted.dtype.kind == "f" and wanted.size:
                measured = errors(wanted, np.asarray(found))
                worst = max(worst, math.inf if measured["not_finite"] else measured["error"])
        return worst, took


def search(pieces: Sequence[Piece], request: Request, tell: Tell = lambda *_: None) -> dict[str, Any]:
    """Find the operators to keep in float32 for the first mode that is not accurate enough; write them as a mixlist."""
    modes = [m for m in request.modes if m not in _EXACT_MODES] or ["force_fp16"]
    experiments: list[dict[str, Any]] = [
        {"mode": mode, **_Trials(pieces, mode).outcome([])} for mode in modes
    ]
    inexact = (row["mode"] for row in experiments if row["error"] > request.tolerance)
    trials = _Trials(pieces, next(inexact, modes[0]), tell)
    names = trials.names()
    before = trials.outcome([])
    needed = [] if before["error"] <= request.tolerance else _needed(trials, names, request.tolerance)
    rows: list[dict[str, Any]] = [
        {
            "keep": name,
            "error": trials.error([n for n in needed if n != name]),
            "location": _line(pieces, name),
        }
        for name in needed
    ]
    rows.sort(key=lambda row: -row["error"])
    kept = [row["keep"] for row in rows][: request.keep or None]
    after = trials.outcome(kept)
    Path(request.mixlist).write_text(json.dumps({"black-list": {"to-add": kept}}, indent=1))
    return {
        "mode": trials.mode,
        "experiments": experiments,
        "keep": kept,
        "rows": rows,
        "operators": len(names),
        "error_before": before["error"],
        "error": after["error"],
        "seconds_before": before["seconds"],
        "seconds": after["seconds"],
        "verdict": _found(trials.mode, kept, len(needed), len(names), after["error"], request.tolerance),
    }


def _line(pieces: Sequence[Piece], name: str) -> str:
    """The user's line of an operator."""
    found = (piece.location_of(name) for piece in pieces if any(origin_of(n) == name for n in piece.graph))
    return next(filter(None, found), "")


def _needed(trials: _Trials, names: list[str], tolerance: float) -> list[str]:
    """Bisect for the operators that cannot be lowered."""
    lowered: set[str] = set()

    def lower(group: list[str]) -> None:
        if trials.error([n for n in names if n not in lowered and n not in group]) <= tolerance:
            lowered.update(group)
        elif len(group) > 1:
            lower(group[: len(group) // 2])
            lower(group[len(group) // 2 :])

    if names:
        lower(names)
    return [name for name in names if name not in lowered]


def _found(mode: str, kept: list[str], needed: int, count: int, error: float, tolerance: float) -> str:
    if not kept:
        return f"Nothing has to be kept: the error in {mode} is {error:.1e}."
    load = "Load the list with modify_mixlist."
    if error <= tolerance:
        return f"Keep {len(kept)} of {count} operators: the error in {mode} is then {error:.1e}. {load}"
    if len(kept) < needed:
        said = f"{needed} of {count} operators would have to be kept"
        return f"{said}; with the {len(kept)} that cost the most the error in {mode} is {error:.1e}. {load}"
    return f"The error in {mode} is {error:.1e} even with all {count} operators in float32."
