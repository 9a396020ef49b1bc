"""PyTorch: `cuda` becomes `npu`, NCCL becomes HCCL; renames mixed precision and compiled models."""

from __future__ import annotations

import ast
import re
from typing import Any

import libcst as cst

from npu_tools.port.porter import Porter, Rules
from npu_tools.port.syntax import expression, keyword, replaced_text, string_value, with_argument

__all__ = ["PYTORCH"]

_CUDA = re.compile("cuda")
_CUDA_STRING = re.compile(r"cuda(:(\d*|%[ds]|\{\w*\}))?")
_TYPE = re.compile(r"torch\.cuda\.\w*Tensor")
# Names of torch.cuda that torch.npu has too; tests compare the list with torch_npu.npu.
NPU_NAMES = frozenset(
    {
        *(
            "Event",
            "Stream",
            "can_device_access_peer",
            "current_device",
            "current_stream",
            "default_stream",
            "device",
        ),
        *("device_count", "device_of", "empty_cache", "get_device_capability", "get_device_name"),
        *("get_device_properties", "get_rng_state", "get_rng_state_all", "ipc_collect", "is_available"),
        *("is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_cached"),
        *("max_memory_reserved", "mem_get_info", "memory_allocated", "memory_cached", "memory_reserved"),
        *("memory_snapshot", "memory_stats", "memory_summary", "reset_accumulated_memory_stats"),
        *(
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
            "reset_peak_memory_stats",
            "seed",
            "seed_all",
        ),
        *("set_device", "set_rng_state", "set_rng_state_all", "set_stream", "stream", "synchronize", "amp"),
    }
)
_AMP = ("autocast", "GradScaler")
_DIFFERENT = ("DataLoader", ".numpy(", "from_numpy")  # need host tensors


def _device(porter: Porter, node: Any, value: str) -> Any:
    part = isinstance(node, cst.FormattedStringText)
    if value == "nccl":
        porter.changed(node, "ranks of NPUs communicate through HCCL")
        return replaced_text(node, re.compile("nccl"), "hccl")
    if not _CUDA_STRING.fullmatch(value) or (part and value == "cuda"):
        return None
    porter.changed(node, "the device is an NPU")
    return replaced_text(node, _CUDA, "npu")


def _method(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    """`x.cuda(...)` is `x.npu(...)`."""
    function = updated.func
    if not isinstance(function, cst.Attribute) or function.attr.value != "cuda" or name == "torch.cuda":
        return None
    porter.changed(original, "moves to the NPU")
    return updated.with_changes(func=function.with_changes(attr=cst.Name("npu")))


def _name(porter: Porter, node: Any, name: str) -> cst.BaseExpression | None:
    if isinstance(node, cst.Attribute) and node.attr.value == "is_cuda":
        porter.changed(node, "asks for a tensor of the NPU")
        return node.with_changes(attr=cst.Name("is_npu"))
    if not name.startswith("torch.cuda.") or not isinstance(node, cst.Attribute):
        return None
    used = name.removeprefix("torch.cuda.")
    inside = porter.parent(node)
    if isinstance(inside, cst.Attribute):  # the whole of torch.cuda.amp.autocast is asked later
        if used == "amp" and inside.attr.value in _AMP:
            return None
    elif used not in NPU_NAMES and used not in {f"amp.{n}" for n in _AMP} | {"random"}:
        porter.left(node, f"torch.cuda.{used} has no equivalent", _remedy(used))
        return None
    if used not in NPU_NAMES and used not in {f"amp.{n}" for n in _AMP}:
        return None
    if "torch.cuda" not in porter.text(node):  # imported from torch by name
        return None
    porter.changed(node, f"torch.npu has {used}")
    return cst.parse_expression(porter.text(node).replace("torch.cuda", "torch.npu", 1))


def _remedy(used: str) -> str:
    if used.endswith("Tensor"):
        return 'make the tensor with device="npu"'
    if used.startswith(("CUDAGraph", "graph", "graphs", "make_graphed_callables")):
        return "compile the model with torch.compile(model, backend=torchair.get_npu_backend())"
    if used.startswith(("nvtx", "profiler", "cudart")):
        return "use 'tf-adapter profile script.py'"
    return "remove it, or keep it behind 'if torch.cuda.is_available():'"


def _import(porter: Porter, node: cst.SimpleStatementLine, text: str) -> str | None:
    """`from torch.cuda... import` of names that the NPU has too."""
    if len(node.body) != 1 or not isinstance(node.body[0], (cst.ImportFrom, cst.Import)):
        return None
    small = node.body[0]
    if isinstance(small, cst.Import):
        if (
            any(porter.text(alias.name) == "torch.cuda.amp" for alias in small.names)
            and len(small.names) == 1
        ):
            porter.changed(node, "mixed precision of the NPU")
            return text.replace("torch.cuda.amp", "torch_npu.npu.amp") + "\n"
        return None
    module = porter.text(small.module) if small.module is not None else ""
    if not module.startswith("torch.cuda") or isinstance(small.names, cst.ImportStar):
        return None
    names = {porter.text(alias.name) for alias in small.names}
    known = set(_AMP) if module == "torch.cuda.amp" else NPU_NAMES if module == "torch.cuda" else set()
    if not names <= known:
        missing = sorted(names - known)[0]
        porter.left(node, f"{module}.{missing} has no equivalent", _remedy(missing))
        return None
    porter.changed(node, "mixed precision of the NPU" if "amp" in text else "functions of the NPU")
    return text.replace("torch.cuda", "torch_npu.npu", 1) + "\n"


def _default_type(
    porter: Porter, original: cst.Call, updated: cst.Call, name: str
) -> cst.BaseExpression | None:
    if name != "torch.set_default_tensor_type" or not updated.args:
        return None
    given = updated.args[0].value
    if not _TYPE.fullmatch(string_value(given) or porter.text(given)):
        return None
    porter.changed(original, "new tensors are on the NPU")
    return expression('torch.set_default_device("npu")')


def _compile(porter: Porter, original: cst.Call, updated: cst.Call, name: str) -> cst.BaseExpression | None:
    if name != "torch.compile" or not updated.args or keyword(updated.args, "backend") is not None:
        return None
    if keyword(updated.args, "mode") is not None or keyword(updated.args, "options") is not None:
        porter.left(
            original,
            "mode and options of torch.compile are those of Inductor",
            "use torch.compile(model, backend=torchair.get_npu_backend())",
        )
        return None
    porter.need_import("import torchair")
    porter.changed(original, "compiled for the NPU")
    return with_argument(updated, "backend", expression("torchair.get_npu_backend()"))


def _imports(porter: Porter) -> None:
    source = porter.facts.source
    tree = ast.parse(source)
    imported = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
    ours = [n for n in imported if re.search(r"\btorch\b", ast.unparse(n))]
    if not ours or "torch_npu" in source:
        return
    line = ours[0].lineno
    if porter.changes:
        porter.need_import("import torch_npu")
        porter.note(line, "torch.npu and the device 'npu'")
    elif porter.facts.entry and "npu" not in source:
        _plain(porter, line)


def _plain(porter: Porter, line: int) -> None:
    """A script without device names."""
    kept = next((text for text in _DIFFERENT if text in porter.facts.source), None)
    if kept:
        porter.leave(
            line,
            f"the script names no device, and {kept.strip('.(')} works with tensors of the host",
            "import torch_npu; move the model and every batch with .npu(), results with .cpu()",
        )
        return
    if not re.search(r"^import torch$", porter.facts.source, re.MULTILINE):
        porter.need_import("import torch")
    porter.need_import("import torch_npu")
    porter.need_setup('torch.set_default_device("npu")')
    porter.note(line, "the script names no device: new tensors and modules are on the NPU")


PYTORCH = Rules(
    calls=(_method, _default_type, _compile),
    names=(_name,),
    strings=(_device,),
    statements=(_import,),
    imports=_imports,
)
