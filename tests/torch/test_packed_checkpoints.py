"""Layers of GPTQ and AWQ checkpoints against their weights in float64, eager, compiled and through transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_npu.checkpoints import CheckpointLinear, Layout, pack, replace_linear
from torchair.executable import observe

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the columns of a word from its lowest bits on


def words(levels: np.ndarray, bits: int) -> np.ndarray:
    """Numbers along the last axis as a stream of bits, in int32."""
    stream = (levels[..., None] >> np.arange(bits)) & 1
    stream = stream.reshape(*levels.shape[:-1], -1).astype(np.uint8)
    return np.packbits(stream, axis=-1, bitorder="little").view("<i4")


def checkpoint(
    depth: int, columns: int, layout: Layout, bits: int, group: int, *, shuffled: bool = False, seed: int = 0
) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """The tensors of a layer and its weights (depth, columns)."""
    rng = np.random.default_rng(seed)
    group = group if group > 0 else depth
    levels = rng.integers(0, 1 << bits, (depth, columns))
    zeros = rng.integers(1, 1 << bits, (-(-depth // group), columns))
    scales = (rng.random(zeros.shape) * 0.02 + 0.01).astype(np.float16)
    place = np.arange(depth) // group
    if shuffled:
        place = rng.permutation(place)
    weights = (levels - zeros[place]).astype(np.float64) * scales[place].astype(np.float64)
    found = {"scales": scales}
    if layout is Layout.AWQ:
        ordered = [v.reshape(len(v), -1, 8)[..., AWQ_ORDER].reshape(v.shape) for v in (levels, zeros)]
        found["qweight"], found["qzeros"] = (words(v, bits) for v in ordered)
    else:
        found["qweight"] = np.ascontiguousarray(words(np.ascontiguousarray(levels.T), bits).T)
        found["qzeros"] = words(zeros - (layout is Layout.GPTQ), bits)
        found["g_idx"] = place.astype(np.int32)
    return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in found.items()}, weights


CASES = {
    "GPTQ": (Layout.GPTQ, 4, 32, False),
    "GPTQ, order of activations": (Layout.GPTQ, 4, 32, True),
    "GPTQ, one group": (Layout.GPTQ, 4, -1, False),
    "GPTQ, second version": (Layout.GPTQ_V2, 4, 64, False),
    "GPTQ, 8 bits": (Layout.GPTQ, 8, 32, False),
    "GPTQ, 3 bits": (Layout.GPTQ, 3, 32, True),
    "GPTQ, 2 bits": (Layout.GPTQ_V2, 2, 32, False),
    "AWQ": (Layout.AWQ, 4, 32, False),
    "AWQ, groups of 64": (Layout.AWQ, 4, 64, False),
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_layers_are_their_weights(name: str, dtype: torch.dtype) -> None:
    layout, bits, group, shuffled = CASES[name]
    tensors, weights = checkpoint(128, 64, layout, bits, group, shuffled=shuffled)
    bias = torch.randn(64).half()
    source = CheckpointLinear(128, 64, layout=layout, bits=bits, group=group, bias=True)
    source.load_state_dict({**tensors, "bias": bias})
    layer = source.packed()
    x = torch.randn(3, 128).to(dtype)
    wanted = x.double() @ torch.from_numpy(weights) + bias.double()
    with observe() as reports:
        compiled = torch.compile(layer, backend="npu", dynamic=False)(x)
    assert [r.refusals for r in reports] == [[]]
    margin = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    for found in (source(x), layer(x), compiled, layer.to("npu")(x.to("npu")).cpu()):
        assert found.dtype is dtype
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=margin * float(wanted.abs().max()))


def test_gradients_pass_through_packed_layers() -> None:
    tensors, weights = checkpoint(64, 32, Layout.GPTQ, 4, 32, shuffled=True)
    model = nn.Sequential(nn.Linear(64, 32, bias=False))
    replace_linear(model, ["0"], layout=Layout.GPTQ, bits=4, group=32)
    model[0].load_state_dict(tensors)
    x = torch.randn(5, 64, requires_grad=True)
    torch.compile(pack(model), backend="npu")(x).square().sum().backward()
    turn = torch.from_numpy(weights)
    wanted = 2 * (x.detach().double() @ turn) @ turn.t()
    torch.testing.assert_close(x.grad.double(), wanted, rtol=1e-4, atol=1e-4)


def test_weights_stay_packed() -> None:
    tensors, _ = checkpoint(512, 256, Layout.AWQ, 4, 128)
    source = CheckpointLinear(512, 256, layout=Layout.AWQ, bits=4, group=128)
    source.load_state_dict(tensors)
    assert sum(v.nbytes for v in source.packed().buffers()) < 512 * 256


def test_uneven_groups_and_unknown_widths_are_named() -> None:
    tensors, _ = checkpoint(64, 32, Layout.GPTQ, 4, 32)
    tensors["g_idx"][:3] = 1
    source = CheckpointLinear(64, 32, layout=Layout.GPTQ, bits=4, group=32)
    source.load_state_dict(tensors)
    with pytest.raises(ValueError, match="g_idx"):
        source.packed()
    with pytest.raises(NotImplementedError, match="5 bits"):
        CheckpointLinear(64, 32, layout=Layout.GPTQ, bits=5, group=32)
    with pytest.raises(TypeError, match="ReLU"):
        replace_linear(nn.Sequential(nn.ReLU()), ["0"], layout=Layout.AWQ, bits=4, group=32)


QUANTISED = {
    "gptq": (Layout.GPTQ, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}),
    "gptq_v2": (
        Layout.GPTQ_V2,
        {"quant_method": "gptq", "bits": 8, "group_size": 32, "checkpoint_format": "gptq_v2"},
    ),
    "awq": (
        Layout.AWQ,
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
    ),
}


def save(folder: Path, config: dict[str, Any], layout: Layout) -> Any:
    """Write a small Llama with packed layers; returns the same model with their weights in float32."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    sizes = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=1, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(sizes).eval()
    state = dict(model.state_dict())
    for seed, (name, layer) in enumerate(model.named_modules()):
        if isinstance(layer, nn.Linear) and "lm_head" not in name:
            shuffled = bool(config.get("desc_act"))
            tensors, weights = checkpoint(
                layer.in_features,
                layer.out_features,
                layout,
                config["bits"],
                32,
                shuffled=shuffled,
                seed=seed,
            )
            layer.weight.data = torch.from_numpy(weights.T).float().contiguous()
            del state[f"{name}.weight"]
            state |= {f"{name}.{k}": v for k, v in tensors.items()}
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors", {"format": "pt"})
    written = sizes.to_dict() | {"quantization_config": config, "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(written))
    return model


@pytest.mark.parametrize("method", QUANTISED)
@torch.no_grad()
def test_transformers_reads_packed_checkpoints(method: str, tmp_path: Path) -> None:
    layout, config = QUANTISED[method]
    expected = save(tmp_path, config, layout)
    import transformers

    from torch_npu.checkpoints import PackedLinear
    from torch_npu.contrib import packed_checkpoints  # noqa: F401  transformers reads them

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert sum(isinstance(m, PackedLinear) for m in model.modules()) == 14
    prompt = torch.tensor([[1, 5, 9, 33, 7]])
    wanted = expected(prompt).logits
    torch.testing.assert_close(model(prompt).logits, wanted, rtol=1e-3, atol=1e-3)
    with observe() as reports:
        found = torch.compile(model, backend="npu")(prompt).logits
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    assert all("npu.weight_quant_matmul.default" in r.operators for r in reports)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="npu")
    assert torch.equal(model.generate(prompt, **options), expected.generate(prompt, **options))
