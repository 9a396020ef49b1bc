"""MindSpore: optimizer steps, which update parameters and moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.parsers import optimizer_steps as steps
from ge.parsers.mindir.node import MsNode, primitive


class Step(steps.Step):
    """A step of a primitive, in the type of the parameter."""

    def __init__(self, node: MsNode, names: list[str]) -> None:
        self.node = node
        self.written = {word.lstrip("*"): i for i, word in enumerate(names) if word.startswith("*")}
        first = node.parser.resolved(node.arguments[self.written.get("var", 0)])
        self.dtype = desc_of(first).dtype

    def __getattr__(self, name: str) -> Any:
        return self.node.cast(self.node.arg(name), self.dtype)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.node.setting(name, default))

    def op(self, type_: str, *values: Any) -> Any:
        given = [v if isinstance(v, ir.Value) else self.node.cast(v, self.dtype) for v in values]
        return self.node.op(type_, *given)

    def mask(self, condition: Any, value: Any, otherwise: Any) -> Any:
        shape = desc_of(value).shape
        return self.node.op(
            "Select", self.node.spread(condition, shape), value, self.node.spread(otherwise, shape)
        )


def _optimizer(names: str, operands: str) -> Callable[[steps.Formula], steps.Formula]:
    """Declare optimizers: operand names in order, "*" before those that are written."""
    words = operands.split()

    def declare(formula: steps.Formula) -> steps.Formula:
        @primitive(names, operands.replace("*", ""))
        def convert(n: MsNode) -> Any:
            step = Step(n, words)
            places = {name: n.place(index) for name, index in step.written.items()}
            new = formula(step)
            values = [n.parser.write(places[name], new[name]) for name in step.written if name in new]
            return tuple(values) if isinstance(n.form, tuple) else values[0]

        return formula

    return declare


_ADAM = "beta1_power beta2_power lr beta1 beta2 epsilon grad"
# Operands in order, and the step.
for _names, _operands, _formula in (
    ("ApplyGradientDescent", "*var alpha delta", steps.gradient_descent),
    ("Adam ApplyAdam FusedAdam", f"*var *m *v {_ADAM}", steps.adam),
    ("ApplyAdamWithAmsgradV2", f"*var *m *v *vhat {_ADAM}", steps.amsgrad),
    ("ApplyAdaMax", "*var *m *v beta1_power lr beta1 beta2 epsilon grad", steps.ada_max),
    ("ApplyAdagrad", "*var *accum lr grad", steps.adagrad),
    ("ApplyAdadelta", "*var *accum *accum_update lr rho epsilon grad", steps.adadelta),
    ("ApplyRMSProp", "*var *ms *mom lr grad rho momentum epsilon", steps.rms_prop),
    ("ApplyCenteredRMSProp", "*var *mg *ms *mom grad lr rho momentum epsilon", steps.centered_rms_prop),
    ("ApplyFtrl", "*var *accum *linear grad lr l1 l2 lr_power", steps.ftrl),
    ("ApplyProximalAdagrad", "*var *accum lr l1 l2 grad", steps.proximal_adagrad),
    ("ApplyProximalGradientDescent", "*var alpha l1 l2 grad", steps.proximal_descent),
    ("ApplyAddSign", "*var *m lr alpha sign_decay beta grad", steps.add_sign),
    ("ApplyPowerSign", "*var *m lr logbase sign_decay beta grad", steps.power_sign),
):
    _optimizer(_names, _operands)(_formula)


@_optimizer("ApplyMomentum", "*var *accum lr grad momentum")
def _momentum(s: Step) -> dict[str, Any]:
    scale = float(s.node.setting("gradient_scale", 1.0))
    return steps.momentum(s, s.grad if scale == 1.0 else s.mul(s.grad, scale))


@_optimizer("ApplyAdagradV2", "*var *accum lr grad")
def _adagrad_v2(s: Step) -> dict[str, Any]:
    return steps.adagrad(s, float(s.node.setting("epsilon", 0.0)))


@_optimizer("SGD", "*var grad lr *accum momentum *stat")
def _sgd(s: Step) -> dict[str, Any]:
    """The first step, while stat is positive, takes the gradient as the momentum."""
    decay, dampening = float(s.node.setting("weight_decay", 0.0)), float(s.node.setting("dampening", 0.0))
    grad = s.add(s.grad, s.mul(s.var, decay)) if decay else s.grad
    going = s.add(s.mul(s.accum, s.momentum), s.mul(grad, 1.0 - dampening))
    stat = s.stat
    accum = s.mask(s.op("Greater", stat, 0.0), grad, going)
    ahead = s.add(grad, s.mul(accum, s.momentum)) if s.flag("nesterov") else accum
    moving = s.op("Greater", s.momentum, 0.0)
    step = s.mask(moving, ahead, grad)
    new_stat = s.mask(moving, s.node.filled(0, desc_of(stat)), stat)
    return {
        "var": s.sub(s.var, s.mul(step, s.lr)),
        "accum": s.mask(moving, accum, s.accum),
        "stat": new_stat,
    }


@_optimizer("AdamWeightDecay", "*var *m *v lr beta1 beta2 epsilon decay grad")
def _adam_weight_decay(s: Step) -> dict[str, Any]:
    m, v = s.moments()
    update = s.add(s.div(m, s.add(s.op("Sqrt", v), s.epsilon)), s.mul(s.decay, s.var))
    return {"var": s.sub(s.var, s.mul(update, s.lr)), "m": m, "v": v}


def _norm(s: Step, value: Any) -> Any:
    axes = list(range(desc_of(value).rank))
    return s.op("Sqrt", s.node.op("ReduceSum", s.op("Square", value), axes=axes, keepdims=False))


def _scalar(s: Step, value: Any) -> Any:
    """A number that comes as a tensor of one element."""
    return s.node.shaped(value, [])


@_optimizer("Lamb", "*var *m *v lr beta1 beta2 epsilon decay global_step grad")
def _lamb(s: Step) -> dict[str, Any]:
    """Adam's direction with weight decay, scaled by the ratio of the norms of parameter and direction."""
    m, v = s.moments()
    step = _scalar(s, s.global_step)
    m_hat, v_hat = (
        s.div(moment, s.sub(1.0, s.op("Pow", _scalar(s, beta), step)))
        for moment, beta in ((m, s.beta1), (v, s.beta2))
    )
    update = s.add(s.div(m_hat, s.add(s.op("Sqrt", v_hat), s.epsilon)), s.mul(s.var, s.decay))
    weight, length = _norm(s, s.var), _norm(s, update)
    both = s.node.op("And", s.op("Greater", weight, 0.0), s.op("Greater", length, 0.0))
    ratio = s.mask(both, s.div(weight, length), s.node.cast(1.0, s.dtype))
    return {"var": s.sub(s.var, s.mul(update, s.mul(ratio, s.lr))), "m": m, "v": v}


def _mean_square(s: Step, value: Any) -> Any:
    axes = list(range(desc_of(value).rank))
    return s.node.op("ReduceMean", s.op("Square", value), axes=axes, keepdims=False)


_ADA_FACTOR = (
    "epsilon clip_threshold beta1 beta2 weight_decay lr grad *var *exp_avg *exp_avg_sq_row *exp_avg_sq_col "
    "*exp_avg_sq"
)


@_optimizer("FusedAdaFactor FusedAdaFactorWithGlobalNorm", _ADA_FACTOR + " global_norm=None")
def _ada_factor(s: Step) -> dict[str, Any]:
    """Adafactor: the mean square of a matrix's gradient is the product of its means over rows and columns."""
    n = s.node
    given = n.arg("epsilon")
    if not isinstance(given, tuple):  # a tensor of both
        given = n.op("Split", given, axis=0, sizes=[1, 1])
    floor, least = (_scalar(s, n.cast(e, s.dtype)) for e in given)
    lr, beta1, beta2, decay = (_scalar(s, v) for v in (s.lr, s.beta1, s.beta2, s.weight_decay))
    grad = s.grad
    if n.type == "FusedAdaFactorWithGlobalNorm":
        grad = s.div(grad, _scalar(s, s.global_norm))
    rate = lr
    if s.flag("enable_scale_parameter"):
        rate = s.mul(lr, s.op("Maximum", s.op("Sqrt", _mean_square(s, s.var)), least))
    square = s.add(s.op("Square", grad), floor)
    new: dict[str, Any] = {}
    rank = desc_of(grad).rank
    if rank >= 2:
        for name, axis in (("exp_avg_sq_row", rank - 1), ("exp_avg_sq_col", rank - 2)):
            mean = n.op("ReduceMean", square, axes=[axis], keepdims=False)
            new[name] = s.mix(getattr(s, name), mean, beta2)
        row, column = new["exp_avg_sq_row"], new["exp_avg_sq_col"]
        row = s.div(row, n.op("ReduceMean", row, axes=[rank - 2], keepdims=True))
        shape = list(desc_of(grad).shape)
        row, column = (
            n.shaped(row, [*shape[:-1], 1]),
            n.shaped(column, [*shape[:-2], 1, shape[-1]]),
        )
        update = s.div(grad, s.mul(s.op("Sqrt", row), s.op("Sqrt", column)))
    else:
        new["exp_avg_sq"] = s.mix(s.exp_avg_sq, square, beta2)
        update = s.div(grad, s.op("Sqrt", new["exp_avg_sq"]))
    size = s.div(s.op("Sqrt", _mean_square(s, update)), _scalar(s, s.clip_threshold))
    update = s.mul(s.div(update, s.op("Maximum", size, 1.0)), rate)
    if s.flag("enable_first_moment"):
        update = new["exp_avg"] = s.mix(s.exp_avg, update, beta1)
    var = s.var
    if s.flag("enable_weight_decay"):
        var = s.sub(var, s.mul(s.mul(var, decay), rate))
    return new | {"var": s.sub(var, update)}


@primitive("AdamNoUpdateParam", "m v beta1_power beta2_power lr beta1 beta2 epsilon grad")
def _adam_no_update(n: MsNode) -> Any:
    """The change of the parameter, which another node adds to it."""
    s = Step(n, ["*m", "*v"])
    m, v = s.moments()
    moved = s.mix(m, s.grad, s.beta1) if s.flag("use_nesterov") else m
    for index, value in enumerate((m, v)):
        n.parser.write(n.place(index), value)
    return n.op("Neg", s.adam_step(moved, v))


@primitive("LARSUpdate", "weight gradient weight_square gradient_square weight_decay lr")
def _lars(n: MsNode) -> Any:
    """The gradient with weight decay, scaled by the ratio of the norms of weight and gradient."""
    s = Step(n, [])
    epsilon, factor = float(n.setting("epsilon", 1e-5)), float(n.setting("hyperpara", 0.001))
    weight, gradient = (s.op("Sqrt", getattr(s, k)) for k in ("weight_square", "gradient_square"))
    ratio = s.div(s.mul(weight, factor), s.add(s.add(gradient, s.mul(weight, s.weight_decay)), epsilon))
    if s.flag("use_clip"):
        ratio = s.op("Minimum", s.div(ratio, s.lr), 1.0)
    moved = s.add(s.__getattr__("gradient"), s.mul(s.__getattr__("weight"), s.weight_decay))
    return s.mul(moved, ratio)
