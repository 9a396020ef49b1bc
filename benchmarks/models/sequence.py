"""A two-layer LSTM over a sequence of vectors, with a linear head on the last step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from benchmarks.models.port import KerasPort, KerasTensor

__all__ = ["LstmNet", "keras_lstm"]


class LstmNet(nn.Module):
    """Stacked LSTM layers, batch first."""

    def __init__(self, features: int = 512, hidden: int = 512, layers: int = 2, classes: int = 1000) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.lstm(x)
        return self.head(y[:, -1])


def keras_lstm(port: KerasPort, x: KerasTensor) -> KerasTensor:
    """The same network in Keras, with the module's weights."""
    layers = port.module.lstm.num_layers
    for layer in range(layers):
        x = port.lstm_layer(x, "lstm", layer, sequences=layer < layers - 1)
    return port.dense(x, "head")
