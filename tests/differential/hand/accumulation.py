# ruff: noqa
# fmt: off
# effective batch 64 = 16 x 4
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

torch.manual_seed(0)
accumulation_steps = 4
accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps)

g = torch.Generator().manual_seed(1)
x = torch.randn(256, 8, generator=g)
y = x.prod(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    model.train()
    optimizer.zero_grad()
    for i, (inputs, labels) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = criterion(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")

accelerator.save(accelerator.unwrap_model(model).state_dict(), "accumulated.pt")
