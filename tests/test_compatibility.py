"""Patches of frameworks: applied as declared, left out with a warning, refused where the front door needs them."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
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


# -- Triton and TensorFlow ---------------------------------------------------------------------------------------


@pytest.fixture
def with_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that stands for Triton and says whether TensorFlow was there before."""
    (tmp_path / "triton").mkdir()
    text = "import sys\nprint('triton', 'after' if 'tensorflow' in sys.modules else 'before')\n"
    (tmp_path / "triton" / "__init__.py").write_text(text)
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def _printed(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_triton_is_loaded_before_tensorflow(with_triton: Path) -> None:
    program = "from ge.compatibility import load_triton_before_tensorflow as load\nload(); import tensorflow; load()"
    assert _printed(program).stdout == "triton before\n"


def test_triton_that_comes_too_late_is_named_with_a_remedy(with_triton: Path) -> None:
    program = "import tensorflow; from ge.compatibility import warn_of_late_triton as warn; warn()"
    ran = _printed(program)
    assert ran.stdout == ""
    assert "Import tf_adapter, torchair or triton before tensorflow" in ran.stderr
    assert not _printed(f"import triton\n{program}").stderr
    (with_triton / "triton" / "__init__.py").unlink()
    (with_triton / "triton").rmdir()
    assert not _printed(program).stderr


def test_tf_adapter_loads_triton_first(with_triton: Path) -> None:
    (with_triton / "tensorflow" / "__init__.py").write_text("raise ImportError('a stand-in')")
    ran = _printed("import tf_adapter")
    assert ran.stdout == "triton before\n"
    assert "a stand-in" in ran.stderr
