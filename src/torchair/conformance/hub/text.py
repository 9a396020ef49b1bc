"""Networks of transformers: decoders, encoders, translators, images and sounds, and the ways to generate."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchair.conformance.hub.cases import Case, compile_in_place

__all__ = ["DECODERS", "ENCODERS", "SENSES", "TRANSLATORS", "decoders", "encoders", "generation", "network",
           "senses", "translators"]  # fmt: skip

# What makes a network tiny, by the names that configurations use; each takes those that it has.
_SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "emb_dim": 32,
    "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "n_inner": 48, "hidden_dim": 48, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "ffn_hidden_size": 48, "moe_intermediate_size": 48, "d_kv": 8,
    "shared_expert_intermediate_size": 48, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4,
    "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "embedding_size": 32, "word_embed_proj_dim": 32, "state_size": 8,
    "max_position_embeddings": 64, "n_positions": 64, "max_source_positions": 64, "max_target_positions": 64,
    "rotary_dim": 4, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None,
    "attention_types": [[["global", "local"], 1]], "window_size": 8, "sliding_window": 8, "attention_window": 8,
    "block_size": 4, "num_random_blocks": 1, "image_size": 32, "patch_size": 8, "num_mel_bins": 16,
    "conv_dim": [16, 16], "conv_kernel": [4, 4], "conv_stride": [2, 2], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4, "hidden_sizes": [16, 32], "depths": [1, 1],
    "num_stages": 2, "sr_ratios": [2, 1], "mlp_ratios": [2, 2], "patch_sizes": [7, 3], "strides": [4, 2],
    "decoder_hidden_size": 16, "local_attention": 8,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {  # what is not tiny by name alone
    "swin": {"num_heads": [2, 4], "embed_dim": 16, "window_size": 2, "patch_size": 4},
    "segformer": {"num_attention_heads": [1, 2], "num_encoder_blocks": 2},
    "convnext": {"patch_size": 4},
    "t5": {"decoder_start_token_id": 1},
    "mamba": {"conv_kernel": 4},
    "deepseek_v3": {"head_dim": 8, "qk_rope_head_dim": 8, "num_key_value_heads": 4},
    "squeezebert": {"q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1,
                    "intermediate_groups": 1, "output_groups": 1},
}  # fmt: skip

DECODERS = (
    "llama", "qwen2", "qwen3", "mistral", "mixtral", "gemma", "gemma2", "phi", "gpt2", "gpt_neo", "gpt_neox", "gptj",
    "opt", "bloom", "falcon", "stablelm", "starcoder2", "olmo", "olmo2", "cohere", "codegen", "granite", "persimmon",
    "gpt_bigcode", "mpt", "xglm", "qwen2_moe", "olmoe", "phi3", "qwen3_moe", "glm", "deepseek_v3", "gpt_oss", "mamba",
)  # fmt: skip
ENCODERS = (
    "bert", "roberta", "distilbert", "albert", "electra", "xlm-roberta", "camembert", "mpnet", "deberta-v2", "ernie",
    "convbert", "squeezebert", "roformer", "mobilebert", "nystromformer", "fnet", "rembert", "xlm", "flaubert", "ibert",
    "big_bird", "longformer", "modernbert", "data2vec-text", "layoutlm",
)  # fmt: skip
TRANSLATORS = ("t5", "mt5", "bart", "mbart", "pegasus", "marian", "blenderbot", "m2m_100")
SENSES = ("vit", "deit", "beit", "swin", "convnext", "segformer", "dinov2", "wav2vec2", "hubert")

Recipe = Callable[[Any], list[torch.Tensor]]


def _config(kind: str) -> Any:
    auto = importlib.import_module("transformers").AutoConfig
    known = auto.for_model(kind).to_dict()
    sizes = {k: v for k, v in _SIZES.items() if k in known}
    if known.get("head_dim"):
        sizes["head_dim"] = 8
    return auto.for_model(kind, **(sizes | _OWN.get(kind, {})))


def network(kind: str, head: str) -> Any:
    """A tiny network with random weights, for inference."""
    torch.manual_seed(0)
    auto = getattr(importlib.import_module("transformers"), head)
    return auto.from_config(_config(kind)).eval()


def _cases(
    family: str, kinds: tuple[str, ...], heads: tuple[str, ...], recipes: dict[str, Recipe]
) -> Iterator[Case]:
    for kind in kinds:
        for recipe, results in recipes.items():
            make = functools.partial(_network_of, kind, heads)
            yield Case(family, kind, recipe, functools.partial(_results, make, results))


def _network_of(kind: str, heads: tuple[str, ...]) -> Any:
    """The network with the first head that it has."""
    for head in heads[:-1]:
        try:
            return network(kind, head)
        except ValueError:
            continue
    return network(kind, heads[-1])


def _results(make: Callable[[], Any], recipe: Recipe, backend: str | None) -> list[torch.Tensor]:
    return recipe(compile_in_place(make(), backend))


# -- text ------------------------------------------------------------------------------------------------------------


def tokens(batch: int, length: int, padded: str = "") -> dict[str, torch.Tensor]:
    """Tokens, some of them padded on the left or right."""
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids = torch.randint(3, 90, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        hidden = slice(0, 3) if padded == "left" else slice(length - 3, length)
        ids[0, hidden], mask[0, hidden] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _translated(batch: int, length: int, padded: str = "") -> dict[str, torch.Tensor]:
    return tokens(batch, length, padded) | {"decoder_input_ids": tokens(batch, length - 4)["input_ids"]}


def _forward(inputs: Any, *sizes: tuple[int, int], padded: str = "") -> Recipe:
    def recipe(network: Any) -> list[torch.Tensor]:
        found = []
        for batch, length in sizes:
            given = inputs(batch, length, padded)
            with torch.no_grad():
                made = network(**given)[0]
            hides = padded and made.shape[:2] == given["attention_mask"].shape
            found.append(
                made[given["attention_mask"].bool()] if hides else made
            )  # padded tokens give anything
        return found

    return recipe


def _step(inputs: Any) -> Recipe:
    """The loss and the gradients of a training step, without dropout."""

    def recipe(network: Any) -> list[torch.Tensor]:
        loss = network(**inputs(2, 11))[0].float().square().mean()
        loss.backward()
        return [loss.detach(), gradients(network)]

    return recipe


def gradients(network: Any) -> torch.Tensor:
    """All gradients of a network in a row; AOT Autograd gives zeros where eager mode leaves None."""
    found = [(torch.zeros_like(p) if p.grad is None else p.grad) for p in network.parameters()]
    return torch.cat([g.detach().flatten().cpu() for g in found])


def _generate(padded: str = "", lengths: tuple[int, ...] = (9,), **options: Any) -> Recipe:
    """Greedy tokens; more than one length shows that growing prompts need no programs of their own."""

    def recipe(network: Any) -> list[torch.Tensor]:
        asked = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False} | options
        return [network.generate(**tokens(2, length, padded), **asked) for length in lengths]

    return recipe


def _assisted(kind: str) -> Recipe:
    """Speculative decoding: a small network proposes tokens, the large one accepts those that it would have made."""

    def recipe(main: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        helper = (
            importlib.import_module("transformers").AutoModelForCausalLM.from_config(_config(kind)).eval()
        )
        given = tokens(1, 9)
        return [main.generate(**given, max_new_tokens=8, do_sample=False, assistant_model=helper)]

    return recipe


def _passes(inputs: Any) -> dict[str, Recipe]:
    return {
        "forward": _forward(inputs, (2, 11)),
        "second size": _forward(inputs, (2, 11), (3, 17)),
        "padded": _forward(inputs, (2, 11), padded="right"),
        "training step": _step(inputs),
    }


_STATIC: dict[str, Any] = {"cache_implementation": "static", "disable_compile": True}
_GENERATE = {
    "generate": _generate(),
    "generate, padded": _generate("left"),
    "generate, static cache": _generate(**_STATIC),
}


def decoders() -> Iterator[Case]:
    """Causal language models."""
    yield from _cases("decoders", DECODERS, ("AutoModelForCausalLM",), _passes(tokens) | _GENERATE)


def encoders() -> Iterator[Case]:
    """Networks that read text."""
    yield from _cases("encoders", ENCODERS, ("AutoModel",), _passes(tokens))


def translators() -> Iterator[Case]:
    """Encoders with decoders."""
    recipes = _passes(_translated) | {"generate": _generate(), "generate, padded": _generate("right")}
    yield from _cases("translators", TRANSLATORS, ("AutoModelForSeq2SeqLM",), recipes)


def generation() -> Iterator[Case]:
    """Further ways to generate."""
    recipes = {
        "growing prompts": _generate(lengths=(5, 9, 14, 20)),
        "growing prompts, static cache": _generate(lengths=(5, 9, 14, 20), **_STATIC),
        "static cache, left padding": _generate("left", **_STATIC),
        "right padding": _generate("right"),
        "beam search": _generate(num_beams=3),
        "beam search, static cache": _generate(num_beams=3, **_STATIC),
        "sampling": _sampled,
        "prompt lookup": _prompt_lookup,
    }
    kinds = ("llama", "qwen3", "gemma2", "gpt2")
    yield from _cases("generation", kinds, ("AutoModelForCausalLM",), recipes)
    for kind in kinds:
        yield from _cases("generation", (kind,), ("AutoModelForCausalLM",), {"assisted": _assisted(kind)})


def _sampled(network: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [network.generate(**tokens(2, 9), max_new_tokens=8, min_new_tokens=8, do_sample=True, top_k=10)]


def _prompt_lookup(network: Any) -> list[torch.Tensor]:
    """Speculative decoding whose proposals are repeats of the prompt."""
    given = {k: v.repeat(1, 3) for k, v in tokens(1, 5).items()}
    return [network.generate(**given, max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3)]


# -- images and sounds -----------------------------------------------------------------------------------------------

_SOUNDS = ("wav2vec2", "hubert")


def _sense(kind: str, batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.rand(*((batch, 400) if kind in _SOUNDS else (batch, 3, 32, 32)), generator=generator)


def senses() -> Iterator[Case]:
    """Networks of images and of sounds."""
    for kind in SENSES:
        batches = {"forward": (2,), "second size": (2, 3)}
        recipes: dict[str, Recipe] = {
            name: functools.partial(_sense_forward, kind, counts) for name, counts in batches.items()
        }
        recipes["training step"] = functools.partial(_sense_step, kind)
        yield from _cases("senses", (kind,), ("AutoModel",), recipes)


def _sense_forward(kind: str, batches: tuple[int, ...], network: Any) -> list[torch.Tensor]:
    with torch.no_grad():
        return [network(_sense(kind, batch))[0] for batch in batches]


def _sense_step(kind: str, network: Any) -> list[torch.Tensor]:
    loss = network(_sense(kind, 2))[0].square().mean()
    loss.backward()
    return [loss.detach(), gradients(network)]
