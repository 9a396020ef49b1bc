"""Arithmetic on shapes for operator files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "axis_check",
    "broadcast_shapes",
    "compare_tensor_dict_key",
    "get_shape_size",
    "produce_shapes",
    "refine_shape_axes",
    "refine_shapes_for_broadcast",
    "scalar2tensor_one",
    "shape_refine",
    "shape_to_list",
    "simplify_axis_shape",
    "unify_broadcast_shapes",
    "variable_shape",
    "wrap_axes_to_positive",
]

Shape = list[int]


def shape_to_list(shape: Iterable[Any]) -> Shape:
    """A shape as a list of integers.

    >>> shape_to_list((2, 3))
    [2, 3]
    """
    return [int(d) for d in shape]


def scalar2tensor_one(shape: Sequence[int]) -> Sequence[int]:
    """(1,) for the shape of a scalar, else the shape itself."""
    return shape if len(shape) else (1,)


def broadcast_shapes(
    shape1: Sequence[int],
    shape2: Sequence[int],
    op_name: str = "",
    param_name_input1: str = "",
    param_name_input2: str = "",
) -> tuple[Shape, Shape, Shape]:
    """Two shapes with ones in front so that they have one rank, and what they broadcast to.

    >>> broadcast_shapes((2, 3), (3,))
    ([2, 3], [1, 3], [2, 3])
    """
    a, b, result = unify_broadcast_shapes([shape1, shape2], op_name, (param_name_input1, param_name_input2))
    return a, b, result


def produce_shapes(shape1: Sequence[int], shape2: Sequence[int]) -> tuple[Shape, Shape, Shape]:
    """The older name of broadcast_shapes."""
    return broadcast_shapes(shape1, shape2)


def unify_broadcast_shapes(
    shapes: Sequence[Sequence[int]], op_name: str = "", names: Sequence[str] = ()
) -> list[Shape]:
    """Shapes with ones in front so that they have one rank, then what they broadcast to."""
    rank = max(len(s) for s in shapes)
    padded = [[1] * (rank - len(s)) + shape_to_list(s) for s in shapes]
    result = []
    for dims in zip(*padded, strict=True):
        extents = {d for d in dims if d != 1}
        if len(extents) > 1:
            what = f"operator {op_name}: " if op_name else ""
            between = f" of {' and '.join(names)}" if any(names) else ""
            raise RuntimeError(
                f"{what}shapes {', '.join(str(tuple(s)) for s in shapes)}{between} do not broadcast"
            )
        result.append(extents.pop() if extents else 1)
    return [*padded, result]


def refine_shapes_for_broadcast(shape1: Sequence[int], shape2: Sequence[int]) -> tuple[Shape, Shape]:
    """Two shapes of one rank with neighbouring dimensions merged that broadcast alike.

    >>> refine_shapes_for_broadcast((2, 3, 4), (2, 3, 1))
    ([6, 4], [6, 1])
    """
    a, b, _ = broadcast_shapes(shape1, shape2)
    merged: list[list[int]] = []
    before = None
    for x, y in zip(a, b, strict=True):
        if x == y == 1 and len(a) > 1:
            continue
        how = (x == y, x == 1, y == 1)
        if merged and how == before:
            merged[-1] = [merged[-1][0] * x, merged[-1][1] * y]
        else:
            merged.append([x, y])
        before = how
    merged = merged or [[1, 1]]
    return [x for x, _ in merged], [y for _, y in merged]


def shape_refine(shape: Sequence[int], reduce_axis: Any = None, keep_dims: bool = True) -> Any:
    """A shape without dimensions of one element; with `reduce_axis`, the axes moved along."""
    dims = shape_to_list(shape)
    if reduce_axis is None:
        return [d for d in dims if d != 1] or [1]
    axes = wrap_axes_to_positive(reduce_axis, len(dims))
    kept = [i for i, d in enumerate(dims) if d != 1 or (i in axes and keep_dims)]
    refined = [dims[i] for i in kept] or [1]
    return refined, [kept.index(a) for a in axes if a in kept]


def wrap_axes_to_positive(axes: Any, rank: int) -> Shape:
    """Axes counted from the front.

    >>> wrap_axes_to_positive(-1, 3)
    [2]
    """
    values = [axes] if isinstance(axes, int) else list(axes)
    for a in values:
        if not -rank <= a < rank:
            raise RuntimeError(f"axis {a} is outside a tensor of rank {rank}")
    return [int(a) % rank for a in values]


def axis_check(shape_len: int, axis: Any) -> Any:
    """Axes counted from the front, sorted, each once; a single one stays a number."""
    if isinstance(axis, (list, tuple)):
        return sorted(set(wrap_axes_to_positive(axis, shape_len)))
    return wrap_axes_to_positive(int(axis), shape_len)[0]


def refine_shape_axes(shape: Sequence[int], axes: Any) -> tuple[Shape, Shape]:
    """A shape with neighbouring dimensions merged that are reduced, or kept, together; and the axes of it.

    >>> refine_shape_axes((2, 3, 4, 5), (1, 2))
    ([2, 12, 5], [1])
    """
    dims = shape_to_list(shape)
    reduced = set(wrap_axes_to_positive(axes, len(dims)))
    merged: Shape = []
    positions: Shape = []
    before = None
    for i, d in enumerate(dims):
        inside = i in reduced
        if d == 1 and len(dims) > 1:
            continue
        if merged and inside == before:
            merged[-1] *= d
        else:
            if inside:
                positions.append(len(merged))
            merged.append(d)
        before = inside
    if not merged:
        return [1], [0] if reduced else []
    return merged, positions


def simplify_axis_shape(shape: Sequence[int], axis: Any) -> tuple[Shape, Shape]:
    """The older name of refine_shape_axes."""
    return refine_shape_axes(shape, axis)


def variable_shape(
    inputs: Sequence[Mapping[str, Any]], op_mode: str = "elewise", *_: Any, **__: Any
) -> list[Shape]:
    """The shapes of the inputs of one case of `classify`; example values stand for unknown dimensions."""
    from tbe.dsl.dynamic import example_shapes

    tensors = [x for x in inputs if "shape" in x and x.get("rel_pos_to_reduce") != "axis"]
    return [list(s) for s in example_shapes([tuple(x["shape"]) for x in tensors])]


def compare_tensor_dict_key(first: Mapping[str, Any], second: Mapping[str, Any], key: str) -> None:
    """Check that two descriptions agree in one entry."""
    if first.get(key) != second.get(key):
        raise RuntimeError(f"the {key} of the two tensors differ: {first.get(key)} and {second.get(key)}")


def shape_size(shape: Sequence[int]) -> int:
    """The number of elements."""
    return math.prod(shape_to_list(shape))


get_shape_size = shape_size
