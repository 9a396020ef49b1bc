"""Formulas of optimizer steps, shared by the parsers of several frameworks.

A formula reads its operands by name from a `Step` and gives the new values of those that are written. Slots have
TensorFlow's names; how a framework rounds in between decides the order of operations here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Formula", "Step"]


class Step:
    """One step: operands as attributes, and arithmetic that reads like the formula."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """A setting of the optimizer."""
        raise NotImplementedError

    def op(self, type_: str, *values: Any) -> Any:
        """An operator of the engine on values and numbers."""
        raise NotImplementedError

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
        return self.add(old, self.mul(self.sub(new, old), self.sub(1.0, share)))

    def shrunk(self, value: Any, by: Any) -> Any:
        """A value moved towards zero by an amount, not beyond it."""
        size = self.op("Maximum", self.sub(self.op("Abs", value), by), 0.0)
        return self.mul(self.op("Sign", value), size)

    def ahead(self, accum: Any, grad: Any) -> Any:
        """Where momentum leads: with Nesterov's, one gradient further."""
        return self.add(grad, self.mul(accum, self.momentum)) if self.flag("use_nesterov") else accum

    def moments(self) -> tuple[Any, Any]:
        """Adam's means of the gradient and of its square."""
        square = self.op("Square", self.grad)
        return self.mix(self.m, self.grad, self.beta1), self.mix(self.v, square, self.beta2)

    def adam_step(self, m: Any, v: Any) -> Any:
        """m by the root of v, at a rate without the bias of the moments."""
        rate = self.mul(self.lr, self.op("Sqrt", self.sub(1.0, self.beta2_power)))
        rate = self.div(rate, self.sub(1.0, self.beta1_power))
        return self.div(self.mul(m, rate), self.add(self.op("Sqrt", v), self.epsilon))


Formula = Callable[..., dict[str, Any]]


def gradient_descent(s: Step) -> dict[str, Any]:
    return {"var": s.sub(s.var, s.mul(s.delta, s.alpha))}


def momentum(s: Step, grad: Any = None) -> dict[str, Any]:
    grad = s.grad if grad is None else grad
    accum = s.add(s.mul(s.accum, s.momentum), grad)
    return {"var": s.sub(s.var, s.mul(s.ahead(accum, grad), s.lr)), "accum": accum}


def adam(s: Step) -> dict[str, Any]:
    m, v = s.moments()
    moved = s.mix(m, s.grad, s.beta1) if s.flag("use_nesterov") else m
    return {"var": s.sub(s.var, s.adam_step(moved, v)), "m": m, "v": v}


def amsgrad(s: Step) -> dict[str, Any]:
    m, v = s.moments()
    vhat = s.op("Maximum", s.vhat, v)
    return {"var": s.sub(s.var, s.adam_step(m, vhat)), "m": m, "v": v, "vhat": vhat}


def ada_max(s: Step) -> dict[str, Any]:
    m = s.mix(s.m, s.grad, s.beta1)
    v = s.op("Maximum", s.mul(s.v, s.beta2), s.op("Abs", s.grad))
    rate = s.div(s.lr, s.sub(1.0, s.beta1_power))
    return {"var": s.sub(s.var, s.mul(s.div(m, s.add(v, s.epsilon)), rate)), "m": m, "v": v}


def rms_prop(s: Step) -> dict[str, Any]:
    ms = s.mix(s.ms, s.op("Square", s.grad), s.rho)
    step = s.div(s.mul(s.grad, s.lr), s.op("Sqrt", s.add(ms, s.epsilon)))
    mom = s.add(s.mul(s.mom, s.momentum), step)
    return {"var": s.sub(s.var, mom), "ms": ms, "mom": mom}


def centered_rms_prop(s: Step) -> dict[str, Any]:
    ms, mg = s.mix(s.ms, s.op("Square", s.grad), s.rho), s.mix(s.mg, s.grad, s.rho)
    spread = s.add(s.sub(ms, s.op("Square", mg)), s.epsilon)
    mom = s.add(s.mul(s.mom, s.momentum), s.div(s.mul(s.grad, s.lr), s.op("Sqrt", spread)))
    return {"var": s.sub(s.var, mom), "mg": mg, "ms": ms, "mom": mom}


def adagrad(s: Step, epsilon: Any = None) -> dict[str, Any]:
    accum = s.add(s.accum, s.op("Square", s.grad)) if s.flag("update_slots", True) else s.accum
    root = s.op("Sqrt", accum)
    root = root if epsilon is None else s.add(root, epsilon)
    return {"var": s.sub(s.var, s.div(s.mul(s.grad, s.lr), root)), "accum": accum}


def adadelta(s: Step) -> dict[str, Any]:
    accum = s.mix(s.accum, s.op("Square", s.grad), s.rho)
    size = s.op("Sqrt", s.div(s.add(s.accum_update, s.epsilon), s.add(accum, s.epsilon)))
    update = s.mul(size, s.grad)
    changed = s.mix(s.accum_update, s.op("Square", update), s.rho)
    return {"var": s.sub(s.var, s.mul(update, s.lr)), "accum": accum, "accum_update": changed}


def _proximal(s: Step, rate: Any) -> Any:
    """What l1 and l2 leave of the parameter after a step."""
    moved = s.sub(s.var, s.mul(s.grad, rate))
    return s.div(s.shrunk(moved, s.mul(rate, s.l1)), s.add(s.mul(rate, s.l2), 1.0))


def proximal_descent(s: Step) -> dict[str, Any]:
    return {"var": _proximal(s, s.alpha)}


def proximal_adagrad(s: Step) -> dict[str, Any]:
    accum = s.add(s.accum, s.op("Square", s.grad))
    return {"var": _proximal(s, s.mul(s.op("Rsqrt", accum), s.lr)), "accum": accum}


def ftrl(s: Step, gradient: Any = None) -> dict[str, Any]:
    """Follow the regularised leader."""
    accum = s.add(s.accum, s.op("Square", s.grad))
    power = s.op("Neg", s.lr_power)
    new, old = s.op("Pow", accum, power), s.op("Pow", s.accum, power)
    added = s.add(s.linear, s.grad if gradient is None else gradient)
    linear = s.sub(added, s.mul(s.div(s.sub(new, old), s.lr), s.var))
    curve = s.add(s.div(new, s.lr), s.mul(s.l2, 2.0))
    return {"var": s.op("Neg", s.div(s.shrunk(linear, s.l1), curve)), "accum": accum, "linear": linear}


def _agreement(s: Step, m: Any) -> Any:
    return s.mul(s.mul(s.op("Sign", s.grad), s.op("Sign", m)), s.sign_decay)


def add_sign(s: Step) -> dict[str, Any]:
    m = s.mix(s.m, s.grad, s.beta)
    step = s.mul(s.mul(s.add(_agreement(s, m), s.alpha), s.grad), s.lr)
    return {"var": s.sub(s.var, step), "m": m}


def power_sign(s: Step) -> dict[str, Any]:
    m = s.mix(s.m, s.grad, s.beta)
    size = s.op("Exp", s.mul(_agreement(s, m), s.logbase))
    return {"var": s.sub(s.var, s.mul(s.mul(size, s.grad), s.lr)), "m": m}
