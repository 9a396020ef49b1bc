"""Worker process that runs programs: reads requests, answers each with a JSON line; may crash or hang safely."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from typing import Any

from ge.conformance.programs import load_door
from ge.conformance.programs.door import Door
from ge.conformance.programs.generate import generate
from ge.conformance.programs.judge import check, verdict_of
from ge.conformance.programs.record import Input, Program
from ge.conformance.programs.sampling import feeds
from ge.conformance.programs.standalone import test_file

__all__ = ["answer", "main"]


def answer(door: Door, kind: str, text: str, short: bool = False) -> dict[str, Any]:
    """One request. make: return the program of a seed; seed: run it; program: run this one; values: return its values;
    file: return a test that reproduces the failure.
    """
    if kind == "make":
        return {"program": generate(door, text, short).as_json()}
    if kind == "values":
        return {"values": _values(door, Program.from_json(text))}
    if kind == "file":
        seed, data, verdict = json.loads(text)
        return {"text": test_file(door, Program.from_json(data), verdict_of(verdict), seed)}
    program = generate(door, text, short) if kind == "seed" else Program.from_json(text)
    verdict = check(door, program)
    found = {**dataclasses.asdict(verdict), "operators": program.operators()}
    return (
        found if verdict.status in ("pass", "refused", "invalid") else {**found, "program": program.as_json()}
    )


def _values(door: Door, program: Program) -> dict[str, Any]:
    """The framework's values of all top-level names, as inputs."""
    arrays = feeds(program)[0]
    scope = {i.value.name: door.tensor(a.copy(), i.role) for i, a in zip(program.inputs, arrays, strict=True)}
    found = {}
    for statement in program.statements:
        for value, tensor in zip(statement.results, door.evaluate(statement, scope), strict=True):
            scope[value.name] = tensor
            array = door.array(tensor)
            if array is not None:
                found[value.name] = dataclasses.asdict(Input.given(value.name, array))
    return found


def main() -> None:
    """Answer requests until the input ends; the first line is the settings."""
    settings = json.loads(sys.stdin.readline())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of programs must not mix with the answers
    warnings.simplefilter("ignore")
    door = load_door(settings["door"])
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        kind, text = json.loads(line)
        print(json.dumps(answer(door, kind, text, settings["short"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
