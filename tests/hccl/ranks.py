"""Every collective of several ranks; with `ends`, `hangs` or `differs` the second does so and the first notices.

With `older` the second has another version.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from hccl import collectives, transports
from hccl.manage import api
from hccl.ranks import HcclError

rank, size = api.get_rank_id(), api.get_rank_size()
if "older" in sys.argv:
    if rank == 1:
        transports.version = lambda: "0.0.1"
    try:
        collectives.all_reduce(np.ones(2))
    except HcclError as error:
        print(error)
        sys.exit(4)
np.testing.assert_array_equal(
    collectives.all_reduce(np.arange(2.0) + rank), [size * (size - 1) / 2, size * (size + 1) / 2]
)
np.testing.assert_array_equal(collectives.all_reduce(np.array([2], np.int32), "prod"), [2**size])
np.testing.assert_array_equal(collectives.all_reduce(np.array([rank], np.float16), "max"), [size - 1])
np.testing.assert_array_equal(collectives.all_gather(np.array([[rank]])), np.arange(size)[:, None])
np.testing.assert_array_equal(collectives.broadcast(np.array([rank]), 1), [1])
for scalar in (collectives.all_reduce(np.array(1.0)) / size, collectives.broadcast(np.array(rank), 1)):
    assert np.shape(scalar) == () and scalar == 1
np.testing.assert_array_equal(collectives.reduce_scatter(np.arange(1.0 * size)), [size * rank])
if rank < 2:
    api.create_group("pair", 2, [0, 1])
    np.testing.assert_array_equal(collectives.all_reduce(np.ones(2), group="pair"), [2, 2])
sent = [np.full((rank + to, 2), 10 * rank + to, np.int16) for to in range(size)]
for source, found in enumerate(collectives.all_to_all(sent)):
    np.testing.assert_array_equal(found, np.full((rank + source, 2), 10 * source + rank, np.int16))
if rank == 0:
    collectives.send(np.array([[1.5, 2.5]], np.float16), 1, tag=7)
elif rank == 1:
    np.testing.assert_array_equal(collectives.receive((1, 2), np.float16, 0, tag=7), [[1.5, 2.5]])
if rank == 0:
    collectives.send(np.ones(8, np.float32), 1)
    collectives.send(np.ones(2), 1)
elif rank == 1:
    try:
        collectives.receive((4,), np.int32, 0)
    except HcclError as error:
        assert "rank 0 sent float32[8], but rank 1 receives int32[4]" in str(error), error
    else:
        sys.exit("values of another type and shape were received")
    np.testing.assert_array_equal(collectives.receive((2,), np.float64, 0), np.ones(2))
how = sys.argv[1] if len(sys.argv) > 1 else ""
if how in ("ends", "hangs"):
    reported = Path(sys.argv[2]) / "reported"
    ready = Path(sys.argv[2]) / "ready"
    if rank == 1:
        while not ready.exists():  # the other has received everything that was sent before
            time.sleep(0.05)
        while how == "hangs" and not reported.exists():
            time.sleep(0.05)
        os._exit(3)
    ready.touch()
if how:
    try:
        collectives.all_reduce(np.ones(2 + (rank if how == "differs" else 0)))
    except HcclError as error:
        print(error)
        if how != "differs":
            reported.touch()
        sys.exit(4)
print(f"rank {rank} of {size} is done")
