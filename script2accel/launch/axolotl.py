"""The fields of an Axolotl configuration for the same parallelism."""

from __future__ import annotations

from script2accel.errors import InternalError, UsageError
from script2accel.knowledge.axolotl import SOURCE, faults
from script2accel.launch import accelerate, deepspeed, yaml
from script2accel.workflow.answers import Answers

FILE = "axolotl_fields.yaml"
NAMES = {"dp_shard": "dp_shard_size", "dp_replicate": "dp_replicate_size", "tp": "tensor_parallel_size", "cp": "context_parallel_size"}


def refusal(answers: Answers) -> str:
    """Why Axolotl has no fields for the answers; empty when it has."""
    if answers.hardware not in ("single-gpu", "multi-gpu", "multi-node"):
        return f"Axolotl's parallelism fields are documented for GPUs ({SOURCE})"
    if answers.sp > 1:
        return f"Axolotl splits sequences with FSDP, not with DeepSpeed's sp ({SOURCE}); nearest valid: cp={answers.sp} with fsdp2"
    return ""


def fields(answers: Answers) -> dict[str, object]:
    """The fields. Raises UsageError where Axolotl has none."""
    if refusal(answers):
        raise UsageError(refusal(answers))
    found: dict[str, object] = {}
    if answers.engine == "fsdp2":
        block = accelerate.fsdp(answers)
        found = {"fsdp_version": block.pop("fsdp_version"), "fsdp_config": {key.removeprefix("fsdp_"): value for key, value in block.items()}}
    if answers.engine == "deepspeed":
        found["deepspeed"] = deepspeed.FILE
    elif answers.engine == "fsdp2" or answers.tp > 1:  # plain DDP is what Axolotl does without any
        found |= {NAMES[name]: size for name, size in answers.sizes.active.items()}
    if answers.cp > 1:
        found["attn_implementation"] = "flash_attention_2"
    if answers.mixed_precision != "no":
        found[answers.mixed_precision] = True
    wrong = faults(found)
    if wrong:
        raise InternalError(f"the Axolotl fields are wrong: {'; '.join(wrong)}")
    return found


def document(answers: Answers) -> str:
    """The fields as text, to be merged into a configuration."""
    comments = [f"Fields for an Axolotl configuration ({SOURCE})"]
    comments += ["context parallelism needs ring-flash-attn there"] if answers.cp > 1 else []
    return yaml.document(fields(answers), comments)
