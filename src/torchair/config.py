"""`CompilerConfig`: PyTorch's view of the option table, and the options' effect on a graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import fx

from ge import tensor_dump
from ge.options import CompileOptions, compile_options
from ge.options.tree import Section

__all__ = ["CompilerConfig"]


class CompilerConfig(Section):
    """What the compiler is to do, by groups of options.

    >>> config = CompilerConfig()
    >>> config.debug.graph_dump.type = "txt"
    >>> config.mode = "max-autotune"
    """

    def __init__(self) -> None:
        super().__init__("torchair", "config")

    def options(self) -> CompileOptions:
        """The Graph Engine's options."""
        given = {option.name: value for option, value in self._given()}
        if any(name in given for name in tensor_dump.NAMES):
            tensor_dump.apply(given)
        return compile_options(given)

    def announce(self, module: fx.GraphModule, kind: str) -> None:
        """Write the graph and its summary if requested."""
        from torchair.dumps import dump_graph, summarise

        if self.debug.graph_dump.type is not None:
            dump_graph(module, kind, self.debug.graph_dump.type, self.debug.graph_dump.path)
        if self.debug.fx_summary.type is not None:
            summarise(module, kind, self.debug.fx_summary.path)

    def on_compile(self, kind: str) -> Callable[[Any], None] | None:
        """The callback for the compiled graph, if there is one."""
        asked: list[Callable[[Any], Any]] = []
        if self.debug.graph_dump.type == "pbtxt":
            from torchair.dumps import write_parts

            asked.append(lambda plan: write_parts(plan, kind, self.debug.graph_dump.path))
        if self.export.export_mode:
            from torchair.export import write_model

            folder, name = self.export.export_path_dir, self.export.export_name
            asked.append(lambda plan: write_model(plan, Path(folder), name))

        def write(plan: Any) -> None:
            for action in asked:
                action(plan)

        return write if asked else None

    def eager_runner(self, module: fx.GraphModule, kind: str) -> Callable[..., Any] | None:
        """The runner of a graph on ATen, if it is not to be compiled."""
        if self.debug.data_dump.type is not None:
            from torchair.dumps import Recording

            return Recording(module, kind, self.debug.data_dump.path).run
        return module if self.debug.run_eagerly else None
