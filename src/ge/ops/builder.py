"""The graph builder: checks each new node, infers its outputs, and folds it if its inputs are constant.

Parsers, passes and the public graph API all create nodes through GraphBuilder.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir import facts
from ge.ir.types import TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of, make_constant, make_value, set_desc

if TYPE_CHECKING:
    from ge.target import Target

__all__ = ["DOMAIN", "GraphBuilder", "Operand", "make_attribute"]

DOMAIN = "ge"
FOLD_LIMIT_BYTES = 64 << 20

Operand = ir.Value | np.ndarray | np.generic | int | float | bool | None

_serial = itertools.count()


class GraphBuilder:
    """Appends nodes to a graph, or inserts them before a node of it.

    >>> b = GraphBuilder("example")
    >>> x = b.input("x", (2, 3), "float32")
    >>> y = b.op("Relu", b.op("Add", x, 1.0))
    >>> desc_of(y)
    TensorDesc(shape=(2, 3), dtype='float32')
    """

    def __init__(
        self,
        name: str = "main",
        *,
        graph: ir.Graph | None = None,
        before: ir.Node | None = None,
        parent: GraphBuilder | None = None,
        target: Target | None = None,
    ) -> None:
        if graph is None and parent is None:
            _refresh_operators()
        self.graph = (
            graph if graph is not None else ir.Graph([], [], nodes=[], name=name, opset_imports={DOMAIN: 1})
        )
        self.parent = parent
        # The target for operators that are one task on some targets only; None keeps them whole.
        self.target: Target | None = target if target is not None or parent is None else parent.target
        self.origin: tuple[str, ...] = ()  # of every node created from here on
        self.folds_all = False  # also fold what a pass may still match
        self.captured: dict[ir.Value, ir.Value] = {}  # outer value -> input of this subgraph
        self._before = before

    # -- values ---------------------------------------------------------------------------------------------

    def input(self, name: str, shape: Sequence[int], dtype: str) -> ir.Value:
        """A new graph input."""
        value = make_value(name, TensorDesc(tuple(int(d) for d in shape), dtype))
        self.graph.inputs.append(value)
        return value

    def constant(self, array: Any, name: str = "", dtype: str | None = None) -> ir.Value:
        """A new constant."""
        array = np.asarray(array, None if dtype is None else numpy_dtype(dtype))
        value = make_constant(array, f"{name or 'const'}.{next(_serial)}")
        self.graph.register_initializer(value)
        return value

    def variable(self, value: ir.Value) -> ir.Value:
        """A value that is not folded while the graph is built, even if it is a constant."""
        return self._append("Identity", [value], {}, [desc_of(value)])[0]

    def output(self, value: ir.Value, name: str = "") -> ir.Value:
        """Declare a graph output. An input, a constant or a previous output gets an Identity node."""
        value = self._own(value)
        if value.producer() is None or value.is_graph_output():
            value = self._append("Identity", [value], {}, [desc_of(value)])[0]
        if name:
            value.name = name
        self.graph.outputs.append(value)
        return value

    def subgraph(self, name: str) -> GraphBuilder:
        """A builder for a nested graph; outer values used in it become its inputs (see `captured`)."""
        return GraphBuilder(name, parent=self)

    # -- nodes ----------------------------------------------------------------------------------------------

    def op(self, type_: str, *inputs: Operand, name: str = "", **attrs: Any) -> Any:
        """Add a node and return its output, or a tuple if it has several outputs.

        NumPy arrays and Python numbers become constants. A number takes the element type of a tensor that shares its
        port's type, else of the first tensor that is not a bool; if all tensors are bools it keeps its own type.
        """
        results = self.ops(type_, inputs, name=name, **attrs)
        return results[0] if len(results) == 1 else results

    def cast(self, value: ir.Value, dtype: str) -> ir.Value:
        """The value in an element type; itself if it has that type."""
        return value if desc_of(value).dtype == dtype else self.op("Cast", value, to=dtype)

    def ops(
        self, type_: str, inputs: Sequence[Operand], *, name: str = "", **attrs: Any
    ) -> tuple[ir.Value, ...]:
        """Like `op`, but always returns a tuple."""
        from ge.ops.custom.selection import expanded, select

        values = self._operands(type_, inputs)
        label = name or (self.origin[0] if self.origin else "")
        operator, view, passed_over = select(type_, label, values, attrs)
        if operator.expand is not None:
            results = expanded(operator, self, view, values)
            if results is not NotImplemented:  # this node needs no expansion
                return tuple(results) if isinstance(results, tuple | list) else (results,)
        try:
            descs = operator.describe(view)
        except GeError:
            raise
        except ValueError as error:  # incompatible shapes
            raise GeError("E10005", str(error), node=label, operator=type_) from error
        folded = self._fold(operator, view, descs)
        if folded is not None:
            return tuple(self.constant(a, label) for a in folded)
        made = self._append(view.type, values, attrs, descs, name)
        if passed_over and made:
            facts.set_passed_over(made[0].producer(), passed_over)
        return made

    def checked_ops(
        self, type_: str, inputs: Sequence[Operand], *, name: str = "", **attrs: Any
    ) -> tuple[ir.Value, ...]:
        """Like `ops`, for a node written by a user: a run with an invalid index or a zero divisor fails."""
        from ge.ops.math.checks import checked_inputs

        values = checked_inputs(self, type_, self._operands(type_, inputs), attrs)
        return self.ops(type_, values, name=name, **attrs)

    def _append(
        self,
        type_: str,
        values: Sequence[ir.Value | None],
        attrs: dict[str, Any],
        descs: Sequence[TensorDesc],
        name: str = "",
    ) -> tuple[ir.Value, ...]:
        label = name or (self.origin[0] if self.origin else type_.partition("@")[0])
        node = ir.Node(
            DOMAIN,
            type_,
            values,
            _attributes(attrs),
            num_outputs=len(descs),
            name=f"{label}.{next(_serial)}",
        )
        facts.add_origin(node, self.origin)
        for value, desc in zip(node.outputs, descs, strict=True):
            value.name = f"v{next(_serial)}"
            set_desc(value, desc)
        if self._before is not None:
            self.graph.insert_before(self._before, node)
        else:
            self.graph.append(node)
        return tuple(node.outputs)

    def _fold(self, operator: Any, view: Any, descs: Sequence[TensorDesc]) -> list[np.ndarray] | None:
        if not operator.foldable or (operator.folds_late and not self.folds_all) or operator.dynamic_outputs:
            return None
        arrays = [_known_array(v) for v in view.values]
        if any(a is None and v is not None for a, v in zip(arrays, view.values, strict=True)):
            return None
        given = sum(a.nbytes for a in arrays if a is not None)
        if sum(d.nbytes for d in descs) > max(
            FOLD_LIMIT_BYTES, given
        ):  # a large weight may be transposed, but must not grow
            return None
        view.outputs = tuple(descs)
        result = operator.evaluate(view, arrays)
        if result is None:
            return None
        for array, desc in zip(result, descs, strict=True):
            assert array.shape == desc.shape, f"{operator.type}: folded {array.shape}, inferred {desc.shape}"
        return [np.asarray(a, numpy_dtype(d.dtype)) for a, d in zip(result, descs, strict=True)]

    def _operands(self, type_: str, inputs: Sequence[Operand]) -> list[ir.Value | None]:
        values = [self._operand(type_, inputs, index) for index in range(len(inputs))]
        while values and values[-1] is None:
            values.pop()
        return values

    @staticmethod
    def _promoted_type(type_: str, inputs: Sequence[Operand], index: int) -> str | None:
        """The element type that a number takes from the other inputs, None if it keeps its own."""
        from ge.ops.base import lookup

        dtypes = {i: desc_of(v).dtype for i, v in enumerate(inputs) if isinstance(v, ir.Value)}
        ports = list(lookup(type_).prototype.inputs.values())
        group = ports[index].group if index < len(ports) else ""
        for other, dtype in dtypes.items():
            if group and other < len(ports) and ports[other].group == group:
                return dtype
        found = next((d for d in dtypes.values() if d != "bool"), None)
        return "bool" if found is None and dtypes and isinstance(inputs[index], bool) else found

    def _operand(self, type_: str, inputs: Sequence[Operand], index: int) -> ir.Value | None:
        item = inputs[index]
        if item is None:
            return None
        if isinstance(item, ir.Value):
            return self._own(item)
        if isinstance(item, (bool, int, float)):
            kinds = ((bool, "bool"), (int, "int64"), (float, "float32"))
            own = next(name for kind, name in kinds if isinstance(item, kind))
            return self.constant(
                np.asarray(item, numpy_dtype(self._promoted_type(type_, inputs, index) or own))
            )
        return self.constant(item)

    def _own(self, value: ir.Value) -> ir.Value:
        """The value as seen from this graph: constants are duplicated, outer values captured as inputs."""
        if self.parent is None or value.graph is self.graph:
            return value
        if value in self.captured:
            return self.captured[value]
        array = constant_of(value)
        if array is not None:
            inner = self.constant(array, value.name or "")
        else:
            self.parent._own(value)
            inner = self.input(f"captured.{next(_serial)}", desc_of(value).shape, desc_of(value).dtype)
        self.captured[value] = inner
        return inner

    def captures(self) -> list[ir.Value]:
        """The outer values this subgraph reads, in the order of its capture inputs."""
        return [outer for outer, inner in self.captured.items() if constant_of(inner) is None]

    def set_origin(self, *names: str) -> None:
        """Set the framework nodes of the next nodes."""
        self.origin = tuple(n for n in names if n)


def _refresh_operators() -> None:
    """Reload the operators on the search path if they changed."""
    from ge.ops.custom import search

    search.refresh()


def _known_array(value: ir.Value | None) -> np.ndarray | None:
    """The value of a constant, or of a tensor without elements, which has only one value."""
    if value is None:
        return None
    array = constant_of(value)
    desc = desc_of(value)
    return np.zeros(desc.shape, numpy_dtype(desc.dtype)) if array is None and not desc.size else array


def _attributes(attrs: dict[str, Any]) -> list[ir.Attr]:
    return [make_attribute(name, value) for name, value in attrs.items() if value is not None]


_SINGLE: dict[type, Callable[[str, Any], ir.Attr]] = {
    int: ir.AttrInt64,
    float: ir.AttrFloat32,
    str: ir.AttrString,
}
_LISTS: dict[type, Callable[[str, Any], ir.Attr]] = {
    int: ir.AttrInt64s,
    float: ir.AttrFloat32s,
    str: ir.AttrStrings,
}


def make_attribute(name: str, value: Any) -> ir.Attr:
    """Create an attribute from the type of its value (onnx_ir's own conversion checks protocols, which is slow)."""
    attr = _of_plain(name, value)
    if attr is None:
        value = _plain(value)
        attr = _of_plain(name, value)
    return ir.convenience.convert_attribute(name, value) if attr is None else attr


def _of_plain(name: str, value: Any) -> ir.Attr | None:
    """The attribute of a Python number or string, or of a list of them; None for anything else."""
    if isinstance(value, tuple | list):
        kinds = set(map(type, value)) or {int}
        make = _LISTS.get(next(iter(kinds))) if len(kinds) == 1 else None
    else:
        make = _SINGLE.get(type(value))
    return None if make is None else make(name, value)


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value
