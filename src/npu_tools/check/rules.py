"""Rules of `--fail-on`: a level, the name of a finding, or a condition on a figure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from npu_tools.outcome import Misuse

__all__ = ["Rule", "broken", "parse_rules"]

_LEVELS = ("error", "warning", "note")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt, "==": operator.eq,
}  # fmt: skip
_CONDITION = re.compile(r"^([a-z_]+)\s*(<=|>=|==|<|>)\s*([-+.\deE]+)$")
FIGURES = (
    "speedup", "step_ms", "plain_step_ms", "first_step_s", "plain_first_step_s", "output_error", "loss_error",
    "framework_loss_error",
    "operators", "host_operators", "host_flops_share", "peak_memory_mib", "plain_peak_memory_mib",
    "device_memory_share", "memory_growth_kib", "input_share",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One rule."""

    text: str
    level: str = ""
    finding: str = ""
    figure: str = ""
    compare: str = ""
    limit: float = 0.0

    def broken_by(self, report: Mapping[str, Any]) -> str:
        """Reason why a report breaks the rule; "" if it does not."""
        if self.figure:
            value = report["figures"].get(self.figure)
            if value is None:
                return f"{self.text}: {self.figure} was not measured"
            return f"{self.text}: it is {value:.4g}" if _OPERATORS[self.compare](value, self.limit) else ""
        if self.level == "checklist":
            failed = [i["item"] for i in report["checklist"] if i["state"] == "fail"]
            return f"{self.text}: {'; '.join(failed)}" if failed else ""
        wanted = _LEVELS[: _LEVELS.index(self.level) + 1] if self.level else ()
        hits = [f for f in report["findings"] if f["level"] in wanted or f["id"] == self.finding]
        return f"{self.text}: {len(hits)} finding(s), first: {hits[0]['title']}" if hits else ""


def parse_rules(texts: list[str]) -> list[Rule]:
    """Rules from a command line; commas separate several.

    >>> [r.figure or r.level or r.finding for r in parse_rules(["warning,speedup<1", "memory-growth"])]
    ['warning', 'speedup', 'memory-growth']
    """
    return [_parse(part.strip()) for text in texts for part in text.split(",") if part.strip()]


def _parse(text: str) -> Rule:
    if text in (*_LEVELS, "checklist"):
        return Rule(text, level=text)
    condition = _CONDITION.match(text)
    if condition is None:
        if re.fullmatch(r"[a-z]+(-[a-z]+)*", text):
            return Rule(text, finding=text)
        raise Misuse(
            f"there is no rule '{text}'",
            "use error, warning, note, checklist, the name of a finding, or speedup<1",
        )
    figure, compare, limit = condition.groups()
    if figure not in FIGURES:
        raise Misuse(f"there is no figure '{figure}'", f"known figures: {', '.join(FIGURES)}")
    return Rule(text, figure=figure, compare=compare, limit=float(limit))


def broken(report: Mapping[str, Any], rules: list[Rule]) -> list[str]:
    """The rules that a report breaks, with the reason of each."""
    return [why for why in (rule.broken_by(report) for rule in rules) if why]
