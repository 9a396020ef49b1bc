"""One row of the inference benchmark, in a process of its own: build the contenders, check them, time them.

Prints JSON events, one a line, so that a crash of one contender can be told apart and the others still be
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.contenders import (
    CONTENDERS,
    OURS,
    Case,
    NotApplicable,
    clock,
    limit_threads,
    reference,
    timed,
)

TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2, "int8": 5e-2}


def emit(stream: Any, event: str, **data: Any) -> None:
    """Write one event."""
    stream.write(json.dumps({"event": event, **data}) + "\n")
    stream.flush()


def prepare(case: Case, names: list[str], stream: Any) -> dict[str, Callable[[], Any]]:
    """Build, run once and check each contender; those that fail are reported and left out."""
    from benchmarks.measure import relative_error

    expected = reference(case)
    calls: dict[str, Callable[[], Any]] = {}
    for name in names:
        emit(stream, "building", name=name)
        try:
            seconds, runner = timed(lambda name=name: CONTENDERS[name](case))
            first, result = timed(runner.call)
            error = relative_error(runner.answer(result), expected)
            runner.call()
        except NotApplicable as reason:
            emit(stream, "failed", name=name, reason=str(reason), applicable=False)
        except Exception as failure:
            reason = f"{type(failure).__name__}: {str(failure).strip() or 'no message'}"
            emit(stream, "failed", name=name, reason=reason[:300], applicable=True)
        else:
            emit(stream, "ready", name=name, error=error, build_s=seconds + first)
            if error <= TOLERANCE[case.precision] or name != OURS:
                calls[name] = runner.call
    return calls


def write_trace(case: Case, path: str) -> None:
    """Time our tasks one by one and write the trace that Perfetto opens."""
    import ge
    from ge.options import CompileOptions, PrecisionMode
    from ge.profile import trace

    mode = PrecisionMode.MIX_BF16 if case.precision == "bf16" else PrecisionMode.KEEP
    model = ge.compile(case.onnx, CompileOptions(precision_mode=mode))
    trace(path, model.profile(case.inputs, repeats=3), f"{case.model.name} b{case.batch} {case.precision}")


def main() -> None:
    """Run the row described on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("precision", choices=sorted(TOLERANCE))
    parser.add_argument("contenders", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--profile", help="write the trace of our tasks there")
    arguments = parser.parse_args()

    stream = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is not an event
    limit_threads()

    from benchmarks.measure import interleave
    from benchmarks.models import zoo

    case = Case(zoo(arguments.small)[arguments.model], arguments.batch, arguments.precision)
    calls = prepare(case, arguments.contenders, stream)
    emit(stream, "timing")
    times = interleave(calls, arguments.rounds, clock=clock())
    if arguments.profile:
        write_trace(case, arguments.profile)
    emit(stream, "done", medians={name: statistics.median(values) for name, values in times.items()})
    os._exit(0)  # skip the libraries' tear-down


if __name__ == "__main__":
    main()
