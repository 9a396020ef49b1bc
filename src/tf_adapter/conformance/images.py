"""The table's image operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_adapter.conformance.rows import C, Each, F, I, V, op

_IMAGE = V(2, 5, 6, 3, d="image")
_SIZE = Each([7, 9], [3, 4], [5, 6])
_CORNERS: dict[str, Any] = {"align_corners": Each(False, True)}
for _name in ["ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"]:
    op(_name, images=_IMAGE, size=_SIZE, **_CORNERS, _ulps=256)
    op(_name, images=_IMAGE, size=_SIZE, half_pixel_centers=True, _ulps=256)
op("ResizeArea", images=_IMAGE, size=_SIZE, **_CORNERS, _ulps=256)
op(
    "ResizeBilinearGrad",
    grads=F(2, 7, 9, 3),
    original_image=V(2, 5, 6, 3),
    **_CORNERS,
    _dtypes=["float32"],
    _ulps=256,
)
op(
    "ResizeBicubicGrad",
    grads=F(2, 7, 9, 3),
    original_image=V(2, 5, 6, 3),
    **_CORNERS,
    _dtypes=["float32"],
    _ulps=256,
)
op("ResizeNearestNeighborGrad", grads=V(2, 7, 9, 3), size=[5, 6], **_CORNERS)
op(
    "ScaleAndTranslate",
    images=_IMAGE,
    size=[7, 4],
    scale=C([1.4, 0.7], "float32"),
    translation=C([0.5, -1.0], "float32"),
    kernel_type=Each("lanczos3", "triangle", "gaussian"),
    antialias=Each(True, False),
    _ulps=256,
)
op(
    "ScaleAndTranslateGrad",
    grads=F(2, 7, 4, 3),
    original_image=F(2, 5, 6, 3),
    scale=C([1.4, 0.7], "float32"),
    translation=C([0.0, 0.0], "float32"),
    _dtypes=["float32"],
    _ulps=256,
)
op("AdjustContrastv2", images=_IMAGE, contrast_factor=F(d="positive"))
op("AdjustHue", images=_IMAGE, delta=F(d="unit"), _ulps=256)
op("AdjustSaturation", images=_IMAGE, scale=F(d="positive"), _ulps=256)
op("RGBToHSV", images=Each(_IMAGE, V(4, 3, d="image")), _ulps=128)
op("HSVToRGB", images=Each(_IMAGE, V(4, 3, d="image")), _ulps=128)
_BOXES = C(
    [[0.1, 0.1, 0.8, 0.9], [0.0, 0.2, 0.6, 0.6], [0.12, 0.1, 0.8, 0.88], [0.5, 0.5, 1.0, 1.0]], "float32"
)
_SCORES = C([0.9, 0.7, 0.8, 0.2], "float32")


def _float(value: np.ndarray) -> object:
    return I(value, "float32")


op(
    "CropAndResize",
    image=_IMAGE,
    boxes=_float(_BOXES),
    box_ind=I([0, 1, 0, 1]),
    crop_size=[4, 3],
    method=Each("bilinear", "nearest"),
    _ulps=256,
)
op(
    "CropAndResizeGradImage",
    grads=F(4, 4, 3, 3),
    boxes=_float(_BOXES),
    box_ind=I([0, 1, 0, 1]),
    image_size=C([2, 5, 6, 3]),
    T="float32",
    _dtypes=["float32"],
    _ulps=256,
)
op(
    "CropAndResizeGradBoxes",
    grads=F(4, 4, 3, 3),
    image=V(2, 5, 6, 3, d="image"),
    boxes=_float(_BOXES),
    box_ind=I([0, 1, 0, 1]),
    _dtypes=["float32"],
    _ulps=1024,
)
_NMS: dict[str, Any] = {
    "boxes": _float(_BOXES),
    "scores": _float(_SCORES),
    "max_output_size": 3,
    "iou_threshold": 0.5,
    "_dtypes": ["float32"],
}
op("NonMaxSuppression", **_NMS)
op("NonMaxSuppressionV2", **_NMS)
op("NonMaxSuppressionV3", **_NMS, score_threshold=0.1)
op("NonMaxSuppressionV4", **_NMS, score_threshold=0.1, pad_to_max_output_size=Each(True, False))
op("NonMaxSuppressionV5", **_NMS, score_threshold=0.1, soft_nms_sigma=Each(0.0, 0.5))
op(
    "NonMaxSuppressionWithOverlaps",
    overlaps=I(np.eye(4), "float32"),
    scores=_float(_SCORES),
    max_output_size=3,
    overlap_threshold=0.5,
    score_threshold=0.1,
    _dtypes=["float32"],
)
op(
    "CombinedNonMaxSuppression",
    boxes=_float(np.stack([_BOXES, _BOXES * 1.5])[:, :, None]),
    scores=_float(np.stack([np.stack([_SCORES, _SCORES[::-1] * 0.9], 1)] * 2)),
    max_output_size_per_class=Each(1, 3),
    max_total_size=4,
    iou_threshold=0.5,
    score_threshold=0.1,
    pad_per_class=Each(False, True),
    clip_boxes=Each(True, False),
    _dtypes=["float32"],
)
op("DrawBoundingBoxes", images=_IMAGE, boxes=_float(np.stack([_BOXES, _BOXES])))
op("DrawBoundingBoxesV2", images=_IMAGE, boxes=_float(np.stack([_BOXES, _BOXES])), colors=F(2, 3, d="image"))
op(
    "ExtractGlimpse",
    input=F(2, 5, 6, 3),
    size=[3, 3],
    offsets=F(2, 2, d="unit"),
    centered=True,
    normalized=True,
    uniform_noise=False,
    _dtypes=["float32"],
    _compare="shapes",
)
op(
    "ExtractGlimpseV2",
    input=F(2, 5, 6, 3),
    size=[3, 3],
    offsets=F(2, 2, d="unit"),
    uniform_noise=False,
    noise="zero",
    _dtypes=["float32"],
)
_TRANSFORMS = C([[1, 0.1, 0.5, -0.1, 0.9, 1, 0, 0], [0.8, 0, 1, 0, 1.2, -1, 0.01, 0]], "float32")
op(
    "ImageProjectiveTransformV2",
    images=_IMAGE,
    transforms=_float(_TRANSFORMS),
    output_shape=[6, 5],
    interpolation=Each("BILINEAR", "NEAREST"),
    _ulps=512,
)
op(
    "ImageProjectiveTransformV3",
    images=_IMAGE,
    transforms=_float(_TRANSFORMS),
    output_shape=[6, 5],
    fill_value=0.5,
    interpolation=Each("BILINEAR", "NEAREST"),
    fill_mode=Each("CONSTANT", "REFLECT", "WRAP", "NEAREST"),
    _ulps=512,
)
