"""Recurrent layers as operators of their own: one direction of one layer a call, which keeps what its gradient needs.

PyTorch's tracing writes most layers out step by step, draws no numbers for the dropout between layers, and takes an
LSTM with gradients of its weights only for one of inference. So calls of layers in Dynamo's graphs are replaced before
that: in training a layer keeps its gates, and its gradient reads them. Where the operators are left to ATen (open
sizes), the layer is ATen's own, and its gradient runs it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ge.ops.nn.recurrent_training import CELLS

__all__ = ["layers", "replace_layers"]

_FUNCTIONS: dict[Callable[..., Any], str] = {
    torch.lstm: "lstm",
    torch.gru: "gru",
    torch.rnn_tanh: "rnn_tanh",
    torch.rnn_relu: "rnn_relu",
}
_WEIGHTS = "Tensor w, Tensor r, Tensor? bias, Tensor? recurrent_bias, str cell, bool reverse"
_library = torch.library.Library("torchair", "FRAGMENT")
_library.define(
    f"recurrent_layer(Tensor input, Tensor h, Tensor? c, {_WEIGHTS}, bool keep) -> (Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    f"recurrent_layer_backward(Tensor input, Tensor h, Tensor? c, {_WEIGHTS}, Tensor y, Tensor kept, Tensor? grad_y, "
    "Tensor? grad_h, Tensor? grad_c) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def replace_layers(module: fx.GraphModule) -> None:
    """Let calls of recurrent layers in Dynamo's graph, and in graphs nested in it, be calls of `layers`."""
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        found = [n for n in part.graph.nodes if n.op == "call_function" and n.target in _FUNCTIONS]
        for node in found:
            node.args = (_FUNCTIONS[node.target], *node.args)
            node.target = _named_layers
        if found:
            part.recompile()


def _named_layers(name: str, *args: Any) -> tuple[Tensor, ...]:
    """`layers`, with an argument that graphs can write as source code."""
    return layers(getattr(torch, name), *args)


def layers(function: Callable[..., Any], *args: Any) -> tuple[Tensor, ...]:
    """What `torch.lstm`, `torch.gru`, `torch.rnn_tanh` and `torch.rnn_relu` give, in operators of single layers.

    Packed sequences, projected states and layers of mixed types are left to the function itself.

    >>> x, h, weights = torch.ones(5, 2, 3), torch.zeros(1, 2, 4), torch.nn.GRU(3, 4)._flat_weights
    >>> y, h = layers(torch.gru, x, h, weights, True, 1, 0.0, False, False, False)
    >>> y.shape, h.shape
    (torch.Size([5, 2, 4]), torch.Size([1, 2, 4]))
    """
    if not _is_plain(function, args):
        return function(*args)
    x, given, weights, has_biases, count, dropout, train, bidirectional, batch_first = args
    states = [given] if isinstance(given, Tensor) else list(given)
    x, states, weights = _lowered(x, states, weights)
    directions, each = 1 + bidirectional, 4 if has_biases else 2
    y = x.transpose(0, 1) if batch_first else x
    lasts: list[list[Tensor]] = []
    for layer in range(count):
        ys = []
        for reverse in range(directions):
            place = layer * directions + reverse
            own = weights[place * each : (place + 1) * each]
            out, *last = _layer(_FUNCTIONS[function], y, [s[place] for s in states], own, bool(reverse))
            ys.append(out)
            lasts.append(last)
        y = ys[0] if directions == 1 else torch.cat(ys, -1)
        if dropout and train and layer < count - 1:
            y = torch.dropout(y, dropout, True)
    y = y.transpose(0, 1) if batch_first else y
    return y, *(torch.stack(s) for s in zip(*lasts, strict=True))


def _is_plain(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether the arguments are those of whole sequences, with states as wide as the layer, of one type."""
    if not isinstance(args[3], bool) or torch._C._functorch.peek_interpreter_stack() is not None:
        return False  # packed sequences have their weights there; transforms know only PyTorch's own calls
    x, given, weights, has_biases, count, _, _, bidirectional, batch_first = args
    states = [given] if isinstance(given, Tensor) else list(given)
    steps = x.shape[1 if batch_first else 0]
    if not x.is_floating_point() or (isinstance(steps, int) and steps == 0):
        return False
    if len(weights) != (1 + bidirectional) * count * (4 if has_biases else 2):
        return False
    if _autocast(x) is not None and function is not torch.lstm:
        return False  # autocast narrows single calls of their steps
    return len({t.dtype for t in (x, *states, *weights)}) == 1


def _autocast(x: Tensor) -> torch.dtype | None:
    """The type to which autocast narrows an LSTM as a whole, if it does."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return None
    return torch.get_autocast_dtype(kind)


def _lowered(
    x: Tensor, states: list[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The operands as autocast has them."""
    dtype = _autocast(x) or x.dtype
    return x.to(dtype), [s.to(dtype) for s in states], [w.to(dtype) for w in weights]


def _layer(
    cell: str, x: Tensor, states: list[Tensor], weights: Sequence[Tensor], reverse: bool
) -> tuple[Tensor, ...]:
    """One direction of one layer: all hidden states, the last states."""
    h, c = states if len(states) == 2 else (states[0], None)
    w, r, bias, recurrent_bias = weights if len(weights) == 4 else (*weights, None, None)
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *states, *weights))
    found = torch.ops.torchair.recurrent_layer(x, h, c, w, r, bias, recurrent_bias, cell, reverse, keep)
    return found[: 1 + len(states)]


# -- what ATen runs ----------------------------------------------------------------------------------------


def _on_aten(
    x: Tensor, h: Tensor, c: Tensor | None, weights: Sequence[Tensor], cell: str, reverse: bool
) -> tuple[Tensor, ...]:
    function = {name: f for f, name in _FUNCTIONS.items()}[cell]
    states = h[None] if c is None else (h[None], c[None])
    flipped = x.flip(0) if reverse else x
    y, *last = function(flipped, states, weights, len(weights) == 4, 1, 0.0, True, False, False)
    return y.flip(0) if reverse else y, *(s[0] for s in last)


def _run(
    x: Tensor,
    h: Tensor,
    c: Tensor | None,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    cell: str,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, ...]:
    weights = [t for t in (w, r, bias, recurrent_bias) if t is not None]
    y, *last = _on_aten(x, h, c, weights, cell, reverse)
    _, _, empty, kept = _fake(x, h, c, w, r, bias, recurrent_bias, cell, reverse, keep)
    return y.contiguous(), last[0].clone(), last[1].clone() if c is not None else empty, kept


def _fake(x: Tensor, h: Tensor, c: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    cell, keep = CELLS[rest[4]], rest[6]
    steps, batch = x.shape[:2]
    units = h.shape[1]
    kept = x.new_empty((steps, batch, cell.kept * units) if keep and cell.kept else (0,))
    return x.new_empty((steps, batch, units)), x.new_empty(h.shape), x.new_empty(_cell_shape(c)), kept


def _cell_shape(c: Tensor | None) -> Sequence[int]:
    return (0,) if c is None else c.shape


def _run_backward(
    x: Tensor,
    h: Tensor,
    c: Tensor | None,
    w: Tensor,
    r: Tensor,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    cell: str,
    reverse: bool,
    y: Tensor,
    kept: Tensor,
    *grads: Tensor | None,
) -> tuple[Tensor, ...]:
    """The layer as ATen differentiates it: only the NPU uses `kept`."""
    given = [x, h, c, w, r, bias, recurrent_bias]
    with torch.enable_grad(), torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutogradCPU):
        again = [None if t is None else t.detach().requires_grad_() for t in given]
        source, first, memory, *own = again
        assert source is not None and first is not None
        results = _on_aten(source, first, memory, [t for t in own if t is not None], cell, reverse)
        known = [(t, g) for t, g in zip(results, grads, strict=False) if g is not None]
        wanted = [t for t in again if t is not None]
        made = iter(
            torch.autograd.grad([t for t, _ in known], wanted, [g for _, g in known], materialize_grads=True)
        )
    return tuple(x.new_empty(0) if t is None else next(made).contiguous() for t in again)


def _fake_backward(*args: Any) -> tuple[Tensor, ...]:
    return tuple(args[0].new_empty((0,) if t is None else t.shape) for t in args[:7])


# -- the gradient ------------------------------------------------------------------------------------------


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.cell, ctx.reverse, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[0], output[3])


def _gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    *given, y, kept = ctx.saved_tensors
    found = torch.ops.torchair.recurrent_layer_backward(*given, ctx.cell, ctx.reverse, y, kept, *grads[:3])
    return *(None if t is None else g for t, g in zip(given, found, strict=True)), None, None, None


for _name, _kernel, _shapes in (
    ("recurrent_layer", _run, _fake),
    ("recurrent_layer_backward", _run_backward, _fake_backward),
):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"torchair::{_name}", _shapes, lib=_library)
torch.library.register_autograd("torchair::recurrent_layer", _gradient, setup_context=_remember, lib=_library)
