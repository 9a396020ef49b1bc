"""Networks that the tests and benchmarks of the PaddlePaddle door train, as users of PaddlePaddle write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn


class Attention(nn.Layer):
    """Encoder layers over embedded tokens, as in BERT."""

    def __init__(self, width: int = 32, length: int = 8, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.length = length
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=dropout, activation="gelu")
        self.encoder, self.head = nn.TransformerEncoder(layer, layers), nn.Linear(width, 5)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.places(paddle.arange(self.length))
        return self.head(self.encoder(x)[:, 0])


class Recurrent(nn.Layer):
    """An LSTM and a GRU in two directions, one after the other."""

    def __init__(self, inner: int = 6, units: int = 5) -> None:
        super().__init__()
        self.lstm, self.gru = (
            nn.LSTM(inner, units, num_layers=2),
            nn.GRU(units, units - 1, direction="bidirect"),
        )
        self.head = nn.Linear(2 * units - 2, 5)

    def forward(self, x: Any) -> Any:
        y, _ = self.lstm(x)
        y, last = self.gru(y)
        return self.head(y[:, -1]) + last.mean()


class Unet(nn.Layer):
    """One level down and up again, with the way across."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.down = (
            nn.Conv2D(3, width, 3, padding=1),
            nn.Conv2D(width, 2 * width, 3, padding=1),
        )
        self.up, self.last = nn.Conv2DTranspose(2 * width, width, 2, stride=2), nn.Conv2D(2 * width, 5, 1)
        self.norm = nn.BatchNorm2D(width)

    def forward(self, x: Any) -> Any:
        a = F.relu(self.norm(self.first(x)))
        b = F.relu(self.down(F.max_pool2d(a, 2)))
        y = self.last(paddle.concat([self.up(b), a], axis=1))
        return y.mean(axis=[2, 3])


class Crnn(nn.Layer):
    """Convolutions over lines of text, then an LSTM over their columns: scores (steps, batch, classes)."""

    def __init__(self, width: int = 8, classes: int = 7) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2D(1, width, 3, padding=1), nn.Conv2D(width, 2 * width, 3, padding=1)
        self.norm = nn.BatchNorm2D(2 * width)
        self.lstm, self.head = (
            nn.LSTM(2 * width, width, direction="bidirect", time_major=True),
            nn.Linear(2 * width, classes),
        )

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.one(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.two(x))), [2, 1])
        columns = x.mean(axis=2).transpose([2, 0, 1])
        return self.head(self.lstm(columns)[0])


class Recogniser(nn.Layer):
    """A CRNN with its loss of connectionist temporal classification."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.network = Crnn(width)

    def forward(self, x: Any, labels: Any, lengths: Any) -> Any:
        scores = self.network(x)
        steps = paddle.full([scores.shape[1]], scores.shape[0], "int64")
        return F.ctc_loss(scores, labels, steps, lengths)


IMAGES = np.random.default_rng(0).standard_normal((4, 3, 64, 64)).astype(np.float32)
TOKENS = np.random.default_rng(1).integers(0, 50, (3, 8))
LINES = np.random.default_rng(3).standard_normal((3, 1, 16, 40)).astype(np.float32)
SEQUENCE = np.random.default_rng(2).standard_normal((3, 7, 6)).astype(np.float32)
NETWORKS: dict[str, tuple[Callable[[], nn.Layer], np.ndarray]] = {
    "attention": (Attention, TOKENS),
    "recurrent": (Recurrent, SEQUENCE),
    "unet": (Unet, IMAGES),
    "resnet18": (lambda: paddle.vision.models.resnet18(num_classes=5), IMAGES),
    "mobilenet_v2": (lambda: paddle.vision.models.mobilenet_v2(scale=0.25, num_classes=5), IMAGES),
}
