"""ge.Session: graphs by number, compiled once, run directly or in the background."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import ge
from ge.errors import GeError
from ge.session import parse_options

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def scaled(factor: float) -> ge.Graph:
    g = ge.Graph(f"times {factor}")
    g.output(g.input("x", (2, 3)) * factor, "y")
    return g


def test_graphs_are_run_by_number() -> None:
    with ge.Session() as session:
        session.add_graph(1, scaled(2))
        session.add_graph(2, scaled(3))
        np.testing.assert_array_equal(session.run_graph(1, [X])[0], X * 2)
        np.testing.assert_array_equal(session.run_graph(2, [X])[0], X * 3)


def test_a_graph_is_compiled_once() -> None:
    with ge.Session() as session:
        session.add_graph(1, scaled(2))
        assert session.is_graph_need_rebuild(1)
        assert session.build_graph(1) is session.build_graph(1)
        assert not session.is_graph_need_rebuild(1)


def test_graphs_run_in_the_background() -> None:
    seen: list[np.ndarray] = []
    called = threading.Event()
    with ge.Session() as session:
        session.add_graph(1, scaled(2))
        futures = [session.run_graph_async(1, [X + i]) for i in range(8)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result(30)[0], (X + i) * 2)
        session.run_graph_async(1, [X], lambda results: (seen.extend(results), called.set()))
        assert called.wait(30)
    np.testing.assert_array_equal(seen[0], X * 2)


def test_failures_in_the_background_come_with_the_result() -> None:
    with ge.Session() as session:
        session.add_graph(1, scaled(2))
        with pytest.raises(GeError):
            session.run_graph_async(1, [X[:1]]).result(30)


def test_removed_graphs_are_gone() -> None:
    with ge.Session() as session:
        session.add_graph(1, scaled(2))
        with pytest.raises(GeError, match="has a graph 1"):
            session.add_graph(1, scaled(2))
        session.remove_graph(1)
        for use in (session.run_graph, session.run_graph_async):
            with pytest.raises(GeError, match="no graph 1"):
                use(1, [X])
        with pytest.raises(GeError):
            session.remove_graph(1)
        session.add_graph(1, scaled(5))
        np.testing.assert_array_equal(session.run_graph(1, [X])[0], X * 5)


def test_files_are_graphs_too(tmp_path: Path) -> None:
    path = ge.compile(scaled(4)).save(tmp_path / "times4")
    with ge.Session() as session:
        session.add_graph(1, path)
        np.testing.assert_array_equal(session.run_graph(1, [X])[0], X * 4)


def test_options_have_the_names_of_ported_programs(tmp_path: Path) -> None:
    switches = tmp_path / "switches.json"
    switches.write_text('{"Switch": {"GraphFusion": {"fuse_gelu": "off", "other": "on"}}}')
    options = parse_options({"ge.exec.precision_mode": "force_fp32", "ge.fusionSwitchFile": str(switches)})
    assert options.precision_mode is ge.PrecisionMode.FORCE_FP32
    assert options.disabled_passes == {"fuse_gelu"}
    assert parse_options({"ge.graphRunMode": "1"}) == parse_options(None)
    with pytest.raises(GeError, match="precision_mode"):
        parse_options({"ge.exec.precisoin_mode": "x"})
