"""Launches one process of a script per rank on this machine: `python -m npu_bridge run --nproc 4 script.py`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["launch", "reserved_port"]

COMMAND = [sys.executable, "-m", "npu_bridge", "run"]
GRACE = 10.0  # seconds for the other ranks to exit after one failed
_POLL = 0.05


def launch(script: str, arguments: list[str], processes: int) -> int:
    """Run a script in several processes; returns the exit status of the first failure, or 0."""
    with reserved_port() as port:
        ranks = [
            subprocess.Popen(
                [*COMMAND, script, *arguments], env=os.environ | _environment(rank, processes, port)
            )
            for rank in range(processes)
        ]
        try:
            return _ended(ranks)
        finally:
            for process in ranks:
                if process.poll() is None:
                    process.kill()
                process.wait()


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Environment variables of a rank, under the names of common launchers, PyTorch's included."""
    names = {"RANK": rank, "RANK_ID": rank, "LOCAL_RANK": rank, "LOCAL_RANK_ID": rank}
    names |= dict.fromkeys(("WORLD_SIZE", "RANK_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK_SIZE"), size)
    return {
        name: str(value)
        for name, value in (names | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}).items()
    }


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port on which the first rank can still listen.

    The system does not assign a bound port to others, but servers with SO_REUSEADDR (PyTorch's and TensorFlow's) may
    share it with a socket that does not listen.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield int(held.getsockname()[1])


def _ended(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all ranks, or for a failure and then a short time for the others."""
    failed, until = 0, float("inf")
    while any(process.poll() is None for process in ranks) and time.monotonic() < until:
        for rank, process in enumerate(ranks):
            if not failed and process.poll():
                failed, until = process.returncode, time.monotonic() + GRACE
                print(f"rank {rank} of {len(ranks)} {_how(failed)}", file=sys.stderr, flush=True)
        time.sleep(_POLL)
    for rank, process in enumerate(ranks):
        if failed and process.poll() is None:
            print(f"rank {rank} of {len(ranks)} is ended: it waits for one that failed", file=sys.stderr)
        elif not failed and process.returncode:
            failed = process.returncode
            print(f"rank {rank} of {len(ranks)} {_how(failed)}", file=sys.stderr, flush=True)
    return failed if failed >= 0 else 128 - failed


def _how(status: int) -> str:
    return f"ended with status {status}" if status > 0 else f"was ended by {signal.Signals(-status).name}"
