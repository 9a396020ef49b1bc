"""Runs the AI CPU kernel of a single node immediately, as a program of one task."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

import npu_runtime
from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.model.model import cut_to_reported
from ge.ops.base import NodeView, lookup
from ge.plan import View

__all__ = ["run_kernel"]


def run_kernel(node: ir.Node, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """The outputs of a node with known inputs, in the sizes of its graph."""
    operator, op = lookup(node.op_type), NodeView.of(node)
    feeds = [np.ascontiguousarray(a) for a in arrays if a is not None]
    assert operator.aicpu and len(feeds) == len(arrays), f"{node.op_type} is no kernel of these inputs"
    program = npu_runtime.Program(node.op_type, max(npu_runtime.selected_device(), 0))
    given = [desc_of(v) for v in node.inputs if v is not None]
    made = [desc_of(v) for v in node.outputs]
    inputs = [View.of(program.input(i, d.nbytes), d).as_tuple() for i, d in enumerate(given)]
    outputs = [View.of(program.output(i, d.nbytes), d).as_tuple() for i, d in enumerate(made)]
    attrs = {"op": operator.aicpu, **operator.kernel_attrs(op)}
    program.task(operator.task_kind, node.op_type, inputs, outputs, attrs)
    program.finalize(0)
    results = [np.empty(d.shape, numpy_dtype(d.dtype)) for d in made]
    return cut_to_reported(results, program.run(feeds, results))
