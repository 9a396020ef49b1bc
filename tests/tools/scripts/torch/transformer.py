"""PyTorch: a transformer encoder with AdamW and a learning-rate schedule."""

import torch
from torch import nn

torch.manual_seed(1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
tokens = torch.randint(0, 100, (16, 12))
labels = tokens[:, 0] % 2
for _ in range(30):
    loss = nn.functional.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
