"""The table's functions of TensorFlow's interface that are made of several operators."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_adapter.conformance.rows import B, Each, I, V, call


def _named(path: str, **given: Any) -> None:
    """A line for a function by its public name; its first argument is the first one given."""
    function: Any = tf
    for part in path.split("."):
        function = getattr(function, part)
    call(f"tf.{path}", function, **given)


_SHARES, _IMAGE, _GREY = V(3, 5, d="share"), V(2, 6, 7, 3, d="image"), V(1, 16, 16, 1, d="image")
_REGULAR, _SPREAD = V(3, 3, d="regular"), V(3, 8, d="spread")

# Functions of one tensor, by the name of their argument.
_OF_ONE = {
    "x": ("math.sigmoid", "math.l2_normalize"),
    "features": ("math.softplus", "nn.gelu", "nn.silu", "nn.elu", "nn.crelu", "nn.relu6", "nn.leaky_relu"),
    "input_tensor": ("math.reduce_variance", "math.reduce_std", "math.reduce_logsumexp"),
    "logits": ("nn.softmax", "nn.log_softmax"),
}
for _argument, _paths in _OF_ONE.items():
    for _path in _paths:
        _named(_path, **{_argument: Each(V(3, 5), V(2, 3, 4))})
_named("math.erfcinv", x=_SHARES, _ulps=512)
_named("math.count_nonzero", input=V(3, 5, d="small"), axis=Each(None, 0))
_named("math.confusion_matrix", labels=I([0, 2, 1]), predictions=I([0, 1, 1]), num_classes=3)
_named("math.top_k", input=_SPREAD, k=3)
_named("math.unsorted_segment_mean", data=V(5, 2), segment_ids=I([0, 2, 0, 1, 2]), num_segments=3)

_named("nn.moments", x=V(3, 4, 5), axes=[0, 1])
_named("nn.conv1d", input=V(2, 9, 3), filters=V(3, 3, 4), stride=Each(1, 2), padding=Each("SAME", "VALID"))
_named("nn.sigmoid_cross_entropy_with_logits", labels=_SHARES, logits=V(3, 5))
_named("nn.embedding_lookup", params=V(6, 4), ids=I([0, 5, 2]))
_named(
    "nn.separable_conv2d",
    input=V(1, 6, 6, 2),
    depthwise_filter=V(3, 3, 2, 2),
    pointwise_filter=V(1, 1, 4, 3),
    strides=[1, 1, 1, 1],
    padding="SAME",
)

_OF_IMAGES = {
    "image": ("flip_left_right", "flip_up_down", "transpose", "per_image_standardization", "sobel_edges"),
    "images": ("rgb_to_grayscale", "rgb_to_yuv", "yuv_to_rgb", "total_variation"),
}
for _argument, _paths in _OF_IMAGES.items():
    for _path in _paths:
        _named(f"image.{_path}", **{_argument: _IMAGE})
_named("image.rot90", image=_IMAGE, k=Each(1, 2, 3))
_named(
    "image.resize",
    images=_IMAGE,
    size=[9, 4],
    method=Each("bilinear", "nearest", "bicubic", "area", "lanczos3"),
)
_named("image.resize_with_pad", image=_IMAGE, target_height=9, target_width=9)
_named("image.central_crop", image=_IMAGE, central_fraction=0.5)
_named("image.adjust_brightness", image=_IMAGE, delta=0.2)
_named("image.adjust_gamma", image=_IMAGE, gamma=1.5)
_named("image.psnr", a=_IMAGE, b=_IMAGE, max_val=1.0)
call("tf.image.crop", lambda image: tf.image.crop_to_bounding_box(image, 1, 2, 3, 4), image=_IMAGE)
call("tf.image.pad", lambda image: tf.image.pad_to_bounding_box(image, 1, 2, 9, 12), image=_IMAGE)
call("tf.image.ssim", lambda a, b: tf.image.ssim(a, b, 1.0), a=_GREY, b=_GREY, _ulps=512)

_OF_MATRICES = {
    "x": ("trace",),
    "a": ("matrix_transpose",),
    "matrix": ("adjoint",),
    "tensor": ("norm",),
    "input": ("diag_part", "det", "inv"),
}
for _argument, _paths in _OF_MATRICES.items():
    for _path in _paths:
        _named(f"linalg.{_path}", **{_argument: _REGULAR}, _ulps=512)
_named("linalg.matvec", a=V(3, 4), b=V(4))
_named("linalg.expm", input=V(3, 3, d="unit"), _ulps=512)
_named("linalg.logdet", matrix=V(3, 3, d="definite"), _ulps=512)

call("tf.tensordot", lambda a, b: tf.tensordot(a, b, [[1], [0]]), a=V(2, 3, 4), b=V(3, 5))
call("tf.boolean_mask", lambda x, m: tf.boolean_mask(x, m), x=V(4, 2), m=B([True, False, True, True]))
call("tf.meshgrid", lambda a, b: tf.meshgrid(a, b), a=V(3), b=V(4))
call("tf.repeat", lambda x: tf.repeat(x, 3, axis=0), x=V(2, 3))
call("tf.sort", lambda x: (tf.sort(x), tf.argsort(x, direction="DESCENDING")), x=_SPREAD)
call("tf.searchsorted", lambda s, v: tf.searchsorted(s, v), s=I([1, 3, 5, 7]), v=I([0, 3, 9]))
call("tf.signal.frame", lambda x: tf.signal.frame(x, 4, 2), x=V(2, 12))
call("tf.signal.stft", lambda x: tf.abs(tf.signal.stft(x, 8, 4)), x=V(2, 32), _ulps=512)
call("tf.signal.dct", lambda x: tf.signal.dct(x, norm="ortho"), x=V(2, 8), _ulps=512)
