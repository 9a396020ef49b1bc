"""The steps of an LSTM layer in training as an operator: task and loop give what PyTorch gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ge.compiler import compile_graph
from ge.errors import GeError
from ge.model.model import Model
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.target import host
from tests.support.small_graphs import assert_close, feeds_of, graph_of, kinds
from torchair.plan import Program

STEPS, BATCH = 11, 3
# Units and element type: the first two are tasks.
CASES = [(32, "float32"), (32, "bfloat16"), (20, "float32"), (16, "float64"), (16, "float16")]
TOLERANCE = {"float32": 2e-5, "float64": 1e-10, "bfloat16": 4e-2, "float16": 8e-3}


def _needs_kernels(dtype: str) -> None:
    if ("avx2" if dtype == "float32" else "avx512_bf16") not in host().features:
        pytest.skip("this machine has no kernels for it")


def _wide(dtype: str) -> str:
    return "float32" if dtype in ("bfloat16", "float16") else dtype


def _both(b: GraphBuilder, units: int, dtype: str, reverse: bool) -> tuple[Any, ...]:
    """Results of the steps, then gradients for given ones of all results."""
    gates = b.input("gates", (STEPS, BATCH, 4 * units), _wide(dtype))
    r = b.op("Mul", b.input("r", (4 * units, units), dtype), 0.1)
    states = [b.input(name, (BATCH, units), dtype) for name in ("h", "c")]
    slopes = [b.input("dy", (STEPS, BATCH, units), dtype)]
    slopes += [b.input(name, (BATCH, units), dtype) for name in ("dh", "dc")]
    y, kept, h, c = b.ops("LSTMSteps", [gates, r, *states], reverse=reverse)
    return y, h, c, *b.ops("LSTMStepsGrad", [kept, r, *slopes], reverse=reverse)


def _of_pytorch(feeds: list[np.ndarray], reverse: bool) -> list[np.ndarray]:
    gates, r, h, c, *slopes = (torch.from_numpy(f.astype(np.float64)) for f in feeds)
    layer = torch.nn.LSTM(gates.shape[2], h.shape[1], bias=False).double()
    layer.weight_ih_l0.data, layer.weight_hh_l0.data = torch.eye(gates.shape[2]).double(), r * 0.1
    leaves = [t.requires_grad_() for t in (gates, h, c)]
    y, (last, memory) = layer(gates.flip(0) if reverse else gates, (h[None], c[None]))
    results = [y.flip(0) if reverse else y, last[0], memory[0]]
    return [t.detach().numpy() for t in (*results, *torch.autograd.grad(results, leaves, slopes))]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Model]]:
    """The models that torch.compile loads, recurrent layers being traced."""
    found: list[Model] = []
    made = Program.__init__

    def noted(self: Program, form: Any, model: Model, *rest: Any) -> None:
        found.append(model)
        made(self, form, model, *rest)

    monkeypatch.setattr(Program, "__init__", noted)
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch._dynamo.config.patch(allow_rnn=True):
        yield found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("units", "dtype"), CASES)
def test_task_and_loop_are_pytorchs(units: int, dtype: str, reverse: bool) -> None:
    graph = graph_of(lambda b: _both(b, units, dtype, reverse))
    feeds = feeds_of(graph)
    got = compile_graph(graph, CompileOptions(), "test").run(feeds)
    expected = _of_pytorch(feeds, reverse)
    assert_close(got, [e.astype(g.dtype) for e, g in zip(expected, got, strict=True)], TOLERANCE[dtype])


@pytest.mark.parametrize(("units", "dtype"), CASES[:2])
def test_steps_are_one_task_each(units: int, dtype: str) -> None:
    _needs_kernels(dtype)
    model = compile_graph(graph_of(lambda b: _both(b, units, dtype, True)), CompileOptions(), "test")
    found = kinds(model)
    assert found.count("lstm_steps") == found.count("lstm_steps_grad") == 1 and "while" not in found


def test_layers_of_training_steps_are_such_tasks(models: list[Model]) -> None:
    _needs_kernels("float32")
    layer = torch.nn.LSTM(6, 16, 2, bidirectional=True)
    torch.compile(layer, backend="npu", fullgraph=True)(torch.randn(9, 3, 6))[0].sum().backward()
    found = [kinds(m) for m in models]
    assert [f.count("lstm_steps") for f in found] == [4, 0]
    assert [f.count("lstm_steps_grad") for f in found] == [0, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_of_small_batches_has_a_kernel_of_its_own(dtype: torch.dtype, models: list[Model]) -> None:
    _needs_kernels(str(dtype).removeprefix("torch."))
    layer = torch.nn.LSTM(6, 16, 2).eval().to(dtype)
    with torch.no_grad():
        torch.compile(layer, backend="npu", fullgraph=True)(torch.randn(9, 3, 6, dtype=dtype))
    tasks = [t["impl"] for m in models for t in m.program.task_info() if t["kind"] == "rnn"]
    assert [t.partition(":")[0] for t in tasks] == ["small_batch"] * 2


def test_what_does_not_go_together_is_refused() -> None:
    def steps(
        b: GraphBuilder, width: int = 64, r: Any = (64, 16), h: Any = (3, 16), dtype: str = "float32"
    ) -> Any:
        gates, weights = b.input("gates", (5, 3, width), dtype), b.input("r", r, "float32")
        return b.ops("LSTMSteps", [gates, weights, b.input("h", h, "float32"), b.input("c", h, "float32")])

    def back(b: GraphBuilder, width: int = 80, dy: Any = (5, 3, 16)) -> Any:
        kept, r = b.input("kept", (5, 3, width), "float32"), b.input("r", (64, 16), "float32")
        return b.ops("LSTMStepsGrad", [kept, r, b.input("dy", dy, "float32")])

    assert len(graph_of(steps).outputs) == 4 and len(graph_of(back).outputs) == 3
    for wrong in ({"width": 60}, {"r": (60, 16)}, {"r": (64,)}, {"h": (3, 15)}, {"dtype": "float64"}):
        with pytest.raises(GeError, match="LSTMSteps"):
            graph_of(lambda b, wrong=wrong: steps(b, **wrong))
    for wrong in ({"width": 64}, {"dy": (5, 3, 15)}):
        with pytest.raises(GeError, match="LSTMStepsGrad"):
            graph_of(lambda b, wrong=wrong: back(b, **wrong))
