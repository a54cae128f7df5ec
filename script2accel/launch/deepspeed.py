"""DeepSpeed's JSON for the answers."""

from __future__ import annotations

import json

from script2accel.errors import InternalError
from script2accel.knowledge.deepspeed import faults, table
from script2accel.workflow.answers import Answers

FILE = "deepspeed_config.json"


def config(answers: Answers) -> dict[str, object]:
    """The table; the precision stands here, since Accelerate refuses it in its own file beside this one."""
    found = table(answers.zero, answers.gradient_clipping, answers.offload)
    if answers.mixed_precision in ("bf16", "fp8"):
        found["bf16"] = {"enabled": True}
    if answers.mixed_precision == "fp16":
        found["fp16"] = {"enabled": True}
    wrong = faults(found)
    if wrong:
        raise InternalError(f"the DeepSpeed configuration is wrong: {'; '.join(wrong)}")
    return found


def document(answers: Answers) -> str:
    """The file's text."""
    return json.dumps(config(answers), indent=2) + "\n"
