"""Training over two hosts, one of which fails and comes back: the losses are those of an undisturbed run.

`make test-hosts` runs this. Hosts are network namespaces; a host fails when all its processes get signal 9.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.hosts.hosts import LINK, Host, missing, two_hosts, until

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(bool(missing()), reason=missing())]

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 400.0
FAILS_AT = 4  # the step, or epoch, after which the second host fails

# Starts what runs on the two hosts; given those, a folder, and which of the hosts are to start.
Start = Callable[[tuple[Host, Host], Path, tuple[int, ...]], list["subprocess.Popen[str]"]]


def by_torchrun(
    hosts: tuple[Host, Host], folder: Path, which: tuple[int, ...]
) -> list[subprocess.Popen[str]]:
    """An agent on each host. Agents started at different times count attempts differently: no shared store."""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0].address}:29400", "--rdzv-id", "run"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    return [
        hosts[n].start(
            [*command, *meeting, "--rdzv-conf", f"is_host={int(n == 0)}", "--max-restarts", "3"]
            + ["--local-addr", hosts[n].address, str(SCRIPTS / "ddp.py"), str(folder)],
            folder / f"host{n}.log",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )
        for n in which
    ]


def by_tensorflow(
    hosts: tuple[Host, Host], folder: Path, which: tuple[int, ...]
) -> list[subprocess.Popen[str]]:
    """A worker on each host, which is started again whenever it fails."""
    python = ROOT / ".venv-tf215" / "bin" / "python"
    if not python.exists():
        pytest.skip("Keras 3 has no `fit` over several workers: this needs .venv-tf215")
    cluster = {"worker": [f"{host.address}:5000" for host in hosts]}
    again = 'until "$@"; do sleep 1; done'
    return [
        hosts[n].start(
            ["sh", "-c", again, "sh", str(python), str(SCRIPTS / "workers.py"), str(folder)],
            folder / f"host{n}.log",
            TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": "worker", "index": n}}),
        )
        for n in which
    ]


def by_mpirun(hosts: tuple[Host, Host], folder: Path, which: tuple[int, ...]) -> list[subprocess.Popen[str]]:
    """One launcher on the first host, which ends all ranks when a host fails: it is started again for both."""
    pytest.importorskip("mpi4py", reason="make test-hosts installs MPI")
    mpiexec = shutil.which(
        "mpiexec.hydra", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    assert mpiexec, "MPI has no mpiexec.hydra"
    reach = folder / "reach"  # in place of ssh: HOST COMMAND…
    places = "\n".join(f"{host.address}) name={host.name};;" for host in hosts)
    reach.write_text(
        f'#!/bin/sh\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\ncase $1 in\n{places}\nesac\nshift\n'
        'exec ip netns exec "$name" sh -c "$*"\n'
    )
    reach.chmod(0o755)
    again = 'until "$@"; do sleep 1; done'
    run = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(reach), "-iface", LINK, "-n", "2", "-ppn", "1"]
    run += ["-hosts", ",".join(host.address for host in hosts), sys.executable]
    if 0 not in which:
        return []
    command = ["sh", "-c", again, "sh", *run, str(SCRIPTS / "ranks.py"), str(folder)]
    return [hosts[0].start(command, folder / "host0.log")]


def losses(start: Start, hosts: tuple[Host, Host], folder: Path, fails: bool) -> list[float]:
    """The losses of a training; where a host fails, it comes back two seconds later."""
    folder.mkdir()

    def logs() -> str:
        return "\n".join(f"{log.name}:\n{log.read_text()[-6000:]}" for log in sorted(folder.glob("*.log")))

    def reached(step: int) -> bool:
        text = (folder / "step").read_text() if (folder / "step").exists() else ""
        return text.isdecimal() and int(text) >= step

    start(hosts, folder, (0, 1))
    result = folder / "losses.json"
    if fails:
        until(lambda: reached(FAILS_AT), SECONDS, logs)
        hosts[1].kill()
        assert not result.exists(), "the training had ended before the host failed"
        start(hosts, folder, (1,))
    until(result.exists, SECONDS, logs)
    if fails:
        begun = logs().count("begins")
        assert begun > 2, f"nobody began anew\n{logs()}"
    found: list[float] = json.loads(result.read_text())
    for host in hosts:
        host.kill()
    return found


@pytest.mark.parametrize(
    "start", [by_torchrun, by_tensorflow, by_mpirun], ids=lambda start: start.__name__[3:]
)
def test_a_host_that_fails_and_comes_back(start: Start, tmp_path: Path) -> None:
    with two_hosts() as hosts:
        undisturbed = losses(start, hosts, tmp_path / "undisturbed", fails=False)
        disturbed = losses(start, hosts, tmp_path / "disturbed", fails=True)
    assert len(undisturbed) > 10
    np.testing.assert_allclose(disturbed, undisturbed, rtol=1e-5, atol=1e-6)
