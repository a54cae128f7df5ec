"""Commands that start a script: `accelerate launch` for each machine, and `torchrun` with the variables that Accelerate reads. Text alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from script2accel.launch import accelerate, deepspeed
from script2accel.parallelism import uses_config
from script2accel.workflow.answers import Answers

HOST = "MAIN_PROCESS_IP"
"""The variable that stands for the first machine's address where nobody gave one."""


@dataclass(frozen=True)
class Script:
    """What is started: the file and its arguments."""

    path: str = "train.py"
    arguments: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Quoted for a shell."""
        path = f"./{self.path}" if self.path.startswith("-") else self.path
        return [shlex.quote(word) for word in (path, *self.arguments)]


@dataclass(frozen=True)
class Place:
    """A machine among several, in words for a shell: its rank, and the first machine's host and port."""

    rank: str = "0"
    host: str = ""
    port: str = ""


def place(answers: Answers, rank: int) -> Place:
    """A machine by its number."""
    return Place(str(rank), shlex.quote(answers.main_process_ip) if answers.main_process_ip else f'"${HOST}"', str(answers.main_process_port))


def has_flags(answers: Answers) -> bool:
    """Whether flags alone say it all: sizes without FSDP have none (accelerate/commands/launch.py, `_validate_launch_command`)."""
    return not uses_config(answers.request) or answers.engine == "fsdp2"


def prefers_file(answers: Answers) -> bool:
    """Whether the command reads the configuration file: whatever is more than DDP and precision does."""
    return answers.engine != "ddp" or uses_config(answers.request) or answers.mixed_precision == "fp8"


def accelerate_launch(answers: Answers, script: Script, at: Place, *, file: str | None = None) -> str:
    """`accelerate launch` on one machine: reading a configuration file, or with flags alone."""
    if answers.hardware == "cpu" and answers.num_processes > 1:
        words = ["ACCELERATE_USE_CPU=true", "accelerate", "launch", "--multi_gpu", *_counts(answers), "--main_process_port", "0"]
    elif file is not None:
        words = ["accelerate", "launch", "--config_file", shlex.quote(file)]
        words += ["--mixed_precision", "fp8"] if answers.engine == "deepspeed" and answers.mixed_precision == "fp8" else []
    else:
        words = ["accelerate", "launch", *_flags(answers)]
    if answers.hardware == "multi-node":  # same_network is read from the command line alone: its flag has a default
        words += ["--machine_rank", at.rank, "--main_process_ip", at.host, "--main_process_port", at.port, "--same_network"]
    return " ".join([*words, *script.words()])


def _counts(answers: Answers) -> list[str]:
    counts = ["--num_processes", str(answers.num_processes), "--num_machines", str(answers.num_machines)]
    return [*counts, "--mixed_precision", answers.mixed_precision, "--dynamo_backend", "no"]


def _flags(answers: Answers) -> list[str]:
    """Every flag that the answers need, none left to a default that depends on the machine."""
    found = {"cpu": ["--cpu"], "tpu": ["--tpu", "--main_training_function", "main"]}.get(answers.hardware, [])
    if answers.engine == "fsdp2":
        found += ["--use_fsdp", *_section(accelerate.fsdp(answers))]
        if uses_config(answers.request):
            found += ["--use_parallelism_config", *_section(accelerate.parallelism(answers))]
    elif answers.engine == "deepspeed":
        found += ["--use_deepspeed", *_section(accelerate.deepspeed_section(answers))]
    elif answers.num_processes > 1 and not found:
        found += ["--multi_gpu"]
    found += _counts(answers)
    found += ["--rdzv_backend", "static"] if answers.hardware == "multi-node" else []
    if answers.mixed_precision == "fp8":
        found += _section({**accelerate.fp8(answers), "fp8_backend": answers.fp8_backend})
    return found


def _section(values: Mapping[str, object]) -> list[str]:
    return [word for key, value in values.items() for word in (f"--{key}", _text(value))]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else shlex.quote(str(value))


def environment(answers: Answers) -> dict[str, str]:
    """The variables that Accelerate's launcher would set for a process: what `torchrun` needs beside itself."""
    found: dict[str, str] = {}
    if answers.mixed_precision != "no" and (answers.engine != "deepspeed" or answers.mixed_precision == "fp8"):
        found["ACCELERATE_MIXED_PRECISION"] = answers.mixed_precision
    if answers.hardware == "cpu":
        found["ACCELERATE_USE_CPU"] = "true"
    if answers.engine == "fsdp2":
        found["ACCELERATE_USE_FSDP"] = "true"
        names = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}
        found |= {names.get(key, key.upper()): _plain(value) for key, value in accelerate.fsdp(answers).items()}
    if answers.engine == "deepspeed":
        found |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": deepspeed.FILE, "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false"}
    if uses_config(answers.request):
        found["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true"
        found |= {f"PARALLELISM_CONFIG_{name.upper()}_SIZE": str(size) for name, size in answers.sizes.active.items()}
        found |= {"PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION": "sdpa"} if answers.sp > 1 else {}
    if answers.mixed_precision == "fp8":
        found |= {f"ACCELERATE_{key.upper()}": _plain(value) for key, value in accelerate.fp8(answers).items()}
    return found


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def torchrun(answers: Answers, script: Script, at: Place) -> str:
    """The same start without Accelerate's launcher; empty for TPUs, which torchrun doesn't start."""
    if answers.hardware == "tpu":
        return ""
    words = [f"{name}={shlex.quote(value)}" for name, value in environment(answers).items()]
    if answers.num_processes == 1 and answers.engine != "deepspeed":
        return " ".join([*words, "python", *script.words()])
    words.append("torchrun")
    if answers.hardware == "multi-node":
        words += ["--nnodes", str(answers.num_machines), "--node_rank", at.rank, "--master_addr", at.host, "--master_port", at.port]
    else:
        words.append("--standalone")
    return " ".join([*words, "--nproc_per_node", str(answers.per_machine), *script.words()])
