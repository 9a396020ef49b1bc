"""A PyTorch training loop with planted faults; comments name them."""

import time

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 32)
        self.b = nn.Linear(32, 1)

    def forward(self, x):
        h = torch.relu(self.a(x))
        h = torch.fft.fft(h).real  # unsupported operator
        return self.b(h)


net = Net().to(device)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        time.sleep(0.03)  # slow input
        return torch.randn(16), torch.randn(1)


data = Slow()
history = []
for x, y in torch.utils.data.DataLoader(data, batch_size=8):
    x, y = x.to(device), y.to(device)
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(torch.zeros(200_000) + loss.item())  # leak and read in every step
