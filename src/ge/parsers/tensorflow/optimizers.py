"""TensorFlow's optimizer steps (ResourceApplyAdam and the like): variables and slots written by one node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from ge.errors import GeError
from ge.ir.values import desc_of
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import EFFECTS, Context, Outputs, handler
from ge.parsers.tensorflow.values import Variable

__all__ = ["SPARSE_OPERANDS"]


@dataclass(frozen=True)
class Step:
    """One step: the context it is in, its operands by name, and arithmetic that reads like the formula."""

    context: Context
    operands: dict[str, Any]
    variables: dict[str, Variable] = field(default_factory=dict)  # those of the operands that are written

    def __getattr__(self, name: str) -> Any:
        return self.operands[name]

    def flag(self, name: str) -> bool:
        return bool(self.context.attr(name, False))

    def op(self, type_: str, *values: Any) -> Any:
        return self.context.builder.op(type_, *values)

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


Formula = Callable[[Step], dict[str, ir.Value]]


def _optimizer(operands: str, *ops: str) -> Callable[[Formula], Formula]:
    """Declare optimizer operators: operand names in order, "*" before those that are variables."""
    names = operands.split()

    def declare(formula: Formula) -> Formula:
        def convert(c: Context) -> Outputs:
            return _converted(c, names, formula)

        every = [f"{prefix}{op}" for op in ops for prefix in ("Resource", "")]
        handler(*every)(convert)
        EFFECTS.update(every)
        return formula

    return declare


def _converted(c: Context, names: list[str], formula: Formula) -> Outputs:
    operands: dict[str, Any] = {}
    variables: dict[str, Variable] = {}
    for index, name in enumerate(names):
        plain, found = name.lstrip("*"), c.binding(index)
        if name.startswith("*"):
            if not isinstance(found, Variable):
                raise GeError(
                    "E10105", f"input {index} is not a variable", node=c.node.name, operator=c.node.op
                )
            variables[plain] = found
            operands[plain] = c.converter.read(found)
        else:
            operands[plain] = c.tensor(index)
    for name, value in formula(Step(c, operands, variables)).items():
        c.converter.write(variables[name], value)
    first = variables["var"]
    return [first] if first.is_ref else []


@_optimizer("*var alpha delta", "ApplyGradientDescent")
def _gradient_descent(s: Step) -> dict[str, ir.Value]:
    return {"var": s.sub(s.var, s.mul(s.delta, s.alpha))}


def _ahead(s: Step, accum: Any) -> Any:
    """Where momentum leads: with Nesterov's, one gradient further."""
    return s.add(s.grad, s.mul(accum, s.momentum)) if s.flag("use_nesterov") else accum


@_optimizer("*var *accum lr grad momentum", "ApplyMomentum")
def _momentum(s: Step) -> dict[str, ir.Value]:
    accum = s.add(s.mul(s.accum, s.momentum), s.grad)
    step = s.mul(_ahead(s, accum), s.lr)
    return {"var": s.sub(s.var, step), "accum": accum}


@_optimizer("*var *accum lr grad momentum", "ApplyKerasMomentum")
def _keras_momentum(s: Step) -> dict[str, ir.Value]:
    accum = s.sub(s.mul(s.accum, s.momentum), s.mul(s.grad, s.lr))
    step = s.sub(s.mul(accum, s.momentum), s.mul(s.grad, s.lr)) if s.flag("use_nesterov") else accum
    return {"var": s.add(s.var, step), "accum": accum}


def _adam_rate(s: Step) -> Any:
    return s.div(s.mul(s.lr, s.op("Sqrt", s.sub(1.0, s.beta2_power))), s.sub(1.0, s.beta1_power))


@_optimizer("*var *m *v beta1_power beta2_power lr beta1 beta2 epsilon grad", "ApplyAdam")
def _adam(s: Step) -> dict[str, ir.Value]:
    m, v = s.mix(s.m, s.grad, s.beta1), s.mix(s.v, s.op("Square", s.grad), s.beta2)
    moved = s.mix(m, s.grad, s.beta1) if s.flag("use_nesterov") else m
    step = s.div(s.mul(moved, _adam_rate(s)), s.add(s.op("Sqrt", v), s.epsilon))
    return {"var": s.sub(s.var, step), "m": m, "v": v}


@_optimizer("*var *m *v *vhat beta1_power beta2_power lr beta1 beta2 epsilon grad", "ApplyAdamWithAmsgrad")
def _amsgrad(s: Step) -> dict[str, ir.Value]:
    m, v = s.mix(s.m, s.grad, s.beta1), s.mix(s.v, s.op("Square", s.grad), s.beta2)
    vhat = s.op("Maximum", s.vhat, v)
    step = s.div(s.mul(m, _adam_rate(s)), s.add(s.op("Sqrt", vhat), s.epsilon))
    return {"var": s.sub(s.var, step), "m": m, "v": v, "vhat": vhat}


@_optimizer("*var *m *v beta1_power lr beta1 beta2 epsilon grad", "ApplyAdaMax")
def _ada_max(s: Step) -> dict[str, ir.Value]:
    m = s.mix(s.m, s.grad, s.beta1)
    v = s.op("Maximum", s.mul(s.v, s.beta2), s.op("Abs", s.grad))
    rate = s.div(s.lr, s.sub(1.0, s.beta1_power))
    return {"var": s.sub(s.var, s.mul(s.div(m, s.add(v, s.epsilon)), rate)), "m": m, "v": v}


@_optimizer("*var *ms *mom lr rho momentum epsilon grad", "ApplyRMSProp")
def _rms_prop(s: Step) -> dict[str, ir.Value]:
    ms = s.mix(s.ms, s.op("Square", s.grad), s.rho)
    step = s.div(s.mul(s.grad, s.lr), s.op("Sqrt", s.add(ms, s.epsilon)))
    mom = s.add(s.mul(s.mom, s.momentum), step)
    return {"var": s.sub(s.var, mom), "ms": ms, "mom": mom}


@_optimizer("*var *mg *ms *mom lr rho momentum epsilon grad", "ApplyCenteredRMSProp")
def _centered_rms_prop(s: Step) -> dict[str, ir.Value]:
    ms, mg = s.mix(s.ms, s.op("Square", s.grad), s.rho), s.mix(s.mg, s.grad, s.rho)
    spread = s.add(s.sub(ms, s.op("Square", mg)), s.epsilon)
    mom = s.add(s.mul(s.mom, s.momentum), s.div(s.mul(s.grad, s.lr), s.op("Sqrt", spread)))
    return {"var": s.sub(s.var, mom), "mg": mg, "ms": ms, "mom": mom}


@_optimizer("*var *accum lr grad", "ApplyAdagrad")
def _adagrad(s: Step) -> dict[str, ir.Value]:
    accum = _grown(s)
    return {"var": s.sub(s.var, s.div(s.mul(s.grad, s.lr), s.op("Sqrt", accum))), "accum": accum}


@_optimizer("*var *accum lr epsilon grad", "ApplyAdagradV2")
def _adagrad_v2(s: Step) -> dict[str, ir.Value]:
    accum = _grown(s)
    step = s.div(s.mul(s.grad, s.lr), s.add(s.op("Sqrt", accum), s.epsilon))
    return {"var": s.sub(s.var, step), "accum": accum}


def _grown(s: Step) -> Any:
    keep = s.context.attr("update_slots", True)
    return s.add(s.accum, s.op("Square", s.grad)) if keep else s.accum


@_optimizer("*var *accum *accum_update lr rho epsilon grad", "ApplyAdadelta")
def _adadelta(s: Step) -> dict[str, ir.Value]:
    accum = s.mix(s.accum, s.op("Square", s.grad), s.rho)
    size = s.op("Sqrt", s.div(s.add(s.accum_update, s.epsilon), s.add(accum, s.epsilon)))
    update = s.mul(size, s.grad)
    changed = s.mix(s.accum_update, s.op("Square", update), s.rho)
    return {"var": s.sub(s.var, s.mul(update, s.lr)), "accum": accum, "accum_update": changed}


# -- steps that pull values to zero ------------------------------------------------------------------------------


def _shrunk(s: Step, value: Any, by: Any) -> Any:
    """A value moved towards zero by an amount, not beyond it."""
    size = s.op("Maximum", s.sub(s.op("Abs", value), by), 0.0)
    return s.mul(s.op("Sign", value), size)


def _proximal(s: Step, moved: Any, rate: Any) -> Any:
    return s.div(_shrunk(s, moved, s.mul(rate, s.l1)), s.add(s.mul(rate, s.l2), 1.0))


@_optimizer("*var alpha l1 l2 grad", "ApplyProximalGradientDescent")
def _proximal_descent(s: Step) -> dict[str, ir.Value]:
    return {"var": _proximal(s, s.sub(s.var, s.mul(s.grad, s.alpha)), s.alpha)}


@_optimizer("*var *accum lr l1 l2 grad", "ApplyProximalAdagrad")
def _proximal_adagrad(s: Step) -> dict[str, ir.Value]:
    accum = s.add(s.accum, s.op("Square", s.grad))
    rate = s.mul(s.op("Rsqrt", accum), s.lr)
    return {"var": _proximal(s, s.sub(s.var, s.mul(s.grad, rate)), rate), "accum": accum}


@_optimizer("*var *sums *squares grad lr l1 l2 global_step", "ApplyAdagradDA")
def _adagrad_da(s: Step) -> dict[str, ir.Value]:
    sums, squares = s.add(s.sums, s.grad), s.add(s.squares, s.op("Square", s.grad))
    steps = s.context.builder.op("Cast", s.global_step, to=desc_of(s.var).dtype)
    pulled = s.mul(_shrunk(s, sums, s.mul(s.l1, steps)), s.op("Neg", s.lr))
    weight = s.add(s.mul(s.mul(s.l2, steps), s.lr), s.op("Sqrt", squares))
    return {"var": s.div(pulled, weight), "sums": sums, "squares": squares}


@_optimizer("*var *accum *linear grad lr l1 l2 lr_power", "ApplyFtrl")
def _ftrl(s: Step) -> dict[str, ir.Value]:
    return _followed(s, s.grad)


@_optimizer("*var *accum *linear grad lr l1 l2 l2_shrinkage lr_power", "ApplyFtrlV2")
def _ftrl_v2(s: Step) -> dict[str, ir.Value]:
    return _followed(s, s.add(s.grad, s.mul(s.mul(s.var, s.l2_shrinkage), 2.0)))


def _followed(s: Step, gradient: Any) -> dict[str, ir.Value]:
    """Follow the regularised leader."""
    if s.flag("multiply_linear_by_lr"):
        raise Unsupported("the linear term is multiplied by the learning rate", "leave that flag off")
    accum = s.add(s.accum, s.op("Square", s.grad))
    power = s.op("Neg", s.lr_power)
    new, old = s.op("Pow", accum, power), s.op("Pow", s.accum, power)
    linear = s.sub(s.add(s.linear, gradient), s.mul(s.div(s.sub(new, old), s.lr), s.var))
    curve = s.add(s.div(new, s.lr), s.mul(s.l2, 2.0))
    return {"var": s.op("Neg", s.div(_shrunk(s, linear, s.l1), curve)), "accum": accum, "linear": linear}


def _agreement(s: Step, m: Any) -> Any:
    return s.mul(s.mul(s.op("Sign", s.grad), s.op("Sign", m)), s.sign_decay)


@_optimizer("*var *m lr alpha sign_decay beta grad", "ApplyAddSign")
def _add_sign(s: Step) -> dict[str, ir.Value]:
    m = s.mix(s.m, s.grad, s.beta)
    step = s.mul(s.mul(s.add(_agreement(s, m), s.alpha), s.grad), s.lr)
    return {"var": s.sub(s.var, step), "m": m}


@_optimizer("*var *m lr logbase sign_decay beta grad", "ApplyPowerSign")
def _power_sign(s: Step) -> dict[str, ir.Value]:
    m = s.mix(s.m, s.grad, s.beta)
    size = s.op("Exp", s.mul(_agreement(s, m), s.logbase))
    return {"var": s.sub(s.var, s.mul(s.mul(size, s.grad), s.lr)), "m": m}


# -- steps for some rows of a table ------------------------------------------------------------------------------


def _of_rows(formula: Formula) -> Formula:
    """The same step for the rows that `indices` names, the others left as they are."""

    def convert(s: Step) -> dict[str, ir.Value]:
        b = s.context.builder
        count = desc_of(s.indices).size
        spots = b.op("Cast", b.op("Reshape", s.indices, shape=(count, 1)), to="int64")
        tables = {n: v for n, v in s.operands.items() if n in s.variables}
        rows = {n: b.op("Gather", v, s.indices, axis=0) for n, v in tables.items()}
        made = formula(replace(s, operands={**s.operands, **rows}))
        return {n: b.op("ScatterNd", tables[n], spots, v) for n, v in made.items()}

    return convert


# Operands in order, and the step of whole tables that each row takes.
_SPARSE: dict[str, tuple[str, Formula]] = {
    "SparseApplyAdagrad": ("*var *accum lr grad indices", _adagrad),
    "SparseApplyAdagradV2": ("*var *accum lr epsilon grad indices", _adagrad_v2),
    "SparseApplyMomentum": ("*var *accum lr grad indices momentum", _momentum),
    "SparseApplyKerasMomentum": ("*var *accum lr grad indices momentum", _keras_momentum),
    "SparseApplyRMSProp": ("*var *ms *mom lr rho momentum epsilon grad indices", _rms_prop),
    "SparseApplyCenteredRMSProp": (
        "*var *mg *ms *mom lr rho momentum epsilon grad indices",
        _centered_rms_prop,
    ),
    "SparseApplyAdadelta": ("*var *accum *accum_update lr rho epsilon grad indices", _adadelta),
    "SparseApplyFtrl": ("*var *accum *linear grad indices lr l1 l2 lr_power", _ftrl),
    "SparseApplyFtrlV2": ("*var *accum *linear grad indices lr l1 l2 l2_shrinkage lr_power", _ftrl_v2),
    "SparseApplyProximalGradientDescent": ("*var alpha l1 l2 grad indices", _proximal_descent),
    "SparseApplyProximalAdagrad": ("*var *accum lr l1 l2 grad indices", _proximal_adagrad),
    "SparseApplyAdagradDA": ("*var *sums *squares grad indices lr l1 l2 global_step", _adagrad_da),
}
for _name, (_operands, _formula) in _SPARSE.items():
    _optimizer(_operands, _name)(_of_rows(_formula))

# By operator: the operands' names in order.
SPARSE_OPERANDS: dict[str, list[str]] = {
    f"{prefix}{name}": [word.lstrip("*") for word in operands.split()]
    for name, (operands, _) in _SPARSE.items()
    for prefix in ("Resource", "")
}
