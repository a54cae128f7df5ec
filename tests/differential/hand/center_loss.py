# ruff: noqa
# fmt: off
"""Classifier with a centre loss: the criterion has parameters of its own, and the optimizer trains them."""
import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class CenterLoss(nn.Module):
    def __init__(self, num_classes, feat_dim):
        super().__init__()
        self.centers = nn.Parameter(torch.randn(num_classes, feat_dim) * 0.1)

    def forward(self, features, labels):
        return ((features - self.centers[labels]) ** 2).sum(dim=1).mean()


class EmbeddingNet(nn.Module):
    def __init__(self, num_classes=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.PReLU(), nn.Linear(32, 6))
        self.head = nn.Linear(6, num_classes)

    def forward(self, x):
        features = self.trunk(x)
        return features, self.head(features)


def loaders(batch_size):
    g = torch.Generator().manual_seed(0)
    y = torch.arange(204) % 4
    x = torch.randn(204, 10, generator=g) + 2.0 * F.one_hot(y, 10).float()
    train = DataLoader(TensorDataset(x[:144], y[:144]), batch_size=batch_size, shuffle=True)
    test = DataLoader(TensorDataset(x[144:], y[144:]), batch_size=batch_size)
    return train, test


def train_epoch(model, center_loss, loader, optimizer, alpha, accelerator):
    model.train()
    for x, y in loader:
        features, logits = model(x)
        loss = F.cross_entropy(logits, y) + alpha * center_loss(features, y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()


def test(model, loader, accelerator):
    model.eval()
    correct = 0
    n = 0
    with torch.no_grad():
        for x, y in loader:
            _, logits = model(x)
            logits, y = accelerator.gather_for_metrics((logits, y))
            correct += (logits.argmax(1) == y).sum().item()
            n += len(y)
    return correct / n


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--alpha', type=float, default=0.1)
    p.add_argument('--epochs', type=int, default=3)
    p.add_argument('--batch', type=int, default=24)
    a = p.parse_args()
    accelerator = Accelerator()
    torch.manual_seed(2)

    train_loader, test_loader = loaders(a.batch)
    model = EmbeddingNet()
    center_loss = CenterLoss(4, 6)
    optimizer = torch.optim.SGD(list(model.parameters()) + list(center_loss.parameters()), lr=0.1)
    model, center_loss, optimizer, train_loader, test_loader = accelerator.prepare(
        model, center_loss, optimizer, train_loader, test_loader)

    for epoch in range(a.epochs):
        train_epoch(model, center_loss, train_loader, optimizer, a.alpha, accelerator)
        accelerator.print('epoch', epoch, 'accuracy %.4f' % test(model, test_loader, accelerator))
    accelerator.save({'model': accelerator.unwrap_model(model).state_dict(), 'centers': accelerator.unwrap_model(center_loss).state_dict()}, 'center.pt')


if __name__ == '__main__':
    main()
