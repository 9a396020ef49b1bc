"""Readers survive damaged files: they are read or refused with a GeError; no crash, no hang.

The quick profile takes seconds; NPU_FUZZ=medium or long looks longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from ge.errors import GeError
from ge.model import codec, om
from ge.model.container import PAGE, Section, read_sections, write_sections
from tests.atc.model_files import frozen_graph
from tests.model.plans import dense, geared

LONG = bool(os.environ.get("NPU_FUZZ"))
EXAMPLES = {"": 60, "medium": 2_000, "long": 20_000}
MEMORY = 4 << 30

quick = settings(
    max_examples=EXAMPLES[os.environ.get("NPU_FUZZ", "")],
    deadline=None if LONG else 300_000,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
    database=None,
    derandomize=not LONG,
)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """A reader that asks for gigabytes more than it has fails the test."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def read_or_refuse(read: Callable[[], Any]) -> Any:
    """The result, or None when the file is refused; anything else than a GeError fails the test."""
    try:
        return read()
    except GeError as error:
        assert error.code.startswith("E")
        return None


# -- damage ------------------------------------------------------------------------------------------


@st.composite
def damages(draw: st.DrawFn, seed: bytes) -> bytes:
    """A valid file with bytes changed, removed, repeated or put in."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        size = draw(st.integers(1, 16))
        kind = draw(st.sampled_from(["flip", "zero", "ones", "cut", "repeat", "insert", "end"]))
        piece = bytes(data[start : start + size])
        data[start : start + size] = {
            "flip": bytes(b ^ (1 << draw(st.integers(0, 7))) for b in piece),
            "zero": bytes(len(piece)),
            "ones": b"\xff" * len(piece),
            "cut": b"",
            "repeat": piece * 3,
            "insert": draw(st.binary(max_size=16)) + piece,
            "end": piece,
        }[kind]
        if kind == "end":
            del data[start:]
    return bytes(data)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.sampled_from([-1, 1 << 31, 1 << 62, 1 << 64, -(1 << 63), 10**30]),
    st.floats(),
    st.sampled_from(
        ["", "float32", "int8", "input", "arena", "constant", "kernel", "matmul", "copy", "while", "x"]
    ),
    st.builds(list),
    st.builds(dict),
    st.lists(st.integers(-2, 9), max_size=4),
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        yield from _places(value, (*path, key))


def _change(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


# -- seeds -------------------------------------------------------------------------------------------


def onnx_seed() -> bytes:
    """A small model with a branch, initializers of two kinds and several operators."""
    w = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    branch = [
        helper.make_graph(
            [helper.make_node(op, ["m"], ["b"])], op, [], [helper.make_tensor_value_info("b", 1, [2, 3])]
        )
        for op in ("Relu", "Neg")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="dense"),
        helper.make_node("ReduceMax", ["m", "axes"], ["r"], keepdims=0),
        helper.make_node("Greater", ["r0", "zero"], ["c"]),
        helper.make_node("ReduceMin", ["r"], ["r0"], keepdims=0),
        helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Concat", ["y", "m"], ["z"], axis=0),
    ]
    nodes[2], nodes[3] = nodes[3], nodes[2]
    zero = numpy_helper.from_array(np.array(0, np.float32), "zero")
    graph = helper.make_graph(
        nodes,
        "seed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 3])],
        [w, axes, zero],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def air_seed(tmp: Path) -> bytes:
    """A GE graph as a file."""
    import ge
    from ge.parsers import air

    g = ge.Graph("seed")
    x = g.input("x", (2, 4))
    y = ge.ops.softmax(x @ g.constant(np.ones((4, 3), np.float32)) + 1.0, axes=[-1])
    g.output(ge.ops.concat([y, y[::-1]], axis=0), "y")
    return air.write(g.ir, tmp / "seed").read_bytes()


def om_seed(tmp: Path) -> bytes:
    return om.write(om.Package([dense()]), tmp / "seed").read_bytes()


# -- the tests ---------------------------------------------------------------------------------------


def test_damaged_om_files(tmp_path: Path) -> None:
    seed = om_seed(tmp_path)
    assert om.load(seed) is not None

    @quick
    @given(damages(seed))
    def check(data: bytes) -> None:
        read_or_refuse(lambda: om.load(data))
        read_or_refuse(lambda: om.summary(data))

    check()


@pytest.mark.parametrize("package", [om.Package([dense()]), geared(1, 2)], ids=["plain", "gears"])
def test_om_files_with_right_checksums_and_wrong_content(tmp_path: Path, package: om.Package) -> None:
    """Content changed by someone who makes the checksums right: refused, or safe to load and run."""
    sections = read_sections(memoryview(om.write(package, tmp_path / "seed").read_bytes()), "seed").sections
    trees = {name: codec.decode_json(sections[name], name) for name in ("properties", "plans", "kernels")}
    places = [(name, path) for name, tree in trees.items() for path in _places(tree)]

    @quick
    @given(st.lists(st.tuples(st.sampled_from(places), values), min_size=1, max_size=3))
    def check(changes: list[tuple[tuple[str, tuple[Any, ...]], Any]]) -> None:
        changed = {name: codec.decode_json(codec.encode_json(tree), name) for name, tree in trees.items()}
        for (name, path), value in changes:
            try:
                _change(changed[name], path, value)
            except (TypeError, KeyError, IndexError):
                continue  # an earlier change took the place away
        pieces = {name: Section([codec.encode_json(tree)]) for name, tree in changed.items()}
        pieces |= {name: Section([sections[name]], align=PAGE) for name in ("objects", "weights")}
        write_sections(tmp_path / "changed.om", pieces)
        model = read_or_refuse(lambda: om.load(tmp_path / "changed.om"))
        if model is not None:
            arrays = [np.ones(p.desc.shape, codec.numpy_dtype(p.desc.dtype)) for p in model.inputs]
            with contextlib.suppress(GeError):
                model.run(arrays)

    check()


def test_damaged_onnx_files() -> None:
    from ge.parsers.onnx import parser

    seed = onnx_seed()
    assert len(parser.parse(seed)) > 0

    @quick
    @given(damages(seed))
    def check(data: bytes) -> None:
        read_or_refuse(lambda: parser.parse(data))

    check()


def test_damaged_tensorflow_files() -> None:
    from ge.parsers.tensorflow import parser

    seed = frozen_graph()
    assert len(parser.parse(seed)) > 0

    @quick
    @given(damages(seed))
    def check(data: bytes) -> None:
        read_or_refuse(lambda: parser.parse(data))

    check()


def test_damaged_air_files(tmp_path: Path) -> None:
    from ge.parsers import air as parser

    seed = air_seed(tmp_path)
    assert len(parser.parse(seed)) > 0

    @quick
    @given(damages(seed))
    def check(data: bytes) -> None:
        read_or_refuse(lambda: parser.parse(data))

    check()


# -- models whose sizes are hostile ------------------------------------------------------------------------------


def test_hostile_sizes_are_compiled_or_refused_with_little_time_and_memory() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 * MEMORY, 3 * MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (120, 120))

    command = [sys.executable, "-m", "tests.support.hostile_models"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    answers = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, f"died after {list(answers)[-1:]}: {done.stderr[-500:]}"
    wrong = {name: a for name, a in answers.items() if a != "compiled" and not re.fullmatch(r"E\d{5}", a)}
    assert not wrong
    assert "E10099" not in answers.values()
    assert len(answers) > 25
