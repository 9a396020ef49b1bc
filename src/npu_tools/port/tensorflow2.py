"""TensorFlow 2 and Keras: the NPU as the default device, device names, lists of GPUs, mixed precision."""

from __future__ import annotations

import ast
import re
from typing import Any

import libcst as cst

from npu_tools.port.porter import Porter, Rules
from npu_tools.port.syntax import expression, replaced_text, string_value

__all__ = ["TENSORFLOW2"]

_GPU = re.compile(r"(?i)(?<![a-z])gpu")
_DEVICE_STRING = re.compile(
    r"(?i)/?(job:[^/]*/)?(replica:\d+/)?(task:\d+/)?(device:)?gpu:(\d*|\*|%[ds]|\{\w*\})"
)
_LISTS = ("config.list_physical_devices", "config.experimental.list_physical_devices",
          "config.list_logical_devices", "config.experimental.list_logical_devices",
          "config.get_visible_devices")  # fmt: skip
_GPU_SETTINGS = ("set_memory_growth", "set_virtual_device_configuration", "set_logical_device_configuration",
                 "set_visible_devices")  # fmt: skip
_OPEN = "npu_device.open().as_default()"


def _device(porter: Porter, node: Any, value: str) -> Any:
    part = isinstance(node, cst.FormattedStringText) and re.fullmatch(r"(?i)/?(device:)?gpu:", value)
    if not _DEVICE_STRING.fullmatch(value) and not part:
        return None
    porter.changed(node, "the device is an NPU")
    return replaced_text(node, _GPU, "NPU")


def _listed(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    if name.removeprefix("tensorflow.") not in _LISTS or not updated.args:
        return None
    if (string_value(updated.args[0].value) or "").upper() != "GPU":
        return None
    porter.changed(original, "lists NPUs, which are logical devices")
    owner = original.func.value if isinstance(original.func, cst.Attribute) else None
    while isinstance(owner, cst.Attribute) and owner.attr.value in ("config", "experimental"):
        owner = owner.value
    if owner is None:
        return None
    return expression('{owner}.config.list_logical_devices("NPU")', owner=owner)


def _gpu_setting(porter: Porter, node: cst.SimpleStatementLine, text: str) -> str | None:
    """Settings of GPU memory, as statements of their own."""
    if len(node.body) != 1 or not isinstance(node.body[0], cst.Expr):
        return None
    call = node.body[0].value
    name = porter.name(call.func) if isinstance(call, cst.Call) else ""
    if (
        not name.startswith("tensorflow.config.")
        or name.rpartition(".")[2] not in _GPU_SETTINGS
        or "CPU" in text
    ):
        return None
    porter.changed(node, "a setting of GPU memory; NPU_MEMORY_LIMIT limits the memory of an NPU")
    return "pass\n"


def _mixed_precision(porter: Porter, node: cst.SimpleStatementLine, text: str) -> str | None:
    switched = re.search(r"auto_mixed_precision['\"]?\s*[:=]\s*True", text) or re.search(
        r"TF_ENABLE_AUTO_MIXED_PRECISION['\"]\]\s*=\s*['\"]1", text
    )
    if not switched or len(node.body) != 1:
        return None
    porter.need_import("import npu_device")
    porter.changed(node, "mixed precision is an option of the NPU")
    return 'npu_device.global_options().precision_mode = "allow_mix_precision"\n'


def _asked(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    if name == "tensorflow.test.gpu_device_name":
        porter.changed(original, "the device is an NPU")
        return expression('"/device:NPU:0"')
    if name == "tensorflow.test.is_gpu_available" and isinstance(updated.func, cst.Attribute):
        owner: Any = updated.func.value
        porter.changed(original, "asks for NPUs")
        return expression('bool({owner}.config.list_logical_devices("NPU"))', owner=owner.value)
    if name.endswith("enable_mixed_precision_graph_rewrite"):
        porter.left(
            original,
            "TensorFlow 2 has no graph rewrite for mixed precision",
            "use tf.keras.mixed_precision.set_global_policy, or "
            'npu_device.global_options().precision_mode = "allow_mix_precision"',
        )
    if (
        name == "tensorflow.distribute.experimental.TPUStrategy"
        or name == "tensorflow.distribute.TPUStrategy"
    ):
        porter.left(original, "TPUs are not NPUs", "use tf.distribute.MirroredStrategy()")
    return None


def _imports(porter: Porter) -> None:
    source = porter.facts.source
    if not porter.facts.entry or "tf_adapter" in source or _OPEN in source:
        return
    if "npu_device" in source and ".as_default()" in source:
        return
    tree = ast.parse(source)
    found = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    named = [n for n in found if re.search(r"\b(tensorflow|keras|tf_keras)\b", ast.unparse(n))]
    if not named:
        return
    porter.need_import("import npu_device")
    porter.need_setup(_OPEN)
    porter.note(named[0].lineno, "the NPU is the default device")


TENSORFLOW2 = Rules(
    calls=(_listed, _asked), strings=(_device,), statements=(_gpu_setting, _mixed_precision), imports=_imports
)
