"""Runs the test suites of other projects twice, on the plain CPU and on the NPU: `python -m ge.conformance suites`.

Each front door has a module (`SUITES`), imported on demand, that locates the test files and names the pytest plugin
that moves them to the NPU.
"""

from ge.conformance.suites.comparison import Comparison, compare
from ge.conformance.suites.known import Known, read_known
from ge.conformance.suites.limits import Limits
from ge.conformance.suites.runner import run_suite
from ge.conformance.suites.suite import SUITES, MissingSuiteError, Side, Suite, find_suite

__all__ = [
    "SUITES",
    "Comparison",
    "Known",
    "Limits",
    "MissingSuiteError",
    "Side",
    "Suite",
    "compare",
    "find_suite",
    "read_known",
    "run_suite",
]
