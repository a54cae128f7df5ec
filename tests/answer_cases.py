"""Answers of every kind, for the tests of what is made from them."""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.knowledge.accelerate import OLDEST
from script2accel.workflow.answers import Answers, problems, propose

PRECISIONS = ("no", "fp16", "bf16")
SEED = {"hardware": "multi-node", "num_machines": 2, "num_processes": 16, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 2}
"""The configuration that needs two machines of eight devices."""


def _given() -> Iterator[dict[str, object]]:
    for hardware in ("single-gpu", "mps", "tpu", "cpu"):
        yield {"hardware": hardware}
    yield {"hardware": "cpu", "num_processes": 2}
    yield {"hardware": "single-gpu", "strategy": "zero2", "offload": "optimizer"}
    for place in ({"hardware": "multi-gpu", "num_processes": 8}, {"hardware": "multi-node", "num_machines": 2, "num_processes": 16}):
        for strategy in ("ddp", "fsdp2", "hsdp", "zero1", "zero2", "zero3"):
            yield {**place, "strategy": strategy}
        yield {**place, "strategy": "fsdp2", "tp": 2}
        yield {**place, "strategy": "fsdp2", "cp": 4, "wrap": ("Block", "Head")}
        yield {**place, "strategy": "hsdp", "dp_replicate": 2, "tp": 2, "offload": "all"}
        yield {**place, "tp": place["num_processes"], "strategy": "ddp"}
        yield {**place, "strategy": "zero3", "sp": 4, "offload": "all", "gradient_clipping": 0.5}
    yield SEED
    yield {**SEED, "main_process_ip": "10.0.0.1", "main_process_port": 29511}
    for backend in ("te", "ao"):
        for strategy in ("ddp", "fsdp2", "zero2"):
            yield {"num_processes": 8, "strategy": strategy, "mixed_precision": "fp8", "fp8_backend": backend}


def cases() -> list[Answers]:
    """Each under every precision that it allows."""
    found = []
    for given in _given():
        wanted = PRECISIONS if given.get("hardware") != "multi-node" else ("bf16",)
        for precision in wanted if "mixed_precision" not in given else (given["mixed_precision"],):
            answers = propose({**given, "mixed_precision": precision})
            if not problems(answers):
                found.append(answers)
    return found


def least(answers: Answers) -> tuple[int, int]:
    """The version of Accelerate that the answers need: the oldest supported one unless they have sp or torchao's fp8."""
    if answers.mixed_precision == "fp8" and answers.fp8_backend == "ao":
        return (1, 13)
    return (1, 12) if answers.sp > 1 else OLDEST


def runnable() -> list[Answers]:
    """The cases for the installed Accelerate."""
    import accelerate

    major, minor = accelerate.__version__.split(".")[:2]
    return [answers for answers in cases() if least(answers) <= (int(major), int(minor))]


def name(answers: Answers) -> str:
    """A test's id."""
    sizes = "x".join(map(str, answers.sizes.active.values()))
    words = [answers.hardware, answers.strategy, sizes, answers.mixed_precision, answers.fp8_backend if answers.mixed_precision == "fp8" else ""]
    return "-".join(filter(None, [*words, answers.offload if answers.offload != "none" else "", "ip" if answers.main_process_ip else ""]))
