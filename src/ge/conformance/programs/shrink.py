"""Delta debugging: reduces a failing program as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ge.conformance.programs.record import Block, Input, Program, Statement, Value, live
from ge.conformance.programs.sampling import feeds

__all__ = ["shrink"]

Fails = Callable[[Program], bool]
Values = Callable[[Program], Mapping[str, np.ndarray]]


def shrink(program: Program, fails: Fails, values: Values, most: int = 400) -> Program:
    """The smallest failing program found within `most` trials.

    fails: True if a program fails as the first one did. values: the framework's value of every name.
    """
    trials = 0
    changed = True
    while changed and trials < most:
        changed = False
        for step in (_fewer_options, _fewer_results, _cut, _fewer_statements, _simpler_inputs, _smaller):
            found = True
            while found and trials < most:
                found = False
                known = values(program) if step is _cut else {}
                for candidate in step(program, known):
                    trials += 1
                    if trials > most:
                        break
                    if _consistent(candidate) and fails(candidate):
                        program, found, changed = candidate, True, True
                        break
    return program


def _consistent(program: Program) -> bool:
    """True if every name is defined before it is read."""
    names = {i.value.name for i in program.inputs}

    def defined(statements: tuple[Statement, ...], names: set[str]) -> bool:
        for statement in statements:
            if not names.issuperset(statement.arguments):
                return False
            for block in statement.blocks:
                inner = names | {v.name for v in block.parameters}
                if not defined(block.statements, inner):
                    return False
                made = {v.name for s in block.statements for v in s.results}
                if not (inner | made).issuperset(v.name for v in block.results):
                    return False
            names = names | {v.name for v in statement.results}
        return names.issuperset(v.name for v in program.results) if statements is program.statements else True

    return bool(program.results) and defined(program.statements, names)


def _pruned(program: Program) -> Program:
    """Without unused statements."""
    statements = live(program.statements, {v.name for v in program.results})
    read = set[str]().union(*(s.reads() for s in statements)) | {v.name for v in program.results}
    return replace(
        program, statements=statements, inputs=tuple(i for i in program.inputs if i.value.name in read)
    )


def _fewer_options(program: Program, known: Mapping[str, np.ndarray]) -> Iterator[Program]:
    for option in program.options:
        yield replace(program, options=tuple(o for o in program.options if o != option))


def _fewer_results(program: Program, known: Mapping[str, np.ndarray]) -> Iterator[Program]:
    if len(program.results) > 1:
        yield from (_pruned(replace(program, results=(v,))) for v in program.results)
        for index in range(len(program.results)):
            yield _pruned(replace(program, results=program.results[:index] + program.results[index + 1 :]))


def _cut(program: Program, known: Mapping[str, np.ndarray]) -> Iterator[Program]:
    """Turn a statement's results into inputs and drop its dependencies. Latest first, which removes most."""
    for index in reversed(range(len(program.statements) - 1)):
        statement = program.statements[index]
        results = [v for v in statement.results if v.name in known]
        if statement.effect or len(results) < len(statement.results):
            continue
        inputs = tuple(Input.given(v.name, known[v.name]) for v in results)
        rest = program.statements[:index] + program.statements[index + 1 :]
        yield _pruned(replace(program, statements=rest, inputs=program.inputs + inputs))


def _fewer_statements(program: Program, known: Mapping[str, np.ndarray]) -> Iterator[Program]:
    """Remove a statement, also inside blocks; an argument of the same type replaces its result."""
    outer = {i.value.name: i.value for i in program.inputs}
    results = {v.name: v for v in program.results}
    for statements, names in _without_one(program.statements, outer):
        renamed = tuple(replace(v, name=names.get(v.name, v.name)) for v in results.values())
        unique = tuple({v.name: v for v in renamed}.values())
        yield _pruned(replace(program, statements=statements, results=unique))


def _mapped(names: Mapping[str, str], name: str) -> str:
    return names.get(name, name)


def _without_one(
    statements: tuple[Statement, ...], scope: Mapping[str, Value]
) -> Iterator[tuple[tuple[Statement, ...], dict[str, str]]]:
    scope = dict(scope)
    for index, statement in enumerate(statements):
        before, after = statements[:index], statements[index + 1 :]
        names = {}
        for value in statement.results:
            same = [a for a in statement.arguments if a in scope and scope[a].like(value)]
            same += [v.name for v in reversed(scope.values()) if v.like(value)]
            if same:
                names[value.name] = same[0]
        if len(names) == len(statement.results):
            yield before + tuple(s.renamed(partial(_mapped, names)) for s in after), names
        for position, block in enumerate(statement.blocks):
            inner = {**scope, **{v.name: v for v in block.parameters}}
            for shorter, changed in _without_one(block.statements, inner):
                results = tuple(replace(v, name=changed.get(v.name, v.name)) for v in block.results)
                new = Block(block.parameters, shorter, results)
                blocks = statement.blocks[:position] + (new,) + statement.blocks[position + 1 :]
                yield before + (replace(statement, blocks=blocks),) + after, {}
        scope |= {v.name: v for v in statement.results}


def _simpler_inputs(program: Program, known: Mapping[str, np.ndarray]) -> Iterator[Program]:
    """Use plain elements, and fed inputs instead of constants and states."""
    for index, given in enumerate(program.inputs):
        simpler = [replace(given, fill=f, data="") for f in ("ones", "zeros", "integers", "ordinary")]
        order = ["ones", "zeros", "integers", "ordinary"]
        allowed = order.index(given.fill) if given.fill in order else len(order)
        candidates = simpler[:allowed]
        if given.role != "fed":
            candidates.append(replace(given, role=type(given.role)("fed")))
        for candidate in candidates:
            yield replace(program, inputs=program.inputs[:index] + (candidate,) + program.inputs[index + 1 :])


def _smaller(program: Program, known: Mapping[str, np.ndarray]) -> Iterator[Program]:
    """Replace one size of the inputs by a smaller one everywhere."""
    sizes = sorted({n for i in program.inputs for n in i.value.shape if n > 1}, reverse=True)
    for size in sizes:
        for smaller in sorted({1, 2, 3, size // 2} - {0}):
            if smaller < size:
                yield replace(program, inputs=tuple(_resized(i, size, smaller) for i in program.inputs))


def _resized(given: Input, size: int, smaller: int) -> Input:
    shape = tuple(smaller if n == size else n for n in given.value.shape)
    if shape == given.value.shape:
        return given
    if given.fill == "given":
        array = feeds(Program((given,), (), ()))[0][0]
        return Input.given(given.value.name, array[tuple(slice(n) for n in shape)], given.role)
    return replace(given, value=replace(given.value, shape=shape))
