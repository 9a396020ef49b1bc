"""Optimizers by the names of the device's own interface; PyTorch's where it has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

__all__ = [
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedOptimizerBase",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
]


class NpuFusedOptimizerBase:
    """Clips the gradients of an optimizer's parameters."""

    param_groups: list[dict[str, Any]]

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """The norm of all gradients, which are scaled to at most `max_norm`."""
        return clip_grad_norm_(self._parameters(), max_norm, norm_type)

    def _parameters(self) -> Iterable[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


class NpuFusedAdam(NpuFusedOptimizerBase, torch.optim.Adam):
    """Adam."""


class NpuFusedAdamW(NpuFusedOptimizerBase, torch.optim.AdamW):
    """AdamW."""


class NpuFusedSGD(NpuFusedOptimizerBase, torch.optim.SGD):
    """Stochastic gradient descent with momentum."""


class NpuFusedAdadelta(NpuFusedOptimizerBase, torch.optim.Adadelta):
    """Adadelta."""


class NpuFusedRMSprop(NpuFusedOptimizerBase, torch.optim.RMSprop):
    """RMSprop."""


class _Rule(NpuFusedOptimizerBase, torch.optim.Optimizer):
    """An optimizer that changes each parameter by `update`; its state begins as `start` says."""

    start: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # noqa: RUF012  never changed
        "exp_avg": torch.zeros_like,
        "exp_avg_sq": torch.zeros_like,
    }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change all parameters that have gradients; returns the closure's result."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update({name: make(p) for name, make in self.start.items()}, step=0)
                state["step"] += 1
                self.update(p, p.grad, group, state)
        return loss

    def update(self, p: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], state: Any) -> None:
        """Change one parameter."""
        raise NotImplementedError


def _moments(
    state: Any, gradient: torch.Tensor, first: float, second: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The running means of gradients and of their squares, updated."""
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    mean.mul_(first).add_(gradient, alpha=1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    return mean, square


class NpuFusedLamb(_Rule):
    """LAMB: Adam's steps, for each layer scaled by the norm of its weights over that of its step."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adam: bool = False,
        use_global_grad_norm: bool = False,
    ) -> None:
        if use_global_grad_norm:
            raise NotImplementedError(
                "NpuFusedLamb: use_global_grad_norm is not supported; clip_grad_norm_fused_ is"
            )
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adam": adam}
        )

    def update(self, p: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], state: Any) -> None:
        mean, square = _moments(state, gradient, *group["betas"])
        step = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * p
        weight, length = p.norm().clamp(0, 10), step.norm()
        trust = torch.where((weight == 0) | (length == 0), 1.0, weight / length)
        p.sub_((group["lr"] if group["adam"] else group["lr"] * trust) * step)


class NpuFusedAdamP(_Rule):
    """AdamP: of Adam's steps, the part along scale-invariant weights is left out."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        nesterov: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "delta": delta, "wd_ratio": wd_ratio, "nesterov": nesterov})

    def update(self, p: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], state: Any) -> None:
        first, second = group["betas"]
        mean, square = _moments(state, gradient, first, second)
        corrections = 1 - first ** state["step"], 1 - second ** state["step"]
        ahead = first * mean + (1 - first) * gradient if group["nesterov"] else mean
        step = ahead / (square.sqrt() / math.sqrt(corrections[1]) + group["eps"])
        decay = 1.0
        if p.dim() > 1:
            step, decay = _across(p, gradient, step, group)
        if group["weight_decay"] > 0:
            p.mul_(1 - group["lr"] * group["weight_decay"] * decay)
        p.sub_(step, alpha=group["lr"] / corrections[0])


def _across(
    p: torch.Tensor, gradient: torch.Tensor, step: torch.Tensor, group: dict[str, Any]
) -> tuple[torch.Tensor, float]:
    """A step without its part along the weights, of channels or of the layer, whose gradients stand across them."""
    for rows in (p.shape[0], 1):
        weights, gradients = p.reshape(rows, -1), gradient.reshape(rows, -1)
        cosine = functional.cosine_similarity(gradients, weights, dim=1, eps=group["eps"]).abs().max()
        if cosine < group["delta"] / math.sqrt(weights.shape[1]):
            unit = weights / (weights.norm(dim=1, keepdim=True) + group["eps"])
            flat = step.reshape(rows, -1)
            return (flat - unit * (unit * flat).sum(1, keepdim=True)).view_as(p), group["wd_ratio"]
    return step, 1.0


class NpuFusedBertAdam(_Rule):
    """BERT's Adam: without bias corrections, with a schedule of learning rates."""

    def __init__(
        self,
        params: Any,
        lr: float,
        warmup: float = -1,
        t_total: int = -1,
        schedule: str = "warmup_linear",
        b1: float = 0.9,
        b2: float = 0.99,
        e: float = 1e-6,
        weight_decay: float = 0.01,
        max_grad_norm: float = -1,
    ) -> None:
        if schedule not in _SCHEDULES:
            raise ValueError(f"NpuFusedBertAdam: schedule={schedule!r}, one of {[*_SCHEDULES]} is expected")
        rates = {"lr": lr, "warmup": warmup, "t_total": t_total, "schedule": schedule}
        moments = {"b1": b1, "b2": b2, "e": e}
        super().__init__(
            params, {**rates, **moments, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        )

    def update(self, p: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], state: Any) -> None:
        if group["max_grad_norm"] > 0:
            clip_grad_norm_(p, group["max_grad_norm"])
        mean, square = _moments(state, gradient, group["b1"], group["b2"])
        step = mean / (square.sqrt() + group["e"]) + group["weight_decay"] * p
        rate = group["lr"]
        if group["t_total"] != -1:
            rate *= _SCHEDULES[group["schedule"]]((state["step"] - 1) / group["t_total"], group["warmup"])
        p.sub_(step, alpha=rate)


_SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "warmup_linear": lambda x, warmup: x / warmup if x < warmup else max((x - 1) / (warmup - 1), 0.0),
    "warmup_constant": lambda x, warmup: x / warmup if x < warmup else 1.0,
    "warmup_cosine": lambda x, warmup: x / warmup if x < warmup else 0.5 * (1 + math.cos(math.pi * x)),
}


class NpuFusedRMSpropTF(_Rule):
    """RMSprop as TensorFlow has it: mean squares begin at one, epsilon is inside the root."""

    start = {"square_avg": torch.ones_like, "momentum_buffer": torch.zeros_like}  # noqa: RUF012  never changed

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.9,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        decoupled_decay: bool = False,
        lr_in_momentum: bool = True,
    ) -> None:
        if centered:
            raise NotImplementedError("NpuFusedRMSpropTF: centered is not supported; use NpuFusedRMSprop")
        rates = {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum, "lr_in_momentum": lr_in_momentum}
        super().__init__(params, {**rates, "weight_decay": weight_decay, "decoupled_decay": decoupled_decay})

    def update(self, p: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any], state: Any) -> None:
        if group["decoupled_decay"]:
            p.mul_(1 - group["weight_decay"])
        elif group["weight_decay"]:
            gradient = gradient + group["weight_decay"] * p
        square, buffer, rate = state["square_avg"], state["momentum_buffer"], group["lr"]
        square.add_(gradient.square() - square, alpha=1 - group["alpha"])
        step = gradient / (square + group["eps"]).sqrt()
        if group["momentum"] > 0:
            inside = rate if group["lr_in_momentum"] else 1.0
            step = buffer.mul_(group["momentum"]).add_(step, alpha=inside)
            rate = 1.0 if group["lr_in_momentum"] else rate
        p.sub_(step, alpha=rate)
