"""Rules for all frameworks: environment variables that name GPUs, imports without an equivalent."""

from __future__ import annotations

from typing import Any

import libcst as cst

from npu_tools.port.porter import Porter, Rules
from npu_tools.port.syntax import string_value

__all__ = ["COMMON"]

_VISIBLE, _OURS = "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"
_MODULES = {
    "apex": "use torch.npu.amp instead of apex.amp, and torch.optim instead of apex.optimizers",
    "pycuda": "write the kernel as an operator of your own (docs/custom_operators.md)",
    "cupy": "use NumPy or the framework's tensors",
    "tensorrt": "compile the model with atc and run it with acl (docs/model_files.md)",
    "pynvml": "use torch.npu or npu_runtime.memory_info() for memory figures",
    "horovod.torch": 'use torch.nn.parallel.DistributedDataParallel with init_process_group("hccl")',
    "deepspeed": 'use torch.distributed.fsdp or DistributedDataParallel with init_process_group("hccl")',
    "triton": "write the kernel as an operator of your own (docs/custom_operators.md)",
}


def _visible_devices(porter: Porter, node: Any, value: str) -> Any:
    if value != _VISIBLE or _hides_all(porter, node):
        return None
    porter.changed(node, f"{_VISIBLE} chooses GPUs; {_OURS} chooses NPUs")
    return node.with_changes(value=node.value.replace(_VISIBLE, _OURS))


def _hides_all(porter: Porter, node: cst.CSTNode) -> bool:
    """True if GPUs are hidden: the port must neither hide nor expose NPUs."""
    above: cst.CSTNode = node
    while not isinstance(above, (cst.Assign, cst.Call, cst.BaseStatement, cst.Module)):
        above = porter.parent(above)
    given: list[cst.BaseExpression] = []
    if isinstance(above, cst.Assign):
        given = [above.value]
    elif isinstance(above, cst.Call):
        given = [arg.value for arg in above.args]
    hidden = any(string_value(value) in ("", "-1") for value in given)
    if hidden:
        porter.left(
            node, "the script switches GPUs off", "remove the line if the script is to run on the NPU"
        )
    return hidden


def _without_equivalent(porter: Porter, node: cst.SimpleStatementLine, text: str) -> str | None:
    for small in node.body:
        for module in _imported(porter, small):
            found = next((k for k in _MODULES if module == k or module.startswith(f"{k}.")), None)
            if found:
                porter.left(node, f"{found} has no equivalent", _MODULES[found])
    return None


def _imported(porter: Porter, node: cst.BaseSmallStatement) -> list[str]:
    if isinstance(node, cst.Import):
        return [porter.text(alias.name) for alias in node.names]
    if isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
        module = porter.text(node.module)
        names = [] if isinstance(node.names, cst.ImportStar) else node.names
        return [module, *(f"{module}.{porter.text(alias.name)}" for alias in names)]
    return []


COMMON = Rules(strings=(_visible_devices,), statements=(_without_equivalent,))
