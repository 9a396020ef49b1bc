"""Prints results of a small program of a library: ``python -I beside.py transformers``.

They are the same with and without the names of the Ascend ecosystem, which such libraries look for.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np


def _torch() -> Any:
    import torch

    torch.manual_seed(0)
    return torch


def transformers() -> Any:
    torch = _torch()
    from transformers import BertConfig, BertModel

    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertModel(BertConfig(**size)).eval()(torch.arange(8)[None]).last_hidden_state


def diffusers() -> Any:
    torch = _torch()
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16, block_out_channels=(32, 32), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )  # fmt: skip
    return model.eval()(torch.ones(1, 3, 16, 16), 3).sample


def accelerate() -> Any:
    torch = _torch()
    from accelerate import Accelerator

    accelerator = Accelerator()
    linear = torch.nn.Linear(4, 1)
    linear, optimizer = accelerator.prepare(linear, torch.optim.SGD(linear.parameters(), 0.1))
    x = torch.ones(2, 4).to(accelerator.device)
    for _ in range(3):
        optimizer.zero_grad()
        accelerator.backward(linear(x).square().mean())
        optimizer.step()
    return linear(x)


def lightning() -> Any:
    torch = _torch()
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(max_steps=3, **dict.fromkeys(off, False))
    net = Net()
    trainer.fit(net, torch.utils.data.DataLoader(torch.ones(6, 4), 2))
    return net.layer.weight


def timm() -> Any:
    torch = _torch()
    import timm

    return timm.create_model("resnet18", num_classes=3).eval()(torch.ones(1, 3, 32, 32))


def torchvision() -> Any:
    torch = _torch()
    from torchvision.models import resnet18
    from torchvision.ops import nms

    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2], [4, 4, 5, 5]])
    assert nms(boxes, torch.tensor([3.0, 2.0, 1.0]), 0.5).tolist() == [0, 2]
    return resnet18(num_classes=3).eval()(torch.ones(1, 3, 32, 32))


def keras_hub() -> Any:
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    ones = np.ones((1, 8), "int32")
    model = keras_hub.models.BertBackbone(
        vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=32, intermediate_dim=64
    )
    return model({"token_ids": ones, "segment_ids": 0 * ones, "padding_mask": ones})["sequence_output"]


def tensorflow_probability() -> Any:
    import tensorflow_probability as tfp

    normal = tfp.distributions.Normal(0.0, 1.0)
    return normal.log_prob([0.5, -1.0]), normal.cdf([0.5, -1.0])


def paddle() -> Any:
    import paddle

    paddle.seed(0)
    network = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 4))
    return network(paddle.ones([2, 8]))


LIBRARIES = {
    function.__name__: function
    for function in (
        transformers, diffusers, accelerate, lightning, timm, torchvision, keras_hub, tensorflow_probability,
        paddle,
    )
}  # fmt: skip


def main(library: str) -> None:
    result = LIBRARIES[library]()
    for values in result if isinstance(result, tuple) else (result,):
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        print(*(f"{value:.3f}" for value in array.ravel()[:64]))


if __name__ == "__main__":
    main(sys.argv[1])
