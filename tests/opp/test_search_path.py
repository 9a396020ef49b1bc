"""Operator files in directories of the search path: found, reloaded when they change, withdrawn when they go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ge
from ge import opp, ops

OPERATOR = '''"""An operator file."""

import tbe
from ge import ops


class Shift(ops.Operator):
    """x + amount."""

    x = ops.Input("T", ops.FLOATS)
    y = ops.Output("T")

    @staticmethod
    def compute(op, x):
        return x + {amount}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPU_OPP_PATH", str(tmp_path))
    monkeypatch.setenv("NPU_OPP_TIMEOUT", "1")
    yield tmp_path
    monkeypatch.delenv("NPU_OPP_PATH")
    opp.refresh()


def ones() -> np.ndarray:
    return np.ones(3, np.float32)


def test_file_is_found_reloaded_and_withdrawn(folder: Path) -> None:
    file = folder / "shift.py"
    file.write_text(OPERATOR.format(amount=1.0))
    assert ge.run_operator("Shift", ones())[0] == 2
    key = ops.fingerprint()
    file.write_text(OPERATOR.format(amount=10.0))
    assert ge.run_operator("Shift", ones())[0] == 11
    assert ops.fingerprint() != key
    file.unlink()
    with pytest.raises(ge.GeError, match="'Shift' is not in the operator library"):
        ge.run_operator("Shift", ones())


def test_the_first_directory_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, amount in (("first", 1.0), ("second", 2.0)):
        (folder / name).mkdir()
        (folder / name / "shift.py").write_text(OPERATOR.format(amount=amount))
    monkeypatch.setenv("NPU_OPP_PATH", f"{folder / 'first'}:{folder / 'second'}")
    assert ge.run_operator("Shift", ones())[0] == 2
    monkeypatch.setenv("NPU_OPP_PATH", f"{folder / 'second'}:{folder / 'first'}")
    assert ge.run_operator("Shift", ones())[0] == 3


def test_directory_given_as_an_option(tmp_path: Path) -> None:
    (tmp_path / "shift.py").write_text(OPERATOR.format(amount=4.0))
    with ge.Session({"ge.opp_path": str(tmp_path)}) as session:
        graph = ge.Graph("g")
        graph.output(graph.op("Shift", graph.input("x", (3,))))
        session.add_graph(1, graph)
        assert session.run_graph(1, [ones()])[0][0] == 5
    (tmp_path / "shift.py").unlink()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import tbe\n\nvalue = undefined\n", r"E10610.*broken\.py:3.*NameError"),
        ("def f(:\n", r"E10610.*broken\.py:1.*SyntaxError"),
        ("while True:\n    pass\n", r"E10602.*broken\.py:\d.*did not end within 1 s"),
        ("import os\nos.abort()\n", r"E10605.*broken\.py:2.*SIGABRT"),
    ],
)
def test_file_that_cannot_be_loaded(folder: Path, text: str, words: str) -> None:
    (folder / "broken.py").write_text(text)
    with pytest.raises(ge.GeError, match=words):
        ge.run_operator("Relu", ones())
    (folder / "broken.py").unlink()
    assert ge.run_operator("Relu", ones())[0] == 1


def test_half_of_a_broken_file_is_not_in_force(folder: Path) -> None:
    (folder / "broken.py").write_text(
        OPERATOR.format(amount=1.0) + "\nops.register(Shift)\nraise ValueError\n"
    )
    with pytest.raises(ge.GeError, match="ValueError"):
        opp.refresh()
    (folder / "broken.py").unlink()
    with pytest.raises(ge.GeError, match="'Shift' is not in the operator library"):
        ge.run_operator("Shift", ones())


def test_error_in_an_operator_file_names_its_line(folder: Path) -> None:
    (folder / "shift.py").write_text(OPERATOR.format(amount="undefined"))
    with pytest.raises(ge.GeError, match=r"shift\.py:15 in compute.*NameError"):
        ge.run_operator("Shift", ones())
