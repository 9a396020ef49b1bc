"""Layers against float64 and a framework, dumps, and the search for a mixlist, without a process or a framework."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ge.compiler import compile_graph
from ge.options import CompileOptions
from ge.parsers.files import parse_file
from npu_tools.check import layers, mixlist
from npu_tools.check.file_references import nodes_of
from npu_tools.check.observe import batch_sizes
from npu_tools.check.request import Request
from tests.tools.test_check_files import chain, overflowing, save

MODES = ("must_keep_origin_dtype", "force_fp16")


def request(**changes: Any) -> Request:
    given = Request("npu", "onnx", "", "", (), (), "", layers=True, modes=MODES)
    return replace(given, **changes)


def piece(path: Path, framework: Any = None) -> layers.Piece:
    """The graph of a file with one input of four rows."""
    graph = parse_file(str(path), CompileOptions(input_shapes={"x": (4, 32)}))
    x = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    found = nodes_of(str(path), "onnx", [x]) if framework is None else framework
    return layers.Piece(graph, [x], found, lambda node: f"net.py:{len(node)}")


class Fixed:
    """A framework that computes what it is told to."""

    name = "Fixed 1.0"

    def __init__(self, change: float, fails: str = "") -> None:
        self.change, self.fails = change, fails
        self.inner: layers.Framework | None = None

    def values(self, nodes: Sequence[str], drawn: layers.Drawn) -> Mapping[str, np.ndarray]:
        if self.fails:
            raise RuntimeError(self.fails)
        assert self.inner is not None
        return {node: value * (1 + self.change) for node, value in self.inner.values(nodes, drawn).items()}


def compared(path: Path, framework: Fixed) -> dict[str, Any]:
    whole = piece(path)
    framework.inner = whole.framework
    found = layers.analyse([replace(whole, framework=framework)], request())
    precision: dict[str, Any] = found["precision"]
    return precision


def test_layers_have_their_error_and_that_of_the_framework(tmp_path: Path) -> None:
    found = layers.analyse([piece(overflowing(tmp_path / "net.onnx"))], request())["precision"]
    kept = found["modes"]["must_keep_origin_dtype"]
    assert [row["layer"] for row in kept["layers"]] == ["first", "relu", "huge", "last"]
    for row in kept["layers"]:
        assert row["error"] < 1e-5 and row["framework"] < 1e-5 and row["to_framework"] < 1e-5
        assert row["location"] == f"net.py:{len(row['layer'])}"
    assert found["verdict"].startswith(
        f"must_keep_origin_dtype: as near to float64 as {found['framework']} is"
    )
    lowered = found["modes"]["force_fp16"]
    assert lowered["first_overflow"]["layer"] == "huge" and "overflow, first in huge" in lowered["verdict"]


def test_a_framework_that_is_unstable_itself_is_no_fault_of_the_npu(tmp_path: Path) -> None:
    path = overflowing(tmp_path / "net.onnx")
    stable = compared(path, Fixed(0.0))["modes"]["must_keep_origin_dtype"]
    assert stable["first_unstable"] is None and stable["first_departing"] is None
    found = compared(path, Fixed(0.05))["modes"]["must_keep_origin_dtype"]
    assert found["first_unstable"]["layer"] == "first" and found["first_unstable"][
        "framework"
    ] == pytest.approx(0.05)
    assert found["first_departing"] is None
    assert "The reference itself is unstable in 4 of 4 layers, first in first" in found["verdict"]


def cancelling(path: Path) -> Path:
    """A network with a sum of terms that cancel each other: what is left is rounding."""
    weights = {
        "w": np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32),
        "axis": np.array([1]),
        "three": np.float32([3.0]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("ReduceMean", ["a", "axis"], ["m"], name="mean"),
        helper.make_node("Sub", ["a", "m"], ["c"], name="centred"),
        helper.make_node("ReduceSum", ["c", "axis"], ["s"], name="sum"),
        helper.make_node("Mul", ["s", "three"], ["y"], name="scaled"),
    ]
    return save(path, nodes, {"x": ["N", 32], "y": ["N", 1]}, weights)


NOISE = 1e-4  # beside terms of 64 × 5; rounding leaves 1e-6


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, ""),
        ({"sum": lambda s: s + NOISE, "scaled": lambda y: y + 3 * NOISE}, ""),  # the second one inherits it
        ({"sum": lambda s: s + 0.5}, "sum"),
        ({"scaled": lambda y: y + 0.5}, "scaled"),
        ({"first": lambda a: a * (1 + 1e-4)}, "first"),  # the reference of this one is stable
    ],
)
def test_where_the_reference_is_unstable_a_layer_answers_for_what_it_computes_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], first: str
) -> None:
    kept = with_faults(piece(cancelling(tmp_path / "net.onnx")), changes, monkeypatch)
    assert kept["first_unstable"]["layer"] == "sum" and kept["first_unstable"]["reference"] > 1
    assert "unstable in 2 of 5 layers, first in sum" in kept["verdict"]
    assert (kept["first_departing"] or {"layer": ""})["layer"] == first
    assert (f" is, first in {first} (greatest" if first else "as near to float64 as") in kept["verdict"]


def test_an_overflow_is_found_where_the_reference_is_unstable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = with_faults(
        piece(cancelling(tmp_path / "net.onnx")), {"sum": lambda s: np.full_like(s, math.inf)}, monkeypatch
    )
    assert kept["first_overflow"]["layer"] == kept["first_departing"]["layer"] == "sum"
    assert "values overflow, first in sum" in kept["verdict"]


def with_faults(
    whole: layers.Piece, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The layers of a piece, as if the NPU had computed some of them in another way."""

    def compiled(graph: Any, *given: Any) -> Any:
        names = [layers.origin_of(output.producer()) for output in graph.outputs]
        model = compile_graph(graph, *given)
        return SimpleNamespace(
            run=lambda arrays: [
                changes.get(n, np.asarray)(np.asarray(r))
                for n, r in zip(names, model.run(arrays), strict=True)
            ]
        )

    monkeypatch.setattr(layers, "compile_graph", compiled)
    found = layers.analyse([whole], request(modes=MODES[:1]))
    kept: dict[str, Any] = found["precision"]["modes"][MODES[0]]
    return kept


def test_a_framework_that_fails_leaves_the_comparison_with_float64(tmp_path: Path) -> None:
    found = compared(overflowing(tmp_path / "net.onnx"), Fixed(0.0, "it has no kernels"))
    assert found["notes"] == ["Fixed 1.0 could not compute the layers by itself: it has no kernels"]
    kept = found["modes"]["must_keep_origin_dtype"]
    assert {row["framework"] for row in kept["layers"]} == {None}
    assert "as near to float64 as float32 by itself is" in kept["verdict"]


def test_a_dump_has_the_values_of_every_source_and_the_table(tmp_path: Path) -> None:
    told: list[str] = []
    asked = request(dump=str(tmp_path / "dump"))
    whole = piece(overflowing(tmp_path / "net.onnx"))
    layers.analyse([whole], asked, lambda phase, done, total: told.append(f"{phase} {done}/{total}"))
    assert told == [
        "layers in float64 0/3",
        "layers in must_keep_origin_dtype 1/3",
        "layers in force_fp16 2/3",
    ]
    assert whole.framework is not None
    sources = {"float64", *MODES, whole.framework.name.split()[0]}
    assert {p.stem for p in (tmp_path / "dump").glob("*.npz")} == sources
    with (
        np.load(tmp_path / "dump" / "float64.npz") as exact,
        np.load(tmp_path / "dump" / "force_fp16.npz") as got,
    ):
        (huge,) = [name for name in exact if name.endswith(" huge")]
        assert np.isfinite(exact[huge]).all() and not np.isfinite(got[huge]).all()
    with open(tmp_path / "dump" / "layers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {row["mode"] for row in rows} == set(MODES)


@pytest.mark.parametrize("keep", [0, 1])
def test_the_mixlist_has_the_operators_that_cost_the_most(tmp_path: Path, keep: int) -> None:
    path = chain(tmp_path / "net.onnx", [0.2, 1e5, 4e-7, 0.2, 1e5, 4e-7])  # fp16 ends at 65504
    needed = {"product1", "product2", "product4", "product5"}
    asked = request(mixlist=str(tmp_path / "mix.json"), keep=keep, tolerance=0.01, layers=False)
    found = mixlist.search([piece(path)], asked)
    assert [row["mode"] for row in found["experiments"]] == ["force_fp16"]
    assert {row["keep"] for row in found["rows"]} == needed and found["operators"] == 6
    assert found["error_before"] == math.inf and {row["location"] for row in found["rows"]} == {"net.py:8"}
    listed = json.loads((tmp_path / "mix.json").read_text())["black-list"]["to-add"]
    assert listed == found["keep"] and len(listed) == (keep or 4)
    if keep:
        assert found["error"] == math.inf and "4 of 6 operators would have to be kept" in found["verdict"]
    else:
        assert found["error"] < 0.01 and "Keep 4 of 6 operators" in found["verdict"]
        whole = piece(path)
        mended = replace(whole, options=replace(whole.options, op_precision=dict.fromkeys(listed, MODES[0])))
        again = mixlist.search([mended], asked)
        assert again["keep"] == [] and again["error"] == pytest.approx(found["error"])


def test_steps_are_measured_at_other_batch_sizes_as_far_as_they_go() -> None:
    seen: list[int] = []

    def step(batch: int) -> batch_sizes.Step:
        if batch > 8:
            raise ValueError("too large")
        return lambda: seen.append(batch)

    repeatable = batch_sizes.Repeatable(lambda: 4, step)
    plain = request(side="plain")
    rows = batch_sizes.throughput(repeatable, plain, lambda *_: None)
    assert [row["batch"] for row in rows] == [2, 4, 8, 16] and set(seen) == {2, 4, 8}
    assert all(row["seconds"] >= 0 for row in rows[:3]) and rows[3]["refused"] == "too large"
    assert [
        r["batch"]
        for r in batch_sizes.throughput(repeatable, replace(plain, batches=(3, 1)), lambda *_: None)
    ] == [1, 3]
    assert batch_sizes.throughput(None, plain, lambda *_: None) == []
    ragged = batch_sizes.Repeatable(lambda: batch_sizes.common_batch([(2,), (3,)]), step)
    assert batch_sizes.throughput(ragged, plain, lambda *_: None) == []
