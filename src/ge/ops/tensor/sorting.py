"""Sorting and selection: order, top-k, unique, nonzero, non-maximum suppression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import BOOL, FLOATS, NUMBERS, TENSORS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.math.checks import indices_of
from ge.ops.plugins import Node, Results, Unsupported, plugin


def _along_last(builder: Any, op: NodeView, x: Any, **attrs: Any) -> Any:
    """Transpose around the kernels, which work along the last axis."""
    desc = op.inputs[0]
    assert desc is not None
    axis = op.axis % desc.rank
    if axis == desc.rank - 1:
        return NotImplemented
    perm = [i for i in range(desc.rank) if i != axis] + [axis]
    turned = builder.op("Transpose", x, perm=perm)
    back = [int(i) for i in np.argsort(perm)]
    return tuple(
        builder.op("Transpose", v, perm=back) for v in builder.ops(op.type, [turned], axis=-1, **attrs)
    )


def _check_axis(op: NodeView) -> None:
    desc = op.inputs[0]
    assert desc is not None
    if not -desc.rank <= op.axis < desc.rank:
        raise fail(op, f"axis {op.axis} is out of range for {desc}")


def _order(x: np.ndarray, descending: bool) -> np.ndarray:
    """The stable order along the last axis; NaN counts as the largest."""
    if not descending:
        return np.argsort(x, axis=-1, kind="stable")
    flipped = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return x.shape[-1] - 1 - flipped


def _plain(x: np.ndarray | None) -> np.ndarray:
    assert x is not None
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


@register
class TopK(Operator):
    """The k largest (or smallest) elements along axis, in order, and their positions (int64)."""

    x = Input("T", NUMBERS)
    values = Output("T")
    indices = Output()
    k = Attr(int)
    axis = Attr(int, -1)
    largest = Attr(bool, True)
    sorted = Attr(bool, True)
    aicpu = "topk"
    light = True

    @staticmethod
    def verify(op: NodeView) -> None:
        _check_axis(op)
        extent = op.inputs[0].shape[op.axis]  # type: ignore[union-attr]
        if not 0 <= op.k <= extent:
            raise fail(op, f"k = {op.k} is outside 0..{extent}")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        desc = op.inputs[0]
        assert desc is not None
        axis = op.axis % desc.rank
        shape = (*desc.shape[:axis], op.k, *desc.shape[axis + 1 :])
        return [TensorDesc(shape, desc.dtype), TensorDesc(shape, "int64")]

    @staticmethod
    def expand(builder: Any, op: NodeView, x: Any) -> Any:
        return _along_last(builder, op, x, k=op.k, largest=op.largest, sorted=op.sorted)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x = _plain(arrays[0])
        order = _order(x, op.largest)[..., : op.k]
        return [np.take_along_axis(x, order, -1), order.astype(np.int64)]


@register
class Sort(Operator):
    """The elements in order along axis (stable)."""

    x = Input("T", NUMBERS)
    values = Output("T")
    axis = Attr(int, -1)
    descending = Attr(bool, False)
    aicpu = "sort"
    light = True

    @staticmethod
    def verify(op: NodeView) -> None:
        _check_axis(op)

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return op.inputs[0]  # type: ignore[return-value]

    @staticmethod
    def expand(builder: Any, op: NodeView, x: Any) -> Any:
        return _along_last(builder, op, x, descending=op.descending)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x = _plain(arrays[0])
        return [np.take_along_axis(x, _order(x, op.descending), -1)]


@register
class ArgSort(Sort):
    """The positions of the elements in order along axis (stable, int64)."""

    aicpu = "argsort"

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return TensorDesc(op.inputs[0].shape, "int64")  # type: ignore[union-attr]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return [_order(_plain(arrays[0]), op.descending).astype(np.int64)]


# -- data-dependent result sizes ---------------------------------------------------------------------------


@register
class Unique(Operator):
    """The distinct elements (or slices along axis), where first seen, which one each element is, counts.

    equal_nan: all NaNs count as one element, as in ONNX and NumPy; without it each is distinct, as in TensorFlow.
    """

    x = Input("T", TENSORS)
    y = Output("T")
    indices = Output()
    inverse = Output()
    counts = Output()
    axis = Attr(int, None)
    sorted = Attr(bool, True)
    equal_nan = Attr(bool, True)
    aicpu = "unique"
    dynamic_outputs = True
    sized_outputs = (2,)
    light = True

    @staticmethod
    def verify(op: NodeView) -> None:
        if op.axis is not None:
            _check_axis(op)

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        desc = op.inputs[0]
        assert desc is not None
        shape = (desc.size,) if op.axis is None else desc.shape
        count = shape[op.axis or 0]
        return [TensorDesc(shape, desc.dtype), *[TensorDesc((count,), "int64")] * 3]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return distinct(np.asarray(arrays[0]), op.axis, op.sorted, op.equal_nan)


def distinct(x: np.ndarray, axis: int | None, in_order: bool, equal_nan: bool = True) -> list[np.ndarray]:
    """numpy.unique with all its results, sorted or in order of appearance."""
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis, equal_nan=equal_nan)
    inverse = inverse.reshape(-1)
    if not in_order:
        order = np.argsort(first)
        place = np.argsort(order)
        y = np.take(y, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], place[inverse]
    return [y, *(a.astype(np.int64) for a in (first, inverse, counts))]


class Positions(Operator):
    """The positions of the nonzero elements (int64); their number is known only at run time."""

    x = Input("T", TENSORS)
    y = Output()
    dynamic_outputs = True


@register
class NonZero(Positions):
    """The positions of the nonzero elements, an axis a row."""

    aicpu = "nonzero"
    light = True

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc = op.inputs[0]
        assert desc is not None
        return TensorDesc((desc.rank, desc.size), "int64")

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return [np.asarray(np.nonzero(np.asarray(arrays[0])), np.int64)]


@register
class Where(Positions):
    """The positions of the nonzero elements, an element a row."""

    aicpu = "where_indices"
    light = True

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc = op.inputs[0]
        assert desc is not None
        return TensorDesc((desc.size, desc.rank), "int64")

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return [np.argwhere(np.asarray(arrays[0])).astype(np.int64)]


@register
class Compress(Operator):
    """The slices of x along axis (the elements of x without one) for which the condition holds."""

    x = Input("T", TENSORS)
    condition = Input("C", BOOL)
    y = Output("T")
    axis = Attr(int, None)
    aicpu = "compress"
    dynamic_outputs = True
    light = True

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc, condition = op.inputs[:2]
        assert desc is not None and condition is not None
        if op.axis is None:
            return TensorDesc((min(desc.size, condition.size),), desc.dtype)
        axis = op.axis % desc.rank
        count = min(desc.shape[axis], condition.size)
        return TensorDesc((*desc.shape[:axis], count, *desc.shape[axis + 1 :]), desc.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return [np.compress(np.asarray(arrays[1]), np.asarray(arrays[0]), axis=op.axis)]


@register
class NonMaxSuppression(Operator):
    """For each batch and class the boxes kept by score, dropping those that overlap a better one too much.

    boxes (B, N, 4), scores (B, C, N); the result has rows of batch, class, box (int64).
    """

    boxes = Input("T", frozenset({"float32"}))
    scores = Input("T", frozenset({"float32"}))
    y = Output()
    max_output_boxes = Attr(int)
    iou_threshold = Attr(float, 0.0)
    score_threshold = Attr(float, None)
    center_point_box = Attr(bool, False)
    aicpu = "non_max_suppression"
    dynamic_outputs = True
    light = True

    @staticmethod
    def verify(op: NodeView) -> None:
        boxes, scores = op.inputs[:2]
        assert boxes is not None and scores is not None
        if boxes.rank != 3 or scores.rank != 3 or boxes.shape[:2] != (scores.shape[0], scores.shape[2]):
            raise fail(op, f"boxes {boxes} and scores {scores} do not go together")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        batch, classes, count = op.inputs[1].shape  # type: ignore[union-attr]
        return TensorDesc((batch * classes * min(count, max(op.max_output_boxes, 0)), 3), "int64")

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        boxes, scores = (np.asarray(a) for a in arrays[:2])
        corners = _corners(boxes, op.center_point_box)
        rows = [
            (b, c, i)
            for b in range(scores.shape[0])
            for c in range(scores.shape[1])
            for i in _kept(corners[b], scores[b, c], op)
        ]
        return [np.asarray(rows, np.int64).reshape(-1, 3)]


def _corners(boxes: np.ndarray, centred: bool) -> np.ndarray:
    """Boxes as y1, x1, y2, x2 with y1 <= y2 and x1 <= x2."""
    if centred:
        x, y, w, h = np.moveaxis(boxes, -1, 0)
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    a, b = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _kept(boxes: np.ndarray, scores: np.ndarray, op: NodeView) -> list[int]:
    order = np.argsort(-scores, kind="stable")
    if op.score_threshold is not None:
        order = order[scores[order] > op.score_threshold]
    kept: list[int] = []
    while len(order) and len(kept) < op.max_output_boxes:
        best, order = order[0], order[1:]
        kept.append(int(best))
        order = order[_overlaps(boxes[best], boxes[order]) <= op.iou_threshold]
    return kept


def _overlaps(a: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of a box and others."""
    size = np.maximum(np.minimum(a[2:], others[:, 2:]) - np.maximum(a[:2], others[:, :2]), 0)
    shared = (size[:, 0] * size[:, 1]).astype(np.float64)
    own, areas = (((c[..., 2] - c[..., 0]) * (c[..., 3] - c[..., 1])).astype(np.float64) for c in (a, others))
    with np.errstate(all="ignore"):
        return np.where(shared > 0, shared / (own + areas - shared), 0.0)


# -- ONNX --------------------------------------------------------------------------------------------------


@plugin(onnx="TopK")
def _topk(n: Node) -> Results:
    k = int(n.attr("k")) if n.version < 10 else n.ints(1, "k")[0]
    largest = bool(n.attr("largest", 1))
    return n.op("TopK", n.inputs[0], k=k, axis=int(n.attr("axis", -1)), largest=largest)


@plugin(onnx="Unique")
def _unique(n: Node) -> Results:
    axis = n.attr("axis")
    known = n.maybe_const(0)
    if known is not None:
        results = distinct(known, axis, bool(n.attr("sorted", 1)))
        return tuple(n.builder.constant(a, n.name) for a in results[: n.outputs])
    made = n.op("Unique", n.inputs[0], axis=axis, sorted=bool(n.attr("sorted", 1)))
    return made[: n.outputs]


@plugin(onnx="NonZero")
def _nonzero(n: Node) -> Results:
    known = n.maybe_const(0)
    if known is not None:
        return n.builder.constant(np.asarray(np.nonzero(known), np.int64), n.name)
    return n.op("NonZero", n.inputs[0])


@plugin(onnx="Compress")
def _compress(n: Node) -> Results:
    """With a constant condition the size is known and the slices are gathered."""
    axis, condition = n.attr("axis"), n.maybe_const(1)
    if condition is None:
        return n.op("Compress", n.inputs[0], n.inputs[1], axis=axis)
    x: Any = n.inputs[0] if axis is not None else n.op("Reshape", n.inputs[0], shape=[n.desc().size])
    axis = axis or 0
    kept = n.builder.constant(np.flatnonzero(condition).astype(np.int64))
    return n.op("Gather", x, indices_of(n, kept, [desc_of(x).shape[axis]], "condition"), axis=axis)


@plugin(onnx="NonMaxSuppression")
def _nms(n: Node) -> Results:
    def scalar(index: int, default: float | None) -> float | None:
        return default if n.input(index) is None else float(n.const(index).reshape(-1)[0])

    if n.desc(0).dtype not in FLOATS:
        raise Unsupported(f"boxes of type {n.desc(0).dtype} are not supported")
    most = n.ints(2, "the number of boxes")[0] if n.input(2) is not None else 0  # often the largest integer
    return n.op(
        "NonMaxSuppression",
        n.inputs[0],
        n.inputs[1],
        max_output_boxes=max(min(most, n.desc(0).shape[1]), 0),
        iou_threshold=scalar(3, 0.0),
        score_threshold=scalar(4, None),
        center_point_box=bool(n.attr("center_point_box", 0)),
    )


# -- TensorFlow --------------------------------------------------------------------------------------------


class BoxSelection(Operator):
    """The boxes (N, 4) kept by their scores (N), dropping those that overlap a better one too much.

    Gives their positions, their scores (lowered where `soft_nms_sigma` is not 0) and how many there are.
    """

    boxes = Input("T", frozenset({"float32"}))
    scores = Input("T", frozenset({"float32"}))
    indices = Output()
    kept_scores = Output()
    count = Output()
    max_output_boxes = Attr(int)
    iou_threshold = Attr(float, 0.5)
    score_threshold = Attr(float, None)
    soft_nms_sigma = Attr(float, 0.0)

    @staticmethod
    def verify(op: NodeView) -> None:
        boxes, scores = op.inputs[:2]
        assert boxes is not None and scores is not None
        if boxes.rank != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
            raise fail(op, f"boxes {boxes} and scores {scores} do not go together")

    @staticmethod
    def described(op: NodeView, size: int) -> list[TensorDesc]:
        """The three results, for up to `size` boxes."""
        return [TensorDesc((size,), "int32"), TensorDesc((size,), "float32"), TensorDesc((), "int32")]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        boxes, scores = (np.asarray(a) for a in arrays[:2])
        kept = _softly_kept(_corners(boxes, False), scores, op)
        size = op.max_output_boxes if op.type == "SelectBoxesPadded" else len(kept)
        indices, values = np.zeros(size, np.int32), np.zeros(size, np.float32)
        for place, (index, score) in enumerate(kept):
            indices[place], values[place] = index, score
        return [indices, values, np.asarray(len(kept), np.int32)]


def _softly_kept(boxes: np.ndarray, scores: np.ndarray, op: NodeView) -> list[tuple[int, float]]:
    """Positions and scores in descending order; each kept box drops its neighbours, or lowers their scores."""
    least = -np.inf if op.score_threshold is None else op.score_threshold
    left = {i: float(s) for i, s in enumerate(scores) if s > least}
    kept: list[tuple[int, float]] = []
    while left and len(kept) < op.max_output_boxes:
        best = max(left, key=lambda i: (left[i], -i))
        kept.append((best, left.pop(best)))
        for i in list(left):
            common = float(_overlaps(boxes[i], boxes[best][None])[0])
            if common > op.iou_threshold:
                del left[i]
            elif op.soft_nms_sigma > 0:
                left[i] *= float(np.exp(-0.5 / op.soft_nms_sigma * common * common))
                if left[i] <= least:
                    del left[i]
    return kept


@register
class SelectBoxes(BoxSelection):
    """As many boxes as are kept."""

    aicpu = "non_max_suppression_tf"
    dynamic_outputs = True
    sized_outputs = (2,)

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        return BoxSelection.described(op, min(op.max_output_boxes, op.inputs[0].shape[0]))  # type: ignore[union-attr]


@register
class SelectBoxesPadded(BoxSelection):
    """Always `max_output_boxes` entries; those that are left over hold zeros."""

    aicpu = "non_max_suppression_tf"

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        return BoxSelection.described(op, op.max_output_boxes)

    @staticmethod
    def kernel_attrs(op: NodeView) -> dict[str, Any]:
        return {**Operator.kernel_attrs(op), "pad": True}


@register
class CombinedBoxes(Operator):
    """The best boxes of every image over all classes, after suppression in each class.

    boxes (B, N, 1 or C, 4), scores (B, N, C). Gives boxes (B, M, 4), scores and classes (B, M), counts (B); what is
    left over is zero.
    """

    boxes = Input("T", frozenset({"float32"}))
    scores = Input("T", frozenset({"float32"}))
    kept_boxes = Output()
    kept_scores = Output()
    classes = Output()
    counts = Output()
    max_output_boxes = Attr(int)  # of a class
    size = Attr(int)  # M
    iou_threshold = Attr(float, 0.5)
    score_threshold = Attr(float, None)
    clip = Attr(bool, True)  # boxes to [0, 1]
    aicpu = "combined_non_max_suppression"

    @staticmethod
    def verify(op: NodeView) -> None:
        boxes, scores = op.inputs[:2]
        assert boxes is not None and scores is not None
        fits = boxes.rank == 4 and scores.rank == 3 and boxes.shape[:2] == scores.shape[:2]
        if not fits or boxes.shape[3] != 4 or boxes.shape[2] not in (1, scores.shape[2]):
            raise fail(op, f"boxes {boxes} and scores {scores} do not go together")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        batch = op.inputs[0].shape[0]  # type: ignore[union-attr]
        rows = TensorDesc((batch, op.size), "float32")
        return [TensorDesc((batch, op.size, 4), "float32"), rows, rows, TensorDesc((batch,), "int32")]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        boxes, scores = (np.asarray(a) for a in arrays[:2])
        results = [np.zeros(d.shape, d.dtype) for d in CombinedBoxes.infer(op)]
        for b in range(len(scores)):
            found = [
                (scores[b, i, c], c, boxes[b, i, c % boxes.shape[2]])
                for c in range(scores.shape[2])
                for i in _kept(_corners(boxes[b, :, c % boxes.shape[2]], False), scores[b, :, c], op)
            ]
            found = sorted(found, key=lambda each: -each[0])[: op.size]
            for place, (score, c, box) in enumerate(found):
                results[0][b, place] = np.clip(box, 0, 1) if op.clip else box
                results[1][b, place], results[2][b, place] = score, c
            results[3][b] = len(found)
        return results


@plugin(tensorflow="CombinedNonMaxSuppression")
def _combined_nms(n: Node) -> Results:
    each, total = n.ints(2, "boxes of a class")[0], n.ints(3, "boxes in all")[0]
    classes = n.desc(1).shape[2]
    size = min(total, each * classes) if n.attr("pad_per_class", False) else total
    overlap, least = (float(n.const(i, "a threshold").reshape(())) for i in (4, 5))
    return n.op(
        "CombinedBoxes", *n.inputs[:2], max_output_boxes=each, size=size, iou_threshold=overlap,
        score_threshold=least, clip=bool(n.attr("clip_boxes", True)),
    )  # fmt: skip


@plugin(tensorflow=["TopK", "TopKV2"])
def _topk_tf(n: Node) -> Results:
    k = int(n.attr("k")) if n.type == "TopK" else n.ints(1, "k")[0]
    values, indices = n.op("TopK", n.inputs[0], k=k, axis=-1, sorted=bool(n.attr("sorted", True)))
    return [values, n.op("Cast", indices, to=str(n.attr("index_type", "int32")))]


@plugin(tensorflow=["Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"])
def _unique_tf(n: Node) -> Results:
    """The distinct elements in order of appearance, which of them each element is, and how often each occurs."""
    to = str(n.attr("out_idx", "int32"))
    known = n.maybe_const(0)
    if n.desc().rank != 1:
        raise Unsupported("distinct slices along an axis", "use tf.unique on vectors", later=True)
    if known is not None:
        y, _, inverse, counts = distinct(known, None, False, equal_nan=False)
        return [n.builder.constant(a) for a in (y, inverse.astype(to), counts.astype(to))]
    if "WithCounts" in n.type and to != "int64":
        raise Unsupported(f"counts of {to}", "ask for int64 counts: out_idx=tf.int64", later=True)
    y, _, inverse, counts = n.op("Unique", n.inputs[0], sorted=False, equal_nan=False)
    return [y, n.op("Cast", inverse, to=to), counts]


@plugin(tensorflow="ListDiff")
def _list_diff(n: Node) -> Results:
    """The elements of x that are not in y, and their positions; both constant."""
    x, y = n.const(0, "the list"), n.const(1, "the other list")
    kept = np.flatnonzero(~np.isin(x, y))
    return [n.builder.constant(x[kept]), n.builder.constant(kept.astype(str(n.attr("out_idx", "int32"))))]


@plugin(tensorflow=[f"NonMaxSuppression{version}" for version in ("", "V2", "V3", "V4", "V5")])
def _nms_tf(n: Node) -> Results:
    """With padding to the maximum number the size is known; otherwise it depends on the data."""

    def real(index: int, default: float | None) -> float | None:
        return default if n.input(index) is None else float(n.const(index, "a threshold").reshape(()))

    overlap = float(n.attr("iou_threshold", 0.5)) if n.type == "NonMaxSuppression" else real(3, 0.5)
    attrs = {
        "max_output_boxes": n.ints(2, "the number of boxes")[0],
        "iou_threshold": overlap,
        "score_threshold": real(4, None),
        "soft_nms_sigma": real(5, 0.0),
    }
    padded = bool(n.attr("pad_to_max_output_size", False))
    indices, scores, count = n.op("SelectBoxesPadded" if padded else "SelectBoxes", *n.inputs[:2], **attrs)
    if n.type.endswith("V5"):
        return [indices, scores, count]
    return [indices, count]


@plugin(tensorflow="NthElement")
def _nth_element(n: Node) -> Results:
    """The element at position n of each row, once sorted."""
    place, extent = n.ints(1, "n")[0], n.desc().shape[-1]
    values, _ = n.op("TopK", n.inputs[0], k=place + 1, largest=bool(n.attr("reverse", False)))
    lead = list(n.desc().shape[:-1])
    if not 0 <= place < extent:
        raise Unsupported(f"element {place} of {extent}")
    last = n.op("Slice", values, starts=[0] * len(lead) + [place], ends=[*lead, place + 1])
    return n.op("Reshape", last, shape=lead)


@plugin(tensorflow="ApproxTopK")
def _approximate_top_k(n: Node) -> Results:
    """The exact elements, which satisfy any requested recall."""
    if not n.attr("aggregate_to_topk", True):
        raise Unsupported("ApproxTopK without the final selection", "set aggregate_to_topk")
    axis, largest = int(n.attr("reduction_dimension", -1)), bool(n.attr("is_max_k", True))
    values, indices = n.op("TopK", n.inputs[0], k=int(n.attr("k")), axis=axis, largest=largest)
    return [values, n.op("Cast", indices, to="int32")]
