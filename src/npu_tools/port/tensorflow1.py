"""TensorFlow 1: configures sessions and estimators for the NPU; devices, mixed precision."""

from __future__ import annotations

import ast
import re
from typing import Any

import libcst as cst

from npu_tools.port.porter import Porter, Rules
from npu_tools.port.syntax import argument, expression, replaced_text, with_argument

__all__ = ["TENSORFLOW1"]

_INIT = "npu_bridge.npu_init"
# Callables with a configuration parameter, and its position.
_SESSIONS = {"Session": 2, "InteractiveSession": 2, "train.MonitoredTrainingSession": 8}
_ESTIMATORS = {
    "estimator.Estimator": 2,
    "keras.estimator.model_to_estimator": 4,
    **{
        f"estimator.{n}{k}": 99
        for n in ("DNN", "Linear", "BoostedTrees")
        for k in ("Classifier", "Regressor")
    },
}
_DEVICE = re.compile(r"(?i)(?<![a-z])gpu(?=:|$|\W*$)")
_DEVICE_STRING = re.compile(
    r"(?i)/?(job:[^/]*/)?(replica:\d+/)?(task:\d+/)?(device:)?gpu:(\d*|\*|%[ds]|\{\w*\})"
)
_MIXED = re.compile(
    r"(\.auto_mixed_precision\s*=\s*(1|True|.*\.ON)$|TF_ENABLE_AUTO_MIXED_PRECISION(_GRAPH_REWRITE)?['\"]\]\s*=\s*['\"]1)"
)
_LOSS_SCALE = (
    "NPULossScaleOptimizer({optimizer}, ExponentialUpdateLossScaleManager(init_loss_scale=2**15, "
    "incr_every_n_steps=2000, decr_every_n_nan_or_inf=2))"
)


def _short(name: str) -> str:
    return name.removeprefix("tensorflow.")


def _configured(
    porter: Porter, original: cst.Call, updated: cst.Call, place: int, helper: str, parameter: str
) -> cst.Call | None:
    """Adapt the configuration of a call to the NPU."""
    at = argument(updated, "config", place)
    if at is None:
        return with_argument(updated, "config", expression(f"{helper}()"))
    given = updated.args[at].value
    if isinstance(given, cst.Call) and porter.text(given.func).endswith(helper):
        return None
    empty = isinstance(given, cst.Name) and given.value == "None"
    value = (
        expression(f"{helper}()") if empty else expression(f"{helper}({parameter}={{given}})", given=given)
    )
    args = [*updated.args[:at], updated.args[at].with_changes(value=value), *updated.args[at + 1 :]]
    return updated.with_changes(args=args)


def _session(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    place = _SESSIONS.get(_short(name))
    if place is None or "NpuOptimizer" in porter.facts.source:
        return None
    made = _configured(porter, original, updated, place, "npu_config_proto", "config_proto")
    if made is not None:
        porter.need_name(_INIT, "npu_config_proto")
        porter.changed(original, "the session's graphs run on the NPU")
    return made


_MANAGED = (
    "managed_session",
    "prepare_or_wait_for_session",
    "prepare_session",
)  # of supervisors and managers


def _managed_session(
    porter: Porter, original: cst.Call, updated: cst.Call, name: str
) -> cst.BaseExpression | None:
    """Sessions created by a supervisor or session manager."""
    del name
    function = original.func
    if not isinstance(function, cst.Attribute) or function.attr.value not in _MANAGED:
        return None
    made = _configured(porter, original, updated, 1, "npu_config_proto", "config_proto")
    if made is not None:
        porter.need_name(_INIT, "npu_config_proto")
        porter.changed(original, "the session's graphs run on the NPU")
    return made


def _asked(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    del updated
    if _short(name) == "test.is_gpu_available":
        porter.changed(original, "the NPU takes the place of the GPU")
        return expression("True")
    if _short(name) == "test.gpu_device_name":
        porter.changed(original, "sessions place operations on the NPU themselves")
        return expression('"/cpu:0"')
    if name.endswith(".TPUEstimator"):
        porter.left(
            original,
            "TPUEstimator does not run on the NPU",
            "use NPUEstimator with NPURunConfig, or tf.estimator.Estimator, and run this again",
        )
    return None


def _mixed_precision(porter: Porter, node: cst.SimpleStatementLine, text: str) -> str | None:
    if len(node.body) != 1 or not isinstance(node.body[0], cst.Assign) or not _MIXED.search(text):
        return None
    porter.need_import("import os")
    porter.changed(node, "mixed precision is an option of the session")
    return 'os.environ["NPU_PRECISION_MODE"] = "allow_mix_precision"\n'


def _estimator(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    place = _ESTIMATORS.get(_short(name))
    if place is None or "NPURunConfig" in porter.facts.source:
        return None
    made = _configured(porter, original, updated, place, "npu_run_config_init", "run_config")
    if made is not None:
        porter.need_name(_INIT, "npu_run_config_init")
        porter.changed(original, "the estimator's sessions run on the NPU")
    return made


def _loss_scale(
    porter: Porter, original: cst.Call, updated: cst.Call, name: str
) -> cst.BaseExpression | None:
    if not name.endswith("enable_mixed_precision_graph_rewrite") or not updated.args:
        return None
    for needed in ("NPULossScaleOptimizer", "ExponentialUpdateLossScaleManager"):
        porter.need_name(_INIT, needed)
    porter.changed(
        original,
        "mixed precision is an option of the session: NPU_PRECISION_MODE=allow_mix_precision; the loss is scaled here",
    )
    return expression(_LOSS_SCALE, optimizer=updated.args[0].value)


def _device(porter: Porter, node: Any, value: str) -> Any:
    if not _DEVICE_STRING.fullmatch(value) and not (
        isinstance(node, cst.FormattedStringText) and re.fullmatch(r"(?i)/?(device:)?gpu:", value)
    ):
        return None
    porter.changed(
        node,
        "sessions place operations on the NPU themselves; what names the CPU may go there",
    )
    return replaced_text(node, _DEVICE, "cpu")


def _strategy(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    del updated
    if _short(name).startswith(("distribute.", "contrib.distribute.")) and name.endswith("Strategy"):
        porter.left(
            original,
            f"{name.rpartition('.')[2]} does not run in sessions on the NPU",
            "start ranks with 'python -m npu_bridge run --nproc N' and wrap the optimizer with "
            "npu_distributed_optimizer_wrapper (docs/distributed.md)",
        )
    return None


def _imports(porter: Porter) -> None:
    """`tf` with the names of version 1, and sessions on the NPU."""
    tree = ast.parse(porter.facts.source)
    plain = [
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "tensorflow"
    ]
    imported = any(m.partition(".")[0] == "tensorflow" for m in porter.facts.modules)
    if not imported or "npu_bridge" in porter.facts.source:
        return
    for name in dict.fromkeys(plain):
        porter.need_name(_INIT, "tf" if name == "tf" else f"tf as {name}")
    if not plain and not porter.imports_from(_INIT):
        porter.need_import("import npu_bridge.npu_init")
    line = next(
        n.lineno
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom)) and "tensorflow" in ast.unparse(n)
    )
    porter.note(line, "names of TensorFlow 1, and sessions that run on the NPU")


TENSORFLOW1 = Rules(
    calls=(_session, _managed_session, _estimator, _loss_scale, _asked, _strategy),
    strings=(_device,),
    statements=(_mixed_precision,),
    imports=_imports,
)
