"""Programs with their packed constants in a file: the same answers without packing, and nothing that is not our own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npu_runtime
from ge.compiler import compile_graph
from ge.model import packed
from ge.model.model import Model
from ge.ops.builder import GraphBuilder


@pytest.fixture
def model() -> Model:
    rng = np.random.default_rng(0)
    builder = GraphBuilder("mlp")
    x = builder.input("x", (4, 64), "float32")
    table = builder.constant(rng.standard_normal((32, 48), dtype=np.float32), "table")
    y = builder.op("MatMul", x, builder.constant(rng.standard_normal((64, 48), dtype=np.float32), "w"))
    rows = builder.op("Gather", table, builder.input("i", (4,), "int64"), axis=0)
    builder.output(builder.op("Add", builder.op("Relu", y), rows))
    return compile_graph(builder.graph)


def feeds() -> list[np.ndarray]:
    return [np.random.default_rng(1).standard_normal((4, 64), dtype=np.float32), np.array([0, 5, 31, 2])]


def test_a_loaded_program_answers_the_same(model: Model, tmp_path: Path) -> None:
    path = packed.write(model, tmp_path / f"m{packed.SUFFIX}")
    loaded = packed.read(path)
    assert loaded is not None
    np.testing.assert_array_equal(loaded.run(feeds())[0], model.run(feeds())[0])
    assert loaded.program.constant_bytes == 0  # read in place, not packed again


@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
def test_damaged_files_are_not_used(model: Model, tmp_path: Path, place: float) -> None:
    path = packed.write(model, tmp_path / f"m{packed.SUFFIX}")
    data = bytearray(path.read_bytes())
    whole = bytes(data)
    nonzero = [i for i in range(int(place * (len(data) - 1)), len(data)) if data[i]]
    data[nonzero[0]] ^= 0x40
    path.write_bytes(data)
    assert packed.read(path) is None
    path.write_bytes(whole[:-1])
    assert packed.read(path) is None


def test_an_image_of_another_program_is_refused(model: Model) -> None:
    program = npu_runtime.Program("other")
    with pytest.raises(ValueError, match="laid out differently"):
        program.finalize(0, model.program.constant_image, model.program.image_layout)


def test_checksums_tell_every_changed_byte() -> None:
    data = np.random.default_rng(0).integers(0, 256, (1 << 20) + 77, np.uint8)
    first = npu_runtime.checksum(data)
    for place in (0, 255, 256, 1 << 19, (1 << 20) - 1, 1 << 20, data.size - 1):
        data[place] ^= 1
        assert npu_runtime.checksum(data) != first
        data[place] ^= 1
    assert npu_runtime.checksum(data) == first
    assert npu_runtime.checksum(data[:-1]) != first
    assert npu_runtime.checksum(b"") != npu_runtime.checksum(b"\0")
