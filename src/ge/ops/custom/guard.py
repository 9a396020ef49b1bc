"""Runs the code of custom operators in the sandbox process (`ge.isolation`), so that crashes stay there.

A child of that process runs verification, inference and computation of an operator for one signature and returns plain
data: descriptions, and the tensor expression as text. Code that raises, does not terminate, crashes the process or
returns something else gives an error that names the line in the operator's file.

NPU_OPP_TIMEOUT is the limit in seconds of processor time; 0 runs the code in this process, for debuggers.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import tbe
from ge import isolation
from ge.errors import GeError, UserCodeError
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of
from ge.ops.base import (
    CompiledProgram,
    Engine,
    NodeView,
    Operator,
    Pattern,
    adopt,
    candidates,
    is_custom,
    plain_type,
    registered_custom,
    source_of,
)
from npu_runtime import environment
from npu_runtime.bounded import BoundedCache

__all__ = [
    "Traced",
    "call_plugin",
    "located",
    "objection",
    "rehearse",
    "run_in_subprocess",
    "signature",
    "traced",
    "user_line",
    "verify",
]

DEFAULT_LIMIT = 30.0
HASH_LIMIT = 1 << 20  # constants up to this size distinguish signatures by their contents
KEPT = 4096
_MODULES = ("ge.ops", "tbe.dsl", *(f"ge.ops.custom.{name}" for name in ("search", "selection", "transfer")))


@dataclass(frozen=True)
class Traced:
    """The trace of an operator for one signature: an expression, or the machine code of a TIK program."""

    outputs: tuple[TensorDesc, ...]
    expression: str = ""
    pattern: Pattern = Pattern.OPAQUE
    program: CompiledProgram | None = None

    def apply(self, tensors: Sequence[tbe.Tensor | None]) -> tuple[tbe.Tensor, ...]:
        """The operator's outputs as expressions of given tensors."""
        return tuple(tbe.apply_json(self.expression, [t for t in tensors if t is not None]))


_TRACED: BoundedCache[Any, Traced] = BoundedCache(KEPT)
_OBJECTIONS: BoundedCache[Any, str] = BoundedCache(KEPT)
_REHEARSED: BoundedCache[Any, bool] = BoundedCache(KEPT)


def traced(operator: type[Operator], op: NodeView) -> Traced:
    """The trace of the operator's code for a node; memoised by signature."""
    key = signature(operator, op.attrs, op.inputs, op.values)
    found = _TRACED.get(key)
    return found if found is not None else _TRACED.put(key, _trace(operator, op))


def verify(operator: type[Operator], op: NodeView) -> None:
    """Check a node by the operator's own rules."""
    traced(operator, op)


def objection(operator: type[Operator], op: NodeView) -> str:
    """The reason of the operator's `unsuitable` against a node; memoised by signature."""
    key = signature(operator, op.attrs, op.inputs, op.values)
    found = _OBJECTIONS.get(key)
    if found is None:
        who = UserCodeError("E10601", "", node=op.name, operator=plain_type(op.type))
        found = str(run_in_subprocess(partial(_objection, operator, op), who, _namesakes(operator)))
        _OBJECTIONS.put(key, found)
    return found


def _objection(operator: type[Operator], op: NodeView) -> str:
    return str(operator.unsuitable(op) or "")


def rehearse(work: Callable[[], Any], key: Any, who: UserCodeError) -> None:
    """Run code in a child and discard its result, to check that it terminates without crashing the process.

    Errors that it raises will be raised again when its result is needed. `who` is the error to complete otherwise.
    """
    if _REHEARSED.get(key):
        return
    run_in_subprocess(partial(_drop_result, work), who)
    _REHEARSED.put(key, True)


def _drop_result(work: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        work()


def call_plugin(function: Callable[[Any], Any], node: Any) -> Any:
    """The result of a custom plugin for a framework's node."""
    from ge.ir.values import desc_of
    from ge.ops.plugins import Unsupported

    who = UserCodeError("E10601", "", node=node.name, operator=node.type)
    descs = [None if v is None else desc_of(v) for v in node.inputs]
    trial = replace(node, parser=None)  # a parser holds the whole model
    rehearse(partial(function, trial), signature(function, node.attrs, descs, node.inputs), who)
    return located(lambda: function(node), who, "the plugin", (Unsupported,))


def located(
    work: Callable[[], Any], who: UserCodeError, what: str, known: tuple[type[Exception], ...] = ()
) -> Any:
    """The result of the work; an unexpected error names the line in the user's file."""
    try:
        return work()
    except Exception as error:
        if isinstance(error, (GeError, *known)):
            raise
        raise _completed(who, f"{what} raised {_words(_cause(error))}", _line(error)) from error


def signature(
    code: Any, attrs: Any, descs: Sequence[TensorDesc | None], values: Sequence[Any]
) -> tuple[Any, ...] | None:
    """A key of everything the code's result depends on; None if there is no short one."""
    constants = [None if v is None else constant_of(v) for v in values]
    if any(a is not None and a.nbytes > HASH_LIMIT for a in constants):
        return None
    return (code, repr(sorted(attrs.items())), tuple(map(str, descs)), tuple(map(_digest, constants)))


def _digest(array: np.ndarray | None) -> str:
    return "" if array is None else hashlib.sha256(array.tobytes()).hexdigest()


# -- tracing ------------------------------------------------------------------------------------------------


def _trace(operator: type[Operator], op: NodeView) -> Traced:
    who = UserCodeError("E10601", "", node=op.name, operator=plain_type(op.type))
    answer = run_in_subprocess(partial(_answer, operator, op), who, _namesakes(operator))
    outputs = tuple(TensorDesc(tuple(shape), dtype) for shape, dtype in answer["outputs"])
    text, code = answer["expression"], answer.get("program")
    if code is not None:
        made = CompiledProgram(code["symbol"], base64.b64decode(code["object"]), code["arena"])
        return Traced(outputs, program=made)
    return Traced(outputs, text, _pattern(text) if text else Pattern.OPAQUE)


_POINTWISE = frozenset({"placeholder", "constant", "unary", "binary", "select", "cast"})


def _pattern(text: str) -> Pattern:
    """How the outputs of an expression depend on its inputs."""
    document = json.loads(text)
    nodes = document["nodes"]
    kinds = {node["kind"] for node in nodes}
    shapes = {tuple(nodes[i]["shape"]) for i in document["inputs"]}
    table = (
        ("scan" in kinds, Pattern.OPAQUE),
        ("reduce" in kinds, Pattern.REDUCE),
        (kinds <= _POINTWISE and len(shapes) <= 1, Pattern.ELEMENTWISE),
        (kinds <= _POINTWISE | {"broadcast"}, Pattern.BROADCAST),
    )
    return next((pattern for holds, pattern in table if holds), Pattern.INJECTIVE)


def _answer(operator: type[Operator], op: NodeView) -> dict[str, Any]:
    """Run the operator's code (in the child)."""
    from ge.ops.custom.selection import refusals

    operator.verify(op)
    if operator.expand is not None:
        return {"outputs": [], "expression": ""}
    inferred: list[TensorDesc] | None = None
    if operator.infer is not Operator.infer:
        result = operator.infer(op)
        inferred = [result] if isinstance(result, TensorDesc) else list(result)
        _check_descs(operator, inferred)
    if operator.compute is None and inferred is None:
        raise _Wrong("declares neither infer nor compute", operator)
    if inferred is not None and refusals(operator, op).get(Engine.VECTOR, "it has none"):
        return {"outputs": _plain(inferred), "expression": ""}  # another implementation runs
    if operator.program is not None and (program := operator.program(op, inferred)) is not None:
        return _compiled(operator, op, program, inferred)
    places = [
        None if d is None else tbe.placeholder(d.shape, d.dtype, name=f"x{i}")
        for i, d in enumerate(op.inputs)
    ]
    results = operator.computed(op, places)
    _check_results(operator, op, results, inferred)
    text = tbe.to_json([p for p in places if p is not None], list(results))
    return {
        "outputs": _plain([TensorDesc(tuple(t.shape), t.dtype) for t in results]),
        "expression": text,
    }


def _compiled(
    operator: type[Operator], op: NodeView, program: Any, inferred: list[TensorDesc] | None
) -> dict[str, Any]:
    """The answer for a TIK program: its global tensors are the node's, byte for byte."""
    from tbe.tik.native import NotNative, machine_code, written

    changed = {m.name for m in written(program.body)} & {t.name for t in program.inputs}
    changed -= {t.name for t in program.outputs}
    if changed:
        names = ", ".join(sorted(changed))
        raise _Wrong(
            f"the TIK program writes its input {names}, which no model sees: make it an output", operator
        )
    made = [TensorDesc(tuple(t.shape), t.dtype) for t in program.outputs]
    outputs = made if inferred is None else inferred
    given = [d for d in op.inputs if d is not None]
    sides = (
        ("inputs", [TensorDesc(tuple(getattr(t, "shape", ())), t.dtype) for t in program.inputs], given),
        ("outputs", made, outputs),
    )
    for side, own, wanted in sides:
        if [(d.dtype, d.size) for d in own] != [(d.dtype, d.size) for d in wanted]:
            said, have = (", ".join(map(str, descs)) for descs in (own, wanted))
            raise _Wrong(f"the TIK program has the {side} {said}, the node {have}", operator)
    try:
        code = machine_code(program)
    except NotNative as reason:
        raise _Wrong(f"the TIK program has no machine code ({reason})", operator) from reason
    fields = {"symbol": code.symbol, "object": base64.b64encode(code.object).decode(), "arena": code.arena}
    return {"outputs": _plain(outputs), "expression": "", "program": fields}


class _Wrong(Exception):
    """Code that returned an invalid result instead of raising."""

    def __init__(self, cause: str, operator: type[Operator], member: str = "compute") -> None:
        super().__init__(cause)
        code = getattr(getattr(operator, member, None), "__code__", None)
        place = f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code else source_of(operator)
        self.line = str(getattr(operator, "file", place))


def _check_descs(operator: type[Operator], descs: Sequence[Any]) -> None:
    for desc in descs:
        if not isinstance(desc, TensorDesc) or any(type(d) is not int or d < 0 for d in desc.shape):
            raise _Wrong(f"infer returned {desc!r:.80} where a TensorDesc is expected", operator, "infer")


def _check_results(
    operator: type[Operator], op: NodeView, results: Sequence[Any], inferred: list[TensorDesc] | None
) -> None:
    for result in results:
        if not isinstance(result, tbe.Tensor):
            raise _Wrong(f"compute returned {result!r:.80} where a tensor expression is expected", operator)
    descs = [TensorDesc(tuple(t.shape), t.dtype) for t in results]
    ports = list(operator.prototype.outputs.items())
    if len(descs) != len(ports) and not any(port.variadic for _, port in ports):
        raise _Wrong(f"compute returned {len(descs)} outputs, the prototype has {len(ports)}", operator)
    if inferred is not None and inferred != descs:
        said, made = (", ".join(map(str, side)) for side in (inferred, descs))
        raise _Wrong(f"compute returned {made} where infer says {said}", operator)
    groups = {
        port.group: desc.dtype
        for port, desc in zip(operator.prototype.inputs.values(), op.inputs, strict=False)
        if port.group and desc is not None
    }
    for (name, port), desc in zip(ports, descs, strict=False):
        expected = groups.get(port.group, desc.dtype)
        if expected != desc.dtype:
            raise _Wrong(
                f"compute returned {desc} for output '{name}' where {expected} is expected", operator
            )


def _plain(descs: Iterable[TensorDesc]) -> list[tuple[list[int], str]]:
    return [([int(d) for d in desc.shape], desc.dtype) for desc in descs]


# -- processes ----------------------------------------------------------------------------------------------


def _limit() -> float:
    return environment.number("NPU_OPP_TIMEOUT", DEFAULT_LIMIT, zero=True)


def _namesakes(operator: type[Operator]) -> list[type[Operator]]:
    """The custom operators that a node's type may refer to."""
    return [other for other in candidates(operator.type) if is_custom(other)][::-1]


def run_in_subprocess(
    work: Callable[[], Any], who: UserCodeError, operators: Sequence[type[Operator]] | None = None
) -> Any:
    """Run work in a child process and return its result (plain data). `who` is the error to complete if it fails.

    `operators` are the custom operators that the work may use; by default all of them.
    """
    limit = _limit()
    if limit <= 0 or isolation.is_child():
        return _settled(_attempt(work), who)
    from ge.ops.custom import transfer

    try:
        request = transfer.packed(
            partial(_in_child, registered_custom() if operators is None else operators, work)
        )
    except Exception as error:
        cause = f"the code cannot be sent to the process that tries it: {_words(error)}"
        raise _completed(who, cause, "", "E10606") from error
    outcome = isolation.run(request, limit, _MODULES)
    if outcome.answer is not None:
        return _settled(outcome.answer, who)
    line = _crash_line(outcome.trace)
    if not outcome.in_time:
        raise _completed(who, f"the code did not end within {limit:g} s", line, "E10602")
    raise _completed(who, f"the code {outcome.death}", line, "E10605")


def _in_child(operators: Sequence[type[Operator]], work: Callable[[], Any]) -> dict[str, Any]:
    """Run work with the parent's custom operators registered."""
    adopt(operators)
    return _attempt(work)


def _attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """The result of the work or its failure, as plain data."""
    try:
        return {"result": work()}
    except GeError as error:
        fields = {k: getattr(error, k) for k in ("code", "cause", "node", "operator", "location", "remedy")}
        return {"refusal": fields}
    except _Wrong as error:
        return {"code": "E10603", "cause": f"the code is wrong: {error}", "line": error.line}
    except isolation.TimeUp as error:
        return {"code": "E10602", "cause": str(error), "line": user_line(_frames(error))}
    except (SystemExit, KeyboardInterrupt, Exception) as error:
        words = _words(_cause(error))
        return {"code": "E10601", "cause": f"the code raised {words}", "line": _line(error)}


def _cause(error: BaseException) -> BaseException:
    """The user's own error, which an error of the operator language wraps."""
    wraps = type(error).__name__ == "OperatorError" and error.__cause__ is not None
    return error.__cause__ if wraps and error.__cause__ is not None else error


def _line(error: BaseException) -> str:
    """The line that an error itself names, else the innermost one in a user's file."""
    file, number = getattr(error, "filename", ""), getattr(error, "line", getattr(error, "lineno", 0))
    return f"{file}:{number}" if file and number else user_line(_frames(error))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _settled(answer: dict[str, Any], who: UserCodeError) -> Any:
    if "result" in answer:
        return answer["result"]
    if "refusal" in answer:
        given = answer["refusal"]
        given["node"], given["operator"] = given["node"] or who.node, given["operator"] or who.operator
        raise GeError(given.pop("code"), given.pop("cause"), **given)
    raise _completed(who, answer["cause"], answer["line"], answer["code"])


def _completed(who: UserCodeError, cause: str, line: str, code: str = "") -> UserCodeError:
    return UserCodeError(
        code or who.code,
        cause,
        node=who.node,
        operator=who.operator,
        location=line or who.location,
        remedy=_REMEDIES.get(code or who.code, ""),
    )


_REMEDIES = {
    "E10606": "leave out what cannot be pickled, or set NPU_OPP_TIMEOUT=0 to run it in this process",
    "E10602": "look for a loop without end; NPU_OPP_TIMEOUT sets the time limit in seconds",
}


# -- lines --------------------------------------------------------------------------------------------------


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    return [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]


def user_line(frames: Sequence[tuple[str, int, str]]) -> str:
    """The innermost of some frames (outermost first) in a user's file: "file:line in function"."""
    from ge.ops.custom import transfer

    for file, line, name in reversed(frames):
        if not transfer.is_installed(file):
            return f"{file}:{line} in {name}"
    return ""


def _crash_line(report: str) -> str:
    """The user's line in faulthandler's output (innermost frame first)."""
    found = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', report)
    return user_line([(file, int(line), name) for file, line, name in reversed(found)])
