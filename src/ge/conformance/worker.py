"""Worker process that runs cases: reads names, writes one JSON line per case; may crash safely."""

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


def _outputs(case: Case, inputs: Sequence[Any], interpreted: bool) -> list[Any]:
    from ge.interface import Interface
    from ge.ir import facts
    from ge.ops.interpret import interpret
    from ge.parsers.onnx.narrow import stored_array
    from ge.parsers.onnx.parser import parse

    stored = {t.name for t in case.model.graph.initializer}
    ports = [p.name for p in case.model.graph.input if p.name not in stored]
    if len(ports) < len(inputs):
        ports = [p.name for p in case.model.graph.input]
    fed = dict(zip(ports, inputs, strict=False))
    graph = parse(case.model, values=fed)
    record = facts.interface(graph)

    def run(arrays: list[Any]) -> list[Any]:
        if interpreted:
            return interpret(graph, arrays)
        from ge.compiler import compile_graph

        return list(compile_graph(graph).run_plan(arrays))

    if record is not None:
        surroundings = Interface.from_json(record)
        feeds, state = surroundings.feeds([fed[name] for name in surroundings.names], len(graph.inputs))
        return surroundings.results(run([stored_array(np.asarray(f))[0] for f in feeds]), state)
    kinds = [facts.narrow(v) for v in graph.outputs]
    results = run([stored_array(np.asarray(fed[v.name]))[0] for v in graph.inputs if v.name is not None])
    return [_restored(a, kind) for a, kind in zip(results, kinds, strict=True)]


def _restored(array: np.ndarray, kind: str) -> np.ndarray:
    """Reinterpret bytes as the narrow type they hold."""
    if not kind:
        return array
    from ge.parsers.onnx.narrow import NARROW

    narrow = NARROW[kind]
    return array.view(narrow.numpy) if narrow.is_float else array.astype(narrow.numpy)


def _compare(case: Case, outputs: Sequence[Any], expected: Sequence[Any], strict: bool) -> None:
    assert len(outputs) == len(expected), f"{len(outputs)} outputs where {len(expected)} are expected"
    for index, (found, wanted) in enumerate(zip(outputs, expected, strict=True)):
        _compare_values(case, found, wanted, strict, f"output {index}")


def _compare_values(case: Case, found: Any, wanted: Any, strict: bool, what: str) -> None:
    if isinstance(wanted, list) or wanted is None:
        assert isinstance(found, list) == isinstance(wanted, list), f"{what} is {found!r}, not {wanted!r}"
        items, expected = list(found or ()), list(wanted or ())
        assert len(items) == len(expected), f"{what} has {len(items)} elements, not {len(expected)}"
        for place, (ours, theirs) in enumerate(zip(items, expected, strict=True)):
            _compare_values(case, ours, theirs, strict, f"{what}, element {place}")
        return
    rtol, atol = case.tolerances
    wanted, found = np.asarray(wanted), np.asarray(found)
    assert found.shape == wanted.shape, f"{what} is {found.shape}, expected {wanted.shape}"
    if wanted.dtype.kind in "OSU":
        assert found.dtype.kind in "OSU", f"{what} is {found.dtype}, expected strings"
        np.testing.assert_array_equal(found.astype(str), wanted.astype(str), err_msg=what)
        return
    assert found.dtype == wanted.dtype, f"{what} is {found.dtype}, expected {wanted.dtype}"
    if case.random:
        return
    allowed = rtol
    if found.dtype.name == "bfloat16":
        allowed = max(rtol, 2**-6)
    if found.dtype.isbuiltin != 1:  # one of ml_dtypes
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    limit = atol if strict else max(atol, _last_place(wanted))
    np.testing.assert_allclose(found, wanted, rtol=allowed, atol=limit, err_msg=what)


def _last_place(wanted: np.ndarray) -> float:
    """One unit in the last place of the largest element.

    After cancellation, expected values are only as exact as the type they were computed in.
    """
    if wanted.dtype.kind != "f" or not wanted.size:
        return 0.0
    finite = np.abs(wanted[np.isfinite(wanted)])
    return float(np.finfo(wanted.dtype).eps * finite.max()) if finite.size else 0.0


def main() -> None:
    """Answer requests until the input ends; the first line is the settings."""
    settings = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of cases must not mix with the answers
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
