"""Recognises attention decomposed into products and a softmax, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.nn.attention import is_fused
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.precision.lower_precision import mode_of
from ge.passes.rewrite import Rewriter, attrs_of, only_use, producer, replace_node, scalar, sole_consumer

__all__ = ["FuseAttention"]

_FLOATS = frozenset({"float32", "bfloat16", "float16"})
_SAME = 1e-6  # relative difference below which two scales are equal
_NOTHING = -1e9  # scores at or below it get zero weight beside any other
_LOWEST = float(np.finfo(np.float32).min)


# -- matrices under transposes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Matrix:
    """A stack of matrices that a product reads: a value with permuted axes."""

    value: ir.Value
    perm: tuple[int, ...]

    @staticmethod
    def of(value: ir.Value, transposed: bool = False) -> _Matrix:
        """Strip all transposes from a value."""
        perm = tuple(range(desc_of(value).rank))
        while (node := producer(value, "Transpose")) is not None:
            inner, source = attrs_of(node)["perm"], node.inputs[0]
            assert source is not None
            value, perm = source, tuple(inner[axis] for axis in perm)
        found = _Matrix(value, perm)
        return found.turned if transposed else found

    @property
    def turned(self) -> _Matrix:
        return replace(self, perm=(*self.perm[:-2], self.perm[-1], self.perm[-2]))

    @property
    def desc(self) -> TensorDesc:
        desc = desc_of(self.value)
        return TensorDesc(tuple(desc.shape[axis] for axis in self.perm), desc.dtype)

    def made(self, r: Rewriter) -> ir.Value:
        """Emit the value in this axis order."""
        if self.perm == tuple(range(len(self.perm))):
            return self.value
        return r.op("Transpose", self.value, perm=list(self.perm))


@dataclass(frozen=True)
class _Product:
    """A product of two stacks of matrices, seen as itself or as its transpose."""

    node: ir.Node
    left: _Matrix
    right: _Matrix
    turned: bool = False  # the node's result is the transpose of left times right

    @staticmethod
    def of(node: ir.Node | None, turned: bool = False) -> _Product | None:
        if node is None or node.op_type != "MatMul" or len(node.inputs) > 2:
            return None
        a, b = node.inputs
        attrs = attrs_of(node)
        if a is None or b is None or attrs["post_ops"] or attrs["output_dtype"]:
            return None
        left, right = _Matrix.of(a, attrs["transpose_a"]), _Matrix.of(b, attrs["transpose_b"])
        if left.desc.shape[:-2] != right.desc.shape[:-2]:
            return None
        return _Product(node, right.turned, left.turned, True) if turned else _Product(node, left, right)


def _turns(node: ir.Node) -> bool:
    """True if a transpose swaps rows and columns and moves no other axis."""
    rank = len(attrs_of(node)["perm"])
    return tuple(attrs_of(node)["perm"]) == (*range(rank - 2), rank - 1, rank - 2)


def _reads(value: ir.Value, turned: bool = False) -> list[tuple[ir.Node, int, bool]] | None:
    """The readers of a stack of matrices with their input positions, and whether they read it transposed; None if it is
    a graph output or other axes are permuted."""
    found: list[tuple[ir.Node, int, bool]] = []
    if value.is_graph_output():
        return None
    for node, index in value.uses():
        if node.op_type == "Transpose":
            inner = _reads(node.outputs[0], not turned) if _turns(node) else None
            if inner is None:
                return None
            found += inner
        elif node.op_type == "Cast":
            inner = _reads(node.outputs[0], turned) if _is_float(node.outputs[0]) else None
            if inner is None:
                return None
            found += inner
        else:
            found.append((node, index, turned))
    return found


def _is_float(value: ir.Value) -> bool:
    return desc_of(value).dtype in _FLOATS


def _product_with(node: ir.Node, index: int, turned: bool) -> tuple[_Product, bool] | None:
    """Normalise a product so that the value is its left operand; also return whether the value is read transposed."""
    if node.inputs.count(node.inputs[index]) > 1:
        return None
    product = _Product.of(node, turned=index == 1)
    if product is None:
        return None
    flag = attrs_of(node)["transpose_b" if index == 1 else "transpose_a"]
    return product, turned ^ bool(flag) ^ (index == 1)


# -- scores --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scores:
    """The softmax's operand as scale * q k', and its mask."""

    q: _Matrix
    k: _Matrix
    scale: float
    nodes: tuple[ir.Node, ...]
    mask: ir.Value | None = None
    hidden: ir.Value | None = None  # the condition under which a constant replaces scores
    hides: bool = False  # the value of the condition that hides
    fill: float = -math.inf

    @property
    def mask_desc(self) -> TensorDesc | None:
        given = self.mask if self.mask is not None else self.hidden
        if given is None:
            return None
        shape = desc_of(given).shape
        return TensorDesc((1,) * (2 - len(shape)) + shape, "float32" if self.mask is not None else "bool")


def _factor(node: ir.Node, chain: ir.Value) -> float | None:
    """The constant factor by which a node multiplies one of its inputs."""
    first, second = node.inputs
    if node.op_type == "Div":
        divisor = scalar(second) if first is chain else None
        return 1 / divisor if divisor else None
    return scalar(second if first is chain else first)


def _scores(value: ir.Value) -> _Scores | None:
    """Walk from the softmax back to the product."""
    scale, turned = 1.0, False
    nodes: list[ir.Node] = []
    masks: dict[str, Any] = {}
    while only_use(value) and (node := value.producer()) is not None:
        nodes.append(node)
        if node.op_type == "MatMul":
            product = _Product.of(node, turned)
            if product is None:
                return None
            return _Scores(product.left, product.right.turned, scale, tuple(nodes), **masks)
        if node.op_type in ("Mul", "Div"):
            chain = _computed(node)
            factor = None if chain is None else _factor(node, chain)
            if chain is None or factor is None:
                return None
            scale, value = scale * factor, chain
        elif node.op_type == "Transpose" and _turns(node):
            turned, value = not turned, node.inputs[0]  # type: ignore[assignment]
        elif node.op_type == "Cast" and _is_float(value):
            value = node.inputs[0]  # type: ignore[assignment]
        elif node.op_type in ("Add", "Select") and not masks and scale == 1 and not turned:
            found = _masked(node)
            if found is None:
                return None
            value, masks = found
        else:
            return None
        if desc_of(value).shape != desc_of(nodes[0].outputs[0]).shape and not turned:
            return None
    return None


def _computed(node: ir.Node) -> ir.Value | None:
    """The operand of an arithmetic node that is not a constant scalar."""
    first, second = node.inputs
    if scalar(second) is not None:
        return first
    return second if scalar(first) is not None else None


def _leads_to_product(value: ir.Value | None) -> bool:
    """True if a value is a product, perhaps scaled."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "MatMul":
            return True
        if node.op_type in ("Mul", "Div"):
            value = _computed(node)
        elif node.op_type in ("Cast", "Transpose"):
            value = node.inputs[0]
        else:
            return False
    return False


def _masked(node: ir.Node) -> tuple[ir.Value, dict[str, Any]] | None:
    """The scores before an Add or a Select masks them, and the mask."""
    if node.op_type == "Add":
        shape = desc_of(node.outputs[0]).shape
        for scores, mask in (node.inputs, node.inputs[::-1]):
            if scores is not mask and desc_of(scores).shape == shape and _leads_to_product(scores):  # type: ignore[arg-type]
                return scores, {"mask": mask}  # type: ignore[return-value]
        return None
    condition, kept, other = node.inputs
    for scores, filling, hides in ((kept, other, False), (other, kept, True)):
        fill = scalar(filling)
        if fill is not None and scores is not None:
            return scores, {"hidden": condition, "hides": hides, "fill": float(fill)}
    return None


# -- consumers of the weights ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gradient:
    """The products that compute dv, dq and dk, each with its gradient on the left, and the gradient of the result."""

    dy: _Matrix
    dv: _Product
    dq: _Product
    dk: _Product


@dataclass(frozen=True)
class _Found:
    """A match: attention, and its gradient if the graph has one."""

    scores: _Scores
    softmax: ir.Node
    result: _Product
    gradient: _Gradient | None = None

    @property
    def v(self) -> _Matrix:
        return self.result.right

    @property
    def products(self) -> list[ir.Node]:
        g = self.gradient
        made = [] if g is None else [g.dv.node, g.dq.node, g.dk.node]
        return [self.scores.nodes[-1], self.result.node, *made]


def _found(softmax: ir.Node) -> _Found | None:
    source, weights = softmax.inputs[0], softmax.outputs[0]
    assert source is not None
    rank = desc_of(source).rank
    if rank < 2 or [a % rank for a in attrs_of(softmax)["axes"]] != [rank - 1]:
        return None
    reads, scores = _reads(weights), _scores(source)
    if reads is None or scores is None:
        return None
    results: list[_Product] = []
    gradients: list[_Product] = []
    others: list[ir.Node] = []
    for node, index, turned in reads:
        with_weights = _product_with(node, index, turned)
        if with_weights is None and turned:
            return None
        if with_weights is None:
            others.append(node)
        else:
            product, by_keys = with_weights
            (gradients if by_keys else results).append(product)
    if len(results) != 1 or len(gradients) > 1 or bool(gradients) != bool(others):
        return None
    found = _Found(scores, softmax, results[0])
    if not gradients:
        return found
    gradient = _gradient(found, gradients[0], others)
    return None if gradient is None else replace(found, gradient=gradient)


def _gradient(found: _Found, dv: _Product, others: Sequence[ir.Node]) -> _Gradient | None:
    """slopes = p * (dp - sum(p * dp)) for dp = dy v', scaled as the scores are; dq = slopes k, dk = slopes' q."""
    through, slopes = _softmax_slopes(others) or (None, None)
    if through is None or slopes is None:
        return None
    product = _made_by_product(through)
    if product is None or product.left != dv.right or product.right != found.v.turned:
        return None
    scaled = _scaled_slopes(slopes, found.scores)
    reads = None if scaled is None else _reads(scaled)
    made = [] if reads is None else [_product_with(*read) for read in reads]
    if len(made) != 2 or made[0] is None or made[1] is None or made[0][1] == made[1][1]:
        return None
    (dq, _), (dk, _) = made if made[1][1] else made[::-1]  # type: ignore[misc]
    if dq.right != found.scores.k or dk.right != found.scores.q:
        return None
    return _Gradient(dv.right, dv, dq, dk)


def _made_by_product(value: ir.Value) -> _Product | None:
    """The product that produces a value, perhaps transposed or cast."""
    turned = False
    while (node := producer(value, "Transpose", "Cast")) is not None:
        source = node.inputs[0]
        assert source is not None
        if not only_use(source) or not (_is_float(value) if node.op_type == "Cast" else _turns(node)):
            return None
        value, turned = source, turned ^ (node.op_type == "Transpose")
    return _Product.of(value.producer(), turned)


def _softmax_slopes(readers: Sequence[ir.Node]) -> tuple[ir.Value, ir.Value] | None:
    """The gradients of a softmax's result and operand, computed by two readers of the result."""
    if len(readers) != 2 or any(n.op_type != "Mul" for n in readers):
        return None
    for first, second in (readers, readers[::-1]):
        total = sole_consumer(first.outputs[0], "ReduceSum")
        rest = None if total is None else sole_consumer(total.outputs[0], "Sub")
        if total is None or rest is None or rest.outputs[0] not in second.inputs:
            continue
        through, taken = rest.inputs
        if through is None or taken is not total.outputs[0] or through not in first.inputs:
            continue
        uses = {n for n, _ in through.uses()}
        rank = desc_of(through).rank
        last = [a % rank for a in attrs_of(total)["axes"] or ()] == [rank - 1]
        alone = only_use(rest.outputs[0]) and uses == {first, rest} and not through.is_graph_output()
        if last and attrs_of(total)["keepdims"] and alone:
            return through, second.outputs[0]
    return None


def _scaled_slopes(value: ir.Value, scores: _Scores) -> ir.Value | None:
    """The gradient of the product, from that of the softmax's operand; zero where the mask replaces scores."""
    scale, open_masks = 1.0, scores.hidden is not None
    while (node := sole_consumer(value, "Mul", "Div", "Select", "Cast")) is not None:
        if node.op_type == "Select":
            condition, kept, other = node.inputs
            slopes, zero = (other, kept) if scores.hides else (kept, other)
            if not open_masks or condition is not scores.hidden or slopes is not value or scalar(zero) != 0:
                return None
            open_masks = False
        elif node.op_type == "Cast":
            if not _is_float(node.outputs[0]):
                return None
        else:
            factor = _factor(node, value)
            if factor is None:
                return None
            scale *= factor
        value = node.outputs[0]
    same = math.isclose(scale, scores.scale, rel_tol=_SAME)
    return value if same and not open_masks else None


# -- the pass ------------------------------------------------------------------------------------------------


class FuseAttention(Pass):
    """Recognise attention and its gradient.

    1. softmax(q k' * scale + mask) v is Attention if the target has a task for it in the type that it will run in: q, k
       and v are stacks of matrices with the same leading axes, under any transposes; the scale is a number that
       multiplies or divides the product; the mask is added, or a Select replaces scores by a number; casts between
       float types in between are dropped.
    2. The softmax is over the last axis. Scores have no other reader, weights none but the product with v.
    3. In training, the gradients of the softmax and of v also read the weights. If dq, dk and dv are all computed from
       them as the derivative says, with one scale and one mask, AttentionGrad computes the three.
    4. A constant mask that hides the keys after each query, and nothing else, is left to the operator.
    5. Not matched: scores or weights that are outputs of the graph, weights under dropout or with other readers, a
       trainable mask, products that have precision modes of their own.
    """

    name = "fuse_attention"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        changed = False
        for softmax in [node for node in graph if node.op_type == "Softmax"]:
            found = _found(softmax)
            if found is not None and _runs(found, options) and _in_order(graph, found):
                _replace(graph, found, options)
                changed = True
        return changed


def _runs(found: _Found, options: CompileOptions) -> bool:
    """True if the target has the tasks, in the type that the products will run in."""
    common = replace(options, op_precision={})  # a node's own mode may be meant for products only
    modes = {mode_of(node, given) for node in found.products for given in (options, common)}
    mode = modes.pop()
    q, k, v = (m.desc for m in (found.scores.q, found.scores.k, found.v))
    if modes or q.dtype not in _FLOATS or not q.dtype == k.dtype == v.dtype:
        return False
    mask = found.scores.mask_desc
    if mask is not None and mask.dtype == "bool" and _adds_masks(options):
        if found.gradient is not None or found.scores.fill > _NOTHING:
            return False
        mask = TensorDesc(mask.shape, "float32")
    scores = (*q.shape[:-1], k.shape[-2])
    if mask is not None and (len(mask.shape) > len(scores) or mask.shape[-1] != scores[-1]):
        return False
    narrow = [] if mode is None or q.dtype != "float32" else [mode.dtype]
    gradient = found.gradient is not None
    types = (q.dtype, *narrow)
    return all(is_fused(*_in_type(t, q, k, v), mask, options.target, gradient) for t in types)


def _in_type(
    dtype: str, q: TensorDesc, k: TensorDesc, v: TensorDesc
) -> tuple[TensorDesc, TensorDesc, TensorDesc]:
    return TensorDesc(q.shape, dtype), TensorDesc(k.shape, dtype), TensorDesc(v.shape, dtype)


def _in_order(graph: ir.Graph, found: _Found) -> bool:
    """True if everything that the gradient needs is computed before the first of its products."""
    if found.gradient is None:
        return True
    places = {node: place for place, node in enumerate(graph)}
    first = min(places[p] for p in found.products[2:])
    needs = [found.gradient.dy, found.scores.q, found.scores.k, found.v]
    before = [found.result.node, *(m.value.producer() for m in needs)]
    return all(node is None or places.get(node, -1) < first for node in before)


def _replace(graph: ir.Graph, found: _Found, options: CompileOptions) -> None:
    r = Rewriter(graph, found.result.node, options)
    r.stands_for(found.softmax, *found.scores.nodes)
    operands = [m.made(r) for m in (found.scores.q, found.scores.k, found.v)]
    causal = _is_causal(found.scores)
    mask = None if causal else _mask(r, found.scores)
    attrs: dict[str, Any] = {"scale": found.scores.scale, "causal": causal}
    if mask is not None and math.isfinite(found.scores.fill) and not _adds_masks(options):
        attrs["fill"] = found.scores.fill
    y, sums = r.op("Attention", *operands, mask, **attrs)
    stand_ins = [(found.result.node, _result(r, found.result, y))]
    gradient = found.gradient
    if gradient is not None:
        products = (gradient.dq, gradient.dk, gradient.dv)
        nodes = [p.node for p in products]
        after = Rewriter(graph, next(n for n in graph if n in nodes), options)
        after.stands_for(*nodes)
        made = after.op("AttentionGrad", gradient.dy.made(after), *operands, y, sums, mask, **attrs)
        stand_ins += [(p.node, _result(after, p, v)) for p, v in zip(products, made, strict=True)]
    for node, value in stand_ins:
        replace_node(graph, node, [value])


def _result(r: Rewriter, product: _Product, value: ir.Value) -> ir.Value:
    """The replacement of a product: a value, or its transpose."""
    return _Matrix(value, tuple(range(desc_of(value).rank))).turned.made(r) if product.turned else value


def _mask(r: Rewriter, scores: _Scores) -> ir.Value | None:
    """The mask in the operator's form: bools that keep keys, or float32."""
    if scores.hidden is not None and _adds_masks(r.options):
        none, hidden = 0.0, max(scores.fill, _LOWEST)
        sides = (hidden, none) if scores.hides else (none, hidden)
        numbers = [np.full((), side, np.float32) for side in sides]
        return _as_matrix(r, r.op("Select", scores.hidden, *numbers))
    if scores.hidden is not None:
        return _as_matrix(r, r.op("Not", scores.hidden) if scores.hides else scores.hidden)
    if scores.mask is None:
        return None
    wide = desc_of(scores.mask).dtype == "float32"
    return _as_matrix(r, scores.mask if wide else r.op("Cast", scores.mask, to="float32"))


def _adds_masks(options: CompileOptions) -> bool:
    """True if the target only supports additive masks: a hidden key then gets a number that no score outweighs."""
    return options.target.kind == "cuda"


def _is_causal(scores: _Scores) -> bool:
    """True if a constant mask is exactly the causal mask."""
    mask = constant_of(scores.mask if scores.mask is not None else scores.hidden)
    if mask is None or mask.ndim < 2:
        return False
    if scores.mask is not None:
        lowest = float(
            ml_dtypes.finfo(mask.dtype).min
        )  # a 16-bit float's lowest value is above the float32 threshold
        kept, hidden = mask == 0, mask <= max(_NOTHING, lowest)
    else:
        kept = ~mask if scores.hides else mask
        hidden = ~kept & (scores.fill <= _NOTHING)
    lower = np.tril(np.ones(mask.shape[-2:], bool))
    return mask.shape[-2:] == _size(scores) and bool(np.all(np.where(lower, kept, hidden)))


def _size(scores: _Scores) -> tuple[int, int]:
    return scores.q.desc.shape[-2], scores.k.desc.shape[-2]


def _as_matrix(r: Rewriter, mask: ir.Value) -> ir.Value:
    shape = desc_of(mask).shape
    return mask if len(shape) >= 2 else r.op("Reshape", mask, shape=[*(1,) * (2 - len(shape)), *shape])
