"""The models the benchmarks measure and the tests check, at full and at small size.

Weights are random with a fixed seed; the running statistics of batch normalisations are those of a random
batch, so that activations have the scale a trained network gives them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.models import dlrm, mobile, resnet, sequence, transformer
from benchmarks.models.mobile import Stage

__all__ = ["FULL", "SMALL", "ZooModel", "zoo"]

SEED = 20240229
Inputs = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class ZooModel:
    """A network: how to make it in PyTorch, how to rebuild it in Keras, and what it reads."""

    name: str
    title: str
    make: Callable[[], nn.Module]
    rebuild: Callable[..., Any]  # (KerasPort, *inputs) -> output
    sample: Callable[[np.random.Generator, int], Inputs]
    input_names: tuple[str, ...] = ("x",)

    def module(self) -> nn.Module:
        """The network with its weights, ready for inference; the same at every call."""
        torch.manual_seed(SEED)
        module = self.make()
        _settle_statistics(module, self.inputs(8, seed=1))
        return module.eval().requires_grad_(False)

    def inputs(self, batch: int, seed: int = 0) -> Inputs:
        """Random inputs in PyTorch's layout; the same for the same batch and seed."""
        return self.sample(np.random.default_rng(seed), batch)


def _settle_statistics(module: nn.Module, inputs: Inputs) -> None:
    """Take the statistics of a batch; shift what is normalised so that most of it passes the next ReLU.

    A deep network of random weights whose activations are centred doubles any rounding error every few
    layers, which a trained one does not.
    """
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    if not norms:
        return
    for norm in norms:
        norm.momentum = 1.0
        nn.init.ones_(norm.bias)
    module.train()
    with torch.no_grad():
        module(*map(torch.from_numpy, inputs))


def image(size: int) -> Callable[[np.random.Generator, int], Inputs]:
    """Sampler of images."""
    return lambda rng, batch: (rng.standard_normal((batch, 3, size, size), np.float32),)


def tokens(vocabulary: int, length: int) -> Callable[[np.random.Generator, int], Inputs]:
    """Sampler of token ids."""
    return lambda rng, batch: (rng.integers(0, vocabulary, (batch, length)),)


def vectors(length: int, features: int) -> Callable[[np.random.Generator, int], Inputs]:
    """Sampler of sequences of vectors."""
    return lambda rng, batch: (rng.standard_normal((batch, length, features), np.float32),)


def features(dense: int, tables: int, rows: int) -> Callable[[np.random.Generator, int], Inputs]:
    """Sampler of dense and categorical features."""
    return lambda rng, batch: (
        rng.standard_normal((batch, dense), np.float32),
        rng.integers(0, rows, (batch, tables)),
    )


efficientnet = functools.partial(mobile.InvertedResidualNet, activation=nn.SiLU, squeeze=True)
SMALL_STAGES = (Stage(1, 16, 1, 1), Stage(4, 24, 2, 2, 5), Stage(4, 24, 1, 1))

FULL = (
    ZooModel("resnet50", "ResNet50", resnet.ResNet, resnet.keras_resnet, image(224)),
    ZooModel(
        "mobilenetv2",
        "MobileNetV2",
        lambda: mobile.InvertedResidualNet(mobile.MOBILENET_V2),
        mobile.keras_inverted_residual_net,
        image(224),
    ),
    ZooModel(
        "efficientnetb0",
        "EfficientNetB0",
        lambda: efficientnet(mobile.EFFICIENTNET_B0),
        mobile.keras_inverted_residual_net,
        image(224),
    ),
    ZooModel("bert", "BERT-base", transformer.Bert, transformer.keras_bert, tokens(30522, 128), ("ids",)),
    ZooModel("vit", "ViT-B/16", transformer.VisionTransformer, transformer.keras_vit, image(224)),
    ZooModel("lstm", "LSTM 2×512", sequence.LstmNet, sequence.keras_lstm, vectors(64, 512)),
    ZooModel("dlrm", "DLRM-like", dlrm.Dlrm, dlrm.keras_dlrm, features(13, 26, 10_000), ("dense", "ids")),
    ZooModel("gpt2", "GPT-2", transformer.Gpt2, transformer.keras_gpt2, tokens(50257, 128), ("ids",)),
    ZooModel("regnet", "RegNet-like", resnet.RegNet, resnet.keras_resnet, image(224)),
)

SMALL = (
    ZooModel(
        "resnet50",
        "ResNet (small)",
        lambda: resnet.ResNet((1, 1, 1, 1), 16, 10),
        resnet.keras_resnet,
        image(64),
    ),
    ZooModel(
        "mobilenetv2",
        "MobileNetV2 (small)",
        lambda: mobile.InvertedResidualNet(SMALL_STAGES, features=64, classes=10),
        mobile.keras_inverted_residual_net,
        image(32),
    ),
    ZooModel(
        "efficientnetb0",
        "EfficientNet (small)",
        lambda: efficientnet(SMALL_STAGES, features=64, classes=10),
        mobile.keras_inverted_residual_net,
        image(32),
    ),
    ZooModel(
        "bert",
        "BERT (small)",
        lambda: transformer.Bert(64, 2, 4, 100, 16),
        transformer.keras_bert,
        tokens(100, 16),
        ("ids",),
    ),
    ZooModel(
        "vit",
        "ViT (small)",
        lambda: transformer.VisionTransformer(32, 8, 64, 2, 4, 10),
        transformer.keras_vit,
        image(32),
    ),
    ZooModel(
        "lstm", "LSTM (small)", lambda: sequence.LstmNet(16, 32, 2, 10), sequence.keras_lstm, vectors(12, 16)
    ),
    ZooModel(
        "dlrm",
        "DLRM-like (small)",
        lambda: dlrm.Dlrm(13, 5, 50, 8, (16,), (32, 16)),
        dlrm.keras_dlrm,
        features(13, 5, 50),
        ("dense", "ids"),
    ),
    ZooModel(
        "gpt2",
        "GPT-2 (small)",
        lambda: transformer.Gpt2(64, 2, 4, 100, 16),
        transformer.keras_gpt2,
        tokens(100, 16),
        ("ids",),
    ),
    ZooModel(
        "regnet",
        "RegNet-like (small)",
        lambda: resnet.RegNet((1, 1), (32, 64), 16, 10),
        resnet.keras_resnet,
        image(32),
    ),
)


def zoo(small: bool = False) -> Mapping[str, ZooModel]:
    """The models by name.

    >>> list(zoo())[:3]
    ['resnet50', 'mobilenetv2', 'efficientnetb0']
    """
    return {model.name: model for model in (SMALL if small else FULL)}
