"""MindSpore: optimizers' steps, which write parameters and their moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.parsers.mindir.node import MsNode, primitive


class Step:
    """One step: its operands by name, in the type of the parameter, and arithmetic that reads like the formula."""

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

    def add(self, a: Any, b: Any) -> Any:
        return self.op("Add", a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self.op("Sub", a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self.op("Mul", a, b)

    def div(self, a: Any, b: Any) -> Any:
        return self.op("Div", a, b)

    def mix(self, old: Any, new: Any, share: Any) -> Any:
        """old * share + new * (1 - share)."""
        return self.add(self.mul(old, share), self.mul(new, self.sub(1.0, share)))

    def corrected_rate(self) -> Any:
        """Adam's learning rate without the bias of its moments."""
        return self.div(
            self.mul(self.lr, self.op("Sqrt", self.sub(1.0, self.beta2_power))),
            self.sub(1.0, self.beta1_power),
        )

    def mask(self, condition: Any, value: Any, otherwise: Any) -> Any:
        shape = desc_of(value).shape
        return self.node.op(
            "Select", self.node.spread(condition, shape), value, self.node.spread(otherwise, shape)
        )


Formula = Callable[[Step], dict[str, Any]]


def _optimizer(names: str, operands: str) -> Callable[[Formula], Formula]:
    """Declare optimizers: operand names in order, "*" before those that are written."""
    words = operands.split()

    def declare(formula: Formula) -> Formula:
        @primitive(names, operands.replace("*", ""))
        def convert(n: MsNode) -> Any:
            step = Step(n, words)
            places = {name: n.place(index) for name, index in step.written.items()}
            new = formula(step)
            values = [n.parser.write(places[name], new[name]) for name in step.written]
            return tuple(values) if isinstance(n.form, tuple) else values[0]

        return formula

    return declare


@_optimizer("ApplyGradientDescent", "*var alpha delta")
def _gradient_descent(s: Step) -> dict[str, Any]:
    return {"var": s.sub(s.var, s.mul(s.delta, s.alpha))}


@_optimizer("ApplyMomentum", "*var *accum lr grad momentum")
def _momentum(s: Step) -> dict[str, Any]:
    scale = float(s.node.setting("gradient_scale", 1.0))
    grad = s.grad if scale == 1.0 else s.mul(s.grad, scale)
    accum = s.add(s.mul(s.accum, s.momentum), grad)
    ahead = s.add(grad, s.mul(accum, s.momentum)) if s.flag("use_nesterov") else accum
    return {"var": s.sub(s.var, s.mul(ahead, s.lr)), "accum": accum}


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


def _adam_moments(s: Step) -> tuple[Any, Any]:
    return s.mix(s.m, s.grad, s.beta1), s.mix(s.v, s.op("Square", s.grad), s.beta2)


@_optimizer("Adam ApplyAdam FusedAdam", "*var *m *v beta1_power beta2_power lr beta1 beta2 epsilon grad")
def _adam(s: Step) -> dict[str, Any]:
    m, v = _adam_moments(s)
    moved = s.mix(m, s.grad, s.beta1) if s.flag("use_nesterov") else m
    step = s.div(s.mul(moved, s.corrected_rate()), s.add(s.op("Sqrt", v), s.epsilon))
    return {"var": s.sub(s.var, step), "m": m, "v": v}


@_optimizer("ApplyAdamWithAmsgradV2", "*var *m *v *vhat beta1_power beta2_power lr beta1 beta2 epsilon grad")
def _amsgrad(s: Step) -> dict[str, Any]:
    m, v = _adam_moments(s)
    vhat = s.op("Maximum", s.vhat, v)
    step = s.div(s.mul(m, s.corrected_rate()), s.add(s.op("Sqrt", vhat), s.epsilon))
    return {"var": s.sub(s.var, step), "m": m, "v": v, "vhat": vhat}


@_optimizer("AdamWeightDecay", "*var *m *v lr beta1 beta2 epsilon decay grad")
def _adam_weight_decay(s: Step) -> dict[str, Any]:
    m, v = _adam_moments(s)
    update = s.add(s.div(m, s.add(s.op("Sqrt", v), s.epsilon)), s.mul(s.decay, s.var))
    return {"var": s.sub(s.var, s.mul(update, s.lr)), "m": m, "v": v}


@primitive("AdamNoUpdateParam", "m v beta1_power beta2_power lr beta1 beta2 epsilon grad")
def _adam_no_update(n: MsNode) -> Any:
    """The change of the parameter, which another node adds to it."""
    s = Step(n, ["*m", "*v"])
    m, v = _adam_moments(s)
    moved = s.mix(m, s.grad, s.beta1) if s.flag("use_nesterov") else m
    for index, value in enumerate((m, v)):
        n.parser.write(n.place(index), value)
    return n.op("Neg", s.div(s.mul(moved, s.corrected_rate()), s.add(s.op("Sqrt", v), s.epsilon)))


@_optimizer("ApplyAdaMax", "*var *m *v beta1_power lr beta1 beta2 epsilon grad")
def _ada_max(s: Step) -> dict[str, Any]:
    m = s.mix(s.m, s.grad, s.beta1)
    v = s.op("Maximum", s.mul(s.v, s.beta2), s.op("Abs", s.grad))
    rate = s.div(s.lr, s.sub(1.0, s.beta1_power))
    return {"var": s.sub(s.var, s.mul(rate, s.div(m, s.add(v, s.epsilon)))), "m": m, "v": v}


@_optimizer("ApplyAdagrad", "*var *accum lr grad")
def _adagrad(s: Step) -> dict[str, Any]:
    accum = s.add(s.accum, s.op("Square", s.grad)) if s.flag("update_slots", True) else s.accum
    return {"var": s.sub(s.var, s.div(s.mul(s.lr, s.grad), s.op("Sqrt", accum))), "accum": accum}


@_optimizer("ApplyAdagradV2", "*var *accum lr grad")
def _adagrad_v2(s: Step) -> dict[str, Any]:
    accum = s.add(s.accum, s.op("Square", s.grad)) if s.flag("update_slots", True) else s.accum
    root = s.add(s.op("Sqrt", accum), float(s.node.setting("epsilon", 0.0)))
    return {"var": s.sub(s.var, s.div(s.mul(s.lr, s.grad), root)), "accum": accum}


@_optimizer("ApplyAdadelta", "*var *accum *accum_update lr rho epsilon grad")
def _adadelta(s: Step) -> dict[str, Any]:
    accum = s.mix(s.accum, s.op("Square", s.grad), s.rho)
    ratio = s.div(s.op("Sqrt", s.add(s.accum_update, s.epsilon)), s.op("Sqrt", s.add(accum, s.epsilon)))
    update = s.mul(ratio, s.grad)
    moved = s.mix(s.accum_update, s.op("Square", update), s.rho)
    return {"var": s.sub(s.var, s.mul(s.lr, update)), "accum": accum, "accum_update": moved}


@_optimizer("ApplyRMSProp", "*var *mean_square *moment lr grad rho momentum epsilon")
def _rms_prop(s: Step) -> dict[str, Any]:
    mean = s.mix(s.mean_square, s.op("Square", s.grad), s.rho)
    root = s.op("Sqrt", s.add(mean, s.epsilon))
    moment = s.add(s.mul(s.moment, s.momentum), s.div(s.mul(s.lr, s.grad), root))
    return {"var": s.sub(s.var, moment), "mean_square": mean, "moment": moment}


@_optimizer("ApplyCenteredRMSProp", "*var *mean_gradient *mean_square *moment grad lr rho momentum epsilon")
def _centered_rms_prop(s: Step) -> dict[str, Any]:
    square = s.mix(s.mean_square, s.op("Square", s.grad), s.rho)
    mean = s.mix(s.mean_gradient, s.grad, s.rho)
    root = s.op("Sqrt", s.add(s.sub(square, s.op("Square", mean)), s.epsilon))
    moment = s.add(s.mul(s.moment, s.momentum), s.div(s.mul(s.lr, s.grad), root))
    return {"var": s.sub(s.var, moment), "mean_gradient": mean, "mean_square": square, "moment": moment}


@_optimizer("ApplyFtrl", "*var *accum *linear grad lr l1 l2 lr_power")
def _ftrl(s: Step) -> dict[str, Any]:
    accum = s.add(s.accum, s.op("Square", s.grad))
    power = s.op("Neg", s.lr_power)
    new, old = s.op("Pow", accum, power), s.op("Pow", s.accum, power)
    sigma = s.div(s.sub(new, old), s.lr)
    linear = s.add(s.linear, s.sub(s.grad, s.mul(sigma, s.var)))
    quadratic = s.add(s.div(new, s.lr), s.mul(2.0, s.l2))
    moved = s.div(s.sub(s.mul(s.l1, s.op("Sign", linear)), linear), quadratic)
    zero = s.node.filled(0, desc_of(linear))
    var = s.mask(s.op("Greater", s.op("Abs", linear), s.l1), moved, zero)
    return {"var": var, "accum": accum, "linear": linear}


def _shrunk(s: Step, moved: Any, rate: Any) -> Any:
    """What l1 and l2 leave of a parameter."""
    size = s.op("Maximum", s.sub(s.op("Abs", moved), s.mul(rate, s.l1)), 0.0)
    positive = s.op("Greater", s.l1, 0.0)
    kept = s.mask(positive, s.mul(s.op("Sign", moved), size), moved)
    return s.div(kept, s.add(1.0, s.mul(s.l2, rate)))


@_optimizer("ApplyProximalAdagrad", "*var *accum lr l1 l2 grad")
def _proximal_adagrad(s: Step) -> dict[str, Any]:
    accum = s.add(s.accum, s.op("Square", s.grad))
    rate = s.div(s.lr, s.op("Sqrt", accum))
    return {"var": _shrunk(s, s.sub(s.var, s.mul(s.grad, rate)), rate), "accum": accum}


@_optimizer("ApplyProximalGradientDescent", "*var alpha l1 l2 grad")
def _proximal_descent(s: Step) -> dict[str, Any]:
    return {"var": _shrunk(s, s.sub(s.var, s.mul(s.grad, s.alpha)), s.alpha)}


@_optimizer("ApplyAddSign", "*var *m lr alpha sign_decay beta grad")
def _add_sign(s: Step) -> dict[str, Any]:
    m = s.mix(s.m, s.grad, s.beta)
    agree = s.mul(s.op("Sign", s.grad), s.op("Sign", m))
    return {
        "var": s.sub(s.var, s.mul(s.mul(s.lr, s.add(s.alpha, s.mul(s.sign_decay, agree))), s.grad)),
        "m": m,
    }


@_optimizer("ApplyPowerSign", "*var *m lr logbase sign_decay beta grad")
def _power_sign(s: Step) -> dict[str, Any]:
    m = s.mix(s.m, s.grad, s.beta)
    agree = s.mul(s.op("Sign", s.grad), s.op("Sign", m))
    factor = s.op("Exp", s.mul(s.mul(s.logbase, s.sign_decay), agree))
    return {"var": s.sub(s.var, s.mul(s.mul(s.lr, factor), s.grad)), "m": m}


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
