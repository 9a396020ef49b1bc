"""The compiler's configuration: a tree of checked options.

Options that are meaningless on our devices are accepted, so that ported scripts run, and say so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from ge.configs import fusion_switches, implementation_choice
from ge.options import CompileOptions, Implementation, PrecisionMode

__all__ = ["CompilerConfig"]

_LOG = logging.getLogger("torchair")
_SAID: set[str] = set()


class Option:
    """One option: its value, what it may be, and whether it means anything here."""

    def __init__(
        self,
        default: Any,
        choices: Sequence[Any] = (),
        kind: type | tuple[type, ...] | None = None,
        idle: str = "",
    ) -> None:
        self.default = default
        self.choices = tuple(choices)
        self.kind = kind
        self.idle = idle  # why it has no effect here
        self._value = default

    @property
    def value(self) -> Any:
        return self._value

    def set(self, name: str, value: Any) -> None:
        """Check and take a value."""
        if self.choices and value not in self.choices:
            raise ValueError(f"{name} is {value!r}, it must be one of {', '.join(map(repr, self.choices))}")
        if self.kind is not None and value is not None and not isinstance(value, self.kind):
            raise TypeError(f"{name} is {value!r}, which is not a {_kind_name(self.kind)}")
        if self.idle and value != self.default and name not in _SAID:
            _SAID.add(name)
            _LOG.warning("%s has no effect: %s", name, self.idle)
        self._value = value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return repr(self._value)


def _kind_name(kind: type | tuple[type, ...]) -> str:
    return kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)


class Section:
    """A group of options and further sections; assigning checks, unknown names raise."""

    def __init__(self, path: str, /, **members: Any) -> None:
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_members", members)

    def __getattr__(self, name: str) -> Any:
        members = object.__getattribute__(self, "_members")
        if name not in members:
            raise AttributeError(self._unknown(name))
        return members[name]

    def __setattr__(self, name: str, value: Any) -> None:
        member = self._members.get(name)
        if not isinstance(member, Option):
            raise AttributeError(
                self._unknown(name) if member is None else f"{self._path}.{name} is a group of options"
            )
        member.set(f"{self._path}.{name}", value)

    def _unknown(self, name: str) -> str:
        return f"{self._path} has no option '{name}'; it has {', '.join(self._members)}"

    def as_dict(self) -> dict[str, Any]:
        """All values, nested."""
        return {k: m.as_dict() if isinstance(m, Section) else m.value for k, m in self._members.items()}


_BOOL = (True, False)
_NO_QUEUES = "this device has no separate queues to schedule"
_NO_TILING = "kernels are generated for the shapes at hand"


def _debug() -> Section:
    return Section(
        "debug",
        graph_dump=Section(
            "debug.graph_dump",
            type=Option(None, (None, "txt", "pbtxt", "py")),
            path=Option("./", kind=str),
        ),
        fx_summary=Section("debug.fx_summary", type=Option(None, (None, "csv")), path=Option("./", kind=str)),
        run_eagerly=Option(False, _BOOL),
        data_dump=Section("debug.data_dump", type=Option(None, (None, "npy")), path=Option("./", kind=str)),
        aclgraph=Section(
            "debug.aclgraph",
            **{
                name: Option(False, _BOOL, idle="programs are captured whole already")
                for name in ("disable_reinplace_inplaceable_ops_pass", "disable_reinplace_input_mutated_ops_pass",
                             "disable_mempool_reuse_in_same_fx", "enable_output_clone", "clone_input", "clone_output")
            },
        ),
    )  # fmt: skip


def _experimental() -> Section:
    idle = {
        "cc_parallel_enable": _NO_QUEUES,
        "frozen_parameter": "parameters are constants of inference graphs already, and followed when they change",
        "jit_compile": _NO_TILING,
        "tiling_schedule_optimize": _NO_TILING,
        "enable_single_stream": _NO_QUEUES,
        "enable_view_optimize": "views cost nothing here",
        "remove_noop_ops": "they are always removed",
        "pattern_fusion_pass": "patterns are always fused; NPU_DISABLE_PASSES switches passes off",
        "aot_config_enable_joint_graph": "forward and backward graphs are compiled apart",
        "static_model_ops_lower_limit": _NO_TILING,
        "memory_efficiency": "memory is always planned",
        "separate_atomic_clean": "nothing has to be cleaned",
    }
    options: dict[str, Any] = {name: Option(None, idle=text) for name, text in idle.items()}
    return Section(
        "experimental_config",
        keep_inference_input_mutations=Option(True, _BOOL, idle="inputs are always written in place"),
        **options,
    )


class CompilerConfig:
    """What the compiler is to do, by groups of options.

    >>> config = CompilerConfig()
    >>> config.debug.graph_dump.type = "txt"
    >>> config.mode = "max-autotune"
    """

    def __init__(self) -> None:
        tree = {
            "mode": Option("max-autotune", ("max-autotune", "reduce-overhead", "default")),
            "debug": _debug(),
            "experimental_config": _experimental(),
            "inference_config": Section(
                "inference_config",
                dynamic_gears_merge_policy=Option("zip", ("zip", "product")),
                use_internal_format_weight=Option(
                    True, _BOOL, idle="weights are always packed for their primitives"
                ),
            ),
            "ge_config": Section(
                "ge_config",
                enable_single_stream=Option(False, _BOOL, idle=_NO_QUEUES),
                oo_level=Option(
                    "O3", ("O1", "O3"), idle="all passes run; NPU_DISABLE_PASSES switches passes off"
                ),
                oo_constant_folding=Option(True, _BOOL, idle="constants are always folded"),
                oo_dead_code_elimination=Option(True, _BOOL, idle="dead code is always removed"),
                aicore_num=Option(None, idle="NPU_NUM_THREADS says how many cores are used"),
                optimization_switch=Option(None, idle="NPU_DISABLE_PASSES switches passes off"),
                export_compile_stat=Option("1", idle="torchair.explain tells what was compiled"),
                precision_mode=Option("must_keep_origin_dtype", PrecisionMode.names()),
                op_select_implmode=Option(None, (None, *(i.value for i in Implementation))),
                optypelist_for_implmode=Option(None, kind=str),
            ),
            "fusion_config": Section("fusion_config", fusion_switch_file=Option(None, kind=(str, Path))),
            "dump_config": Section(
                "dump_config",
                enable_dump=Option(False, _BOOL),
                dump_path=Option("./", kind=str),
                dump_mode=Option(
                    "all", ("input", "output", "all"), idle="stages of the graph are dumped, not data"
                ),
                dump_step=Option(None, idle="stages of the graph are dumped, not data"),
                dump_layer=Option(None, idle="stages of the graph are dumped, not data"),
            ),
            "export": Section(
                "export",
                export_mode=Option(False, _BOOL),
                export_path_dir=Option("./", kind=str),
                export_name=Option("export", kind=str),
                enable_record_nn_module_stack=Option(False, _BOOL, idle="names of the FX nodes are kept"),
            ),
            "aoe_config": Section(
                "aoe_config",
                aoe_mode=Option(None, (None, "1", "2"), idle="kernels are chosen when they are built"),
                work_path=Option("./", kind=str, idle="kernels are chosen when they are built"),
            ),
        }
        object.__setattr__(self, "_tree", Section("config", **tree))

    def __getattr__(self, name: str) -> Any:
        found = getattr(object.__getattribute__(self, "_tree"), name)
        return found.value if isinstance(found, Option) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tree, name, value)

    def as_dict(self) -> dict[str, Any]:
        """All options and their values."""
        return self._tree.as_dict()

    # -- what they mean -----------------------------------------------------------------------------------------

    def options(self) -> CompileOptions:
        """The Graph Engine's options."""
        given: dict[str, Any] = {"precision_mode": PrecisionMode.parse(self.ge_config.precision_mode.value)}
        if self.ge_config.op_select_implmode.value is not None:
            types = self.ge_config.optypelist_for_implmode.value
            given.update(implementation_choice(self.ge_config.op_select_implmode.value, types))
        if self.dump_config.enable_dump.value:
            given.update(dump_stages=frozenset({"all"}), dump_dir=Path(self.dump_config.dump_path.value))
        switches = self.fusion_config.fusion_switch_file.value
        if switches is not None:
            given["disabled_passes"] = fusion_switches(Path(switches))
        return CompileOptions.from_environment(**given)

    def announce(self, module: fx.GraphModule, kind: str) -> None:
        """Write the graph and its summary, where that is asked for."""
        from torchair.dumps import dump_graph, summarise

        if self.debug.graph_dump.type.value is not None:
            dump_graph(module, kind, self.debug.graph_dump.type.value, self.debug.graph_dump.path.value)
        if self.debug.fx_summary.type.value is not None:
            summarise(module, kind, self.debug.fx_summary.path.value)

    def on_compile(self, kind: str) -> Callable[[Any], None] | None:
        """What is done with the compiled graph, where that is asked for."""
        asked: list[Callable[[Any], Any]] = []
        if self.debug.graph_dump.type.value == "pbtxt":
            from torchair.dumps import write_parts

            asked.append(lambda plan: write_parts(plan, kind, self.debug.graph_dump.path.value))
        if self.export.export_mode.value:
            from torchair.export import write_model

            folder, name = self.export.export_path_dir.value, self.export.export_name.value
            asked.append(lambda plan: write_model(plan, Path(folder), name))

        def write(plan: Any) -> None:
            for action in asked:
                action(plan)

        return write if asked else None

    def eager_runner(self, module: fx.GraphModule, kind: str) -> Callable[..., Any] | None:
        """What runs a graph on ATen instead of compiling it, where that is asked for."""
        if self.debug.data_dump.type.value is not None:
            from torchair.dumps import Recording

            return Recording(module, kind, self.debug.data_dump.path.value).run
        return module if self.debug.run_eagerly.value else None
