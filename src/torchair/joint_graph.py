"""Split the joint graph of AOT Autograd into forward and backward graphs, by PyTorch's min-cut partitioner."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import fx
from torch._functorch import config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import detect_fake_mode

from torchair.pooling import find_maxima_again

__all__ = ["split_joint_graph"]

_PLAIN = (int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
_KEEPS_STATE = "run_and_save_rng_state"
_RESTORE_STATE = {"run_with_rng_state": 1, "graphsafe_run_with_rng_state": 0}  # and where the operator stands


def split_joint_graph(
    joint_module: fx.GraphModule, joint_inputs: Any, **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The forward and the backward graph; cheap values that both need are recomputed instead of saved.

    PyTorch's own merging of equal calls copies the graph and loads all of inductor; here it is done in place.
    """
    find_maxima_again(joint_module.graph)
    if any(_has_effects(node) for node in joint_module.graph.nodes):
        graphs = min_cut_rematerialization_partition(joint_module, joint_inputs, **options)
    else:
        _merge_equal_calls(joint_module.graph)
        with config.patch(cse=False):
            graphs = min_cut_rematerialization_partition(joint_module, joint_inputs, **options)
    for module in graphs:
        _describe_repeated_draws(module.graph.nodes)
    return graphs


def _describe_repeated_draws(nodes: Iterable[fx.Node]) -> None:
    """Note what the calls give by which a checkpoint draws its random numbers twice; PyTorch notes nothing."""
    mode = detect_fake_mode()
    for node in nodes:
        name = node.target.name() if isinstance(node.target, torch._ops.HigherOrderOperator) else ""
        if name == _KEEPS_STATE:
            elements = {user.args[1]: user.meta["val"] for user in node.users}
            node.meta["val"] = (elements.get(0), elements.get(1))
        elif name in _RESTORE_STATE and mode is not None:
            known: Any = fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
            (call, *given), named = known[0][_RESTORE_STATE[name] :], known[1]
            with mode, torch.no_grad():
                node.meta["val"] = call(*given, **{k: v for k, v in named.items() if k != "rng_state"})


def _has_effects(node: fx.Node) -> bool:
    """Whether a call may change what others read; such graphs are left to PyTorch."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable


def _merge_equal_calls(graph: fx.Graph) -> None:
    """Calls of one operator with the same arguments become one; those in the memory of a result stay apart."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    results = {_storage(n) for n in output.all_input_nodes}
    seen: dict[Hashable, fx.Node] = {}
    for node in list(graph.nodes):
        key = _key(node)
        if key is None or (_storage(node) in results and _storage(node) is not None):
            continue
        twin = seen.setdefault(key, node)
        if twin is not node:
            node.replace_all_uses_with(twin)
            graph.erase_node(node)


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:
        return None


def _key(node: fx.Node) -> Hashable | None:
    """What tells a call from others; None for calls that are each their own."""
    target = node.target
    if node.op != "call_function" or target is torch.ops.aten.empty.memory_format:
        return None
    if isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags:
        return None
    try:
        return target, _plain(node.args), tuple((k, _plain(v)) for k, v in sorted(node.kwargs.items()))
    except TypeError:
        return None


def _plain(value: Any) -> Hashable:
    """An argument as part of a key: 1 and 1.0 and True are different."""
    if isinstance(value, fx.Node):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_plain(v) for v in value)
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    raise TypeError(f"an argument of type {type(value).__name__} has no key")
