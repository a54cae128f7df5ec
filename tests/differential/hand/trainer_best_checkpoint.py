# ruff: noqa
# fmt: off
"""Binary classifier with a Trainer class; keeps the best weights."""
import argparse
import os

import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset


class MoonsDataset(Dataset):
    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.rand(size, generator=g) * 3.14159
        side = torch.arange(size) % 2
        x = torch.where(side == 0, torch.cos(t), 1 - torch.cos(t))
        y = torch.where(side == 0, torch.sin(t), 0.5 - torch.sin(t))
        self.points = torch.stack([x, y], dim=1) + 0.1 * torch.randn(size, 2, generator=g)
        self.labels = side.float()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.labels[index]


class MLP(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


class Trainer:
    def __init__(self, model, train_loader, val_loader, lr, accelerator, out_dir):
        self.accelerator = accelerator
        self.device = accelerator.device
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.model, self.optimizer, self.train_loader, self.val_loader = self.accelerator.prepare(
            self.model, self.optimizer, self.train_loader, self.val_loader)
        self.out_dir = out_dir
        self.best_loss = float("inf")

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for points, labels in self.train_loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.criterion(self.model(points), labels)
            self.accelerator.backward(loss)
            self.optimizer.step()
            total += loss.item()
        return total / len(self.train_loader)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        total, correct, seen = 0.0, 0, 0
        for points, labels in self.val_loader:
            logits = self.model(points)
            logits, labels = self.accelerator.gather_for_metrics((logits, labels))
            total += self.criterion(logits, labels).item() * labels.size(0)
            correct += ((logits > 0).float() == labels).sum().item()
            seen += labels.size(0)
        return total / seen, correct / seen

    def save(self, epoch):
        path = os.path.join(self.out_dir, "best.pt")
        state = self.accelerator.unwrap_model(self.model).state_dict()
        if self.accelerator.is_main_process:
            torch.save({"epoch": epoch, "model": state, "optimizer": self.optimizer.state_dict()}, path)

    def fit(self, epochs):
        for epoch in range(epochs):
            train_loss = self.train_epoch()
            val_loss, val_acc = self.validate()
            self.accelerator.print(f"[{epoch}] train {train_loss:.4f}")
            self.accelerator.print(f"[{epoch}] val {val_loss:.4f} acc {val_acc:.3f}")
            if val_loss < self.best_loss:
                self.best_loss = val_loss
                self.save(epoch)
        self.accelerator.print(f"best val loss: {self.best_loss:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--out_dir", default="runs")
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(42)
    os.makedirs(args.out_dir, exist_ok=True)
    train_loader = DataLoader(MoonsDataset(160, 0), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(MoonsDataset(70, 1), batch_size=args.batch_size)
    trainer = Trainer(MLP(16), train_loader, val_loader, args.lr, accelerator, args.out_dir)
    trainer.fit(args.epochs)


if __name__ == "__main__":
    main()
