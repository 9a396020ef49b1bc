"""Runs the programs of `paddle.jit.to_static`: compiled once for each signature, forward and backward."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import paddle
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

import ge
from ge.compiler import compile_graph
from ge.errors import GeError
from ge.faults import absorb
from ge.hybrid import Specialiser
from ge.parsers.paddle.parser import Draw, convert
from paddle_npu.draws import drawn
from paddle_npu.programs import from_pir

__all__ = ["Counts", "counts", "disable", "enable", "explain", "reset_counts"]

_FAKE = "Fake_var"  # PaddlePaddle's name of a value that does not exist


@dataclass
class Counts:
    """Calls on the NPU, calls that PaddlePaddle ran itself, and the reasons."""

    npu: int = 0
    paddle: int = 0
    compiled: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass
class _State:
    """What the door remembers; one for the process, as the hook of PaddlePaddle is."""

    counts: Counts = field(default_factory=Counts)
    strict: bool = False
    last: _Step | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)


_state = _State()


def enable(strict: bool = False) -> None:
    """Run programs on the NPU from now on; with `strict`, what the engine refuses is an error."""
    _state.strict = strict
    PartialProgramLayer.HOOKED_RUN_IMPL = _hook


def disable() -> None:
    """Leave programs to PaddlePaddle."""
    PartialProgramLayer.HOOKED_RUN_IMPL = None


def counts() -> Counts:
    """The calls so far."""
    return _state.counts


def reset_counts() -> None:
    """Count from zero."""
    _state.counts = Counts()


def explain(function: Any, *arguments: Any, **keywords: Any) -> str:
    """Call a function of `to_static` and tell where each operator of its last program runs, and why."""
    _state.last = None
    before = _state.counts.reasons.copy()
    function(*arguments, **keywords)
    if _state.last is not None:
        models = (_state.last.forward.model, _state.last.backward and _state.last.backward.model)
        return "\n".join(str(ge.explain(m)) for m in models if m is not None)
    refused = _state.counts.reasons - before
    return "PaddlePaddle ran it: " + (
        "; ".join(refused) or "the function has no program (is it of to_static?)"
    )


# -- compiled programs -------------------------------------------------------------------------------------


@dataclass
class _Side:
    """One program as a model: its inputs and outputs by name."""

    model: Any
    inputs: list[str]
    outputs: list[str]
    draws: list[Draw]
    updates: dict[str, str]
    constants: dict[str, np.ndarray]

    def run(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs, constants included."""
        for draw in self.draws:
            values[draw.name] = drawn(draw)
        if self.model is None:
            return dict(self.constants)
        made = self.model(*(values[name] for name in self.inputs))
        results = made if isinstance(made, tuple | list) else [made]
        return dict(zip(self.outputs, results, strict=True)) | self.constants


@dataclass
class _Step:
    """The forward program of a call, and the backward one where gradients are needed."""

    forward: _Side
    backward: _Side | None
    names: dict[str, list[str]]
    stop_gradients: list[bool]


def _side(program: Any, name: str, shapes: dict[str, Any], constants: dict[str, np.ndarray]) -> _Side:
    read = from_pir(program, name)
    known = {*read.arguments, *(o.attrs["name"] for o in read.block.operations if "name" in o.attrs)}
    made = convert(read, {k: v for k, v in shapes.items() if k in known}, constants)
    graph = made.graph
    inputs, outputs = ([str(v.name) for v in side] for side in (graph.inputs, graph.outputs))
    model = compile_graph(graph, None, name) if outputs else None
    return _Side(model, inputs, outputs, made.draws, made.updates, made.constants)


def _compile(layer: Any, arrays: dict[str, np.ndarray]) -> _Step:
    runnable = layer.program
    names = {key: list(found) for key, found in runnable.program_name_attr.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    forward = _side(runnable.forward_program, "forward", shapes, {})
    backward = None
    if len(runnable.backward_program.global_block().ops):
        shapes |= dict(zip(forward.outputs, _shapes_of(forward), strict=True))
        shapes |= {g: shapes[o] for o, g in zip(names["fo"], names["bo_g"], strict=True) if o in shapes}
        backward = _side(runnable.backward_program, "backward", shapes, forward.constants)
    return _Step(forward, backward, names, list(runnable.out_stop_gradients))


def _shapes_of(side: _Side) -> list[tuple[int, ...]]:
    return [tuple(port.desc.shape) for port in side.model.outputs] if side.model is not None else []


MOST_STEPS = 64  # of a layer
# Compiled steps of each layer, by signature; None where the engine refused.
_steps: weakref.WeakKeyDictionary[Any, Specialiser[Any, _Step | None]] = weakref.WeakKeyDictionary()


def _find(layer: Any, arrays: dict[str, np.ndarray]) -> _Step | None:
    key = (layer.program_id, layer.training, *((n, a.shape, a.dtype.str) for n, a in arrays.items()))
    with _state.lock:
        known = _steps.setdefault(layer, Specialiser(MOST_STEPS))
        return known.program(key, lambda: _compiled_or_none(layer, arrays))


def _compiled_or_none(layer: Any, arrays: dict[str, np.ndarray]) -> _Step | None:
    try:
        step = _compile(layer, arrays)
    except GeError as error:
        if _state.strict:
            raise
        _refused(error.cause)
        return None
    except Exception as error:
        if _state.strict:
            raise
        _refused(str(absorb("a program of PaddlePaddle", error)))
        return None
    _state.counts.compiled += 1
    return step


def _refused(reason: str) -> None:
    if reason not in _state.counts.reasons:
        warnings.warn(f"PaddlePaddle runs a program itself: {reason}", stacklevel=2)
    _state.counts.reasons[reason] += 1


# -- tensors -----------------------------------------------------------------------------------------------


def _array(tensor: Any) -> np.ndarray:
    """The elements of a tensor, without a copy where both libraries have the element type."""
    if tensor.dtype == paddle.bfloat16:
        return np.asarray(tensor.numpy()).view(ml_dtypes.bfloat16)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return np.from_dlpack(tensor.detach())


def _tensor(array: np.ndarray) -> Any:
    """An array as a tensor, which keeps its memory."""
    if array.dtype == ml_dtypes.bfloat16:
        return paddle.to_tensor(array.view(np.uint16)).view(paddle.bfloat16)
    if not array.flags.c_contiguous or not array.flags.writeable or not array.size:
        array = np.array(array, order="C")
    return paddle.from_dlpack(array) if array.size else paddle.to_tensor(array)


# -- calls -------------------------------------------------------------------------------------------------


class _Gradients(paddle.autograd.PyLayer):
    """A forward call that remembers what the backward program reads."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        ctx.call = call
        return tuple(call.run())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.call.gradients(gradients)


class _Call:
    """One call of a compiled step."""

    def __init__(self, step: _Step, tensors: Sequence[Any], arrays: dict[str, np.ndarray]) -> None:
        self.step, self.tensors, self.values = step, tensors, arrays

    def run(self) -> list[Any]:
        """The outputs; updated parameters are written back."""
        side = self.step.forward
        results = side.run(self.values)
        by_name = dict(zip([*self.step.names["fx"], *self.step.names["fp"]], self.tensors, strict=True))
        for name, output in side.updates.items():
            by_name[name].set_value(results.pop(output))
        self.values.update(results)
        outputs = [_tensor(self.values[name]) for name in self.step.names["fo"]]
        for tensor, stops in zip(outputs, self.step.stop_gradients, strict=True):
            tensor.stop_gradient = stops
        return outputs

    def gradients(self, gradients: Sequence[Any]) -> Any:
        """Gradients by all tensors in their order, None by those that have none."""
        names, side = self.step.names, self.step.backward
        assert side is not None, "a call with gradients has a backward program"
        values = self.values
        for name, output, gradient in zip(names["bo_g"], names["fo"], gradients, strict=True):
            if name != _FAKE:
                given = np.zeros_like(values[output]) if gradient is None else _array(gradient)
                values[name] = given
        results = side.run(values)
        wanted = [*names["bx_g"], *names["bp_g"]]
        pairs = zip(self.tensors, wanted, strict=True)
        return tuple(_tensor(results[g]) if g in results and not t.stop_gradient else None for t, g in pairs)


def _hook(run: Any, inputs: Sequence[Any], parameters: Sequence[Any], attrs: Any) -> Any:
    """`_run` for PaddlePaddle, which makes the exceptions of programs anew from one text."""
    try:
        return _run(run, inputs, parameters, attrs)
    except GeError as error:
        raise RuntimeError(str(error)) from error


def _run(run: Any, inputs: Sequence[Any], parameters: Sequence[Any], attrs: Any) -> Any:
    """A call of a program on the engine, or PaddlePaddle's own where the engine refuses it."""
    layer = run.__self__
    names = layer.program.program_name_attr
    labels, tensors = [*names["fx"], *names["fp"]], [*inputs, *parameters]
    if len(labels) != len(tensors) or not all(isinstance(t, paddle.Tensor) for t in tensors):
        _refused("a program whose inputs are not all tensors")
        _state.counts.paddle += 1
        return run(inputs, parameters, attrs)
    arrays = {label: _array(t) for label, t in zip(labels, tensors, strict=True) if t._is_initialized()}
    step = _find(layer, arrays)
    if step is None:
        _state.counts.paddle += 1
        return run(inputs, parameters, attrs)
    _state.counts.npu += 1
    _state.last = step
    call = _Call(step, tensors, arrays)
    if step.backward is None or not paddle.is_grad_enabled() or all(t.stop_gradient for t in tensors):
        return call.run()
    return list(_Gradients.apply(call, *tensors))
