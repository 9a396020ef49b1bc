"""Pipelines of diffusers in tiny configurations: a few steps of denoising with every module compiled."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchair.conformance.hub.cases import Case

__all__ = ["PIPELINES", "cases"]

STEPS = 2
_WIDTHS = (16, 32)


def _diffusers() -> Any:
    return importlib.import_module("diffusers")


def _noise(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _unet(**given: Any) -> Any:
    sizes: dict[str, Any] = {
        "sample_size": 16, "in_channels": 3, "out_channels": 3, "layers_per_block": 1, "block_out_channels": _WIDTHS,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        "norm_num_groups": 8, "attention_head_dim": 8,
    }  # fmt: skip
    return _diffusers().UNet2DModel(**(sizes | given))


_CONDITIONED: dict[str, Any] = {
    "sample_size": 8, "in_channels": 4, "layers_per_block": 1, "block_out_channels": _WIDTHS,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "cross_attention_dim": 32, "attention_head_dim": 8,
    "norm_num_groups": 8,
}  # fmt: skip


def _conditioned(**given: Any) -> Any:
    ups = {"out_channels": 4, "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}
    return _diffusers().UNet2DConditionModel(**(_CONDITIONED | ups | given))


def _autoencoder(channels: int = 4, **given: Any) -> Any:
    return _diffusers().AutoencoderKL(
        block_out_channels=_WIDTHS, down_block_types=["DownEncoderBlock2D"] * 2, norm_num_groups=8,
        up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=channels, sample_size=16, **given,
    )  # fmt: skip


def _clip() -> Any:
    transformers = importlib.import_module("transformers")
    config = transformers.CLIPTextConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=16, projection_dim=32, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.CLIPTextModel(config).eval()


def _embedded() -> dict[str, torch.Tensor]:
    """A prompt as the text encoder would give it."""
    return {"prompt_embeds": _noise(1, 8, 32), "negative_prompt_embeds": _noise(1, 8, 32, seed=6)}


def _made(pipeline: Any, backend: str | None, **given: Any) -> list[torch.Tensor]:
    """A picture, in numbers; every module of the pipeline is compiled."""
    parts: list[Any] = [p for p in pipeline.components.values() if isinstance(p, torch.nn.Module)]
    if backend is not None:
        for part in parts:
            part.compile(backend=backend)
            if hasattr(part, "decode"):
                part.decode = torch.compile(part.decode, backend=backend)
    pipeline.set_progress_bar_config(disable=True)
    asked = {"num_inference_steps": STEPS, "output_type": "np", "generator": torch.Generator().manual_seed(0)}
    return [torch.as_tensor(pipeline(**(asked | given))[0])]


def _unconditional(pipeline: str, scheduler: str) -> Callable[[str | None], list[torch.Tensor]]:
    def results(backend: str | None) -> list[torch.Tensor]:
        library = _diffusers()
        torch.manual_seed(0)
        built = getattr(library, pipeline)(unet=_unet(), scheduler=getattr(library, scheduler)())
        return _made(built, backend)

    return results


def _stable(pipeline: str, **extra: Any) -> Callable[[str | None], list[torch.Tensor]]:
    """Stable Diffusion and what is made from it; a function among `extra` builds a part or an argument."""

    def results(backend: str | None) -> list[torch.Tensor]:
        library = _diffusers()
        torch.manual_seed(0)
        parts = {
            "vae": _autoencoder(), "text_encoder": _clip(), "tokenizer": None, "unet": extra["unet"](),
            "scheduler": library.DDIMScheduler(), "safety_checker": None, "feature_extractor": None,
            "requires_safety_checker": False,
        }  # fmt: skip
        parts |= {k: make() for k, make in extra.get("parts", {}).items()}
        given = {k: make() for k, make in extra.get("arguments", {}).items()}
        return _made(getattr(library, pipeline)(**parts), backend, **_embedded(), **given)

    return results


def _controlnet() -> Any:
    return _diffusers().ControlNetModel(
        **{k: v for k, v in _CONDITIONED.items() if k != "sample_size"},
        conditioning_embedding_out_channels=(8, 16),
    )


def _picture() -> torch.Tensor:
    return torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def _large(backend: str | None) -> list[torch.Tensor]:
    """Stable Diffusion XL."""
    library = _diffusers()
    torch.manual_seed(0)
    unet = _conditioned(
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=80, transformer_layers_per_block=(1, 2),
    )  # fmt: skip
    pipeline = library.StableDiffusionXLPipeline(
        vae=_autoencoder(), text_encoder=None, text_encoder_2=_clip(), tokenizer=None, tokenizer_2=None, unet=unet,
        scheduler=library.EulerDiscreteScheduler(), add_watermarker=False,
    )  # fmt: skip
    pooled = {"pooled_prompt_embeds": _noise(1, 32), "negative_pooled_prompt_embeds": _noise(1, 32, seed=7)}
    pipeline.text_encoder_2.config.projection_dim = 32
    return _made(pipeline, backend, **_embedded(), **pooled, height=16, width=16)


def _classes(backend: str | None) -> list[torch.Tensor]:
    """A transformer that draws classes."""
    library = _diffusers()
    torch.manual_seed(0)
    transformer = library.DiTTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=2, in_channels=4,
        out_channels=8, attention_bias=True, activation_fn="gelu-approximate", num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero", norm_elementwise_affine=False,
    )  # fmt: skip
    pipeline = library.DiTPipeline(
        transformer=transformer, vae=_autoencoder(), scheduler=library.DDIMScheduler()
    )
    return _made(pipeline, backend, class_labels=[1])


def _pixart(backend: str | None) -> list[torch.Tensor]:
    library = _diffusers()
    torch.manual_seed(0)
    transformer = library.PixArtTransformer2DModel(
        sample_size=8, num_layers=2, patch_size=2, attention_head_dim=8, num_attention_heads=4, caption_channels=32,
        in_channels=4, cross_attention_dim=32, out_channels=8, attention_bias=True, activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000, norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6,
    )  # fmt: skip
    pipeline = library.PixArtAlphaPipeline(
        transformer=transformer, vae=_autoencoder(), scheduler=library.DDIMScheduler(), text_encoder=None,
        tokenizer=None,
    )  # fmt: skip
    masks = {"prompt_attention_mask": torch.ones(1, 8), "negative_prompt_attention_mask": torch.ones(1, 8)}
    options = {"height": 16, "width": 16, "use_resolution_binning": False, "negative_prompt": None}
    return _made(pipeline, backend, **_embedded(), **masks, **options)


def _third(backend: str | None) -> list[torch.Tensor]:
    """Stable Diffusion 3."""
    library = _diffusers()
    torch.manual_seed(0)
    transformer = library.SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=32, pooled_projection_dim=64, out_channels=4,
    )  # fmt: skip
    pipeline = library.StableDiffusion3Pipeline(
        transformer=transformer, scheduler=library.FlowMatchEulerDiscreteScheduler(), vae=_autoencoder(
            shift_factor=0.06, scaling_factor=1.5, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None, text_encoder_3=None, tokenizer_3=None,
    )  # fmt: skip
    pooled = {"pooled_prompt_embeds": _noise(1, 64), "negative_pooled_prompt_embeds": _noise(1, 64, seed=7)}
    return _made(pipeline, backend, **_embedded(), **pooled, height=16, width=16)


def _flux(backend: str | None) -> list[torch.Tensor]:
    library = _diffusers()
    torch.manual_seed(0)
    transformer = library.FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    pipeline = library.FluxPipeline(
        transformer=transformer, scheduler=library.FlowMatchEulerDiscreteScheduler(), vae=_autoencoder(
            shift_factor=0.06, scaling_factor=1.5, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=None, tokenizer=None, text_encoder_2=None, tokenizer_2=None,
    )  # fmt: skip
    given = {"prompt_embeds": _noise(1, 8, 32), "pooled_prompt_embeds": _noise(1, 32)}
    return _made(pipeline, backend, **given, height=16, width=16)


PIPELINES: dict[str, Callable[[str | None], list[torch.Tensor]]] = {
    "DDPM": _unconditional("DDPMPipeline", "DDPMScheduler"),
    "DDIM": _unconditional("DDIMPipeline", "DDIMScheduler"),
    "Stable Diffusion": _stable("StableDiffusionPipeline", unet=_conditioned),
    "Stable Diffusion, image to image": _stable(
        "StableDiffusionImg2ImgPipeline",
        unet=_conditioned,
        arguments={"image": _picture, "strength": lambda: 1.0},
    ),
    "Stable Diffusion, inpainting": _stable(
        "StableDiffusionInpaintPipeline",
        unet=functools.partial(_conditioned, in_channels=9),
        arguments={"image": _picture, "mask_image": lambda: (_picture()[:, :1] > 0.5).float(), "height": lambda: 16,
                   "width": lambda: 16},
    ),
    "ControlNet": _stable(
        "StableDiffusionControlNetPipeline",
        unet=_conditioned,
        parts={"controlnet": _controlnet},
        arguments={"image": _picture},
    ),
    "Stable Diffusion XL": _large,
    "DiT": _classes,
    "PixArt": _pixart,
    "Stable Diffusion 3": _third,
    "Flux": _flux,
}  # fmt: skip


def cases() -> Iterator[Case]:
    """Each pipeline once."""
    for name, results in PIPELINES.items():
        yield Case("diffusion", name, "picture", results)
