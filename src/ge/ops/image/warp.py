"""Images sampled at computed positions: projective transforms, and the gradient of cropping."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ops.plugins import Node, Results, Unsupported, plugin


def _folded(n: Node, place: Any, size: int, mode: str) -> Any:
    """Coordinates mapped into the image by a fill mode; those outside are kept for CONSTANT."""
    last = float(size - 1)
    if mode == "NEAREST":
        return n.op("Clip", place, min=0.0, max=last)
    if mode == "CONSTANT":
        return place
    if size <= 1:
        return n.op("Mul", place, 0.0)
    if mode == "REFLECT":
        return _reflected(n, place, size)
    down = n.op("Sub", place, n.op("Mul", n.op("Trunc", n.op("Div", place, last)), float(size)))
    below = n.op(
        "Add",
        place,
        n.op("Mul", n.op("Add", n.op("Trunc", n.op("Div", n.op("Neg", place), last)), 1.0), float(size)),
    )
    turned = n.op("Select", n.op("Less", place, 0.0), below, down)
    outside = n.op("Or", n.op("Less", place, 0.0), n.op("Greater", place, last))
    return n.op("Clip", n.op("Select", outside, turned, place), min=0.0, max=last)


def _reflected(n: Node, place: Any, size: int) -> Any:
    """Reflected at the outer edges of the border pixels."""
    period = 2.0 * size
    turns = n.op("Trunc", n.op("Div", n.op("Neg", place), period))
    moved = n.op(
        "Select", n.op("Less", place, -period), n.op("Add", n.op("Mul", turns, period), place), place
    )
    mirrored = n.op(
        "Select",
        n.op("Less", moved, float(-size)),
        n.op("Add", moved, period),
        n.op("Sub", n.op("Neg", moved), 1.0),
    )
    rest = n.op("Sub", place, n.op("Mul", n.op("Trunc", n.op("Div", place, period)), period))
    back = n.op("Select", n.op("GreaterEqual", rest, float(size)), n.op("Sub", period - 1.0, rest), rest)
    below, above = n.op("Less", place, 0.0), n.op("Greater", place, float(size - 1))
    return n.op(
        "Clip",
        n.op("Select", below, mirrored, n.op("Select", above, back, place)),
        min=0.0,
        max=float(size - 1),
    )


def _source_places(n: Node, height: int, width: int) -> tuple[Any, Any]:
    """The source of each output pixel, as (batch, height, width): x then y."""
    rows = n.desc(1).shape[0]
    t = [
        n.op("Reshape", n.op("Slice", n.inputs[1], starts=[0, i], ends=[rows, i + 1]), shape=[rows, 1, 1])
        for i in range(8)
    ]
    x = n.builder.constant(np.arange(width, dtype=np.float32).reshape(1, 1, width))
    y = n.builder.constant(np.arange(height, dtype=np.float32).reshape(1, height, 1))

    def plane(a: Any, b: Any, c: Any) -> Any:
        return n.op("Add", n.op("Add", n.op("Mul", a, x), n.op("Mul", b, y)), c)

    depth = plane(t[6], t[7], 1.0)
    return n.op("Div", plane(t[0], t[1], t[2]), depth), n.op("Div", plane(t[3], t[4], t[5]), depth)


def _rounded(n: Node, x: Any) -> Any:
    """The nearest integer, halves away from zero."""
    whole = n.op("Trunc", x)
    far = n.op("GreaterEqual", n.op("Abs", n.op("Sub", x, whole)), 0.5)
    return n.op("Add", whole, n.op("Select", far, n.op("Sign", x), 0.0))


@plugin(tensorflow=["ImageProjectiveTransformV2", "ImageProjectiveTransformV3"])
def _projective_transform(n: Node) -> Results:
    """Each output pixel is sampled at its transformed position, from the nearest pixel or the four around it."""
    batch, height, width, channels = n.desc().shape
    out = n.ints(2, "the output shape")
    mode = str(n.attr("fill_mode", "CONSTANT")).upper()
    if n.desc().dtype != "float32" or mode not in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
        raise Unsupported(f"transforms of {n.desc().dtype} filled by {mode}", "use float32 images")
    fill = n.inputs[3] if n.type.endswith("V3") else n.builder.constant(np.float32(0))
    x, y = _source_places(n, *out)
    x, y = _folded(n, x, width, mode), _folded(n, y, height, mode)
    spots = [batch, *out, 1]
    first = n.builder.constant(np.arange(batch, dtype=np.int64).reshape(batch, 1, 1) * (height * width))
    pixels = n.op("Reshape", n.inputs[0], shape=[batch * height * width, channels])

    def read(row: Any, column: Any) -> Any:
        """Pixels at integral coordinates; the fill value outside, and where a coordinate is NaN."""
        inside = n.op(
            "And",
            n.op("And", n.op("GreaterEqual", row, 0.0), n.op("LessEqual", row, float(height - 1))),
            n.op("And", n.op("GreaterEqual", column, 0.0), n.op("LessEqual", column, float(width - 1))),
        )
        safe = [n.op("Cast", n.op("Select", inside, v, 0.0), to="int64") for v in (row, column)]
        flat = n.op("Add", n.op("Add", n.op("Mul", safe[0], width), safe[1]), first)
        flat = n.op("BroadcastTo", flat, shape=spots[:3])
        inside = n.op("Reshape", n.op("BroadcastTo", inside, shape=spots[:3]), shape=spots)
        return n.op("Select", inside, n.op("Gather", pixels, flat, axis=0), fill)

    if str(n.attr("interpolation", "NEAREST")).upper() == "NEAREST":
        return read(_rounded(n, y), _rounded(n, x))

    top, left = n.op("Floor", y), n.op("Floor", x)
    bottom, right = n.op("Add", top, 1.0), n.op("Add", left, 1.0)

    def share(a: Any, b: Any) -> Any:
        return n.op("Reshape", n.op("BroadcastTo", n.op("Sub", a, b), shape=spots[:3]), shape=spots)

    def line(row: Any) -> Any:
        return n.op(
            "Add",
            n.op("Mul", share(right, x), read(row, left)),
            n.op("Mul", share(x, left), read(row, right)),
        )

    return n.op("Add", n.op("Mul", share(bottom, y), line(top)), n.op("Mul", share(y, top), line(bottom)))


@plugin(tensorflow="MaxPoolGradWithArgmax")
def _max_pool_gradient_with_argmax(n: Node) -> Results:
    """The gradient of each window goes back to the position of its maximum."""
    flat = n.op("Reshape", n.op("Cast", n.inputs[2], to="int64"), shape=[n.desc(1).size, 1])
    batch, size = n.desc().shape[0], n.desc().size
    if not n.attr("include_batch_in_index", False):
        per = n.desc(1).size // batch
        start = np.repeat(np.arange(batch, dtype=np.int64) * (size // batch), per).reshape(-1, 1)
        flat = n.op("Add", flat, n.builder.constant(start))
    blank = n.op("BroadcastTo", n.builder.constant(np.zeros((), numpy_dtype(n.desc(1).dtype))), shape=[size])
    total = n.op(
        "ScatterNd", blank, flat, n.op("Reshape", n.inputs[1], shape=[n.desc(1).size]), reduction="add"
    )
    return n.op("Reshape", total, shape=list(n.desc().shape))


@plugin(tensorflow="CropAndResizeGradImage")
def _crop_gradient(n: Node) -> Results:
    """Every pixel of a crop returns its gradient to the (up to four) pixels it was interpolated from."""
    if str(n.attr("method", "bilinear")) != "bilinear":
        raise Unsupported("the gradient of crops of nearest pixels", "use method='bilinear'")
    count, rows, columns, channels = n.desc().shape
    batch, height, width, _ = n.ints(3, "the image size")
    total = n.op("BroadcastTo", n.builder.constant(np.float32(0)), shape=[batch * height * width, channels])
    y, fits_y = _crop_places(n, 0, rows, height)
    x, fits_x = _crop_places(n, 1, columns, width)
    fits = n.op(
        "And",
        n.op("Reshape", fits_y, shape=[count, rows, 1]),
        n.op("Reshape", fits_x, shape=[count, 1, columns]),
    )
    owner = n.op(
        "Mul", n.op("Reshape", n.op("Cast", n.inputs[2], to="int64"), shape=[count, 1, 1]), height * width
    )
    grads: Any = n.inputs[0] if n.desc().dtype == "float32" else n.op("Cast", n.inputs[0], to="float32")
    for row, by_row in _ends(n, y, height, (count, rows, 1)):
        for column, by_column in _ends(n, x, width, (count, 1, columns)):
            flat = n.op("Add", n.op("Add", n.op("Mul", row, width), column), owner)
            weight = n.op("Select", fits, n.op("Mul", by_row, by_column), 0.0)
            part = n.op("Mul", grads, n.op("Reshape", weight, shape=[count, rows, columns, 1]))
            total = n.op(
                "ScatterNd",
                total,
                n.op("Reshape", flat, shape=[count * rows * columns, 1]),
                n.op("Reshape", part, shape=[count * rows * columns, channels]),
                reduction="add",
            )
    y = n.op("Reshape", total, shape=[batch, height, width, channels])
    to = str(n.attr("T", "float32"))
    return y if to == "float32" else n.op("Cast", y, to=to)


def _crop_places(n: Node, axis: int, out: int, size: int) -> tuple[Any, Any]:
    """Sample coordinates of each box along an axis, as (boxes, out), and whether they are inside the image."""
    boxes = n.desc(1).shape[0]
    low, high = (n.op("Slice", n.inputs[1], starts=[0, i], ends=[boxes, i + 1]) for i in (axis, axis + 2))
    if out > 1:
        step = n.op("Div", n.op("Mul", n.op("Sub", high, low), float(size - 1)), float(out - 1))
        steps = n.builder.constant(np.arange(out, dtype=np.float32).reshape(1, out))
        place = n.op("Add", n.op("Mul", low, float(size - 1)), n.op("Mul", steps, step))
    else:
        place = n.op("Mul", n.op("Mul", n.op("Add", low, high), 0.5), float(size - 1))
    inside = n.op("And", n.op("GreaterEqual", place, 0.0), n.op("LessEqual", place, float(size - 1)))
    return place, inside


def _ends(n: Node, place: Any, size: int, shape: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """The two pixels around each position and their weights."""
    place = n.op("Reshape", n.op("Clip", place, min=0.0, max=float(size - 1)), shape=list(shape))
    low, high = n.op("Floor", place), n.op("Ceil", place)
    share = n.op("Sub", place, low)
    return [
        (n.op("Cast", low, to="int64"), n.op("Sub", 1.0, share)),
        (n.op("Cast", high, to="int64"), share),
    ]
