"""Ensembles of trees, exported by skl2onnx, against ONNX Runtime, interleaved."""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import add_threads_option, clock, limit_threads

FEATURES = 30


def estimators(quick: bool) -> dict[str, Any]:
    """Fitted models by name."""
    import numpy as np
    from sklearn import ensemble

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200 if quick else 2000, FEATURES)).astype(np.float32)
    wanted = rows[:, :8].sum(1) + np.sin(3 * rows[:, 8]) + rng.standard_normal(len(rows))
    classes = np.digitize(wanted, [-2, 2])
    trees = 10 if quick else 100
    return {
        f"forest, {trees} trees, regression": ensemble.RandomForestRegressor(
            trees, max_depth=8, random_state=0
        ).fit(rows, wanted),
        f"forest, {trees} trees, 3 classes": ensemble.RandomForestClassifier(
            trees, max_depth=8, random_state=0
        ).fit(rows, classes),
        f"boosting, {trees} trees of depth 3": ensemble.GradientBoostingRegressor(
            n_estimators=trees, random_state=0
        ).fit(rows, wanted),
    }


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="small forests, a few rounds")
    add_threads_option(parser)
    arguments = parser.parse_args()
    limit_threads(arguments.threads)

    import numpy as np
    import onnxruntime
    import skl2onnx
    from sklearn.base import is_classifier

    import ge
    from benchmarks.measure import console, interleave, new_table, ratio, relative_error

    table = new_table(
        "Ensembles of trees", ["model", "batch", "ours, µs", "ONNX Runtime, µs", "ratio", "error"]
    )
    worst = 0.0
    timer = clock(arguments.threads)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = arguments.threads
    for name, estimator in estimators(arguments.quick).items():
        for batch in (1, 1024):
            kind = skl2onnx.common.data_types.FloatTensorType([batch, FEATURES])
            options = {id(estimator): {"zipmap": False}} if is_classifier(estimator) else None
            model = skl2onnx.convert_sklearn(
                estimator, initial_types=[("x", kind)], options=options, target_opset=17
            )
            x = np.random.default_rng(1).standard_normal((batch, FEATURES)).astype(np.float32)
            ours = ge.compile(model)
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
            )
            calls = {"ours": lambda m=ours, x=x: m(x), "theirs": lambda s=session, x=x: s.run(None, {"x": x})}
            found = calls["ours"]()
            scores = (
                found[-1] if isinstance(found, list | tuple) else found
            )  # labels may differ where scores are equal
            error = relative_error([scores], calls["theirs"]()[-1:])
            worst = max(worst, error)
            times = interleave(calls, 2 if arguments.quick else arguments.rounds, 0.02, timer)
            medians = {key: statistics.median(values) for key, values in times.items()}
            row = [f"{medians[key] * 1e6:.1f}" for key in ("ours", "theirs")]
            table.add_row(name, str(batch), *row, ratio(medians["theirs"] / medians["ours"]), f"{error:.0e}")
    console.print(table)
    return int(worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
