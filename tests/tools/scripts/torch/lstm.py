"""PyTorch: inference with an LSTM cell in a loop over time."""

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 16)
        self.output = nn.Linear(16, 1)

    def forward(self, series):
        h = c = series.new_zeros(series.shape[0], 16)
        for t in range(series.shape[1]):
            h, c = self.cell(series[:, t], (h, c))
        return self.output(h)


torch.manual_seed(2)
model = Forecaster().eval()
with torch.no_grad():
    for _ in range(25):
        y = model(torch.randn(8, 6, 4))
print(y.shape)
