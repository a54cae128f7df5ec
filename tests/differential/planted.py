"""Wrong conversions, made from right ones by small edits: what a careless rewrite does, most of them right at one process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HAND = Path(__file__).resolve().parent / "hand"


@dataclass(frozen=True)
class Planted:
    """One error: `edits` turn the right conversion of `case` into the wrong one; `caught` are words that a difference must hold.

    `processes` is where it shows: 2 for what looks right at one process.
    """

    name: str
    case: str
    edits: tuple[tuple[str, str], ...]
    caught: str
    processes: int = 2


def right(case: str) -> str:
    """The conversion by hand of a fixture script."""
    return (HAND / f"{case}.py").read_text(encoding="utf-8")


def wrong(planted: Planted) -> bytes:
    """The edited conversion. Raises ValueError when an edit doesn't fit exactly once."""
    text = right(planted.case)
    for old, new in planted.edits:
        if text.count(old) != 1:
            raise ValueError(f"{planted.name}: {old!r} occurs {text.count(old)} times in {planted.case}")
        text = text.replace(old, new)
    return text.encode()


DIGITS_PREPARE = "model, optimizer, train_loader, test_loader = accelerator.prepare(model, optimizer, train_loader, test_loader)\n"
ONECYCLE_PREPARE = "net, optimizer, train_loader, test_loader = accelerator.prepare(net, optimizer, train_loader, test_loader)\n"
ONECYCLE_HORIZON = "steps_per_epoch = len(train_loader)\n"
MISPLACED = "        accelerator.backward(loss)\n        optimizer.zero_grad()\n        optimizer.step()\n"
STEP = "        accelerator.backward(loss)\n        optimizer.step()\n"

PLANTED = (
    Planted(
        "epoch scheduler prepared",
        "digits_argparse",
        ((DIGITS_PREPARE, DIGITS_PREPARE + "    scheduler = accelerator.prepare(scheduler)\n"),),
        "learning rates",
    ),
    Planted(
        "unprepared scheduler, horizon from before prepare",
        "onecycle_module",
        ((ONECYCLE_PREPARE + ONECYCLE_HORIZON, ONECYCLE_HORIZON + ONECYCLE_PREPARE),),
        "learning rates",
    ),
    Planted(
        "prepared scheduler, horizon from the sharded length",
        "onecycle_module",
        (("\nlrs = []", "\nscheduler = accelerator.prepare(scheduler)\nlrs = []"),),
        "learning rates",
    ),
    Planted(
        "second model not prepared",
        "center_loss",
        (
            ("    model, center_loss, optimizer, train_loader, test_loader =", "    model, optimizer, train_loader, test_loader ="),
            ("        model, center_loss, optimizer, train_loader, test_loader)", "        model, optimizer, train_loader, test_loader)"),
        ),
        "ranks 0 and 1 differ",
    ),
    Planted(
        "loader not prepared",
        "digits_argparse",
        ((DIGITS_PREPARE, DIGITS_PREPARE.replace("train_loader, ", "")),),
        "backward passes",
    ),
    Planted(
        "prepare's result thrown away for the loader",
        "digits_argparse",
        ((DIGITS_PREPARE, DIGITS_PREPARE.replace("model, optimizer, train_loader, test_loader =", "model, optimizer, _, test_loader =")),),
        "backward passes",
    ),
    Planted(
        "no gather in evaluation",
        "digits_argparse",
        (("            output, target = accelerator.gather_for_metrics((output, target))\n", ""),),
        "metric lines",
    ),
    Planted(
        "gather keeps the padding",
        "digits_argparse",
        (("accelerator.gather_for_metrics((output, target))", "accelerator.gather((output, target))"),),
        "metric lines",
    ),
    Planted(
        "best checkpoint decided by each rank",
        "trainer_best_checkpoint",
        (("            logits, labels = self.accelerator.gather_for_metrics((logits, labels))\n", ""),),
        "metric lines",
    ),
    Planted(
        "unguarded save",
        "trainer_best_checkpoint",
        (("if self.accelerator.is_main_process:", "if True:"),),
        "is written by ranks [0, 1]",
    ),
    Planted(
        "checkpoint read before it is written",
        "early_stopping",
        (("    accelerator.wait_for_everyone()\n", ""),),
        "ranks 0 and 1 differ at the end",
    ),
    Planted(
        "each rank stops when its own data say so",
        "early_stopping",
        (("accelerator.gather_for_metrics((model(data), target))", "model(data), target"),),
        "conversion ended with",
    ),
    Planted(
        "saved with the wrapper's keys",
        "digits_argparse",
        (("accelerator.unwrap_model(model).state_dict()", "model.state_dict()"),),
        "keys",
    ),
    Planted(
        "printed by every rank",
        "digits_argparse",
        (("accelerator.print('\\nTest set", "print('\\nTest set"),),
        "prints it too",
    ),
    Planted(
        "data sharded twice",
        "digits_argparse",
        (
            (
                "DataLoader(make_digits(128, 10), shuffle=True, **train_kwargs)",
                "DataLoader(make_digits(128, 10), sampler=torch.utils.data.distributed.DistributedSampler(\n"
                "        make_digits(128, 10), accelerator.num_processes, accelerator.process_index), **train_kwargs)",
            ),
        ),
        "backward passes",
    ),
    Planted(
        "accumulation scaled twice",
        "accumulation",
        (("loss = criterion(model(inputs), labels)\n", "loss = criterion(model(inputs), labels) / accumulation_steps\n"),),
        "parameters differ",
        processes=1,
    ),
    Planted(
        "accumulation gated twice",
        "accumulation",
        (
            (
                "            optimizer.step()\n            optimizer.zero_grad()\n",
                "            if i % accumulation_steps == 0:\n                optimizer.step()\n                optimizer.zero_grad()\n",
            ),
        ),
        "optimizer steps",
        processes=1,
    ),
    Planted(
        "plain backward inside accumulate",
        "accumulation",
        (("accelerator.backward(loss)", "loss.backward()"),),
        "parameters differ",
        processes=1,
    ),
    Planted(
        "zero_grad lost",
        "digits_argparse",
        (("        optimizer.zero_grad()\n", ""),),
        "parameters differ",
        processes=1,
    ),
    Planted(
        "zero_grad between backward and step",
        "digits_argparse",
        (("        optimizer.zero_grad()\n", ""), (STEP, MISPLACED)),
        "parameters differ",
        processes=1,
    ),
    Planted(
        "model not prepared, plain backward",
        "digits_argparse",
        (
            (DIGITS_PREPARE, "model.to(device)\n    " + DIGITS_PREPARE.replace("model, ", "")),
            ("accelerator.backward(loss)", "loss.backward()"),
        ),
        "ranks 0 and 1 differ",
    ),
    Planted(
        "loss through the unwrapped model",
        "trainer_best_checkpoint",
        (("loss = self.criterion(self.model(points), labels)", "loss = self.criterion(self.accelerator.unwrap_model(self.model)(points), labels)"),),
        "ranks 0 and 1 differ",
    ),
    Planted(
        "clipping lost",
        "onecycle_module",
        (("        accelerator.clip_grad_norm_(net.parameters(), GRAD_CLIP)\n", ""),),
        "parameters differ",
        processes=1,
    ),
    Planted(
        "seed moved behind the model",
        "digits_argparse",
        (("    set_seed(args.seed)\n", ""), ("    model = Net()\n", "    model = Net()\n    set_seed(args.seed)\n")),
        "losses",
        processes=1,
    ),
    Planted(
        "learning rate scaled by the number of processes",
        "digits_argparse",
        (("lr=args.lr,", "lr=args.lr * accelerator.num_processes,"),),
        "learning rates",
    ),
)
