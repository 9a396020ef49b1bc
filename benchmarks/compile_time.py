"""Compile time: from the model in memory or on disk to its first answer, each in a process of its own.

Imports and the making of the source model are not counted; on-disk caches are empty. The second table is the second
start, with the caches that the first one left. The third table shows how compile time grows with the number of nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import CONTENDERS, LABELS, OURS, Case, limit_threads, reference, timed

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("resnet50", "bert")
PEERS = ("onnxruntime", "openvino", "xla", "torch")
WITH_CACHE = ("openvino", "torch")  # peers that keep compiled models between processes
SIZES = (1000, 5000, 10000)
NEEDS = {  # what is imported or made before the clock starts
    OURS: ("ge.compiler", "ge.parsers.onnx.parser", "tbe", "npu_runtime", "onnx"),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "xla": ("tensorflow", "keras"),
    "torch": ("torch", "torch._inductor.config", "torch._dynamo"),
}


def work(contender: str, what: str, small: bool) -> dict[str, Any]:
    """In the child: compile once and say how long it took and how far the answer is off."""
    limit_threads()
    from benchmarks.graphs import layered_graph
    from benchmarks.measure import relative_error
    from benchmarks.models import zoo

    for module in NEEDS[contender]:
        __import__(module)
    with tempfile.TemporaryDirectory() as folder:
        case: Any
        if what.isdigit():
            case = layered_graph(int(what), Path(folder) / "layers.onnx")
            reader = CONTENDERS["onnxruntime"](case)
            expected = reader.answer(reader.call())
        else:
            case = Case(zoo(small)[what], 1, "fp32")
            expected = reference(case)
            _ = case.keras if contender == "xla" else case.onnx

        def compile_and_run() -> Any:
            runner = CONTENDERS[contender](case)
            return runner.answer(runner.call())

        seconds, answer = timed(compile_and_run)
    return {"seconds": seconds, "error": relative_error(answer, expected)}


def measure(contender: str, what: str, small: bool, starts: int = 1) -> dict[str, Any]:
    """In the parent: fresh processes that begin with empty caches; the last one counts. A failure is its last line."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "NPU_CACHE_DIR": "off",
        }
        if starts > 1:
            del environment["TORCHINDUCTOR_FORCE_DISABLE_CACHES"]
            environment |= {
                "NPU_CACHE_DIR": cache,
                "NPU_KEY_FILE": f"{cache}/om.key",
                "BENCHMARK_CACHE": cache,
            }
        command = [sys.executable, __file__, "--work", contender, what] + (["--quick"] if small else [])
        for _ in range(starts):
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                return {"failure": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    return json.loads(done.stdout.splitlines()[-1])


def show(title: str, subjects: list[str], contenders: list[str], small: bool, starts: int = 1) -> bool:
    """Measure and print one table; True when ours ran everywhere with right answers."""
    from benchmarks.measure import console, new_table, ratio

    table = new_table(
        title, ["model", *(LABELS[c] for c in contenders), *(f"vs {LABELS[c]}" for c in contenders[1:])]
    )
    fine, notes = True, []
    for subject in subjects:
        found = {c: measure(c, subject, small, starts) for c in contenders}
        seconds = {c: r["seconds"] for c, r in found.items() if "seconds" in r}
        notes += [f"{subject}, {LABELS[c]}: {r['failure']}" for c, r in found.items() if "failure" in r]
        fine &= found[OURS].get("error", 1.0) <= 1e-4
        cells = [f"{seconds[c]:.2f} s" if c in seconds else "failed" for c in contenders]
        shares = [seconds[c] / seconds[OURS] if {c, OURS} <= set(seconds) else None for c in contenders[1:]]
        table.add_row(subject, *cells, *map(ratio, shares))
    console.print(table)
    for note in notes:
        console.print(f"  {note}", markup=False)
    return fine


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--quick", action="store_true", help="small models, graphs of 100 and 500 nodes")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        print(json.dumps(work(*arguments.work, arguments.quick)), flush=True)
        os._exit(0)
    sizes = [100, 500] if arguments.quick and arguments.sizes == list(SIZES) else arguments.sizes
    fine = True
    if arguments.models:
        fine &= show(
            "Cold compile to the first answer", arguments.models, [OURS, *arguments.peers], arguments.quick
        )
    if arguments.models:
        keepers = [OURS, *(p for p in arguments.peers if p in WITH_CACHE)]
        fine &= show("Second start", arguments.models, keepers, arguments.quick, starts=2)
    if sizes:
        readers = [OURS, *(p for p in arguments.peers if p in ("onnxruntime", "openvino"))]
        fine &= show("Growth with the number of nodes", list(map(str, sizes)), readers, arguments.quick)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
