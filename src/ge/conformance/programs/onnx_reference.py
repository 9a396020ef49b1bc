"""ONNX's reference implementation with corrections where it departs from the specification, and with rounding noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_clip import Clip_11 as _ReferenceClip
from onnx.reference.ops.op_cum_sum import CumSum as _ReferenceCumSum
from onnx.reference.ops.op_loop import Loop as _ReferenceLoop
from onnx.reference.ops.op_one_hot import OneHot as _ReferenceOneHot
from onnx.reference.ops.op_reduce_l2 import ReduceL2_18
from onnx.reference.ops.op_reduce_log_sum_exp import ReduceLogSumExp_18

from ge.conformance.programs.door import Place, Rounding
from ge.conformance.programs.onnx_operators import NOISE
from ge.conformance.programs.record import Noise
from ge.conformance.programs.sampling import is_float

__all__ = ["Evaluator"]


class Evaluator(ReferenceEvaluator):
    """The reference implementation; can perturb rounded intermediate values, also inside bodies."""

    rounding: Rounding | None = None

    def __init__(self, model: Any, **more: Any) -> None:
        super().__init__(model, **{"new_ops": DEFINITIONS, **more})

    def run(self, output_names: Any, feed_inputs: Any, *rest: Any, **more: Any) -> Any:
        results = {"": None, **self.rt_inits_, **feed_inputs}
        for node in self.rt_nodes_:
            noise = NOISE.get(node.op_type, Noise.RESULT)
            inputs = [results[i] for i in node.input]
            if noise is not Noise.NONE:
                sums = noise in (Noise.ARGUMENTS, Noise.WINDOW)
                place = Place.TERM if sums else Place.ARGUMENT
                inputs = [_moved(v, place, noise is Noise.WINDOW) for v in inputs]
            _require_defined(node, inputs)
            context = {"context": results} if node.need_context() else {}
            for name, value in zip(node.output, _outputs(node, inputs, context), strict=False):
                if noise is Noise.UNIT:
                    value = (
                        _moved(value + np.ones((), value.dtype)) - np.ones((), value.dtype)
                        if Evaluator.rounding
                        else value
                    )
                if "Conv" in node.op_type and Evaluator.rounding:
                    value = _unsettled(node, results[node.input[1]], value, Evaluator.rounding)
                results[name] = value if noise is Noise.NONE else _moved(value)
        return [results[name] for name in output_names or self.output_names]


# Sums: in narrow types the reference rounds after each term.
_WIDENED = {f"Reduce{n}" for n in ("Sum", "Mean", "L1", "L2", "SumSquare", "LogSum", "LogSumExp", "Prod")}
_WIDENED |= {"InstanceNormalization"}
_NARROW = ("float16", "bfloat16")


def _outputs(node: Any, inputs: Sequence[Any], context: dict[str, Any]) -> Sequence[Any]:
    if node.op_type not in _WIDENED or inputs[0].dtype.name not in _NARROW:
        return list(node.run(*inputs, **context))
    wide = [v.astype(np.float32) if v is not None and v.dtype.name in _NARROW else v for v in inputs]
    (result,) = node.run(*wide)
    return [np.asarray(result).astype(inputs[0].dtype)]


def _moved(value: Any, place: Place = Place.RESULT, finite: bool = False) -> Any:
    """A value perturbed by the noise of another implementation."""
    rounding = Evaluator.rounding
    if rounding is None or value is None:
        return value
    value = np.asarray(value)
    if not is_float(value.dtype):
        return value
    wide = value.astype(np.float64)
    if finite and rounding.replacement is not None:
        number = rounding.replacement_below(float(ml_dtypes.finfo(value.dtype).max))
        wide = np.where(np.isfinite(wide), wide, number)
    return np.asarray(wide * rounding(value, place)).astype(value.dtype)


def _unsettled(node: Any, weights: np.ndarray, value: Any, rounding: Rounding) -> Any:
    """Channels with non-finite weights are NaN or infinite: implementations may skip products with the border."""
    if not rounding.seed % 2:
        return value
    bad = ~np.isfinite(weights.astype(np.float64))
    group = node.group or 1
    if node.op_type == "ConvTranspose":
        shares = np.split(bad, group)  # of (channels, results a group, kernel)
        channels = np.concatenate([s.any(axis=(0, *range(2, s.ndim))) for s in shares])
    else:
        channels = np.asarray(bad.any(axis=tuple(range(1, bad.ndim))))
    value = np.array(value)
    outcomes = np.array([np.nan, np.inf, -np.inf, 1.0], value.dtype)
    value[:, channels] = np.random.default_rng(rounding.seed).choice(outcomes, value[:, channels].shape)
    return value


# -- undefined behaviour -------------------------------------------------------------------------------------


def _require_defined(node: Any, inputs: Sequence[Any]) -> None:
    """Reject inputs for which ONNX leaves the result undefined although the reference computes one."""
    problem = _CHECKS[node.op_type](node, inputs) if node.op_type in _CHECKS else ""
    if problem:
        raise ValueError(problem)


def _cast(node: Any, inputs: Sequence[Any]) -> str:
    kind = onnx.helper.tensor_dtype_to_np_dtype(node.onnx_node.attribute[0].i)
    if is_float(inputs[0].dtype) and kind.kind in "iu":
        info, wide = np.iinfo(kind), inputs[0].astype(np.float64)
        if not np.all((wide >= info.min) & (wide <= info.max)):
            return f"a number out of the range of {kind}"
    return ""


def _gather_elements(node: Any, inputs: Sequence[Any]) -> str:
    size = inputs[0].shape[node.axis]
    return "" if np.all((inputs[1] >= -size) & (inputs[1] < size)) else "an index out of range"


def _split(node: Any, inputs: Sequence[Any]) -> str:
    if len(inputs) < 2 or inputs[1] is None or np.sum(inputs[1]) == inputs[0].shape[node.axis]:
        return ""
    return "sizes that do not add up"


def _reverse_sequence(node: Any, inputs: Sequence[Any]) -> str:
    x, lengths = inputs
    fits = lengths.shape == (x.shape[node.batch_axis],)
    return "" if fits and np.all((lengths >= 0) & (lengths <= x.shape[node.time_axis])) else "a length"


def _scatter_elements(node: Any, inputs: Sequence[Any]) -> str:
    return "" if inputs[1].shape == inputs[2].shape else "updates of another shape than the indices"


def _scatter_nd(node: Any, inputs: Sequence[Any]) -> str:
    data, indices, updates = inputs
    wanted = (*indices.shape[:-1], *data.shape[indices.shape[-1] :])
    return "" if updates.shape == wanted else f"updates of another shape than {wanted}"


def _shrink(node: Any, inputs: Sequence[Any]) -> str:
    """Integers are computed in floating point; out-of-range results are undefined."""
    x = inputs[0]
    if x.dtype.kind not in "iu":
        return ""
    bias, info = abs(float(node.bias or 0)), np.iinfo(x.dtype)
    wide = x.astype(np.float64)
    return "" if np.all((wide - bias > info.min) & (wide + bias < info.max)) else "a number out of range"


def _one_hot(node: Any, inputs: Sequence[Any]) -> str:
    return "" if inputs[2].shape == (2,) else "other than two values"


def _instance_norm(node: Any, inputs: Sequence[Any]) -> str:
    channels = inputs[0].shape[1:2]
    return "" if all(v.shape == channels for v in inputs[1:]) else "other than one number per channel"


def _along_an_axis(node: Any, inputs: Sequence[Any]) -> str:
    return "" if inputs[0].ndim else "an axis of a scalar"


_CHECKS = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _along_an_axis),
    "OneHot": _one_hot,
    "InstanceNormalization": _instance_norm,
    "Shrink": _shrink,
    "Cast": _cast,
    "GatherElements": _gather_elements,
    "Split": _split,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}

# -- definitions ---------------------------------------------------------------------------------------------


class Loop(_ReferenceLoop):
    """The specification stacks scan outputs along a new axis; the reference concatenates them."""

    body: Any
    _run_body: Any

    def _run(
        self,
        M: Any,
        cond: Any,
        *initial: Any,
        context: Any = None,
        body: Any = None,
        attributes: Any = None,
        **more: Any,
    ) -> Any:
        states, steps = list(initial), list[Any]()
        while (cond is None or cond) and (M is None or len(steps) < M):
            fed = zip(self.body.input_names, [np.array(len(steps)), np.array(True), *states], strict=True)
            cond, *found = self._run_body({**(context or {}), **dict(fed)}, attributes=attributes)
            states, kept = found[: len(initial)], found[len(initial) :]
            steps.append(kept)
        if not steps and self.body.output_names[len(initial) + 1 :]:
            raise ValueError("no step tells the shape of what is stacked")
        return (*states, *(np.stack(values) for values in zip(*steps, strict=True)))


class CumSum(_ReferenceCumSum):
    """Sums start from zero, which has no sign; the reference's start from the first element."""

    def _run(self, x: Any, axis: Any, exclusive: Any = None, reverse: Any = None) -> Any:
        (found,) = super()._run(x, axis, exclusive, reverse)
        return (found + np.zeros((), x.dtype),)


class Sign(OpRun):
    """Zero has no sign; the reference keeps it in bfloat16 alone."""

    def _run(self, x: Any) -> Any:
        return (np.where(x == 0, np.zeros((), x.dtype), np.sign(x)).astype(x.dtype),)


class PRelu(OpRun):
    """The specification keeps zeros; the reference multiplies them by the slope, which may be infinite."""

    def _run(self, x: Any, slope: Any) -> Any:
        return (np.where(x < 0, x * slope, x).astype(x.dtype),)


class LogSoftmax(OpRun):
    """Avoids the logarithm of values that round to zero."""

    def _run(self, x: Any, axis: Any = -1) -> Any:
        wide = x.astype(np.float64)
        wide = wide - wide.max(axis=axis, keepdims=True)
        return ((wide - np.log(np.exp(wide).sum(axis=axis, keepdims=True))).astype(x.dtype),)


class OneHot(_ReferenceOneHot):
    """Selects one of two values; the reference interpolates between them."""

    def _run(self, indices: Any, depth: Any, values: Any, axis: Any = None) -> Any:
        (chosen,) = super()._run(indices, depth, np.array([0, 1]), axis=axis)
        return (np.where(chosen.astype(bool), values[1], values[0]).astype(values.dtype),)


class Clip(_ReferenceClip):
    """Keeps the shape of its operand."""

    def _run(self, data: Any, *limits: Any) -> Any:
        (found,) = super()._run(data, *limits)
        return (np.asarray(found).reshape(data.shape),)


class ReduceLogSumExp(ReduceLogSumExp_18):
    """Returns -inf if all elements are -inf; the reference computes -inf - (-inf)."""

    def _run(self, data: Any, axes: Any = None, keepdims: Any = 1, noop_with_empty_axes: Any = 0) -> Any:
        along = self.handle_axes(axes, noop_with_empty_axes)
        if data.size == 0 or along == ():
            return (data,) if along == () else super()._run(data, axes, keepdims, noop_with_empty_axes)
        wide = data.astype(np.float64)
        most = wide.max(axis=along, keepdims=True)
        most = np.where(np.isfinite(most), most, 0.0)
        total = np.log(np.exp(wide - most).sum(axis=along, keepdims=True)) + most
        if data.dtype.kind in "iu" and not np.all(np.abs(total) < np.iinfo(data.dtype).max):
            raise ValueError(f"a result out of the range of {data.dtype}")
        return ((total if keepdims else np.squeeze(total, axis=along)).astype(data.dtype),)


class ReduceL2(ReduceL2_18):
    """Supports integers; the reference's squares overflow."""

    def _run(self, data: Any, axes: Any = None, keepdims: Any = 1, noop_with_empty_axes: Any = 0) -> Any:
        if data.dtype.kind not in "iu":
            return super()._run(data, axes, keepdims, noop_with_empty_axes)
        (norm,) = super()._run(data.astype(np.float64), axes, keepdims, noop_with_empty_axes)
        if not np.all(norm < np.iinfo(data.dtype).max):
            raise ValueError(f"a norm out of the range of {data.dtype}")
        return (norm.astype(data.dtype),)


class LpNormalization(OpRun):
    """Divides by the norm of absolute values, which the reference omits."""

    def _run(self, x: Any, axis: Any = -1, p: Any = 2) -> Any:
        wide = x.astype(np.float64)
        powers = np.abs(wide) ** (p or 2)
        norm = powers.sum(axis=axis if axis is not None else -1, keepdims=True) ** (1 / (p or 2))
        return (np.where(norm == 0, 0, wide / norm).astype(x.dtype),)


def _windows(x: np.ndarray, fill: Any, beyond: Any, given: Any) -> np.ndarray:
    """The elements of all windows as the last axis.

    fill: padding value. beyond: value past the padding, for last windows in ceil mode.
    """
    space = len(given["kernel_shape"])
    for axis, kernel in enumerate(given["kernel_shape"]):
        step, hole = ((given.get(n) or [1] * space)[axis] for n in ("strides", "dilations"))
        reach, size = hole * (kernel - 1) + 1, x.shape[2 + axis]
        before, after = (given.get("pads") or [0] * 2 * space)[axis::space]
        if given.get("auto_pad") in ("SAME_UPPER", "SAME_LOWER"):
            total = max((math.ceil(size / step) - 1) * step + reach - size, 0)
            before = (total + (given["auto_pad"] == "SAME_LOWER")) // 2
            after = total - before
        whole = size + before + after - reach
        count = (-(-whole // step) if given.get("ceil_mode") else whole // step) + 1
        if given.get("ceil_mode") and (count - 1) * step >= size + before:  # the window starts past the end
            count -= 1
        for width, value in (((before, after), fill), ((0, step), beyond)):
            border = [width if a == 2 + axis else (0, 0) for a in range(x.ndim)]
            x = np.pad(x, border, constant_values=value)
        places = np.arange(count)[:, None] * step + np.arange(kernel) * hole
        x = np.moveaxis(np.take(x, places, axis=2 + axis), 3 + axis, -1)
    return x.reshape(*x.shape[: 2 + space], -1)


class MaxPool(OpRun):
    """Supports asymmetric padding, unlike the reference."""

    def _run(self, x: Any, **given: Any) -> Any:
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        return (_windows(x, lowest, lowest, given).max(axis=-1),)


class AveragePool(OpRun):
    """Counts NaN elements, which the reference takes for padding."""

    def _run(self, x: Any, **given: Any) -> Any:
        inside = _windows(np.ones(x.shape), float(bool(given.get("count_include_pad"))), 0.0, given)
        total = _windows(x.astype(np.float64), 0.0, 0.0, given).sum(axis=-1)
        return ((total / inside.sum(axis=-1)).astype(x.dtype),)


class LpPool(OpRun):
    """Norm of each window; the reference derives it from the mean."""

    def _run(self, x: Any, p: Any = 2, **given: Any) -> Any:
        views = np.abs(_windows(x.astype(np.float64), 0.0, 0.0, given))
        return (((views ** (p or 2)).sum(axis=-1) ** (1 / (p or 2))).astype(x.dtype),)


class Slice(OpRun):
    """Clamps starts and ends as the specification says; the reference takes Python's slices, which wrap twice."""

    def _run(self, data: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
        steps = np.ones_like(starts) if steps is None else steps
        for at, (start, end, step) in enumerate(
            zip(starts.tolist(), ends.tolist(), steps.tolist(), strict=True)
        ):
            axis = at if axes is None else int(axes[at])
            size = data.shape[axis]
            start, end = (v + size if v < 0 else v for v in (start, end))
            if step > 0:
                start, end = np.clip(start, 0, size), np.clip(end, 0, size)
            else:
                start, end = np.clip(start, 0, size - 1), np.clip(end, -1, size - 1)
            data = np.take(data, np.arange(start, end, step, dtype=np.int64), axis=axis)
        return (data,)


DEFINITIONS: list[type[OpRun]] = [
    *(CumSum, Loop, PRelu, Sign, LogSoftmax, OneHot, Clip, LpNormalization, ReduceLogSumExp, ReduceL2, Slice),
    *(MaxPool, AveragePool, LpPool),
]
