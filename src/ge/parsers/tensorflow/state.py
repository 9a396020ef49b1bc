"""Variables of TensorFlow graphs: initial values, and the operators that read and write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import TENSORS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.math.checks import in_range
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.bundle import Checkpoint
from ge.parsers.tensorflow.convert import EFFECTS, Context, handler
from ge.parsers.tensorflow.graph import Body, GraphNode, Library, Ref, topological
from ge.parsers.tensorflow.protos import decode
from ge.parsers.tensorflow.values import Binding, Variable, VariableSpec

__all__ = ["VariableStore", "variable_key"]

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_HANDLES = ("VarHandleOp", "VariableV2", "Variable")
_ASSIGNS = ("AssignVariableOp", "Assign")
_PASSING = ("Identity", "IdentityN", "Cast", "Reshape", "EnsureShape")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def variable_key(node: GraphNode) -> str:
    """The name under which a variable is shared."""
    return str(node.attrs.get("shared_name") or node.name)


@dataclass(frozen=True)
class _Restored:
    """A tensor of the checkpoint, or a part of it."""

    key: str
    part: str = ""


class VariableStore:
    """Values of a model's variables from its checkpoint.

    Which variable has which key is read from the graph's own restore operators, as TensorFlow would execute
    them; without them, from the checkpoint's table of objects, or from equal names.
    """

    def __init__(
        self, checkpoint: Checkpoint | None, body: Body, library: Library, restore_node: str = ""
    ) -> None:
        self.checkpoint = checkpoint
        self._keys: dict[str, _Restored] = {}
        if checkpoint is not None:
            self._keys.update(_object_keys(checkpoint))
            self._keys.update(_Tracer(library).trace(body, _restoring(body, restore_node.removesuffix(":0"))))

    def __call__(self, key: str, node: GraphNode) -> VariableSpec:
        """The variable that a node declares."""
        if self.checkpoint is None:
            raise Unsupported(
                f"the variable '{key}' has no value", "freeze the model, or give its checkpoint"
            )
        array = self._value(self.checkpoint, key, node)
        dtype = str(node.attrs.get("dtype") or array.dtype.name)
        if dtype not in TENSORS:
            raise Unsupported(f"the variable '{key}' is {dtype}, which no engine accepts")
        return VariableSpec(key, TensorDesc(tuple(array.shape), dtype), array)

    def _value(self, checkpoint: Checkpoint, key: str, node: GraphNode) -> np.ndarray:
        for name in (key, node.name):
            if name in self._keys:
                found = self._keys[name]
                return _part(checkpoint.read(found.key), found.part, key)
        for name in (key, node.name, key + _VALUE_SUFFIX):
            if name in checkpoint:
                return checkpoint.read(name)
        raise Unsupported(
            f"the checkpoint has no value for the variable '{key}'", "give the checkpoint of this graph"
        )


def _restoring(body: Body, named: str) -> list[str]:
    """The nodes that assign variables from a checkpoint: the one the file names, or any that assign."""
    if named in body.nodes:
        return [named]
    if not any(node.op == "RestoreV2" for node in body.nodes.values()):
        return []
    return [node.name for node in body.nodes.values() if node.op in _ASSIGNS]


def _part(array: np.ndarray, spec: str, name: str) -> np.ndarray:
    """The part of a tensor that a restore operator asks for, as "d0 d1 start,length:-"."""
    extents = spec.split(" ")[-1].split(":") if spec else []
    if not extents:
        return array
    region = []
    for extent in extents:
        start, _, length = extent.partition(",")
        if extent != "-" and not (start.isdigit() and length.isdigit()):
            raise GeError("E10103", f"the part '{spec}' of the variable '{name}' is malformed")
        region.append(slice(None) if extent == "-" else slice(int(start), int(start) + int(length)))
    return array[tuple(region)]


def _object_keys(checkpoint: Checkpoint) -> dict[str, _Restored]:
    """Full variable names and their keys, from the table of objects that a checkpoint may hold."""
    if _OBJECT_GRAPH not in checkpoint:
        return {}
    stored = checkpoint.read(_OBJECT_GRAPH).reshape(-1)
    if stored.dtype != object or len(stored) != 1:
        return {}
    table = decode("TrackableObjectGraph", bytes(stored[0]), checkpoint.where)
    return {
        a.full_name: _Restored(a.checkpoint_key)
        for item in table.nodes
        for a in item.attributes
        if a.full_name and a.checkpoint_key in checkpoint
    }


Symbol = Variable | _Restored | np.ndarray | None


class _Tracer:
    """Follows restore operators to the variables they are assigned to, through function calls."""

    MAX_DEPTH = 16

    def __init__(self, library: Library) -> None:
        self.library = library
        self.found: dict[str, _Restored] = {}

    def trace(self, body: Body, roots: Sequence[str]) -> dict[str, _Restored]:
        """Variable keys and what each is restored from."""
        self._body(body, roots, {}, 0)
        return self.found

    def _body(self, body: Body, roots: Sequence[str], values: dict[str, list[Symbol]], depth: int) -> None:
        order = topological(body.nodes, roots, lambda n: (*(i for i, _ in n.inputs), *n.controls))
        for name in order:
            if name not in values:
                node = body.nodes[name]
                values[name] = self._node(node, [_pick(values, ref) for ref in node.inputs], depth)

    def _node(self, node: GraphNode, inputs: list[Symbol], depth: int) -> list[Symbol]:
        if node.op in _HANDLES:
            return [Variable(variable_key(node))]
        if node.op == "Const":
            value = node.attrs.get("value")
            return [value if isinstance(value, np.ndarray) else None]
        if node.op in _PASSING:
            return inputs
        if node.op == "RestoreV2":
            return self._restored(inputs)
        if node.op in _ASSIGNS and len(inputs) > 1:
            target, value = inputs[:2]
            if isinstance(target, Variable) and isinstance(value, _Restored):
                self.found[target.name] = value
            return inputs[:1]
        if node.op in _CALLS and depth < self.MAX_DEPTH:
            return self._call(node, inputs, depth)
        return []

    def _restored(self, inputs: list[Symbol]) -> list[Symbol]:
        names, parts = (_texts(v) for v in (*inputs[1:3], None, None)[:2])
        return [_Restored(n, parts[i] if i < len(parts) else "") for i, n in enumerate(names)]

    def _call(self, node: GraphNode, inputs: list[Symbol], depth: int) -> list[Symbol]:
        ref = node.attrs.get("f")
        if ref is None or ref.name not in self.library:
            return []
        body = self.library.body(ref, node.name)
        values: dict[str, list[Symbol]] = {}
        for (name, _), value in zip(body.args, inputs, strict=False):
            values.setdefault(name, []).append(value)
        self._body(body, [*(n for n, _ in body.results), *body.effects], values, depth + 1)
        return [_pick(values, ref) for ref in body.results]


def _pick(values: Mapping[str, Sequence[Symbol]], ref: Ref) -> Symbol:
    outputs = values.get(ref[0], ())
    return outputs[ref[1]] if ref[1] < len(outputs) else None


def _texts(symbol: Symbol) -> list[str]:
    if not isinstance(symbol, np.ndarray) or symbol.dtype != object:
        return []
    return [bytes(v).decode("utf-8", "replace") for v in symbol.reshape(-1)]


# -- reading -------------------------------------------------------------------------------------------------


def _variable(c: Context, index: int = 0) -> Variable:
    found = c.binding(index)
    if not isinstance(found, Variable):
        raise GeError("E10105", f"input {index} is not a variable", node=c.node.name, operator=c.node.op)
    return found


@handler("VarHandleOp")
def _var_handle(c: Context) -> list[Binding]:
    return [c.converter.variable(variable_key(c.node), c.node)]


@handler("VariableV2", "Variable")
def _ref_variable(c: Context) -> list[Binding]:
    return [c.converter.variable(variable_key(c.node), c.node, is_ref=True)]


@handler("ReadVariableOp")
def _read(c: Context) -> list[Binding]:
    return [c.converter.read(_variable(c))]


@handler("VarIsInitializedOp", "IsVariableInitialized")
def _is_initialized(c: Context) -> list[Binding]:
    return [c.builder.constant(np.bool_(True))]


@handler("VariableShape")
def _variable_shape(c: Context) -> list[Binding]:
    shape = c.converter.spec(_variable(c)).desc.shape
    return [c.builder.constant(np.asarray(shape, str(c.attr("out_type", "int32"))))]


@handler("ResourceGather")
def _resource_gather(c: Context) -> list[Binding]:
    table, batch = c.converter.read(_variable(c)), int(c.attr("batch_dims", 0))
    indices = in_range(c.builder, c.tensor(1), desc_of(table).shape[batch : batch + 1])
    return [c.builder.op("Gather", table, indices, axis=batch, batch_dims=batch)]


@handler("ResourceGatherNd")
def _resource_gather_nd(c: Context) -> list[Binding]:
    table, indices = c.converter.read(_variable(c)), c.tensor(1)
    indices = in_range(c.builder, indices, desc_of(table).shape[: desc_of(indices).shape[-1]])
    return [c.builder.op("GatherNd", table, indices)]


@handler("DisableCopyOnRead", "DestroyResourceOp")
def _nothing(c: Context) -> list[Binding]:
    return []


# -- writing -------------------------------------------------------------------------------------------------

Update = Callable[[Context, Variable], ir.Value]


def _writes(*ops: str) -> Callable[[Update], Update]:
    """Declare operators that replace a variable's value by a function of it (a decorator)."""

    def declare(update: Update) -> Update:
        def convert(c: Context) -> list[Binding]:
            variable = _variable(c)
            c.converter.write(variable, update(c, variable))
            return [variable] if variable.is_ref else []

        handler(*ops)(convert)
        EFFECTS.update(ops)
        return update

    return declare


@_writes("AssignVariableOp", "Assign")
def _assign(c: Context, variable: Variable) -> ir.Value:
    return c.tensor(1)


@_writes("AssignAddVariableOp", "AssignAdd")
def _assign_add(c: Context, variable: Variable) -> ir.Value:
    return c.builder.op("Add", c.converter.read(variable), c.tensor(1))


@_writes("AssignSubVariableOp", "AssignSub")
def _assign_sub(c: Context, variable: Variable) -> ir.Value:
    return c.builder.op("Sub", c.converter.read(variable), c.tensor(1))


def _scatter(c: Context, variable: Variable, reduction: str, values: ir.Value) -> ir.Value:
    """Rows of a variable at given positions combined with new ones."""
    table = c.converter.read(variable)
    indices = in_range(c.builder, c.tensor(1), desc_of(table).shape[:1])
    index_desc, row = desc_of(indices), desc_of(table).shape[1:]
    spots = c.builder.op("Reshape", indices, shape=(index_desc.size, 1))
    if desc_of(spots).dtype != "int64":
        spots = c.builder.op("Cast", spots, to="int64")
    rows = c.builder.op("BroadcastTo", values, shape=(*index_desc.shape, *row))
    rows = c.builder.op("Reshape", rows, shape=(index_desc.size, *row))
    return c.builder.op("ScatterNd", table, spots, rows, reduction=reduction)


# What each operator does with the rows it meets; subtraction adds the negative.
_SCATTERS = {"Update": "none", "Add": "add", "Sub": "add", "Mul": "mul", "Max": "max", "Min": "min"}


def _declare_scatter(name: str, reduction: str) -> None:
    @_writes(f"ResourceScatter{name}", f"Scatter{name}")
    def scattered(c: Context, variable: Variable) -> ir.Value:
        values = c.builder.op("Neg", c.tensor(2)) if name == "Sub" else c.tensor(2)
        return _scatter(c, variable, reduction, values)


for _name, _reduction in _SCATTERS.items():
    _declare_scatter(_name, _reduction)


# -- generators (tf.random.Generator) whose state is a variable: lower and upper half of a counter, then a key ---

_PER_NUMBER = 256  # how far the counter moves for each number that is drawn
_SIGN = -(1 << 63)


@handler("RngReadAndSkip")
def _read_and_skip(c: Context) -> list[Binding]:
    """The state as it is; it then moves on past the numbers that will be drawn."""
    variable, b = _variable(c), c.builder
    state = c.converter.read(variable)
    if desc_of(state).shape != (3,) or desc_of(state).dtype != "int64":
        raise Unsupported(
            "the generator is not a Philox generator", "use tf.random.Generator with its defaults"
        )
    low, high, key = b.ops("Split", [state], axis=0, sizes=[1, 1, 1])
    step = b.op("Mul", b.op("Cast", c.tensor(2), to="int64"), np.int64(_PER_NUMBER))
    moved = b.op("Add", low, b.op("Reshape", step, shape=(1,)))
    before, after = (b.op("BitwiseXor", v, np.int64(_SIGN)) for v in (low, moved))  # compares as unsigned
    carried = b.op("Add", high, b.op("Cast", b.op("Less", after, before), to="int64"))
    c.converter.write(variable, b.op("Concat", moved, carried, key, axis=0))
    return [state]


EFFECTS.add("RngReadAndSkip")
