"""Networks of timm: a forward pass, a second batch and a training step."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchair.conformance.hub.cases import Case, compile_in_place
from torchair.conformance.hub.text import gradients

__all__ = ["NETWORKS", "cases"]

NETWORKS = (
    "resnet18", "resnet26d", "resnetv2_18", "resnext26ts", "seresnet18", "skresnet18", "ecaresnet26t",
    "gcresnet33ts", "resnest14d", "res2net50_14w_8s", "regnetx_002", "regnety_002", "regnetz_005",
    "mobilenetv1_100", "mobilenetv2_035", "mobilenetv3_small_050", "mobilenetv4_conv_small_050", "efficientnet_b0",
    "efficientnetv2_rw_t", "tf_efficientnet_b0", "tinynet_e", "lcnet_035", "mnasnet_050", "semnasnet_050",
    "fbnetc_100", "spnasnet_100", "hardcorenas_a", "mixnet_s", "rexnet_100", "ghostnet_050", "ghostnetv2_100",
    "repghostnet_050", "mobileone_s0", "repvgg_a0", "hgnetv2_b0", "densenet121", "dla46_c", "dpn48b", "vovnet39a",
    "ese_vovnet19b_dw", "selecsls42", "cspdarknet53", "darknet17", "hrnet_w18_small", "xception41", "inception_v3",
    "vgg11_bn", "convnext_atto", "convnextv2_atto", "edgenext_xx_small", "fasternet_t0", "starnet_s050",
    "mambaout_femto", "poolformer_s12", "pvt_v2_b0", "mobilevit_xxs", "mobilevitv2_050", "efficientformerv2_s0",
    "fastvit_t8", "repvit_m0_9", "levit_128s", "swiftformer_xs", "vit_tiny_patch16_224", "deit_tiny_patch16_224",
    "swin_s3_tiny_224", "mixer_s32_224", "resmlp_12_224", "gmlp_ti16_224", "xcit_nano_12_p16_224", "pit_ti_224",
    "crossvit_9_240", "convit_tiny", "halonet26t", "nf_regnet_b0",
)  # fmt: skip
SIDE = 64  # pixels, of networks that take images of any size


def _network(name: str) -> tuple[Any, int]:
    """The network and the side of its images."""
    torch.manual_seed(0)
    network = importlib.import_module("timm").create_model(name, pretrained=False, num_classes=10).eval()
    fixed = network.default_cfg.get("fixed_input_size", False)
    return network, network.default_cfg["input_size"][-1] if fixed else max(SIDE, _least(network))


def _least(network: Any) -> int:
    given = network.default_cfg.get("min_input_size")
    return int(given[-1]) if given else SIDE


def _pictures(batch: int, side: int) -> torch.Tensor:
    return torch.rand(batch, 3, side, side, generator=torch.Generator().manual_seed(batch))


def _forward(name: str, batches: tuple[int, ...], backend: str | None) -> list[torch.Tensor]:
    network, side = _network(name)
    compile_in_place(network, backend)
    with torch.no_grad():
        return [network(_pictures(batch, side)) for batch in batches]


def _step(name: str, backend: str | None) -> list[torch.Tensor]:
    network, side = _network(name)
    compile_in_place(network, backend)
    loss = network(_pictures(2, side)).square().mean()
    loss.backward()
    return [loss.detach(), gradients(network)]


def cases() -> Iterator[Case]:
    """All recipes of all networks."""
    recipes: dict[str, Callable[..., list[torch.Tensor]]] = {
        "forward": lambda name, backend: _forward(name, (1,), backend),
        "second size": lambda name, backend: _forward(name, (2, 3), backend),
        "training step": _step,
    }
    for name in NETWORKS:
        for recipe, results in recipes.items():
            yield Case("images", name, recipe, functools.partial(results, name))
