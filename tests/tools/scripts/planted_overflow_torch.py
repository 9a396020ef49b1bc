"""PyTorch: a layer that overflows in fp16, found with --layers."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.huge = nn.Linear(32, 32)
        self.last = nn.Linear(32, 4)
        nn.init.normal_(self.huge.weight, std=3e4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = self.huge(x)  # overflows in fp16
        return self.last(x)


torch.manual_seed(0)
net = Net()
x = torch.randn(8, 16)
with torch.no_grad():
    for _ in range(20):
        y = net(x)
