"""TensorFlow's optimizer steps (ResourceApplyAdam and the like): one node updates variables and slots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from ge.errors import GeError
from ge.ir.values import desc_of
from ge.ops.plugins import Unsupported
from ge.parsers import optimizer_steps as steps
from ge.parsers.tensorflow.convert import EFFECTS, Context, Outputs, handler
from ge.parsers.tensorflow.values import Variable

__all__ = ["SPARSE_OPERANDS"]


@dataclass(frozen=True)
class _Step(steps.Step):
    """A step in a context of the conversion."""

    context: Context
    operands: dict[str, Any]
    variables: dict[str, Variable] = field(default_factory=dict)  # those of the operands that are written

    def __getattr__(self, name: str) -> Any:
        return self.operands[name]

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.context.attr(name, default))

    def op(self, type_: str, *values: Any) -> Any:
        return self.context.builder.op(type_, *values)


def _declare(op: str, operands: str, formula: steps.Formula) -> None:
    """Declare an optimizer: operand names in order, "*" before those that are variables."""
    names = operands.split()

    def convert(c: Context) -> Outputs:
        return _converted(c, names, formula)

    every = [f"Resource{op}", op]
    handler(*every)(convert)
    EFFECTS.update(every)


def _converted(c: Context, names: list[str], formula: steps.Formula) -> Outputs:
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
    for name, value in formula(_Step(c, operands, variables)).items():
        c.converter.write(variables[name], value)
    first = variables["var"]
    return [first] if first.is_ref else []


def _keras_momentum(s: _Step) -> dict[str, ir.Value]:
    accum = s.sub(s.mul(s.accum, s.momentum), s.mul(s.grad, s.lr))
    step = s.sub(s.mul(accum, s.momentum), s.mul(s.grad, s.lr)) if s.flag("use_nesterov") else accum
    return {"var": s.add(s.var, step), "accum": accum}


def _adagrad_v2(s: _Step) -> dict[str, ir.Value]:
    return steps.adagrad(s, s.epsilon)


def _adagrad_da(s: _Step) -> dict[str, ir.Value]:
    sums, squares = s.add(s.sums, s.grad), s.add(s.squares, s.op("Square", s.grad))
    count = s.context.builder.op("Cast", s.global_step, to=desc_of(s.var).dtype)
    pulled = s.mul(s.shrunk(sums, s.mul(s.l1, count)), s.op("Neg", s.lr))
    weight = s.add(s.mul(s.mul(s.l2, count), s.lr), s.op("Sqrt", squares))
    return {"var": s.div(pulled, weight), "sums": sums, "squares": squares}


def _ftrl(s: _Step, gradient: Any = None) -> dict[str, ir.Value]:
    if s.flag("multiply_linear_by_lr"):
        raise Unsupported("the linear term is multiplied by the learning rate", "leave that flag off")
    return steps.ftrl(s, gradient)


def _ftrl_v2(s: _Step) -> dict[str, ir.Value]:
    return _ftrl(s, s.add(s.grad, s.mul(s.mul(s.var, s.l2_shrinkage), 2.0)))


_ADAM = "beta1_power beta2_power lr beta1 beta2 epsilon grad"
# Operands in order, and the step.
_STEPS: dict[str, tuple[str, steps.Formula]] = {
    "ApplyGradientDescent": ("*var alpha delta", steps.gradient_descent),
    "ApplyMomentum": ("*var *accum lr grad momentum", steps.momentum),
    "ApplyKerasMomentum": ("*var *accum lr grad momentum", _keras_momentum),
    "ApplyAdam": (f"*var *m *v {_ADAM}", steps.adam),
    "ApplyAdamWithAmsgrad": (f"*var *m *v *vhat {_ADAM}", steps.amsgrad),
    "ApplyAdaMax": ("*var *m *v beta1_power lr beta1 beta2 epsilon grad", steps.ada_max),
    "ApplyRMSProp": ("*var *ms *mom lr rho momentum epsilon grad", steps.rms_prop),
    "ApplyCenteredRMSProp": ("*var *mg *ms *mom lr rho momentum epsilon grad", steps.centered_rms_prop),
    "ApplyAdagrad": ("*var *accum lr grad", steps.adagrad),
    "ApplyAdagradV2": ("*var *accum lr epsilon grad", _adagrad_v2),
    "ApplyAdadelta": ("*var *accum *accum_update lr rho epsilon grad", steps.adadelta),
    "ApplyProximalGradientDescent": ("*var alpha l1 l2 grad", steps.proximal_descent),
    "ApplyProximalAdagrad": ("*var *accum lr l1 l2 grad", steps.proximal_adagrad),
    "ApplyAdagradDA": ("*var *sums *squares grad lr l1 l2 global_step", _adagrad_da),
    "ApplyFtrl": ("*var *accum *linear grad lr l1 l2 lr_power", _ftrl),
    "ApplyFtrlV2": ("*var *accum *linear grad lr l1 l2 l2_shrinkage lr_power", _ftrl_v2),
    "ApplyAddSign": ("*var *m lr alpha sign_decay beta grad", steps.add_sign),
    "ApplyPowerSign": ("*var *m lr logbase sign_decay beta grad", steps.power_sign),
}


# -- steps for some rows of a table ------------------------------------------------------------------------------


def _of_rows(formula: steps.Formula) -> steps.Formula:
    """The same step for the rows that `indices` names, the others left as they are."""

    def convert(s: _Step) -> dict[str, ir.Value]:
        b = s.context.builder
        count = desc_of(s.indices).size
        spots = b.op("Cast", b.op("Reshape", s.indices, shape=(count, 1)), to="int64")
        tables = {n: v for n, v in s.operands.items() if n in s.variables}
        rows = {n: b.op("Gather", v, s.indices, axis=0) for n, v in tables.items()}
        made = formula(replace(s, operands={**s.operands, **rows}))
        return {n: b.op("ScatterNd", tables[n], spots, v) for n, v in made.items()}

    return convert


# Operands in order; each row takes the step that whole tables take.
_SPARSE = {
    "SparseApplyAdagrad": "*var *accum lr grad indices",
    "SparseApplyAdagradV2": "*var *accum lr epsilon grad indices",
    "SparseApplyMomentum": "*var *accum lr grad indices momentum",
    "SparseApplyKerasMomentum": "*var *accum lr grad indices momentum",
    "SparseApplyRMSProp": "*var *ms *mom lr rho momentum epsilon grad indices",
    "SparseApplyCenteredRMSProp": "*var *mg *ms *mom lr rho momentum epsilon grad indices",
    "SparseApplyAdadelta": "*var *accum *accum_update lr rho epsilon grad indices",
    "SparseApplyFtrl": "*var *accum *linear grad indices lr l1 l2 lr_power",
    "SparseApplyFtrlV2": "*var *accum *linear grad indices lr l1 l2 l2_shrinkage lr_power",
    "SparseApplyProximalGradientDescent": "*var alpha l1 l2 grad indices",
    "SparseApplyProximalAdagrad": "*var *accum lr l1 l2 grad indices",
    "SparseApplyAdagradDA": "*var *sums *squares grad indices lr l1 l2 global_step",
}
for _name, (_operands, _formula) in _STEPS.items():
    _declare(_name, _operands, _formula)
for _name, _operands in _SPARSE.items():
    _declare(_name, _operands, _of_rows(_STEPS[_name.removeprefix("Sparse")][1]))

# By operator: the operands' names in order.
SPARSE_OPERANDS: dict[str, list[str]] = {
    f"{prefix}{name}": [word.lstrip("*") for word in operands.split()]
    for name, operands in _SPARSE.items()
    for prefix in ("Resource", "")
}
