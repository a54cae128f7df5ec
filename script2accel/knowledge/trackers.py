"""Experiment trackers: what makes one, and which of their calls Accelerate's trackers pass on as they are."""

from __future__ import annotations

import re

MAKERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("tensorboard", re.compile(r"^torch\.utils\.tensorboard(\.writer)?\.SummaryWriter$")),
    ("tensorboardX", re.compile(r"^(tensorboardX|tensorboard_logger)(\.\w+)*\.(SummaryWriter|FileWriter|Logger)$")),
    ("wandb", re.compile(r"^wandb\.init$")),
    ("trackio", re.compile(r"^trackio\.init$")),
    ("swanlab", re.compile(r"^swanlab\.init$")),
    ("comet_ml", re.compile(r"^comet_ml\.(\w+\.)?(Experiment|OfflineExperiment|start)$")),
    ("mlflow", re.compile(r"^mlflow\.start_run$")),
    ("clearml", re.compile(r"^clearml\.Task\.init$")),
    ("aim", re.compile(r"^aim\.Run$")),
    ("dvclive", re.compile(r"^dvclive\.Live$")),
    ("neptune", re.compile(r"^neptune\.init\w*$")),
    ("visdom", re.compile(r"^visdom\.Visdom$")),
)
"""https://huggingface.co/docs/accelerate/usage_guides/tracking: all but the last two are Accelerate's, too."""
REWRITTEN = frozenset({"tensorboard", "wandb", "trackio"})
"""Those whose tracker class in Accelerate (1.10 to 1.15) makes the same calls with the same arguments."""
SCALARS = {"add_scalar": ("tag", "scalar_value", "global_step"), "add_scalars": ("main_tag", "tag_scalar_dict", "global_step")}


def maker(path: str) -> str:
    """The tracker that a call of this path makes, or ''."""
    return next((name for name, pattern in MAKERS if pattern.match(path)), "")
