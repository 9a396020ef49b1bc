"""A machine that others use too: small models beside busy processes, against ONNX Runtime, interleaved."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import CONTENDERS, OURS, THREADS, limit_threads

PEER = "onnxruntime"
TOLERANCE = 1e-4


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that compute without end, spread over the cores that this process uses."""
    cores = sorted(os.sched_getaffinity(0))
    code = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", code % cores[i % len(cores)]], stdout=subprocess.PIPE)
        for i in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()  # it computes from here on
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, THREADS, 2 * THREADS], metavar="N")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a few rounds beside one busy process")
    arguments = parser.parse_args()
    busy, rounds = ([1], 2) if arguments.quick else (arguments.busy, arguments.rounds)
    limit_threads()
    cores = sorted(os.sched_getaffinity(0))[:THREADS]
    os.sched_setaffinity(0, cores)  # as many as threads, so that the busy processes are in their way

    from benchmarks.graphs import small_models
    from benchmarks.measure import (
        console,
        geometric_mean,
        interleave,
        milliseconds,
        new_table,
        ratio,
        relative_error,
    )

    with tempfile.TemporaryDirectory() as folder:
        cases = small_models(Path(folder))
        runners = {name: {who: CONTENDERS[who](case) for who in (OURS, PEER)} for name, case in cases.items()}
    errors = {}
    for name, by in runners.items():
        answers = {who: runner.answer(runner.call()) for who, runner in by.items()}
        errors[name] = relative_error(answers[OURS], answers[PEER])

    columns = ["model", "busy processes", "ours, ms", "ONNX Runtime, ms", "ratio", "error"]
    table = new_table(f"Beside busy processes on {THREADS} cores", columns)
    for count in busy:
        ratios = []
        with busy_processes(count):
            for name, by in runners.items():
                times = interleave({who: runner.call for who, runner in by.items()}, rounds, 0.05)
                ours, peer = (statistics.median(times[who]) for who in (OURS, PEER))
                ratios.append(peer / ours)
                row = [milliseconds(ours), milliseconds(peer), ratio(ratios[-1]), f"{errors[name]:.0e}"]
                table.add_row(name, str(count), *row)
        table.add_row("geometric mean", str(count), "", "", ratio(geometric_mean(ratios)), "")
    console.print(table)
    return int(max(errors.values()) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
