"""The questions of `init`: when each is asked, the line that explains it, and who says so. The defaults come from `answers.propose`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from script2accel.errors import UsageError
from script2accel.workflow.answers import CHOICES, Answers, flag


def _always(answers: Answers) -> bool:
    return True


@dataclass(frozen=True)
class Question:
    """One field of the answers; `explanation` is one line, `source` where it is documented."""

    field: str
    text: str
    explanation: str
    source: str
    applies: Callable[[Answers], bool] = _always

    @property
    def choices(self) -> tuple[str, ...]:
        """The values to choose from; empty for numbers and names."""
        return CHOICES.get(self.field, ())

    @property
    def kind(self) -> str:
        """The field's type, as written in `Answers`."""
        return next(str(one.type) for one in fields(Answers) if one.name == self.field)

    def read(self, text: str) -> object:
        """A typed line as a value. Raises UsageError with what would be one."""
        text = text.strip()
        if self.choices and text not in self.choices:
            raise UsageError(f"one of {', '.join(self.choices)}")
        if self.kind == "tuple[str, ...]":
            return tuple(name.strip() for name in text.split(",") if name.strip())
        try:
            return int(text) if self.kind == "int" else float(text) if self.kind == "float" else text
        except ValueError:
            raise UsageError("a whole number" if self.kind == "int" else "a number") from None


def _several(answers: Answers) -> bool:
    return answers.hardware in ("multi-gpu", "multi-node")


def _fsdp(answers: Answers) -> bool:
    return answers.engine == "fsdp2"


def _zero(answers: Answers) -> bool:
    return answers.engine == "deepspeed"


DOCS = "accelerate docs, "
ND = "concept_guides/context_parallelism"
QUESTIONS = (
    Question("hardware", "What does it run on?", "TPU, CPU and MPS train with data parallelism alone.", DOCS + "index, usage_guides/mps"),
    Question(
        "num_machines",
        "How many machines?",
        "The command is run on every one.",
        DOCS + "basic_tutorials/launch",
        lambda a: a.hardware == "multi-node",
    ),
    Question(
        "num_processes",
        "How many processes in all?",
        "Accelerate counts them over all machines; one for each device.",
        "accelerate/utils/launch.py",
        lambda a: a.hardware not in ("single-gpu", "mps"),
    ),
    Question(
        "mixed_precision",
        "Which mixed precision?",
        "fp16 scales gradients by itself; fp8 needs the GPUs that `guide mixed-precision` names.",
        DOCS + "basic_tutorials/migration",
    ),
    Question(
        "fp8_backend",
        "Which fp8 backend?",
        "TransformerEngine (te) or torchao (ao); MS-AMP is no longer maintained.",
        DOCS + "usage_guides/low_precision_training",
        lambda a: a.mixed_precision == "fp8",
    ),
    Question(
        "strategy",
        "Which strategy?",
        "ddp copies the model; fsdp2 and zero1-3 shard it; hsdp shards within replicas.",
        DOCS + "concept_guides/fsdp_and_deepspeed",
        _several,
    ),
    Question(
        "tp", "Tensor parallel size?", "Splits layers; for transformers models with a plan alone.", DOCS + ND, lambda a: _several(a) and not _zero(a)
    ),
    Question("cp", "Context parallel size?", "Splits the sequence; needs FSDP2, and SDPA without a mask or causal.", DOCS + ND, _fsdp),
    Question(
        "sp",
        "Sequence parallel size?",
        "Splits the sequence among attention heads; transformers models, DeepSpeed alone.",
        DOCS + "concept_guides/sequence_parallelism",
        lambda a: _several(a) and _zero(a),
    ),
    Question(
        "dp_replicate",
        "How many replicas?",
        "Each shards on its own; usually one for each machine.",
        "axolotl docs, nd_parallelism",
        lambda a: a.strategy == "hsdp",
    ),
    Question("dp_shard", "Over how many processes is the model sharded?", "All sizes together make the number of processes.", DOCS + ND, _fsdp),
    Question("wrap", "Classes of the repeated block, by commas?", "Empty: a transformers model knows its own.", DOCS + "usage_guides/fsdp", _fsdp),
    Question(
        "offload",
        "Offload to CPU?",
        "optimizer needs ZeRO 2 or 3; all needs ZeRO 3 or FSDP.",
        DOCS + "usage_guides/deepspeed",
        lambda a: a.strategy in ("zero2", "zero3", "fsdp2", "hsdp"),
    ),
    Question(
        "optimizer",
        "Which optimizer does the script use?",
        "CPU offload makes DeepSpeed's own Adam of any other.",
        "accelerate/utils/deepspeed.py",
        lambda a: _zero(a) and a.offload != "none",
    ),
    Question(
        "gradient_clipping",
        "Norm that gradients are clipped at?",
        "0: none. Under DeepSpeed its file alone clips, at 1.0 where it says nothing.",
        "deepspeed/runtime/constants.py",
        _zero,
    ),
    Question(
        "cluster",
        "Which scheduler starts the machines?",
        "It gives each its rank and the first one's address.",
        DOCS + "basic_tutorials/launch",
        lambda a: a.hardware == "multi-node",
    ),
    Question(
        "main_process_ip",
        "Address of the first machine?",
        "Empty: you set MAIN_PROCESS_IP when you start.",
        DOCS + "basic_tutorials/launch",
        lambda a: a.hardware == "multi-node" and a.cluster == "none",
    ),
    Question(
        "main_process_port",
        "Port of the first machine?",
        "One that is free there.",
        DOCS + "basic_tutorials/launch",
        lambda a: a.hardware == "multi-node",
    ),
)


def shown(answers: Answers) -> Iterator[tuple[str, str]]:
    """The answers that apply, as (name, value) for people."""
    for question in QUESTIONS:
        if question.applies(answers):
            yield flag(question.field), written(getattr(answers, question.field))


def written(value: object) -> str:
    """A value as one would type it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
