"""One case of the hub: a recipe of a network, run on eager mode and on a backend, and what became of it."""

from __future__ import annotations

import collections
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchair.executable import GraphReport, observe

__all__ = ["Case", "Found", "compile_in_place", "run", "summary"]

Results = Sequence[torch.Tensor]
TOLERANCE = 2e-3  # of the largest element


@dataclass(frozen=True)
class Case:
    """A recipe of a network: it builds the network, compiles it for a backend (None: eager mode) and gives results."""

    family: str
    network: str
    recipe: str
    results: Callable[[str | None], Results]


@dataclass
class Found:
    """What became of one case.

    right, wrong: by comparison with eager mode; crash: an exception that eager mode does not raise; refused: eager mode
    itself cannot do it; fallback: right, but a graph ran on ATen as a whole because the compiler could not take it.
    """

    family: str
    network: str
    recipe: str
    outcome: str
    why: str = ""
    calls: int = 0
    npu_calls: int = 0
    programs: int = 0
    graphs: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of this process and those that it started


def compile_in_place(network: Any, backend: str | None) -> Any:
    """The module with its forward pass compiled."""
    if backend is not None:
        network.forward = torch.compile(network.forward, backend=backend)
    return network


def run(case: Case, backend: str = "npu", tolerance: float = TOLERANCE) -> Found:
    """One case, eagerly and on a backend."""
    found = Found(case.family, case.network, case.recipe, "refused")
    try:
        wanted = case.results(None)
    except Exception as error:
        found.why = _said(error)
        return found
    torch._dynamo.reset()
    begin, begin_cpu = time.perf_counter(), _cpu_seconds()
    with observe() as reports:
        try:
            found.outcome, found.why = _compared(case.results(backend), wanted, tolerance)
        except Exception as error:
            found.outcome, found.why = "crash", _said(error)
    found.seconds, found.cpu_seconds = time.perf_counter() - begin, _cpu_seconds() - begin_cpu
    _count(found, reports)
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _compared(made: Results, wanted: Results, tolerance: float) -> tuple[str, str]:
    if len(made) != len(wanted):
        return "wrong", f"{len(made)} results instead of {len(wanted)}"
    for found, expected in zip(made, wanted, strict=True):
        if found.shape != expected.shape:
            return "wrong", f"shape {list(found.shape)} instead of {list(expected.shape)}"
        if not expected.is_floating_point():
            if not torch.equal(found, expected):
                return "wrong", f"{int((found != expected).sum())} of {expected.numel()} whole numbers differ"
            continue
        finite = expected.isfinite()
        if not torch.equal(found.isfinite(), finite):
            return "wrong", "other elements are finite"
        given, told = found[finite].double(), expected[finite].double()
        if told.numel():
            error = float((given - told).abs().max()) / max(float(told.abs().max()), 1e-6)
            if not error <= tolerance:
                return "wrong", f"differs by {error:.1e} of the largest"
    return "right", ""


def _count(found: Found, reports: list[GraphReport]) -> None:
    found.npu_calls = sum(r.npu_calls for r in reports)
    found.calls = found.npu_calls + sum(len(r.refusals) for r in reports)
    found.programs = sum(r.programs for r in reports)
    found.graphs = len(reports)
    failures = [r.failure for r in reports if r.failure]
    if failures and found.outcome == "right":
        found.outcome, found.why = "fallback", failures[0]


def summary(found: Sequence[Found]) -> str:
    """Counts by family and recipe, and the share of calls on the NPU.

    >>> summary([Found("encoders", "bert", "forward", "right", calls=4, npu_calls=3, programs=1)])
    'encoders, forward: 1 right, 0 wrong, 0 crash, 0 fallback, 0 refused; 75 % of calls on the NPU, 1.0 programs'
    """
    lines = []
    for family, recipe in dict.fromkeys((f.family, f.recipe) for f in found):
        mine = [f for f in found if (f.family, f.recipe) == (family, recipe)]
        counts = collections.Counter(f.outcome for f in mine)
        ran = [f for f in mine if f.outcome != "refused"]
        share = 100 * sum(f.npu_calls for f in ran) / max(sum(f.calls for f in ran), 1)
        programs = sum(f.programs for f in ran) / max(len(ran), 1)
        figures = ", ".join(f"{counts[k]} {k}" for k in ("right", "wrong", "crash", "fallback", "refused"))
        lines.append(
            f"{family}, {recipe}: {figures}; {share:.0f} % of calls on the NPU, {programs:.1f} programs"
        )
    return "\n".join(lines)
