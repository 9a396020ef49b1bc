"""Maps TensorFlow Lite's operators to one or a few TensorFlow nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.nn.recurrent_training import CELLS, layer
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import Context, Outputs, handler
from ge.parsers.tensorflow.graph import Ref
from ge.parsers.tensorflow.protos import decode
from ge.parsers.tensorflow.tensor import attributes
from ge.parsers.tflite.flatbuffer import flexible_map, flexible_strings

if TYPE_CHECKING:
    from ge.parsers.tflite.subgraph import Operation

__all__ = ["NAMES", "OPTIONS", "RAW", "convert"]

# The builtin operators, in the order of their numbers.
_NUMBERED = """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
    EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
    LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
    RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM
    EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
    TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN
    EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX
    MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV
    SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT
    REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
    REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU
    SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU
    REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
    NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
    PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
    HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
    READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM
    MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
    UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
"""
NAMES = tuple(_NUMBERED.split())

# "operator TensorFlow's-operator [options: attribute ...]", an attribute as name=field where the names differ. Inputs
# are the same in both, in the same order.
_SAME = """
    ABS Abs | CEIL Ceil | COS Cos | ELU Elu | EXP Exp | FLOOR Floor | LOG Log | LOGICAL_NOT LogicalNot
    LOGISTIC Sigmoid | NEG Neg | RELU Relu | RELU6 Relu6 | ROUND Round | RSQRT Rsqrt | SIGN Sign | SIN Sin
    SQRT Sqrt | SQUARE Square | TANH Tanh | ZEROS_LIKE ZerosLike | RANK Rank | LOG_SOFTMAX LogSoftmax
    QUANTIZE Identity | MAXIMUM Maximum | MINIMUM Minimum | POW Pow | FLOOR_DIV FloorDiv
    FLOOR_MOD FloorMod | SQUARED_DIFFERENCE SquaredDifference | ATAN2 Atan2 | EQUAL Equal
    NOT_EQUAL NotEqual | LESS Less | LESS_EQUAL LessEqual | GREATER Greater | GREATER_EQUAL GreaterEqual
    LOGICAL_AND LogicalAnd | LOGICAL_OR LogicalOr | BITWISE_XOR BitwiseXor | RIGHT_SHIFT RightShift
    MEAN Mean Reducer keep_dims | SUM Sum Reducer keep_dims | REDUCE_PROD Prod Reducer keep_dims
    REDUCE_MAX Max Reducer keep_dims | REDUCE_MIN Min Reducer keep_dims | REDUCE_ANY Any Reducer keep_dims
    REDUCE_ALL All Reducer keep_dims | EXPAND_DIMS ExpandDims | TRANSPOSE Transpose | PAD Pad | PADV2 PadV2
    TILE Tile | SLICE Slice | GATHER_ND GatherNd | SCATTER_ND ScatterNd | REVERSE_V2 ReverseV2
    REVERSE_SEQUENCE ReverseSequence ReverseSequence seq_dim batch_dim | BROADCAST_TO BroadcastTo
    BROADCAST_ARGS BroadcastArgs | FILL Fill | RANGE Range | ONE_HOT OneHot Axis axis | WHERE Where
    SELECT Select | SELECT_V2 SelectV2 | TOPK_V2 TopKV2 | SPACE_TO_DEPTH SpaceToDepth Block block_size
    DEPTH_TO_SPACE DepthToSpace Block block_size | SPACE_TO_BATCH_ND SpaceToBatchND
    BATCH_TO_SPACE_ND BatchToSpaceND
    RESIZE_BILINEAR ResizeBilinear ResizeBilinear align_corners half_pixel_centers
    RESIZE_NEAREST_NEIGHBOR ResizeNearestNeighbor ResizeNearest align_corners half_pixel_centers
    CUMSUM Cumsum Cumsum exclusive reverse | MATRIX_DIAG MatrixDiag | MATRIX_SET_DIAG MatrixSetDiag
    UNIQUE Unique Unique out_idx=type | SEGMENT_SUM SegmentSum | UNSORTED_SEGMENT_SUM UnsortedSegmentSum
    UNSORTED_SEGMENT_MAX UnsortedSegmentMax | UNSORTED_SEGMENT_MIN UnsortedSegmentMin
    UNSORTED_SEGMENT_PROD UnsortedSegmentProd | ADD_N AddN | SPARSE_TO_DENSE SparseToDense
    LEAKY_RELU LeakyRelu Leaky alpha | BATCH_MATMUL BatchMatMulV2 BatchMatMul adj_x adj_y
    PACK Pack Pack axis | UNPACK Unpack Pack num axis | SPLIT Split Split num_split=num
    SPLIT_V SplitV Split num_split=num | SHAPE Shape Type out_type=type
    ARG_MAX ArgMax Type output_type=type | ARG_MIN ArgMin Type output_type=type
    FAKE_QUANT FakeQuantWithMinMaxArgs FakeQuant min max num_bits narrow_range
    BUCKETIZE Bucketize Bucketize boundaries
    SQUEEZE Squeeze Squeeze squeeze_dims | RFFT2D RFFT2D | COMPLEX_ABS ComplexAbs | REAL Real | IMAG Imag
"""
# Which table of flatbuffer.TABLES holds an operator's options.
OPTIONS: dict[str, str] = {}
# Operators that take 8-bit tensors as the integers they are stored as.
RAW = {"CAST", "BITCAST", "IF", "WHILE", "CALL"}
_ACTIVATIONS = {0: "", 1: "Relu", 2: "RELU_N1_TO_1", 3: "Relu6", 4: "Tanh"}
_PADDINGS = ("SAME", "VALID")

Converted = Ref | Sequence[Ref]
_CONVERSIONS: dict[str, Callable[[Operation], Converted]] = {}


def convert(op: Operation) -> list[Ref]:
    """The results of an operator; one that is not known becomes a node that the TensorFlow parser reports."""
    found = _CONVERSIONS.get("FLEX" if op.type.startswith("Flex") else op.type)
    made = op.emit(op.type, *op.refs()) if found is None else found(op)
    return list(made) if isinstance(made, list) else [made]  # type: ignore[list-item]


def _lite(*names: str, options: str = "None") -> Callable[[Callable[[Operation], Converted]], Any]:
    def declare(function: Callable[[Operation], Converted]) -> Callable[[Operation], Converted]:
        for name in names:
            _CONVERSIONS[name] = function
            OPTIONS[name] = options
        return function

    return declare


def _ints(values: list[Any]) -> np.ndarray:
    return np.array(values, np.int32)


def _declare_same(row: str) -> None:
    name, kind, options, *attrs = [*row.split(), "None"][: max(3, len(row.split()))]
    pairs = [(a.partition("=")[0], a.partition("=")[2] or a) for a in attrs]

    def same(op: Operation) -> Converted:
        values = {attr: op.option(field) for attr, field in pairs}
        first = op.emit(kind, *op.refs(), **values)
        return [(first[0], i) for i in range(len(op.outputs))]

    _CONVERSIONS[name] = same
    OPTIONS[name] = options


for _line in _SAME.strip().splitlines():
    for _row in _line.split("|"):
        _declare_same(_row)


# -- arithmetic ----------------------------------------------------------------------------------------------


def _activated(op: Operation, x: Ref) -> Ref:
    """A result through the activation that the operator's options name."""
    code = int(op.option("activation"))
    if code not in _ACTIVATIONS:
        raise op.refused(f"its activation {code} is not known")
    kind = _ACTIVATIONS[code]
    if kind == "RELU_N1_TO_1":
        return _clipped(op, x, -1.0)
    return op.emit(kind, x) if kind else x


def _clipped(op: Operation, x: Ref, low: float) -> Ref:
    return op.emit("Minimum", op.emit("Maximum", x, np.float32(low)), np.float32(1))


@_lite("ADD", "SUB", "MUL", "DIV", options="Activation")
def _binary(op: Operation) -> Converted:
    kind = {"ADD": "AddV2", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}[op.type]
    return _activated(op, op.emit(kind, *op.refs()))


@_lite("RELU_N1_TO_1", "RELU_0_TO_1")
def _bounded(op: Operation) -> Converted:
    return _clipped(op, op.ref(0), -1.0 if op.type == "RELU_N1_TO_1" else 0.0)


@_lite("HARD_SWISH")
def _hard_swish(op: Operation) -> Converted:
    gate = op.emit("Relu6", op.emit("AddV2", op.ref(0), np.float32(3)))
    return op.emit("Mul", op.ref(0), op.emit("Mul", gate, np.float32(1 / 6)))


@_lite("GELU", options="Gelu")
def _gelu(op: Operation) -> Converted:
    x = op.ref(0)
    if op.option("approximate"):
        cube = op.emit("Mul", op.emit("Mul", op.emit("Mul", x, x), x), np.float32(0.044715))
        inner = op.emit("Mul", op.emit("AddV2", x, cube), np.float32(math.sqrt(2 / math.pi)))
        gate = op.emit("Tanh", inner)
    else:
        gate = op.emit("Erf", op.emit("Mul", x, np.float32(math.sqrt(0.5))))
    half = op.emit("Mul", x, np.float32(0.5))
    return op.emit("Mul", half, op.emit("AddV2", gate, np.float32(1)))


@_lite("PRELU")
def _prelu(op: Operation) -> Converted:
    below = op.emit("Mul", op.emit("Minimum", op.ref(0), np.float32(0)), op.ref(1))
    return op.emit("AddV2", op.emit("Relu", op.ref(0)), below)


@_lite("SOFTMAX", options="Softmax")
def _softmax(op: Operation) -> Converted:
    beta = float(op.option("beta"))
    return op.emit("Softmax", op.ref(0) if beta == 1 else op.emit("Mul", op.ref(0), np.float32(beta)))


@_lite("L2_NORMALIZATION", options="Activation")
def _l2_normalisation(op: Operation) -> Converted:
    squares = op.emit("Sum", op.emit("Square", op.ref(0)), _ints([-1]), keep_dims=True)
    length = op.emit("Maximum", op.emit("Sqrt", squares), np.float32(1e-6))
    return _activated(op, op.emit("Div", op.ref(0), length))


@_lite("LOCAL_RESPONSE_NORMALIZATION", options="LocalResponse")
def _local_response(op: Operation) -> Converted:
    attrs = {name: float(op.option(name)) for name in ("bias", "alpha", "beta")}
    return op.emit("LRN", op.ref(0), depth_radius=int(op.option("radius")), **attrs)


@_lite("DEQUANTIZE")
def _dequantised(op: Operation) -> Converted:
    return op.emit("Cast", op.ref(0), SrcT=op.inputs[0].float_type, DstT=op.outputs[0].dtype)


# -- layers --------------------------------------------------------------------------------------------------


def _window(op: Operation, *axes: str) -> dict[str, Any]:
    return {
        "strides": [1, *(int(op.option(f"stride_{a}")) for a in axes), 1],
        "padding": _PADDINGS[op.option("padding")],
    }


def _dilated(op: Operation, *axes: str) -> dict[str, Any]:
    return {**_window(op, *axes), "dilations": [1, *(int(op.option(f"dilation_{a}")) for a in axes), 1]}


def _with_bias(op: Operation, x: Ref, index: int = 2) -> Ref:
    return _activated(op, op.emit("BiasAdd", x, op.ref(index)) if op.has(index) else x)


@_lite("CONV_2D", options="Conv2D")
def _convolution(op: Operation) -> Converted:
    weight = op.emit("Transpose", op.ref(1), _ints([1, 2, 3, 0]))
    return _with_bias(op, op.emit("Conv2D", op.ref(0), weight, **_dilated(op, "h", "w")))


@_lite("DEPTHWISE_CONV_2D", options="DepthwiseConv2D")
def _depthwise(op: Operation) -> Converted:
    _, height, width, channels = op.shape(1)
    multiplier = max(1, int(op.option("multiplier")))
    if op.inputs[0].shape:
        multiplier = channels // op.shape(0)[-1]
    shape = _ints([height, width, channels // multiplier, multiplier])
    weight = op.emit("Reshape", op.ref(1), shape)
    return _with_bias(op, op.emit("DepthwiseConv2dNative", op.ref(0), weight, **_dilated(op, "h", "w")))


@_lite("TRANSPOSE_CONV", options="TransposeConv")
def _transposed(op: Operation) -> Converted:
    weight = op.emit("Transpose", op.ref(1), _ints([1, 2, 0, 3]))
    y = op.emit("Conv2DBackpropInput", op.ref(0), weight, op.ref(2), **_window(op, "h", "w"))
    return _with_bias(op, y, 3)


@_lite("CONV_3D", "CONV_3D_TRANSPOSE", options="Conv3D")
def _volumes(op: Operation) -> Converted:
    kind = "Conv3D" if op.type == "CONV_3D" else "Conv3DBackpropInputV2"
    first = 2 if kind == "Conv3D" else 3
    y = op.emit(kind, *(op.ref(i) for i in range(first)), **_dilated(op, "d", "h", "w"))
    return _with_bias(op, y, first)


@_lite("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D", options="Pool2D")
def _pool(op: Operation) -> Converted:
    attrs = {**_window(op, "h", "w"), "ksize": [1, int(op.option("height")), int(op.option("width")), 1]}
    if op.type == "L2_POOL_2D":
        mean = op.emit("AvgPool", op.emit("Square", op.ref(0)), **attrs)
        return _activated(op, op.emit("Sqrt", mean))
    return _activated(op, op.emit("MaxPool" if op.type == "MAX_POOL_2D" else "AvgPool", op.ref(0), **attrs))


@_lite("FULLY_CONNECTED", options="FullyConnected")
def _fully_connected(op: Operation) -> Converted:
    if op.option("weights_format"):
        raise op.refused("its weights are shuffled for one processor", "convert the model without that")
    x, rank = op.ref(0), len(op.shape(0))
    if rank != 2 and op.option("keep_num_dims"):
        return _with_bias(op, op.emit("BatchMatMulV2", x, op.ref(1), adj_y=True))
    if rank != 2:
        x = op.emit("Reshape", x, _ints([-1, op.shape(1)[1]]))
    return _with_bias(op, op.emit("MatMul", x, op.ref(1), transpose_b=True))


@_lite("EMBEDDING_LOOKUP")
def _embedding(op: Operation) -> Converted:
    return op.emit("GatherV2", op.ref(1), op.ref(0), np.int32(0))


# -- moving --------------------------------------------------------------------------------------------------


@_lite("RESHAPE", options="Reshape")
def _reshape(op: Operation) -> Converted:
    shape = op.ref(1) if op.has(1) else _ints(op.option("new_shape"))
    return op.emit("Reshape", op.ref(0), shape)


@_lite("CONCATENATION", options="Concatenation")
def _concatenation(op: Operation) -> Converted:
    return _activated(op, op.emit("ConcatV2", *op.refs(), np.int32(op.option("axis")), N=len(op.inputs)))


@_lite("GATHER", options="Gather")
def _gather(op: Operation) -> Converted:
    axis = np.int32(op.option("axis"))
    return op.emit("GatherV2", op.ref(0), op.ref(1), axis, batch_dims=int(op.option("batch_dims")))


@_lite("STRIDED_SLICE", options="StridedSlice")
def _strided_slice(op: Operation) -> Converted:
    """With `offset`, ends count from the begins."""
    x, begin, end, strides = op.refs()
    if op.option("offset"):
        end = op.emit("AddV2", begin, end)
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    return op.emit("StridedSlice", x, begin, end, strides, **{name: op.option(name) for name in names})


@_lite("MIRROR_PAD", options="Mirror")
def _mirrored(op: Operation) -> Converted:
    return op.emit("MirrorPad", *op.refs(), mode=("REFLECT", "SYMMETRIC")[op.option("mode")])


@_lite("CAST", "BITCAST")
def _cast(op: Operation) -> Converted:
    if op.type == "BITCAST":
        return op.emit("Bitcast", op.ref(0), type=op.outputs[0].dtype)
    return op.emit("Cast", op.ref(0), SrcT=op.inputs[0].dtype, DstT=op.outputs[0].dtype)


# -- detection ---------------------------------------------------------------------------------------------------


@_lite("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def _non_max_suppression(op: Operation) -> Converted:
    """The results have room for the largest number of boxes, with zeros behind those that are kept."""
    kind = f"NonMaxSuppression{op.type[-2:]}"
    first = op.emit(kind, *op.refs(), pad_to_max_output_size=True)
    return [(first[0], i) for i in range(len(op.outputs))]


_DETECTION = (
    *(
        "max_detections",
        "max_classes_per_detection",
        "num_classes",
        "nms_score_threshold",
        "nms_iou_threshold",
    ),
    *("y_scale", "x_scale", "h_scale", "w_scale"),
)


@_lite("TFLite_Detection_PostProcess")
def _detection(op: Operation) -> Converted:
    """Decodes boxes (1, N, 4) against anchors (N, 4) and keeps the best: boxes, classes, scores, and how many.

    1. By default, boxes compete by the best score of any class, and each kept one gives its best classes.
    2. With `use_regular_nms`, boxes compete within each class, and the best of all classes are kept.
    """
    options = flexible_map(bytes(op.table.custom_options), op.reader.where)
    if absent := [name for name in _DETECTION if name not in options]:
        raise op.refused(f"its options lack {', '.join(absent)}", "export the model again")
    if [len(tensor.shape) for tensor in op.inputs] != [3, 3, 2] or op.shape(0)[0] != 1:
        raise op.refused("it does not read boxes and scores of one image, and anchors")
    boxes = _decoded_boxes(op, options)
    scores = op.ref(1)
    given, wanted = op.shape(1)[2], int(options["num_classes"])
    if given - wanted not in (0, 1):
        raise op.refused(f"it has scores of {given} classes for {wanted}")
    if given != wanted:  # the first class is the background
        size = _ints([1, op.shape(1)[1], wanted])
        scores = op.emit("Slice", scores, _ints([0, 0, given - wanted]), size)
    # A score at the threshold is kept.
    least = np.nextafter(np.float32(options["nms_score_threshold"]), np.float32(-np.inf))
    overlap = np.float32(options["nms_iou_threshold"])
    most = int(options["max_detections"])
    if options.get("use_regular_nms"):
        each = np.int32(min(int(options.get("detections_per_class", 100)), most))
        first = op.emit(
            "CombinedNonMaxSuppression", op.emit("ExpandDims", boxes, np.int32(2)), scores, each, np.int32(most),
            overlap, least, clip_boxes=False, pad_per_class=False,
        )  # fmt: skip
        found, kept, classes, count = ((first[0], i) for i in range(4))
        return [found, classes, kept, op.emit("Cast", count, SrcT="int32", DstT="float32")]
    per_box = int(options["max_classes_per_detection"])
    return _by_best_class(op, boxes, scores, wanted, (overlap, least), most, per_box)


def _decoded_boxes(op: Operation, options: dict[str, Any]) -> Ref:
    """Boxes (1, N, 4) as y1, x1, y2, x2 from centres and sizes relative to those of anchors."""
    scale = np.array([options[f"{axis}_scale"] for axis in "yxhw"], np.float32)
    moved = op.emit("Div", op.ref(0), scale)
    anchors = op.emit("ExpandDims", op.ref(2), np.int32(0))
    (centres, sizes), (anchor_centres, anchor_sizes) = (
        [(op.emit("Split", np.int32(2), x, num_split=2)[0], i) for i in range(2)] for x in (moved, anchors)
    )
    centre = op.emit("AddV2", op.emit("Mul", centres, anchor_sizes), anchor_centres)
    half = op.emit("Mul", op.emit("Mul", op.emit("Exp", sizes), anchor_sizes), np.float32(0.5))
    corners = op.emit("Sub", centre, half), op.emit("AddV2", centre, half)
    return op.emit("ConcatV2", *corners, np.int32(2), N=2)


def _by_best_class(
    op: Operation, boxes: Ref, scores: Ref, classes: int, thresholds: tuple[Any, Any], most: int, per_box: int
) -> Converted:
    classes = min(per_box, classes)
    ranked = op.emit("TopKV2", op.emit("Squeeze", scores, squeeze_dims=[0]), np.int32(classes))[0]
    best, which = (ranked, 0), op.emit("Cast", (ranked, 1), SrcT="int32", DstT="float32")
    boxes = op.emit("Squeeze", boxes, squeeze_dims=[0])
    first = op.emit("Max", best, _ints([1]))
    chosen = op.emit(
        "NonMaxSuppressionV4", boxes, first, np.int32(most), *thresholds, pad_to_max_output_size=True
    )[0]
    is_kept = op.emit("Less", np.arange(most, dtype=np.int32), (chosen, 1))
    is_kept = op.emit("ExpandDims", is_kept, np.int32(1))

    def rows(x: Ref) -> Ref:
        return op.emit("SelectV2", is_kept, op.emit("GatherV2", x, (chosen, 0), np.int32(0)), np.float32(0))

    found = op.emit("Tile", op.emit("ExpandDims", rows(boxes), np.int32(1)), _ints([1, per_box, 1]))
    absent = per_box - classes
    padded = [op.emit("Pad", rows(x), _ints([[0, 0], [0, absent]])) for x in (which, best)]
    flat = [op.emit("Reshape", x, _ints([1, most * per_box, *([4] if i == 0 else [])]))
            for i, x in enumerate((found, *padded))]  # fmt: skip
    count = op.emit("Cast", (chosen, 1), SrcT="int32", DstT="float32")
    return [*flat, op.emit("Reshape", count, _ints([1]))]


# -- control -------------------------------------------------------------------------------------------------


@_lite("IF", "WHILE", options="Branches")
def _control(op: Operation) -> Converted:
    names = ("then_branch", "else_branch") if op.type == "IF" else ("cond", "body")
    bodies = (op.body(int(op.option(f))) for f in ("first", "second"))
    first = op.emit("If" if op.type == "IF" else "While", *op.refs(), **dict(zip(names, bodies, strict=True)))
    return [(first[0], i) for i in range(len(op.outputs))]


@_lite("FLEX")
def _selected(op: Operation) -> Converted:
    """An operator of TensorFlow's own, with TensorFlow's node among its options."""
    name, node = flexible_strings(bytes(op.table.custom_options), op.reader.where)
    attrs = attributes(decode("NodeDef", node, op.name).attr)
    first = op.emit(name.decode(), *op.refs(), **attrs)
    return [(first[0], i) for i in range(len(op.outputs))]


# -- recurrence ----------------------------------------------------------------------------------------------

_LSTM = "_LiteLSTM"  # a node that only this parser makes


@_lite("UNIDIRECTIONAL_SEQUENCE_LSTM", options="SequenceLSTM")
def _sequence_lstm(op: Operation) -> Converted:
    return _activated_lstm(op, range(1, 9), range(9, 12), range(12, 16), False)


@_lite("BIDIRECTIONAL_SEQUENCE_LSTM", options="BidirectionalLSTM")
def _bidirectional_lstm(op: Operation) -> Converted:
    forward = _activated_lstm(op, range(1, 9), range(9, 12), range(12, 16), False)
    backward = _activated_lstm(op, range(18, 26), range(26, 29), range(29, 33), True)
    return (
        op.emit("ConcatV2", forward, backward, np.int32(2), N=2)
        if op.option("merge_outputs")
        else [forward, backward]
    )


def _activated_lstm(op: Operation, weights: range, peepholes: range, biases: range, reverse: bool) -> Ref:
    """One direction: weights of the input, then of the state, for the gates input, forget, cell, output; no state is
    kept from call to call."""
    extra = [
        *peepholes,
        biases[-1] + 1,
        biases[-1] + 2,
        *(range(20, 24) if op.type.startswith("UNI") else ()),
    ]
    if any(op.has(i) for i in extra) or not all(op.has(i) for i in (*weights, *biases)):
        raise op.refused(
            "it has peepholes, a projection, normalised gates or coupled gates", "use a plain LSTM"
        )
    if int(op.option("activation")) != 4 or op.option("cell_clip") or op.option("proj_clip"):
        raise op.refused("its activation is not tanh, or it clips its state", "use a plain LSTM")
    parts = [op.emit("ConcatV2", *(op.ref(i) for i in group), np.int32(0), N=4)
             for group in (weights[:4], weights[4:], biases)]  # fmt: skip
    return op.emit(_LSTM, op.ref(0), *parts, time_major=bool(op.option("time_major")), reverse=reverse)


@handler(_LSTM)
def _lstm(c: Context) -> Outputs:
    b = c.builder
    x, w, r, bias = (c.tensor(i) for i in range(4))
    turned = [1, 0, 2]
    x = x if c.attr("time_major") else b.op("Transpose", x, perm=turned)
    _, batch, _ = desc_of(x).shape
    units = desc_of(r).shape[1]
    if desc_of(r).shape[0] != 4 * units:
        raise Unsupported("the recurrent weights are not square")
    zeros = b.constant(np.zeros((batch, units), np.float32))
    none = b.constant(np.zeros(4 * units, np.float32))
    y, *_ = layer(b, CELLS["lstm"], x, [w, r], [bias, none], [zeros, zeros], bool(c.attr("reverse")))
    return [y if c.attr("time_major") else b.op("Transpose", y, perm=turned)]
