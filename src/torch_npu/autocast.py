"""Autocast on the NPU: the same operators in the same types as on PyTorch's other accelerators."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import DispatchKey, DispatchKeySet
from torch.utils import _pytree as pytree

from torch_npu.memory import is_npu

__all__ = ["register", "with_default", "with_weights"]

aten = torch.ops.aten
_KEYS = DispatchKeySet(DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]
# In autocast's type: products and what is made of them.
_LOWERED = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
# In float32: what loses accuracy in fewer bits.
_WIDENED = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div",
    "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss",
    "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "cross_entropy_loss", "ctc_loss.IntList", "ctc_loss.Tensor",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
# With float32 results, unless the caller asks for another type.
_SUMMED = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
# The same, by an overload that has a type.
_NORMS = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
# In the widest of their operands' types.
_PROMOTED = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add", "cat", "stack", "index_copy",
)  # fmt: skip


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")


def _eligible(value: Any) -> bool:
    return is_npu(value) and value.is_floating_point() and value.dtype is not torch.float64


def _cast(tree: Any, kind: torch.dtype) -> Any:
    return pytree.tree_map(lambda v: v.to(kind) if _eligible(v) else v, tree)


class _Weights(threading.local):
    """Casts of parameters, each made once in an autocast region; by identity, with the version that was cast."""

    def __init__(self) -> None:
        self.kept: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}

    def cast(self, value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        if not (value.dtype is torch.float32 and value.requires_grad and value.is_leaf):
            return value.to(kind)
        if not (torch.is_autocast_cache_enabled() and torch.is_grad_enabled()) or value._is_view():
            return value.to(kind)
        source, version, found = self.kept.get(id(value), (None, -1, None))
        if found is None or source is not value or version != value._version or found.dtype is not kind:
            found = value.to(kind)
            self.kept[id(value)] = value, value._version, found
        return found


_weights = _Weights()


def with_weights(original: Any) -> Any:
    """A patch of `torch.clear_autocast_cache`, which the end of an autocast region calls."""

    def clear_autocast_cache() -> None:
        original()
        _weights.kept.clear()

    return clear_autocast_cache


def _lowered(op: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            kind = torch.get_autocast_dtype("npu")
            args, kwargs = pytree.tree_map(
                lambda v: _weights.cast(v, kind) if _eligible(v) else v, (args, kwargs)
            )
            return op(*args, **kwargs)

    return run


def _widened(op: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            args, kwargs = _cast((args, kwargs), torch.float32)
            return op(*args, **kwargs)

    return run


def _summed(op: Any) -> Callable[..., Any]:
    place = next(i for i, a in enumerate(op._schema.arguments) if a.name == "dtype")
    keyword = op._schema.arguments[place].kwarg_only

    def run(*args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get("dtype") if keyword or len(args) <= place else args[place]
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if asked is None and _eligible(args[0]):
                return op(*args[:place] if not keyword else args, **{**kwargs, "dtype": torch.float32})
            return op(*args, **kwargs)

    return run


def _norm(op: Any, typed: Any) -> Callable[..., Any]:
    names = [a.name for a in op._schema.arguments]
    defaults = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        kind = torch.float32 if _eligible(given["self"]) else given["self"].dtype
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return typed(*(given[n] for n in names), dtype=kind)

    return run


def _promoted(op: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        kinds = {v.dtype for v in pytree.tree_leaves((args, kwargs)) if _eligible(v)}
        kind = torch.get_autocast_dtype("npu")
        if kinds - {kind}:
            kind = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            if len(kinds) > 1:
                args, kwargs = _cast((args, kwargs), kind)
            return op(*args, **kwargs)

    return run


def _refuse_binary_cross_entropy(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Many models use a "
        "sigmoid layer right before the binary cross entropy layer: combine the two with "
        "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe to "
        "autocast."
    )


class _Default(threading.local):
    """Autocast's type is bfloat16 in every thread, unless a thread sets another: PyTorch begins with float16."""

    def __init__(self) -> None:
        torch.set_autocast_dtype("npu", torch.bfloat16)
        self.known = True


def with_default(original: Any) -> Any:
    """A patch of `torch.autocast.__init__` that gives every thread the default type of the NPU."""
    default = _Default()

    def init(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
        assert default.known  # the first look of a thread sets its default
        original(self, device_type, *args, **kwargs)

    return init


def register() -> list[Any]:
    """Give PyTorch the types of operators under autocast."""
    rest = torch.library.Library("_", "IMPL")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    own = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    for names, rule in (
        (_LOWERED, _lowered),
        (_WIDENED, _widened),
        (_SUMMED, _summed),
        (_PROMOTED, _promoted),
    ):
        for name in names:
            own.impl(name, rule(_overload(name)))
    for name, typed in _NORMS.items():
        own.impl(name, _norm(_overload(name), _overload(typed)))
    own.impl("binary_cross_entropy", _refuse_binary_cross_entropy)
    return [rest, own]
