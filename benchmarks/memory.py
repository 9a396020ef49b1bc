"""Peak memory of ResNet50 at batch 32 against TensorFlow, each in a process of its own.

Counted is what the process holds beyond its state after imports: at the highest point from loading to the
first answer, and at the highest point of later runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import LABELS, OURS, THREADS, limit_threads

ROOT = Path(__file__).resolve().parents[1]
NAMES = {OURS: LABELS[OURS], "tensorflow": "tf.function (SavedModel)", "frozen": "TensorFlow frozen graph"}


def status(field: str) -> int:
    """A field of this process's memory status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def reset_peak() -> None:
    """Let the peak start again from the memory held now."""
    Path("/proc/self/clear_refs").write_text("5")


def load_ours(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Compile the ONNX file."""
    import ge

    model = ge.compile(path)
    return lambda x: model.run([x])[0]


def load_saved_model(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Load the SavedModel; its weights are variables."""
    import tensorflow as tf

    function = tf.saved_model.load(str(path)).signatures["serving_default"]
    return lambda x: next(iter(function(x=tf.constant(x)).values())).numpy()


def load_frozen(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Load the frozen graph; its weights are constants."""
    import tensorflow as tf

    def graph() -> None:
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(path.read_bytes()), name="")

    function = tf.compat.v1.wrap_function(graph, []).prune("x:0", "y:0")
    return lambda x: function(tf.constant(x)).numpy()


LOADERS = {OURS: load_ours, "tensorflow": load_saved_model, "frozen": load_frozen}


def start(name: str) -> None:
    """Import what the contender needs and start it up: that belongs to the baseline."""
    limit_threads()
    if name == OURS:
        import ge
        import npu_runtime

        assert ge
        npu_runtime.set_num_threads(THREADS)
    else:
        import tensorflow as tf

        tf.zeros([1]).numpy()


def work(name: str, model: Path, data: Path) -> dict[str, Any]:
    """In the child: load, run three times, and say what was held."""
    x, expected = np.load(data).values()
    if name != OURS:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    start(name)
    baseline = status("VmRSS")
    reset_peak()
    run = LOADERS[name](model)
    answer = run(x)
    whole = status("VmHWM") - baseline
    reset_peak()
    for _ in range(2):
        run(x)
    error = float(np.max(np.abs(answer - expected)) / np.max(np.abs(expected)))
    return {"whole": whole, "running": status("VmHWM") - baseline, "error": error}


def prepare(batch: int, small: bool) -> tuple[dict[str, Path], Path]:
    """In a child of its own: write the files and the expected answer."""
    limit_threads()
    import tensorflow as tf
    import torch

    from benchmarks.models import frozen_file, keras_model, onnx_file, zoo
    from benchmarks.models.export import cached

    model = zoo(small)["resnet50"]
    module = model.module()
    inputs = model.inputs(batch)

    def write_data(path: Path) -> None:
        np.savez(path, x=inputs[0], y=module(torch.from_numpy(inputs[0])).numpy())

    def write_saved_model(path: Path) -> None:
        keras = keras_model(model, batch, module)
        holder = tf.Module()
        holder.model = keras
        spec = tf.TensorSpec((batch, *inputs[0].shape[2:], 3), tf.float32, name="x")
        holder.serve = tf.function(lambda x: {"y": keras(x, training=False)}, input_signature=[spec])
        tf.saved_model.save(holder, str(path), signatures={"serving_default": holder.serve})

    tag = f"memory-{'small' if small else 'full'}-b{batch}"
    paths = {
        OURS: onnx_file(model, batch, module),
        "frozen": frozen_file(model, batch, module),
        "tensorflow": cached(f"{tag}.saved_model", write_saved_model),
    }
    return paths, cached(f"{tag}.npz", write_data)


def child(*arguments: str) -> Any:
    """Run this script again and read the JSON it prints."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure and print; the exit status says whether the answers are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        name, model, data = arguments.work
        print(json.dumps(work(name, Path(model), Path(data))), flush=True)
        os._exit(0)
    if arguments.prepare:
        paths, data = prepare(arguments.batch, arguments.quick)
        print(json.dumps([{k: str(v) for k, v in paths.items()}, str(data)]), flush=True)
        os._exit(0)

    from benchmarks.measure import console, new_table

    files, data = child(
        "--prepare", "--batch", str(arguments.batch), *(["--quick"] if arguments.quick else [])
    )
    found = {name: child("--work", name, files[name], data) for name in NAMES}
    least = {k: min(found[n][k] for n in NAMES if n != OURS) for k in ("whole", "running")}
    columns = ["contender", "peak, load to answer", "peak, later runs", "error"]
    table = new_table(f"Memory of ResNet50, batch {arguments.batch}, MiB beyond imports", columns)
    for name, label in NAMES.items():
        cells = [f"{found[name][k] / 2**20:.0f}" for k in ("whole", "running")]
        table.add_row(label, *cells, f"{found[name]['error']:.0e}")
    shares = [f"{found[OURS][k] / max(least[k], 1):.2f}" for k in ("whole", "running")]
    table.add_row("ours / the least of TensorFlow", *shares, "")
    console.print(table)
    return int(max(r["error"] for r in found.values()) > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
