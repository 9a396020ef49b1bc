"""Represents lists of tensors (TensorList, TensorArray) as one tensor of static length with pending writes.

A list is immutable: each write makes a new list that remembers what was written where. Writes are only turned
into operators when someone needs the whole buffer, so a list filled in a loop at the loop's own counter
becomes an output the loop collects, and a list filled at known positions becomes one concatenation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import TENSORS, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import Context, Outputs, handler
from ge.parsers.tensorflow.values import Binding, Opaque

__all__ = ["ArrayHandle", "Counted", "ListValue", "Popped", "Pushed"]

MAX_COUNT = 1 << 20

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ListValue(Opaque):
    """A list of `count` tensors of one shape (None while nothing tells it)."""

    dtype: str
    element: Shape | None
    count: int
    base: ir.Value | None = None  # earlier contents, stacked; zeros when None
    writes: tuple[tuple[ir.Value, ir.Value], ...] = ()  # (index, item), later ones win
    repeated: ir.Value | None = None  # instead of a base: what every item is
    adds: tuple[
        tuple[ir.Value, ir.Value], ...
    ] = ()  # (index, what is added to the item there), after the writes
    gradient: str = ""  # the gradient array whose contents these are, or a summand of them
    what = "a list of tensors"

    @property
    def is_zero(self) -> bool:
        """Whether nothing was put into the list yet."""
        return self.base is None and self.repeated is None and not self.writes and not self.adds

    def set(self, index: ir.Value, item: ir.Value, grow: bool = False) -> ListValue:
        """The list with one item replaced; with `grow`, a position behind the end makes it longer."""
        shape = desc_of(item).shape
        if self.element is not None and shape != self.element:
            raise Unsupported(f"a list of {list(self.element)} tensors is given one of {list(shape)}")
        where = constant_of(index)
        if grow and where is not None and int(where) >= self.count:
            return replace(self, count=_checked_count(int(where) + 1)).set(index, item)
        if grow and where is None:
            raise Unsupported(
                "a list that grows is written at a computed position", "give tf.TensorArray its size"
            )
        if where is not None and not 0 <= int(where) < self.count:
            raise Unsupported(f"item {int(where)} is set in a list of {self.count}")
        if self.adds:
            raise Unsupported("an item of a sum of lists is replaced")
        return replace(self, element=shape, writes=(*self.writes, (index, item)))

    def get(self, b: GraphBuilder, index: ir.Value) -> ir.Value:
        """One item."""
        if self.repeated is not None and not self.writes and not self.adds:
            return self.repeated
        where = constant_of(index)
        known = None if self.adds else self._known_items()
        if where is not None and known is not None and int(where) in known:
            return known[int(where)]
        return b.op("Gather", self.buffer(b), index, axis=0)

    def buffer(self, b: GraphBuilder) -> ir.Value:
        """All items, stacked."""
        shape = (self.count, *self.shape())
        known = None if self.adds else self._known_items()
        if known is not None and self.count and len(known) == self.count:
            return _stack(b, [known[i] for i in range(self.count)])
        whole = self._resized_base(b, shape)
        for index, item in self.writes:
            spot = b.op("Reshape", b.cast(index, "int64"), shape=(1, 1))
            whole = b.op("ScatterNd", whole, spot, b.op("Reshape", item, shape=(1, *self.shape())))
        for index, item in self.adds:
            spot = b.op("Reshape", b.cast(index, "int64"), shape=(1, 1))
            row = b.op("Reshape", item, shape=(1, *self.shape()))
            whole = b.op("ScatterNd", whole, spot, row, reduction="add")
        return whole

    def increased(self, index: ir.Value, item: ir.Value) -> ListValue:
        """The list with something added to one item."""
        shape = desc_of(item).shape
        if self.element is not None and shape != self.element:
            raise Unsupported(f"a list of {list(self.element)} tensors is given one of {list(shape)}")
        where = constant_of(index)
        if where is not None and not 0 <= int(where) < self.count:
            raise Unsupported(f"item {int(where)} is set in a list of {self.count}")
        return replace(self, element=shape, adds=(*self.adds, (index, item)))

    def plus(self, other: ListValue) -> ListValue | None:
        """The sum of this list and one of zeros but for one item; None where it is another sum."""
        if not replace(other, writes=()).is_zero or len(other.writes) != 1 or self.adds:
            return None
        return replace(self, element=other.element, adds=other.writes)

    def shape(self) -> Shape:
        """The shape of an item, which must be known by now."""
        if self.element is None:
            raise Unsupported(
                "the shape of a list's items is not known", "give tf.TensorArray its element_shape"
            )
        return self.element

    def reshaped(self, element: Shape | None) -> ListValue:
        """The list with what a node knows of its items' shape."""
        if self.element is None and element is not None and all(d >= 0 for d in element):
            return replace(self, element=element)
        return self

    def resized(self, count: int) -> ListValue:
        """The list cut or extended with zeros."""
        kept = []
        if self.adds:
            raise Unsupported("a sum of lists is resized")
        for index, item in self.writes:
            where = constant_of(index)
            if where is None:
                raise Unsupported("a list is resized after items were set at computed positions")
            if int(where) < count:
                kept.append((index, item))
        return replace(self, count=_checked_count(count), writes=tuple(kept))

    def pushed(self, b: GraphBuilder, item: ir.Value) -> ListValue:
        """The list with one item more at its end."""
        longer = replace(self, count=_checked_count(self.count + 1))
        return longer.set(b.constant(np.int64(self.count)), item)

    def popped(self, b: GraphBuilder) -> tuple[ListValue, ir.Value]:
        """The list without its last item, and that item."""
        if not self.count:
            raise Unsupported("an item is taken from an empty list")
        last = self.get(b, b.constant(np.int64(self.count - 1)))
        return self.resized(self.count - 1), last

    def _known_items(self) -> dict[int, ir.Value] | None:
        """The written items by position; None when a position is computed."""
        result: dict[int, ir.Value] = {}
        for index, item in self.writes:
            where = constant_of(index)
            if where is None:
                return None
            result[int(where)] = item
        return result

    def _resized_base(self, b: GraphBuilder, shape: Shape) -> ir.Value:
        if self.repeated is not None:
            row = b.op("Reshape", self.repeated, shape=(1, *shape[1:]))
            return b.op("BroadcastTo", row, shape=shape)
        if self.base is None:
            zero = b.constant(np.zeros((), numpy_dtype(self.dtype)))
            return b.op("BroadcastTo", zero, shape=shape)
        there = desc_of(self.base).shape
        if there[0] > shape[0]:
            return b.op("Slice", self.base, starts=(0,) * len(shape), ends=shape)
        if there[0] < shape[0]:
            rest = ListValue(self.dtype, self.element, shape[0] - there[0])
            return b.op("Concat", self.base, rest.buffer(b), axis=0)
        return self.base


@dataclass(frozen=True, eq=False)
class Pushed(ListValue):
    """A list that each step of a loop makes longer by one; `count` is its length before the loop."""

    items: tuple[ir.Value, ...] = ()  # of this step

    def pushed(self, b: GraphBuilder, item: ir.Value) -> ListValue:
        """The list with an item of this step."""
        shape = desc_of(item).shape
        if self.items or (self.element is not None and shape != self.element):
            raise Unsupported(
                "a loop makes a list longer by several items in a step, or by items of other shapes"
            )
        return replace(self, element=shape, items=(item,))

    def buffer(self, b: GraphBuilder) -> ir.Value:
        raise Unsupported("a list is read in the loop that makes it longer")


@dataclass(frozen=True, eq=False)
class Popped(ListValue):
    """A list that each step of a loop makes shorter by one; `base` is all of it, `count` its length before the loop."""

    iteration: ir.Value | None = None  # the loop's own counter
    taken: int = 0  # in this step
    length: ir.Value | None = None  # before the loop, where that is known when it runs

    def popped(self, b: GraphBuilder) -> tuple[ListValue, ir.Value]:
        """The list without the item of this step, and that item."""
        if self.taken:
            raise Unsupported("a loop takes several items a step from a list")
        return replace(self, taken=1), self._item(b)

    def _item(self, b: GraphBuilder) -> ir.Value:
        if self.repeated is not None:
            return self.repeated
        assert self.base is not None
        if not self.count:
            raise Unsupported("a loop takes items from an empty list")
        if self.length is not None:
            last = b.op("Sub", b.op("Sub", self.length, np.int64(1)), self.iteration)
            return b.op("Gather", self.base, last, axis=0)
        known = constant_of(self.base)
        if known is not None and (known == known[:1]).all():  # the same in every step
            return b.constant(known[0])
        if known is not None and known.ndim == 1 and (np.diff(known) == 1).all():  # one less in every step
            value = b.op("Sub", np.int64(known[-1]), self.iteration)
            return value if known.dtype == np.int64 else b.op("Cast", value, to=known.dtype.name)
        last = b.op("Sub", np.int64(self.count - 1), self.iteration)
        return b.op("Gather", self.base, last, axis=0)

    def buffer(self, b: GraphBuilder) -> ir.Value:
        raise Unsupported("a list is read in the loop that takes it apart")


@dataclass(frozen=True, eq=False)
class Counted(ListValue):
    """A list that a loop filled, whose number of steps is known when it has run; `count` is the most it can be."""

    length: ir.Value | None = None

    def set(self, index: ir.Value, item: ir.Value, grow: bool = False) -> ListValue:
        raise Unsupported(_COUNTED)

    def get(self, b: GraphBuilder, index: ir.Value) -> ir.Value:
        raise Unsupported(_COUNTED)

    def buffer(self, b: GraphBuilder) -> ir.Value:
        raise Unsupported(_COUNTED)

    def resized(self, count: int) -> ListValue:
        raise Unsupported(_COUNTED)


_COUNTED = "the length of a list depends on how often a loop runs, which is computed at run time"


@dataclass(frozen=True, eq=False)
class ArrayHandle(Opaque):
    """The handle of a TensorArray; its contents travel along the flow edges as a list."""

    dtype: str
    element: Shape | None
    count: int
    name: str
    gradient: str = ""  # which gradient array it is; writes to it accumulate
    what = "a TensorArray's handle"


def _stack(b: GraphBuilder, items: list[ir.Value]) -> ir.Value:
    rows = [b.op("Reshape", v, shape=(1, *desc_of(v).shape)) for v in items]
    return rows[0] if len(rows) == 1 else b.op("Concat", *rows, axis=0)


def _checked_count(count: int) -> int:
    if not 0 <= count <= MAX_COUNT:
        raise Unsupported(f"a list of {count} tensors is out of range")
    return count


def _count(c: Context, index: int) -> int:
    return _checked_count(int(c.const(index, "the length of a list").reshape(-1)[0]))


def _shape_input(c: Context, index: int) -> Shape | None:
    """An element shape given as a tensor; None when it is a scalar or has unknown parts."""
    if index >= len(c.inputs):
        return None
    array = constant_of(c.tensor(index))
    if array is None or array.ndim != 1 or any(int(d) < 0 for d in array):
        return None
    return tuple(int(d) for d in array)


def _element_type(c: Context, attr: str) -> str:
    name = str(c.attr(attr, "float32"))
    if name not in TENSORS:
        raise Unsupported(f"a list of {name} tensors", "use lists of numbers")
    return name


def _list(c: Context, index: int) -> ListValue:
    found = c.binding(index)
    if not isinstance(found, ListValue):
        what = found.what if isinstance(found, Opaque) else "a tensor"
        raise GeError(
            "E10105", f"input {index} is {what}, a list is expected", node=c.node.name, operator=c.node.op
        )
    return found


def _from_tensor(value: ir.Value) -> ListValue:
    desc = desc_of(value)
    if not desc.shape:
        raise Unsupported("a list is made from a scalar")
    return ListValue(desc.dtype, desc.shape[1:], desc.shape[0], base=value)


def _gather(b: GraphBuilder, items: ListValue, indices: ir.Value) -> ir.Value:
    where = constant_of(indices)
    if where is not None and where.ndim == 1 and np.array_equal(where, np.arange(items.count)):
        return items.buffer(b)
    return b.op("Gather", items.buffer(b), indices, axis=0)


def _scattered(b: GraphBuilder, items: ListValue, indices: ir.Value, value: ir.Value) -> ListValue:
    """A list with the rows of a tensor at given positions; a gradient's are added to what is there."""
    where = constant_of(indices)
    desc = desc_of(value)
    if (
        (items.is_zero or not items.gradient)
        and where is not None
        and np.array_equal(where, np.arange(items.count))
        and desc.shape[:1] == (items.count,)
    ):
        return replace(_from_tensor(value), gradient=items.gradient)
    known = items.reshaped(desc.shape[1:])
    spots = b.op("Reshape", b.cast(indices, "int64"), shape=(desc.shape[0], 1))
    reduction = "add" if items.gradient else "none"
    whole = b.op("ScatterNd", known.buffer(b), spots, value, reduction=reduction)
    return replace(known, base=whole, writes=(), adds=(), repeated=None)


def _lengths(c: Context, items: ListValue) -> ir.Value:
    first = items.shape()[0] if items.shape() else 1
    return c.builder.constant(np.full(items.count, first, np.int64))


def _concatenated(c: Context, items: ListValue) -> list[Binding]:
    shape = items.shape()
    if not shape:
        raise Unsupported("the items of a list of scalars are concatenated")
    whole = c.builder.op("Reshape", items.buffer(c.builder), shape=(items.count * shape[0], *shape[1:]))
    return [whole, _lengths(c, items)]


def _split(c: Context, value: ir.Value, lengths: np.ndarray) -> ListValue:
    """A tensor cut into equal pieces along its first axis."""
    sizes = {int(n) for n in lengths.reshape(-1)}
    desc = desc_of(value)
    if len(sizes) != 1 or not desc.shape or len(lengths) * max(sizes) != desc.shape[0]:
        raise Unsupported("a list of tensors of different lengths")
    size = sizes.pop()
    return _from_tensor(c.builder.op("Reshape", value, shape=(len(lengths), size, *desc.shape[1:])))


# -- TensorList ----------------------------------------------------------------------------------------------


@handler("TensorListReserve")
def _reserve(c: Context) -> list[Binding]:
    return [ListValue(_element_type(c, "element_dtype"), _shape_input(c, 0), _count(c, 1))]


@handler("EmptyTensorList")
def _empty(c: Context) -> list[Binding]:
    return [ListValue(_element_type(c, "element_dtype"), _shape_input(c, 0), 0)]


@handler("TensorListFromTensor")
def _list_from_tensor(c: Context) -> list[Binding]:
    return [_from_tensor(c.tensor(0))]


@handler("TensorListSetItem")
def _set_item(c: Context) -> list[Binding]:
    grow = bool(c.attr("resize_if_index_out_of_bounds", False))
    return [_list(c, 0).set(c.tensor(1), c.tensor(2), grow)]


@handler("TensorListGetItem")
def _get_item(c: Context) -> list[Binding]:
    items = _list(c, 0).reshaped(_shape_input(c, 2))
    return [items.get(c.builder, c.tensor(1))]


@handler("TensorListStack")
def _list_stack(c: Context) -> list[Binding]:
    return [_list(c, 0).reshaped(_shape_input(c, 1)).buffer(c.builder)]


@handler("TensorListLength")
def _list_length(c: Context) -> list[Binding]:
    return [c.builder.constant(np.int32(_list(c, 0).count))]


@handler("TensorListElementShape")
def _list_element_shape(c: Context) -> list[Binding]:
    return [c.builder.constant(np.asarray(_list(c, 0).shape(), str(c.attr("shape_type", "int32"))))]


@handler("TensorListResize")
def _list_resize(c: Context) -> list[Binding]:
    return [_list(c, 0).resized(_count(c, 1))]


@handler("TensorListPushBack")
def _push_back(c: Context) -> list[Binding]:
    return [_list(c, 0).pushed(c.builder, c.tensor(1))]


@handler("TensorListPopBack")
def _pop_back(c: Context) -> list[Binding]:
    return list(_list(c, 0).reshaped(_shape_input(c, 1)).popped(c.builder))


@handler("TensorListGather")
def _list_gather(c: Context) -> list[Binding]:
    return [_gather(c.builder, _list(c, 0).reshaped(_shape_input(c, 2)), c.tensor(1))]


@handler("TensorListScatter", "TensorListScatterV2")
def _list_scatter(c: Context) -> list[Binding]:
    value = c.tensor(0)
    given = _count(c, 3) if c.node.op.endswith("V2") and int(c.const(3, "the length of a list")) >= 0 else -1
    largest = int(c.const(1, "a position in a list").max(initial=-1)) + 1
    items = ListValue(desc_of(value).dtype, desc_of(value).shape[1:], _checked_count(max(given, largest)))
    return [_scattered(c.builder, items, c.tensor(1), value)]


@handler("TensorListScatterIntoExistingList")
def _list_scatter_into(c: Context) -> list[Binding]:
    return [_scattered(c.builder, _list(c, 0), c.tensor(2), c.tensor(1))]


@handler("TensorListConcat", "TensorListConcatV2")
def _list_concat(c: Context) -> list[Binding]:
    return _concatenated(c, _list(c, 0))


@handler("TensorListSplit")
def _list_split(c: Context) -> list[Binding]:
    return [_split(c, c.tensor(0), c.const(2, "the lengths of a list's items"))]


@handler("TensorListConcatLists")
def _list_concat_lists(c: Context) -> list[Binding]:
    joined = c.builder.op("Concat", _list(c, 0).buffer(c.builder), _list(c, 1).buffer(c.builder), axis=0)
    return [_from_tensor(joined)]


# -- operators that take tensors and lists alike ---------------------------------------------------------------


@handler("ZerosLike")
def _zeros_like(c: Context) -> Outputs:
    found = c.binding(0)
    if isinstance(found, ListValue):
        return [ListValue(found.dtype, found.element, found.count, gradient=found.gradient)]
    return c.converter.by_plugin(c)


@handler("AddN", "Add", "AddV2")
def _add(c: Context) -> Outputs:
    lists = [found for found in c.inputs if isinstance(found, ListValue)]
    if not lists:
        return c.converter.by_plugin(c)
    for other in c.inputs:
        if not isinstance(other, ListValue) and not _is_no_flow(c, other):
            raise Unsupported("a list is added to something that is none")
    return [lists[0] if len(lists) == 1 else _sum(c.builder, lists)]


def _is_no_flow(c: Context, found: Binding) -> bool:
    """Whether a number stands for an array without contents: zero, or a loop's state that has yet to become a list."""
    if not isinstance(found, ir.Value) or desc_of(found).shape:
        return False
    known = constant_of(found)
    if known is not None:
        return not known.any()
    return found in c.builder.graph.inputs and str(found.name).startswith("state.")


def _sum(b: GraphBuilder, lists: list[ListValue]) -> ListValue:
    element = next((items.element for items in lists if items.element is not None), None)
    gradient = lists[0].gradient
    if any(items.gradient != gradient or items.count != lists[0].count for items in lists):
        raise Unsupported("lists are added that do not belong together")
    for one, other in ((0, 1), (1, 0)) if len(lists) == 2 else ():
        found = lists[one].reshaped(element).plus(lists[other])
        if found is not None:
            return found
    whole, *rest = (items.reshaped(element).buffer(b) for items in lists)
    for more in rest:
        whole = b.op("Add", whole, more)
    return replace(_from_tensor(whole), gradient=gradient)


# -- TensorArray: the same lists, carried by the flow --------------------------------------------------------


def _array(c: Context, index: int = 0) -> ArrayHandle:
    found = c.binding(index)
    if not isinstance(found, ArrayHandle):
        raise GeError("E10105", f"input {index} is not a TensorArray", node=c.node.name, operator=c.node.op)
    return found


def _flow(c: Context, index: int, *, written: bool = False) -> ListValue:
    """The contents of an array: the flow's list, or an empty array's when nothing was written yet.

    What is written to a gradient array comes with the flow of its array; it is a summand of the contents then.
    """
    found, handle = c.binding(index), _array(c)
    empty = ListValue(handle.dtype, handle.element, handle.count, gradient=handle.gradient)
    if not isinstance(found, ListValue):
        return empty
    if found.gradient == handle.gradient:
        return found
    if not written or found.gradient:
        raise Unsupported("a TensorArray is read whose contents do not come with its flow")
    return replace(empty, element=found.element if handle.element is None else handle.element)


@handler("TensorArrayV2", "TensorArrayV3")
def _tensor_array(c: Context) -> list[Binding]:
    given: Any = c.attr("element_shape")
    element = given if given is not None and all(d >= 0 for d in given) else None
    handle = ArrayHandle(_element_type(c, "dtype"), element, _count(c, 0), c.scope.label(c.node))
    return [handle, ListValue(handle.dtype, handle.element, handle.count)]


@handler("TensorArrayGradV2", "TensorArrayGradV3")
def _gradient_array(c: Context) -> list[Binding]:
    handle = _array(c)
    if handle.gradient:
        raise Unsupported("gradients of gradients of a TensorArray")
    if bool(c.attr("dynamic_size", False)):
        raise Unsupported("the gradient of a TensorArray that grows")
    source = c.attr("source", "")
    name = source.decode() if isinstance(source, bytes) else str(source)
    return [replace(handle, gradient=f"{handle.name}:{name}"), c.binding(1)]


@handler("TensorArrayWriteV2", "TensorArrayWriteV3")
def _array_write(c: Context) -> list[Binding]:
    items, index, item = _flow(c, 3, written=True), c.tensor(1), c.tensor(2)
    return [items.set(index, item) if items.is_zero or not items.gradient else items.increased(index, item)]


@handler("TensorArrayReadV2", "TensorArrayReadV3")
def _array_read(c: Context) -> list[Binding]:
    return [_flow(c, 2).get(c.builder, c.tensor(1))]


@handler("TensorArrayGatherV2", "TensorArrayGatherV3")
def _array_gather(c: Context) -> list[Binding]:
    given: Any = c.attr("element_shape")
    return [_gather(c.builder, _flow(c, 2).reshaped(given), c.tensor(1))]


@handler("TensorArrayScatterV2", "TensorArrayScatterV3")
def _array_scatter(c: Context) -> list[Binding]:
    return [_scattered(c.builder, _flow(c, 3, written=True), c.tensor(1), c.tensor(2))]


@handler("TensorArrayConcatV2", "TensorArrayConcatV3")
def _array_concat(c: Context) -> list[Binding]:
    return _concatenated(c, _flow(c, 1))


@handler("TensorArraySplitV2", "TensorArraySplitV3")
def _array_split(c: Context) -> list[Binding]:
    items = _flow(c, 3, written=True)
    if items.gradient and not items.is_zero:
        raise Unsupported("items are added to a gradient array that has some already")
    made = _split(c, c.tensor(1), c.const(2, "the lengths of an array's items"))
    return [replace(made, gradient=items.gradient)]


@handler("TensorArraySizeV2", "TensorArraySizeV3")
def _array_size(c: Context) -> list[Binding]:
    return [c.builder.constant(np.int32(_flow(c, 1).count))]


@handler("TensorArrayCloseV2", "TensorArrayCloseV3")
def _array_close(c: Context) -> list[Binding]:
    return []
