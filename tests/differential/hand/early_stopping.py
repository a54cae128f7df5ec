# ruff: noqa
# fmt: off
import argparse
import numpy as np
import torch
import torch.nn as nn
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    """Stops training when the validation loss hasn't improved for a number of epochs."""

    def __init__(self, accelerator, patience=2, delta=0.0, path='checkpoint.pt'):
        self.accelerator = accelerator
        self.patience = patience
        self.delta = delta
        self.path = path
        self.counter = 0
        self.best_score = None
        self.early_stop = False

    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best_score is None or score >= self.best_score + self.delta:
            self.best_score = score
            self.counter = 0
            self.accelerator.save(self.accelerator.unwrap_model(model).state_dict(), self.path)
        else:
            self.counter += 1
            self.accelerator.print(f'EarlyStopping counter: {self.counter} out of {self.patience}')
            if self.counter >= self.patience:
                self.early_stop = True


def get_loaders(batch_size):
    rng = np.random.RandomState(17)
    x = rng.normal(size=(110, 30)).astype('float32')
    y = (x[:, 0] + rng.normal(scale=2.0, size=110) > 0).astype('int64')
    train = TensorDataset(torch.tensor(x[:64]), torch.tensor(y[:64]))
    valid = TensorDataset(torch.tensor(x[64:]), torch.tensor(y[64:]))
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(valid, batch_size=batch_size)


def train(model, train_loader, optimizer, criterion, accelerator):
    model.train()
    for data, target in train_loader:
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        accelerator.backward(loss)
        optimizer.step()


def validate(model, valid_loader, accelerator):
    model.eval()
    logits, targets = [], []
    with torch.no_grad():
        for data, target in valid_loader:
            output, target = accelerator.gather_for_metrics((model(data), target))
            logits.append(output)
            targets.append(target)
    logits = torch.cat(logits)
    targets = torch.cat(targets)
    return nn.functional.cross_entropy(logits, targets).item(), (logits.argmax(1) == targets).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, default=16)
    parser.add_argument('--max-epochs', type=int, default=15)
    parser.add_argument('--patience', type=int, default=2)
    parser.add_argument('--lr', type=float, default=0.02)
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(0)
    train_loader, valid_loader = get_loaders(args.batch_size)
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    early_stopping = EarlyStopping(accelerator, patience=args.patience)
    model, optimizer, train_loader, valid_loader = accelerator.prepare(model, optimizer, train_loader, valid_loader)

    for epoch in range(1, args.max_epochs + 1):
        train(model, train_loader, optimizer, criterion, accelerator)
        val_loss, val_acc = validate(model, valid_loader, accelerator)
        accelerator.print(f'[{epoch:>2}/{args.max_epochs}] valid_loss: {val_loss:.4f} valid_acc: {val_acc:.3f}')
        early_stopping(val_loss, model)
        if early_stopping.early_stop:
            accelerator.print('Early stopping')
            break

    # load the last checkpoint with the best model
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).load_state_dict(torch.load('checkpoint.pt', map_location='cpu'))
    val_loss, val_acc = validate(model, valid_loader, accelerator)
    accelerator.print(f'best model: valid_loss: {val_loss:.4f} valid_acc: {val_acc:.3f}')


if __name__ == '__main__':
    main()
