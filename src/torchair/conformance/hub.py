"""`python -m torchair.conformance hub`: tiny networks of transformers, timm and diffusers, compiled and compared.

Networks are built from their configurations, with random weights. Each goes through recipes: a forward pass, another
size, a padded batch, a training step, and generation with a growing and a static cache. An answer is right or wrong by
comparison with eager mode; `crash` is an exception that eager mode does not raise, `refused` a recipe that eager mode
itself cannot do.
"""

from __future__ import annotations

import collections
import copy
import functools
import importlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import typer

from torchair.executable import GraphReport, observe

__all__ = ["DECODERS", "ENCODERS", "Found", "hub", "subjects"]

# What makes a network tiny, by the names that configurations use; each takes those that it has.
_SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32, "emb_dim": 32,
    "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "n_inner": 48, "hidden_dim": 48, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "ffn_hidden_size": 48, "moe_intermediate_size": 48, "d_kv": 8, "head_dim": 8,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "num_key_value_heads": 2, "embedding_size": 32, "word_embed_proj_dim": 32,
    "max_position_embeddings": 64, "n_positions": 64, "rotary_dim": 4, "num_experts": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "attention_types": [[["global", "local"], 1]], "window_size": 8, "sliding_window": 8, "layer_types": None,
}  # fmt: skip

DECODERS = (
    "llama", "qwen2", "qwen3", "mistral", "mixtral", "gemma", "gemma2", "phi", "gpt2", "gpt_neo", "gpt_neox", "gptj",
    "opt", "bloom", "falcon", "stablelm", "starcoder2", "olmo", "olmo2", "cohere", "codegen", "granite", "persimmon",
    "gpt_bigcode", "mpt", "xglm", "qwen2_moe", "olmoe",
)  # fmt: skip
ENCODERS = (
    "bert", "roberta", "distilbert", "albert", "electra", "xlm-roberta", "camembert", "mpnet", "deberta-v2", "ernie",
    "convbert", "squeezebert", "roformer", "mobilebert", "nystromformer", "fnet", "rembert", "xlm", "flaubert", "ibert",
)  # fmt: skip
IMAGES = ("resnet18", "mobilenetv3_small_050", "efficientnet_b0", "vit_tiny_patch16_224", "convnext_atto",
          "regnetx_002", "ghostnet_050", "mixer_s32_224", "deit_tiny_patch16_224", "densenet121")  # fmt: skip


@dataclass
class Found:
    """What became of one recipe of one network."""

    network: str
    recipe: str
    outcome: str  # right, wrong, crash or refused
    why: str = ""
    calls: int = 0
    npu_calls: int = 0
    programs: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Subject:
    """A network and the recipes that it takes: each gives what is compared."""

    name: str
    make: Callable[[], torch.nn.Module]
    recipes: dict[str, Callable[[torch.nn.Module], Any]] = field(default_factory=dict)


# -- transformers --------------------------------------------------------------------------------------------------


def _config(kind: str) -> Any:
    auto = importlib.import_module("transformers").AutoConfig
    config = auto.for_model(kind)
    known = config.to_dict()
    heads = {"head_dim": 8} if known.get("head_dim") else {}
    sizes = {k: v for k, v in _SIZES.items() if k in known and k not in ("head_dim", "layer_types")}
    return auto.for_model(kind, **sizes, **heads)


def _network(kind: str, head: str) -> torch.nn.Module:
    torch.manual_seed(0)
    auto = getattr(importlib.import_module("transformers"), head)
    return auto.from_config(_config(kind)).eval()


def _tokens(batch: int, length: int, padded: str = "") -> dict[str, torch.Tensor]:
    """Tokens, some of them padded on the left or right."""
    generator = torch.Generator().manual_seed(batch * 100 + length)
    ids = torch.randint(3, 90, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        hidden = slice(0, 3) if padded == "left" else slice(length - 3, length)
        ids[0, hidden], mask[0, hidden] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _forward(*sizes: tuple[int, int], padded: str = "") -> Callable[[torch.nn.Module], Any]:
    def recipe(network: torch.nn.Module) -> Any:
        found = []
        for batch, length in sizes:
            given = _tokens(batch, length, padded)
            with torch.no_grad():
                made = network(**given)
            kept = given["attention_mask"].bool()
            found.append(made[0][kept])  # what padded tokens give is nobody's
        return found

    return recipe


def _step(network: torch.nn.Module) -> Any:
    """The loss and the gradients of a training step, without dropout."""
    given = _tokens(2, 11)
    made = network(**given)
    loss = made[0].float().square().mean()
    loss.backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return [loss.detach(), torch.cat([g.flatten() for g in gradients])]


def _generate(cache: str | None = None, padded: str = "") -> Callable[[torch.nn.Module], Any]:
    def recipe(network: Any) -> Any:
        options = {"cache_implementation": cache, "disable_compile": True} if cache else {}
        given = _tokens(2, 9, padded)
        return [network.generate(**given, max_new_tokens=8, min_new_tokens=8, do_sample=False, **options)]

    return recipe


def subjects(families: tuple[str, ...]) -> Iterator[Subject]:
    """The networks of families: decoders, encoders, images."""
    passes = {
        "forward": _forward((2, 11)),
        "second size": _forward((2, 11), (3, 17)),
        "padded": _forward((2, 11), padded="right"),
        "training step": _step,
    }
    generation = {
        "generate": _generate(),
        "generate, padded": _generate(padded="left"),
        "generate, static cache": _generate("static"),
    }
    if "decoders" in families:
        for kind in DECODERS:
            yield Subject(
                kind, functools.partial(_network, kind, "AutoModelForCausalLM"), passes | generation
            )
    if "encoders" in families:
        for kind in ENCODERS:
            yield Subject(kind, functools.partial(_network, kind, "AutoModel"), passes)
    if "images" in families:
        for name in IMAGES:
            yield Subject(
                name,
                functools.partial(_image_network, name),
                {"forward": _images, "training step": _image_step},
            )


# -- timm ----------------------------------------------------------------------------------------------------------


def _image_network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return importlib.import_module("timm").create_model(name, pretrained=False, num_classes=10).eval()


def _pictures() -> torch.Tensor:
    return torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))


def _images(network: torch.nn.Module) -> Any:
    with torch.no_grad():
        return [network(_pictures())]


def _image_step(network: torch.nn.Module) -> Any:
    loss = network(_pictures()).square().mean()
    loss.backward()
    return [loss.detach(), torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])]


# -- comparing -----------------------------------------------------------------------------------------------------


def run(subject: Subject, recipe: str, tolerance: float = 2e-3) -> Found:
    """One recipe, eagerly and compiled."""
    found = Found(subject.name, recipe, "refused")
    try:
        network = subject.make()
        wanted = subject.recipes[recipe](copy.deepcopy(network))
    except Exception as error:
        found.why = f"{type(error).__name__}: {error}"
        return found
    torch._dynamo.reset()
    begin = time.perf_counter()
    with observe() as reports:
        try:
            network.forward = torch.compile(network.forward, backend="npu")
            made = subject.recipes[recipe](network)
            found.outcome, found.why = _compared(made, wanted, tolerance)
        except Exception as error:
            found.outcome, found.why = "crash", f"{type(error).__name__}: {error}"
    found.seconds = time.perf_counter() - begin
    _count(found, reports)
    return found


def _compared(made: list[torch.Tensor], wanted: list[torch.Tensor], tolerance: float) -> tuple[str, str]:
    for found, expected in zip(made, wanted, strict=True):
        if found.shape != expected.shape:
            return "wrong", f"shape {list(found.shape)} instead of {list(expected.shape)}"
        largest = max(float(expected.double().abs().max()), 1e-6) if expected.numel() else 1.0
        error = float((found.double() - expected.double()).abs().max()) / largest if expected.numel() else 0.0
        exact = not expected.is_floating_point()
        if not error <= (0 if exact else tolerance):
            return "wrong", f"differs by {error:.1e} of the largest"
    return "right", ""


def _count(found: Found, reports: list[GraphReport]) -> None:
    found.npu_calls = sum(r.npu_calls for r in reports)
    found.calls = found.npu_calls + sum(len(r.refusals) for r in reports)
    found.programs = sum(r.programs for r in reports)


def summary(found: list[Found]) -> str:
    """Counts by recipe, and the share of calls on the NPU.

    >>> summary([Found("bert", "forward", "right", calls=4, npu_calls=3, programs=1)]).splitlines()[0]
    'forward: 1 right, 0 wrong, 0 crash, 0 refused; 75 % of calls on the NPU, 1.0 programs a network'
    """
    lines = []
    for recipe in dict.fromkeys(f.recipe for f in found):
        mine = [f for f in found if f.recipe == recipe]
        counts = collections.Counter(f.outcome for f in mine)
        ran = [f for f in mine if f.outcome != "refused"]
        share = 100 * sum(f.npu_calls for f in ran) / max(sum(f.calls for f in ran), 1)
        programs = sum(f.programs for f in ran) / max(len(ran), 1)
        figures = ", ".join(f"{counts[k]} {k}" for k in ("right", "wrong", "crash", "refused"))
        lines.append(
            f"{recipe}: {figures}; {share:.0f} % of calls on the NPU, {programs:.1f} programs a network"
        )
    return "\n".join(lines)


def hub(
    names: Annotated[
        list[str] | None, typer.Argument(help="networks; all of the families when none is named")
    ] = None,
    families: Annotated[
        str, typer.Option(help="of decoders, encoders (transformers), images (timm)")
    ] = "decoders,encoders",
    recipes: Annotated[str, typer.Option(help="only these, separated by commas")] = "",
) -> None:
    """Compile tiny networks of transformers and timm, and compare them with eager mode."""
    warnings.simplefilter("ignore")
    wanted = {r.strip() for r in recipes.split(",") if r.strip()}
    found: list[Found] = []
    for subject in subjects(tuple(families.split(","))):
        if names and subject.name not in names:
            continue
        for recipe in subject.recipes:
            if wanted and recipe not in wanted:
                continue
            found.append(run(subject, recipe))
            if found[-1].outcome != "right":
                last = found[-1]
                print(f"{last.network}, {last.recipe}: {last.outcome}: {last.why[:300]}", flush=True)
    print(summary(found))
    if any(f.outcome in ("wrong", "crash") for f in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(hub)
