"""Accelerate's configuration file for the answers."""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.launch import deepspeed, yaml
from script2accel.parallelism import uses_config
from script2accel.workflow.answers import Answers

FILE = "accelerate_config.yaml"
_TYPES = {"tpu": "XLA", "cpu": "MULTI_CPU"}


def config(answers: Answers) -> dict[str, object]:
    """The table, its keys in the order of the alphabet as Accelerate writes them."""
    found: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": distributed_type(answers),
        "machine_rank": 0,
        "main_training_function": "main",
        "num_machines": answers.num_machines,
        "num_processes": answers.num_processes,
        "rdzv_backend": "static",
        "use_cpu": answers.hardware == "cpu",
    }
    if answers.engine != "deepspeed":
        found["mixed_precision"] = answers.mixed_precision
    if answers.hardware == "multi-node":
        found |= {"main_process_ip": answers.main_process_ip} if answers.main_process_ip else {}
        found["main_process_port"] = answers.main_process_port
    return dict(sorted((found | _sections(answers)).items()))


def _sections(answers: Answers) -> dict[str, object]:
    found: dict[str, object] = {}
    if answers.engine == "fsdp2":
        found["fsdp_config"] = fsdp(answers)
    if answers.engine == "deepspeed":
        found["deepspeed_config"] = deepspeed_section(answers)
    if uses_config(answers.request):
        found["parallelism_config"] = parallelism(answers)
    if answers.mixed_precision == "fp8":
        found["fp8_config"] = fp8(answers)
    return found


def distributed_type(answers: Answers) -> str:
    """Accelerate's name for the way of training."""
    if answers.engine in ("fsdp2", "deepspeed"):
        return "FSDP" if answers.engine == "fsdp2" else "DEEPSPEED"
    if answers.hardware == "tpu":
        return "XLA"
    return "NO" if answers.num_processes == 1 else _TYPES.get(answers.hardware, "MULTI_GPU")


def fsdp(answers: Answers) -> dict[str, object]:
    """The FSDP block. Without classes to wrap, a transformers model brings its own list. Loading on one rank alone is switched off: it is
    documented for transformers models only."""
    classes = {"fsdp_transformer_layer_cls_to_wrap": ",".join(answers.wrap)} if answers.wrap else {}
    return {
        "fsdp_activation_checkpointing": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_offload_params": answers.offload == "all",
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        **classes,
        "fsdp_version": 2,
    }


def deepspeed_section(answers: Answers) -> dict[str, object]:
    """Everything else stands in the JSON: Accelerate refuses what is said in both."""
    launcher = {"deepspeed_multinode_launcher": "standard"} if answers.num_machines > 1 else {}
    return {"deepspeed_config_file": deepspeed.FILE, **launcher, "zero3_init_flag": False}


def parallelism(answers: Answers) -> dict[str, object]:
    """The sizes, with the prefix without which Accelerate reads none of them."""
    found: dict[str, object] = {f"parallelism_config_{name}_size": size for name, size in answers.sizes.active.items()}
    if answers.sp > 1:
        found["parallelism_config_sp_backend"] = "deepspeed"
        found["parallelism_config_sp_seq_length_is_variable"] = True
        found["parallelism_config_sp_attn_implementation"] = "sdpa"
    return found


def fp8(answers: Answers) -> dict[str, object]:
    """The recipe of the backend, with the documented defaults."""
    if answers.fp8_backend == "ao":
        return {"fp8_backend": "AO", "fp8_enable_fsdp_float8_all_gather": answers.engine == "fsdp2", "fp8_pad_inner_dim": True}
    return {
        "fp8_amax_compute_algo": "most_recent",
        "fp8_amax_history_len": 1024,
        "fp8_backend": "TE",
        "fp8_format": "HYBRID",
        "fp8_interval": 1,
        "fp8_margin": 0,
    }


def document(answers: Answers) -> str:
    """The file's text."""
    return yaml.document(config(answers), list(_comments(answers)))


def _comments(answers: Answers) -> Iterator[str]:
    yield "Configuration of Hugging Face Accelerate, written by script2accel: accelerate launch --config_file FILE train.py"
    if answers.hardware == "multi-node":
        yield "machine_rank is given on each machine's command line" + ("" if answers.main_process_ip else ", main_process_ip too")
    if answers.engine == "deepspeed":
        yield f"precision, clipping and offload stand in {deepspeed.FILE}: Accelerate refuses them here beside it"
    if answers.hardware == "cpu" and answers.num_processes > 1:
        yield "`accelerate launch` starts one process from this file unless it uses mpirun; `script2accel launch` prints what starts all"
