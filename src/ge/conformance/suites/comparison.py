"""Compares the outcomes of both devices, taking the list of known failures into account."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ge.conformance.suites.known import Known
from ge.conformance.suites.limits import Outcome

__all__ = ["Comparison", "compare"]


@dataclass
class Comparison:
    """Test names by outcome."""

    passed: list[str] = field(default_factory=list)  # on both
    npu_only: list[str] = field(default_factory=list)  # passed on the NPU, not run on the CPU
    skipped: list[str] = field(default_factory=list)  # on the NPU, by the suite itself
    failed: dict[str, Outcome] = field(default_factory=dict)  # on the NPU only, and not a known failure
    unjudged: dict[str, Outcome] = field(default_factory=dict)  # failed on the NPU, not run on the CPU
    known: dict[str, str] = field(default_factory=dict)  # on the NPU only, with the reason
    mended: dict[str, str] = field(default_factory=dict)  # listed as known failures but pass now
    missing: list[str] = field(default_factory=list)  # passed on the CPU and did not run on the NPU
    not_on_cpu: list[str] = field(default_factory=list)  # skipped or failed on the CPU
    not_loaded: dict[str, str] = field(
        default_factory=dict
    )  # files without tests on the CPU, with the reason

    @property
    def reasons(self) -> Counter[str]:
        """Number of known failures by reason."""
        return Counter(self.known.values())

    def by_group(self, groups: str) -> dict[str, dict[str, int]]:
        """Numbers of tests by the part of the suite: what the first group of `groups` matches in a test's name."""
        columns = {
            "passed": self.passed,
            "skipped": self.skipped,
            "known": self.known,
            "failed": self.failed,
            "missing": self.missing,
            "not on the CPU": [*self.not_on_cpu, *self.not_loaded],
        }
        counts: dict[str, dict[str, int]] = {}
        for column, names in columns.items():
            for name in names:
                match = re.search(groups, name)
                group = match[1] if match else ""
                counts.setdefault(group, dict.fromkeys(columns, 0))[column] += 1
        return dict(sorted(counts.items()))

    def as_json(self) -> dict[str, Any]:
        return {
            "passed": len(self.passed),
            "npu only": len(self.npu_only),
            "skipped": len(self.skipped),
            "not on the CPU": len(self.not_on_cpu),
            "not loaded": self.not_loaded,
            "missing": len(self.missing),
            "known": self.known,
            "mended": self.mended,
            "unjudged": {name: [o.status, o.message] for name, o in self.unjudged.items()},
            "failed": {name: [o.status, o.message] for name, o in self.failed.items()},
        }


def compare(cpu: Mapping[str, Outcome], npu: Mapping[str, Outcome], known: Sequence[Known]) -> Comparison:
    """Compare outcomes; only tests that pass on the CPU must pass on the NPU."""
    found = Comparison()
    for name, reference in cpu.items():
        outcome = npu.get(name)
        entry = _entry(known, name)
        if "::" not in name:
            found.not_loaded[name] = reference.message
        elif reference.status != "passed":
            found.not_on_cpu.append(name)
        elif outcome is None:
            found.missing.append(name)
        elif not outcome.bad:
            (found.passed if outcome.status == "passed" else found.skipped).append(name)
            if entry is not None and outcome.status == "passed":
                found.mended[name] = entry.reason
        elif entry is not None:
            found.known[name] = entry.reason
        else:
            found.failed[name] = outcome
    for name, outcome in npu.items():
        if name in cpu or "::" not in name:
            continue
        entry = _entry(known, name)
        if not outcome.bad:
            if outcome.status == "passed":
                found.npu_only.append(name)
                if entry is not None:
                    found.mended[name] = entry.reason
        elif entry is not None:
            found.known[name] = entry.reason
        else:
            found.unjudged[name] = outcome
    # A file that cannot be imported on the NPU has one outcome, named after the file.
    found.failed |= {n: o for n, o in npu.items() if n not in cpu and o.bad and "::" not in n}
    return found


def _entry(known: Sequence[Known], name: str) -> Known | None:
    return next((k for k in known if k.matches(name)), None)
