"""The torch.compile backend: AOT Autograd's graphs, compiled by the Graph Engine."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext

from ge.collection import compile_scope
from torchair import (
    compatibility,
    decompositions,
    early_decompositions,
    joint_graph,
    recurrent,
    sink_slices,
    sizes,
)
from torchair.config import CompilerConfig
from torchair.executable import CompiledGraph

__all__ = ["compile_graphs", "get_compiler", "get_npu_backend", "npu_backend", "register", "why_wrapped"]

Compiler = Any  # what AOT Autograd takes: (module, example_inputs) -> a boxed callable


def get_compiler(compiler_config: CompilerConfig | None = None, kind: str = "inference") -> Compiler:
    """A compiler of single ATen graphs, as AOT Autograd takes one.

    >>> compiler = get_compiler(CompilerConfig())
    """
    config = compiler_config if compiler_config is not None else CompilerConfig()

    def compile_one(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        static = _static_inputs() if kind == "inference" else []
        config.announce(module, kind)
        eager = config.eager_runner(module, kind)
        if eager is not None:
            return _boxed(eager)
        returned = _returned() if kind == "forward" else None
        return CompiledGraph(module, kind, static, config.options(), config.on_compile(kind), returned)

    return compile_one


def _static_inputs() -> list[int]:
    """The positions of parameters and buffers, as Dynamo tells them."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return list(metadata.static_input_indices or []) if metadata is not None else []


def _returned() -> int | None:
    """Number of forward outputs the user sees (excludes saved activations), if known."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    return getattr(metadata, "num_forward_returns", None)


def _untraced(compiler: Compiler) -> Compiler:
    """A compiler of backward graphs that may run inside a compiled function.

    There Dynamo would trace the compiler, and later the graph's call, as if they were the user's code.
    """

    def compile_one(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        run = torch._dynamo.disable(compiler(module, example_inputs), reason="a compiled backward graph")
        run._boxed_call = True
        return run

    return torch._dynamo.disable(compile_one, reason="the compiler of backward graphs")


def _boxed(function: Callable[..., Any]) -> Any:
    def run(args: list[Any]) -> Any:
        return function(*args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def get_npu_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """A backend for torch.compile.

    >>> import torch
    >>> add = torch.compile(lambda x, y: x + y, backend=get_npu_backend(compiler_config=CompilerConfig()))
    >>> add(torch.ones(2), torch.ones(2))
    tensor([2., 2.])
    """
    config = compiler_config if compiler_config is not None else CompilerConfig()
    if not isinstance(config, CompilerConfig):
        raise TypeError(
            f"compiler_config is a {type(config).__name__}, a torchair.CompilerConfig is expected"
        )
    extra = dict(custom_decompositions or {})

    def backend(module: fx.GraphModule, example_inputs: list[Any], **options: Any) -> Any:
        sizes.register()  # torch._dynamo.reset() has forgotten it
        return compile_graphs(module, example_inputs, config, extra)

    compatibility.apply()
    sizes.register()
    return sizes.traced_for_npu(backend)


@compile_scope()
@early_decompositions.in_force()
def compile_graphs(
    module: fx.GraphModule,
    example_inputs: list[Any],
    config: CompilerConfig,
    extra: dict[Any, Callable[..., Any]] | None = None,
    inference: Compiler | None = None,
) -> Any:
    """Dynamo's graph through AOT Autograd to compiled graphs.

    `inference` may replace the compiler of graphs without gradients.
    """
    recurrent.replace_layers(module)
    if sink_slices.NAME not in config.options().disabled_passes:
        sink_slices.sink_slices(module)
    keeper = _Keeper(inference if inference is not None else get_compiler(config, "inference"))
    try:
        run = aot_module_simplified(
            module,
            example_inputs,
            fw_compiler=get_compiler(config, "forward"),
            bw_compiler=_untraced(get_compiler(config, "backward")),
            inference_compiler=keeper,  # type: ignore[arg-type]
            partition_fn=joint_graph.split_joint_graph,
            decompositions={**decompositions.table(), **(extra or {})},
            keep_inference_input_mutations=True,
        )
    except ZeroDivisionError as error:
        if not traceback.extract_tb(error.__traceback__)[-1].filename.endswith("sym_node.py"):
            raise
        # The gradient of torch.var at one row, for one, divides by the number of rows less one.
        warnings.warn(
            "A graph runs in eager mode: PyTorch's tracing divides one of its sizes by zero.", stacklevel=2
        )
        return module
    return keeper.direct(module, len(example_inputs)) or run


class _Keeper:
    """The compiler of graphs for inference; the graph may be called without what AOT Autograd puts around it."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.found: list[tuple[Any, Any, int]] = []  # graph, metadata, arguments

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        context = TracingContext.try_get()
        graph = self.compiler(module, example_inputs)
        self.found.append((graph, context.fw_metadata if context is not None else None, len(example_inputs)))
        return graph

    def direct(self, module: fx.GraphModule, arguments: int) -> Callable[..., Any] | None:
        """The graph itself as a function, where nothing else is to be done before or after it."""
        if (
            len(self.found) != 1
            or type(module) is not fx.GraphModule
            or [*module.parameters(), *module.buffers()]
        ):
            return None
        graph, metadata, count = self.found[0]
        if not isinstance(graph, CompiledGraph) or count != arguments or why_wrapped(metadata):
            return None
        if any(info.mutates_data or info.mutates_metadata for info in metadata.input_info):
            return None
        return lambda *args: graph(list(args))


def why_wrapped(metadata: Any) -> str:
    """What AOT Autograd does beside calling a graph for inference; "" for nothing.

    >>> why_wrapped(None)
    'PyTorch does not say what its results are'
    """
    if metadata is None:
        return "PyTorch does not say what its results are"
    plain = (OutputType.non_alias, OutputType.unsafe_view_alias)
    if any(info.output_type not in plain for info in metadata.output_info):
        return "a result is an argument or a view of one"
    if metadata.mutated_inp_runtime_indices:
        return "it changes more of an argument than its contents"
    if metadata.is_rng_op_functionalized or metadata.tokens:
        return "its effects are kept in order by PyTorch"
    if _has_subclasses(metadata):
        return "its arguments are tensors of other kinds"
    return ""


def _has_subclasses(metadata: Any) -> bool:
    return any(type(meta).__name__ == "SubclassCreationMeta" for meta in metadata.subclass_inp_meta)


npu_backend = get_npu_backend()


def register() -> None:
    """Make the backend known to torch.compile by the name "npu"."""
    from torch._dynamo.backends.registry import _BACKENDS, register_backend

    if "npu" not in _BACKENDS:
        register_backend(npu_backend, name="npu")
