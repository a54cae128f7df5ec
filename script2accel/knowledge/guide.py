"""Documented facts about training with Accelerate, each with its page, and what is known to be wrong in common recipes.

Pages are those of Accelerate's documentation (huggingface.co/docs/accelerate) unless a source file is named; read at version 1.15.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """What is documented, and where: a page with its section, or a source file."""

    text: str
    page: str


@dataclass(frozen=True)
class Wrong:
    """A common recipe, what happens instead, and who says so ("measured": shown by running it)."""

    recipe: str
    truth: str
    source: str


@dataclass(frozen=True)
class Topic:
    """One page of the guide; the snippet's names in braces are replaced by those of a script."""

    title: str
    facts: tuple[Fact, ...]
    snippet: str
    wrong: tuple[Wrong, ...] = ()


LOW = "usage_guides/low_precision_training"
TOPICS: Mapping[str, Topic] = {
    "mixed-precision": Topic(
        "Mixed precision",
        (
            Fact("The type is chosen where the Accelerator is made, or in the config file.", "basic_tutorials/migration#mixed-precision"),
            Fact(
                "Autocast is automatic for the model's forward pass; `accelerator.autocast()` is for computations outside of it, such as a loss.",
                "basic_tutorials/migration#mixed-precision",
            ),
            Fact("fp16: `accelerator.backward` scales the loss, so no GradScaler stays in the script.", "basic_tutorials/migration#mixed-precision"),
            Fact("TPUs take bf16; `downcast_bf16` keeps doubles in fp32.", "concept_guides/training_tpu#mixed-precision-and-global-variables"),
            Fact("fp8 runs with TransformerEngine or torchao; MS-AMP is no longer maintained.", f"{LOW}#configuring-the-accelerator"),
            Fact(
                "fp8 is enabled on Hopper GPUs such as H100 and H200, and on cards after the 3000 series such as the 4090; nothing else is named.",
                f"{LOW}#what-training-on-fp8-means",
            ),
            Fact("torchao's fp8 doesn't work with `cpu_ram_efficient_loading`.", f"{LOW}#configuring-torchao"),
        ),
        'accelerator = Accelerator(mixed_precision="bf16")  # or "no", "fp16", "fp8"\n',
        (
            Wrong(
                "`MIXED_PRECISION=fp16 torchrun ...` (basic_tutorials/launch)",
                "that variable is not read; `ACCELERATE_MIXED_PRECISION` is",
                "accelerate/state.py",
            ),
            Wrong(
                "`Accelerator(kwarg_handlers=...)` (usage_guides/low_precision_training)",
                "the keyword is `kwargs_handlers`; the other one is a TypeError",
                "accelerate/accelerator.py",
            ),
            Wrong("keeping the script's own GradScaler under fp16", "the weights don't change, and nothing is said", "measured"),
            Wrong("fp16 on a CPU", "it does nothing there", "accelerate/accelerator.py"),
            Wrong("`mixed_precision: no` in a config file, unquoted", 'YAML reads it as false, and the launch fails; write "no"', "measured"),
            Wrong(
                "fp8 on a GPU below compute capability 8.9",
                "Accelerate warns and trains in fp16",
                "accelerate/state.py",
            ),
        ),
    ),
    "accumulation": Topic(
        "Gradient accumulation",
        (
            Fact(
                "The number of steps is given to the Accelerator, and `accelerator.accumulate(model)` goes around the whole step.",
                "usage_guides/gradient_accumulation#letting-accelerate-handle-gradient-accumulation",
            ),
            Fact(
                "The division of the loss and the test of the step number go: Accelerate does both.",
                "usage_guides/gradient_accumulation#letting-accelerate-handle-gradient-accumulation",
            ),
            Fact("Only one forward and backward pass belongs in one `accumulate` block.", "usage_guides/gradient_accumulation#the-finished-code"),
            Fact(
                "The end of a loader steps the optimizer too; `GradientAccumulationPlugin(sync_with_dataloader=False)` switches that off.",
                "usage_guides/gradient_accumulation#letting-accelerate-handle-gradient-accumulation",
            ),
            Fact(
                "The loader's batch size is that of one process: 64 on two GPUs are 128.",
                "concept_guides/performance#observed-batch-sizes",
            ),
            Fact(
                "With samples of varying length the right loss is the sum over the valid tokens of the whole global batch, divided by their number.",
                "usage_guides/gradient_accumulation#gradient-accumulation-on-training-samples-of-variable-size",
            ),
        ),
        "accelerator = Accelerator(gradient_accumulation_steps=4)\n"
        "{model}, {optimizer}, {loader} = accelerator.prepare({model}, {optimizer}, {loader})\n"
        "for batch in {loader}:\n"
        "    with accelerator.accumulate({model}):\n"
        "        loss = ...\n"
        "        accelerator.backward(loss)\n"
        "        {optimizer}.step()\n"
        "        {optimizer}.zero_grad()\n",
        (
            Wrong("dividing the loss by hand as well", "the gradients are divided twice", "measured"),
            Wrong(
                "`accelerate launch --gradient_accumulation_steps 4` without DeepSpeed",
                "it never reaches the script; give it to the Accelerator",
                "accelerate/utils/launch.py",
            ),
            Wrong("a second `Accelerator()` in a helper", "it sets the number of steps back to 1 for both", "measured"),
            Wrong("two backward passes on one forward pass under DDP", "the replicas drift apart, and nothing is said", "measured"),
        ),
    ),
    "checkpointing": Topic(
        "Checkpointing",
        (
            Fact("`save_state` and `load_state` keep models, optimizers, random states and the scaler.", "usage_guides/checkpoint"),
            Fact(
                "They are for one and the same script; what else has a `state_dict` is registered with `register_for_checkpointing`.",
                "usage_guides/checkpoint",
            ),
            Fact("`skip_first_batches` goes on in the middle of an epoch.", "usage_guides/checkpoint#restoring-the-state-of-the-dataloader"),
            Fact("`save_model` unwraps and writes the weights; first `wait_for_everyone()`.", "basic_tutorials/migration#model"),
            Fact(
                "Sharded weights are gathered with `accelerator.get_state_dict(model)`, or saved as SHARDED_STATE_DICT by `save_state`.",
                "usage_guides/fsdp#saving-and-loading",
            ),
            Fact("Every example of Accelerate calls `save_state` on all processes, with no guard.", "usage_guides/checkpoint"),
        ),
        'accelerator.save_state("checkpoint")  # on every process\n'
        'accelerator.load_state("checkpoint")  # on every process, after prepare\n'
        'accelerator.wait_for_everyone()\naccelerator.save_model({model}, "model")\n',
        (
            Wrong(
                "`save_state` under `if accelerator.is_main_process`",
                "DDP loses the other processes' random states; automatic names, FSDP and DeepSpeed wait forever",
                "measured",
            ),
            Wrong("`torch.save(model.state_dict())` under FSDP2", "it holds the shards of one process", "measured"),
            Wrong(
                'loading from "checkpointing/checkpoint_0" (usage_guides/checkpoint)',
                "automatic names are `checkpoints/checkpoint_0`",
                "accelerate/accelerator.py",
            ),
            Wrong("`save_state` with tensor parallelism alone", "it fails on sharded parameters", "measured"),
        ),
    ),
    "seeding": Topic(
        "Seeding",
        (
            Fact("`set_seed` seeds Python, NumPy, torch, the devices and, on TPUs, XLA.", "concept_guides/performance#setting-the-seed"),
            Fact("It gives every process the same numbers; `device_specific=True` adds the process's number.", "package_reference/utilities#random"),
            Fact("Shuffling stays the same on all processes: the sampler's generator is synchronised.", "concept_guides/internal_mechanism"),
        ),
        "from accelerate.utils import set_seed\n\nset_seed(42)\n",
        (
            Wrong(
                "`accelerator.utils.set_seed(42)`",
                "an Accelerator has no `utils`; it is `from accelerate.utils import set_seed`",
                "accelerate/utils/random.py",
            ),
            Wrong("`random_split` without a seed or generator", "every process splits differently, so training sees evaluation data", "measured"),
            Wrong(
                "`torch.manual_seed` for noise drawn on the device",
                "every process draws the same noise; seed with `device_specific=True` once the model is made",
                "measured",
            ),
            Wrong("`set_seed(s, device_specific=True)` before the Accelerator", "a ValueError", "measured"),
        ),
    ),
    "parallelism": Topic(
        "Parallelism",
        (
            Fact("dp_replicate x dp_shard x sp (x cp x tp) is the number of processes.", "concept_guides/sequence_parallelism"),
            Fact("Context parallelism needs FSDP2, and SDPA attention without a mask or causal.", "concept_guides/context_parallelism"),
            Fact("Its context is made anew for each step, and labels are shifted before it.", "concept_guides/context_parallelism"),
            Fact("Sequence parallelism (Ulysses) needs DeepSpeed and as many heads as divide by it.", "concept_guides/sequence_parallelism"),
            Fact("FSDP2 is `fsdp_version=2`; 1 is the default.", "concept_guides/fsdp1_vs_fsdp2#api-differences"),
            Fact("Tensor parallelism needs a transformers model loaded with a plan.", "accelerate/accelerator.py"),
        ),
        "",
        (
            Wrong("`ParallelismConfig(dp_shard_size=N)` without an FSDP plugin", "plain DDP; with tp_size, no averaging at all", "measured"),
            Wrong("`sp_size` without DeepSpeed", "ignored", "measured"),
            Wrong("sizes in a config file without `parallelism_config_` before them", "ignored", "measured"),
            Wrong(
                "`--parallelism-config-cp-size 8` alone, `--parallelism-config-dp-size` (concept_guides/context_parallelism)",
                "the first does nothing without `--use_parallelism_config` and FSDP2, the second does not exist",
                "accelerate/commands/launch.py",
            ),
            Wrong(
                "`--parallelism-config-dp-shard-size 8 --parallelism-config-sp-size 8` on 8 GPUs (concept_guides/sequence_parallelism)",
                "the sizes multiply to 64; the same page says that they must make 8",
                "concept_guides/sequence_parallelism",
            ),
            Wrong(
                "labels in `no_restore_buffers` but not in `buffers` (concept_guides/context_parallelism)",
                "a ValueError: the first must be among the second",
                "measured",
            ),
            Wrong("averaging the loss over cp ranks with ignored labels", "wrong where they are uneven; divide by all valid tokens", "measured"),
            Wrong("DeepSpeed without `gradient_clipping`", "it clips at 1.0; 0.0 in its JSON switches that off", "measured"),
            Wrong(
                "`mixed_precision` in Accelerate's file beside a `deepspeed_config_file` (usage_guides/deepspeed)",
                "a ValueError: it belongs in DeepSpeed's file",
                "measured",
            ),
            Wrong("SGD with CPU offload under DeepSpeed", "it becomes Adam, and nothing is said", "measured"),
            Wrong("a scheduler handed to `prepare` under tp or cp", "it steps once for each process, not once for each part of the data", "measured"),
        ),
    ),
    "launch": Topic(
        "Launching",
        (
            Fact('The script is a function that is called under `if __name__ == "__main__"`.', "basic_tutorials/launch"),
            Fact("On several machines the command is run on every one.", "basic_tutorials/launch#multi-node-training"),
            Fact(
                "`--config_file` names a configuration; without it the one in Accelerate's cache folder is read.",
                "basic_tutorials/launch#custom-configurations",
            ),
            Fact("torchrun starts the same script.", "basic_tutorials/launch#using-accelerate-launch"),
            Fact("In a notebook everything that touches a device is in the function given to `notebook_launcher`.", "basic_tutorials/notebook"),
            Fact(
                "On a TPU a notebook makes the model once, outside the function given to `notebook_launcher`, and hands it over as an argument.",
                "concept_guides/training_tpu#creating-your-model",
            ),
            Fact("MPS is one device: distributed set-ups don't work there.", "usage_guides/mps#a-few-caveats-to-be-aware-of"),
        ),
        "",
        (
            Wrong("`accelerate launch --cpu --num_processes 2`", "one process", "measured"),
            Wrong("`torchrun` on a machine without GPU", "processes that know nothing of each other; set ACCELERATE_USE_CPU=true", "measured"),
            Wrong("`num_processes` as the number on one machine", "it counts all machines", "accelerate/utils/launch.py"),
            Wrong("`--parallelism_config_sp_seq_length_is_variable False`", "read as true", "measured"),
        ),
    ),
}

DOCUMENTED_FP8 = ("H100", "H200", "4090")
_CONSUMER = re.compile(r"(?:RTX\s*|GEFORCE\s*)*([2-9])0[5-9]0(?:\s*(?:TI|SUPER|D|LAPTOP))*")


def fp8(gpu: str) -> str:
    """What the documentation says of fp8 on a GPU; where it doesn't name it, nothing is promised."""
    name = " ".join(gpu.upper().replace("NVIDIA", "").split())
    page = f"({LOW}#what-training-on-fp8-means)"
    if any(re.search(rf"\b{known}\b", name.replace("-", " ")) for known in DOCUMENTED_FP8):
        return f"fp8 on {gpu}: documented {page}"
    consumer = _CONSUMER.fullmatch(name)
    if consumer and int(consumer[1]) >= 4:
        return f'fp8 on {gpu}: documented as "anything after the 3000 series consumer graphics cards" {page}'
    if consumer:
        return f"fp8 on {gpu}: not documented, only consumer cards after the 3000 series are {page}"
    return (
        f"fp8 on {gpu}: the documentation doesn't name this GPU {page}, so nothing is promised. "
        "Below compute capability 8.9 Accelerate warns and trains in fp16 (accelerate/state.py)"
    )
