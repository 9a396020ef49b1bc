"""TensorFlow graphs and functions in one form: a body of nodes with arguments and results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ge.errors import GeError
from ge.parsers.tensorflow.tensor import FunctionRef, attribute, attributes

__all__ = [
    "ARGUMENT",
    "Body",
    "GraphNode",
    "Library",
    "Ref",
    "graph_body",
    "parse_ref",
    "topological",
    "with_absent",
]

ARGUMENT = "_Arg"  # operator of the pseudo nodes that stand for a body's arguments

Ref = tuple[str, int]
"""A node's name and the index of one of its outputs."""


@dataclass(slots=True)
class GraphNode:
    """A node with its inputs resolved to node names and output indices."""

    name: str
    op: str
    inputs: list[Ref]
    controls: list[str]
    attrs: dict[str, Any]


@dataclass
class Body:
    """Nodes with arguments and results: a graph, a function, a branch or a loop body.

    `effects` are nodes that run although nothing reads their outputs (control outputs of a function).
    """

    name: str
    nodes: dict[str, GraphNode]
    args: list[Ref] = field(default_factory=list)
    results: list[Ref] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)


_BATCH_NORM_OUTPUTS = (
    *("y", "batch_mean", "batch_variance"),
    *("reserve_space_1", "reserve_space_2", "reserve_space_3"),
)

# Output arguments of operators that have more than one, in order; "name*attr" is a list whose length is that
# attribute (an integer, or a list whose length counts). Functions refer to outputs by these names.
_OUTPUT_ARGS: dict[str, tuple[str, ...]] = {
    "ApproxTopK": ("values", "indices"),
    "FakeQuantWithMinMaxVarsGradient": ("backprops_wrt_input", "backprop_wrt_min", "backprop_wrt_max"),
    "FakeQuantWithMinMaxVarsPerChannelGradient": (
        "backprops_wrt_input",
        "backprop_wrt_min",
        "backprop_wrt_max",
    ),
    "QuantizeAndDequantizeV4Grad": ("input_backprop", "input_min_backprop", "input_max_backprop"),
    "Batch": ("batched_tensors*T", "batch_index", "id"),
    "BroadcastGradientArgs": ("r0", "r1"),
    "CombinedNonMaxSuppression": ("nmsed_boxes", "nmsed_scores", "nmsed_classes", "valid_detections"),
    "CTCGreedyDecoder": ("decoded_indices", "decoded_values", "decoded_shape", "log_probability"),
    "FractionalAvgPool": ("output", "row_pooling_sequence", "col_pooling_sequence"),
    "FractionalMaxPool": ("output", "row_pooling_sequence", "col_pooling_sequence"),
    "FusedBatchNorm": _BATCH_NORM_OUTPUTS[:5],
    "FusedBatchNormV2": _BATCH_NORM_OUTPUTS[:5],
    "FusedBatchNormV3": _BATCH_NORM_OUTPUTS,
    "_FusedBatchNormEx": _BATCH_NORM_OUTPUTS,
    "FusedBatchNormGrad": (
        "x_backprop",
        "scale_backprop",
        "offset_backprop",
        "reserve_space_3",
        "reserve_space_4",
    ),
    "FusedBatchNormGradV2": (
        "x_backprop",
        "scale_backprop",
        "offset_backprop",
        "reserve_space_3",
        "reserve_space_4",
    ),
    "FusedBatchNormGradV3": (
        "x_backprop",
        "scale_backprop",
        "offset_backprop",
        "reserve_space_4",
        "reserve_space_5",
    ),
    "GRUBlockCell": ("r", "u", "c", "h"),
    "LSTMBlockCell": ("i", "cs", "f", "o", "ci", "co", "h"),
    "BlockLSTM": ("i", "cs", "f", "o", "ci", "co", "h"),
    "BlockLSTMV2": ("i", "cs", "f", "o", "ci", "co", "h"),
    "GenerateBoundingBoxProposals": ("rois", "roi_probabilities"),
    "ListDiff": ("out", "idx"),
    "LogMatrixDeterminant": ("sign", "log_abs_determinant"),
    "Lu": ("lu", "p"),
    "MaxPoolWithArgmax": ("output", "argmax"),
    "Merge": ("output", "value_index"),
    "NonMaxSuppressionV4": ("selected_indices", "valid_outputs"),
    "NonMaxSuppressionV5": ("selected_indices", "selected_scores", "valid_outputs"),
    "Qr": ("q", "r"),
    "QuantizeV2": ("output", "output_min", "output_max"),
    "QuantizedAdd": ("z", "min_z", "max_z"),
    "QuantizedConv2D": ("output", "min_output", "max_output"),
    "QuantizedMatMul": ("out", "min_out", "max_out"),
    "Requantize": ("output", "output_min", "output_max"),
    "RequantizationRange": ("output_min", "output_max"),
    "SampleDistortedBoundingBoxV2": ("begin", "size", "bboxes"),
    "SelfAdjointEigV2": ("e", "v"),
    "SoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "SparseFillEmptyRows": ("output_indices", "output_values", "empty_row_indicator", "reverse_index_map"),
    "SparseConcat": ("output_indices", "output_values", "output_shape"),
    "SparseReorder": ("output_indices", "output_values"),
    "SparseReshape": ("output_indices", "output_shape"),
    "SparseSlice": ("output_indices", "output_values", "output_shape"),
    "StringSplit": ("indices", "values", "shape"),
    "StringSplitV2": ("indices", "values", "shape"),
    "StringNGrams": ("ngrams", "ngrams_splits"),
    "UnicodeDecode": ("row_splits", "char_values"),
    "UnicodeDecodeWithOffsets": ("row_splits", "char_values", "char_to_byte_starts"),
    "RaggedGather": ("output_nested_splits*OUTPUT_RAGGED_RANK", "output_dense_values"),
    "RaggedRange": ("rt_nested_splits", "rt_dense_values"),
    "RaggedTensorToSparse": ("sparse_indices", "sparse_values", "sparse_dense_shape"),
    "LookupTableExportV2": ("keys", "values"),
    "SparseSoftmaxCrossEntropyWithLogits": ("loss", "backprop"),
    "StatelessRandomGetKeyCounter": ("key", "counter"),
    "StatelessRandomGetKeyCounterAlg": ("key", "counter", "alg"),
    "Svd": ("s", "u", "v"),
    "Switch": ("output_false", "output_true"),
    "RefSwitch": ("output_false", "output_true"),
    "RefMerge": ("output", "value_index"),
    "TensorArrayV3": ("handle", "flow"),
    "TensorArrayGradV3": ("grad_handle", "flow_out"),
    "TensorArrayConcatV2": ("value", "lengths"),
    "TensorArrayConcatV3": ("value", "lengths"),
    "TensorListConcat": ("tensor", "lengths"),
    "TensorListConcatV2": ("tensor", "lengths"),
    "TensorListPopBack": ("output_handle", "tensor"),
    "TopK": ("values", "indices"),
    "TopKV2": ("values", "indices"),
    "Unique": ("y", "idx"),
    "UniqueV2": ("y", "idx"),
    "UniqueWithCounts": ("y", "idx", "count"),
    "UniqueWithCountsV2": ("y", "idx", "count"),
    **dict.fromkeys(
        ("LogUniformCandidateSampler", "UniformCandidateSampler", "LearnedUnigramCandidateSampler"),
        ("sampled_candidates", "true_expected_count", "sampled_expected_count"),
    ),
}


def parse_ref(text: str, where: str = "") -> Ref:
    """A graph's input reference: "node" or "node:index".

    >>> parse_ref("conv:1")
    ('conv', 1)
    """
    name, colon, index = text.partition(":")
    if not name or (colon and not (index.isascii() and index.isdigit() and len(index) < 7)):
        raise GeError("E10105", f"'{text}' does not name a tensor", node=where, remedy="use node:index")
    return name, int(index or 0)


def _graph_node(proto: Any) -> GraphNode:
    inputs = [parse_ref(i, proto.name) for i in proto.input if not i.startswith("^")]
    controls = [i[1:] for i in proto.input if i.startswith("^")]
    return GraphNode(proto.name, proto.op, inputs, controls, attributes(proto.attr))


def graph_body(graph: Any, name: str = "graph") -> Body:
    """The body of a GraphDef, without arguments and results."""
    nodes: dict[str, GraphNode] = {}
    for proto in graph.node:
        if proto.name in nodes:
            raise GeError("E10105", "the graph has two nodes of this name", node=proto.name)
        nodes[proto.name] = _graph_node(proto)
    body = Body(name, nodes)
    _check_refs(body)
    return body


def _check_refs(body: Body) -> None:
    for node in body.nodes.values():
        for name in (*(n for n, _ in node.inputs), *node.controls):
            if name not in body.nodes:
                cause = f"reads the node '{name}', which the graph does not have"
                raise GeError("E10105", cause, node=node.name, operator=node.op, location=body.name)


class Library:
    """A model's functions by name; their bodies are resolved on first use."""

    def __init__(
        self,
        functions: Iterable[Any] = (),
        structure: Callable[[Body], Body] = lambda body: body,
        producer: int = 0,
    ) -> None:
        self.producer = producer  # TensorFlow's version, as graphs number it; 0 where the model does not say
        self._structure = structure
        self._functions = {f.signature.name: f for f in functions}
        self._bodies: dict[tuple[str, str], Body] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def implements(self, name: str) -> tuple[str, dict[str, Any], tuple[int, ...]] | None:
        """The operator that a function stands for (see tf_adapter.custom_op), its attributes and absent inputs."""
        proto = self._functions.get(name)
        if proto is None or "_implements" not in proto.attr:
            return None
        try:
            said = json.loads(proto.attr["_implements"].s)
            return str(said["ge"]), dict(said["attrs"]), tuple(map(int, said.get("absent", ())))
        except (ValueError, KeyError, TypeError):
            return None

    def body(self, ref: FunctionRef | str, where: str = "") -> Body:
        """The body of a function, its attributes bound to the caller's."""
        if isinstance(ref, str):
            ref = FunctionRef(ref)
        proto = self._functions.get(ref.name)
        if proto is None:
            raise GeError("E10105", f"the function '{ref.name}' is not in the model's library", node=where)
        bound = ref.attrs or {}
        key = (ref.name, repr(sorted((k, str(bound[k])) for k in bound if not k.startswith("_"))))
        if key not in self._bodies:
            self._bodies[key] = self._structure(_FunctionReader(self, proto, bound).read())
        return self._bodies[key]

    def output_args(self, op: str) -> tuple[str, ...] | None:
        """Names of an operator's output arguments when it has several, or of a function's."""
        if op in self._functions:
            return tuple(a.name for a in self._functions[op].signature.output_arg)
        return _OUTPUT_ARGS.get(op)


def with_absent(given: Sequence[Any], absent: Sequence[int]) -> list[Any]:
    """Inputs with None in the places of absent ones.

    >>> with_absent(["a", "b"], [0, 2])
    [None, 'a', None, 'b']
    """
    found = list(given)
    for place in sorted(absent):
        found.insert(place, None)
    return found


class _FunctionReader:
    """Turns a FunctionDef into a body: output names become indices, arguments become pseudo nodes."""

    def __init__(self, library: Library, proto: Any, bound: Mapping[str, Any]) -> None:
        self.library = library
        self.proto = proto
        self.bound = bound
        self.name = proto.signature.name
        self.nodes: dict[str, GraphNode] = {}

    def read(self) -> Body:
        body = Body(self.name, self.nodes)
        for arg in self.proto.signature.input_arg:
            count = self._count(arg)
            self.nodes[arg.name] = GraphNode(arg.name, ARGUMENT, [], [], {"count": count})
            body.args += [(arg.name, i) for i in range(count)]
        self._read_nodes()
        for arg in self.proto.signature.output_arg:
            base = self._ref(self._ret(arg.name))
            body.results += [(base[0], base[1] + i) for i in range(self._count(arg))]
        body.effects = sorted(set(self.proto.control_ret.values()))
        for name, _ in body.results:
            self._known(name, "a result")
        for name in body.effects:
            self._known(name, "a control output")
        _check_refs(body)
        return body

    def _read_nodes(self) -> None:
        for node in self.proto.node_def:
            if node.name in self.nodes:
                raise self._malformed(f"has two nodes named '{node.name}'")
            self.nodes[node.name] = GraphNode(node.name, node.op, [], [], attributes(node.attr, self.bound))
        for node in self.proto.node_def:
            made = self.nodes[node.name]
            made.inputs = [self._ref(i) for i in node.input if not i.startswith("^")]
            made.controls = [i[1:] for i in node.input if i.startswith("^")]

    def _count(self, arg: Any) -> int:
        """How many tensors an argument stands for."""
        name = arg.number_attr or arg.type_list_attr
        if not name:
            return 1
        value = attribute(self.bound[name]) if name in self.bound else None
        if isinstance(value, int) and 0 <= value < 1 << 16:
            return value
        if isinstance(value, list):
            return len(value)
        raise self._malformed(f"has the argument '{arg.name}' of unknown length")

    def _ret(self, name: str) -> str:
        if name not in self.proto.ret:
            raise self._malformed(f"does not say what its result '{name}' is")
        return str(self.proto.ret[name])

    def _ref(self, text: str) -> Ref:
        """A function's reference: "argument", "argument:i" or "node:output:i"."""
        name, *rest = text.split(":")
        node = self.nodes.get(name)
        if node is None:
            raise self._malformed(f"reads '{text}', which it does not have")
        index = (
            int(rest[-1]) if rest and rest[-1].isascii() and rest[-1].isdigit() and len(rest[-1]) < 7 else 0
        )
        if node.op == ARGUMENT or len(rest) < 2:
            return name, index
        return name, self._flat_index(node, rest[0], index)

    def _flat_index(self, node: GraphNode, output: str, index: int) -> int:
        outputs = self.library.output_args(node.op)
        if outputs is None or len(outputs) < 2:
            return index
        before = 0
        for declared in outputs:
            name, _, attr = declared.partition("*")
            if name == output:
                return before + index
            length = node.attrs.get(attr, 1) if attr else 1
            before += len(length) if isinstance(length, list) else int(length)
        raise self._malformed(f"reads the output '{output}' of {node.op}, which has {', '.join(outputs)}")

    def _known(self, name: str, what: str) -> None:
        if name not in self.nodes:
            raise self._malformed(f"names '{name}' as {what}, which it does not have")

    def _malformed(self, cause: str) -> GeError:
        return GeError("E10105", f"the function '{self.name}' {cause}")


def topological(
    nodes: Mapping[str, GraphNode], roots: Sequence[str], depends: Callable[[GraphNode], Iterable[str]]
) -> list[str]:
    """The roots and all they depend on, dependencies first; a cycle raises GeError."""
    order: list[str] = []
    finished: dict[str, bool] = {}  # False while its dependencies are being visited
    for root in roots:
        stack = [root]
        while stack:
            name = stack[-1]
            if name in finished:
                stack.pop()
                if not finished[name]:
                    finished[name] = True
                    order.append(name)
                continue
            finished[name] = False
            node = nodes.get(name)
            if node is None:
                raise GeError("E10105", f"the node '{name}' is inside a loop and is read from outside of it")
            for before in depends(node):
                if before not in finished:
                    stack.append(before)
                elif not finished[before]:
                    raise GeError(
                        "E10106", f"the graph has a cycle through '{before}'", node=name, operator=node.op
                    )
    return order
