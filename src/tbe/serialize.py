"""Tensor expressions as JSON text, and their fingerprint.

The text may come from untrusted files: everything in it is checked, sizes are bounded, and nodes are created by the
public constructors, so that a kernel built from it cannot access memory outside its tensors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from tbe import expr as e
from tbe.dtypes import DTYPES
from tbe.ops import BINARY, UNARY
from tbe.order import postorder
from tbe.tuning import tuning_of

__all__ = ["apply_json", "fingerprint", "from_json", "structure", "to_json"]

FORMAT = 1
CODE_VERSION = 9  # of the generated machine code: increment it when the same expression gives other code
MAX_TEXT = 16 << 20
MAX_NODES = 20_000
MAX_ELEMENTS = 1 << 44
MAX_PARTS = 4096

Record = dict[str, Any]


def to_json(inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor]) -> str:
    """Serialise a graph."""
    return json.dumps(_document(inputs, outputs, names=True), separators=(",", ":"))


def fingerprint(inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor]) -> str:
    """A hash of the structure of a graph and of tuned choices: equal hashes give equal machine code."""
    hashed = structure(inputs, outputs)
    tuning = tuning_of(hashed)
    if tuning is None:
        return hashed
    return hashlib.sha256(json.dumps([hashed, tuning.given()]).encode()).hexdigest()


def structure(inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor]) -> str:
    """A hash of the structure of a graph, independent of names."""
    text = json.dumps([CODE_VERSION, _document(inputs, outputs, names=False)], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------
# Writing
# ---------------------------------------------------------------------------------------------------------


def _document(inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor], *, names: bool) -> Record:
    numbers: dict[int, int] = {}
    records: list[Record] = []
    for tensor in postorder([*inputs, *outputs], lambda t: t.inputs):
        numbers[id(tensor)] = len(records)
        record = {"kind": _KINDS[type(tensor)], "inputs": [numbers[id(t)] for t in tensor.inputs]}
        record.update(_WRITE[type(tensor)](tensor))
        if names and isinstance(tensor, e.Placeholder):
            record["name"] = tensor.name
        records.append(record)
    return {
        "format": FORMAT,
        "inputs": [numbers[id(t)] for t in inputs],
        "outputs": [numbers[id(t)] for t in outputs],
        "nodes": records,
    }


def _value(value: Any) -> Any:
    return value.hex() if isinstance(value, float) else value


def _write_compute(t: e.Compute) -> Record:
    tensors = {id(x): n for n, x in enumerate(t.inputs)}
    numbers: dict[int, int] = {}
    scalars: list[list[Any]] = []
    for scalar in postorder([t.body], lambda s: s.args):
        numbers[id(scalar)] = len(scalars)
        args = [numbers[id(a)] for a in scalar.args]
        if isinstance(scalar, e.Var):
            scalars.append(["var", next(n for n, v in enumerate(t.vars) if v is scalar)])
        elif isinstance(scalar, e.Const):
            scalars.append(["const", scalar.dtype, _value(scalar.value)])
        elif isinstance(scalar, e.Load):
            scalars.append(["load", tensors[id(scalar.tensor)], args])
        else:
            assert isinstance(scalar, e.ScalarOp)
            name = scalar.dtype if scalar.op == "cast" else scalar.op
            scalars.append(["cast" if scalar.op == "cast" else "op", name, args])
    return {"shape": list(t.shape), "scalars": scalars}


def _shape_and_dtype(t: e.Tensor) -> Record:
    return {"shape": list(t.shape), "dtype": t.dtype}


_WRITE: dict[type, Callable[[Any], Record]] = {
    e.Placeholder: _shape_and_dtype,
    e.Constant: lambda t: {"dtype": t.dtype, "value": _value(t.value)},
    e.Unary: lambda t: {"op": t.op},
    e.Binary: lambda t: {"op": t.op},
    e.Select: lambda t: {},
    e.Cast: lambda t: {"dtype": t.dtype},
    e.Broadcast: lambda t: {"shape": list(t.shape)},
    e.Reshape: lambda t: {"shape": list(t.shape)},
    e.Transpose: lambda t: {"perm": list(t.perm)},
    e.Slice: lambda t: {"starts": list(t.starts), "steps": list(t.steps), "shape": list(t.shape)},
    e.Pad: lambda t: {
        "low": list(t.low),
        "high": [d - a - x for d, a, x in zip(t.shape, t.low, t.inputs[0].shape, strict=False)],
        "value": _value(t.value),
    },
    e.Concat: lambda t: {"axis": t.axis},
    e.Iota: lambda t: {**_shape_and_dtype(t), "axis": t.axis},
    e.Take: lambda t: {"axis": t.axis, "batch_dims": t.batch_dims},
    e.Compute: _write_compute,
    e.Reduce: lambda t: {"op": t.op, "axes": list(t.axes), "keepdims": t.keepdims, "last": t.last},
    e.Scan: lambda t: {"op": t.op, "axis": t.axis, "exclusive": t.exclusive, "reverse": t.reverse},
}
_KINDS = {kind: kind.__name__.lower() for kind in _WRITE}


# ---------------------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------------------


def from_json(text: str) -> tuple[list[e.Tensor], list[e.Tensor]]:
    """Deserialise a graph; raises ValueError for anything that is not exactly what to_json writes."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"kernel description longer than {MAX_TEXT} characters")
    try:
        return _read(json.loads(text))
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"malformed kernel description: {error}") from error


def apply_json(text: str, tensors: Sequence[e.Tensor]) -> list[e.Tensor]:
    """The outputs of a serialised graph, with given tensors in place of its inputs.

    >>> x = e.placeholder((2,), "float32")
    >>> apply_json(to_json([x], [e.unary("exp", x)]), [e.constant(0.0, "float32")])
    Traceback (most recent call last):
    ...
    ValueError: input 0 is float32[], the description takes float32[2]
    """
    document = json.loads(text)
    numbers = document["inputs"]
    if len(numbers) != len(tensors):
        raise ValueError(f"{len(tensors)} tensors for {len(numbers)} inputs")
    made: list[e.Tensor] = []
    given = dict(zip(numbers, tensors, strict=True))
    for number, record in enumerate(document["nodes"]):
        tensor = given.get(number)
        if tensor is None:
            inputs = [made[i] for i in record["inputs"]]
            tensor = _READ[record["kind"]][2](record, inputs)
        else:
            _check_fits(numbers.index(number), tensor, record)
        made.append(tensor)
    return [made[i] for i in document["outputs"]]


def _check_fits(position: int, tensor: e.Tensor, record: Record) -> None:
    if list(tensor.shape) != record["shape"] or tensor.dtype != record["dtype"]:
        given, taken = (
            f"{dtype}[{','.join(map(str, shape))}]"
            for shape, dtype in ((tensor.shape, tensor.dtype), (record["shape"], record["dtype"]))
        )
        raise ValueError(f"input {position} is {given}, the description takes {taken}")


def _read(document: Any) -> tuple[list[e.Tensor], list[e.Tensor]]:
    if not isinstance(document, dict) or set(document) != {"format", "inputs", "outputs", "nodes"}:
        raise ValueError("not a kernel description")
    if document["format"] != FORMAT:
        raise ValueError(f"kernel description of format {document['format']!r}; this program reads {FORMAT}")
    records = document["nodes"]
    if not isinstance(records, list) or len(records) > MAX_NODES:
        raise ValueError(f"a kernel has a list of at most {MAX_NODES} nodes")
    tensors: list[e.Tensor] = []
    for record in records:
        tensor = _read_node(record, tensors)
        if tensor.size > MAX_ELEMENTS:
            raise ValueError(f"a tensor of shape {tensor.shape} is too large")
        tensors.append(tensor)
    inputs = [tensors[i] for i in _integers(document["inputs"], 0, len(tensors) - 1)]
    outputs = [tensors[i] for i in _integers(document["outputs"], 0, len(tensors) - 1)]
    if any(not isinstance(t, e.Placeholder) for t in inputs) or len({id(t) for t in inputs}) != len(inputs):
        raise ValueError("the inputs of a kernel are distinct placeholders")
    if {id(t) for t in tensors if isinstance(t, e.Placeholder)} - {id(t) for t in inputs} or not outputs:
        raise ValueError("every placeholder of a kernel is one of its inputs, and it has an output")
    return inputs, outputs


def _read_node(record: Any, tensors: list[e.Tensor]) -> e.Tensor:
    if not isinstance(record, dict) or record.get("kind") not in _READ:
        raise ValueError(f"unknown kind of node: {record!r:.80}")
    kind = record["kind"]
    keys, count, make = _READ[kind]
    given = set(record) - {"kind", "inputs"} - ({"name"} if kind == "placeholder" else set())
    if given != keys:
        raise ValueError(f"{kind} has the fields {sorted(given)} instead of {sorted(keys)}")
    inputs = [tensors[i] for i in _integers(record["inputs"], 0, len(tensors) - 1)]
    if (count is not None and len(inputs) != count) or len(inputs) > MAX_PARTS:
        raise ValueError(f"{kind} with {len(inputs)} inputs")
    tensor = make(record, inputs)
    if type(tensor) is not _BY_NAME[kind]:
        raise ValueError(f"{kind} that does nothing")
    if isinstance(tensor, e.Compute) and {id(t) for t in tensor.inputs} != {id(t) for t in inputs}:
        raise ValueError("a compute body reads exactly its inputs")
    return tensor


def _integer(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{value!r:.40} is not an integer from {low} to {high}")
    return value


def _integers(values: Any, low: int, high: int) -> list[int]:
    if not isinstance(values, list) or len(values) > MAX_NODES:
        raise ValueError("expected a list of integers")
    return [_integer(v, low, high) for v in values]


def _shape(record: Record, key: str = "shape") -> list[int]:
    shape = _integers(record[key], 0, MAX_ELEMENTS)
    if len(shape) > e.MAX_RANK or math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"shape {shape!r:.80} is too large")
    return shape


def _offsets(record: Record, key: str) -> list[int]:
    return _integers(record[key], -MAX_ELEMENTS, MAX_ELEMENTS)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{value!r:.40} is not true or false")
    return value


def _dtype(value: Any) -> str:
    if not isinstance(value, str) or value not in DTYPES:
        raise ValueError(f"unknown dtype {value!r:.40}")
    return value


def _constant_value(value: Any, dtype: str) -> Any:
    if DTYPES[dtype].is_float:
        if not isinstance(value, str) or len(value) > 64:
            raise ValueError("a float constant is written as a hexadecimal string")
        return float.fromhex(value)
    return _boolean(value) if dtype == "bool" else _integer(value, -(1 << 64), 1 << 64)


def _axis(record: Record, rank: int) -> int:
    return _integer(record["axis"], 0, rank - 1)


def _operation(record: Record, known: Any) -> str:
    op = record["op"]
    if not isinstance(op, str) or op not in known:
        raise ValueError(f"unknown operation {op!r:.40}")
    return op


def _read_placeholder(r: Record, inputs: list[e.Tensor]) -> e.Tensor:
    name = r.get("name", "")
    if not isinstance(name, str) or len(name) > 1000:
        raise ValueError("the name of a placeholder is a short string")
    return e.placeholder(_shape(r), _dtype(r["dtype"]), name)


def _read_reduce(r: Record, inputs: list[e.Tensor]) -> e.Tensor:
    axes = _integers(r["axes"], 0, len(inputs[0].shape) - 1)
    return e.reduce(r["op"], inputs[0], axes, _boolean(r["keepdims"]), last=_boolean(r["last"]))


def _read_compute(r: Record, inputs: list[e.Tensor]) -> e.Tensor:
    shape = tuple(_shape(r))
    variables = tuple(e.Var(d) for d in shape)
    scalars: list[e.Scalar] = []
    used: set[int] = set()
    if not isinstance(r["scalars"], list) or not 0 < len(r["scalars"]) <= MAX_NODES:
        raise ValueError(f"a compute body has 1 to {MAX_NODES} scalars")
    for item in r["scalars"]:
        scalars.append(_read_scalar(item, scalars, variables, inputs, used))
    if len(used) != len(inputs):
        raise ValueError("a compute body reads exactly its inputs")
    return e.from_scalar(shape, variables, scalars[-1])


def _read_scalar(
    item: Any, scalars: list[e.Scalar], variables: tuple[e.Var, ...], inputs: list[e.Tensor], used: set[int]
) -> e.Scalar:
    kind = item[0] if isinstance(item, list) and item else None
    if kind == "var" and len(item) == 2:
        return variables[_integer(item[1], 0, len(variables) - 1)]
    if kind not in ("const", "load", "op", "cast") or len(item) != 3:
        raise ValueError(f"unknown scalar {item!r:.80}")
    if kind == "const":
        dtype = _dtype(item[1])
        return e.Const(e._number(_constant_value(item[2], dtype), dtype), dtype)
    args = [scalars[i] for i in _integers(item[2], 0, len(scalars) - 1)]
    if kind == "load":
        number = _integer(item[1], 0, len(inputs) - 1)
        used.add(number)
        if len(args) > e.MAX_RANK:
            raise ValueError("too many indices")
        return inputs[number][tuple(args)]
    if kind == "cast":
        (x,) = args
        return e.cast(x, _dtype(item[1]))
    return _scalar_operation(item[1], args)


def _scalar_operation(name: Any, args: list[e.Scalar]) -> e.Scalar:
    if name == "select" and len(args) == 3:
        return e.select(*args)
    if isinstance(name, str) and name in UNARY and len(args) == 1:
        return e.unary(name, args[0])
    if isinstance(name, str) and name in BINARY and len(args) == 2:
        return e.binary(name, args[0], args[1])
    raise ValueError(f"unknown scalar operation {name!r:.40} of {len(args)}")


_READ: dict[str, tuple[set[str], int | None, Callable[[Record, list[e.Tensor]], e.Tensor]]] = {
    "placeholder": ({"shape", "dtype"}, 0, _read_placeholder),
    "constant": (
        {"dtype", "value"},
        0,
        lambda r, x: e.constant(_constant_value(r["value"], _dtype(r["dtype"])), r["dtype"]),
    ),
    "unary": ({"op"}, 1, lambda r, x: e.unary(_operation(r, UNARY), x[0])),
    "binary": ({"op"}, 2, lambda r, x: e.binary(_operation(r, BINARY), x[0], x[1])),
    "select": (set(), 3, lambda r, x: e.select(*x)),
    "cast": ({"dtype"}, 1, lambda r, x: e.cast(x[0], _dtype(r["dtype"]))),
    "broadcast": ({"shape"}, 1, lambda r, x: e.broadcast_to(x[0], _shape(r))),
    "reshape": ({"shape"}, 1, lambda r, x: e.reshape(x[0], _shape(r))),
    "transpose": ({"perm"}, 1, lambda r, x: e.transpose(x[0], _integers(r["perm"], 0, e.MAX_RANK))),
    "slice": (
        {"starts", "steps", "shape"},
        1,
        lambda r, x: e.slice(x[0], _offsets(r, "starts"), _offsets(r, "steps"), _shape(r)),
    ),
    "pad": (
        {"low", "high", "value"},
        1,
        lambda r, x: e.pad(
            x[0], _shape(r, "low"), _shape(r, "high"), _constant_value(r["value"], x[0].dtype)
        ),
    ),
    "concat": ({"axis"}, None, lambda r, x: e.concat(x, _axis(r, len(x[0].shape)))),
    "iota": (
        {"shape", "dtype", "axis"},
        0,
        lambda r, x: e.iota(_shape(r), _axis(r, len(r["shape"])), _dtype(r["dtype"])),
    ),
    "take": (
        {"axis", "batch_dims"},
        2,
        lambda r, x: e.take(x[0], x[1], _axis(r, len(x[0].shape)), _integer(r["batch_dims"], 0, e.MAX_RANK)),
    ),
    "compute": ({"shape", "scalars"}, None, _read_compute),
    "reduce": ({"op", "axes", "keepdims", "last"}, 1, _read_reduce),
    "scan": (
        {"op", "axis", "exclusive", "reverse"},
        1,
        lambda r, x: e.scan(
            r["op"], x[0], _axis(r, len(x[0].shape)), _boolean(r["exclusive"]), _boolean(r["reverse"])
        ),
    ),
}
_BY_NAME = {name: kind for kind, name in _KINDS.items()}
