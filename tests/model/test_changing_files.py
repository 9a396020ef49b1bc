"""A loaded model does not change and does not crash, whatever happens to the files it came from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import ge
from ge.model import packed

ROWS = np.arange(4096 * 4, dtype=np.float32).reshape(4096, 4)
TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (int64[2] i) => (float[2,4] y) { y = Gather(t, i) }'
PLACES = np.array([1, 4095])


def table(folder: Path) -> tuple[Path, Path]:
    """A model whose rows are read as they are stored, and the file that they are stored in."""
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(ROWS, "t"))
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx", folder / "m.data"


def from_external_data(folder: Path) -> tuple[Path, ge.Model]:
    model, data = table(folder)
    return data, ge.compile(model)


def from_om(folder: Path) -> tuple[Path, ge.Model]:
    path = ge.compile(table(folder)[0]).save(folder / "m.om")
    return path, ge.load(path)


def from_packed(folder: Path) -> tuple[Path, ge.Model]:
    path = packed.write(ge.compile(table(folder)[0]), folder / "m.program")
    loaded = packed.read(path)
    assert loaded is not None
    return path, loaded


@pytest.mark.parametrize("load", [from_external_data, from_om, from_packed])
def test_a_file_written_over_in_place_does_not_reach_the_model(
    load: Callable[[Path], tuple[Path, ge.Model]], tmp_path: Path
) -> None:
    path, model = load(tmp_path)
    with path.open("r+b") as file:
        file.write(b"\1" * path.stat().st_size)
    np.testing.assert_array_equal(model(PLACES), ROWS[PLACES])
    with path.open("r+b") as file:
        file.truncate(1)
    np.testing.assert_array_equal(model(PLACES), ROWS[PLACES])
    path.unlink()
    np.testing.assert_array_equal(model(PLACES), ROWS[PLACES])


def test_memory_that_the_caller_writes_to_does_not_reach_the_model(tmp_path: Path) -> None:
    data = bytearray(from_om(tmp_path)[0].read_bytes())
    model = ge.load(data)
    data[:] = bytes(len(data))
    np.testing.assert_array_equal(model(PLACES), ROWS[PLACES])
