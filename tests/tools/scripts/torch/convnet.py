"""PyTorch: a convnet with batch normalisation, trained from a DataLoader."""

import torch
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(8 * 6 * 6, 10),
).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
data = torch.utils.data.TensorDataset(torch.randn(256, 1, 12, 12), torch.randint(0, 10, (256,)))
for _epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=16):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
