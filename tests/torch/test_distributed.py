"""The backend hccl with two ranks that torchrun starts: collectives, meshes, training and failures."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


def torchrun(*arguments: str) -> str:
    """What two ranks print."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*start, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout


def test_two_ranks() -> None:
    printed = torchrun(str(SCRIPTS / "collectives.py"))
    programs = re.findall(r"done (\w+)", printed)  # lines of two processes may be mixed
    assert programs == [
        "collectives",
        "tensors_of_different_sizes",
        "synchronised_batch_normalisation",
        "messages",
        "meshes",
        "training",
        "another_shape",
        "a_rank_that_dies",
    ]
    assert "refused:" in printed


def test_a_rank_whose_call_differs_is_named_before_data_are_exchanged() -> None:
    printed = torchrun(str(SCRIPTS / "different_calls.py"))
    assert re.findall(r"named: (.*)", printed) == [
        "sizes",
        "types of one size",
        "reductions",
        "operators",
        "roots",
        "gathered sizes",
        "a message too long",
        "a message of another type",
    ]
    assert printed.count("done") == 2


@pytest.mark.slow
def test_ranks_that_torchrun_starts_anew_resume_with_the_same_losses(tmp_path: Path) -> None:
    """The store of torchrun outlives its ranks: a second attempt must not look for the ranks of the first."""
    printed = torchrun("--max-restarts", "3", str(SCRIPTS / "restarted.py"), str(tmp_path))
    assert printed.splitlines() == ["attempt 3: the losses of an undisturbed run"]


def test_groups_that_a_script_leaves_open_are_closed(tmp_path: Path) -> None:
    script = tmp_path / "open.py"
    script.write_text(
        "import atexit\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "atexit.register(lambda: print('open' if dist.is_initialized() else 'closed', flush=True))\n"
        "import torch_npu\n"
        "dist.init_process_group('hccl')\n"
        "x = torch.ones(2, device='npu')\n"
        "dist.all_reduce(x)\n"
        "assert x.tolist() == [2, 2]\n"
    )
    printed = torchrun(str(script))
    assert printed.count("closed") == 2 and "open" not in printed
