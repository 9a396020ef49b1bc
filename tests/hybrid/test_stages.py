"""Stages: every rule of `ge.hybrid.stages` on random graphs."""

from __future__ import annotations

import random

import pytest

from ge.hybrid import Groups, assign_levels, assign_stages, follow, in_order


def random_graph(seed: int) -> tuple[list[int], dict[int, list[int]], dict[int, int], int]:
    """Nodes in a runnable order, what each waits for, their sides, and how many sides there are."""
    rng = random.Random(seed)
    count, sides = rng.randrange(1, 40), rng.choice((2, 2, 3))
    before = {n: rng.sample(range(n), min(n, rng.randrange(4))) for n in range(count)}
    return list(range(count)), before, {n: rng.randrange(sides) for n in range(count)}, sides


SEEDS = pytest.mark.parametrize("seed", range(50))


@SEEDS
def test_stages_follow_dependencies_and_sides(seed: int) -> None:
    nodes, before, side, sides = random_graph(seed)
    stages = assign_stages(nodes, before.__getitem__, side.__getitem__, sides)
    assert list(stages) == nodes
    for node in nodes:
        assert stages[node] % sides == side[node]
        assert all(stages[other] <= stages[node] for other in before[node])


@SEEDS
def test_parts_of_one_side_form_an_acyclic_graph(seed: int) -> None:
    nodes, before, side, sides = random_graph(seed)
    stages = assign_stages(nodes, before.__getitem__, side.__getitem__, sides)
    crossings = {(stages[o], stages[n]) for n in nodes for o in before[n] if stages[o] != stages[n]}
    assert all(first < second for first, second in crossings)


@SEEDS
def test_no_node_could_be_earlier(seed: int) -> None:
    nodes, before, side, sides = random_graph(seed)
    stages = assign_stages(nodes, before.__getitem__, side.__getitem__, sides)
    for node in nodes:
        forced = max((stages[other] for other in before[node]), default=0)
        assert stages[node] - sides < forced or stages[node] < sides


@SEEDS
def test_nodes_of_a_lone_side_have_a_stage_each_and_floors_hold(seed: int) -> None:
    nodes, before, side, sides = random_graph(seed)
    floor = dict.fromkeys(nodes[::3], 5)
    lone = sides - 1
    stages = assign_stages(nodes, before.__getitem__, side.__getitem__, sides, floor=floor, alone=lone)
    own = [stages[n] for n in nodes if side[n] == lone]
    assert len(own) == len(set(own))
    assert all(stages[node] >= 5 for node in floor)
    assert all(stages[other] <= stages[node] for node in nodes for other in before[node])


@SEEDS
def test_the_order_puts_dependencies_first_and_names_every_node_once(seed: int) -> None:
    nodes, before, _, _ = random_graph(seed)
    shuffled = random.Random(seed).sample(nodes, len(nodes))
    order = in_order(shuffled, before.__getitem__)
    assert sorted(order) == nodes
    place = {node: index for index, node in enumerate(order)}
    assert all(place[other] < place[node] for node in nodes for other in before[node])


def test_a_cycle_has_an_order_too() -> None:
    assert sorted(in_order([0, 1], lambda n: [1 - n])) == [0, 1]


def test_groups_are_joined_and_followed() -> None:
    groups = Groups[str]()
    groups.join("a", "b")
    groups.join("c", "b")
    groups.join("x", "y")
    assert sorted(tuple(sorted(group)) for group in groups.joined()) == [("a", "b", "c"), ("x", "y")]
    assert sorted(map(sorted, groups.members("abz").values())) == [["a", "b"], ["z"]]
    reasons = {"b": "it writes text"}
    follow([("a", "b", "c"), ("x", "y")], reasons, "it belongs to a loop with")
    assert reasons.keys() == {"a", "b", "c"}
    assert reasons["c"] == "it belongs to a loop with b: it writes text"


@SEEDS
def test_groups_that_wait_for_one_another_become_one(seed: int) -> None:
    nodes, before, _, _ = random_graph(seed)
    rng = random.Random(seed)
    groups = Groups[int]()
    for _ in range(3):
        groups.join(rng.choice(nodes), rng.choice(nodes))
    groups.join_cycles(nodes, before.__getitem__)
    waits = {
        n: {groups.find(o) for m in nodes if groups.find(m) == n for o in before[m]} - {n} for n in nodes
    }
    order = in_order({groups.find(n) for n in nodes}, waits.__getitem__)
    place = {node: index for index, node in enumerate(order)}
    assert all(place[other] < place[node] for node in order for other in waits[node])


def test_what_no_cycle_needs_stays_apart() -> None:
    groups = Groups[str]()
    groups.join("b", "d")
    before = {"a": "", "b": "a", "c": "b", "d": "c", "e": "d"}
    groups.join_cycles("abcde", before.__getitem__)
    assert sorted("".join(sorted(g)) for g in groups.members("abcde").values()) == ["a", "bcd", "e"]


def test_sides_that_run_at_the_same_time_wait_for_each_other_between_levels() -> None:
    before = {"b0": ["a0"], "sum0": ["b0", "a1"], "sum1": ["b0", "a1"], "end0": ["sum0", "sum1"]}
    levels = assign_levels(
        ["a0", "a1", "b0", "sum0", "sum1", "end0"], lambda n: before.get(n, []), lambda n: int(n[-1])
    )
    assert levels == {"a0": 0, "b0": 0, "a1": 0, "sum0": 1, "sum1": 1, "end0": 2}
