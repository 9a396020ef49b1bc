"""AI CPU kernels against NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import BF16, Array, close, randn

REALS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def run(
    op: str, inputs: Sequence[Array], outs: Sequence[tuple[str, Sequence[int]]], **attrs: Any
) -> list[Array]:
    return rt.run_aicpu(op, list(inputs), list(outs), attrs)


def as_type(array: Array, dtype: str) -> Array:
    return array.astype(rt.numpy_dtype(dtype))


def tolerance(dtype: str) -> float:
    return {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}[dtype]


# sorting


@pytest.mark.parametrize("dtype", [*REALS, *INTEGERS])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_keeps_the_lowest_index_of_equals(dtype: str, largest: bool) -> None:
    x = as_type(np.random.default_rng(0).integers(0, 9, (4, 33)), dtype)
    values, indices = run("topk", [x], [(dtype, (4, 7)), ("int64", (4, 7))], k=7, largest=largest)
    keys = x.astype(np.int64)
    order = np.argsort(-keys if largest else keys, axis=-1, kind="stable")[:, :7]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))


def test_nan_is_the_largest() -> None:
    x = np.array([1, np.nan, np.inf, -np.inf, np.nan, 0], np.float32)
    values, indices = run("topk", [x], [("float32", (3,)), ("int64", (3,))], k=3)
    assert indices.tolist() == [1, 4, 2]
    (ordered,) = run("sort", [x], [("float32", (6,))])
    np.testing.assert_array_equal(ordered, np.sort(x))
    assert np.isnan(values[:2]).all()


@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_argsort(descending: bool) -> None:
    x = np.random.default_rng(0).integers(0, 20, (3, 5, 40)).astype(np.int32)
    order = np.argsort(-x if descending else x, -1, kind="stable")
    values, indices = run("sort", [x], [("int32", x.shape), ("int64", x.shape)], descending=descending)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    (only,) = run("argsort", [x], [("int32", x.shape)], descending=descending)
    np.testing.assert_array_equal(only, order)


def test_topk_of_nothing_and_of_everything() -> None:
    x = randn(2, 5)
    values, _ = run("topk", [x], [("float32", (2, 0)), ("int64", (2, 0))], k=0)
    assert values.shape == (2, 0)
    values, _ = run("topk", [x], [("float32", (2, 5)), ("int64", (2, 5))], k=5)
    np.testing.assert_array_equal(values, -np.sort(-x, -1))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bfloat16", "bool"])
def test_unique_sorted(dtype: str) -> None:
    x = as_type(np.random.default_rng(0).integers(0, 9, (5, 7)), dtype)
    n = x.size
    outs = [(dtype, (n,)), ("int64", (n,)), ("int64", (n,)), ("int64", (n,))]
    values, first, inverse, counts = run("unique", [x], outs)
    flat = x.reshape(-1).astype(np.float64)
    e_values, e_first, e_inverse, e_counts = np.unique(
        flat, return_index=True, return_inverse=True, return_counts=True
    )
    np.testing.assert_array_equal(values.astype(np.float64), e_values)
    np.testing.assert_array_equal(first, e_first)
    np.testing.assert_array_equal(inverse, e_inverse)
    np.testing.assert_array_equal(counts, e_counts)


def test_unique_in_order_of_occurrence() -> None:
    x = np.array([3, 1, 3, 2, 1, 7], np.int64)
    outs = [("int64", (6,)), ("int32", (6,)), ("int32", (6,)), ("int32", (6,))]
    values, first, inverse, counts = run("unique", [x], outs, sorted=False)
    assert values.tolist() == [3, 1, 2, 7]
    assert first.tolist() == [0, 1, 3, 5]
    assert inverse.tolist() == [0, 1, 0, 2, 1, 3]
    assert counts.tolist() == [2, 2, 1, 1]


def test_unique_rows() -> None:
    x = np.array([[1, 0], [0, 1], [1, 0], [0, 0]], np.float32)
    values, _, inverse = run("unique", [x], [("float32", (4, 2)), ("int64", (4,)), ("int64", (4,))], axis=0)
    np.testing.assert_array_equal(values, np.unique(x, axis=0))
    assert inverse.tolist() == [2, 1, 2, 0]


# indices


@pytest.mark.parametrize("dtype", ["float32", "bool", "int8", "float16"])
def test_nonzero_in_both_layouts(dtype: str) -> None:
    x = as_type(np.random.default_rng(0).integers(0, 2, (3, 4, 5)), dtype)
    expected = np.stack(np.nonzero(x))
    (rows,) = run("nonzero", [x], [("int64", (3, 60))])
    np.testing.assert_array_equal(rows, expected)
    (points,) = run("where_indices", [x], [("int64", (60, 3))])
    np.testing.assert_array_equal(points, expected.T)


def test_nonzero_of_nothing() -> None:
    (rows,) = run("nonzero", [np.zeros((2, 3))], [("int64", (2, 6))])
    assert rows.shape == (2, 0)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis: int | None) -> None:
    x = randn(3, 4)
    condition = np.array([True, False, True])
    attrs = {} if axis is None else {"axis": axis}
    size = (12,) if axis is None else (3, 4)
    (y,) = run("compress", [x, condition], [("float32", size)], **attrs)
    np.testing.assert_array_equal(y, np.compress(condition, x, axis))


def test_bincount() -> None:
    x = np.array([1, 3, 1, 9, 0], np.int32)
    (counts,) = run("bincount", [x], [("int64", (4,))])
    assert counts.tolist() == [1, 2, 0, 1]
    weights = np.array([0.5, 2, 0.25, 8, 1], np.float32)
    (sums,) = run("bincount", [x, weights], [("float32", (10,))])
    np.testing.assert_array_equal(sums, np.bincount(x, weights, 10))
    (seen,) = run("bincount", [x], [("int32", (4,))], binary=True)
    assert seen.tolist() == [1, 1, 0, 1]
    with pytest.raises(rt.TaskError, match="negative"):
        run("bincount", [np.array([-1], np.int32)], [("int32", (4,))])


@pytest.mark.parametrize(("batch_axis", "time_axis"), [(0, 1), (1, 0), (0, 2), (2, 1)])
def test_reverse_sequence(batch_axis: int, time_axis: int) -> None:
    x = randn(4, 5, 6)
    lengths = np.arange(1, x.shape[batch_axis] + 1).clip(max=x.shape[time_axis])
    (y,) = run(
        "reverse_sequence", [x, lengths], [("float32", x.shape)], batch_axis=batch_axis, time_axis=time_axis
    )
    expected = x.copy()
    for b, length in enumerate(lengths):
        source, target = (
            np.moveaxis(x, (batch_axis, time_axis), (0, 1)),
            np.moveaxis(expected, (batch_axis, time_axis), (0, 1)),
        )
        target[b, :length] = source[b, :length][::-1]
    np.testing.assert_array_equal(y, expected)


# scatter


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "float16", "bfloat16", "int64"])
def test_scatter_elements(reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    data = as_type(rng.integers(0, 5, (4, 5)), dtype)
    indices = rng.integers(-4, 4, (3, 5))
    updates = as_type(rng.integers(0, 5, (3, 5)), dtype)
    attrs = {"axis": 0, "reduction": reduction}
    (y,) = run("scatter_elements", [data, indices, updates], [(dtype, (4, 5))], **attrs)
    expected = data.astype(np.float64)
    function = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(reduction)
    for i in range(3):
        for j in range(5):
            place = (indices[i, j], j)
            update = float(updates[i, j])
            expected[place] = update if function is None else function(expected[place], update)
    np.testing.assert_array_equal(y.astype(np.float64), expected)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
def test_scatter_nd(reduction: str) -> None:
    data = randn(4, 5, 3)
    indices = np.array([[[0, 1]], [[3, -1]]], np.int32)
    updates = randn(2, 1, 3, seed=1)
    (y,) = run("scatter_nd", [data, indices, updates], [("float32", data.shape)], reduction=reduction)
    expected = data.copy()
    for index, update in zip(indices.reshape(-1, 2), updates.reshape(-1, 3), strict=True):
        old = expected[tuple(index)]
        new = {"none": update, "add": old + update, "max": np.maximum(old, update)}[reduction]
        expected[tuple(index)] = new
    np.testing.assert_array_equal(y, expected)


def test_scatter_refuses_what_is_out_of_range() -> None:
    data, updates = np.zeros(3, np.float32), np.ones(1, np.float32)
    with pytest.raises(rt.TaskError, match="index 3 is out of range"):
        run("scatter_elements", [data, np.array([3]), updates], [("float32", (3,))])
    with pytest.raises(rt.TaskError, match="index -4 is out of range"):
        run("scatter_nd", [data, np.array([[-4]]), updates], [("float32", (3,))])
    with pytest.raises(rt.TaskError, match="unknown reduction"):
        run("scatter_nd", [data, np.array([[0]]), updates], [("float32", (3,))], reduction="xor")


@settings(deadline=None, max_examples=60)
@given(
    rows=st.sampled_from([1, 2, 7, 64, 900, 20_000]),
    row=st.sampled_from([(), (1,), (3,), (16,), (5, 7), (64,), (600,)]),
    count=st.sampled_from([0, 1, 4, 33, 500]),
    spread=st.floats(0.01, 1.0),
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "float16", "int32", "uint8"]),
    index=st.sampled_from(["int32", "int64"]),
    seed=st.integers(0, 99),
)
def test_scatter_sum(
    rows: int, row: tuple[int, ...], count: int, spread: float, dtype: str, index: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    indices = rng.integers(-1, max(int(rows * spread), 1), count).astype(index)
    updates = as_type(rng.integers(0, 9, (count, *row)), dtype)
    (y,) = run("scatter_sum", [indices, updates], [(dtype, (rows, *row))])
    wide = {"uint8": np.uint8, "int32": np.int32}.get(dtype, np.float64)
    expected = np.zeros((rows, *row), wide)
    np.add.at(expected, indices[indices >= 0], updates[indices >= 0].astype(wide))
    np.testing.assert_array_equal(y, expected.astype(y.dtype))


def test_scatter_sum_rounds_once() -> None:
    updates = as_type(np.full((512, 2), 1.0), "bfloat16")
    (y,) = run("scatter_sum", [np.zeros(512, np.int64), updates], [("bfloat16", (3, 2))])
    np.testing.assert_array_equal(y.astype(np.float32), [[512, 512], [0, 0], [0, 0]])


def test_scatter_sum_refuses_what_does_not_fit() -> None:
    updates = np.ones((2, 3), np.float32)
    with pytest.raises(rt.TaskError, match="index 4 is out of range"):
        run("scatter_sum", [np.array([0, 4]), updates], [("float32", (4, 3))])
    with pytest.raises(rt.TaskError, match="do not go together"):
        run("scatter_sum", [np.array([0, 1]), updates], [("float32", (4, 2))])
    with pytest.raises(rt.TaskError, match="one element type"):
        run("scatter_sum", [np.array([0, 1]), updates], [("float64", (4, 3))])


# detection


def _nms(boxes: Array, scores: Array, most: int, iou: float, threshold: float) -> list[int]:
    def area(b: Array) -> float:
        return float((b[2] - b[0]) * (b[3] - b[1]))

    def overlap(a: Array, b: Array) -> float:
        size = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
        common = float(np.prod(np.maximum(size, 0)))
        return common / (area(a) + area(b) - common)

    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if (
            scores[i] > threshold
            and len(kept) < most
            and all(overlap(boxes[i], boxes[k]) <= iou for k in kept)
        ):
            kept.append(int(i))
    return kept


def _boxes(n: int, seed: int = 0) -> Array:
    corner = np.random.default_rng(seed).uniform(0, 8, (n, 2))
    size = np.random.default_rng(seed + 1).uniform(1, 5, (n, 2))
    return np.concatenate([corner, corner + size], 1).astype(np.float32)


@pytest.mark.parametrize("center", [False, True])
def test_non_max_suppression(center: bool) -> None:
    boxes = np.stack([_boxes(30, 0), _boxes(30, 5)])
    scores = np.random.default_rng(2).random((2, 3, 30)).astype(np.float32)
    given = boxes
    if center:
        y1, x1, y2, x2 = np.moveaxis(boxes, -1, 0)
        given = np.stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1], -1).astype(np.float32)
    attrs = {
        "max_output_boxes": 6,
        "iou_threshold": 0.4,
        "score_threshold": 0.2,
        "center_point_box": int(center),
    }
    (chosen,) = run("non_max_suppression", [given, scores], [("int64", (36, 3))], **attrs)
    expected = [
        [b, c, i] for b in range(2) for c in range(3) for i in _nms(boxes[b], scores[b, c], 6, 0.4, 0.2)
    ]
    assert chosen.tolist() == expected
    limits = [np.array([6]), np.array([0.4], np.float32), np.array([0.2], np.float32)]
    (again,) = run(
        "non_max_suppression", [given, scores, *limits], [("int64", (36, 3))], center_point_box=int(center)
    )
    assert again.tolist() == expected


def test_limits_may_be_left_out() -> None:
    boxes, scores = _boxes(12)[None], np.linspace(0, 1, 12, dtype=np.float32)[None, None]
    threshold = np.array([0.5], np.float32)
    attrs = {"present": [1, 1, 0, 0, 1], "max_output_boxes": 4, "iou_threshold": 0.3}
    (chosen,) = run("non_max_suppression", [boxes, scores, threshold], [("int64", (4, 3))], **attrs)
    assert chosen[:, 2].tolist() == _nms(boxes[0], scores[0, 0], 4, 0.3, 0.5)


def test_non_max_suppression_of_flipped_corners() -> None:
    boxes = _boxes(10)
    flipped = boxes[:, [2, 3, 0, 1]]
    scores = np.linspace(0, 1, 10, dtype=np.float32)
    outs = [("int32", (10,)), ("float32", (10,)), ("int32", ())]
    attrs = {"max_output_boxes": 10, "iou_threshold": 0.3}
    indices, kept, count = run("non_max_suppression_tf", [flipped, scores], outs, **attrs)
    assert indices.tolist() == _nms(boxes, scores, 10, 0.3, -np.inf)
    np.testing.assert_array_equal(kept, scores[indices])
    assert int(count) == len(indices)
    padded, _, _ = run("non_max_suppression_tf", [flipped, scores], outs, pad=True, **attrs)
    assert padded.shape == (10,)


def test_soft_suppression_lowers_scores() -> None:
    tf = pytest.importorskip("tensorflow")
    boxes, scores = _boxes(20), np.random.default_rng(3).random(20).astype(np.float32)
    e_indices, e_scores = tf.image.non_max_suppression_with_scores(boxes, scores, 12, 0.9, 0.05, 0.5)
    attrs = {"max_output_boxes": 12, "iou_threshold": 0.9, "score_threshold": 0.05, "soft_nms_sigma": 0.5}
    indices, kept = run(
        "non_max_suppression_tf", [boxes, scores], [("int32", (12,)), ("float32", (12,))], **attrs
    )
    np.testing.assert_array_equal(indices, e_indices)
    close(kept, e_scores.numpy(), 1e-6)


# regions


def _bilinear(plane: Array, y: float, x: float) -> list[float]:
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return [0.0] * 4
    y, x = max(y, 0), max(x, 0)
    y0, x0 = min(int(y), height - 1), min(int(x), width - 1)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    dy, dx = (0.0 if y0 == height - 1 else y - y0), (0.0 if x0 == width - 1 else x - x0)
    pairs = [
        (y0, x0, (1 - dy) * (1 - dx)),
        (y0, x1, (1 - dy) * dx),
        (y1, x0, dy * (1 - dx)),
        (y1, x1, dy * dx),
    ]
    return [float(plane[r, c]) * w for r, c, w in pairs]


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("sampling", [0, 2])
def test_roi_align(mode: str, transform: str, sampling: int) -> None:
    x = randn(2, 3, 8, 9)
    rois = np.array([[0, 0, 7, 7], [1.5, 2, 6, 5], [-3, -2, 12, 11]], np.float32)
    batches = np.array([0, 1, 1])
    attrs = {"mode": mode, "coordinate_transformation_mode": transform, "sampling_ratio": sampling}
    (y,) = run("roi_align", [x, rois, batches], [("float32", (3, 3, 2, 3))], spatial_scale=0.75, **attrs)
    offset = 0.5 if transform == "half_pixel" else 0.0
    for r, roi in enumerate(rois):
        x1, y1, x2, y2 = roi * 0.75 - offset
        w, h = (x2 - x1, y2 - y1) if offset else (max(x2 - x1, 1), max(y2 - y1, 1))
        gh, gw = sampling or int(np.ceil(h / 2)), sampling or int(np.ceil(w / 3))
        for c in range(3):
            for i in range(2):
                for j in range(3):
                    taps = [
                        _bilinear(
                            x[batches[r], c],
                            y1 + h / 2 * (i + (a + 0.5) / gh),
                            x1 + w / 3 * (j + (b + 0.5) / gw),
                        )
                        for a in range(gh)
                        for b in range(gw)
                    ]
                    expected = np.max(taps) if mode == "max" else np.sum(taps) / (gh * gw)
                    assert abs(y[r, c, i, j] - expected) < 1e-5


def test_max_roi_pool() -> None:
    x = randn(2, 2, 8, 8)
    rois = np.array([[0, 0, 0, 3, 3], [1, 2, 1, 7, 6]], np.float32)
    (y,) = run("max_roi_pool", [x, rois], [("float32", (2, 2, 2, 2))])
    np.testing.assert_array_equal(y[0], F.max_pool2d(torch.from_numpy(x[:1, :, :4, :4]), 2)[0].numpy())
    np.testing.assert_array_equal(
        y[1], F.adaptive_max_pool2d(torch.from_numpy(x[1:, :, 1:7, 2:8]), 2)[0].numpy()
    )


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_crop_and_resize(method: str) -> None:
    tf = pytest.importorskip("tensorflow")
    image = randn(2, 7, 6, 3)
    boxes = np.array([[0, 0, 1, 1], [0.2, 0.1, 0.7, 1.3], [0.9, 0.8, 0.1, 0.2]], np.float32)
    owners = np.array([0, 1, 1], np.int32)
    attrs = {"method": method, "extrapolation_value": -2.0}
    for size in [(4, 5), (1, 1)]:
        (y,) = run("crop_and_resize", [image, boxes, owners], [("float32", (3, *size, 3))], **attrs)
        expected = tf.image.crop_and_resize(image, boxes, owners, size, method, -2.0).numpy()
        close(y, expected, 1e-5)


# sampling and windows


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_grid_sample(mode: str, padding: str, align: bool, dtype: str) -> None:
    x = as_type(randn(2, 3, 5, 7), dtype)
    grid = as_type(np.random.default_rng(1).uniform(-1.6, 1.6, (2, 4, 6, 2)), dtype)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    (y,) = run("grid_sample", [x, grid], [(dtype, (2, 3, 4, 6))], **attrs)
    expected = F.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), mode, padding, align).numpy()
    close(y, expected, 2e-5)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_in_three_dimensions(mode: str, padding: str) -> None:
    x = randn(2, 2, 4, 5, 6)
    grid = np.random.default_rng(1).uniform(-1.4, 1.4, (2, 3, 4, 5, 3)).astype(np.float32)
    (y,) = run("grid_sample", [x, grid], [("float32", (2, 2, 3, 4, 5))], mode=mode, padding_mode=padding)
    expected = F.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), mode, padding, False).numpy()
    close(y, expected, 2e-5)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [False, True])
def test_grid_sample_at_points_that_are_nowhere(mode: str, padding: str, align: bool) -> None:
    x = randn(1, 2, 3, 4)
    points = [np.nan, 0, 0.2, np.inf, -np.inf, 0.1, np.nan, np.nan, -1e30, 1e30, 1e30, 0.5, 0.1, 7]
    grid = np.array(points, np.float32).reshape(1, 1, 7, 2)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    (y,) = run("grid_sample", [x, grid], [("float32", (1, 2, 1, 7))], **attrs)
    expected = F.grid_sample(torch.from_numpy(x), torch.from_numpy(grid), mode, padding, align).numpy()
    np.testing.assert_allclose(y, expected, 2e-5, 2e-5)


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "float16"])
def test_max_pool_with_indices(dtype: str) -> None:
    x = as_type(np.random.default_rng(0).integers(-50 if dtype != "uint8" else 0, 50, (2, 3, 9, 10)), dtype)
    attrs = {"kernel": [3, 2], "strides": [2, 2], "dilations": [2, 1], "pads_begin": [1, 1]}
    expected, positions = F.max_pool2d(
        torch.from_numpy(x.astype(np.float32)), (3, 2), (2, 2), (1, 1), (2, 1), return_indices=True
    )
    outs = [(dtype, expected.shape), ("int64", expected.shape)]
    y, indices = run("max_pool_indices", [x], outs, per_plane=True, **attrs)
    np.testing.assert_array_equal(y.astype(np.float32), expected.numpy())
    np.testing.assert_array_equal(indices, positions.numpy())
    _, flat = run("max_pool_indices", [x], outs, **attrs)
    np.testing.assert_array_equal(x.reshape(-1)[flat], y)
    _, columns = run("max_pool_indices", [x], outs, per_plane=True, storage_order=1, **attrs)
    np.testing.assert_array_equal(columns, positions.numpy() % 10 * 9 + positions.numpy() // 10)


def test_max_unpool() -> None:
    x = torch.from_numpy(randn(2, 3, 6, 6))
    pooled, positions = F.max_pool2d(x, 2, return_indices=True)
    expected = F.max_unpool2d(pooled, positions, 2).numpy()
    (y,) = run("max_unpool", [pooled.numpy(), positions.numpy()], [("float32", (2, 3, 6, 6))], per_plane=True)
    np.testing.assert_array_equal(y, expected)
    flat = positions.numpy() + (np.arange(6) * 36).reshape(2, 3, 1, 1)
    (y,) = run("max_unpool", [pooled.numpy(), flat], [("float32", (2, 3, 6, 6))])
    np.testing.assert_array_equal(y, expected)
    attrs = {"unpooled_shape": [2, 3, 6, 6]}
    (y,) = run("max_unpool", [pooled.numpy(), flat], [("float32", (2, 3, 7, 8))], **attrs)
    np.testing.assert_array_equal(y, np.pad(expected, ((0, 0), (0, 0), (0, 1), (0, 2))))
    with pytest.raises(rt.TaskError, match="out of range"):
        run("max_unpool", [pooled.numpy(), flat + 1000], [("float32", (2, 3, 6, 6))])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    x = np.abs(randn(2, 3, 9, 9))
    expected = F.lp_pool2d(torch.from_numpy(x), p, 3, 2).numpy()
    (y,) = run("lp_pool", [x], [("float32", expected.shape)], p=p, kernel=[3, 3], strides=[2, 2])
    close(y, expected, 1e-5)


def test_col2im() -> None:
    columns = randn(2, 3 * 6, 16)
    attrs = {"block": [2, 3], "positions": [4, 4], "strides": [2, 2], "pads_begin": [1, 0]}
    with pytest.raises(rt.TaskError, match="do not match"):
        run("col2im", [columns[:, :, 1:]], [("float32", (2, 3, 6, 9))], **attrs)
    expected = F.fold(torch.from_numpy(columns), (6, 9), (2, 3), 1, (1, 0), (2, 2)).numpy()
    (y,) = run("col2im", [columns], [("float32", expected.shape)], **attrs)
    close(y, expected, 1e-6)


# linear algebra


@pytest.mark.parametrize("dtype", REALS)
def test_determinant_and_inverse(dtype: str) -> None:
    a = as_type(randn(2, 3, 5, 5, seed=4) + 3 * np.eye(5), dtype)
    exact = a.astype(np.float64)
    (d,) = run("det", [a], [(dtype, (2, 3))])
    close(d, np.linalg.det(exact), tolerance(dtype))
    (inverse,) = run("inverse", [a], [(dtype, a.shape)])
    close(inverse, np.linalg.inv(exact), tolerance(dtype))


def test_pivoting_and_singular_matrices() -> None:
    a = np.array([[0, 1], [2, 0]], np.float64)
    assert run("det", [a], [("float64", ())])[0] == -2
    np.testing.assert_array_equal(run("inverse", [a], [("float64", (2, 2))])[0], [[0, 0.5], [1, 0]])
    assert run("det", [np.zeros((3, 3))], [("float64", ())])[0] == 0
    with pytest.raises(rt.TaskError, match="not invertible"):
        run("inverse", [np.ones((2, 2))], [("float64", (2, 2))])
    with pytest.raises(rt.TaskError, match="square"):
        run("inverse", [np.ones((2, 3))], [("float64", (2, 3))])


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky(upper: bool) -> None:
    a = randn(4, 6, 6, dtype=np.float64)
    a = a @ a.swapaxes(-1, -2) + np.eye(6)
    (factor,) = run("cholesky", [a], [("float64", a.shape)], upper=upper)
    expected = np.linalg.cholesky(a)
    close(factor, expected.swapaxes(-1, -2) if upper else expected, 1e-12)
    with pytest.raises(rt.TaskError, match="positive definite"):
        run("cholesky", [-a], [("float64", a.shape)])
    a[1] = -a[1]
    (part,) = run("cholesky", [a], [("float64", a.shape)], upper=upper, nan_if_indefinite=True)
    close(part[[0, 2, 3]], factor[[0, 2, 3]], 1e-12)
    triangle = np.tri(6, dtype=bool)
    assert np.array_equal(np.isnan(part[1]), triangle.T if upper else triangle)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangular_solve(lower: bool, transposed: bool, unit: bool) -> None:
    full = randn(3, 5, 5, dtype=np.float64) + 3 * np.eye(5)
    b = randn(3, 5, 2, seed=1, dtype=np.float64)
    attrs = {"lower": lower, "transposed": transposed, "unit_diagonal": unit}
    (x,) = run("triangular_solve", [full, b], [("float64", b.shape)], **attrs)
    a = np.tril(full) if lower else np.triu(full)
    if unit:
        a = a - a * np.eye(5) + np.eye(5)
    close((a.swapaxes(-1, -2) if transposed else a) @ x, b, 1e-10)


def test_solve() -> None:
    a, b = randn(3, 5, 5, dtype=np.float64), randn(3, 5, 2, seed=1, dtype=np.float64)
    (x,) = run("solve", [a, b], [("float64", b.shape)])
    close(x, np.linalg.solve(a, b), 1e-10)


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint8", "int8", "float16", "float32"])
def test_matmul_of_types_onednn_lacks(dtype: str) -> None:
    a = as_type(np.random.default_rng(0).integers(0, 5, (2, 1, 4, 6)), dtype)
    b = as_type(np.random.default_rng(1).integers(0, 5, (3, 6, 5)), dtype)
    (y,) = run("matmul", [a, b], [(dtype, (2, 3, 4, 5))])
    np.testing.assert_array_equal(y, as_type(a.astype(np.int64) @ b.astype(np.int64), dtype))


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_in_double(groups: int) -> None:
    x, w = randn(2, 4, 7, 8, dtype=np.float64), randn(6, 4 // groups, 3, 2, seed=1, dtype=np.float64)
    expected = F.conv2d(
        torch.from_numpy(x), torch.from_numpy(w), None, (2, 1), (1, 0), (1, 2), groups
    ).numpy()
    attrs = {"strides": [2, 1], "pads_begin": [1, 0], "dilations": [1, 2], "groups": groups}
    (y,) = run("conv", [x, w], [("float64", expected.shape)], **attrs)
    close(y, expected, 1e-12)


# random numbers


def test_philox_gives_the_known_answer() -> None:
    """The generator's published test vector for counter and key zero."""
    (bits,) = run("random_uniform", [np.zeros(2, np.int64)], [("uint64", (2,))])
    assert [int(b) >> 32 for b in bits] == [0x6627E8D5, 0xBC57AC4C]
    assert [int(b) & 0xFFFFFFFF for b in bits] == [0xE169C58D, 0x9B00DBD8]


@pytest.mark.parametrize("dtype", REALS)
def test_uniform_numbers(dtype: str) -> None:
    (x,) = run("random_uniform", [], [(dtype, (20_000,))], seed=7, low=-1.0, high=3.0)
    values = x.astype(np.float64)
    assert values.min() >= -1 and values.max() <= 3
    assert abs(values.mean() - 1) < 0.03 and abs(values.std() - 4 / np.sqrt(12)) < 0.03


@pytest.mark.parametrize("dtype", REALS)
def test_normal_numbers(dtype: str) -> None:
    (x,) = run("random_normal", [], [(dtype, (40_001,))], seed=7, mean=2.0, scale=3.0)
    values = (x.astype(np.float64) - 2) / 3
    assert abs(values.mean()) < 0.03 and abs(values.std() - 1) < 0.03
    assert abs((values**3).mean()) < 0.08 and abs((values**4).mean() - 3) < 0.2
    assert np.isfinite(values).all()


def test_integers_and_permutations() -> None:
    (x,) = run("random_uniform", [], [("int32", (10_000,))], seed=1, low=-3, high=4)
    assert set(x.tolist()) == set(range(-3, 4))
    (order,) = run("random_permutation", [], [("int64", (1000,))], seed=3)
    assert sorted(order.tolist()) == list(range(1000)) and order.tolist() != list(range(1000))


def test_the_state_moves_on_and_decides_everything() -> None:
    state = np.array([5, 0])
    first, after = run("random_uniform", [state], [("float32", (10,)), ("int64", (2,))])
    assert after.tolist() == [5, 3]
    again, _ = run("random_uniform", [state], [("float32", (10,)), ("int64", (2,))])
    np.testing.assert_array_equal(first, again)
    second, _ = run("random_uniform", [after], [("float32", (10,)), ("int64", (2,))])
    assert not set(first.tolist()) & set(second.tolist())
    (whole,) = run("random_uniform", [state], [("float32", (22,))])
    np.testing.assert_array_equal(whole[12:], second)


def test_bernoulli_and_multinomial() -> None:
    p = np.full(20_000, 0.3, np.float32)
    for dtype in ("bool", "float32", "bfloat16", "int32"):
        (x,) = run("bernoulli", [p], [(dtype, p.shape)], seed=1)
        assert abs(x.astype(np.float64).mean() - 0.3) < 0.02
    logits = np.log(np.array([[0.1, 0.6, 0.3], [1, 1, 2]], np.float32))
    (draws,) = run("multinomial", [logits], [("int32", (2, 20_000))], seed=2)
    frequency = np.stack([np.bincount(row, minlength=3) / 20_000 for row in draws])
    close(frequency, np.array([[0.1, 0.6, 0.3], [0.25, 0.25, 0.5]]), 0.02)


# scans and transforms


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "logsumexp"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative(kind: str, dtype: str, axis: int) -> None:
    x = as_type(randn(3, 5, 4), dtype)
    (y,) = run("cumulative", [x], [(dtype, x.shape)], kind=kind, axis=axis)
    functions = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    function = functions.get(kind, np.logaddexp)
    close(y, function.accumulate(x.astype(np.float64), axis=axis), tolerance(dtype))


def test_cumulative_exclusive_and_reverse() -> None:
    x = np.arange(1, 6)
    cases = {
        (False, True): [15, 14, 12, 9, 5],
        (True, False): [0, 1, 3, 6, 10],
        (True, True): [14, 12, 9, 5, 0],
    }
    for (exclusive, reverse), expected in cases.items():
        (y,) = run("cumulative", [x], [("int64", (5,))], exclusive=exclusive, reverse=reverse)
        assert y.tolist() == expected


@pytest.mark.parametrize("kind", ["max", "min"])
def test_cumulative_positions(kind: str) -> None:
    x = np.array([[3, 1, 3, 5, 5, 2], [0, -1, -1, 4, np.nan, 9]], np.float32)
    values, positions = run("cumulative", [x], [("float32", x.shape), ("int64", x.shape)], kind=kind, axis=1)
    expected = getattr(torch, f"cum{kind}")(torch.from_numpy(x), 1)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(positions, expected.indices.numpy())


@pytest.mark.parametrize("n", [1, 2, 8, 3, 7, 12, 30, 97, 128, 250])
@pytest.mark.parametrize("inverse", [False, True])
def test_fourier_transform_of_any_length(n: int, inverse: bool) -> None:
    x = randn(3, n, 2, dtype=np.float64)
    (y,) = run("dft", [x], [("float64", x.shape)], inverse=inverse)
    expected = (np.fft.ifft if inverse else np.fft.fft)(x[..., 0] + 1j * x[..., 1])
    close(y[..., 0], expected.real, 1e-12)
    close(y[..., 1], expected.imag, 1e-12)


@pytest.mark.parametrize("n", [8, 9])
def test_real_transforms_and_back(n: int) -> None:
    x = randn(2, n, 5, 1)
    (y,) = run("dft", [x], [("float32", (2, n // 2 + 1, 5, 2))], axis=1, onesided=True)
    expected = np.fft.rfft(x[..., 0], axis=1)
    close(y[..., 0] + 0, expected.real, 1e-5)
    close(y[..., 1] + 0, expected.imag, 1e-5)
    (back,) = run("dft", [y], [("float32", x.shape)], axis=1, onesided=True, inverse=True)
    close(back, x, 1e-5)


def test_transform_length_cuts_and_fills() -> None:
    x = randn(6, 1)
    for n in (4, 9):
        (y,) = run("dft", [x], [("float32", (n, 2))], length=n)
        close(y[:, 0], np.fft.fft(x[:, 0], n).real, 1e-5)


def test_halves_are_promoted() -> None:
    x = randn(1, 1, 4, 4).astype(BF16)
    grid = np.zeros((1, 1, 1, 2), BF16)
    (y,) = run("grid_sample", [x, grid], [("bfloat16", (1, 1, 1, 1))])
    assert abs(float(y.reshape(-1)[0]) - x[0, 0, 1:3, 1:3].astype(np.float64).mean()) < 0.01


# every kernel checks what it is given


@pytest.mark.parametrize("op", rt.aicpu_kernels())
def test_kernels_refuse_wrong_operands(op: str) -> None:
    scalar = np.zeros((), np.float32)
    for inputs, outputs in [
        ([], []),
        ([scalar] * 7, [("float32", ())] * 7),
        ([scalar], [("float32", ())] * 5),
    ]:
        with pytest.raises(rt.TaskError, match=op):
            run(op, inputs, outputs)


def test_an_unknown_kernel_is_named() -> None:
    with pytest.raises(rt.UnsupportedTask, match="'nothing'"):
        run("nothing", [], [])
