"""Runs the programs of `paddle.jit.to_static`: compiled once for each signature, forward and backward."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paddle
from paddle.jit.sot.opcode_translator.skip_files import no_skip_code, skip_file_name_re
from paddle.jit.sot.utils import ENV_MIN_GRAPH_SIZE, no_eval_frame

import ge
from ge.errors import GeError, UnsupportedOperatorsError
from ge.faults import absorb
from ge.hybrid import Specialiser
from paddle_npu.counting import STATE
from paddle_npu.parts import Parts, divided, further_results
from paddle_npu.programs import from_pir
from paddle_npu.sides import Side, compiled

__all__ = ["captured_call", "disable", "enable", "explain", "run_hooked"]

_FAKE = "Fake_var"  # PaddlePaddle's name of an absent value


def enable(strict: bool = False) -> None:
    """Run programs on the NPU from now on; with `strict`, raise an error for programs that the engine rejects."""
    STATE.strict = strict
    STATE.enabled = True


def disable() -> None:
    """Leave programs to PaddlePaddle."""
    STATE.enabled = False


def explain(function: Any, *arguments: Any, **keywords: Any) -> str:
    """Call a `to_static` function and report where each operator of its last program runs, and why."""
    STATE.sides = []
    before = STATE.counts.reasons.copy()
    function(*arguments, **keywords)
    if STATE.sides:
        parts = [str(ge.explain(model)) for side in STATE.sides for model in side.models]
        parts += [f"PaddlePaddle runs {s.refused}" for s in STATE.sides if isinstance(s, Parts)]
        return "\n".join(parts)
    refused = STATE.counts.reasons - before
    return "PaddlePaddle ran it: " + (
        "; ".join(refused) or "the function has no program (is it of to_static?)"
    )


# -- functions that PaddlePaddle captures in pieces ----------------------------------------------------------

# SOT captures nothing in these files: a function of `to_static` may call another one.
paddle.framework.core.eval_frame_skip_file_prefix((str(Path(__file__).parent) + os.sep,))


def captured_call(perform_call: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a function of `to_static` without `full_graph=True`.

    It warns once if PaddlePaddle made no program of the function.
    """

    def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
        before = STATE.handed
        results = perform_call(function, *arguments, **keywords)
        if STATE.enabled and STATE.handed == before:
            STATE.refused(*_nothing_handed(function))
        return results

    return call


def _nothing_handed(function: Any) -> tuple[str, str]:
    captured, layer = function.dygraph_function, function.class_instance
    code = captured.__code__
    if skip_file_name_re.match(code.co_filename) and code not in no_skip_code:
        cause, remedy = "its capture of pieces (SOT) leaves out PaddlePaddle's own layers and models", ""
    else:
        least = ENV_MIN_GRAPH_SIZE.get()
        cause = f"its capture of pieces (SOT) found no piece of at least {least} operators (MIN_GRAPH_SIZE)"
        remedy = ", or set the environment variable MIN_GRAPH_SIZE=0"
    name = captured.__qualname__ if layer is None else f"{type(layer).__name__}.{captured.__name__}"
    return f"the to_static function {name}", (
        f"no program of {name} was handed over, since {cause}; "
        f"compile it with paddle.jit.to_static(..., full_graph=True){remedy}"
    )


# -- compiled programs -------------------------------------------------------------------------------------


@dataclass
class _Step:
    """The forward program of a call, and the backward one if gradients are needed."""

    forward: Side | Parts
    backward: Side | Parts | None
    names: dict[str, list[str]]
    stop_gradients: list[bool]


def _side(program: Any, name: str, shapes: dict[str, Any], before: Side | Parts | None) -> Side | Parts:
    """A program on the NPU, partially if the engine rejects some of it; `before` is the forward one."""
    written = from_pir(program, name)
    constants = before.constants if before else {}
    try:
        made = compiled(written.program, shapes, constants)
        made.further = further_results(written.program)
        return made
    except UnsupportedOperatorsError as error:
        if STATE.strict:
            raise
        parts = divided(written, shapes, constants, before.further if before else {})
        STATE.refused("a part of a program", error.cause)
        return parts


def _compile(layer: Any, tensors: dict[str, Any]) -> _Step:
    runnable = layer.program
    names = {key: list(found) for key, found in runnable.program_name_attr.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    forward = _side(runnable.forward_program, "forward", shapes, None)
    backward = None
    if len(runnable.backward_program.global_block().ops):
        shapes |= forward.shapes
        shapes |= {g: shapes[o] for o, g in zip(names["fo"], names["bo_g"], strict=True) if o in shapes}
        backward = _side(runnable.backward_program, "backward", shapes, forward)
    return _Step(forward, backward, names, list(runnable.out_stop_gradients))


MOST_STEPS = 64  # per layer
# Compiled steps of each layer, by signature; None if the engine rejected it.
_steps: weakref.WeakKeyDictionary[Any, Specialiser[Any, _Step | None]] = weakref.WeakKeyDictionary()


def _find(layer: Any, tensors: dict[str, Any]) -> _Step | None:
    key = (layer.program_id, layer.training, *((tuple(t.shape), t.dtype) for t in tensors.values()))
    with STATE.lock:
        known = _steps.setdefault(layer, Specialiser(MOST_STEPS))
        return known.program(key, lambda: _compiled_or_none(layer, tensors))


def _compiled_or_none(layer: Any, tensors: dict[str, Any]) -> _Step | None:
    try:
        step = _compile(layer, tensors)
    except GeError as error:
        if STATE.strict:
            raise
        STATE.refused("a program", error.cause)
        return None
    except Exception as error:
        if STATE.strict:
            raise
        STATE.refused("a program", str(absorb("a program of PaddlePaddle", error)))
        return None
    STATE.counts.compiled += 1
    return step


# -- calls -------------------------------------------------------------------------------------------------


class _Gradients(paddle.autograd.PyLayer):
    """Autograd node that saves the values read by the backward program."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> Any:
        ctx.call = call
        return tuple(call.run())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.call.gradients(gradients)


class _Call:
    """One call of a compiled step; `values` are its tensors by name, contiguous."""

    def __init__(self, step: _Step, tensors: Sequence[Any], values: dict[str, Any]) -> None:
        self.step, self.tensors, self.values = step, tensors, values
        self.place = paddle.framework._current_expected_place_()

    def run(self) -> list[Any]:
        """The outputs; updated parameters are written in place."""
        names, side = self.step.names, self.step.forward
        side.run(self.values, self.place)
        if side.updates:
            by_name = dict(zip([*names["fx"], *names["fp"]], self.tensors, strict=True))
            for name in side.updates.values():
                if by_name[name] is not self.values[name]:  # a copy, since the tensor is a view
                    by_name[name].set_value(self.values[name])
        outputs = [self.values[name] for name in names["fo"]]
        taken = {id(tensor) for tensor in self.tensors}
        for index, tensor in enumerate(outputs):
            if id(tensor) in taken:  # an input, or the same tensor as another output
                outputs[index] = paddle.assign(tensor)
            taken.add(id(tensor))
        for tensor, stops in zip(outputs, self.step.stop_gradients, strict=True):
            tensor.stop_gradient = stops
        return outputs

    def gradients(self, gradients: Sequence[Any]) -> Any:
        """Gradients of all tensors in order, None for those without."""
        names, side, values = self.step.names, self.step.backward, self.values
        assert side is not None, "a call with gradients has a backward program"
        for name, output, gradient in zip(names["bo_g"], names["fo"], gradients, strict=True):
            if name != _FAKE:
                given = paddle.zeros_like(values[output]) if gradient is None else gradient
                values[name] = _contiguous(given)
        side.run(values, self.place)
        wanted = [*names["bx_g"], *names["bp_g"]]
        pairs = zip(self.tensors, wanted, strict=True)
        return tuple(values[g] if g in values and not t.stop_gradient else None for t, g in pairs)


def _contiguous(tensor: Any) -> Any:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


@no_eval_frame  # SOT would capture the door and the engine where it runs a piece
def run_hooked(run: Any, inputs: Sequence[Any], parameters: Sequence[Any], attrs: Any) -> Any:
    """`_run` for PaddlePaddle, which re-creates exceptions from a single string."""
    if not STATE.enabled:
        return run(inputs, parameters, attrs)
    try:
        return _run(run, inputs, parameters, attrs)
    except GeError as error:
        raise RuntimeError(str(error)) from error


def _run(run: Any, inputs: Sequence[Any], parameters: Sequence[Any], attrs: Any) -> Any:
    """Run a program on the engine, or with PaddlePaddle if the engine rejects it."""
    layer = run.__self__
    STATE.handed += 1
    names = layer.program.program_name_attr
    labels, tensors = [*names["fx"], *names["fp"]], [*inputs, *parameters]
    if len(labels) != len(tensors) or not all(isinstance(t, paddle.Tensor) for t in tensors):
        STATE.refused("a program", "a program whose inputs are not all tensors")
        STATE.counts.paddle += 1
        return run(inputs, parameters, attrs)
    pairs = zip(labels, tensors, strict=True)
    values = {label: _contiguous(t) for label, t in pairs if t._is_initialized()}
    step = _find(layer, values)
    if step is None:
        STATE.counts.paddle += 1
        return run(inputs, parameters, attrs)
    STATE.counts.npu += 1
    sides = [side for side in (step.forward, step.backward) if side]
    STATE.counts.mixed += any(isinstance(side, Parts) for side in sides)
    STATE.sides = sides
    call = _Call(step, tensors, values)
    if step.backward is None or not paddle.is_grad_enabled() or all(t.stop_gradient for t in tensors):
        return call.run()
    return list(_Gradients.apply(call, *tensors))
