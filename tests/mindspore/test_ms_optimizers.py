"""MindSpore's optimizers: after some steps on the engine, parameters are those of MindSpore's own back end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore", reason="MindSpore has an environment of its own: make test-mindspore")

from mindspore import Tensor, nn  # noqa: E402

import mindspore_npu  # noqa: E402
from tests.mindspore import ms_networks  # noqa: E402

STEPS = 4
# MindSpore's CPU back end has neither Lamb (below) nor LARS, and ignores the momentum of Nesterov.
OPTIMIZERS: dict[str, Callable[[Any], nn.Optimizer]] = {
    "SGD": nn.SGD,
    "SGD with momentum": lambda p: nn.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9),
    "Adam": nn.Adam,
    "Adam with AMSGrad": lambda p: nn.Adam(p, use_amsgrad=True),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, weight_decay=0.01),
    "AdaMax": nn.AdaMax,
    "AdaFactor": nn.AdaFactor,
    "AdaFactor with momentum": lambda p: nn.AdaFactor(
        p, 1e-3, scale_parameter=False, relative_step=False, beta1=0.9, weight_decay=0.01
    ),
    "Adagrad": nn.Adagrad,
    "Adadelta": nn.Adadelta,
    "ASGD": nn.ASGD,
    "FTRL": nn.FTRL,
    "LazyAdam": nn.LazyAdam,
    "AdamOffload": nn.AdamOffload,
    "ProximalAdagrad": nn.ProximalAdagrad,
    "RMSProp": nn.RMSProp,
    "RMSProp centered": lambda p: nn.RMSProp(p, centered=True),
    "Rprop": nn.Rprop,
}


def trained(make: Callable[[Any], nn.Optimizer], backend: str) -> list[np.ndarray]:
    ms.set_seed(0)
    random = np.random.RandomState(0)
    net = nn.Dense(6, 4, weight_init=Tensor(random.randn(4, 6).astype(np.float32)))
    step = ms.jit(ms_networks.training(net, nn.MSELoss(), make), backend=backend)
    x, target = (Tensor(random.randn(5, size).astype(np.float32)) for size in (6, 4))
    losses = [step(x, target).asnumpy() for _ in range(STEPS)]
    return [*losses, *(p.asnumpy() for p in net.trainable_params())]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_an_optimizer_moves_parameters_as_on_mindspore(name: str) -> None:
    wanted = trained(OPTIMIZERS[name], "ms_backend")
    mindspore_npu.reset_counts()
    found = trained(OPTIMIZERS[name], "npu")
    assert mindspore_npu.counts().fallbacks == 0, mindspore_npu.fallbacks()[0].reason
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_lamb_scales_the_direction_of_adam_by_the_ratio_of_norms() -> None:
    rate, beta1, beta2, epsilon, decay = 0.05, 0.9, 0.999, 1e-6, 0.01
    random = np.random.RandomState(0)
    weight, x = random.randn(4, 6).astype(np.float32), random.randn(5, 6).astype(np.float32)
    net = nn.Dense(6, 4, weight_init=Tensor(weight), has_bias=False)

    def make(parameters: Any) -> nn.Optimizer:
        return nn.Lamb(parameters, rate, beta1, beta2, epsilon, decay)

    step = ms.jit(ms_networks.training(net, nn.MSELoss(), make), backend="npu")
    mindspore_npu.reset_counts()
    m = v = 0.0
    for t in range(1, STEPS + 1):
        step(Tensor(x), ms.ops.zeros((5, 4)))
        gradient = 2 * (x @ weight.T).T @ x / 20
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        update = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + decay * weight
        weight = weight - rate * np.linalg.norm(weight) / np.linalg.norm(update) * update
        np.testing.assert_allclose(net.weight.asnumpy(), weight, rtol=1e-4, atol=1e-5)
    assert mindspore_npu.counts().fallbacks == 0
