"""Patches of frameworks: applied as declared, left out with a warning, refused where the front door needs them."""

from __future__ import annotations

import types
from typing import Any

import pytest

from ge.compatibility import CompatibilityWarning, Patch, PatchTable


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that stands for a framework."""
    module: Any = types.ModuleType("framework")

    class Context:
        """A context."""

        def run(self, x: int) -> int:
            """Run."""
            return x

        @staticmethod
        def kinds() -> set[str]:
            return {"CPU"}

        soft = property(lambda self: True)

    module.Context = Context
    monkeypatch.setitem(__import__("sys").modules, "framework", module)
    return module


def _table(*patches: Patch) -> PatchTable:
    return PatchTable("Framework", ("1.0", "2.0"), patches)


def _doubled(original: Any) -> Any:
    return lambda *args: 2 * original(*args)


def test_methods_static_methods_and_properties_are_replaced(framework: Any) -> None:
    _table(
        Patch("framework:Context.run", _doubled),
        Patch("framework:Context.kinds", lambda original: lambda: original() | {"NPU"}),
        Patch("framework:Context.soft", lambda original: property(lambda self: not original.fget(self))),
    ).apply()
    assert framework.Context().run(3) == 6
    assert framework.Context.run.__doc__ == "Run."
    assert framework.Context().kinds() == {"CPU", "NPU"}
    assert framework.Context().soft is False


@pytest.mark.parametrize(
    "places", [["framework:Context.gone"], ["framework:Context.run", "framework:Gone.x"]]
)
def test_what_a_version_lacks_is_left_out_with_a_warning(framework: Any, places: list[str]) -> None:
    patch = Patch(places[0], _doubled, without="runs are slower", needs=tuple(places[1:]))
    with pytest.warns(CompatibilityWarning, match=r"has no framework:.*runs are slower \(tried: 1.0, 2.0\)"):
        _table(patch).apply()
    assert framework.Context().run(3) == 3


def test_an_indispensable_patch_refuses_before_anything_is_changed(framework: Any) -> None:
    table = _table(Patch("framework:Context.run", _doubled), Patch("framework.missing:anything", _doubled))
    with pytest.raises(ImportError, match=r"Framework has no framework.missing:anything; .*1.0, 2.0"):
        table.apply()
    assert framework.Context().run(3) == 3
