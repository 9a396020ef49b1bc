"""A network of PyTorch in JAX: the operators of its exported graph one by one, compiled by XLA as one function.

Matrix layouts and fusion are XLA's own choice. Operators that no network of `benchmarks.cuda` has are not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["jax_lstm", "jax_network"]


def _type(dtype: Any) -> Any:
    import jax.numpy as jnp

    return jnp.dtype(str(dtype).removeprefix("torch."))


def _convolution(
    x: Any,
    w: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    _: Any,
    groups: int,
) -> Any:
    import jax

    assert not transposed, "no network here has one"
    y = jax.lax.conv_general_dilated(
        x,
        w,
        tuple(stride),
        [(n, n) for n in padding],
        rhs_dilation=tuple(dilation),
        feature_group_count=groups,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
    )
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, _: float, epsilon: float) -> Any:
    import jax
    import jax.numpy as jnp

    factor = jax.lax.rsqrt(variance.astype(jnp.float32) + epsilon) * weight
    shift = bias - mean * factor
    wide = [n.reshape(1, -1, 1, 1) for n in (factor, shift)]
    return ((x * wide[0] + wide[1]).astype(x.dtype),)


def _layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, epsilon: float) -> Any:
    import jax
    import jax.numpy as jnp

    wide, axes = x.astype(jnp.float32), tuple(range(-len(shape), 0))
    centred = wide - wide.mean(axes, keepdims=True)
    normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + epsilon)
    return ((normal * weight + bias).astype(x.dtype),)


def _max_pool(x: Any, window: Sequence[int], stride: Sequence[int], padding: Sequence[int] = (0, 0)) -> Any:
    import jax
    import jax.numpy as jnp

    borders = [(0, 0), (0, 0), *((n, n) for n in padding)]
    pooled = jax.lax.reduce_window(
        x, jnp.asarray(-jnp.inf, x.dtype), jax.lax.max, (1, 1, *window), (1, 1, *stride), borders
    )
    return (pooled,)


def _attention(q: Any, k: Any, v: Any, mask: Any = None, *rest: Any, **named: Any) -> Any:
    import jax

    assert mask is None, "no network here has one"
    causal = bool(rest[1] if len(rest) > 1 else named.get("is_causal", False))
    q, k, v = (n.swapaxes(1, 2) for n in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal, scale=named.get("scale")).swapaxes(1, 2)


def _slice(x: Any, axis: int = 0, begin: int | None = None, end: int | None = None, step: int = 1) -> Any:
    at: list[slice] = [slice(None)] * x.ndim
    at[axis] = slice(begin, end, step)
    return x[tuple(at)]


def _split(x: Any, sizes: int | Sequence[int], axis: int = 0) -> Any:
    import jax.numpy as jnp

    every = range(sizes, x.shape[axis], sizes) if isinstance(sizes, int) else np.cumsum(sizes)[:-1]
    return jnp.split(x, list(every), axis)


def _sum_and_product(bias: Any, a: Any, b: Any) -> Any:
    return bias + a @ b


def _mean(x: Any, axes: Sequence[int], keepdim: bool = False) -> Any:
    import jax.numpy as jnp

    return x.astype(jnp.float32).mean(tuple(axes), keepdims=keepdim).astype(x.dtype)


def _softmax(x: Any, axis: int, *_: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jax.nn.softmax(x.astype(jnp.float32), axis).astype(x.dtype)


def _expand(x: Any, shape: Sequence[int]) -> Any:
    import jax.numpy as jnp

    given = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [g if n == -1 else n for n, g in zip(shape, given, strict=True)])


def operators() -> dict[str, Callable[..., Any]]:
    """JAX's functions by the names of ATen's operators."""
    import jax
    import jax.numpy as jnp

    def copied(x: Any, dtype: Any = None, **_: Any) -> Any:
        return x if dtype is None else x.astype(_type(dtype))

    return {
        "convolution": _convolution,
        "_native_batch_norm_legit_no_training": _batch_norm,
        "native_layer_norm": _layer_norm,
        "max_pool2d_with_indices": _max_pool,
        "scaled_dot_product_attention": _attention,
        "slice": _slice,
        "split": _split,
        "split_with_sizes": _split,
        "addmm": _sum_and_product,
        "mean": _mean,
        "_softmax": _softmax,
        "expand": _expand,
        "_to_copy": copied,
        "clone": lambda x, **_: x,
        "dropout": lambda x, *_: x,
        "_assert_tensor_metadata": lambda *_, **__: None,
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "neg": lambda x: -x,
        "mm": lambda a, b: a @ b,
        "bmm": lambda a, b: a @ b,
        "relu": jax.nn.relu,
        "hardtanh": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
        "clamp": jnp.clip,
        "sigmoid": jax.nn.sigmoid,
        "silu": jax.nn.silu,
        "tanh": jnp.tanh,
        "gelu": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
        "pow": lambda x, n: x**n,
        "eq": lambda a, b: a == b,
        "logical_not": jnp.logical_not,
        "any": lambda x, axis=None, keepdim=False: jnp.any(x, axis, keepdims=keepdim),
        "where": jnp.where,
        "rsqrt": jax.lax.rsqrt,
        "view": lambda x, shape: x.reshape(shape),
        "_unsafe_view": lambda x, shape: x.reshape(shape),
        "reshape": lambda x, shape: x.reshape(shape),
        "permute": lambda x, order: x.transpose(order),
        "transpose": lambda x, a, b: x.swapaxes(a, b),
        "unsqueeze": jnp.expand_dims,
        "squeeze": lambda x, axes: x.squeeze(tuple(axes) if isinstance(axes, list | tuple) else axes),
        "select": lambda x, axis, at: jnp.take(x, at, axis),
        "cat": lambda parts, axis=0: jnp.concatenate(parts, axis),
        "stack": lambda parts, axis=0: jnp.stack(parts, axis),
        "embedding": lambda table, at, *_: table[at],
        "zeros_like": lambda x, **_: jnp.zeros_like(x),
        "full": lambda shape, value, dtype=None, **_: jnp.full(shape, value, _type(dtype)),
        "full_like": lambda x, value, **_: jnp.full_like(x, value),
    }


def jax_lstm(model: Any, feeds: Sequence[Any]) -> tuple[Callable[[], Any], float]:
    """The LSTM layers of `benchmarks.cuda` as loops of JAX, whose compiler takes minutes for them written out."""
    import jax
    import jax.numpy as jnp

    def put(x: Any) -> Any:
        return jax.device_put(x.detach().cpu().numpy())

    def layer(x: Any, weights: dict[str, Any]) -> Any:
        def step(state: Any, given: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(given + h @ weights["over"].T, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        inputs = x @ weights["into"].T + weights["bias"]
        zero = jnp.zeros((x.shape[0], weights["over"].shape[1]), x.dtype)
        return jax.lax.scan(step, (zero, zero), inputs.swapaxes(0, 1))[1].swapaxes(0, 1)

    def network(weights: Sequence[dict[str, Any]], x: Any) -> Any:
        for each in weights:
            x = layer(x, each)
        return x

    began = time.perf_counter()
    weights = [
        {"into": put(into.weight), "bias": put(into.bias), "over": put(over.weight)}
        for into, over in zip(model.x, model.h, strict=True)
    ]
    given = put(feeds[0])
    fast = jax.jit(network)
    jax.block_until_ready(fast(weights, given))
    return lambda: fast(weights, given), time.perf_counter() - began


def jax_network(model: Any, feeds: Sequence[Any]) -> tuple[Callable[[], Any], float]:
    """A function that runs a network in evaluation mode on its inputs, and the seconds to the first result."""
    import jax
    import torch

    with torch.no_grad():
        exported = torch.export.export(model, tuple(feeds)).run_decompositions()
    table = operators()
    graph, signature = exported.graph_module.graph, exported.graph_signature
    state = {**exported.state_dict, **exported.constants}
    held = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }

    def network(weights: dict[str, Any], given: Sequence[Any]) -> Any:
        values: dict[Any, Any] = {}
        rest = iter(given)
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = weights[node.name] if node.name in held else next(rest)
            elif node.op == "output":
                return torch.fx.map_arg(node.args[0], values.__getitem__)
            else:
                args, named = (torch.fx.map_arg(n, values.__getitem__) for n in (node.args, node.kwargs))
                known = getattr(node.target, "__name__", "")
                if known == "getitem":
                    values[node] = args[0][args[1]]
                    continue
                values[node] = table[node.target._schema.name.partition("::")[2]](*args, **named)
        raise AssertionError("a graph has an output")

    def put(x: Any) -> Any:
        return jax.device_put(x.detach().cpu().numpy())

    began = time.perf_counter()
    weights = {name: put(state[target]) for name, target in held.items()}
    given = [put(x) for x in feeds]
    fast = jax.jit(network)
    jax.block_until_ready(fast(weights, given))
    return lambda: fast(weights, given), time.perf_counter() - began
