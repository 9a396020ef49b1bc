"""Training steps of MindSpore networks: jit(backend="npu") beside MindSpore's own back end, interleaved.

    make build-mindspore && .venv-mindspore/bin/python benchmarks/mindspore_training.py [--small] [names...]

Single calls are timed in turns; the ratio is that of the medians. Above 1 the NPU is faster.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NETWORKS: dict[str, dict[str, Any]] = {
    "lenet": {"batch": 32},
    "resnet50": {"batch": 4, "size": 64},
    "bert": {"batch": 4, "length": 64, "width": 256, "heads": 4, "layers": 4},
    "lstm": {"batch": 16, "length": 32},
    "unet": {"batch": 2, "size": 64, "width": 16},
    "gan": {"batch": 16},
}
SMALL: dict[str, dict[str, Any]] = {"lenet": {"batch": 2}}


def _timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _calls(name: str, settings: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    """A training step for each back end, compiled and warm."""
    import mindspore as ms

    from tests.mindspore import ms_networks

    found: dict[str, Callable[[], Any]] = {}
    for backend in ("ms_backend", "npu"):
        step, arguments = ms_networks.TRAINING[name](**settings)
        jitted = ms.jit(step, backend=backend)
        found[backend] = lambda jitted=jitted, arguments=arguments: jitted(*arguments).asnumpy()
        for _ in range(2):
            found[backend]()
    return found


def main(arguments: list[str]) -> None:
    """Print a table of milliseconds a step and ratios."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import mindspore_npu

    small = "--small" in arguments
    names = [a for a in arguments if not a.startswith("-")] or list(SMALL if small else NETWORKS)
    ratios = []
    print(f"{'network':10} {'MindSpore ms':>12} {'NPU ms':>8} {'ratio':>6}")
    for name in names:
        calls = _calls(name, (SMALL if small else NETWORKS)[name])
        rounds = [{b: _timed(call) for b, call in calls.items()} for _ in range(3 if small else 20)]
        theirs, ours = (statistics.median(r[b] for r in rounds) for b in ("ms_backend", "npu"))
        ratios.append(theirs / ours)
        print(f"{name:10} {theirs * 1e3:12.2f} {ours * 1e3:8.2f} {theirs / ours:6.2f}", flush=True)
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}; {mindspore_npu.counts()}")


if __name__ == "__main__":
    main(sys.argv[1:])
