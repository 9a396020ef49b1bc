"""`tf-adapter cache`: lists and removes what the project wrote, and nothing else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import ge
from npu_tools.cache import entries
from npu_tools.main import main

MODEL = "ab/" + "ab" * 24 + ".om"
KERNEL = "kernels/" + "0f" * 32
WRITTEN = {
    MODEL: "models",
    KERNEL: "kernels",
    "graphs/tp_rank_1/net.graph": "graphs",
    "graphs/net.0.program": "graphs",
    "tuning.json": "tuning",
    "cuda-tuning.json": "tuning",
    "costs-avx2.json": "costs",
}
FOREIGN = ("notes.txt", "ab/own.om", "kernels/readme", "deep/tuning.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*WRITTEN, *FOREIGN):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345678")
    return tmp_path


def test_files_are_recognised_by_place_and_name(folder: Path) -> None:
    found = {entry.path.relative_to(folder).as_posix(): entry.kind for entry in entries(folder)}
    assert found == WRITTEN


def test_kinds_and_sizes_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls", "--dir", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert {row["kind"]: row["bytes"] for row in data["kinds"]}["graphs"] == 16
    assert len(data["files"]) == len(WRITTEN)
    assert main(["cache", "ls", "--dir", str(folder)]) == 0
    assert "total" in capsys.readouterr().out


def test_clear_removes_what_the_project_wrote_only(folder: Path) -> None:
    assert main(["cache", "clear", "--dir", str(folder), "--yes"]) == 0
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == set(FOREIGN)


def test_clear_follows_no_links(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other") / "tuning.json"
    other.write_text("{}")
    (folder / "tuning.json").unlink()
    (folder / "tuning.json").symlink_to(other)
    assert main(["cache", "clear", "--dir", str(folder), "--yes"]) == 0
    assert other.exists() and (folder / "tuning.json").is_symlink()


def test_clear_takes_kinds_and_ages(folder: Path) -> None:
    old = time.time() - 10 * 86400
    os.utime(folder / MODEL, (old, old))
    assert main(["cache", "clear", "--dir", str(folder), "--older", "9", "--yes"]) == 0
    assert not (folder / MODEL).exists() and (folder / KERNEL).exists()
    assert main(["cache", "clear", "--dir", str(folder), "--kind", "kernels", "--yes"]) == 0
    assert not (folder / KERNEL).exists() and (folder / "tuning.json").exists()


def test_clear_asks_and_unknown_kinds_are_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "--dir", str(folder), "--json"]) == 2
    assert main(["cache", "ls", "--dir", str(folder), "--kind", "weights"]) == 2
    assert "kinds are models, kernels" in capsys.readouterr().err
    assert len(list(entries(folder))) == len(WRITTEN)


def test_what_a_compile_leaves_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    g = ge.Graph("net")
    g.output(ge.ops.relu(g.input("x", (4, 5), "float32")), "y")
    ge.compile(g)(np.ones((4, 5), np.float32))
    kernels = [entry for entry in entries(tmp_path) if entry.kind == "kernels"]
    assert len(kernels) == 1
