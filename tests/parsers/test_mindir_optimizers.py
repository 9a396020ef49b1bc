"""MindSpore's optimizers: a step gives the parameters and moments that its formula says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ge.ops.interpret import interpret
from ge.parsers.mindir.parser import parse_model
from tests.support.mindir_models import MindirModel

Values = dict[str, np.ndarray]
SCALARS = {
    "lr": 0.1,
    "alpha": 0.1,
    "momentum": 0.9,
    "rho": 0.8,
    "epsilon": 1e-3,
    "l1": 0.02,
    "l2": 0.3,
    "beta1": 0.9,
    "beta2": 0.99,
    "beta1_power": 0.81,
    "beta2_power": 0.98,
    "beta": 0.7,
    "lr_power": -0.5,
    "sign_decay": 0.6,
    "logbase": 1.5,
}


def _mix(old: np.ndarray, new: np.ndarray, share: np.ndarray) -> np.ndarray:
    return old * share + new * (1 - share)


def _adam(o: Values) -> Values:
    m, v = _mix(o["m"], o["grad"], o["beta1"]), _mix(o["v"], o["grad"] ** 2, o["beta2"])
    rate = o["lr"] * np.sqrt(1 - o["beta2_power"]) / (1 - o["beta1_power"])
    new = {"m": m, "v": v}
    if "vhat" in o:
        new["vhat"] = v = np.maximum(o["vhat"], v)
    return {"var": o["var"] - rate * m / (np.sqrt(v) + o["epsilon"]), **new}


def _ada_max(o: Values) -> Values:
    m, v = _mix(o["m"], o["grad"], o["beta1"]), np.maximum(o["v"] * o["beta2"], np.abs(o["grad"]))
    return {"var": o["var"] - o["lr"] / (1 - o["beta1_power"]) * m / (v + o["epsilon"]), "m": m, "v": v}


def _momentum(o: Values) -> Values:
    accum = o["accum"] * o["momentum"] + o["grad"] * 0.5  # the scale of the gradient
    return {"var": o["var"] - o["lr"] * accum, "accum": accum}


def _adagrad(o: Values) -> Values:
    accum = o["accum"] + o["grad"] ** 2
    return {"var": o["var"] - o["lr"] * o["grad"] / np.sqrt(accum), "accum": accum}


def _adadelta(o: Values) -> Values:
    accum = _mix(o["accum"], o["grad"] ** 2, o["rho"])
    update = np.sqrt((o["accum_update"] + o["epsilon"]) / (accum + o["epsilon"])) * o["grad"]
    moved = _mix(o["accum_update"], update**2, o["rho"])
    return {"var": o["var"] - o["lr"] * update, "accum": accum, "accum_update": moved}


def _rms_prop(o: Values) -> Values:
    ms, mg = _mix(o["ms"], o["grad"] ** 2, o["rho"]), _mix(o.get("mg", o["ms"]), o["grad"], o["rho"])
    spread = ms - mg**2 if "mg" in o else ms
    mom = o["mom"] * o["momentum"] + o["lr"] * o["grad"] / np.sqrt(spread + o["epsilon"])
    return {"var": o["var"] - mom, **({"mg": mg} if "mg" in o else {}), "ms": ms, "mom": mom}


def _shrunk(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


def _ftrl(o: Values) -> Values:
    accum = o["accum"] + o["grad"] ** 2
    linear = o["linear"] + o["grad"] - (np.sqrt(accum) - np.sqrt(o["accum"])) / o["lr"] * o["var"]
    var = -_shrunk(linear, o["l1"]) / (np.sqrt(accum) / o["lr"] + 2 * o["l2"])
    return {"var": var, "accum": accum, "linear": linear}


def _proximal(o: Values) -> Values:
    new = {"accum": o["accum"] + o["grad"] ** 2} if "accum" in o else {}
    rate = o["lr"] / np.sqrt(new["accum"]) if new else o["alpha"]
    return {"var": _shrunk(o["var"] - rate * o["grad"], rate * o["l1"]) / (1 + rate * o["l2"]), **new}


def _sign(o: Values) -> Values:
    m = _mix(o["m"], o["grad"], o["beta"])
    agree = np.sign(o["grad"]) * np.sign(m) * o["sign_decay"]
    factor = np.exp(o["logbase"] * agree) if "logbase" in o else o["alpha"] + agree
    return {"var": o["var"] - o["lr"] * factor * o["grad"], "m": m}


_ADAM = "beta1_power beta2_power lr beta1 beta2 epsilon grad"
STEPS: dict[str, tuple[str, Callable[[Values], Values]]] = {
    "ApplyGradientDescent": ("*var alpha grad", lambda o: {"var": o["var"] - o["alpha"] * o["grad"]}),
    "ApplyMomentum": ("*var *accum lr grad momentum", _momentum),
    "Adam": (f"*var *m *v {_ADAM}", _adam),
    "ApplyAdamWithAmsgradV2": (f"*var *m *v *vhat {_ADAM}", _adam),
    "ApplyAdaMax": ("*var *m *v beta1_power lr beta1 beta2 epsilon grad", _ada_max),
    "ApplyAdagrad": ("*var *accum lr grad", _adagrad),
    "ApplyAdagradV2": ("*var *accum lr grad", _adagrad),
    "ApplyAdadelta": ("*var *accum *accum_update lr rho epsilon grad", _adadelta),
    "ApplyRMSProp": ("*var *ms *mom lr grad rho momentum epsilon", _rms_prop),
    "ApplyCenteredRMSProp": ("*var *mg *ms *mom grad lr rho momentum epsilon", _rms_prop),
    "ApplyFtrl": ("*var *accum *linear grad lr l1 l2 lr_power", _ftrl),
    "ApplyProximalAdagrad": ("*var *accum lr l1 l2 grad", _proximal),
    "ApplyProximalGradientDescent": ("*var alpha l1 l2 grad", _proximal),
    "ApplyAddSign": ("*var *m lr alpha sign_decay beta grad", _sign),
    "ApplyPowerSign": ("*var *m lr logbase sign_decay beta grad", _sign),
}


def _operand(name: str, random: np.random.Generator) -> np.ndarray:
    if name in SCALARS:
        return np.asarray(SCALARS[name], np.float32)
    value = random.standard_normal((3, 4)).astype(np.float32)
    return value if name in ("var", "grad", "m", "mom", "linear") else np.abs(value) + (name != "mg")


@pytest.mark.parametrize("name", list(STEPS))
def test_a_step_moves_parameters_by_its_formula(name: str) -> None:
    signature, formula = STEPS[name]
    random = np.random.default_rng(3)
    words = signature.split()
    values = {word.lstrip("*"): _operand(word.lstrip("*"), random) for word in words}
    model = MindirModel()
    g = model.main
    inputs: list[Any] = []
    for word in words:
        plain = word.lstrip("*")
        array = values[plain]
        made = g.parameter(plain, array, False) if word != plain else g.input(plain, array.shape)
        inputs.append(made)
    written = [word[1:] for word in words if word.startswith("*")]
    one = ((3, 4), "float32")
    settings = {"gradient_scale": 0.5} if name == "ApplyMomentum" else {}
    u = g.constant("umonad")
    done = g.op(name, *inputs, u, form=one if len(written) == 1 else [one] * len(written), **settings)
    after = g.op("UpdateState", u, done)
    g.output(g.op("Depend", inputs[words.index("grad")], after, form=one))
    parsed = parse_model(model.bytes(), state=True)
    found = interpret(parsed.graph, [values[n] for n in (*parsed.inputs, *parsed.parameters)])
    wanted = formula({key: value.astype(np.float64) for key, value in values.items()})
    assert set(parsed.updates) == set(written) == set(wanted)
    for key, new in zip(parsed.updates, found[-len(written) :], strict=True):
        np.testing.assert_allclose(new, wanted[key], rtol=2e-5, atol=2e-6, err_msg=key)
