"""Collectives of several processes over Gloo, rank tables, and ranks that fail."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hccl import ranks, transports
from npu_bridge import launch

SCRIPT = Path(__file__).parent / "ranks.py"


def started(size: int, *arguments: str, **settings: str) -> list[tuple[int, str]]:
    """Status and output of each rank of the script."""
    with launch.reserved_port() as port:
        others = os.environ | {"MASTER_PORT": str(port), "RANK_SIZE": str(size)} | settings
        processes = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), *arguments],
                env=others | {"RANK_ID": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            outputs = [process.communicate(timeout=900)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def test_three_ranks_meet_where_the_rank_table_says(tmp_path: Path) -> None:
    table = tmp_path / "ranks.json"
    devices = [{"device_id": str(i), "rank_id": str(i)} for i in range(3)]
    table.write_text(json.dumps({"server_list": [{"server_id": "127.0.0.1", "device": devices}]}))
    for rank, (status, output) in enumerate(started(3, RANK_TABLE_FILE=str(table))):
        assert status == 0 and f"rank {rank} of 3 is done" in output, output


@pytest.mark.parametrize(
    ("how", "limit"), [("ends", "100"), pytest.param("hangs", "60", marks=pytest.mark.slow)]
)
def test_ranks_name_the_one_that(how: str, limit: str, tmp_path: Path) -> None:
    (first, said), (second, ended) = started(
        2, how, str(tmp_path), MASTER_ADDR="127.0.0.1", HCCL_EXEC_TIMEOUT=limit
    )
    assert second == 3, ended
    assert first == 4, said
    assert "of rank 0 in group 'hccl_world_group'" in said and "rank 1 did not come to it" in said
    assert f"later than {limit} s (HCCL_EXEC_TIMEOUT)" in said


def test_ranks_that_make_different_calls_are_named() -> None:
    for status, said in started(2, "differs", MASTER_ADDR="127.0.0.1"):
        assert status == 4, said
        assert "rank 0: all_reduce (sum) of float64[2]; rank 1: all_reduce (sum) of float64[3]" in said


def test_ranks_of_different_versions_are_named() -> None:
    for status, said in started(2, "older", MASTER_ADDR="127.0.0.1"):
        assert status == 4, said
        assert f"rank 0: {transports.version()}, rank 1: 0.0.1" in said


def test_a_port_that_another_process_uses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in (("ADDR", "127.0.0.1"), ("PORT", str(port))):
            monkeypatch.setenv(f"MASTER_{name}", value)
        monkeypatch.setenv("RANK_ID", "0")
        monkeypatch.setenv("RANK_SIZE", "2")
        with pytest.raises(ranks.HcclError, match=f"127.0.0.1:{port}: another process uses the port"):
            transports.Gloo()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "cannot be read"),
        ("no JSON", "cannot be read"),
        ('{"server_list": [{"server_id": "a", "device": [{"rank_id": "1"}]}]}', "once each"),
        (
            '{"server_list": [{"server_id": "a", "device": [{"rank_id": "0"}]}]}',
            "has 1 ranks, but RANK_SIZE is 2",
        ),
    ],
)
def test_wrong_rank_tables_are_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranks.json").write_text(text)
    monkeypatch.setenv("RANK_TABLE_FILE", str(tmp_path / "ranks.json"))
    monkeypatch.setenv("RANK_SIZE", "2")
    with pytest.raises(ranks.HcclError, match=message):
        ranks.group_of(ranks.WORLD)


def test_the_launcher_starts_ranks_and_names_the_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "rank, size, address = (os.environ[name] for name in ('RANK_ID', 'RANK_SIZE', 'MASTER_ADDR'))\n"
        "print(f'rank {rank} of {size} at {address}', flush=True)\n"
        "if 'fail' in sys.argv:\n"
        "    sys.exit(7) if os.environ['RANK_ID'] == '1' else time.sleep(600)\n"
    )
    monkeypatch.setattr(launch, "COMMAND", [sys.executable])
    monkeypatch.setattr(launch, "GRACE", 0.5)
    assert launch.launch(str(script), [], 3) == 0
    said = capfd.readouterr().out  # lines of several processes may be mixed
    assert all(f"rank {rank} of 3 at 127.0.0.1" in said for rank in range(3)), said
    assert launch.launch(str(script), ["fail"], 2) == 7
    said = capfd.readouterr().err
    assert "rank 1 of 2 ended with status 7" in said and "rank 0 of 2 is ended" in said


@pytest.mark.slow
def test_two_ranks_of_a_session_train_as_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "npu_bridge", "run", "--nproc", "2", str(SCRIPT.with_name("ranked.py"))],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    for rank in range(2):  # lines of two processes that write into one pipe may be mixed
        assert f"rank {rank} is done" in done.stdout
