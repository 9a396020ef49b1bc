"""The backend hccl with two ranks that torchrun starts: collectives, meshes, data parallel training, a dead rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "collectives.py"


def test_two_ranks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    programs = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("done ")]
    assert programs == ["collectives", "messages", "meshes", "training", "a_rank_that_dies"]
    assert "refused:" in done.stdout
