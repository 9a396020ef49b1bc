"""Every collective of several ranks; with `fail`, the second ends and the others must notice."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from hccl import collectives
from hccl.manage import api
from hccl.ranks import HcclError

rank, size = api.get_rank_id(), api.get_rank_size()
np.testing.assert_array_equal(
    collectives.all_reduce(np.arange(2.0) + rank), [size * (size - 1) / 2, size * (size + 1) / 2]
)
np.testing.assert_array_equal(collectives.all_reduce(np.array([2], np.int32), "prod"), [2**size])
np.testing.assert_array_equal(collectives.all_reduce(np.array([rank], np.float16), "max"), [size - 1])
np.testing.assert_array_equal(collectives.all_gather(np.array([[rank]])), np.arange(size)[:, None])
np.testing.assert_array_equal(collectives.broadcast(np.array([rank]), 1), [1])
np.testing.assert_array_equal(collectives.reduce_scatter(np.arange(1.0 * size)), [size * rank])
if rank < 2:
    api.create_group("pair", 2, [0, 1])
    np.testing.assert_array_equal(collectives.all_reduce(np.ones(2), group="pair"), [2, 2])
if "fail" in sys.argv:
    if rank == 1:
        time.sleep(1)  # the others have received what was sent before
        os._exit(3)
    try:
        collectives.all_reduce(np.ones(2))
    except HcclError as error:
        print(error)
        sys.exit(4)
print(f"rank {rank} of {size} is done")
