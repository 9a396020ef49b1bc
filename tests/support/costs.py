"""Cost tables of tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ge.target import CostTable, Target

__all__ = ["set_costs"]


def set_costs(monkeypatch: pytest.MonkeyPatch, **values: float) -> None:
    """Change some costs of every target, so that small examples are worth what large ones are."""
    measured = Target.measured.fget
    assert measured is not None
    changed = property(lambda target: replace(measured(target), **values))
    assert all(hasattr(CostTable(), name) for name in values)
    monkeypatch.setattr(Target, "measured", changed)
