"""The training steps of `benchmarks.cuda_training` in JAX, from the same weights: one compiled, donating function.

Products and convolutions are in bfloat16, normalisations, losses, weights and state in float32, as under autocast.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.cuda_training import Subject

__all__ = ["jax_step"]

Values = dict[str, Any]


def _linear(p: Values, name: str, x: Any) -> Any:
    import jax.numpy as jnp

    narrow = jnp.bfloat16
    return x.astype(narrow) @ p[f"{name}.weight"].astype(narrow).T + p[f"{name}.bias"].astype(narrow)


def _layer_norm(p: Values, name: str, x: Any, epsilon: float) -> Any:
    import jax
    import jax.numpy as jnp

    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)
    return normal * p[f"{name}.weight"] + p[f"{name}.bias"]


def _block(p: Values, name: str, x: Any, block: Any) -> Any:
    import jax

    heads = block.attention.heads
    epsilon = block.mlp_norm.eps
    tanh = block.gelu.approximate == "tanh"

    def attention(y: Any) -> Any:
        batch, length, width = y.shape
        q, k, v = (
            _linear(p, f"{name}.attention.{n}", y).reshape(batch, length, heads, width // heads)
            for n in ("query", "key", "value")
        )
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=block.attention.causal)
        return _linear(p, f"{name}.attention.output", mixed.reshape(batch, length, width))

    def mlp(y: Any) -> Any:
        return _linear(p, f"{name}.down", jax.nn.gelu(_linear(p, f"{name}.up", y), approximate=tanh))

    if block.pre_norm:
        x = x + attention(_layer_norm(p, f"{name}.attention_norm", x, epsilon))
        return x + mlp(_layer_norm(p, f"{name}.mlp_norm", x, epsilon))
    x = _layer_norm(p, f"{name}.attention_norm", x + attention(x), epsilon)
    return _layer_norm(p, f"{name}.mlp_norm", x + mlp(x), epsilon)


def _transformer(module: Any) -> Callable[..., Any]:
    def forward(p: Values, ids: Any) -> Any:
        x = p["tokens.weight"][ids] + p["positions"]
        if "segment" in p:
            x = _layer_norm(p, "norm", x + p["segment"], module.norm.eps)
        for n, block in enumerate(module.blocks):
            x = _block(p, f"blocks.{n}", x, block)
        return _linear(p, "head", _layer_norm(p, "norm", x, module.norm.eps)) if "head.weight" in p else x

    return forward


def _conv_norm(p: Values, name: str, x: Any, conv: Any, moved: Values) -> Any:
    """Channels last; the running statistics go into `moved`."""
    import jax
    import jax.numpy as jnp

    weight = p[f"{name}.conv.weight"].astype(jnp.bfloat16)
    x = jax.lax.conv_general_dilated(
        x.astype(jnp.bfloat16),
        weight,
        conv.stride,
        [(n, n) for n in conv.padding],
        dimension_numbers=("NHWC", "OIHW", "NHWC"),
    )
    wide = x.astype(jnp.float32)
    mean, count = wide.mean((0, 1, 2)), wide.size / wide.shape[-1]
    variance = jnp.square(wide - mean).mean((0, 1, 2))
    moved[f"{name}.norm.running_mean"] = mean
    moved[f"{name}.norm.running_var"] = variance * (count / (count - 1))
    factor = jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.norm.weight"]
    return (wide * factor + (p[f"{name}.norm.bias"] - mean * factor)).astype(jnp.bfloat16)


def _resnet(module: Any) -> Callable[..., Any]:
    def forward(p: Values, image: Any, moved: Values) -> Any:
        import jax
        import jax.numpy as jnp

        def unit(name: str, x: Any, part: Any) -> Any:
            return _conv_norm(p, name, x, part.conv, moved)

        x = jax.nn.relu(unit("stem", image.transpose(0, 2, 3, 1), module.stem))
        x = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)]
        )
        for n, block in enumerate(module.blocks):
            name = f"blocks.{n}"
            residual = x if block.shortcut is None else unit(f"{name}.shortcut", x, block.shortcut)
            y = jax.nn.relu(unit(f"{name}.reduce", x, block.reduce))
            y = jax.nn.relu(unit(f"{name}.spatial", y, block.spatial))
            x = jax.nn.relu(unit(f"{name}.expand", y, block.expand) + residual)
        return _linear(p, "head", x.astype(jnp.float32).mean((1, 2)))

    return forward


def jax_step(subject: Subject) -> tuple[Callable[[int], float], float]:
    """A function that runs so many steps and gives the seconds of one, and the loss of the first step."""
    import jax
    import jax.numpy as jnp

    from benchmarks.cuda_training import ADAM_RATE, BETAS, DECAY, EPSILON, MOMENTUM, RATE

    weights = {n: jnp.asarray(w.detach().numpy()) for n, w in subject.module.named_parameters()}
    statistics = {
        n: jnp.asarray(b.numpy())
        for n, b in subject.module.named_buffers()
        if n.rpartition(".")[2].startswith("running")
    }
    inputs = [jnp.asarray(x.numpy()) for x in subject.inputs]
    target = jnp.asarray(subject.target.numpy())
    images = inputs[0].ndim == 4
    forward = (_resnet if images else _transformer)(subject.module)

    def loss(p: Values, given: Any, wanted: Any) -> tuple[Any, Values]:
        moved: Values = {}
        y = (forward(p, given, moved) if images else forward(p, given)).astype(jnp.float32)
        if not subject.classified:
            return jnp.square(y - wanted).mean(), moved
        scores = jax.nn.log_softmax(y.reshape(-1, y.shape[-1]))
        return -jnp.take_along_axis(scores, wanted.reshape(-1, 1), 1).mean(), moved

    def step(state: Any, given: Any, wanted: Any) -> tuple[Any, Any]:
        p, slots, old, count = state
        (value, moved), g = jax.value_and_grad(loss, has_aux=True)(p, given, wanted)
        new = {n: 0.9 * old[n] + 0.1 * moved[n] for n in old}
        count = count + 1
        if not subject.adam:
            slots = {n: slots[n] * MOMENTUM + g[n] for n in p}
            return ({n: p[n] - RATE * slots[n] for n in p}, slots, new, count), value
        m = {n: slots[0][n] * BETAS[0] + g[n] * (1 - BETAS[0]) for n in p}
        v = {n: slots[1][n] * BETAS[1] + g[n] * g[n] * (1 - BETAS[1]) for n in p}
        first, second = (1 - b**count for b in BETAS)
        updates = {n: (m[n] / first) / (jnp.sqrt(v[n] / second) + EPSILON) for n in p}
        p = {n: p[n] * (1 - ADAM_RATE * DECAY) - ADAM_RATE * updates[n] for n in p}
        return (p, (m, v), new, count), value

    zeros = {n: jnp.zeros_like(w) for n, w in weights.items()}
    slots = (zeros, {n: jnp.zeros_like(w) for n, w in weights.items()}) if subject.adam else zeros
    state = (weights, slots, statistics, jnp.zeros((), jnp.float32))
    compiled = jax.jit(step, donate_argnums=0)
    state, value = compiled(state, inputs[0], target)
    first_loss = float(np.asarray(value))

    def run(count: int) -> float:
        nonlocal state, value
        value.block_until_ready()
        began = time.perf_counter()
        for _ in range(count):
            state, value = compiled(state, inputs[0], target)
        value.block_until_ready()
        return (time.perf_counter() - began) / count

    return run, first_loss
