"""Ensembles of decision trees: one task that takes every row down all trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ge.ir.types import TensorDesc
from ge.ir.values import constant_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.ml.scores import DOMAIN, classified, real_rows, transformed
from ge.ops.plugins import Node, Results, Unsupported, plugin

BRANCH, MISSING_PASSES, EQUALITY = (
    1 << 28,
    1 << 29,
    1 << 30,
)  # flags beside a node's feature, as the kernel has them
FEATURE = BRANCH - 1
INT32, FLOAT32 = frozenset({"int32"}), frozenset({"float32"})


@register
class TreeEnsemble(Operator):
    """The weights of the leaves that a row reaches, one in each tree, aggregated by target.

    A node is (threshold, feature and flags, child, first weight). A row whose feature is at most the threshold (or
    equal to it: EQUALITY) goes to the child, any other row to the node after that; NaN goes to the child with
    MISSING_PASSES. A leaf lacks BRANCH and is its own child. The last node only says where the weights end.
    """

    x = Input("", FLOAT32)
    nodes = Input("", INT32)
    roots = Input("", INT32)
    depths = Input("", INT32)
    targets = Input("", INT32)
    weights = Input("", FLOAT32)
    y = Output()
    width = Attr(int)
    aggregate = Attr(str, "sum", choices=("sum", "min", "max"))
    plain = Attr(bool, False)  # all tests are "at most", and NaN fails them
    single = Attr(bool, False)  # every leaf has one weight, which is its threshold, and there is one target
    aicpu = "tree_ensemble"

    @staticmethod
    def verify(op: NodeView) -> None:
        arrays = [constant_of(v) for v in op.values[1:6]]
        if any(a is None for a in arrays):
            raise fail(op, "its trees must be constants")
        nodes, roots, depths, targets, weights = (np.asarray(a) for a in arrays)
        x = op.inputs[0]
        assert x is not None
        if x.rank != 2 or nodes.ndim != 2 or nodes.shape[1:] != (4,):
            raise fail(op, f"takes rows of features and nodes of four numbers, got {x} and {op.inputs[1]}")
        count = len(nodes) - 1
        _, flags, child, leaf = nodes.T
        branch = (flags & BRANCH) != 0
        inside = bool((child[:count] >= 0).all() and (child[:count] + branch[:count] < count).all())
        inside &= bool(((flags & FEATURE) < x.shape[1]).all() or not count)
        inside &= bool((roots >= 0).all() and (roots < count).all() and len(depths) == len(roots))
        inside &= bool(
            (np.diff(leaf) >= 0).all() and leaf[0] >= 0 and leaf[-1] <= len(weights) == len(targets)
        )
        if not inside or bool((targets < 0).any() or (targets >= op.width).any()):
            raise fail(op, "a node, feature, weight or target is out of range")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        x = op.inputs[0]
        assert x is not None
        return TensorDesc((x.shape[0], op.width), "float32")

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, nodes, roots, depths, targets, weights = (np.asarray(a) for a in arrays)
        thresholds, flags, child, leaf = nodes[:, 0].copy().view(np.float32), *nodes[:, 1:].T
        start = {"sum": 0.0, "min": np.inf, "max": -np.inf}[op.aggregate]
        y = np.full((len(x), op.width), start)
        for root, depth in zip(roots, depths, strict=True):
            at = np.full(len(x), root)
            for _ in range(depth):
                value = x[np.arange(len(x)), flags[at] & FEATURE]
                passes = np.where(flags[at] & EQUALITY, value == thresholds[at], value <= thresholds[at])
                passes = np.where(np.isnan(value), (flags[at] & MISSING_PASSES) != 0, passes)
                at = child[at] + (~passes & ((flags[at] & BRANCH) != 0))
            for row, node in enumerate(at):
                for i in range(leaf[node], leaf[node + 1]):
                    join = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op.aggregate]
                    y[row, targets[i]] = join(y[row, targets[i]], weights[i])
        return [y.astype(np.float32)]


# -- ONNX --------------------------------------------------------------------------------------------------


@dataclass
class _Branch:
    """A node as ONNX describes it."""

    feature: int
    value: float
    mode: str
    missing: bool  # NaN takes the true branch
    true: int = -1
    false: int = -1
    copy_of: int | None = None  # the node whose test and children it has


@dataclass
class _Forest:
    """Nodes in the order of the kernel: the children of a node are neighbours, the one that is taken first."""

    rows: list[tuple[np.int32, int, int, int]] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    plain: bool = True
    single: bool = True


def _bits(value: float) -> np.int32:
    return np.float32(value).view(np.int32)


def _tested(node: _Branch) -> tuple[float, int, bool]:
    """Threshold, flags, and whether the children change places: every test becomes "at most" or "equal"."""
    value = np.float32(node.value)
    below = float(np.nextafter(value, np.float32(-np.inf)))
    # Mode: threshold, equality, children swapped. x >= t is not x < t, and x < t is x <= the number before t.
    modes = {
        "BRANCH_LEQ": (float(value), 0, False),
        "BRANCH_LT": (below, 0, False),
        "BRANCH_GTE": (below, 0, True),
        "BRANCH_GT": (float(value), 0, True),
        "BRANCH_EQ": (float(value), EQUALITY, False),
        "BRANCH_NEQ": (float(value), EQUALITY, True),
    }
    if node.mode not in modes:
        raise Unsupported(f"nodes of mode {node.mode}", f"use one of {', '.join(modes)}")
    threshold, flags, swapped = modes[node.mode]
    # NaN fails a comparison: it takes the false branch unless it is tracked to the true one.
    takes_true = node.missing or node.mode == "BRANCH_NEQ"
    passes = takes_true != swapped
    return threshold, flags | BRANCH | (MISSING_PASSES if passes else 0), swapped


def _add_tree(
    forest: _Forest, nodes: dict[int, _Branch], root: int, leaves: dict[int, list[tuple[int, float]]]
) -> None:
    """Lay a tree out level by level."""
    start = len(forest.rows)
    forest.roots.append(start)
    forest.depths.append(_parted(nodes, root))
    level = [root]
    order: list[int] = []
    child: dict[int, int] = {}  # position of the first child by key of the branch
    while level:
        following: list[int] = []
        children_at = len(order) + len(level)
        for key in level:
            node = nodes[key]
            order.append(key)
            if node.mode == "LEAF" or node.copy_of is not None:
                continue
            swapped = _tested(node)[2]
            child[key] = children_at + len(following)
            following += [node.false, node.true] if swapped else [node.true, node.false]
        level = following
    for position, key in enumerate(order):
        node, first = nodes[key], len(forest.weights)
        if node.copy_of is not None:
            key = node.copy_of
        if key in child:
            threshold, flags, _ = _tested(node)
            forest.plain &= flags == BRANCH
            forest.rows.append((_bits(threshold), node.feature | flags, start + child[key], first))
            continue
        given = leaves.get(key, [])
        forest.single &= len(given) == 1
        forest.rows.append((_bits(given[0][1] if given else 0.0), 0, start + position, first))
        for target, weight in given:
            forest.targets.append(target)
            forest.weights.append(weight)


def _parted(nodes: dict[int, _Branch], root: int) -> int:
    """Give every node one parent, and return the number of tests on the longest way down.

    Where branches meet again (LightGBM's categories are chains of tests that share a child), all but one of them lead
    to copies of the node, which share what is below it.
    """
    heights: dict[int, int] = {}
    under_way: set[int] = set()
    placed = {root}
    stack = [(root, False)]
    while stack:
        key, below = stack.pop()
        if key not in nodes:
            raise Unsupported(f"a tree names node {key}, which it does not have", "check the model")
        node = nodes[key]
        node.copy_of = None  # it may be one in another tree
        children = () if node.mode == "LEAF" else (node.true, node.false)
        if below:
            under_way.discard(key)
            heights[key] = 1 + max((heights[c] for c in children), default=-1)
        elif key in under_way:
            raise Unsupported(f"a tree that leads back to its node {key}", "check the model")
        elif key not in heights:
            under_way.add(key)
            stack += [(key, True), *((c, False) for c in children if c not in heights)]
    shared: list[tuple[_Branch, str]] = []
    for node in [nodes[key] for key in heights if nodes[key].mode != "LEAF"]:
        for side in ("true", "false"):
            child = getattr(node, side)
            if child in placed:
                shared.append((node, side))
            placed.add(child)
    for copied, (node, side) in enumerate(shared, max(nodes) + 1 if shared else 0):
        child = getattr(node, side)
        nodes[copied] = replace(nodes[child], copy_of=child)
        setattr(node, side, copied)
    return heights[root]


def _expand_members(nodes: dict[int, _Branch], members: dict[int, list[float]]) -> None:
    """Write tests for a set of values as chains of tests for one value each, which share their child."""
    for key, values in members.items():
        node = nodes[key]
        for value in values[:-1]:
            rest = len(nodes)
            nodes[rest] = replace(node)
            node.value, node.mode, node.false = value, "BRANCH_EQ", rest
            node = nodes[rest]
        node.value, node.mode = values[-1] if values else np.nan, "BRANCH_EQ"


def _read(n: Node, prefix: str) -> tuple[_Forest, int]:
    """The trees of TreeEnsembleRegressor or TreeEnsembleClassifier, and how many targets they have."""

    def listed(name: str, default: Any = 0) -> list[Any]:
        tensor = n.attr(f"{name}_as_tensor")
        found = list(np.asarray(tensor).reshape(-1)) if tensor is not None else list(n.attr(name) or [])
        return found or [default] * len(n.attr("nodes_nodeids"))

    trees: dict[int, dict[int, _Branch]] = {}
    for tree, key, feature, value, mode, true, false, missing in zip(
        n.attr("nodes_treeids"), n.attr("nodes_nodeids"), listed("nodes_featureids"), listed("nodes_values", 0.0),
        n.attr("nodes_modes"), listed("nodes_truenodeids"), listed("nodes_falsenodeids"),
        listed("nodes_missing_value_tracks_true"), strict=True,
    ):  # fmt: skip
        trees.setdefault(tree, {})[key] = _Branch(
            int(feature), float(value), str(mode), bool(missing), true, false
        )
    leaves: dict[int, dict[int, list[tuple[int, float]]]] = {}
    ids = [int(i) for i in n.attr(f"{prefix}_ids")]
    for tree, key, target, weight in zip(
        n.attr(f"{prefix}_treeids"),
        n.attr(f"{prefix}_nodeids"),
        ids,
        listed(f"{prefix}_weights", 0.0),
        strict=True,
    ):
        leaves.setdefault(tree, {}).setdefault(key, []).append((target, float(weight)))
    forest = _Forest()
    for tree, nodes in trees.items():
        children = {c for node in nodes.values() if node.mode != "LEAF" for c in (node.true, node.false)}
        roots = [key for key in nodes if key not in children]
        if len(roots) != 1:
            raise Unsupported(f"tree {tree} has {len(roots)} roots", "check the model")
        _add_tree(forest, nodes, roots[0], leaves.get(tree, {}))
    return forest, max(ids, default=0) + 1


def _scores(n: Node, forest: _Forest, width: int, aggregate: str) -> Any:
    x = real_rows(n)
    end = (_bits(0.0), 0, len(forest.rows), len(forest.weights))
    nodes = np.asarray([*forest.rows, end], np.int32).reshape(-1, 4)
    lists = (forest.roots, forest.depths, forest.targets)
    constants = [n.builder.constant(a) for a in (nodes, *(np.asarray(v, np.int32) for v in lists))]
    weights = n.builder.constant(np.asarray(forest.weights, np.float32))
    kind = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}[aggregate]
    flags = {"plain": forest.plain, "single": forest.single and width == 1 and kind == "sum"}
    y = n.op("TreeEnsemble", x, *constants, weights, width=width, aggregate=kind, **flags)
    if (
        kind != "sum" and width > 1 and np.isfinite(forest.weights).all()
    ):  # of no weight at all, ONNX Runtime's extreme is zero
        y = n.op("Select", n.op("Equal", y, np.inf if kind == "min" else -np.inf), 0.0, y)
    return n.op("Mul", y, 1.0 / len(forest.roots)) if aggregate == "AVERAGE" else y


def _with_base(n: Node, y: Any) -> Any:
    base = n.attr("base_values_as_tensor")
    base = n.attr("base_values") if base is None else np.asarray(base).reshape(-1)
    if base is None or not len(base):
        return y
    return n.op("Add", y, n.builder.constant(np.asarray(base, np.float32)))


@plugin(onnx="TreeEnsembleRegressor", domain=DOMAIN)
def _regressor(n: Node) -> Results:
    forest, found = _read(n, "target")
    width = int(n.attr("n_targets", found))
    y = _scores(n, forest, width, str(n.attr("aggregate_function", "SUM")))
    return transformed(n, _with_base(n, y), str(n.attr("post_transform", "NONE")))


@plugin(onnx="TreeEnsembleClassifier", domain=DOMAIN)
def _classifier(n: Node) -> Results:
    forest, _ = _read(n, "class")
    count = len(n.attr("classlabels_int64s") or n.attr("classlabels_strings") or [])
    single = count == 2 and len(set(forest.targets)) <= 1  # one score for two classes
    if single:
        forest.targets = [0] * len(forest.targets)
    width = 1 if single else count
    y = _with_base(n, _scores(n, forest, width, "SUM"))
    positive = all(w >= 0 for w in forest.weights)
    return classified(n, y, count, positive)


_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _members(n: Node, nodes: dict[int, _Branch]) -> dict[int, list[float]]:
    """The set of values of every node that tests for one; a NaN ends each set in the file."""
    tests = [key for key, node in nodes.items() if node.mode == "BRANCH_MEMBER"]
    sets: list[list[float]] = [[]]
    given = n.attr("membership_values")
    for value in () if given is None else np.asarray(given).reshape(-1):
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(float(value))
    if not sets[-1]:
        sets.pop()
    if len(sets) != len(tests):
        raise Unsupported(
            f"{len(tests)} nodes test for a set of values, and {len(sets)} sets", "check the model"
        )
    return dict(zip(tests, sets, strict=True))


@plugin(onnx="TreeEnsemble", domain=DOMAIN)
def _tree_ensemble(n: Node) -> Results:
    """The newer form: nodes and leaves are two lists, and a branch says which of them it names."""
    splits = np.asarray(n.attr("nodes_splits")).reshape(-1)
    count = len(splits)

    def child(side: str, i: int) -> int:  # leaves come after the nodes
        return int(n.attr(f"nodes_{side}nodeids")[i]) + (count if n.attr(f"nodes_{side}leafs")[i] else 0)

    modes = np.asarray(n.attr("nodes_modes")).reshape(-1)
    missing = n.attr("nodes_missing_value_tracks_true") or [0] * count
    nodes = {
        i: _Branch(
            int(n.attr("nodes_featureids")[i]), float(splits[i]), _MODES[int(modes[i])], bool(missing[i]),
            child("true", i), child("false", i),
        )
        for i in range(count)
    }  # fmt: skip
    weights = np.asarray(n.attr("leaf_weights")).reshape(-1)
    leaves = {count + i: [(int(t), float(weights[i]))] for i, t in enumerate(n.attr("leaf_targetids"))}
    nodes.update({key: _Branch(0, 0.0, "LEAF", False) for key in leaves})
    _expand_members(nodes, _members(n, nodes))
    forest = _Forest()
    for root in n.attr("tree_roots"):
        _add_tree(forest, nodes, int(root), leaves)
    width = int(n.attr("n_targets", 1))
    y = _scores(n, forest, width, _AGGREGATES[int(n.attr("aggregate_function", 1))])
    y = transformed(n, y, _TRANSFORMS[int(n.attr("post_transform", 0))])
    return y if n.desc().dtype == "float32" else n.op("Cast", y, to=n.desc().dtype)
