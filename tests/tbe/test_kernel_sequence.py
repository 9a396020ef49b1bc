"""Whatever is more than one kernel is cut into several, which compute what the interpreter computes."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tbe
from tbe.dsl.running import Runner
from tests.tbe.running import compare
from tests.tbe.test_random_graphs import graphs

SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


def agrees(source: tbe.Tensor, outputs: list[tbe.Tensor]) -> None:
    rng = np.random.default_rng(7)
    data = rng.integers(-4, 5, source.shape).astype(tbe.numpy_dtype(source.dtype))
    results = Runner([source], outputs)(data)
    for t, got, expected in zip(outputs, results, tbe.evaluate(outputs, {source: data}), strict=True):
        compare(got, expected, t.dtype, 1e-5, 1e-3)


@settings(max_examples=80, **SETTINGS)
@given(graphs(), st.data())
def test_random_graphs_with_sums_along_every_axis(graph, data: st.DataObject) -> None:
    source, outputs = graph
    x = outputs[0]
    axis = data.draw(st.integers(0, len(x.shape) - 1)) if x.shape else None
    if axis is not None:
        less = x - tbe.reduce("max", x, axis, keepdims=True)
        outputs = [*outputs, tbe.reduce("min", less, tuple(range(len(x.shape)))), tbe.scan("sum", less, axis)]
    agrees(source, [*outputs, source])


@settings(max_examples=60, **SETTINGS)
@given(graphs())
def test_reductions_in_two_steps_whatever_their_size(graph) -> None:
    module = importlib.import_module("tbe.kernel_sequence")
    small = dataclasses.replace(tbe.Processor(), serial_elements=8)
    source, outputs = graph
    x = outputs[0]
    sums = [tbe.reduce(op, x, tuple(range(len(x.shape)))) for op in ("sum", "max", "prod")] if x.shape else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Processor", lambda: small)
        patch.setattr(module, "PIECES_PER_CORE", 3)
        if x.dtype.startswith("int"):
            agrees(source, [*outputs, *sums])
        else:
            agrees(source, [*outputs, *sums[1:2]])


def test_an_output_that_is_an_input_is_copied() -> None:
    x = tbe.placeholder((5,), "float32")
    agrees(x, [x])
    agrees(x, [x, x + 1.0, x])
