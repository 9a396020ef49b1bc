"""Networks that the tests and benchmarks of the MindSpore door train, as users of MindSpore write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


class LeNet(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.relu, self.pool, self.flatten = nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()
        self.fc1, self.fc2, self.fc3 = nn.Dense(400, 120), nn.Dense(120, 84), nn.Dense(84, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.flatten(self.pool(self.relu(self.conv2(x))))
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


class Bottleneck(nn.Cell):
    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inner, width, 1, has_bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, pad_mode="pad", padding=1, has_bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outer, 1, has_bias=False)
        self.norm3 = nn.BatchNorm2d(outer, gamma_init="zeros")  # a block begins as its shortcut
        self.relu, self.down = nn.ReLU(), None
        if stride != 1 or inner != outer:
            convolution = nn.Conv2d(inner, outer, 1, stride=stride, has_bias=False)
            self.down = nn.SequentialCell(convolution, nn.BatchNorm2d(outer))

    def construct(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm3(self.conv3(self.relu(self.norm2(self.conv2(y)))))
        shortcut = x
        if self.down is not None:
            shortcut = self.down(x)
        return self.relu(y + shortcut)


class ResNet(nn.Cell):
    """ResNet50 with its four stages of (3, 4, 6, 3) blocks; fewer blocks for a fast test."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, stride=2, pad_mode="pad", padding=3, has_bias=False)
        self.norm, self.relu = nn.BatchNorm2d(width), nn.ReLU()
        self.pool = nn.MaxPool2d(3, 2, pad_mode="same")
        layers: list[nn.Cell] = []
        inner = width
        for stage, count in enumerate(blocks):
            for index in range(count):
                here = width << stage
                layers.append(Bottleneck(inner, here, 2 if stage and not index else 1))
                inner = 4 * here
        self.body, self.fc = nn.SequentialCell(*layers), nn.Dense(inner, classes)

    def construct(self, x: Tensor) -> Tensor:
        x = self.body(self.pool(self.relu(self.norm(self.conv(x)))))
        return self.fc(ops.mean(x, (2, 3)))


class BertLayer(nn.Cell):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.query, self.key, self.value = (nn.Dense(width, width) for _ in range(3))
        self.out, self.norm1, self.norm2 = (
            nn.Dense(width, width),
            nn.LayerNorm((width,)),
            nn.LayerNorm((width,)),
        )
        self.up, self.down, self.gelu = nn.Dense(width, 4 * width), nn.Dense(4 * width, width), nn.GELU(False)

    def split(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        return x.reshape(batch, length, self.heads, self.width // self.heads).transpose(0, 2, 1, 3)

    def construct(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = ops.matmul(query, key.transpose(0, 1, 3, 2)) / (self.width // self.heads) ** 0.5
        weights = ops.softmax(scores + (1.0 - mask) * -10000.0, -1)
        joined = ops.matmul(weights, value).transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.norm1(x + self.out(joined))
        return self.norm2(x + self.down(self.gelu(self.up(x))))


class Bert(nn.Cell):
    def __init__(self, words: int = 100, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(64, width)
        self.norm = nn.LayerNorm((width,))
        self.layers = nn.CellList([BertLayer(width, heads) for _ in range(layers)])
        self.pooler, self.tanh, self.head = nn.Dense(width, width), nn.Tanh(), nn.Dense(width, 3)

    def construct(self, ids: Tensor) -> Tensor:
        mask = (ids > 0).astype(ms.float32).expand_dims(1).expand_dims(1)
        x = self.norm(self.words(ids) + self.places(ops.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.tanh(self.pooler(x[:, 0])))


class Tagger(nn.Cell):
    """An LSTM over a sequence."""

    def __init__(self, inner: int = 32, units: int = 64, classes: int = 5, **kwargs: Any) -> None:
        super().__init__()
        self.inner = inner
        self.lstm = nn.LSTM(inner, units, batch_first=True, **kwargs)
        self.head = nn.Dense(units * (2 if kwargs.get("bidirectional") else 1), classes)

    def construct(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.head(y[:, -1])


class Double(nn.Cell):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        parts: list[nn.Cell] = []
        for width in (inner, outer):
            parts += [nn.Conv2d(width, outer, 3, pad_mode="same"), nn.BatchNorm2d(outer), nn.ReLU()]
        self.body = nn.SequentialCell(*parts)

    def construct(self, x: Tensor) -> Tensor:
        return self.body(x)


class UNet(nn.Cell):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2, self.middle = (
            Double(1, width),
            Double(width, 2 * width),
            Double(2 * width, 4 * width),
        )
        self.pool = nn.MaxPool2d(2, 2)
        self.rise2 = nn.Conv2dTranspose(4 * width, 2 * width, 2, stride=2, pad_mode="same")
        self.rise1 = nn.Conv2dTranspose(2 * width, width, 2, stride=2, pad_mode="same")
        self.up2, self.up1 = Double(4 * width, 2 * width), Double(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def construct(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(self.pool(one))
        y = self.middle(self.pool(two))
        y = self.up2(ops.cat((self.rise2(y), two), 1))
        return self.head(self.up1(ops.cat((self.rise1(y), one), 1)))


class Generator(nn.Cell):
    def __init__(self, noise: int = 16) -> None:
        super().__init__()
        self.fc, self.norm = nn.Dense(noise, 8 * 7 * 7), nn.BatchNorm2d(8)
        self.rise1 = nn.Conv2dTranspose(8, 8, 4, stride=2, pad_mode="pad", padding=1)
        self.rise2 = nn.Conv2dTranspose(8, 1, 4, stride=2, pad_mode="pad", padding=1)

    def construct(self, z: Tensor) -> Tensor:
        x = ops.relu(self.norm(self.fc(z).reshape(-1, 8, 7, 7)))
        return ops.tanh(self.rise2(ops.relu(self.rise1(x))))


class Discriminator(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 4, stride=2, pad_mode="pad", padding=1)
        self.conv2 = nn.Conv2d(8, 16, 4, stride=2, pad_mode="pad", padding=1)
        self.act, self.fc = nn.LeakyReLU(0.2), nn.Dense(16 * 7 * 7, 1)

    def construct(self, x: Tensor) -> Tensor:
        x = self.act(self.conv2(self.act(self.conv1(x))))
        return self.fc(x.reshape(x.shape[0], -1))


def _seeded() -> np.random.RandomState:
    ms.set_seed(0)
    np.random.seed(0)
    return np.random.RandomState(0)


Step = Callable[..., Any]
Optimizer = Callable[[Any], nn.Optimizer]


def _momentum(parameters: Any) -> nn.Optimizer:
    return nn.Momentum(parameters, 0.01, 0.9)


def _adam(parameters: Any) -> nn.Optimizer:
    return nn.Adam(parameters, 1e-3)


def training(net: nn.Cell, loss: nn.Cell, make: Optimizer) -> Step:
    """A whole training step as a function of a batch: it updates the network and returns the loss."""
    net.set_train(True)
    optimizer = make(net.trainable_params())

    def forward(x: Tensor, target: Tensor) -> Tensor:
        return loss(net(x), target)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x: Tensor, target: Tensor) -> Tensor:
        value, gradients = gradient(x, target)
        optimizer(gradients)
        return value

    return step


def _classifier(net: nn.Cell, x: np.ndarray, classes: int, make: Optimizer) -> tuple[Step, list[Tensor]]:
    target = (np.arange(len(x)) % classes).astype(np.int32)
    return training(net, nn.CrossEntropyLoss(), make), [Tensor(x), Tensor(target)]


# A network and what it reads, by the settings of its size.


def _lenet(batch: int = 4) -> tuple[nn.Cell, np.ndarray]:
    r = _seeded()
    return LeNet(), r.randn(batch, 1, 32, 32).astype(np.float32)


def _resnet50(size: int = 32, batch: int = 2, **kwargs: Any) -> tuple[nn.Cell, np.ndarray]:
    r = _seeded()
    return ResNet(**kwargs), r.randn(batch, 3, size, size).astype(np.float32)


def _bert(batch: int = 2, length: int = 16, **kwargs: Any) -> tuple[nn.Cell, np.ndarray]:
    r = _seeded()
    return Bert(**kwargs), r.randint(0, 100, (batch, length)).astype(np.int32)


def _lstm(batch: int = 4, length: int = 10, **kwargs: Any) -> tuple[nn.Cell, np.ndarray]:
    r = _seeded()
    net = Tagger(**kwargs)
    return net, r.randn(batch, length, net.inner).astype(np.float32)


def _unet(size: int = 16, batch: int = 2, width: int = 8) -> tuple[nn.Cell, np.ndarray]:
    r = _seeded()
    return UNet(width), r.randn(batch, 1, size, size).astype(np.float32)


def _generator(batch: int = 4) -> tuple[nn.Cell, np.ndarray]:
    r = _seeded()
    return Generator(), r.randn(batch, 16).astype(np.float32)


def lenet(make: Optimizer = _momentum, **settings: Any) -> tuple[Step, list[Tensor]]:
    return _classifier(*_lenet(**settings), 10, make)


def resnet50(make: Optimizer = _momentum, **settings: Any) -> tuple[Step, list[Tensor]]:
    return _classifier(*_resnet50(**settings), 10, make)


def bert(make: Optimizer = _adam, **settings: Any) -> tuple[Step, list[Tensor]]:
    return _classifier(*_bert(**settings), 3, make)


def lstm(make: Optimizer = _adam, **settings: Any) -> tuple[Step, list[Tensor]]:
    return _classifier(*_lstm(**settings), 5, make)


def unet(make: Optimizer = _adam, **settings: Any) -> tuple[Step, list[Tensor]]:
    net, x = _unet(**settings)
    batch, _, *size = x.shape
    target = Tensor((np.random.RandomState(1).rand(batch, *size) > 0.5).astype(np.int32))
    return training(net, nn.CrossEntropyLoss(), make), [Tensor(x), target]


def gan(make: Optimizer = _adam, batch: int = 4) -> tuple[Step, list[Tensor]]:
    """One step of both networks."""
    r = _seeded()
    generator, discriminator = Generator(), Discriminator()
    generator.update_parameters_name("generator.")
    discriminator.update_parameters_name("discriminator.")
    generator.set_train(True)
    discriminator.set_train(True)
    first, second = make(discriminator.trainable_params()), make(generator.trainable_params())
    second.update_parameters_name("second.")  # both optimizers count their steps
    loss = nn.BCEWithLogitsLoss()

    def judged(x: Tensor, z: Tensor) -> Tensor:
        real, fake = discriminator(x), discriminator(ops.stop_gradient(generator(z)))
        return loss(real, ops.ones_like(real)) + loss(fake, ops.zeros_like(fake))

    def forged(z: Tensor) -> Tensor:
        fake = discriminator(generator(z))
        return loss(fake, ops.ones_like(fake))

    judge = ms.value_and_grad(judged, None, first.parameters)
    forge = ms.value_and_grad(forged, None, second.parameters)

    def step(x: Tensor, z: Tensor) -> Tensor:
        one, gradients = judge(x, z)
        first(gradients)
        two, gradients = forge(z)
        second(gradients)
        return one + two

    x, z = r.randn(batch, 1, 28, 28).astype(np.float32), r.randn(batch, 16).astype(np.float32)
    return step, [Tensor(x), Tensor(z)]


TRAINING: dict[str, Callable[..., tuple[Step, list[Tensor]]]] = {
    "lenet": lenet,
    "resnet50": resnet50,
    "bert": bert,
    "lstm": lstm,
    "unet": unet,
    "gan": gan,
}


def _inference(
    make: Callable[..., tuple[nn.Cell, np.ndarray]],
) -> Callable[..., tuple[Step, list[Tensor]]]:
    def made(**settings: Any) -> tuple[Step, list[Tensor]]:
        net, x = make(**settings)
        net.set_train(False)

        def call(x: Tensor) -> Tensor:
            return net(x)

        return call, [Tensor(x)]

    return made


INFERENCE: dict[str, Callable[..., tuple[Step, list[Tensor]]]] = {
    "lenet": _inference(_lenet),
    "resnet50": _inference(_resnet50),
    "bert": _inference(_bert),
    "lstm": _inference(_lstm),
    "unet": _inference(_unet),
    "gan": _inference(_generator),
}
