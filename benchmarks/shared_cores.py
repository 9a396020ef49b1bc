"""A machine that others use too: small models beside busy processes, against ONNX Runtime, interleaved.

Weight gradients of convolutions with few channels are compared with PyTorch's.
"""

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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import CONTENDERS, OURS, THREADS, limit_threads

PEER = "onnxruntime"
TOLERANCE = 1e-4
GRADIENTS = [  # images, channels of x and of the result, pixels along an axis, those of the window
    (32, 3, 8, 64, 3),
    (16, 4, 4, 48, 3),
    (4, 3, 16, 112, 7),
    (128, 1, 8, 28, 3),
]


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


def weight_gradient(images: int, channels: int, filters: int, side: int, window: int) -> dict[str, Any]:
    """The gradient of a convolution's weight, ours and PyTorch's, as calls without arguments."""
    import numpy as np
    import torch

    import ge.ops  # noqa: F401  (declares operators)
    from ge.compiler import compile_graph
    from ge.ops.builder import GraphBuilder

    random = np.random.default_rng(0)
    x = random.normal(size=(images, channels, side, side)).astype(np.float32)
    dy = random.normal(size=(images, filters, side, side)).astype(np.float32)
    pads = [window // 2] * 2
    b = GraphBuilder("gradient")
    feeds = b.input("x", x.shape, "float32"), b.input("dy", dy.shape, "float32")
    b.output(b.op("ConvGradWeight", *feeds, kernel=[window] * 2, pads_begin=pads, pads_end=pads))
    model = compile_graph(b.graph)
    torch.set_num_threads(THREADS)
    given = torch.from_numpy(dy), torch.from_numpy(x), torch.zeros(filters, channels, window, window)
    shape = [1, 1], pads, [1, 1], False, [0, 0], 1, [False, True, False]
    return {
        OURS: lambda: model.run([x, dy])[0],
        "PyTorch": lambda: torch.ops.aten.convolution_backward(*given, None, *shape)[1].numpy(),
    }


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

    gradients = {f"weight gradient {sizes}": weight_gradient(*sizes) for sizes in GRADIENTS}
    errors |= {name: relative_error([by[OURS]()], [by["PyTorch"]()]) for name, by in gradients.items()}

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
    columns[3] = "PyTorch, ms"
    table = new_table(f"Weight gradients of few channels on {THREADS} cores", columns)
    for count in busy:
        with busy_processes(count):
            for name, by in gradients.items():
                times = interleave(by, rounds, 0.05)
                ours, peer = (statistics.median(times[who]) for who in (OURS, "PyTorch"))
                row = [milliseconds(ours), milliseconds(peer), ratio(peer / ours), f"{errors[name]:.0e}"]
                table.add_row(name, str(count), *row)
    console.print(table)
    return int(max(errors.values()) > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
