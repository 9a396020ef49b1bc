"""Compares object detectors that contain their post-processing with ONNX Runtime, using random weights.

The graphs have the form that exporters write. Each detector runs on several pictures with different numbers of objects;
the engine must return the same boxes in the same order as ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import ge
from ge.errors import GeError

__all__ = ["DETECTORS", "Outcome", "Size", "compare", "detectors", "pictures"]

TOLERANCE = 1e-3


@dataclass(frozen=True)
class Size:
    """Size of a detector: picture size, channels, layers."""

    picture: int = 32
    channels: int = 8
    depth: int = 2
    classes: int = 3


@dataclass(frozen=True)
class Outcome:
    """Outcome of one detector."""

    name: str
    status: str  # pass, wrong, refused or error
    detail: str = ""
    found: tuple[int, ...] = ()  # objects in each picture


@dataclass
class Net:
    """An ONNX graph under construction; values are names."""

    size: Size
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def op(self, type_: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        """Add a node; arrays and lists among its inputs become constants."""
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        made = [f"{type_}_{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(type_, names, made, name=f"{type_}_{len(self.nodes)}", **attrs))
        return made[0] if outputs == 1 else made

    def constant(self, value: Any) -> str:
        """Add a constant; integers become int64."""
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return f"c{len(self.constants) - 1}"

    def conv(
        self, x: str, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, gain: float = 1.0
    ) -> str:
        """A convolution with random weights."""
        scale = gain * (2 / (inputs * kernel * kernel)) ** 0.5
        weights = (self.rng.standard_normal((outputs, inputs, kernel, kernel)) * scale).astype(np.float32)
        shift = np.zeros(outputs, np.float32)
        pads = [kernel // 2] * 4
        return self.op(
            "Conv", x, weights, shift, pads=pads, strides=[stride, stride], kernel_shape=[kernel, kernel]
        )

    def backbone(self, x: str) -> list[str]:
        """Feature maps of 1/2, 1/4 and 1/8 of the picture's size."""
        width, maps, inputs = self.size.channels, [], 3
        for _ in range(3):
            x = self.op("Relu", self.conv(x, inputs, width, stride=2))
            for _ in range(self.size.depth - 1):
                x = self.op("Add", x, self.op("Relu", self.conv(x, width, width, gain=0.25)))
            maps.append(x)
            inputs = width
        return maps

    def rows(self, x: str, width: int) -> str:
        """Reshape a feature map (1, a * width, h, w) to rows (1, n, width)."""
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 3, 1]), [1, -1, width])

    def part(self, x: str, begin: int, end: int, axis: int = -1) -> str:
        """A slice."""
        return self.op("Slice", x, [begin], [end], [axis])

    def anchors(self, level: int, each: int = 1) -> np.ndarray:
        """Anchor centres and sizes (n, 4) of one level, relative to the picture."""
        side = self.size.picture >> (level + 1)
        y, x = np.meshgrid(*[(np.arange(side) + 0.5) / side] * 2, indexing="ij")
        centres = np.repeat(np.stack([x, y], -1).reshape(-1, 2), each, 0)
        edges = np.tile(np.linspace(1, 2, each).reshape(-1, 1) / side, (side * side, 2))
        return np.concatenate([centres, edges], 1)[None].astype(np.float32)

    def decoded(self, deltas: str, anchors: np.ndarray) -> str:
        """Decode box corners (1, n, 4) from anchors."""
        centre = self.op(
            "Add", self.op("Mul", self.part(deltas, 0, 2), anchors[..., 2:] * 0.3), anchors[..., :2]
        )
        edges = self.op(
            "Mul", self.op("Exp", self.op("Clip", self.part(deltas, 2, 4), -2.0, 2.0)), anchors[..., 2:]
        )
        half = self.op("Mul", edges, 0.5)
        return self.op("Concat", self.op("Sub", centre, half), self.op("Add", centre, half), axis=-1)

    def suppressed(
        self, boxes: str, scores: str, most: int, overlap: float = 0.5, least: float = 0.55
    ) -> str:
        """Result of NonMaxSuppression: rows of batch, class and box index."""
        return self.op("NonMaxSuppression", boxes, scores, [most], [overlap], [least])

    def column(self, rows: str, place: int) -> str:
        return self.op("Squeeze", self.part(rows, place, place + 1, 1), [1])

    def model(self, *outputs: tuple[str, int]) -> onnx.ModelProto:
        """Build the model with the given outputs and element types."""
        side = self.size.picture
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, side, side])
        results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
        graph = helper.make_graph(self.nodes, "detector", [x], results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
DETECTORS: dict[str, Callable[[Size], onnx.ModelProto]] = {}


def _detector(function: Callable[[Net], onnx.ModelProto]) -> Callable[[Net], onnx.ModelProto]:
    DETECTORS[function.__name__.strip("_").replace("_", " ")] = lambda size: function(Net(size))
    return function


def _heads(n: Net, maps: Sequence[str], each: int, width: int) -> str:
    """Predictions of all levels as rows (1, n, width)."""
    made = [n.rows(n.conv(m, n.size.channels, each * width), width) for m in maps]
    return n.op("Concat", *made, axis=1)


def _chosen(n: Net, kept: str, boxes: str, scores: str) -> tuple[tuple[str, int], ...]:
    """Boxes, scores and classes of the kept rows."""
    places = n.op("Concat", n.part(kept, 0, 1, 1), n.part(kept, 2, 3, 1), axis=1)
    found = n.op("GatherND", boxes, places)
    return (found, FLOAT), (n.op("GatherND", scores, kept), FLOAT), (n.column(kept, 1), INT64)


@_detector
def _ssd(n: Net) -> onnx.ModelProto:
    """SSD: two anchors per cell, softmax over classes, NMS, and the ten best scores."""
    maps = n.backbone("x")[1:]
    deltas, logits = _heads(n, maps, 2, 4), _heads(n, maps, 2, n.size.classes + 1)
    boxes = n.decoded(deltas, np.concatenate([n.anchors(1, 2), n.anchors(2, 2)], 1))
    likely = n.op("Softmax", logits, axis=-1)
    scores = n.op("Transpose", n.part(likely, 1, n.size.classes + 1), perm=[0, 2, 1])
    (found, _), (points, _), (classes, _) = _chosen(
        n, n.suppressed(boxes, scores, 10, 0.5, 0.4), boxes, scores
    )
    count = n.op("ReduceMin", n.op("Concat", n.op("Shape", points), [10], axis=0), keepdims=1)
    best, order = n.op("TopK", points, count, outputs=2)
    picked = [n.op("Gather", v, order, axis=0) for v in (found, classes)]
    return n.model((picked[0], FLOAT), (best, FLOAT), (picked[1], INT64))


@_detector
def _yolo_v3(n: Net) -> onnx.ModelProto:
    """YOLOv3: objectness times class scores over three levels; returns all boxes and the rows of NMS."""
    rows = _heads(n, n.backbone("x"), 1, 5 + n.size.classes)
    anchors = np.concatenate([n.anchors(level) for level in range(3)], 1)
    boxes = n.decoded(n.part(rows, 0, 4), anchors)
    sure = n.op("Sigmoid", n.part(rows, 4, 5))
    scores = n.op("Mul", n.op("Sigmoid", n.part(rows, 5, 5 + n.size.classes)), sure)
    turned = n.op("Transpose", scores, perm=[0, 2, 1])
    return n.model(*_chosen(n, n.suppressed(boxes, turned, 20, 0.45, 0.3), boxes, turned))


@_detector
def _yolo_v5(n: Net) -> onnx.ModelProto:
    """YOLOv5: best class per cell, a confidence mask, boxes offset by class, one NMS for all classes."""
    rows = n.op("Squeeze", _heads(n, n.backbone("x"), 1, 5 + n.size.classes), [0])
    anchors = np.concatenate([n.anchors(level) for level in range(3)], 1)[0]
    sure = n.op("Sigmoid", n.part(rows, 4, 5))
    scores = n.op("Mul", n.op("Sigmoid", n.part(rows, 5, 5 + n.size.classes)), sure)
    best = n.op("ReduceMax", scores, axes=[1], keepdims=0)
    classes = n.op("ArgMax", scores, axis=1, keepdims=0)
    rest = n.op("Squeeze", n.op("NonZero", n.op("Greater", best, 0.3)), [0])
    boxes = n.op("Gather", n.decoded(n.part(rows, 0, 4), anchors), rest, axis=0)
    kinds, points = n.op("Gather", classes, rest), n.op("Gather", best, rest)
    apart = n.op("Unsqueeze", n.op("Mul", n.op("Cast", kinds, to=FLOAT), 4.0), [1])
    moved = n.op("Unsqueeze", n.op("Add", boxes, apart), [0])
    kept = n.column(n.suppressed(moved, n.op("Unsqueeze", points, [0, 1]), 30, 0.45, 0.0), 2)
    results = [n.op("Gather", v, kept, axis=0) for v in (boxes, points, kinds)]
    return n.model((results[0], FLOAT), (results[1], FLOAT), (results[2], INT64))


@_detector
def _yolox(n: Net) -> onnx.ModelProto:
    """YOLOX: separate heads for boxes, objectness and classes; seven numbers per object."""
    maps = n.backbone("x")
    boxes = n.decoded(_heads(n, maps, 1, 4), np.concatenate([n.anchors(level) for level in range(3)], 1))
    sure, kinds = n.op("Sigmoid", _heads(n, maps, 1, 1)), n.op("Sigmoid", _heads(n, maps, 1, n.size.classes))
    scores = n.op("Transpose", n.op("Mul", sure, kinds), perm=[0, 2, 1])
    kept = n.suppressed(boxes, scores, 15, 0.6, 0.3)
    (found, _), (points, _), _ = _chosen(n, kept, boxes, scores)
    rows = n.op(
        "Concat", n.op("Cast", n.part(kept, 0, 2, 1), to=FLOAT), n.op("Unsqueeze", points, [1]), found, axis=1
    )
    return n.model((rows, FLOAT))


@_detector
def _retinanet(n: Net) -> onnx.ModelProto:
    """RetinaNet: top-k per level, then one NMS over all levels."""
    boxes, scores = [], []
    for level, features in enumerate(n.backbone("x")):
        logits = n.op("Sigmoid", n.rows(n.conv(features, n.size.channels, n.size.classes), n.size.classes))
        deltas = n.rows(n.conv(features, n.size.channels, 4), 4)
        best = n.op("ReduceMax", logits, axes=[2], keepdims=0)
        _, places = n.op("TopK", best, [min(16, (n.size.picture >> (level + 1)) ** 2)], outputs=2)
        flat = n.op("Squeeze", places, [0])
        boxes.append(n.op("Gather", n.decoded(deltas, n.anchors(level)), flat, axis=1))
        scores.append(n.op("Gather", logits, flat, axis=1))
    whole, points = n.op("Concat", *boxes, axis=1), n.op("Concat", *scores, axis=1)
    turned = n.op("Transpose", points, perm=[0, 2, 1])
    return n.model(*_chosen(n, n.suppressed(whole, turned, 12), whole, turned))


@_detector
def _fcos(n: Net) -> onnx.ModelProto:
    """FCOS: distances to the box sides, centredness, clipping to the picture, removal of small boxes."""
    maps = n.backbone("x")[1:]
    sides = n.op("Exp", n.op("Clip", _heads(n, maps, 1, 4), -2.0, 2.0))
    anchors = np.concatenate([n.anchors(1), n.anchors(2)], 1)
    reach = n.op("Mul", sides, anchors[..., 2:].repeat(2, -1) * 0.5)
    corners = [
        n.op("Sub", anchors[..., :2], n.part(reach, 0, 2)),
        n.op("Add", anchors[..., :2], n.part(reach, 2, 4)),
    ]
    boxes = n.op("Clip", n.op("Concat", *corners, axis=-1), 0.0, 1.0)
    centred = n.op("Sigmoid", _heads(n, maps, 1, 1))
    scores = n.op("Sqrt", n.op("Mul", n.op("Sigmoid", _heads(n, maps, 1, n.size.classes)), centred))
    turned = n.op("Transpose", scores, perm=[0, 2, 1])
    (found, _), (points, _), (kinds, _) = _chosen(n, n.suppressed(boxes, turned, 20), boxes, turned)
    edges = n.op("Sub", n.part(found, 2, 4), n.part(found, 0, 2))
    large = n.op("Greater", n.op("ReduceMin", edges, axes=[1], keepdims=0), 0.12)
    results = [n.op("Compress", v, large, axis=0) for v in (found, points, kinds)]
    return n.model((results[0], FLOAT), (results[1], FLOAT), (results[2], INT64))


@_detector
def _centernet(n: Net) -> onnx.ModelProto:
    """CenterNet: peaks of a heat map found by max pooling, with offsets and sizes."""
    features = n.backbone("x")[0]
    heat = n.op("Sigmoid", n.conv(features, n.size.channels, n.size.classes))
    peaks = n.op("MaxPool", heat, kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    marked = n.op("And", n.op("Equal", heat, peaks), n.op("Greater", heat, 0.6))
    places = n.op("Transpose", n.op("NonZero", marked), perm=[1, 0])
    points = n.op("GatherND", heat, places)
    where = n.part(places, 2, 4, 1)
    sizes = n.op("Transpose", n.op("Exp", n.conv(features, n.size.channels, 2)), perm=[0, 2, 3, 1])
    index = n.op("Concat", n.part(places, 0, 1, 1), where, axis=1)
    half = n.op("Mul", n.op("GatherND", sizes, index), 0.5)
    centre = n.op("Add", n.op("Cast", where, to=FLOAT), 0.5)
    boxes = n.op("Concat", n.op("Sub", centre, half), n.op("Add", centre, half), axis=1)
    return n.model((boxes, FLOAT), (points, FLOAT), (n.column(places, 1), INT64))


def _proposals(n: Net, features: str) -> str:
    """Proposal boxes (k, 4) of the first stage."""
    logits = n.rows(n.conv(features, n.size.channels, 2), 1)
    boxes = n.decoded(n.rows(n.conv(features, n.size.channels, 8), 4), n.anchors(1, 2))
    best, places = n.op("TopK", n.op("Squeeze", n.op("Sigmoid", logits), [0, 2]), [40], outputs=2)
    likely = n.op("Gather", n.op("Clip", boxes, 0.0, 1.0), places, axis=1)
    kept = n.column(n.suppressed(likely, n.op("Unsqueeze", best, [0, 1]), 24, 0.7, 0.5), 2)
    return n.op("Gather", n.op("Squeeze", likely, [0]), kept, axis=0)


def _regions(n: Net, features: str, boxes: str, side: int) -> str:
    """Features of each box (RoiAlign)."""
    scaled = n.op("Mul", boxes, float(n.size.picture))
    batch = n.op("Expand", [0], n.part(n.op("Shape", boxes), 0, 1, 0))
    return n.op(
        "RoiAlign",
        *(features, scaled, batch),
        output_height=side,
        output_width=side,
        spatial_scale=0.25,
        sampling_ratio=2,
        coordinate_transformation_mode="half_pixel",
    )


def _second_half(n: Net) -> tuple[str, str, str, str]:
    """Second stage: boxes, scores, classes and features."""
    features = n.backbone("x")[1]
    proposals = _proposals(n, features)
    inner = n.op("Reshape", _regions(n, features, proposals, 4), [-1, 16 * n.size.channels])
    dense = n.rng.standard_normal((16 * n.size.channels, 32)).astype(np.float32) * 0.2
    hidden = n.op("Relu", n.op("MatMul", inner, dense))
    kinds = n.rng.standard_normal((32, n.size.classes + 1)).astype(np.float32)
    scores = n.part(n.op("Softmax", n.op("MatMul", hidden, kinds), axis=1), 1, n.size.classes + 1, 1)
    turned = n.op("Unsqueeze", n.op("Transpose", scores, perm=[1, 0]), [0])
    kept = n.suppressed(n.op("Unsqueeze", proposals, [0]), turned, 10, 0.5, 0.3)
    found = n.op("Gather", proposals, n.column(kept, 2), axis=0)
    return found, n.op("GatherND", turned, kept), n.column(kept, 1), features


@_detector
def _faster_rcnn(n: Net) -> onnx.ModelProto:
    """Faster R-CNN: proposals, RoI features, classification and NMS."""
    boxes, scores, classes, _ = _second_half(n)
    return n.model((boxes, FLOAT), (scores, FLOAT), (classes, INT64))


@_detector
def _mask_rcnn(n: Net) -> onnx.ModelProto:
    """Mask R-CNN: a mask for each detected object."""
    boxes, scores, classes, features = _second_half(n)
    maps = n.op("Relu", n.conv(_regions(n, features, boxes, 7), n.size.channels, n.size.channels))
    weights = n.rng.standard_normal((n.size.channels, n.size.classes, 2, 2)).astype(np.float32)
    masks = n.op("Sigmoid", n.op("ConvTranspose", maps, weights, strides=[2, 2]))
    picked = n.op("GatherND", masks, n.op("Unsqueeze", classes, [1]), batch_dims=1)
    return n.model((boxes, FLOAT), (scores, FLOAT), (n.op("Greater", picked, 0.5), TensorProto.BOOL))


@_detector
def _keypoints(n: Net) -> onnx.ModelProto:
    """Keypoint R-CNN: branches on an empty detection; keypoints around each object's centre."""
    maps = n.backbone("x")[1:]
    boxes = n.decoded(_heads(n, maps, 1, 4), np.concatenate([n.anchors(1), n.anchors(2)], 1))
    scores = n.op("Transpose", n.op("Sigmoid", _heads(n, maps, 1, 1)), perm=[0, 2, 1])
    kept = n.column(n.suppressed(boxes, scores, 8, 0.4, 0.6), 2)
    joints = n.op("Gather", n.op("Squeeze", _heads(n, maps, 1, 10), [0]), kept, axis=0)
    found = n.op("Gather", n.op("Squeeze", boxes, [0]), kept, axis=0)
    some = n.op("Greater", n.op("Squeeze", n.op("Shape", kept), [0]), np.int64(0))
    placed = Net(n.size, n.rng, [], n.constants)
    offsets = placed.op("Reshape", joints, [-1, 5, 2])
    centre = placed.op(
        "Unsqueeze",
        placed.op("Mul", placed.op("Add", placed.part(found, 0, 2), placed.part(found, 2, 4)), 0.5),
        [1],
    )
    placed.op("Add", offsets, centre)
    empty = helper.make_node(
        "Constant", [], ["none"], value=numpy_helper.from_array(np.zeros((0, 5, 2), np.float32))
    )
    inner = {name for node in placed.nodes for name in node.output}
    for node in placed.nodes:
        for names in (node.input, node.output):
            names[:] = [f"in_{v}" if v in inner else v for v in names]
    branches = [
        helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(out, FLOAT, None)])
        for nodes, name, out in (
            (placed.nodes, "some", placed.nodes[-1].output[0]),
            ([empty], "none", "none"),
        )
    ]
    result = n.op("If", some, then_branch=branches[0], else_branch=branches[1])
    return n.model((found, FLOAT), (result, FLOAT))


def pictures(size: Size, count: int = 5) -> list[np.ndarray]:
    """Pictures of different contrast: the number of detections varies and no score saturates at 1."""
    rng = np.random.default_rng(1)
    shape = (1, 3, size.picture, size.picture)
    return [
        (rng.standard_normal(shape) * contrast).astype(np.float32) for contrast in np.linspace(0, 0.8, count)
    ]


def compare(name: str, size: Size | None = None) -> Outcome:
    """One detector in ONNX Runtime and in the engine."""
    import onnxruntime

    size = size or Size()
    proto = DETECTORS[name](size)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    counts: list[int] = []
    try:
        model = ge.compile(proto)
        for picture in pictures(size):
            wanted = session.run(None, {"x": picture})
            counts.append(len(wanted[0]))
            for ours, theirs in zip(model.run([picture]), wanted, strict=True):
                if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                    detail = f"{ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
                    return Outcome(name, "wrong", detail, tuple(counts))
                if not np.allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE):
                    return Outcome(name, "wrong", "the results differ", tuple(counts))
    except GeError as error:
        return Outcome(name, "refused", str(error)[:300])
    except Exception as error:
        return Outcome(name, "error", f"{type(error).__name__}: {error}"[:300])
    return Outcome(name, "pass", "", tuple(counts))


def detectors(
    names: Annotated[str, typer.Option(help=f"comma-separated detectors of {', '.join(DETECTORS)}")] = "",
) -> None:
    """Compare detectors that contain their post-processing with ONNX Runtime."""
    outcomes = [compare(name) for name in DETECTORS if not names or name in names.split(",")]
    table = Table("detector", "status", "objects found", "")
    for outcome in outcomes:
        table.add_row(outcome.name, outcome.status, ", ".join(map(str, outcome.found)), outcome.detail)
    Console().print(table)
    raise typer.Exit(int(any(o.status != "pass" for o in outcomes)))
