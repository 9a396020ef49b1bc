"""Horovod with TensorFlow: maps ranks, optimizers, tapes, hooks, callbacks and collectives to the NPU's names.

A file is ported completely or not at all: if one name has no equivalent, all stay, and each is reported.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from npu_tools.port.porter import Facts, Porter, Rules
from npu_tools.port.syntax import argument, expression

__all__ = ["horovod_rules"]

_INIT, _NPU, _API = "npu_bridge.npu_init", "npu_bridge.estimator.npu", "hccl.manage.api"
_TAPE, _BROADCAST, _WARMUP = (
    "DistributedGradientTape",
    "callbacks.BroadcastGlobalVariablesCallback",
    "callbacks.LearningRateWarmupCallback",
)
_DEFAULTS = {"warmup_epochs": "5", "root_rank": "0"}


@dataclass(frozen=True)
class _Form:
    """Template of a replaced call: {0} is its first argument; {keras}, {model} and the call's parameters go by name."""

    template: str
    module: str = ""
    names: tuple[str, ...] = ()  # to import from the module


def _named(name: str, arguments: str = "", module: str = _INIT) -> _Form:
    return _Form(f"{name}({arguments})", module, (name,))


_RANKS = {"rank": "get_rank_id", "size": "get_rank_size", "local_rank": "get_local_rank_id",
          "local_size": "get_local_rank_size", "init": "get_rank_size"}  # fmt: skip
_VERSION1 = {
    **{name: _named(ours) for name, ours in _RANKS.items()},
    "DistributedOptimizer": _named("npu_distributed_optimizer_wrapper", "{0}"),
    "BroadcastGlobalVariablesHook": _named("NPUBroadcastGlobalVariablesHook", "{0}"),
    "broadcast_global_variables": _named("broadcast_global_variables", "{0}", f"{_NPU}.npu_hook"),
    _BROADCAST: _named("NPUBroadcastGlobalVariablesCallback", "{0}", f"{_NPU}.npu_callbacks"),
    "allreduce": _Form(
        'hccl_ops.allreduce({0}, "sum") / get_rank_size()', _INIT, ("hccl_ops", "get_rank_size")
    ),
}
_BROADCAST_AT_START = (
    "{keras}.callbacks.LambdaCallback(on_train_begin=lambda logs: "
    "npu_device.distribute.broadcast({model}.variables, root_rank={0}))"
)
_MEAN_OF_METRICS = (
    "{keras}.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update("
    '[(name, float(npu_device.distribute.all_reduce(value, "mean"))) for name, value in logs.items()]))'
)
_WARMED_UP = (
    "{keras}.callbacks.LearningRateScheduler(lambda epoch: {initial_lr} * "
    "(1 + min(epoch / {warmup_epochs}, 1) * (get_rank_size() - 1)) / get_rank_size())"
)
_VERSION2 = {
    **{name: _named(ours, module=_API) for name, ours in _RANKS.items()},
    "DistributedOptimizer": _Form("npu_device.distribute.npu_distributed_keras_optimizer_wrapper({0})"),
    _TAPE: _Form("{0}"),
    "broadcast_variables": _Form("npu_device.distribute.broadcast({0}, root_rank={root_rank})"),
    "allreduce": _Form('npu_device.distribute.all_reduce({0}, "mean")'),
    _BROADCAST: _Form(_BROADCAST_AT_START),
    "callbacks.MetricAverageCallback": _Form(_MEAN_OF_METRICS),
    _WARMUP: _Form(_WARMED_UP, _API, ("get_rank_size",)),
}
# Names that are not calls, such as arguments of the calls above.
_CONSTANTS = {"Average": '"mean"', "Compression.none": "None", "Compression.fp16": "None"}
_PACKAGES = ("horovod.tensorflow.keras", "horovod.tensorflow", "horovod.keras")


def _in_horovod(name: str) -> str:
    """The name inside Horovod; "" for other names."""
    package = next((p for p in _PACKAGES if name.startswith(f"{p}.")), None)
    return name[len(package) + 1 :] if package else ""


@dataclass(frozen=True)
class _Use:
    """How a file uses Horovod."""

    names: frozenset[str]  # without an equivalent for this use
    tapes: frozenset[str]  # variables that hold distributed tapes
    model: str  # what is fitted
    keras: str  # how the file calls Keras


def _use_of(source: str, table: Mapping[str, _Form]) -> _Use:
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    aliases = _aliases(tree, _PACKAGES)
    fitted = {
        ast.unparse(call.func.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("fit", "fit_generator")
    }
    used = _names_in(tree, aliases)
    unknown = used - set(table) - set(_CONSTANTS)
    model, keras = fitted.pop() if len(fitted) == 1 else "", _keras(tree)
    if "callbacks." in "".join(used) and table is _VERSION2 and not (model and keras):
        unknown |= {_BROADCAST} & used
    for call in calls:
        name = ast.unparse(call.func).partition(".")[2]
        if name == _WARMUP and not any(word.arg == "initial_lr" for word in call.keywords):
            unknown |= {_WARMUP} & used
    return _Use(frozenset(unknown), _tapes(tree), model, keras)


def _aliases(tree: ast.AST, modules: tuple[str, ...]) -> set[str]:
    """The names by which a file imports modules."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}") in modules
    }


def _names_in(tree: ast.AST, aliases: set[str]) -> set[str]:
    """Horovod names used in a file."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, _, name = ast.unparse(node).partition(".")
            if owner in aliases:
                found.add(name)
        if isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}" for alias in node.names} - set(_PACKAGES)
            found |= {_in_horovod(name) for name in full} - {""}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def _keras(tree: ast.AST) -> str:
    """The file's name for Keras; "" if it imports neither Keras nor TensorFlow."""
    own = sorted(_aliases(tree, ("keras", "tensorflow.keras", "tf_keras")))
    framework = sorted(_aliases(tree, ("tensorflow",)))
    return own[0] if own else f"{framework[0]}.keras" if framework else ""


def _tapes(tree: ast.AST) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _makes_tape(node.value):
            found |= {ast.unparse(target) for target in node.targets}
        if isinstance(node, ast.withitem) and _makes_tape(node.context_expr) and node.optional_vars:
            found.add(ast.unparse(node.optional_vars))
    return frozenset(found)


def _makes_tape(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(f".{_TAPE}")


def horovod_rules(facts: Facts) -> Rules:
    """The rules for a file, given its other uses of Horovod."""
    table = _VERSION1 if "tensorflow1" in facts else _VERSION2
    use = _use_of(facts.source, table)
    port = _Port(table, use)
    return Rules(calls=(port.call,), names=(port.name,), statements=(port.statement,))


@dataclass(frozen=True)
class _Port:
    """The rules of one file."""

    table: Mapping[str, _Form]
    use: _Use

    def call(
        self, porter: Porter, original: cst.Call, updated: cst.Call, name: str
    ) -> cst.BaseExpression | None:
        """A call of Horovod, or of a distributed tape."""
        used = _in_horovod(name)
        if not used:
            return self._gradient(porter, original, updated)
        if self._kept(porter, original, used):
            return None
        form = self.table[used]
        for needed in form.names:
            porter.need_name(form.module, needed)
        if "npu_device" in form.template:
            porter.need_import("import npu_device")
        porter.changed(original, f"hvd.{used}: ranks of NPUs communicate through HCCL")
        return self._filled(form, updated)

    def _filled(self, form: _Form, call: cst.Call) -> cst.BaseExpression:
        parts = {"first": call.args[0].value if call.args else cst.Integer("0")}
        for name in ("root_rank", "initial_lr", "warmup_epochs"):
            if f"{{{name}}}" in form.template:
                at = argument(call, name, 1 if name == "root_rank" else 99)
                parts[name] = expression(_DEFAULTS[name]) if at is None else call.args[at].value
        template = form.template.replace("{0}", "{first}")
        template = template.replace("{keras}", self.use.keras).replace("{model}", self.use.model)
        return expression(
            template, **{name: part for name, part in parts.items() if f"{{{name}}}" in template}
        )

    def _gradient(self, porter: Porter, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """Gradients of a distributed tape are means over the ranks."""
        function = original.func
        if not isinstance(function, cst.Attribute) or function.attr.value != "gradient" or self.use.names:
            return None
        if porter.text(function.value) not in self.use.tapes:
            return None
        porter.need_import("import npu_device")
        porter.changed(original, "the gradients of all ranks are averaged through HCCL")
        return expression('npu_device.distribute.all_reduce({gradients}, "mean")', gradients=updated)

    def _kept(self, porter: Porter, node: cst.CSTNode, used: str) -> bool:
        """True if a name is kept; reports it."""
        if used in self.use.names:
            porter.left(
                node,
                f"hvd.{used} has no equivalent",
                "reduce with hccl_ops.allreduce or npu_device.distribute.all_reduce; start ranks with "
                "'python -m npu_bridge run --nproc N' (docs/distributed.md)",
            )
        elif self.use.names:
            first = sorted(self.use.names)[0]
            porter.left(node, f"hvd.{used} is kept", f"port hvd.{first} first, then run this again")
        return bool(self.use.names)

    def name(self, porter: Porter, node: cst.CSTNode, name: str) -> cst.BaseExpression | None:
        """Replace names that are not calls: reductions and compressions."""
        used = _in_horovod(name)
        parent = porter.parent(node)
        if not used or isinstance(parent, (cst.Attribute, cst.Call)) or self._kept(porter, node, used):
            return None
        if used not in _CONSTANTS:
            return None
        porter.changed(node, f"hvd.{used}: gradients are averaged in their own type")
        return expression(_CONSTANTS[used])

    def statement(self, porter: Porter, node: cst.SimpleStatementLine, text: str) -> str | None:
        """Remove imports of Horovod and wrappings of tapes."""
        if self.use.names or len(node.body) != 1:
            return None
        only = node.body[0]
        if isinstance(only, (cst.Import, cst.ImportFrom)):
            if "horovod" not in text or "horovod.torch" in text:
                return None
            porter.changed(node, "Horovod is not needed: ranks of NPUs communicate through HCCL")
            return ""
        if isinstance(only, cst.Assign) and isinstance(only.value, cst.Call) and only.value.args:
            made = _in_horovod(porter.name(only.value.func)) == _TAPE
            same = porter.text(only.targets[0].target) == porter.text(only.value.args[0].value)
            return "" if made and same and len(only.targets) == 1 else None
        return None
