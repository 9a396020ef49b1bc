"""One training step of a network by each contender: forward, all gradients, an AdamW update of every variable.

All start from the same weights. Ours is the user's own script on the device: a `tf.function`, or Keras' `fit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contenders import OURS, THREADS, start_tensorflow

__all__ = ["CONTENDERS", "Step", "Subject", "start"]

RATE = 1e-5
FIT_STEPS = 64  # of one call of `fit`
MODES = {"fp32": "must_keep_origin_dtype", "bf16": "allow_mix_precision_bf16"}

Step = Callable[[], float]  # the steps of one call; the loss of the last, of `fit` their mean


@dataclass
class Subject:
    """A network in both frameworks with one set of weights, its input and its target."""

    name: str
    batch: int
    precision: str
    small: bool

    def __post_init__(self) -> None:
        from benchmarks.models.zoo import zoo

        self.model = _small_cnn() if self.fits else zoo(self.small)[self.name]
        self.module = self.model.module()
        self.inputs = self.model.inputs(self.batch)
        shape = tuple(self.module(*map(_tensor, self.inputs)).shape)
        random = np.random.default_rng(3)
        self.classified = len(shape) == 2
        self.target = (
            random.integers(0, shape[1], shape[0])
            if self.classified
            else random.standard_normal(shape).astype(np.float32)
        )

    @property
    def fits(self) -> bool:
        """Whether the steps are made by Keras' `fit`."""
        return self.name == "cnn"

    @property
    def steps(self) -> int:
        """Steps of one call."""
        return FIT_STEPS if self.fits else 1


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def _small_cnn() -> Any:
    """A small convolutional network for small images."""
    from torch import nn

    from benchmarks.models.zoo import ZooModel, image

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def rebuild(port: Any, x: Any) -> Any:
        for place in ("0", "3"):
            x = port.ops.max_pool(port.ops.relu(port.conv(x, place)), 2)
        x = port.ops.mean(port.ops.relu(port.conv(x, "6")), axis=(1, 2))
        return port.dense(x, "10")

    return ZooModel("cnn", "small CNN", make, rebuild, image(32))


# -- TensorFlow ----------------------------------------------------------------------------------------------


def _keras(subject: Subject, precision: str) -> Any:
    from benchmarks.models.export import keras_model

    policy = "mixed_bfloat16" if precision == "bf16" else "float32"
    return keras_model(subject.model, subject.batch, subject.module, policy)


def _by_hand(subject: Subject, model: Any, xla: bool) -> Step:
    """A training step as users write it."""
    from benchmarks.models.export import channels_last

    tf = start_tensorflow()
    weights = model.trainable_variables
    optimizer = tf.keras.optimizers.AdamW(RATE)
    optimizer.build(weights)
    tensors = [tf.constant(a) for a in (*channels_last(subject.inputs), subject.target)]

    @tf.function(jit_compile=xla)
    def train(*given: Any) -> Any:
        *inputs, target = given
        with tf.GradientTape() as tape:
            y = model(inputs if len(inputs) > 1 else inputs[0], training=True)
            if subject.classified:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(target, y)
            else:
                each = tf.square(y - target)
            loss = tf.reduce_mean(each)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return lambda: float(train(*tensors))


def _by_fit(subject: Subject, model: Any, xla: bool) -> Step:
    """Steps of `fit` over data in memory."""
    from benchmarks.models.export import channels_last

    tf = start_tensorflow()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.AdamW(RATE), loss, jit_compile=xla)
    x, y = (np.concatenate([a] * FIT_STEPS) for a in (*channels_last(subject.inputs), subject.target))
    fit = {"batch_size": subject.batch, "shuffle": False, "verbose": 0}
    return lambda: float(model.fit(x, y, **fit).history["loss"][0])


def _on(place: str, subject: Subject, precision: str, *, xla: bool = False) -> Step:
    tf = start_tensorflow()
    with tf.device(place):
        step = (_by_fit if subject.fits else _by_hand)(subject, _keras(subject, precision), xla)

    def placed() -> float:
        with tf.device(place):
            return step()

    return placed


def _ours(subject: Subject) -> Step:
    import tf_adapter

    tf_adapter.options.precision_mode = MODES[subject.precision]
    return _on("/NPU:0", subject, "fp32")


# -- PyTorch -------------------------------------------------------------------------------------------------


def _by_torch(subject: Subject) -> Step:
    import torch

    torch.set_num_threads(THREADS)
    module = subject.model.module().train().requires_grad_(True)
    if any(a.ndim == 4 for a in subject.inputs):
        module = module.to(memory_format=torch.channels_last)
    # Keras' weight decay and epsilon.
    optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=0.004, eps=1e-7)
    inputs = [_tensor(a) for a in subject.inputs]
    target = _tensor(subject.target)
    compiled = torch.compile(module)
    kind = torch.nn.functional.cross_entropy if subject.classified else torch.nn.functional.mse_loss

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=subject.precision == "bf16"):
            y = compiled(*inputs)
        loss = kind(y.float(), target)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return lambda: float(np.mean([step() for _ in range(subject.steps)]))


CONTENDERS: dict[str, Callable[[Subject], Step]] = {
    OURS: _ours,
    "tensorflow": lambda subject: _on("/CPU:0", subject, subject.precision),
    "xla": lambda subject: _on("/CPU:0", subject, subject.precision, xla=True),
    "torch": _by_torch,
}


def start(name: str) -> None:
    """Import what a contender needs and start it up."""
    os.environ["NPU_AS_DEFAULT"] = "0"
    tf = start_tensorflow()
    if name == OURS:
        import npu_runtime
        import tf_adapter

        npu_runtime.set_num_threads(THREADS)
        with tf.device("/NPU:0"):
            assert tf_adapter and float(tf.constant(1.0) + 1.0) == 2.0
