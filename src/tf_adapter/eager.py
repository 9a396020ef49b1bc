"""Eager operators on the NPU: decides which are worth compiling, and compiles them as single-node models.

The device calls `classify` once for every operator type and `compile_op` once for every signature that comes back often
enough (`options.eager_threshold` calls); it keeps the answers. What gains nothing from the NPU runs with TensorFlow's
own kernel on the same memory: views (TensorFlow shares the memory, a model would copy it), shapes, strings, state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2, graph_pb2, op_def_pb2, types_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.versions import GRAPH_DEF_VERSION

import ge.ops  # noqa: F401  (declares operators and plugins)
from ge import faults
from ge.collection import compile_scope
from ge.compiler import compile_graph
from ge.errors import OutOfMemoryError, UserCodeError
from ge.ir.types import TensorDesc
from ge.ops.plugins import find
from ge.parsers.tensorflow.parser import Attempt, Parsed, attempt_graph
from npu_runtime import tensorflow as native
from tf_adapter.device import runs_everything
from tf_adapter.gpu import program_of
from tf_adapter.options import options

__all__ = ["classify", "compile_op", "is_supported", "unsupported"]

SPECIAL_SIZE = 64  # elements of an input whose value may become part of a model

_VIEWS = frozenset(
    {"Reshape", "ExpandDims", "Squeeze", "Identity", "StopGradient", "PreventGradient", "Bitcast"}
)
_SLICES = frozenset({"StridedSlice", "Slice", "Split", "SplitV", "Unpack"})
_SHAPES = frozenset(
    {"Shape", "ShapeN", "Size", "Rank", "BroadcastArgs", "BroadcastGradientArgs", "InvertPermutation"}
    | {"Fill", "Range", "LinSpace", "ConcatOffset", "EnsureShape"}
)
# TensorFlow's kernels raise for an index that is out of range; a model takes it as the nearest one.
_INDEXED = frozenset(
    {
        "Gather",
        "GatherV2",
        "GatherNd",
        "ScatterNd",
        "TensorScatterUpdate",
        "TensorScatterAdd",
        "TensorScatterSub",
    }
    | {"TensorScatterMax", "TensorScatterMin", "SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin"}
    | {"SegmentProd", "UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"}
    | {"SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN", "DynamicStitch", "ReverseSequence"}
)
# TensorFlow's kernels raise for a whole number divided by zero; a model gives zero.
_DIVISIONS = frozenset({"FloorDiv", "Div", "TruncateDiv", "FloorMod", "Mod", "TruncateMod"})
_HANDLES = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})
_ON_HOST = _VIEWS | _SLICES | _SHAPES | _INDEXED


def unsupported(op: str, reason: str) -> tf.errors.UnimplementedError:
    """The error of an operator that only the host could run, where it must not."""
    return tf.errors.UnimplementedError(
        None,
        None,
        f"Op type '{op}' is not supported on NPU: {reason}. Place it with tf.device('/CPU:0'), or set "
        "tf_adapter.options.allow_host_fallback = True to run it on the host.",
    )


def classify(op: str) -> tuple[bool, bool]:
    """Whether an operator is worth a model, and whether its attributes follow from its inputs.

    >>> classify("AddV2"), classify("MatMul"), classify("Reshape"), classify("RandomUniform")
    ((True, True), (True, False), (False, False), (False, False))
    """
    definition = op_def_registry.get(op)
    if definition is None or definition.is_stateful or not definition.input_arg:
        return False, False
    if not runs_everything() and op in _ON_HOST:
        return False, False
    if find("tensorflow", op) is None:
        return False, False
    return True, _attrs_follow(definition)


def is_supported(op: str) -> bool:
    """Whether the NPU runs an operator, or it is one of those that only hold or hand on what the host has.

    >>> is_supported("AddV2"), is_supported("Reshape"), is_supported("StringJoin"), is_supported("IteratorGetNext")
    (True, True, False, True)
    """
    definition = op_def_registry.get(op)
    if definition is None or definition.is_stateful or find("tensorflow", op) is not None:
        return True
    arguments = [*definition.input_arg, *definition.output_arg]
    return any(arg.type in _HANDLES for arg in arguments)


def _attrs_follow(definition: op_def_pb2.OpDef) -> bool:
    """Whether the types and numbers of the inputs decide all attributes."""
    if any(arg.number_attr or arg.type_list_attr for arg in definition.input_arg):
        return False  # inputs in lists: where one ends is an attribute
    known = {arg.type_attr for arg in definition.input_arg}
    return all(attr.name in known for attr in definition.attr)


@compile_scope()
def compile_op(op: str, attrs: bytes, inputs: Sequence[native.Described]) -> native.FunctionPlan | None:
    """A model of one operator, or None where the host is to run it."""
    strange = next((given for given in inputs if given.kind != "tensor"), None)
    if strange is not None:
        if not options.allow_host_fallback and strange.type_number not in _HANDLES:
            raise unsupported(op, f"no engine accepts {tf.dtypes.as_dtype(strange.type_number).name}")
        return None
    if op in _DIVISIONS and "int" in inputs[0].dtype and not runs_everything():
        return None
    try:
        return _compile(op, attrs, inputs)
    except OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    except UserCodeError as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    except faults.REFUSALS:
        return None  # the host's kernel decides, and says what is wrong where something is
    except Exception as error:
        faults.absorb(f"operator {op}", error)
        return None


def _compile(op: str, attrs: bytes, inputs: Sequence[native.Described]) -> native.FunctionPlan | None:
    graph, count = _one_node(op, attrs, inputs)
    special: set[int] = set()
    attempt = _attempt(graph, inputs, special, count)
    while attempt.parsed is None:
        wanted = {int(name[2:]) for name in attempt.needs} - special
        if not wanted or any(math.prod(inputs[i].shape) > SPECIAL_SIZE for i in wanted):
            return None
        special |= wanted
        attempt = _attempt(graph, inputs, special, count)
    if len(special) == len(inputs):
        return None  # a constant
    return _plan(op, attempt.parsed, special, count)


def _plan(op: str, parsed: Parsed, special: set[int], count: int) -> native.FunctionPlan:
    order = [value.name or "" for value in parsed.graph.inputs]
    model = compile_graph(parsed.graph, options.compile_options(), op)
    outputs = [("output", j, port.desc.dtype, port.desc.shape) for j, port in enumerate(model.outputs)]
    return native.FunctionPlan(
        program_of(model),
        [("input", int(name[2:])) for name in order],
        outputs[:count],
        specialised=sorted(special),
        name=op,
    )


def _one_node(op: str, attrs: bytes, inputs: Sequence[native.Described]) -> tuple[graph_pb2.GraphDef, int]:
    """The operator as a graph, and how many results it has."""
    graph = graph_pb2.GraphDef()
    graph.versions.producer = GRAPH_DEF_VERSION
    for i, given in enumerate(inputs):
        node = graph.node.add(name=f"in{i}", op="Placeholder")
        node.attr["dtype"].type = given.type_number
    given_attrs = attr_value_pb2.NameAttrList.FromString(attrs).attr
    node = graph.node.add(name="op", op=op, input=[f"in{i}" for i in range(len(inputs))])
    definition = op_def_registry.get(op)
    for attr in definition.attr:
        if attr.name in given_attrs:
            node.attr[attr.name].CopyFrom(given_attrs[attr.name])
        elif attr.HasField("default_value"):
            node.attr[attr.name].CopyFrom(attr.default_value)
    _fill_types(definition, node.attr, inputs)
    return graph, sum(_results(arg, node.attr) for arg in definition.output_arg)


def _fill_types(definition: op_def_pb2.OpDef, attrs: object, inputs: Sequence[native.Described]) -> None:
    """Types of single inputs, where the call did not say them."""
    if any(arg.number_attr or arg.type_list_attr for arg in definition.input_arg):
        return
    for arg, given in zip(definition.input_arg, inputs, strict=False):
        if arg.type_attr and attrs[arg.type_attr].type == types_pb2.DT_INVALID:  # type: ignore[index]
            attrs[arg.type_attr].type = given.type_number  # type: ignore[index]


def _results(arg: op_def_pb2.OpDef.ArgDef, attrs: object) -> int:
    if arg.number_attr:
        return int(attrs[arg.number_attr].i)  # type: ignore[index]
    if arg.type_list_attr:
        return len(attrs[arg.type_list_attr].list.type)  # type: ignore[index]
    return 1


def _attempt(
    graph: graph_pb2.GraphDef, inputs: Sequence[native.Described], special: set[int], count: int
) -> Attempt:
    return attempt_graph(
        graph,
        inputs={f"in{i}": TensorDesc(g.shape, g.dtype) for i, g in enumerate(inputs) if i not in special},
        outputs=[f"op:{j}" for j in range(count)],
        constants={f"in{i}": inputs[i].numpy() for i in special},
        name=graph.node[-1].op,
    )
