"""Graphs of symbolic sizes: which values share an open number of rows, and which calls are row-independent.

1. The open sizes of a value stand in its leading axes, in an order; one combination of them is a unit, and the rest of
   the value is a row of fixed size for each unit, in the order of the memory of a contiguous tensor. Known sizes before
   all open ones (a batch of two texts of any length) count units, too.
2. A call keeps rows apart when each row of its results depends on the same rows of its arguments, and on values of
   fixed sizes. Each operator proves it by a rule below; without a rule it does not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

__all__ = ["RESHAPES_TO_SIZES", "Key", "Rows", "factors", "is_number", "keeps_rows", "rows_of"]

aten = torch.ops.aten
Known = Mapping[fx.Node, "Rows"]
Symbol: TypeAlias = sympy.Symbol
Key: TypeAlias = tuple[int, tuple[Symbol, ...]]  # known and open numbers of rows


@dataclass(frozen=True)
class Rows:
    """How a value is made of rows: its open sizes from the slowest to the fastest, and the axes that hold them."""

    order: tuple[Symbol, ...]
    lead: int
    fixed: int = 1  # a known number of units before the open ones

    @property
    def key(self) -> Key:
        """What values have in common whose rows go together."""
        return self.fixed, self.order

    def one_of_fixed(self, shape: Sequence[Any]) -> list[tuple[int, tuple[Symbol, ...]] | None] | None:
        """The factors of leading sizes without those of the known number; None where these are not the slowest.

        A size behind them, or of any other expression, has None.
        """
        found: list[tuple[int, tuple[Symbol, ...]] | None] = []
        rest = self.fixed
        for size in shape:
            parts = factors(size) if rest > 1 else None
            if rest > 1 and parts is None:
                return None
            if parts is not None:
                number, symbols = parts
                large, small = (number, rest) if symbols else (rest, number)
                if not small or large % small:
                    return None
                parts, rest = ((large // small, symbols), 1) if symbols else ((1, ()), large // small)
            found.append(parts)
        return found if rest == 1 else None


def factors(size: Any) -> tuple[int, tuple[Symbol, ...]] | None:
    """A size as a number times symbols; None for any other expression.

    >>> factors(3)
    (3, ())
    """
    if isinstance(size, int):
        return size, ()
    number, rest = size.node.expr.as_coeff_mul()
    symbols = tuple(r for r in rest if isinstance(r, sympy.Symbol))
    return (int(number), symbols) if len(symbols) == len(rest) and number.is_Integer else None


def _is_known(size: Any) -> bool:
    return isinstance(size, int) or bool(size.node.expr.is_Integer)


def is_number(value: Any) -> bool:
    """Whether a value is a size, or made of sizes."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(is_number(v) for v in value)
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def _shape(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    shape = (value[0] if isinstance(value, (list, tuple)) else value).shape
    return tuple(int(d.node.expr) if not isinstance(d, int) and _is_known(d) else d for d in shape)


def rows_of(graph: fx.Graph) -> dict[fx.Node, Rows]:
    """The values of a graph that are rows; those of fixed sizes have no symbols."""
    known: dict[fx.Node, Rows] = {}
    for node in graph.nodes:
        tensors = _tensors(node.meta.get("val"))
        found = [_spelled_out(t) or _handed_on(t, node, known) for t in tensors]
        if not found or any(f is None or f.key != found[0].key for f in found):  # type: ignore[union-attr]
            continue
        known[node] = found[0]  # type: ignore[assignment]
        if not all(_spelled_out(t) for t in tensors) and not _hands_on(node, known):
            del known[node]
    return known


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a value; results that are always empty do not count."""
    several = isinstance(value, (list, tuple))
    given = [v for v in (value if several else [value]) if isinstance(v, torch.Tensor)]
    return [v for v in given if not (several and tuple(v.shape) == (0,))]


def _open_axes(tensor: torch.Tensor) -> tuple[int, list[tuple[int, tuple[Symbol, ...]]]] | None:
    """How many leading axes reach to the last open one, and their factors; None where symbols are not plain."""
    shape = tuple(tensor.shape)
    lead = max((i + 1 for i, d in enumerate(shape) if not _is_known(d)), default=0)
    parts = [factors(d) for d in shape[:lead]]
    symbols = [s for p in parts if p is not None for s in p[1]]
    if None in parts or len(set(symbols)) != len(symbols):
        return None
    return lead, parts  # type: ignore[return-value]


def _spelled_out(tensor: torch.Tensor) -> Rows | None:
    """Rows that the shape itself tells: one symbol an axis, nothing between them, known sizes before all of them."""
    found = _open_axes(tensor)
    if found is None:
        return None
    lead, parts = found
    before = next((i for i, (_, symbols) in enumerate(parts) if symbols), 0)
    if any(number != 1 or len(symbols) > 1 for number, symbols in parts[before:]):
        return None
    fixed = math.prod(number for number, _ in parts[:before])
    return Rows(tuple(s for _, symbols in parts for s in symbols), lead, fixed) if fixed else None


def _handed_on(tensor: torch.Tensor, node: fx.Node, known: Known) -> Rows | None:
    """Rows in the order of an argument's, should the call keep them apart."""
    found = _open_axes(tensor)
    if found is None:
        return None
    symbols = {s for _, part in found[1] for s in part}
    keys = [known[n].key for n in node.all_input_nodes if n in known and set(known[n].order) == symbols]
    if not keys:
        return None
    rows = Rows(keys[0][1], found[0], keys[0][0])
    return rows if rows.one_of_fixed(tensor.shape[: rows.lead]) is not None else None


def _hands_on(node: fx.Node, known: Known) -> bool:
    return node.target is operator.getitem or keeps_rows(node, known)


# -- rules -------------------------------------------------------------------------------------------------------


def keeps_rows(node: fx.Node, known: Known) -> bool:
    """Whether a call keeps rows apart; one without rows at all does, too."""
    mine = known.get(node)
    target = node.target
    if mine is None or not isinstance(target, torch._ops.OpOverload) or _has_effects(target):
        return False
    sources = [n for n in node.all_input_nodes if not is_number(n.meta.get("val"))]
    if any(n not in known for n in sources):
        return False
    if not mine.order:
        return not any(known[n].order for n in sources) and not _open_numbers(node)
    if any(known[n].order and known[n].key != mine.key for n in sources):
        return False
    if not any(known[n].order for n in sources):
        return False
    if target in _RESHAPES:
        return _RESHAPES[target](node, known)
    if _open_numbers(node):
        return False
    if _is_pointwise(target):
        return _pointwise(node, known)
    rule = _RULES.get(target) or _NAMED_RULES.get(target._schema.name)
    return rule is not None and rule(node, known)


def _has_effects(target: Any) -> bool:
    draws = torch.Tag.nondeterministic_seeded in target.tags and _RULES.get(target) is not _attention
    return target._schema.is_mutable or draws


def _open_numbers(node: fx.Node) -> bool:
    """Whether a call takes a size that is not known as a plain argument."""
    return any(
        is_number(n.meta.get("val"))
        and not isinstance(n.meta["val"], (int, float, bool))
        and not (isinstance(n.meta["val"], torch.SymInt) and _is_known(n.meta["val"]))
        for n in node.all_input_nodes
    )


def _is_pointwise(target: Any) -> bool:
    return target in _POINTWISE or torch.Tag.pointwise in getattr(target, "tags", ())


def _fixed(value: Any, known: Known) -> bool:
    """Whether an argument has no rows."""
    return not isinstance(value, fx.Node) or (value in known and not known[value].order)


def _same_sizes(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether sizes are the same expressions; nothing is guarded."""
    return len(left) == len(right) and all(
        (a if isinstance(a, int) else a.node.expr) == (b if isinstance(b, int) else b.node.expr)
        for a, b in zip(left, right, strict=True)
    )


def _pointwise(node: fx.Node, known: Known) -> bool:
    shape, lead = _shape(node), known[node].lead
    return all(_broadcasts(n, shape, lead, known) for n in node.all_input_nodes)


def _broadcasts(source: fx.Node, shape: Sequence[Any], lead: int, known: Known) -> bool:
    """Whether an operand is the same for every row, or has the result's leading axes."""
    if not isinstance(source.meta.get("val"), torch.Tensor):
        return is_number(source.meta.get("val"))
    given = _shape(source)
    if known[source].order:
        return len(given) == len(shape) and _same_sizes(given[:lead], shape[:lead])
    over = len(given) - (len(shape) - lead)
    return over <= 0 or all(d == 1 for d in given[:over])


def _reshape(node: fx.Node, known: Known) -> bool:
    return True  # the order of a contiguous tensor's memory stays


def _expanded(node: fx.Node, known: Known) -> bool:
    """Axes behind the rows may grow."""
    source: Any = node.args[0]
    lead, before, after = known[source].lead, _shape(source), _shape(node)
    return len(before) == len(after) and lead == known[node].lead and _same_sizes(before[:lead], after[:lead])


def _squeeze(node: fx.Node, known: Known) -> bool:
    source: Any = node.args[0]
    return _axes_after(node.args[1], source, known)


def _axes_after(axes: Any, source: fx.Node, known: Known) -> bool:
    """Whether axes of an argument are all behind those that hold the rows."""
    rank = len(_shape(source))
    wanted = axes if isinstance(axes, (list, tuple)) else [axes]
    return bool(wanted) and all(isinstance(a, int) and a % rank >= known[source].lead for a in wanted)


def _along(position: int, default: Any = None) -> Callable[[fx.Node, Known], bool]:
    """Only the first argument has rows, and the call works along axes given as an argument."""

    def rule(node: fx.Node, known: Known) -> bool:
        source: Any = node.args[0]
        axes = node.args[position] if len(node.args) > position else node.kwargs.get("dim", default)
        return _first_alone(node, known) and axes is not None and _axes_after(axes, source, known)

    return rule


def _first_alone(node: fx.Node, known: Known) -> bool:
    return not _fixed(node.args[0], known) and all(
        _fixed(n, known) for n in node.all_input_nodes if n is not node.args[0]
    )


def _joined(node: fx.Node, known: Known) -> bool:
    """Lists of tensors joined along an axis behind the rows."""
    sources: Any = node.args[0]
    shape, axis = _shape(node), node.args[1] if len(node.args) > 1 else 0
    lead = known[node].lead
    return (
        isinstance(axis, int)
        and axis % len(shape) >= lead
        and all(
            not _fixed(s, known) and known[s].lead == lead and _same_sizes(_shape(s)[:lead], shape[:lead])
            for s in sources
        )
    )


def _permuted(node: fx.Node, known: Known) -> bool:
    source, order = node.args
    lead, rank = known[source].lead, len(order)  # type: ignore[index,arg-type]
    return [a % rank for a in order][:lead] == list(range(lead))  # type: ignore[union-attr,operator]


def _product(first: int) -> Callable[[fx.Node, Known], bool]:
    """A matrix of rows times one of fixed sizes."""

    def rule(node: fx.Node, known: Known) -> bool:
        left, right = node.args[first], node.args[first + 1]
        bias = node.args[0] if first else None
        wide = isinstance(bias, fx.Node) and len(_shape(bias)) > 1
        others = _fixed(right, known) and _fixed(bias, known) and not wide
        return not _fixed(left, known) and others and known[left].lead == 1  # type: ignore[index]

    return rule


def _linear(node: fx.Node, known: Known) -> bool:
    source: Any = node.args[0]
    return _first_alone(node, known) and known[source].lead < len(_shape(source))


def _batched(node: fx.Node, known: Known) -> bool:
    """Products of matrices, as many on both sides."""
    return all(not _fixed(a, known) and known[a].lead == 1 for a in node.args[:2])  # type: ignore[index]


def _windows(node: fx.Node, known: Known) -> bool:
    """Convolutions, pools and resizing: the first axis is the batch."""
    source: Any = node.args[0]
    return _first_alone(node, known) and known[source].lead == 1


def _inference_norm(node: fx.Node, known: Known) -> bool:
    trains = len(node.args) > 5 and node.args[5] is True
    return _windows(node, known) and not trains


def _layer_norm(node: fx.Node, known: Known) -> bool:
    source, sizes = node.args[0], node.args[1]
    rank = len(_shape(source))  # type: ignore[arg-type]
    return _first_alone(node, known) and rank - len(sizes) >= known[source].lead  # type: ignore[arg-type,index]


def _embedding(node: fx.Node, known: Known) -> bool:
    return _fixed(node.args[0], known) and not _fixed(node.args[1], known)


def _attention(node: fx.Node, known: Known) -> bool:
    """Queries, keys and values of the same batch."""
    mask: Any = node.kwargs.get("attn_mask")
    shared = mask is None or (_fixed(mask, known) and (len(_shape(mask)) < 4 or _shape(mask)[0] == 1))
    drops = len(node.args) > 3 and node.args[3] != 0
    return shared and not drops and all(not _fixed(a, known) and known[a].lead == 1 for a in node.args[:3])  # type: ignore[index]


_POINTWISE = frozenset({aten.clone.default, aten._to_copy.default, aten.gelu.default})
_RESHAPES: dict[Any, Callable[[fx.Node, Known], bool]] = {
    aten.view.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.reshape.default: _reshape,
    aten.alias.default: _reshape,
    aten.detach.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.expand.default: _expanded,
    aten.squeeze.dim: _squeeze,
    aten.squeeze.dims: _squeeze,
}
RESHAPES_TO_SIZES = frozenset(  # their second argument is the shape of the result
    {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default}
)
_NAMED_RULES: dict[str, Callable[[fx.Node, Known], bool]] = {  # of operators that other packages define
    "npu::weight_quant_matmul": _linear,
}
_RULES: dict[Any, Callable[[fx.Node, Known], bool]] = {
    aten._weight_int8pack_mm.default: _windows,
    aten.mm.default: _product(0),
    aten.addmm.default: _product(1),
    aten.linear.default: _linear,
    aten.bmm.default: _batched,
    aten.native_layer_norm.default: _layer_norm,
    aten.embedding.default: _embedding,
    aten.permute.default: _permuted,
    aten.cat.default: _joined,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten.transpose.int: lambda node, known: _axes_after(list(node.args[1:3]), node.args[0], known),  # type: ignore[arg-type]
    aten.split.Tensor: _along(2, 0),
    aten.split_with_sizes.default: _along(2, 0),
    aten.slice.Tensor: _along(1, 0),
    **dict.fromkeys(
        (aten._softmax.default, aten._log_softmax.default, aten.sum.dim_IntList, aten.mean.dim, aten.amax.default,
         aten.amin.default, aten.any.dim, aten.all.dim, aten.argmax.default, aten.argmin.default, aten.max.dim,
         aten.min.dim, aten.prod.dim_int, aten.cumsum.default, aten.logsumexp.default, aten.var.correction,
         aten.var_mean.correction, aten.select.int, aten.unbind.int, aten.flip.default),
        _along(1),
    ),
    **dict.fromkeys(
        (aten.convolution.default, aten.avg_pool2d.default, aten.max_pool2d_with_indices.default,
         aten._adaptive_avg_pool2d.default, aten.upsample_nearest2d.vec, aten.upsample_bilinear2d.vec),
        _windows,
    ),
    **dict.fromkeys(
        (aten._native_batch_norm_legit_no_training.default, aten.native_batch_norm.default), _inference_norm
    ),
}  # fmt: skip
