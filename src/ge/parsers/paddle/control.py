"""PaddlePaddle's branches, loops and in-place operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import branch
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.program import Block, Operation

if TYPE_CHECKING:
    from ge.parsers.paddle.parser import Converter

__all__ = ["UPDATES", "convert"]

# Results that are written over operands, by position; of other names with an underscore the first over the first.
UPDATES = {
    "batch_norm_": {1: 1, 2: 2},
    "sync_batch_norm_": {1: 1, 2: 2},
    "assign_out_": {0: 1},
    "sgd_": {0: 0},
    "momentum_": {0: 0, 1: 2},
    "adam_": {0: 0, 1: 3, 2: 4, 4: 6, 5: 7},
    "adamw_": {0: 0, 1: 3, 2: 4, 4: 6, 5: 7},
}


def convert(converter: Converter, operation: Operation) -> list[Any]:
    """The results of an operation with blocks."""
    if operation.type == "pd_op.if":
        return _if(converter, operation)
    if operation.type == "pd_op.while":
        return _while(converter, operation)
    raise Unsupported(f"no plugin maps the blocks of {operation.type}")


def _run(converter: Converter, builder: GraphBuilder, block: Block) -> list[Any]:
    """The values a block yields, its operators added through a builder."""
    outside, before = converter.builder, dict(converter.values)
    refused = {key: len(found) for key, found in converter.refused.items()}
    converter.builder = builder
    try:
        converter.run(block)
        yielded = block.operations[-1].operands if block.operations else ()
        if any(i in converter.failed for i in yielded):
            news = [key for key, found in converter.refused.items() if len(found) > refused.get(key, 0)]
            raise Unsupported(
                f"its block has {news[0][0]}: {news[0][1]}" if news else "its block is not supported"
            )
        return [converter.values[i] for i in yielded]
    finally:
        converter.builder, converter.values = outside, before


def _if(converter: Converter, operation: Operation) -> list[Any]:
    then, otherwise = operation.blocks
    condition = converter.values[operation.operands[0]]
    builder = converter.builder
    made = branch(
        builder,
        condition if not desc_of(condition).rank else builder.op("Reshape", condition, shape=[]),
        lambda inner: _run(converter, inner, then),
        lambda inner: _run(converter, inner, otherwise),
    )
    return list(made)


def _while(converter: Converter, operation: Operation) -> list[Any]:
    (block,) = operation.blocks
    builder = converter.builder
    start, *states = [converter.values[i] for i in operation.operands]
    inner = builder.subgraph("body")
    inner.input("step", (), "int64")
    inner.input("condition", (), "bool")
    before = dict(converter.values)
    for index, (port, state) in enumerate(zip(block.arguments, states, strict=True)):
        desc = desc_of(state)
        converter.values[port.number] = inner.input(f"state_{index}", desc.shape, desc.dtype)
    going, *after = _run(converter, inner, block)
    converter.values = before
    inner.output(inner.op("Reshape", going, shape=[]) if desc_of(going).rank else going)
    for value in after:
        inner.output(value)
    first = builder.op("Reshape", start, shape=[]) if desc_of(start).rank else start
    operands = [None, first, *states, *inner.captures()]
    return list(builder.ops("Loop", operands, body=inner.graph, num_states=len(states)))
