"""Horovod with TensorFlow: ranks, optimizers, hooks and collectives under the names of the NPU.

A file is ported as a whole or not at all: where one name of Horovod has no equivalent, all stay, and each is reported.
"""

from __future__ import annotations

import ast

import libcst as cst

from npu_tools.port.porter import Facts, Porter, Rules
from npu_tools.port.syntax import expression

__all__ = ["horovod_rules"]

_INIT = "npu_bridge.npu_init"
_RANKS = {"rank": "get_rank_id", "size": "get_rank_size", "local_rank": "get_local_rank_id",
          "local_size": "get_local_rank_size", "init": "get_rank_size"}  # fmt: skip
_SUM = 'hccl_ops.allreduce({0}, "sum") / get_rank_size()'
# Name of Horovod: template over the first argument, module, names to import from it.
_VERSION1 = {
    **{name: (f"{ours}()", _INIT, (ours,)) for name, ours in _RANKS.items()},
    "DistributedOptimizer": (
        "npu_distributed_optimizer_wrapper({0})",
        _INIT,
        ("npu_distributed_optimizer_wrapper",),
    ),
    "BroadcastGlobalVariablesHook": (
        "NPUBroadcastGlobalVariablesHook({0})",
        _INIT,
        ("NPUBroadcastGlobalVariablesHook",),
    ),
    "allreduce": (_SUM, _INIT, ("hccl_ops", "get_rank_size")),
}
_API = "hccl.manage.api"
_VERSION2 = {
    **{name: (f"{ours}()", _API, (ours,)) for name, ours in _RANKS.items()},
    "DistributedOptimizer": ("npu_device.distribute.npu_distributed_keras_optimizer_wrapper({0})", "", ()),
    "broadcast_variables": ("npu_device.distribute.broadcast({0}, root_rank=0)", "", ()),
    "allreduce": ('npu_device.distribute.all_reduce({0}, "mean")', "", ()),
}
_PACKAGES = ("horovod.tensorflow.keras", "horovod.tensorflow", "horovod.keras")


def _names_in(source: str) -> set[str]:
    """What a file uses of Horovod under the name it imports it by."""
    tree = ast.parse(source)
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}") in _PACKAGES
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, _, name = ast.unparse(node).partition(".")
            if owner in aliases:
                found.add(name)
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def horovod_rules(facts: Facts) -> Rules:
    """The rules for a file, which know what else it uses of Horovod."""
    table = _VERSION1 if "tensorflow1" in facts else _VERSION2
    unknown = _names_in(facts.source) - set(table)

    def call(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
        package = next((p for p in _PACKAGES if name.startswith(f"{p}.")), None)
        if package is None:
            return None
        used = name[len(package) + 1 :]
        if used not in table:
            porter.left(
                original,
                f"hvd.{used} has no equivalent",
                "reduce with hccl_ops.allreduce or npu_device.distribute.all_reduce; start ranks with "
                "'python -m npu_bridge run --nproc N' (docs/distributed.md)",
            )
            return None
        if unknown:
            porter.left(
                original, f"hvd.{used} is kept", f"port hvd.{sorted(unknown)[0]} first, then run this again"
            )
            return None
        template, module, names = table[used]
        for needed in names:
            porter.need_name(module, needed)
        if "npu_device.distribute" in template:
            porter.need_import("import npu_device")
        porter.changed(original, f"hvd.{used}: ranks of NPUs communicate through HCCL")
        if "{0}" not in template:
            return expression(template)
        first = updated.args[0].value if updated.args else cst.Integer("0")
        return expression(template.replace("{0}", "{first}"), first=first)

    def statement(porter: Porter, node: cst.SimpleStatementLine, text: str) -> str | None:
        imported = len(node.body) == 1 and isinstance(node.body[0], (cst.Import, cst.ImportFrom))
        if not imported or "horovod" not in text or "horovod.torch" in text or unknown:
            return None
        porter.changed(node, "Horovod is not needed: ranks of NPUs communicate through HCCL")
        return ""

    return Rules(calls=(call,), statements=(statement,))
