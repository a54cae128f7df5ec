"""Libraries that run the training loop, or that start and join processes, in the script's place: tables only."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """One library: its name, the dotted paths whose call (or use as a base class) shows that it is at work."""

    name: str
    paths: re.Pattern[str]
    docs: str


FRAMEWORKS = (
    Framework(
        "Lightning",
        re.compile(r"^(pytorch_lightning|lightning(\.pytorch)?)\.(\w+\.)*(Trainer|LightningModule|LightningCLI)$"),
        "https://lightning.ai/docs/pytorch/stable/",
    ),
    Framework("Fabric", re.compile(r"^(lightning\.fabric|lightning|lightning_fabric)\.(\w+\.)*Fabric$"), "https://lightning.ai/docs/fabric/stable/"),
    Framework(
        "Ignite",
        re.compile(r"^ignite\.engine\.(Engine|create_supervised_trainer)$|^ignite\.distributed\.\w+$"),
        "https://docs.pytorch.org/ignite/",
    ),
    Framework(
        "the transformers Trainer",
        re.compile(r"^(transformers|trl)\.(\w+\.)*\w*Trainer$"),
        "https://huggingface.co/docs/transformers/main_classes/trainer",
    ),
    Framework("fastai", re.compile(r"^fastai\.(\w+\.)*(\w*[Ll]earner)$"), "https://docs.fast.ai/"),
    Framework("skorch", re.compile(r"^skorch\.(\w+\.)*NeuralNet\w*$"), "https://skorch.readthedocs.io/"),
    Framework("MMEngine", re.compile(r"^(mmengine\.(\w+\.)*Runner|mmcv\.runner\.\w+)(\.\w+)?$"), "https://mmengine.readthedocs.io/"),
    Framework("Composer", re.compile(r"^composer\.(\w+\.)*Trainer$"), "https://docs.mosaicml.com/projects/composer/"),
    Framework("Keras", re.compile(r"^((tensorflow\.)?keras|tf_keras)\.(\w+\.)*(Sequential|Model)$"), "https://keras.io/"),
    Framework("Horovod", re.compile(r"^horovod\.\w+(\.\w+)*$"), "https://horovod.readthedocs.io/"),
    Framework("DeepSpeed", re.compile(r"^deepspeed\.(initialize|init_distributed)$"), "https://www.deepspeed.ai/"),
    Framework(
        "Ray Train", re.compile(r"^ray\.train\.(\w+\.)*(TorchTrainer|prepare_model|prepare_data_loader)$"), "https://docs.ray.io/en/latest/train/"
    ),
)
SEARCHES = (  # each trial's settings are drawn in the process that asks for them
    Framework("Optuna", re.compile(r"^optuna\.(study\.)?(create_study|load_study|Study)$"), "https://optuna.readthedocs.io/"),
    Framework("Ray Tune", re.compile(r"^ray\.tune\.(run|Tuner|run_experiments)$|^ray\.air\.\w+$"), "https://docs.ray.io/en/latest/tune/"),
    Framework("a Weights & Biases sweep", re.compile(r"^wandb\.agent$"), "https://docs.wandb.ai/guides/sweeps/"),
    Framework("Hyperopt", re.compile(r"^hyperopt\.fmin$|^hyperopt\.fmin\.fmin$"), "http://hyperopt.github.io/hyperopt/"),
)
