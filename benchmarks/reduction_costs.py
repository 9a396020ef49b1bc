"""What adding the gradients of 8 to 1,024 NPUs would cost: a model over bandwidths that are measured on this machine.

Assumptions, all on the side of a slow reduction unless said otherwise:

1. The sum begins when the backward pass has ended: nothing of it is hidden.
2. NPUs of a host share its memory and its link; each message costs the latency of the link, whatever its size.
3. Ring: every NPU sends and receives 2 (N-1) pieces of 1/N; those that cross hosts take the link, one ring a host.
4. Tree: the whole gradients go up and down a binary tree, one message a level, without pipelining.
5. Hierarchical: NPUs of a host add their gradients in shared memory, each its own share, hosts then form a ring.
6. Links do not disturb each other, and no NPU is slower than another (on the side of a fast reduction).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from benchmarks.measure import console, milliseconds, new_table

__all__ = ["WAYS", "Machine", "measured", "print_table"]

COUNTS = (8, 16, 64, 256, 1024)
_MEMORY_BYTES, _LINK_BYTES, _ROUND_TRIPS = 32 << 20, 4 << 20, 200


@dataclass(frozen=True)
class Machine:
    """Hosts of equal NPUs: seconds, and bytes a second."""

    memory: float  # at which one NPU adds gradients of another to its own
    link: float  # between two hosts
    latency: float  # of a message between two hosts
    npus: int = 8  # of a host


def ring(machine: Machine, count: int, size: float) -> float:
    """All NPUs in one ring.

    >>> round(ring(Machine(memory=1e9, link=1e9, latency=0.0), 1024, 1e9), 2)
    3.0
    """
    share = (count - 1) / count
    hosts = count > machine.npus
    sent = 2 * share * size / (machine.link if hosts else machine.memory)
    return 2 * (count - 1) * machine.latency * hosts + sent + share * size / machine.memory


def tree(machine: Machine, count: int, size: float) -> float:
    """A binary tree of hosts, over the sums of their own NPUs.

    >>> round(tree(Machine(memory=1e12, link=1e9, latency=0.0, npus=1), 8, 1e9), 1)
    6.0
    """
    levels = ceil(log2(max(count / machine.npus, 1)))
    inside = _inside(machine, min(count, machine.npus), size)
    return inside + levels * (2 * machine.latency + 2 * size / machine.link + size / machine.memory)


def hierarchical(machine: Machine, count: int, size: float) -> float:
    """Sums within hosts, then a ring of hosts.

    >>> round(hierarchical(Machine(memory=1e12, link=1e9, latency=0.0), 1024, 1e9), 1)
    2.0
    """
    hosts = max(count // machine.npus, 1)
    across = 2 * (hosts - 1) * machine.latency + 2 * (hosts - 1) / hosts * size / machine.link
    return _inside(machine, min(count, machine.npus), size) + across


def _inside(machine: Machine, count: int, size: float) -> float:
    """Each NPU of a host adds its share of all gradients; then all read the sums."""
    return (count - 1) / count * 2 * size / machine.memory


WAYS = {"ring": ring, "tree": tree, "hierarchical": hierarchical}


# -- measurements ------------------------------------------------------------------------------------------------


def measured(npus: int) -> Machine:
    """This machine's memory, and its loopback as the link."""
    mine, other = (np.ones(_MEMORY_BYTES // 4, np.float32) for _ in range(2))
    seconds = _best(3, lambda: np.add(mine, other, out=mine))
    latency, link = _loopback()
    return Machine(_MEMORY_BYTES / seconds, link, latency, npus)


def _best(times: int, call: Callable[[], object]) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _loopback() -> tuple[float, float]:
    """Seconds of a message of one byte, and bytes a second of a long one, over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_echo, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            latency = _best(_ROUND_TRIPS, lambda: _exchange(line, b"x")) / 2
            seconds = _best(20, lambda: _exchange(line, bytes(_LINK_BYTES)))
        echo.join()
    return latency, _LINK_BYTES / seconds


def _exchange(line: socket.socket, message: bytes) -> None:
    """Send a message with its length, and wait for one byte."""
    line.sendall(len(message).to_bytes(8, "little") + message)
    line.recv(1)


def _echo(server: socket.socket) -> None:
    line, _ = server.accept()
    with line, line.makefile("rb") as stream:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := stream.read(8):
            stream.read(int.from_bytes(head, "little"))
            line.sendall(b"y")


# -- table -------------------------------------------------------------------------------------------------------


def print_table(machine: Machine, name: str, size: float, step: float) -> None:
    """Costs and efficiency of many NPUs for a network whose step takes `step` seconds on one NPU."""
    title = (
        f"{name}: adding {size / 1e6:.3g} MB of gradients after steps of {milliseconds(step)} ms, by a model"
    )
    table = new_table(title, ["NPUs", *(f"{way}, ms" for way in WAYS), "best way", "of linear scaling"])
    for count in COUNTS:
        costs = {way: cost(machine, count, size) for way, cost in WAYS.items()}
        best = min(costs, key=costs.__getitem__)
        share = step / (step + costs[best])
        table.add_row(str(count), *map(milliseconds, costs.values()), best, f"{share:.0%}")
    console.print(table)
    console.print(
        f"Assumed: {machine.npus} NPUs a host, sums in memory {machine.memory / 1e9:.1f} GB/s, link "
        f"{machine.link / 1e9:.1f} GB/s and {machine.latency * 1e6:.0f} µs a message (measured here; the link is the "
        "loopback unless given); the sum begins after the backward pass; see benchmarks/reduction_costs.py."
    )
