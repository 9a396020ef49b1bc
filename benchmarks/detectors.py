"""Detectors with their post-processing inside, against ONNX Runtime, interleaved."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import add_threads_option, clock, limit_threads


def common(ours: Any, theirs: Any) -> float:
    """The part of the objects that both found; scores next to a threshold fall on either side of it."""
    import numpy as np

    rows = [{tuple(row) for row in np.round(array, 2).tolist()} for array in (ours, theirs)]
    return len(rows[0] & rows[1]) / max(len(rows[0] | rows[1]), 1) if any(rows) else 1.0


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="small pictures, two detectors, a few rounds")
    add_threads_option(parser)
    arguments = parser.parse_args()
    limit_threads(arguments.threads)

    import onnxruntime

    import ge
    from benchmarks.measure import console, interleave, new_table, ratio
    from ge.conformance.detectors import DETECTORS, Size, pictures

    size = Size(32, 8) if arguments.quick else Size(320, 48, 4, 20)
    table = new_table(
        f"Detectors, pictures of {size.picture} by {size.picture}",
        ["detector", "ours, ms", "ONNX Runtime, ms", "ratio", "objects in common"],
    )
    worst, ratios = 1.0, []
    for name in itertools.islice(DETECTORS, 2 if arguments.quick else None):
        proto = DETECTORS[name](size)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = arguments.threads
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
        ours, inputs = ge.compile(proto), pictures(size, 4)[1:]
        shared = min(common(ours.run([x])[0], session.run(None, {"x": x})[0]) for x in inputs)
        worst = min(worst, shared)
        turn = {"ours": itertools.cycle(inputs), "theirs": itertools.cycle(inputs)}
        calls = {
            "ours": lambda m=ours, t=turn["ours"]: m.run([next(t)]),
            "theirs": lambda s=session, t=turn["theirs"]: s.run(None, {"x": next(t)}),
        }
        timer = clock(arguments.threads)
        times = interleave(calls, 2 if arguments.quick else arguments.rounds, 0.05, timer)
        medians = {key: statistics.median(values) for key, values in times.items()}
        ratios.append(medians["theirs"] / medians["ours"])
        row = [f"{medians[key] * 1e3:.2f}" for key in ("ours", "theirs")]
        table.add_row(name, *row, ratio(ratios[-1]), f"{shared:.1%}")
    console.print(table)
    console.print(f"geometric mean {statistics.geometric_mean(ratios):.2f}")
    return int(worst < 0.95)


if __name__ == "__main__":
    sys.exit(main())
