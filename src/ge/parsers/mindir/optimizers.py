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
        first = node.parser.resolved(node.arguments[0])
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
            values = [n.parser.write(places[name], new[name]) for name in step.written]
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
