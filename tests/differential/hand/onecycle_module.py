#!/usr/bin/env python
# ruff: noqa
# fmt: off
import random
import numpy as np
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

SEED = 1234
random.seed(SEED)
np.random.seed(SEED)
torch.manual_seed(SEED)
if torch.cuda.is_available():
    torch.cuda.manual_seed_all(SEED)
torch.backends.cudnn.deterministic = True

DEVICE = accelerator.device
EPOCHS = 3
MAX_LR = 0.02
GRAD_CLIP = 0.5

rng = np.random.RandomState(0)
W = rng.randn(20, 5)
X = rng.randn(208, 20).astype(np.float32)
Y = (X @ W).argmax(1)

train_set = TensorDataset(torch.from_numpy(X[:128]), torch.from_numpy(Y[:128]))
test_set = TensorDataset(torch.from_numpy(X[128:]), torch.from_numpy(Y[128:]))
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
test_loader = DataLoader(test_set, batch_size=32, shuffle=False)

net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(net.parameters(), lr=MAX_LR / 25, weight_decay=1e-2)
net, optimizer, train_loader, test_loader = accelerator.prepare(net, optimizer, train_loader, test_loader)
steps_per_epoch = len(train_loader)
scheduler = OneCycleLR(optimizer, max_lr=MAX_LR, epochs=EPOCHS, steps_per_epoch=steps_per_epoch)

lrs = []
for epoch in range(EPOCHS):
    net.train()
    for i, data in enumerate(train_loader, 0):
        inputs, labels = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), GRAD_CLIP)
        optimizer.step()
        scheduler.step()
        lrs.append(optimizer.param_groups[0]['lr'])

    correct, total = 0, 0
    net.eval()
    with torch.no_grad():
        for data in test_loader:
            images, labels = data
            outputs = net(images)
            outputs, labels = accelerator.gather_for_metrics((outputs, labels))
            _, predicted = torch.max(outputs, 1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    accelerator.print('Epoch %d: accuracy of the network on the %d test rows: %.2f %%' % (epoch + 1, total, 100 * correct / total))

accelerator.print('final lr %.8f after %d steps' % (lrs[-1], len(lrs)))
accelerator.save(accelerator.unwrap_model(net).state_dict(), 'onecycle_net.pth')
