"""Export: a model as an `.air` file, which `atc --framework=1` compiles and `acl` runs without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from ge.ir.types import TensorDesc
from ge.ir.values import desc_of, make_value
from ge.ops.builder import GraphBuilder
from ge.parsers import air
from torchair.backend import compile_graphs
from torchair.config import CompilerConfig
from torchair.layouts import dtype_name
from torchair.lowering import HostCall, NpuPart
from torchair.plan import Slot

__all__ = ["dynamo_export", "write_model"]


class _Exporting(CompilerConfig):
    """A configuration that passes on what is compiled."""

    def __init__(self, config: CompilerConfig | None, sink: list[Any]) -> None:
        super().__init__()
        self.__dict__.update(_values={} if config is None else config._values, _sink=sink)

    def on_compile(self, kind: str) -> Any:
        return self._sink.append


def dynamo_export(
    *args: Any,
    model: torch.nn.Module,
    export_path: str = "export_file",
    export_name: str = "export",
    config: CompilerConfig | None = None,
    **kwargs: Any,
) -> Path:
    """Write a model as `<export_path>/<export_name>.air`, for inputs like the given ones; returns the path.

    The file's inputs are the tensors among the arguments, in order and also where the model does not read them; its
    outputs are the tensors of the result, in order. Parameters are constants of the file. A model with calls that only
    ATen can run raises, naming them.

    >>> dynamo_export(torch.ones(1, 3), model=torch.nn.Linear(3, 2))      # doctest: +SKIP
    """
    given, structure = pytree.tree_flatten((args, kwargs))
    tensors = [
        g.detach().clone(memory_format=torch.contiguous_format) for g in given if isinstance(g, torch.Tensor)
    ]

    def whole(*tensors: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(g, torch.Tensor) else g for g in given]
        words, named = pytree.tree_unflatten(leaves, structure)
        results = [r for r in pytree.tree_leaves(model(*words, **named)) if r is not None]
        for result in results:
            if not isinstance(result, torch.Tensor):
                raise RuntimeError(f"the model returns {type(result).__name__}, which a file does not hold")
        return [r.clone(memory_format=torch.contiguous_format) for r in results]

    plans: list[Any] = []
    places: list[int | None] = []  # of the graph's inputs among the tensors; None: a parameter
    settings = _Exporting(config, plans)
    torch._dynamo.reset()

    def backend(module: Any, example_inputs: list[Any], **options: Any) -> Any:
        numbers = {id(t): i for i, t in enumerate(tensors)}
        places[:] = [numbers.get(id(e)) for e in example_inputs]
        return compile_graphs(module, example_inputs, settings)

    with torch.no_grad():
        torch.compile(whole, backend=backend, fullgraph=True)(*tensors)
    torch._dynamo.reset()
    if len(plans) != 1:
        raise RuntimeError(f"the model was compiled as {len(plans)} graphs where one is needed")
    signature = []
    for t in tensors:
        dtype = dtype_name(t.dtype)
        if dtype is None:
            raise RuntimeError(f"an argument is of type {t.dtype}, which a file does not hold")
        signature.append((tuple(t.shape), dtype))
    return write_model(plans[0], Path(export_path), export_name, places, signature)


def write_model(
    plan: Any,
    folder: Path,
    name: str,
    places: Sequence[int | None] = (),
    signature: Sequence[tuple[tuple[int, ...], str]] = (),
) -> Path:
    """Write a compiled graph that is all of a model as an `.air` file.

    signature: shapes and types of the file's inputs; `places` are those of the graph's arguments among them. The inputs
    are those that the graph reads by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph = _whole(plan)
    if signature:
        _complete(graph, [places[i] for i in plan.form.steps[0].reads], signature)
    return air.write(graph, folder / f"{name}.air")


def _whole(plan: Any) -> ir.Graph:
    """The graph of the one part that is all of the model, with its results in order, in their own shapes."""
    lowered, form = plan.lowered, plan.form
    calls = sorted({str(s.node.target) for s in lowered.steps if isinstance(s, HostCall)})
    if calls:
        raise RuntimeError(f"only ATen can run {', '.join(calls)}: such a model cannot leave PyTorch")
    if lowered.writes or any(s.donated for s in lowered.steps):
        raise RuntimeError("the model writes into its inputs: a file has nowhere to keep them")
    if len(lowered.steps) != 1:
        raise RuntimeError("the model computes nothing")
    part: NpuPart = lowered.steps[0]
    step = form.steps[0]
    graph = part.graph
    _plain_inputs(part)
    made = dict(zip(step.makes, zip(graph.outputs, part.output_layouts, strict=True), strict=True))
    read = dict(zip(step.reads, graph.inputs, strict=True))
    builder = GraphBuilder(graph=graph)
    results = []
    for slot in form.returned:
        if not isinstance(slot, Slot) or slot.index not in {*made, *read}:
            raise RuntimeError("the model returns what it does not compute")
        if slot.index in read:
            results.append(read[slot.index])
            continue
        value, (layout, _) = made[slot.index]
        if not layout.plain:
            value = builder.op(
                "Transpose", value, perm=[layout.order.index(i) for i in range(len(layout.shape))]
            )
        results.append(value)
    graph.outputs.clear()
    for value in results:
        builder.output(value)
    return graph


def _plain_inputs(part: NpuPart) -> None:
    """Give inputs their own shapes where the graph takes them in the order of their memory."""
    for index, (value, layout) in enumerate(zip(list(part.graph.inputs), part.input_layouts, strict=True)):
        if layout.plain:
            continue
        given = make_value(value.name or f"input{index}", TensorDesc(layout.shape, desc_of(value).dtype))
        part.graph.inputs[index] = given
        builder = GraphBuilder(graph=part.graph, before=part.graph[0])
        ir.convenience.replace_all_uses_with(
            value, builder.op("Transpose", given, perm=list(layout.order or ()))
        )


def _complete(
    graph: ir.Graph, places: Sequence[int | None], signature: Sequence[tuple[tuple[int, ...], str]]
) -> None:
    """Put a graph's inputs in the order of the signature; what the graph does not read gets an input all the same."""
    read = dict(zip(places, graph.inputs, strict=True))
    if None in read:
        raise RuntimeError("the model reads a tensor that is neither a parameter nor an argument")
    found = [
        read.get(i) or make_value(f"input{i}", TensorDesc(shape, dtype))
        for i, (shape, dtype) in enumerate(signature)
    ]
    graph.inputs.clear()
    graph.inputs.extend(found)
