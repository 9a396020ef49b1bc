"""ResNet50 from Keras to the NPU: export, compile, check against TensorFlow, compare speeds.

python examples/resnet50.py [--batches 1 8] [--quick]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import ge
import npu_runtime
from benchmarks.contenders import THREADS, limit_threads, start_tensorflow
from benchmarks.families import FAMILIES, freeze_model
from benchmarks.measure import console, interleave, milliseconds, new_table, ratio, relative_error
from ge.options import CompileOptions, PrecisionMode

LIMITS = {"NPU fp32": 1e-4, "NPU bf16": 2e-2}
MODES = {"NPU fp32": PrecisionMode.KEEP, "NPU bf16": PrecisionMode.MIX_BF16}


def compile_all(path: Path) -> dict[str, ge.Model]:
    """The file, compiled once for each precision."""
    models = {}
    for name, mode in MODES.items():
        start = time.perf_counter()
        models[name] = ge.compile(path, CompileOptions(precision_mode=mode))
        tasks = len(models[name].plan.tasks)
        arena = models[name].plan.arena_bytes / 2**20
        console.print(f"  {name}: {tasks} tasks, {arena:.1f} MiB, {time.perf_counter() - start:.1f} s")
    return models


def compare(keras: Any, x: np.ndarray, folder: Path, rounds: int) -> bool:
    """One batch size: export, compile, check, time, print. True when the answers are right."""
    import tensorflow as tf

    console.print(f"\n[bold]Batch {len(x)}[/]: exporting, then compiling for the NPU")
    models = compile_all(freeze_model(keras, x, folder / f"resnet50-b{len(x)}.pb"))
    tensor = tf.constant(x)
    function = tf.function(lambda t: keras(t, training=False))
    xla = tf.function(lambda t: keras(t, training=False), jit_compile=True)
    calls = {
        "TensorFlow tf.function": lambda: function(tensor),
        "TensorFlow XLA": lambda: xla(tensor),
        **{name: (lambda model=model: model.run([x])[0]) for name, model in models.items()},
    }
    expected = function(tensor).numpy()
    errors = {name: relative_error([np.asarray(call())], [expected]) for name, call in calls.items()}
    medians = {name: statistics.median(times) for name, times in interleave(calls, rounds).items()}

    slowest = medians["TensorFlow tf.function"]
    table = new_table(
        f"ResNet50, batch {len(x)}, {THREADS} threads", ["", "device", "ms", "images/s", "ratio", "error"]
    )
    for name, seconds in medians.items():
        device = "NPU:0" if name in models else "CPU:0"
        share = ratio(slowest / seconds)
        table.add_row(
            name, device, milliseconds(seconds), f"{len(x) / seconds:.1f}", share, f"{errors[name]:.1e}"
        )
    console.print(table)
    return all(errors[name] < limit for name, limit in LIMITS.items())


def main() -> int:
    """Run it; the exit status says whether the NPU's answers agree with TensorFlow's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="small images, one batch size")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batches, arguments.rounds = [1], 2

    limit_threads()
    start_tensorflow()
    npu_runtime.set_num_threads(THREADS)
    about = npu_runtime.version()
    console.print(f"NPU runtime: oneDNN {about['onednn']}, {about['isa']}")
    console.print("Building ResNet50 in Keras (random weights, fixed seed)")
    family = next(f for f in FAMILIES if f.name == "ResNet50")
    keras = family.build(small=arguments.quick)
    with tempfile.TemporaryDirectory() as folder:
        inputs = [family.inputs(arguments.quick, batch) for batch in arguments.batches]
        fine = [compare(keras, x, Path(folder), arguments.rounds) for x in inputs]
    verdict = "agree with" if all(fine) else "DIFFER FROM"
    console.print(f"The NPU's answers {verdict} TensorFlow's; ratio is times faster than tf.function.")
    return int(not all(fine))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
