"""Order: gradients do not wait in memory for the updates that use them."""

from __future__ import annotations

from typing import Any

import numpy as np

import ge.build.form_units
from ge.compiler import compile_graph
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret

SIZE, LAYERS = 96, 8


def step(layers: int = LAYERS) -> Any:
    """A training step as frameworks write it: forwards, all gradients, then all updates, the first variable first."""
    b = GraphBuilder("step")
    weights = [b.input(f"w{i}", (SIZE, SIZE), "float32") for i in range(layers)]
    x = b.input("x", (SIZE // 4, SIZE), "float32")
    kept = []
    for w in weights:
        kept.append(x)
        x = b.op("Tanh", b.op("MatMul", x, w))
    slope = x
    gradients = []
    for w, given in zip(reversed(weights), reversed(kept), strict=True):
        gradients.append(b.op("MatMul", b.op("Transpose", given, perm=(1, 0)), slope))
        slope = b.op("MatMul", slope, b.op("Transpose", w, perm=(1, 0)))
    for w, gradient in zip(weights, reversed(gradients), strict=True):
        b.output(b.op("Sub", w, b.op("Mul", b.op("Sign", gradient), 0.01)), f"new{w.name}")
    return b.graph


def model(early: bool, monkeypatch: Any) -> Any:
    pairs = [(i, i) for i in range(LAYERS)]
    if not early:
        monkeypatch.setattr(ge.build.form_units, "updates_early", lambda graph, units, *_: units)
    return compile_graph(step(), donated=pairs)


def test_gradients_are_used_as_they_come(monkeypatch: Any) -> None:
    early, late = model(True, monkeypatch), model(False, monkeypatch)
    weight = 4 * SIZE * SIZE
    assert late.plan.arena_bytes >= LAYERS * weight
    assert early.plan.arena_bytes < late.plan.arena_bytes - (LAYERS - 3) * weight
    assert len(early.plan.tasks) == len(late.plan.tasks)
    assert early.plan.report["donated_copies"] == 0


def test_the_values_are_right_step_after_step(monkeypatch: Any) -> None:
    made, graph = model(True, monkeypatch), step()
    random = np.random.default_rng(0)
    state = [(random.standard_normal(p.desc.shape) / 10).astype(np.float32) for p in made.inputs]
    wanted = [a.copy() for a in state]
    for _ in range(3):
        wanted[:LAYERS] = interpret(graph, wanted)
        places = [a.ctypes.data for a in state]
        made.program.run_pointers(places, places[:LAYERS])
        for found, right in zip(state, wanted, strict=True):
            assert np.mean(np.abs(found - right) > 1e-5) < 1e-3  # signs of gradients near zero
