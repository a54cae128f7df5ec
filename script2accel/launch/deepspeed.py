"""DeepSpeed's JSON for the answers."""

from __future__ import annotations

import json

from script2accel.errors import InternalError
from script2accel.knowledge.deepspeed import AUTO, faults
from script2accel.workflow.answers import Answers

FILE = "deepspeed_config.json"


def config(answers: Answers) -> dict[str, object]:
    """The table. Batch sizes and accumulation are filled in by `Accelerator.prepare`; the precision stands here, since Accelerate refuses it
    in its own file beside this one; `gradient_clipping` always stands here, since DeepSpeed clips at 1.0 where it is left out."""
    zero: dict[str, object] = {"stage": answers.zero}
    if answers.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if answers.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if answers.zero == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    found: dict[str, object] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": answers.gradient_clipping,
    }
    if answers.mixed_precision in ("bf16", "fp8"):
        found["bf16"] = {"enabled": True}
    if answers.mixed_precision == "fp16":
        found["fp16"] = {"enabled": True}
    found["zero_optimization"] = zero
    wrong = faults(found)
    if wrong:
        raise InternalError(f"the DeepSpeed configuration is wrong: {'; '.join(wrong)}")
    return found


def document(answers: Answers) -> str:
    """The file's text."""
    return json.dumps(config(answers), indent=2) + "\n"
