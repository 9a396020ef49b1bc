"""Precision modes: choose the operators that run in a narrower element type, and the values stored in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ge.engines import placement_of
from ge.ir import facts
from ge.ir.graphs import subgraphs_of
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Engine, is_whole_view, lookup, of_post_op
from ge.ops.traits import Epilogue, Result
from ge.options import CompileOptions, PrecisionMode
from ge.passes.base import Pass
from ge.passes.precision.rounding import layout_of, round_weights, typical_means
from ge.passes.rewrite import Rewriter, attrs_of, remove_dead, replace_node
from ge.target import Target

__all__ = ["MODES", "LowerPrecision", "Mode", "feeding_products", "mode_of"]


@dataclass(frozen=True)
class Mode:
    """A precision mode: the narrow type, whether results and stored values take it too, and whether it is required even
    if the machine can only emulate it."""

    dtype: str
    stores: bool
    forced: bool = False


MODES = {
    PrecisionMode.MIX_BF16: Mode("bfloat16", True),
    PrecisionMode.MIX_FP16: Mode("float16", True),
    PrecisionMode.FORCE_FP16: Mode("float16", True, forced=True),
    PrecisionMode.CUBE_FP16: Mode("float16", False, forced=True),
}
_WIDE = "float32"
_ADDITION = Epilogue("add")
_BIAS = 2  # the input of a product that is its bias; those behind it are operands of its epilogues


class LowerPrecision(Pass):
    """Apply the precision mode.

    1. The default mode changes nothing.
    2. In the mixed modes, float32 products and poolings (Conv, ConvTranspose, MatMul, Attention, LSTM, MaxPool,
       AvgPool, and their gradients) run in the narrow type, accumulating in float32; biases stay float32.
    3. Scores that feed a Softmax and sums that feed a normalisation keep float32, also sums that are added to again
       after it (the residual stream of a transformer, where every rounding would persist to the end). So does a product
       that is the model's output or that no other product depends on (a gradient that feeds a weight update; the
       weights themselves are float32 inputs and outputs). Vector kernels compute in float32; `store_narrow` decides how
       values are stored between them.
       The bias and the epilogues of a product whose result keeps float32 are nodes of their own if the target has a
       primitive only without them; a product with epilogues stays as it is if it has none at all.
    4. If the machine's primitives lack the narrow type, modes that allow it change nothing, and modes that force it are
       emulated (see `widen_unsupported`); either way the graph carries a note.
    5. cube_fp16in_fp32out narrows only the operands of products; results and stored values stay float32.
    6. force_fp32 widens 16-bit floats inside the model to float32.
    7. Inputs, outputs, integers, booleans and float64 keep their element types; so do nodes marked to keep theirs, and
       nodes whose own mode in `op_precision` (by name or operator) says so.
    """

    name = "lower_precision"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if options.precision_mode is PrecisionMode.FORCE_FP32:
            return _widen(graph, options)
        whole = MODES.get(options.precision_mode)
        if whole is not None and whole.dtype not in options.target.narrow_floats:
            how = "are imitated" if whole.forced else "run in float32"
            facts.add_note(
                graph, f"{whole.dtype} products {how}: this machine's primitives lack {whole.dtype}"
            )
        for name in sorted(options.op_precision.keys() - _names(graph)) if options.op_precision else ():
            facts.add_note(
                graph, f"the precision of '{name}' has no effect: no node or operator is called so"
            )
        changed = False
        feeding = feeding_products(graph)
        for node in graph:
            mode = mode_of(node, options)
            if mode is not None and _lowerable(node):
                _lower(graph, node, mode, options, last=node.outputs[0] not in feeding)
                changed = True
        return changed


def feeding_products(graph: ir.Graph) -> set[ir.Value]:
    """The values that some product depends on, directly or indirectly."""
    found: set[ir.Value] = set()
    for node in reversed(graph):
        if (
            lookup(node.op_type).precision.product
            or _has_graphs(node)
            or any(v in found for v in node.outputs)
        ):
            found.update(v for v in node.inputs if v is not None)
    return found


def mode_of(node: ir.Node, options: CompileOptions) -> Mode | None:
    """The mode of a node: its own by name, by origin or by operator, else the model's."""
    if facts.keep_dtype(node):
        return None
    for key in _keys(node):
        text = options.op_precision.get(key)
        if text is not None:
            return _usable(PrecisionMode.parse(text), options.target)
    return _usable(options.precision_mode, options.target)


def _keys(node: ir.Node) -> tuple[str, ...]:
    """The names under which a node's own mode can be set, most specific first."""
    return (node.name or "", *facts.origin(node), node.op_type)


def _names(graph: ir.Graph) -> set[str]:
    """The names of all nodes, including nested ones."""
    inner = [_names(subgraph) for subgraph in subgraphs_of(graph)]
    return {key for node in graph for key in _keys(node)}.union(*inner)


def _usable(name: PrecisionMode, target: Target) -> Mode | None:
    """The effect of a mode on this machine: a mode that allows a type is ignored if primitives lack it."""
    mode = MODES.get(name)
    return mode if mode is None or mode.forced or mode.dtype in target.narrow_floats else None


def _lowerable(node: ir.Node) -> bool:
    precision = lookup(node.op_type).precision
    if not precision.narrows or desc_of(node.outputs[0]).dtype != _WIDE:
        return False
    masks = (_WIDE, "bool") if precision.masked else (_WIDE,)
    return all(v is None or desc_of(v).dtype in masks for v in node.inputs)


def _lower(graph: ir.Graph, node: ir.Node, mode: Mode, options: CompileOptions, *, last: bool) -> None:
    """Run one node in the narrow type, between casts; a `last` product keeps wide sums."""
    precision = lookup(node.op_type).precision
    if not mode.stores and not precision.product:
        return
    r = Rewriter(graph, node, options)
    wide_result = precision.result is Result.WIDE or (
        precision.result is Result.EITHER
        and (
            not mode.stores
            or last
            or _feeds_sensitive(node.outputs[0])
            or _is_residual(node.outputs[0])
            or _is_answer(node.outputs[0])
        )
    )
    inputs: list[ir.Value | None] = []
    for index, value in enumerate(node.inputs):
        keep = value is None or index in precision.keeps or (index > 2 and wide_result)
        inputs.append(value if keep else _narrowed(r, node, index, mode.dtype))
    made = _with_wide_result(r, node, inputs, mode.dtype) if wide_result else r.op_like(node, inputs)
    results = list(made) if isinstance(made, tuple) else [made]
    replace_node(
        graph, node, [v if desc_of(v).dtype == _WIDE else r.op("Cast", v, to=_WIDE) for v in results]
    )
    remove_dead(graph, r.created)


def _with_wide_result(r: Rewriter, node: ir.Node, inputs: Sequence[ir.Value | None], dtype: str) -> Any:
    """A product of narrow operands with a float32 result; the node's own result if it stays as it is."""
    made = r.op_like(node, inputs, output_dtype=_WIDE)
    post_ops = attrs_of(node).get("post_ops", ())
    fused = post_ops or (lookup(node.op_type).takes_epilogues and any(v is not None for v in inputs[_BIAS:]))
    if not fused or dtype not in r.options.target.narrow_floats or _is_primitive(made, r.options):
        return made
    steps = [of_post_op(text) for text in post_ops]
    plain = r.op_like(node, inputs[:_BIAS], output_dtype=_WIDE, post_ops=())
    if None not in steps and _is_primitive(plain, r.options):
        return _followed(r, plain, inputs[_BIAS:], [step for step in steps if step is not None])
    return node.outputs[0] if steps else made


def _followed(
    r: Rewriter,
    value: ir.Value,
    operands: Sequence[ir.Value | None],
    steps: Sequence[tuple[str, dict[str, Any]]],
) -> ir.Value:
    """A product's result after its bias, the first operand, and its epilogues, each a node of its own."""
    bias, *rest = operands or [None]
    left = iter(rest)
    result = value if bias is None else r.op("Add", value, bias)
    for type_, attrs in steps:
        more = [next(left)] if len(lookup(type_).prototype.inputs) > 1 else []
        result = r.op(type_, result, *more, **attrs)
    return result


def _is_primitive(value: ir.Value, options: CompileOptions) -> bool:
    node = value.producer()
    return node is not None and placement_of(node, options.target)[0] is Engine.AI_CORE


def _narrowed(r: Rewriter, node: ir.Node, index: int, dtype: str) -> ir.Value:
    """An operand in the narrow type; constant weights are rounded so that the errors of their sums cancel."""
    value = node.inputs[index]
    assert value is not None
    layout = layout_of(node) if index == 1 else None
    weights = constant_of(value) if layout is not None else None
    if layout is None or weights is None:
        return r.op("Cast", value, to=dtype)
    return r.constant(round_weights(weights, dtype, layout, typical_means(node)))


def _feeds_sensitive(value: ir.Value, depth: int = 4) -> bool:
    """True if a value feeds, perhaps after some arithmetic, only a softmax or statistics."""
    readers = value.consumers()
    if value.is_graph_output() or not readers or depth == 0:
        return False
    return all(
        precision.sensitive or (precision.passes_on and _feeds_sensitive(n.outputs[0], depth - 1))
        for n, precision in ((n, lookup(n.op_type).precision) for n in readers)
    )


def _is_residual(value: ir.Value) -> bool:
    """True if a value feeds a normalisation and otherwise only sums."""
    readers = [(lookup(n.op_type), index) for n, index in _uses(value)]
    return any(reader.precision.normalises for reader, _ in readers) and all(
        reader.precision.normalises
        or reader.epilogue == _ADDITION
        or (reader.takes_epilogues and index > _BIAS)
        for reader, index in readers
    )


def _uses(value: ir.Value) -> list[tuple[ir.Node, int]]:
    """The consumers of a value, looking through reshapes, with their input positions."""
    found = []
    for node, index in value.uses():
        found += _uses(node.outputs[0]) if is_whole_view(node) else [(node, index)]
    return found


def _is_answer(value: ir.Value) -> bool:
    """True if a value is only an output of the model, perhaps reshaped."""
    readers = value.consumers()
    if not readers:
        return value.is_graph_output()
    return len(readers) == 1 and is_whole_view(readers[0]) and _is_answer(readers[0].outputs[0])


def _widen(graph: ir.Graph, options: CompileOptions) -> bool:
    """Run every 16-bit float node in float32."""
    changed = False
    narrow = ("float16", "bfloat16")
    for node in graph:
        if facts.keep_dtype(node) or node.op_type == "Cast" or _has_graphs(node):
            continue
        if not any(v is not None and desc_of(v).dtype in narrow for v in (*node.inputs, *node.outputs)):
            continue
        if "dtype" in attrs_of(node):
            continue
        r = Rewriter(graph, node, options)
        inputs = [
            v if v is None or desc_of(v).dtype not in narrow else r.op("Cast", v, to=_WIDE)
            for v in node.inputs
        ]
        results = r.op_like(node, inputs)
        values = list(results) if isinstance(results, tuple) else [results]
        final = [
            v if desc_of(v) == desc_of(old) else r.op("Cast", v, to=desc_of(old).dtype)
            for v, old in zip(values, node.outputs, strict=True)
        ]
        replace_node(graph, node, final)
        changed = True
    return changed


def _has_graphs(node: ir.Node) -> bool:
    """True if a node has nested graphs."""
    return any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
