"""Lowers tensors to scalars: every output becomes an expression of loop variables and input elements.

Producers are inlined by substituting indices; equal expressions become one node (hash-consing). Reductions and scans
stay nodes, whose bodies are expressions of the inner loop variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tbe import expr as e
from tbe.dtypes import DTYPES
from tbe.index import UNBOUNDED, Arithmetic, Index, LoopVar, const, linear

__all__ = ["Lowering", "Node", "Reduction", "Running", "Unfusable"]

MAX_NODES = 5000
MAX_DEPTH = 150
_COMMUTATIVE = frozenset(
    ["add", "mul", "max", "min", "and", "or", "xor", "bitand", "bitor", "bitxor", "eq", "ne"]
)
_IDENTITY_ON_INTS = frozenset(["floor", "ceil", "round", "trunc"])


class Unfusable(Exception):
    """This graph cannot be one kernel; the message says why."""


class Node:
    """A scalar expression: an operation on other nodes, or a leaf described by `data`.

    Leaves: const (number), index (Index), cond ("lt" or "eq", Index compared with 0),
    load (buffer number, offset Index, guard Node or None), reduction (Reduction), running (Running).
    The data of a lookup (the entry of a table of 256 bytes for a byte) is the table's buffer number.
    """

    __slots__ = ("args", "data", "dtype", "op", "stage", "uid", "vars")

    def __init__(
        self, uid: int, op: str, args: tuple[Node, ...], dtype: str, data: Any, variables: int, stage: int
    ) -> None:
        self.uid = uid
        self.op = op
        self.args = args
        self.dtype = dtype
        self.data = data
        self.vars = variables  # bit mask of the loop variables it depends on
        self.stage = stage  # the number of reduction stages that must be complete before it is known

    def __repr__(self) -> str:
        if self.op in ("const", "index", "cond", "load"):
            return f"{self.op}{self.data}"
        return f"{self.op}({', '.join(map(repr, self.args))})"


class Reduction:
    """One reduction: its body over the inner variables of a group."""

    __slots__ = ("body", "dtype", "extent", "group", "last", "node", "op", "position", "uid")

    def __init__(
        self, uid: int, op: str, body: Node, group: int, last: bool, position: Index, extent: int
    ) -> None:
        self.uid = uid
        self.op = op
        self.body = body
        self.group = group  # the set of inner loops it runs over
        self.last = last
        self.position = position  # the row-major position in the reduced dimensions, for argmax and argmin
        self.extent = extent  # the number of reduced elements
        self.dtype = body.dtype
        self.node: Node


class Running:
    """One scan: a value carried along a loop variable."""

    __slots__ = ("body", "dtype", "exclusive", "falling", "node", "op", "uid", "var")

    def __init__(self, uid: int, op: str, body: Node, var: LoopVar, exclusive: bool, falling: bool) -> None:
        self.uid = uid
        self.op = op
        self.body = body
        self.var = var
        self.exclusive = exclusive
        self.falling = falling  # against the direction of the loop
        self.dtype = body.dtype
        self.node: Node


Indices = tuple[Index, ...]


class Lowering:
    """Lowers tensors over one set of loop variables.

    `reduced` provides the indices along the axes of every reduction: it receives the reduction and the indices of its
    kept dimensions, and returns the inner indices and the number of their group, or None to leave the reduction as an
    unknown (while the loops are not determined yet).
    """

    def __init__(self, inputs: Sequence[e.Tensor]) -> None:
        self.arith = Arithmetic()
        self.buffers = {id(t): number for number, t in enumerate(inputs)}
        self.reductions: list[Reduction] = []
        self.runnings: list[Running] = []
        self.unknowns: list[tuple[e.Reduce, Indices]] = []
        self.breaks: dict[LoopVar, set[int]] = {}  # where a concat or a pad changes along a variable
        self.cut_concat: set[LoopVar] = set()
        self.accesses: list[Index] = []
        self.reduced: Callable[[e.Reduce, Indices], tuple[Indices, int] | None] = lambda t, kept: None
        self._nodes: dict[tuple[Any, ...], Node] = {}
        self._memo: dict[tuple[Any, ...], Node] = {}
        self._depth = 0

    # -- nodes --------------------------------------------------------------------------------------------

    def node(
        self,
        op: str,
        args: tuple[Node, ...],
        dtype: str,
        data: Any = None,
        variables: int = 0,
        stage: int = 0,
    ) -> Node:
        """The node for an operation, created once."""
        key = (op, dtype, data, *[a.uid for a in args])
        found = self._nodes.get(key)
        if found is None:
            for a in args:
                variables |= a.vars
                if a.stage > stage:
                    stage = a.stage
            uid = len(self._nodes)
            if uid > MAX_NODES:
                raise Unfusable(f"more than {MAX_NODES} scalar operations")
            found = self._nodes[key] = Node(uid, op, args, dtype, data, variables, stage)
        return found

    def const(self, value: Any, dtype: str) -> Node:
        """A number; the sign of zero and the kind of NaN are part of its identity."""
        if value != value:
            return self.node("const", (), dtype, ("nan", math.nan))
        return self.node("const", (), dtype, (value.hex() if isinstance(value, float) else None, value))

    def index(self, i: Index) -> Node:
        """An index as an int64 value."""
        if i.is_const:
            return self.const(i.const, "int64")
        return self.node("index", (), "int64", i, i.vars, self.index_stage(i))

    def index_stage(self, i: Index) -> int:
        """The stage at which an index is known: that of the opaque values in it."""
        stage = 0
        for atom, _ in i.terms:
            if atom.kind == "opaque":
                stage = max(stage, atom.data.stage)
            elif atom.kind != "var":
                stage = max(stage, self.index_stage(atom.data[0]))
        return stage

    def condition(self, relation: str, i: Index) -> Node:
        """The condition i < 0 ("lt") or i == 0 ("eq")."""
        if relation == "lt" and (i.hi < 0 or i.lo >= 0):
            return self.const(i.hi < 0, "bool")
        if relation == "eq" and (i.is_const or i.lo > 0 or i.hi < 0):
            return self.const(i.is_const and i.const == 0, "bool")
        return self.node("cond", (), "bool", (relation, i), i.vars, self.index_stage(i))

    def opaque(self, node: Node) -> Index:
        """A run-time int64 value as an index."""
        known = self._as_index(node)
        if known is not None:
            return known
        return self.arith.atom("opaque", (node.uid,), -UNBOUNDED, UNBOUNDED, node.vars, node)

    def both(self, a: Node | None, b: Node | None) -> Node | None:
        """The conjunction of two optional guards."""
        if a is None or b is None:
            return a or b
        return self.apply("and", (a, b), "bool")

    # -- scalar operations with bit-exact simplifications -------------------------------------------------

    def apply(self, op: str, args: tuple[Node, ...], dtype: str) -> Node:
        """A unary, binary, select or cast operation on nodes."""
        if op == "select":
            return self._select(*args)
        if op == "cast":
            return self._cast(args[0], dtype)
        if dtype == "bool" and op in ("and", "or", "not"):
            folded = self._logic(op, args)
            if folded is not None:
                return folded
        if args[0].dtype == "int64" or op in _COMPARE:
            folded = self._fold_index(op, args)
            if folded is not None:
                return folded
        if op in _IDENTITY_ON_INTS and DTYPES[dtype].is_int:
            return args[0]
        if op == "exp" and _never_positive(args[0]):
            return self.node(op, args, dtype, "never positive")
        if op == "pow" and args[1].op == "const":
            folded = self._power(args[0], args[1].data[1], dtype)
            if folded is not None:
                return folded
        if op in ("max", "min") and any(a.op == "const" and a.data[0] == "nan" for a in args):
            return self.const(math.nan, dtype)
        if op in _COMMUTATIVE and args[0].uid > args[1].uid:
            args = (args[1], args[0])
        return self.node(op, args, dtype)

    def _power(self, x: Node, p: Any, dtype: str) -> Node | None:
        if p == 1:
            return x
        if p == 2:
            return self.node("square", (x,), dtype)
        if p == 3:
            return (
                self.apply("mul", (self.node("square", (x,), dtype), x), dtype)
                if DTYPES[dtype].bits >= 32
                else None
            )
        if p == -1 and DTYPES[dtype].is_float:
            return self.node("reciprocal", (x,), dtype)
        return None

    def _logic(self, op: str, args: tuple[Node, ...]) -> Node | None:
        if op == "not":
            return self.const(not args[0].data[1], "bool") if args[0].op == "const" else None
        for this, other in (args, args[::-1]):
            if this.op == "const":
                keeps = this.data[1] == (op == "and")
                return other if keeps else self.const(op == "or", "bool")
        return args[0] if args[0] is args[1] else None

    def _select(self, c: Node, a: Node, b: Node) -> Node:
        if c.op == "const":
            return a if c.data[1] else b
        return a if a is b else self.node("select", (c, a, b), a.dtype)

    def _cast(self, x: Node, dtype: str) -> Node:
        if x.dtype == dtype:
            return x
        if x.op == "const" and x.dtype == "bool":
            return self.const(float(x.data[1]) if DTYPES[dtype].is_float else int(x.data[1]), dtype)
        both_ints = DTYPES[dtype].is_int and DTYPES[x.dtype].is_int
        if x.op == "const" and both_ints and DTYPES[dtype].min <= x.data[1] <= DTYPES[dtype].max:
            return self.const(x.data[1], dtype)
        return self.node("cast", (x,), dtype)

    def _fold_index(self, op: str, args: tuple[Node, ...]) -> Node | None:
        """Keep arithmetic on index values as index arithmetic if it cannot overflow or round."""
        indices: list[Index] = []
        for a in args:
            i = self._as_index(a)
            if i is None or _overflows(i):
                return None
            indices.append(i)
        if op in _COMPARE:
            return self._compare(op, *indices)
        if args[0].dtype != "int64":
            return None
        found = self._index_op(op, indices)
        return None if found is None or _overflows(found) else self.index(found)

    def _as_index(self, node: Node) -> Index | None:
        """The index that a value equals, looking through range-preserving integer casts."""
        if node.op == "index":
            return node.data
        if node.op == "const" and DTYPES[node.dtype].is_int:
            return const(node.data[1])
        if node.op == "cast" and DTYPES[node.dtype].is_int:
            inner = self._as_index(node.args[0])
            if (
                inner is not None
                and DTYPES[node.dtype].min <= inner.lo
                and inner.hi <= DTYPES[node.dtype].max
            ):
                return inner
        return None

    def _compare(self, op: str, a: Index, b: Index) -> Node:
        if op in ("eq", "ne"):
            same = self.condition("eq", a - b)
            return same if op == "eq" else self.apply("not", (same,), "bool")
        if op in ("gt", "le"):
            a, b = b, a
        less = self.condition("lt", a - b)
        return less if op in ("lt", "gt") else self.apply("not", (less,), "bool")

    def _index_op(self, op: str, i: list[Index]) -> Index | None:
        if op == "add":
            return i[0] + i[1]
        if op == "sub":
            return i[0] - i[1]
        if op == "neg":
            return i[0] * -1
        if op == "mul" and (i[0].is_const or i[1].is_const):
            return i[1] * i[0].const if i[0].is_const else i[0] * i[1].const
        if op in ("floordiv", "mod", "div", "fmod") and i[1].is_const and i[1].const > 0:
            if op in ("div", "fmod") and i[0].lo < 0:
                return None
            divide = self.arith.floordiv if op in ("floordiv", "div") else self.arith.mod
            return divide(i[0], i[1].const)
        if op in ("max", "min") and (i[0].is_const or i[1].is_const):
            x, bound = (i[1], i[0].const) if i[0].is_const else (i[0], i[1].const)
            if op == "max":
                return self.arith.clamp(x, bound, max(bound, x.hi))
            return self.arith.clamp(x, min(bound, x.lo), bound)
        return None

    # -- tensors ------------------------------------------------------------------------------------------

    def lower(self, t: e.Tensor, at: Indices, guard: Node | None = None) -> Node:
        """The element of `t` at `at`; loads happen only where `guard` holds."""
        key = (id(t), at, guard.uid if guard is not None else -1)
        found = self._memo.get(key)
        if found is None:
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise Unfusable(f"the graph is more than {MAX_DEPTH} operations deep")
            if len(self._memo) > 4 * MAX_NODES:
                raise Unfusable(f"more than {4 * MAX_NODES} elements to look at")
            found = self._memo[key] = _LOWER[type(t)](self, t, at, guard)
            self._depth -= 1
        return found

    def load(self, t: e.Tensor, at: Indices, guard: Node | None) -> Node:
        """Read an input."""
        buffer = self.buffers.get(id(t))
        if buffer is None:
            raise ValueError(f"{t!r} is read but is not among the inputs")
        inside = all(i.lo >= 0 and i.hi < d for i, d in zip(at, t.shape, strict=False))
        if not inside and guard is None:
            raise AssertionError(f"unguarded read of {t!r} at {at}")
        offset = linear(at, t.shape)
        guard = None if inside else guard
        self.accesses.append(offset)
        stage = max(self.index_stage(offset), guard.stage if guard else 0)
        args = () if guard is None else (guard,)
        return self.node("load", args, t.dtype, (buffer, offset), offset.vars, stage)

    def _elementwise(self, op: str, t: e.Tensor, at: Indices, guard: Node | None) -> Node:
        args = tuple(self.lower(x, _aligned(at, x.shape), guard) for x in t.inputs)
        return self.apply(op, args, t.dtype)

    def _reshape(self, t: e.Tensor, at: Indices, guard: Node | None) -> Node:
        source = t.inputs[0]
        squeezed = [i for i, d in zip(at, t.shape, strict=False) if d != 1]
        if [d for d in t.shape if d != 1] == [d for d in source.shape if d != 1]:
            rest = iter(squeezed)
            return self.lower(source, tuple(const(0) if d == 1 else next(rest) for d in source.shape), guard)
        position = linear(at, t.shape)
        if isinstance(source, e.Reshape):
            source = source.inputs[0]
        return self.lower(source, self.arith.unravel(position, source.shape), guard)

    def _slice(self, t: e.Slice, at: Indices, guard: Node | None) -> Node:
        moved = tuple(i * step + start for i, start, step in zip(at, t.starts, t.steps, strict=False))
        return self.lower(t.inputs[0], moved, guard)

    def _pad(self, t: e.Pad, at: Indices, guard: Node | None) -> Node:
        source = t.inputs[0]
        inside: Node | None = None
        moved = []
        for i, low, extent in zip(at, t.low, source.shape, strict=False):
            i = i - low
            moved.append(i)
            self._break(i, 0, concat=False)
            self._break(i, extent, concat=False)
            inside = self.both(inside, self.apply("not", (self.condition("lt", i),), "bool"))
            inside = self.both(inside, self.condition("lt", i - extent))
        assert inside is not None
        border = self.const(t.value, t.dtype)
        if inside.op == "const":
            return self.lower(source, tuple(moved), guard) if inside.data[1] else border
        return self.apply(
            "select", (inside, self.lower(source, tuple(moved), self.both(guard, inside)), border), t.dtype
        )

    def _concat(self, t: e.Concat, at: Indices, guard: Node | None) -> Node:
        i = at[t.axis]
        end = t.shape[t.axis]
        found: list[tuple[int, Node]] = []  # where a part begins, and its element
        for part in reversed(t.inputs):
            start = end - part.shape[t.axis]
            if i.hi >= start and i.lo < end:
                self._break(i, start, concat=True)
                before_end = self.condition("lt", i - end)
                after_start = self.apply("not", (self.condition("lt", i - start),), "bool")
                inside = self.apply("and", (after_start, before_end), "bool")
                inner = guard if inside.op == "const" else self.both(guard, inside)
                value = self.lower(part, (*at[: t.axis], i - start, *at[t.axis + 1 :]), inner)
                found.append((start, value))
            end = start

        def chosen(parts: Sequence[tuple[int, Node]]) -> Node:
            """The element of one of several parts; a balanced tree, so that hundreds of parts are not nested deeply."""
            if len(parts) == 1:
                return parts[0][1]
            left, right = parts[: len(parts) // 2], parts[len(parts) // 2 :]
            before = self.condition("lt", i - right[0][0])
            return self.apply("select", (before, chosen(left), chosen(right)), t.dtype)

        return chosen(found[::-1])

    def _break(self, i: Index, at: int, *, concat: bool) -> None:
        """Record that behaviour changes where i passes `at`, if i is one loop variable plus a constant."""
        if len(i.terms) == 1 and i.terms[0][1] == 1 and isinstance(i.terms[0][0], LoopVar):
            var = i.terms[0][0]
            place = at - i.const
            if 0 < place < var.extent:
                self.breaks.setdefault(var, set()).add(place)
                if concat:
                    self.cut_concat.add(var)

    def _iota(self, t: e.Iota, at: Indices, guard: Node | None) -> Node:
        return self.apply("cast", (self.index(at[t.axis]),), t.dtype)

    def _take(self, t: e.Take, at: Indices, guard: Node | None) -> Node:
        x, indices = t.inputs
        count = len(indices.shape) - t.batch_dims
        where = (*at[: t.batch_dims], *at[t.axis : t.axis + count])
        if _is_byte_table(x, indices) and id(x) in self.buffers:
            return self.node("lookup", (self.lower(indices, where, guard),), t.dtype, self.buffers[id(x)])
        chosen = self.opaque(self.apply("cast", (self.lower(indices, where, guard),), "int64"))
        extent = x.shape[t.axis]
        if chosen.lo < 0:
            negative = self.condition("lt", chosen)
            wrapped = self.apply(
                "select", (negative, self.index(chosen + extent), self.index(chosen)), "int64"
            )
            chosen = self.opaque(wrapped)
        chosen = self.arith.clamp(chosen, 0, extent - 1)
        return self.lower(x, (*at[: t.axis], chosen, *at[t.axis + count :]), guard)

    def _compute(self, t: e.Compute, at: Indices, guard: Node | None) -> Node:
        known = {id(var): self.index(i) for var, i in zip(t.vars, at, strict=False)}
        return self._scalar(t.body, known, guard)

    def _scalar(self, s: e.Scalar, known: dict[int, Node], guard: Node | None) -> Node:
        found = known.get(id(s))
        if found is not None:
            return found
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unfusable(f"a compute body is more than {MAX_DEPTH} operations deep")
        args = tuple(self._scalar(a, known, guard) for a in s.args)
        if isinstance(s, e.Const):
            found = self.const(s.value, s.dtype)
        elif isinstance(s, e.Load):
            at = tuple(
                self.arith.clamp(self.opaque(a), 0, d - 1) for a, d in zip(args, s.tensor.shape, strict=False)
            )
            found = self.lower(s.tensor, at, guard)
        else:
            assert isinstance(s, e.ScalarOp)
            found = self.apply(s.op, args, s.dtype)
        self._depth -= 1
        known[id(s)] = found
        return found

    def _reduce(self, t: e.Reduce, at: Indices, guard: Node | None) -> Node:
        x = t.inputs[0]
        extent = math.prod(x.shape[a] for a in t.axes)
        if extent == 0:
            return self.const(_NEUTRAL[t.op](DTYPES[t.dtype]), t.dtype)
        kept = tuple(i for a, i in enumerate(at) if a not in t.axes) if t.keepdims else at
        if extent == 1:
            if t.op in ("argmax", "argmin"):
                return self.const(0, "int64")
            return self.lower(x, _spread(kept, t.axes, (const(0),) * len(t.axes)), guard)
        inner = self.reduced(t, kept)
        if inner is None:
            self.unknowns.append((t, kept))
            variables = 0
            for i in kept:
                variables |= i.vars
            return self.node("unknown", (), t.dtype, (id(t), kept), variables, 1)
        if guard is not None:
            raise Unfusable("a reduction inside a pad or an inner concat")
        inner_at, group = inner
        body = self.lower(x, _spread(kept, t.axes, inner_at), None)
        position = linear(inner_at, [x.shape[a] for a in t.axes])
        reduction = Reduction(len(self.reductions), t.op, body, group, t.last, position, extent)
        variables = body.vars
        for i in inner_at:
            variables &= ~i.vars
        key = ("reduction", t.op, t.last, body.uid, group)
        known = self._nodes.get(key)
        if known is None:
            known = Node(len(self._nodes), "reduction", (), t.dtype, reduction, variables, body.stage + 1)
            self._nodes[key] = reduction.node = known
            self.reductions.append(reduction)
        return known

    def _scan(self, t: e.Scan, at: Indices, guard: Node | None) -> Node:
        i = at[t.axis]
        extent = t.shape[t.axis]
        if extent == 1:
            neutral = self.const(_NEUTRAL[t.op](DTYPES[t.dtype]), t.dtype)
            return neutral if t.exclusive else self.lower(t.inputs[0], at, guard)
        var = i.terms[0][0] if len(i.terms) == 1 else None
        forward = var is not None and i.const == 0 and i.terms[0][1] == 1
        backward = var is not None and i.const == extent - 1 and i.terms[0][1] == -1
        if not isinstance(var, LoopVar) or var.extent != extent or not (forward or backward):
            raise Unfusable("a scan whose axis is not one whole loop")
        if guard is not None:
            raise Unfusable("a scan inside a pad or an inner concat")
        for axis, other in enumerate(at):
            if axis != t.axis and other.vars & var.bit:
                raise Unfusable("a scan that is read along a diagonal")
        body = self.lower(t.inputs[0], at, None)
        falling = t.reverse == forward  # whether it runs against the direction of the loop
        key = ("running", t.op, t.exclusive, falling, body.uid, var.bit)
        known = self._nodes.get(key)
        if known is None:
            running = Running(len(self.runnings), t.op, body, var, t.exclusive, falling)
            known = Node(len(self._nodes), "running", (), t.dtype, running, body.vars | var.bit, body.stage)
            self._nodes[key] = running.node = known
            self.runnings.append(running)
        return known


_COMPARE = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])
_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "sum": lambda d: 0.0 if d.is_float else 0,
    "prod": lambda d: 1.0 if d.is_float else 1,
    "max": lambda d: d.min,
    "min": lambda d: d.max,
    "any": lambda d: False,
    "all": lambda d: True,
}


def _is_byte_table(x: e.Tensor, indices: e.Tensor) -> bool:
    """True if a gather is a function of bytes, which one or two vector instructions look up."""
    return x.shape == (256,) and x.dtype in ("int8", "uint8") and indices.dtype == "uint8"


def _never_positive(x: Node) -> bool:
    """True if a value is a number minus a maximum that includes it, as in softmax."""
    if x.op != "sub" or x.args[1].op != "reduction":
        return False
    reduction = x.args[1].data
    return reduction.op == "max" and reduction.body is x.args[0]


def _overflows(i: Index) -> bool:
    return max(-i.lo, i.hi) >= 1 << 62


def _aligned(at: Indices, shape: e.Shape) -> Indices:
    """The indices of a broadcast operand."""
    skip = len(at) - len(shape)
    if not skip and 1 not in shape:
        return at
    return tuple(const(0) if d == 1 else at[a] for a, d in enumerate(shape, skip))


def _spread(kept: Indices, axes: Sequence[int], inner: Indices) -> Indices:
    """Indices of a reduction's operand from the kept indices and those along the reduced axes."""
    at = list(kept)
    for axis, i in zip(axes, inner, strict=False):
        at.insert(axis, i)
    return tuple(at)


_LOWER: dict[type, Callable[[Lowering, Any, Indices, Node | None], Node]] = {
    e.Placeholder: Lowering.load,
    e.Constant: lambda self, t, at, guard: self.const(t.value, t.dtype),
    e.Unary: lambda self, t, at, guard: self._elementwise(t.op, t, at, guard),
    e.Binary: lambda self, t, at, guard: self._elementwise(t.op, t, at, guard),
    e.Select: lambda self, t, at, guard: self._elementwise("select", t, at, guard),
    e.Cast: lambda self, t, at, guard: self._elementwise("cast", t, at, guard),
    e.Broadcast: lambda self, t, at, guard: self.lower(t.inputs[0], _aligned(at, t.inputs[0].shape), guard),
    e.Reshape: Lowering._reshape,
    e.Transpose: lambda self, t, at, guard: self.lower(
        t.inputs[0], tuple(at[t.perm.index(a)] for a in range(len(at))), guard
    ),
    e.Slice: Lowering._slice,
    e.Pad: Lowering._pad,
    e.Concat: Lowering._concat,
    e.Iota: Lowering._iota,
    e.Take: Lowering._take,
    e.Compute: Lowering._compute,
    e.Reduce: Lowering._reduce,
    e.Scan: Lowering._scan,
}
