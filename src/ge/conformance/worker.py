"""The process that runs cases: reads names, writes one JSON line a case; it may crash without harm."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.conformance.cases import Case, collect

__all__ = ["check", "main"]


def check(case: Case, interpreted: bool, strict: bool = False) -> dict[str, Any]:
    """Run one case: status pass, unsupported, wrong or error, with a reason."""
    from ge.errors import GeError, UnsupportedOperatorsError

    try:
        for inputs, expected in case.data_sets():
            _compare(case, _outputs(case, inputs, interpreted), expected, strict)
    except UnsupportedOperatorsError as error:
        return {"status": "unsupported", "reason": error.cause, "items": error.as_json()}
    except GeError as error:
        return {"status": "error", "reason": str(error)}
    except AssertionError as error:
        return {"status": "wrong", "reason": " ".join(str(error).split())[:600]}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})"
        return {"status": "crash", "reason": text[:600]}
    return {"status": "pass", "reason": ""}


def _outputs(case: Case, inputs: Sequence[Any], interpreted: bool) -> list[np.ndarray]:
    from ge.ir import facts
    from ge.ops.interpret import interpret
    from ge.parsers.onnx.narrow import stored_array
    from ge.parsers.onnx.parser import parse

    stored = {t.name for t in case.model.graph.initializer}
    ports = [p.name for p in case.model.graph.input if p.name not in stored]
    if len(ports) < len(inputs):
        ports = [p.name for p in case.model.graph.input]
    fed = {
        n: np.asarray(v) for n, v in zip(ports, inputs, strict=False) if not isinstance(v, (list, type(None)))
    }
    shapes = {n: v.shape for n, v in fed.items()}
    graph = parse(case.model, input_shapes=shapes, values=fed)
    arrays = [stored_array(fed[v.name])[0] for v in graph.inputs if v.name is not None]
    kinds = [facts.narrow(v) for v in graph.outputs]
    if interpreted:
        results = interpret(graph, arrays)
    else:
        from ge.compiler import compile_graph

        results = list(compile_graph(graph).run(arrays))
    return [_restored(a, kind) for a, kind in zip(results, kinds, strict=True)]


def _restored(array: np.ndarray, kind: str) -> np.ndarray:
    """Bytes that hold a narrow type, as that type."""
    if not kind:
        return array
    from ge.parsers.onnx.narrow import NARROW

    narrow = NARROW[kind]
    return array.view(narrow.numpy) if narrow.is_float else array.astype(narrow.numpy)


def _compare(case: Case, outputs: Sequence[np.ndarray], expected: Sequence[Any], strict: bool) -> None:
    rtol, atol = case.tolerances
    assert len(outputs) == len(expected), f"{len(outputs)} outputs where {len(expected)} are expected"
    for index, (found, wanted) in enumerate(zip(outputs, expected, strict=True)):
        wanted = np.asarray(wanted)
        assert found.shape == wanted.shape, f"output {index} is {found.shape}, expected {wanted.shape}"
        assert found.dtype == wanted.dtype, f"output {index} is {found.dtype}, expected {wanted.dtype}"
        if case.random:
            continue
        allowed = rtol
        if found.dtype.name == "bfloat16":
            allowed = max(rtol, 2**-6)
        if found.dtype.isbuiltin != 1:  # one of ml_dtypes
            found, wanted = found.astype(np.float32), wanted.astype(np.float32)
        np.testing.assert_allclose(
            found,
            wanted,
            rtol=allowed,
            atol=atol if strict else max(atol, _last_place(wanted)),
            err_msg=f"output {index}",
        )


def _last_place(wanted: np.ndarray) -> float:
    """A unit in the last place of the largest element.

    Where terms cancel, expected values are as inexact as the type they were computed in; a smaller difference
    says nothing.
    """
    if wanted.dtype.kind != "f" or not wanted.size:
        return 0.0
    finite = np.abs(wanted[np.isfinite(wanted)])
    return float(np.finfo(wanted.dtype).eps * finite.max()) if finite.size else 0.0


def main() -> None:
    """Answer requests until the input ends; the first line is the settings."""
    settings = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a case prints does not disturb the answers
    warnings.simplefilter("ignore")
    cases = {(c.kind, c.name): c for c in collect(settings["kinds"])}
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        kind, name = json.loads(line)
        print(
            json.dumps(check(cases[kind, name], settings["interpret"], settings["strict"])),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
