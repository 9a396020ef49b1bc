"""Models that leave PyTorch as files, and language models that keep a cache of keys and values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ge
import torchair
from benchmarks.llm import Config, Llama, quantise
from ge.model.model import Model
from ge.plan import Plan
from tests.torch.torch_zoo import MODELS, RMSNorm, SwiGlu
from torchair.executable import observe


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["resnet", "bert"])
def test_exported_models_run_without_pytorch(name: str, tmp_path: Path) -> None:
    make, inputs = MODELS[name]
    model, args = make().eval(), inputs()
    path = torchair.dynamo_export(*args, model=model, export_path=str(tmp_path), export_name=name)
    assert path == tmp_path / f"{name}.air"
    (found,) = ge.compile(path).run([a.numpy() for a in args])
    with torch.no_grad():
        np.testing.assert_allclose(found, model(*args).numpy(), rtol=1e-3, atol=1e-4)


_WITHOUT_PYTORCH = """
import sys
sys.modules["torch"] = None  # importing it is an error
import numpy as np
import acl
model = acl.Model(sys.argv[1])
np.save(sys.argv[3], model(np.load(sys.argv[2])))
"""


def test_files_go_through_atc_to_a_process_without_pytorch(tmp_path: Path) -> None:
    make, inputs = MODELS["resnet"]
    model, (x,) = make().eval(), inputs()
    path = torchair.dynamo_export(x, model=model, export_path=str(tmp_path), export_name="resnet")
    words = [f"--model={path}", "--framework=1", f"--output={tmp_path}/resnet", "--soc_version=cpu"]
    np.save(tmp_path / "x.npy", x.numpy())
    for command in (
        ["-m", "ge.atc", *words],
        [
            "-c",
            _WITHOUT_PYTORCH,
            str(tmp_path / "resnet.om"),
            str(tmp_path / "x.npy"),
            str(tmp_path / "y.npy"),
        ],
    ):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    with torch.no_grad():
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model(x).numpy(), rtol=1e-3, atol=1e-4)


def test_what_only_aten_runs_is_not_exported(tmp_path: Path) -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x).abs()

    with pytest.raises(RuntimeError, match="_fft_r2c"):
        torchair.dynamo_export(torch.ones(8), model=Spectrum(), export_path=str(tmp_path))


class Rearranged(nn.Module):
    """Reads its arguments in another order, one of them not at all, and returns views, copies and arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, a: Any, b: Any, c: Any, unread: Any, *, d: Any) -> Any:
        y = self.layer(a).t()
        return {
            "c": c * 2,
            "y": (y, y.reshape(-1)),
            "b": b,
            "none": None,
            "same": y,
            "turned": d.permute(1, 0),
        }


def test_files_take_arguments_and_give_results_in_the_order_of_the_model(tmp_path: Path) -> None:
    model = Rearranged().eval()
    args = (torch.randn(2, 3), torch.randn(3), torch.arange(4), torch.randn(2))
    d = torch.randn(3, 5).t()
    path = torchair.dynamo_export(*args, model=model, export_path=str(tmp_path), d=d)
    found = ge.compile(path).run([t.numpy() for t in (*args, d)])
    with torch.no_grad():
        known = model(*args, d=d)
    expected = [known["c"], *known["y"], known["b"], known["same"], known["turned"]]
    for one, tensor in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, tensor.numpy(), rtol=1e-5, atol=1e-6)


def test_a_result_that_no_file_holds_is_refused(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x + 1, "two"

    with pytest.raises(Exception, match="the model returns str"):
        torchair.dynamo_export(torch.ones(2), model=Counting(), export_path=str(tmp_path))


def test_files_of_compiled_graphs_have_the_shapes_of_the_tensors(tmp_path: Path) -> None:
    config = torchair.CompilerConfig()
    config.export.export_mode = True
    config.export.export_path_dir, config.export.export_name = str(tmp_path), "turned"
    x = torch.randn(3, 2).t()
    compiled = torch.compile(
        lambda x: (x.exp().t(), x.sum(0)), backend=torchair.get_npu_backend(compiler_config=config)
    )
    expected = compiled(x)
    found = ge.compile(tmp_path / "turned.air").run([x.numpy()])
    for one, tensor in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, tensor.numpy(), rtol=1e-5, atol=1e-6)


class CachedAttention(nn.Module):
    """Attention over a cache of fixed size, written at given positions."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, heads, length, self.size))
        self.register_buffer("values", torch.zeros(1, heads, length, self.size))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, self.size)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        self.keys.index_copy_(2, places, k)
        self.values.index_copy_(2, places, v)
        seen = torch.arange(self.keys.shape[2]) <= places[:, None]
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        return self.out(y.transpose(1, 2).flatten(2))


class Decoder(nn.Module):
    """A small language model with a cache."""

    def __init__(self, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.attention = nn.ModuleList(CachedAttention(width, 4, length) for _ in range(2))
        self.layers = nn.ModuleList(SwiGlu(width, 64) for _ in range(2))
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(4))
        self.head = nn.Linear(width, 50, bias=False)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for index, (attention, layer) in enumerate(zip(self.attention, self.layers, strict=True)):
            x = x + attention(self.norms[2 * index](x), places)
            x = x + layer(self.norms[2 * index + 1](x))
        return self.head(x[:, -1])


def generate(model: Decoder, call: object, steps: int) -> tuple[list[int], list[torch.Tensor]]:
    """Tokens after a prompt of four, each the most likely one."""
    for name, buffer in model.named_buffers():
        assert name.endswith(("keys", "values"))
        buffer.zero_()
    tokens, places, logits = torch.tensor([[1, 2, 3, 4]]), torch.arange(4), []
    found = []
    for _ in range(steps):
        logits.append(call(tokens, places).float())  # type: ignore[operator]
        found.append(int(logits[-1].argmax()))
        tokens, places = torch.tensor([[found[-1]]]), places[-1:] + 1
    return found, logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_decoding_compiles_once_for_the_prompt_and_once_for_the_rest(dtype: torch.dtype) -> None:
    model = Decoder().eval().to(dtype)
    expected, reference = generate(model, model, 8)
    with observe() as reports:
        compiled = torch.compile(model, backend="npu", fullgraph=True, dynamic=False)
        found, logits = generate(model, compiled, 8)
    assert [r.failure for r in reports] == ["", ""]
    assert all(r.refusals == [] for r in reports)
    tolerance = 1e-4 if dtype is torch.float32 else 5e-2
    if dtype is torch.float32:
        assert found == expected
    torch.testing.assert_close(logits[0], reference[0], rtol=tolerance, atol=tolerance)


def following(model: Llama, call: Any, steps: int) -> tuple[list[int], torch.Tensor]:
    """The most likely tokens after a prompt of four, and the logits after the prompt."""
    model.clear()
    tokens, places, found = torch.tensor([[1, 2, 3, 4]]), torch.arange(4), []
    first = torch.empty(0)
    for step in range(steps):
        logits = call(tokens, places).float()
        first = logits if step == 0 else first
        found.append(int(logits.argmax()))
        tokens, places = torch.tensor([[found[-1]]]), places[-1:] + 1
    return found, first


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 5e-2), ("int8", 1e-4)])
@torch.no_grad()
def test_llama_decodes_with_rotary_positions_and_grouped_heads(precision: str, tolerance: float) -> None:
    model = Llama(Config(64, 32, 64, 4, 2, 2, 16)).eval().requires_grad_(False)
    model = model.bfloat16() if precision == "bfloat16" else model
    model = quantise(model) if precision == "int8" else model  # type: ignore[assignment]
    expected, reference = following(model, model, 8)
    with observe() as reports:
        compiled = torch.compile(model, backend="npu", fullgraph=True, dynamic=False)
        found, logits = following(model, compiled, 8)
    assert [(r.failure, r.refusals) for r in reports] == [("", []), ("", [])]
    torch.testing.assert_close(logits, reference, rtol=tolerance, atol=tolerance)
    assert precision == "bfloat16" or found == expected


@torch.no_grad()
def test_a_layer_of_llama_is_few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalisations, rotary positions, the masked softmax and the gate are one kernel each."""
    plans: list[Plan] = []
    load = Model.__init__

    def remember(self: Model, plan: Plan, *rest: Any, **named: Any) -> None:
        plans.append(plan)
        load(self, plan, *rest, **named)

    monkeypatch.setattr(Model, "__init__", remember)
    make, inputs = MODELS["llama"]
    torch.compile(make().eval(), backend="npu", fullgraph=True, dynamic=False)(*inputs())
    (plan,) = plans
    kernels = [task.name for task in plan.tasks if task.kind == "kernel"]
    layers = 2
    assert sum("Rsqrt" in name for name in kernels) == 2 * layers + 1
    assert sum("Concat" in name for name in kernels) == 2 * layers  # queries and keys, turned
    assert sum("Softmax" in name for name in kernels) == layers
    assert sum("Swish" in name for name in kernels) == layers
    assert len(kernels) == 6 * layers + 1
    assert (
        sum(task.kind == "matmul" for task in plan.tasks) == 6 * layers + 1
    )  # q, k and v are one, so are the gates
    assert len(plan.tasks) == 12 * layers + 3  # with the check of the token numbers
