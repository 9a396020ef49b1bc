"""MindSpore networks by jit(backend="npu") beside MindSpore's own back end: inference and whole training steps.

make build-mindspore && .venv-mindspore/bin/python benchmarks/mindspore.py [--quick] [--models lenet] [--modes infer]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# In place of this folder, in which this file would be taken for MindSpore.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.doors import Answer, Pair, arguments, report  # noqa: E402

NETWORKS: dict[str, dict[str, Any]] = {
    "lenet": {"batch": 32},
    "resnet50": {"batch": 2, "size": 64},
    "bert": {"batch": 4, "length": 64, "width": 256, "heads": 4, "layers": 4},
    "lstm": {"batch": 16, "length": 32},
    "unet": {"batch": 2, "size": 64, "width": 16},
    "gan": {"batch": 16},
}


def _call(name: str, mode: str, settings: dict[str, Any], backend: str) -> Answer:
    import mindspore as ms

    from tests.mindspore import ms_networks

    function, inputs = (ms_networks.TRAINING if mode == "train" else ms_networks.INFERENCE)[name](**settings)
    jitted = ms.jit(function, backend=backend)
    return lambda: jitted(*inputs).asnumpy()


def _pairs(found: Any) -> Iterator[Pair]:
    for name in found.models:
        settings = {} if found.quick else NETWORKS[name]
        for mode in found.modes:
            yield Pair(name, mode, *(_call(name, mode, settings, b) for b in ("ms_backend", "npu")))


def main() -> None:
    """Print the table; a graph that falls back to MindSpore is an error."""
    found = arguments("MindSpore beside jit(backend='npu')", list(NETWORKS))
    import mindspore as ms

    import mindspore_npu

    ms.set_context(runtime_num_threads=found.threads)
    report("MindSpore", _pairs(found), 1 if found.quick else found.rounds)
    counted = mindspore_npu.counts()
    print(f"{counted.compiled} graphs on the NPU, {counted.fallbacks} on MindSpore")


if __name__ == "__main__":
    main()
