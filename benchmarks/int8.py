"""Networks quantised by ONNX Runtime (static, QDQ, scales by channel) against ONNX Runtime and OpenVINO."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import contenders

NETWORKS = ("resnet50", "mobilenetv2", "efficientnetb0", "bert")
PEERS = ("onnxruntime", "openvino")
TOLERANCE = 1e-1  # of the largest element: ONNX Runtime's own optimiser moves BERT's result by 0.07


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--batches", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="small networks, a few rounds")
    contenders.add_threads_option(parser)
    arguments = parser.parse_args()
    contenders.THREADS = arguments.threads
    contenders.limit_threads(arguments.threads)

    from benchmarks.measure import console, interleave, new_table, ratio, relative_error
    from benchmarks.models import zoo

    clock = contenders.clock(arguments.threads)
    columns = [
        "network",
        "batch",
        "ours, ms",
        *(f"{contenders.LABELS[p]}, ms" for p in PEERS),
        "ratio",
        "error",
    ]
    table = new_table("int8 networks", columns)
    worst = 0.0
    for name in arguments.networks:
        for batch in arguments.batches:
            case = contenders.Case(zoo(arguments.quick)[name], batch, "int8")
            runners = {who: contenders.CONTENDERS[who](case) for who in (contenders.OURS, *PEERS)}
            answers = {who: runner.answer(runner.call()) for who, runner in runners.items()}
            error = min(relative_error(answers[contenders.OURS], answers[peer]) for peer in PEERS)
            worst = max(worst, error)
            calls = {who: runner.call for who, runner in runners.items()}
            times = interleave(calls, 2 if arguments.quick else arguments.rounds, 0.02, clock)
            medians = {who: statistics.median(values) for who, values in times.items()}
            best = min(medians[peer] for peer in PEERS) / medians[contenders.OURS]
            row = [f"{medians[who] * 1e3:.2f}" for who in (contenders.OURS, *PEERS)]
            table.add_row(name, str(batch), *row, ratio(best), f"{error:.0e}")
    console.print(table)
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
