"""What a call costs: a model of ten tiny operators against ONNX Runtime and OpenVINO, interleaved."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import CONTENDERS, LABELS, OURS, limit_threads

NAMES = (OURS, "onnxruntime", "openvino")


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    arguments = parser.parse_args()
    limit_threads()

    from benchmarks.graphs import layered_graph
    from benchmarks.measure import console, interleave, new_table, ratio, relative_error

    with tempfile.TemporaryDirectory() as folder:
        case = layered_graph(arguments.nodes, Path(folder) / "tiny.onnx")
        runners = {name: CONTENDERS[name](case) for name in NAMES}
    answers = {name: runner.answer(runner.call()) for name, runner in runners.items()}
    errors = {name: relative_error(answers[name], answers["onnxruntime"]) for name in NAMES}
    calls = {name: runner.call for name, runner in runners.items()}
    times = interleave(calls, 3 if arguments.quick else arguments.rounds, 0.02)
    medians = {name: statistics.median(values) for name, values in times.items()}

    table = new_table(f"A call of a {arguments.nodes}-operator model", ["contender", "µs", "ratio", "error"])
    for name in NAMES:
        share = ratio(medians[name] / medians[OURS]) if name != OURS else "–"
        table.add_row(LABELS[name], f"{medians[name] * 1e6:.1f}", share, f"{errors[name]:.0e}")
    console.print(table)
    return int(max(errors.values()) > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
