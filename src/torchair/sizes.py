"""How Dynamo traces for this backend: graphs also hold for open sizes of 0 and 1.

By default an open size of one is a graph of its own, so that an open batch and an open sequence are up to four graphs.
PyTorch can trace without that assumption, for the whole process; here it does so while a frame is traced for this
backend, and not for others. Empty tensors are the exception: PyTorch divides by their sizes when it traces that way.
What PyTorch cannot trace so, such as an open size of one that broadcasts, is traced again as usual.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import callback_handler
from torch._dynamo.exc import TorchRuntimeError
from torch.fx.experimental import _config
from torch.utils import _pytree as pytree

from ge.collection import compile_scope

__all__ = ["register", "traced_again", "traced_for_npu", "with_causality"]

_MARK = "_torchair_backend"
_COMPILER = 5  # the place of the backend among the arguments of Dynamo's `_compile`
_CAUSAL = 5  # the place of `is_causal` among the arguments of attention
_as_usual: list[Any] = []  # frames that are traced again with the usual assumption
_before: list[tuple[bool, compile_scope | None]] = []  # what to go back to after each trace that is under way


def traced_for_npu(backend: Any) -> Any:
    """The backend, marked as one whose graphs hold for all sizes."""
    setattr(backend, _MARK, True)
    return backend


def _is_ours(compiler: Any) -> bool:
    from torch._dynamo.eval_frame import innermost_backend

    found = innermost_backend(compiler)
    return bool(getattr(getattr(found, "compiler_fn", found), _MARK, False))


def _tracing() -> tuple[Any, Any]:
    """The backend and the arguments of the trace that begins, None where PyTorch does not tell."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_compile" and "compiler_fn" in frame.f_locals:
            return frame.f_locals["compiler_fn"], frame.f_locals.get("locals")
        frame = frame.f_back  # type: ignore[assignment]
    return None, None


def _has_empty(arguments: Any) -> bool:
    return any(isinstance(a, torch.Tensor) and not a.numel() for a in pytree.tree_leaves(arguments))


def _begin(_: Any) -> None:
    compiler, arguments = _tracing()
    ours = compiler is not None and _is_ours(compiler)
    _before.append((bool(_config.backed_size_oblivious), compile_scope().__enter__() if ours else None))
    if ours and not _as_usual and not _has_empty(arguments):
        _config.backed_size_oblivious = True


def _end(_: Any) -> None:
    if _before:
        _config.backed_size_oblivious, pause = _before.pop()
        if pause is not None:
            pause.__exit__()


_BEGIN = torch._dynamo.disable(_begin, reason="PyTorch holds the lock of tracing")
_END = torch._dynamo.disable(_end, reason="PyTorch holds the lock of tracing")


def traced_again(original: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo's compilation of a frame; what fails with open sizes of 0 and 1 is tried with the usual assumption."""

    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except TorchRuntimeError:
            if _as_usual or not _is_ours(args[_COMPILER]):
                raise
        _as_usual.append(args[0])
        try:
            return original(*args, **kwargs)
        finally:
            _as_usual.pop()

    return compile_frame


def _with_known_causality(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
    """Attention whose `is_causal` follows from an open size (`is_causal=query.shape[2] > 1 and …`): it is decided.

    PyTorch's own arguments are plain bools; without an answer the frame would be cut there. The graph is guarded by it,
    so prompts and single tokens are two graphs.
    """
    from torch._dynamo.variables import ConstantVariable, SymNodeVariable

    found = kwargs.get("is_causal", args[_CAUSAL] if len(args) > _CAUSAL else None)
    if not isinstance(found, SymNodeVariable):
        return None  # as usual
    decided = ConstantVariable.create(bool(found.evaluate_expr()))
    if "is_causal" in kwargs:
        kwargs["is_causal"] = decided
    else:
        args = (*args[:_CAUSAL], decided, *args[_CAUSAL + 1 :])
    return self.call_function(tx, args, kwargs)


def with_causality(original: Callable[[], dict[Any, Any]]) -> Callable[[], dict[Any, Any]]:
    """Dynamo's special treatment of functions, with that of attention."""
    return functools.cache(
        lambda: {torch.nn.functional.scaled_dot_product_attention: _with_known_causality, **original()}
    )


def register() -> None:
    """Register the callbacks for every trace, once per process.

    A backward pass that starts inside a compiled function is compiled while Dynamo traces every Python function that
    is called; PyTorch calls these while it holds the lock that tracing needs.
    """
    if _BEGIN not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_BEGIN)
        callback_handler.register_end_callback(_END)
