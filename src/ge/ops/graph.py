"""The public graph API: networks written in Python with tensors, operators and one function per operator.

>>> import numpy as np, ge
>>> g = ge.Graph("net")
>>> x = g.input("x", (8, 128), "float32")
>>> w = g.constant(np.ones((128, 4), np.float32))
>>> y = ge.ops.relu(x @ w + 1.0)
>>> g.output(y, "y")
Tensor(float32[8,4])
>>> ge.compile(g)(np.zeros((8, 128), np.float32)).shape
(8, 4)
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import FLOATS
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder

__all__ = ["Graph", "Tensor", "current_graph", "home_of"]

_current: contextvars.ContextVar[Graph | None] = contextvars.ContextVar("ge.graph", default=None)


def current_graph() -> Graph | None:
    """The graph of the innermost `with graph:`."""
    return _current.get()


class Graph:
    """A network under construction. Each operator is checked, inferred and, if constant, folded as it is added."""

    def __init__(self, name: str = "graph") -> None:
        self.builder = GraphBuilder(name)
        self.parent: Graph | None = None
        self._tokens: list[contextvars.Token[Graph | None]] = []

    @classmethod
    def over(cls, builder: GraphBuilder) -> Graph:
        """The graph that a builder is building."""
        graph = cls.__new__(cls)
        graph.builder, graph.parent, graph._tokens = builder, None, []
        return graph

    def _nested(self, builder: GraphBuilder) -> Graph:
        """The graph of a branch or loop body, which may use tensors of the enclosing graphs."""
        inner = Graph.__new__(Graph)
        inner.builder, inner.parent, inner._tokens = builder, self, []
        return inner

    @property
    def lineage(self) -> list[Graph]:
        """This graph and its enclosing graphs."""
        return [self] if self.parent is None else [self, *self.parent.lineage]

    @property
    def name(self) -> str:
        return self.ir.name or "graph"

    @property
    def ir(self) -> ir.Graph:
        """The compiler's graph."""
        return self.builder.graph

    @property
    def inputs(self) -> list[Tensor]:
        return [Tensor(self, v) for v in self.ir.inputs]

    @property
    def outputs(self) -> list[Tensor]:
        return [Tensor(self, v) for v in self.ir.outputs]

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Tensor:
        """A new input."""
        if any(value.name == name for value in self.ir.inputs):
            raise GeError("E10040", f"graph {self.name} has an input '{name}' already")
        return Tensor(self, self.builder.input(name, shape, dtype))

    def constant(self, array: Any, name: str = "", dtype: str | None = None) -> Tensor:
        """A new constant from an array (which is copied) or a number."""
        return Tensor(self, self.builder.constant(np.array(array), name, dtype))

    def output(self, tensor: Tensor, name: str = "") -> Tensor:
        """Declare an output."""
        if not isinstance(tensor, Tensor) or tensor.graph is not self:
            raise GeError("E10040", f"{tensor!r} is not a tensor of graph {self.name}")
        return Tensor(self, self.builder.output(tensor.value, name or f"output_{len(self.ir.outputs)}"))

    def op(self, type_: str, *inputs: Any, name: str = "", **attrs: Any) -> Any:
        """Add an operator by its type; the generated functions of `ge.ops` are shorthands for this.

        >>> g = Graph()
        >>> g.op("Relu", g.input("x", (2, 3)))
        Tensor(float32[2,3])
        """
        with _origin(self.builder, name):
            results = self.builder.checked_ops(type_, [self._operand(i) for i in inputs], name=name, **attrs)
        return _single(tuple(Tensor(self, value) for value in results))

    def _operand(self, item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        if item.graph not in self.lineage:
            raise GeError("E10040", f"{item!r} belongs to graph {item.graph.name}, not to {self.name}")
        return item.value

    def __enter__(self) -> Graph:
        """Make this the graph of operators without tensor inputs (`ge.ops.range`, …)."""
        self._tokens.append(_current.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._tokens.pop())

    def cond(self, condition: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """The result of `then()` if the condition holds, else of `otherwise()`; only one is computed.

        >>> g = Graph()
        >>> x = g.input("x", (2,))
        >>> g.cond(g.input("flag", (), "bool"), lambda: x + 1.0, lambda: -x)
        Tensor(float32[2])
        """
        from ge.ops.flow.control import branch

        home = home_of(self)
        made = branch(
            home.builder,
            home._operand(condition),
            lambda builder: home._traced(builder, then),
            lambda builder: home._traced(builder, otherwise),
        )
        return _single(tuple(Tensor(home, value) for value in made))

    def while_loop(self, condition: Callable[..., Tensor], body: Callable[..., Any], *states: Any) -> Any:
        """Apply `body(*states)` while `condition(*states)` holds; returns the final states.

        >>> g = Graph()
        >>> g.while_loop(lambda x: x[0] < 10.0, lambda x: x * 2.0, g.input("x", (2,)))
        Tensor(float32[2])
        """
        home = home_of(self)
        first = [s if isinstance(s, Tensor) else home.constant(s) for s in states]
        inner = home._nested(home.builder.subgraph("body"))
        inner.builder.input("step", (), "int64")
        inner.builder.input("condition", (), "bool")
        inside = [
            Tensor(inner, inner.builder.input(f"state_{i}", s.shape, s.dtype)) for i, s in enumerate(first)
        ]
        with inner:
            after = _listed(body(*inside))
            going = condition(*after).reshape(())
        for value in (going, *after):
            inner.builder.output(inner._operand(value))
        start = condition(*first).reshape(())
        operands = [None, start.value, *(home._operand(s) for s in first), *inner.builder.captures()]
        made = home.builder.ops("Loop", operands, body=inner.ir, num_states=len(first))
        return _single(tuple(Tensor(home, value) for value in made))

    def _traced(self, builder: GraphBuilder, function: Callable[[], Any]) -> list[Any]:
        """The values a function returns, with its operators added through a builder."""
        inner = self if builder is self.builder else self._nested(builder)
        with inner:
            return [inner._operand(item) for item in _listed(function())]

    def __repr__(self) -> str:
        ins = ", ".join(f"{v.name}: {desc_of(v)}" for v in self.ir.inputs)
        outs = ", ".join(f"{v.name}: {desc_of(v)}" for v in self.ir.outputs)
        return f"Graph({self.name}: {ins} -> {outs}; {len(self.ir)} nodes)"


def home_of(graph: Graph) -> Graph:
    """The graph that receives an operator on tensors of a graph: the branch or body being traced, else that graph."""
    current = _current.get()
    return current if current is not None and graph in current.lineage else graph


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple | list) else [results]


def _single(tensors: tuple[Tensor, ...]) -> Any:
    return tensors[0] if len(tensors) == 1 else tensors


@contextlib.contextmanager
def _origin(builder: GraphBuilder, name: str) -> Iterator[None]:
    before = builder.origin
    if name:
        builder.set_origin(name)
    try:
        yield
    finally:
        builder.origin = before


_Method = Callable[["Tensor", Any], "Tensor"]


def _binary(type_: str, of_bools: str = "") -> tuple[_Method, _Method]:
    """The methods of a Python operator with the tensor as left and as right operand."""

    def choose(tensor: Tensor) -> str:
        return of_bools if of_bools and tensor.dtype == "bool" else type_

    def forward(self: Tensor, other: Any) -> Tensor:
        return self._op(choose(self), self._operand(other))

    def backward(self: Tensor, other: Any) -> Tensor:
        left = home_of(self.graph).constant(
            self._operand(other), dtype=self.dtype if np.isscalar(other) else None
        )
        return left._op(choose(self), self)

    return forward, backward


class Tensor:
    """A value of a graph. Python operators add GE operators; numbers and arrays become constants."""

    __slots__ = ("graph", "value")
    __array_priority__ = 1000  # NumPy leaves mixed arithmetic to us
    __array_ufunc__ = None

    def __init__(self, graph: Graph, value: ir.Value) -> None:
        self.graph = graph
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return desc_of(self.value).shape

    @property
    def dtype(self) -> str:
        return desc_of(self.value).dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        return self.value.name or ""

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in another shape; one dimension may be -1."""
        dims = [int(d) for part in shape for d in (part if isinstance(part, Sequence) else (part,))]
        if dims.count(-1) == 1:
            known = int(np.prod([d for d in dims if d != -1])) or 1
            dims[dims.index(-1)] = int(np.prod(self.shape)) // known
        return self._op("Reshape", shape=dims)

    def transpose(self, *perm: int) -> Tensor:
        """The axes permuted, reversed if no permutation is given."""
        return self._op("Transpose", perm=list(perm) or list(range(self.rank))[::-1])

    @property
    def T(self) -> Tensor:
        return self.transpose()

    def cast(self, dtype: str) -> Tensor:
        """The elements converted to another type."""
        return self._op("Cast", to=dtype)

    def _op(self, type_: str, *others: Any, **attrs: Any) -> Tensor:
        result: Tensor = home_of(self.graph).op(type_, self, *others, **attrs)
        return result

    def _operand(self, other: Any) -> Any:
        """The other operand of an operator: numbers take this tensor's type, and must fit it."""
        if isinstance(other, float) and self.dtype not in FLOATS and not other.is_integer():
            raise GeError(
                "E10040",
                f"{other} beside a tensor of {self.dtype}",
                remedy="cast the tensor to a float type first",
            )
        if isinstance(other, np.generic):
            return other.item()
        return other

    __add__, __radd__ = _binary("Add")
    __sub__, __rsub__ = _binary("Sub")
    __mul__, __rmul__ = _binary("Mul")
    __truediv__, __rtruediv__ = _binary("Div")
    __floordiv__, __rfloordiv__ = _binary("FloorDiv")
    __mod__, __rmod__ = _binary("Mod")
    __pow__, __rpow__ = _binary("Pow")
    __matmul__, __rmatmul__ = _binary("MatMul")
    __and__, __rand__ = _binary("BitwiseAnd", of_bools="And")
    __or__, __ror__ = _binary("BitwiseOr", of_bools="Or")
    __xor__, __rxor__ = _binary("BitwiseXor", of_bools="Xor")
    __lshift__, __rlshift__ = _binary("ShiftLeft")
    __rshift__, __rrshift__ = _binary("ShiftRight")
    __lt__, _ = _binary("Less")
    __le__, _ = _binary("LessEqual")
    __gt__, _ = _binary("Greater")
    __ge__, _ = _binary("GreaterEqual")

    def __neg__(self) -> Tensor:
        return self._op("Neg")

    def __abs__(self) -> Tensor:
        return self._op("Abs")

    def __invert__(self) -> Tensor:
        return self._op("Not" if self.dtype == "bool" else "BitwiseNot")

    def __getitem__(self, index: Any) -> Tensor:
        return _subscript(self, index)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        raise GeError(
            "E10040", "a tensor has no truth value while the graph is built", remedy="use ge.ops.select"
        )

    def __repr__(self) -> str:
        return f"Tensor({desc_of(self.value)})"


def _subscript(tensor: Tensor, index: Any) -> Tensor:
    """x[…] with integers, slices, None and an ellipsis, as in NumPy."""
    keys = list(index) if isinstance(index, tuple) else [index]
    if sum(1 for k in keys if isinstance(k, EllipsisType)) > 1:
        raise GeError("E10040", "an index can only have a single ellipsis")
    if not any(isinstance(k, EllipsisType) for k in keys):
        keys.append(...)
    place = next(i for i, k in enumerate(keys) if isinstance(k, EllipsisType))
    used = sum(1 for k in keys if k is not None and not isinstance(k, EllipsisType))
    if used > tensor.rank:
        raise GeError("E10040", f"{used} indices for a tensor of rank {tensor.rank}")
    keys[place : place + 1] = [slice(None)] * (tensor.rank - used)
    starts, ends, steps, shape = [], [], [], []
    dims = iter(tensor.shape)
    for key in keys:
        if key is None:
            shape.append(1)
            continue
        start, stop, step, kept = _bounds(key, next(dims))
        starts.append(start)
        ends.append(stop)
        steps.append(step)
        shape.extend(kept)
    return tensor._op("Slice", starts=starts, ends=ends, steps=steps).reshape(*shape)


def _bounds(key: Any, size: int) -> tuple[int, int, int, list[int]]:
    """Start, end and step along an axis, and the resulting dimension."""
    if isinstance(key, slice):
        start, stop, step = key.indices(size)
        return start, stop, step, [len(range(start, stop, step))]
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if not -size <= key < size:
            raise GeError("E10040", f"index {key} is out of range for a dimension of {size}")
        start = int(key) % size
        return start, start + 1, 1, []
    raise GeError(
        "E10040", f"cannot index a tensor with {key!r}", remedy="use ge.ops.gather for tensors of indices"
    )
