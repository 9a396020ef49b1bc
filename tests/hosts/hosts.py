"""Two hosts on one machine: network namespaces that a link of limited bandwidth joins. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LINK", "Host", "missing", "two_hosts", "until"]

LINK = "npulink"  # the network interface of each host
_RATE = "200mbit"


def missing() -> str:
    """Why namespaces cannot be made here; nothing where they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = [name for name in ("ip", "tc") if shutil.which(name) is None]
    return f"iproute2 is not installed: no {' or '.join(tools)}" if tools else ""


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass
class Host:
    """A namespace, its address, and what was started in it."""

    name: str
    address: str
    _started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: Sequence[str], log: Path, **settings: str) -> subprocess.Popen[str]:
        """Run a command on the host; its output goes to a file."""
        names = {"GLOO_SOCKET_IFNAME": LINK, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
        with log.open("a") as written:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                env={**os.environ, **names, **settings},
                stdout=written,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._started.append(process)
        return process

    def kill(self) -> None:
        """End every process of the host with signal 9, as a power failure does."""
        while pids := _run("ip", "netns", "pids", self.name).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        for process in self._started:
            process.wait()
        self._started.clear()


@contextmanager
def two_hosts(rate: str = _RATE) -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else; all that runs on them ends with the context."""
    hosts = [Host(f"npu-{os.getpid()}-{n}", f"10.77.0.{n + 1}") for n in range(2)]
    try:
        for host in hosts:
            _run("ip", "netns", "add", host.name)
        first, second = (host.name for host in hosts)
        _run("ip", "link", "add", LINK, "netns", first, "type", "veth", "peer", LINK, "netns", second)
        for host in hosts:
            inside = ("ip", "-n", host.name)
            _run(*inside, "address", "add", f"{host.address}/24", "dev", LINK)
            _run(*inside, "link", "set", "lo", "up")
            _run(*inside, "link", "set", LINK, "up")
            limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
            _run("tc", "-n", host.name, "qdisc", "add", "dev", LINK, "root", *limit)
        yield hosts[0], hosts[1]
    finally:
        for host in hosts:
            with suppress(subprocess.CalledProcessError):
                host.kill()
                _run("ip", "netns", "del", host.name)


def until(done: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Wait until something holds; the test fails with `why` where it does not in time."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, why()
        time.sleep(0.1)
