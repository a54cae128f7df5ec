"""What Accelerate calls things, and since which version: every name, keyword, flag, YAML key and variable that this tool may write.

A value is the first version that knows the entry; `OLDEST` also stands for anything older. The tables were compared once with 1.10.1,
1.11.0, 1.12.0, 1.13.0, 1.14.0 and 1.15.0 by reading signatures and launch parsers; the tests compare them with the one installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Version = tuple[int, int]
OLDEST: Version = (1, 10)  # the first with ParallelismConfig
NEWEST: Version = (1, 15)  # the last that was looked at


def _since(version: Version, *names: str) -> dict[str, Version]:
    return dict.fromkeys(names, version)


def _all(*names: str) -> dict[str, Version]:
    return _since(OLDEST, *names)


MODULES: Mapping[str, str] = {
    "Accelerator": "accelerate",
    "ParallelismConfig": "accelerate.parallelism_config",
    "FullyShardedDataParallelPlugin": "accelerate.utils",
    "DeepSpeedPlugin": "accelerate.utils",
    "TorchContextParallelConfig": "accelerate.utils",
    "DeepSpeedSequenceParallelConfig": "accelerate.utils",
    "TERecipeKwargs": "accelerate.utils",
    "AORecipeKwargs": "accelerate.utils",
    "GradientAccumulationPlugin": "accelerate.utils",
    "set_seed": "accelerate.utils",
    "notebook_launcher": "accelerate",
}
"""Where a name is imported from."""

KEYWORDS: Mapping[str, Mapping[str, Version]] = {
    "Accelerator": _all(
        "mixed_precision",
        "gradient_accumulation_steps",
        "gradient_accumulation_plugin",
        "parallelism_config",
        "fsdp_plugin",
        "deepspeed_plugin",
        "kwargs_handlers",
        "dataloader_config",
        "project_config",
        "project_dir",
        "step_scheduler_with_optimizer",
    ),
    "ParallelismConfig": _all("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_handler")
    | _since((1, 12), "sp_size", "sp_backend", "sp_handler", "cp_backend"),
    "FullyShardedDataParallelPlugin": _all(
        "fsdp_version",
        "reshard_after_forward",
        "auto_wrap_policy",
        "transformer_cls_names_to_wrap",
        "state_dict_type",
        "cpu_offload",
        "cpu_ram_efficient_loading",
        "activation_checkpointing",
    ),
    "DeepSpeedPlugin": _all("hf_ds_config", "zero3_init_flag"),
    "TorchContextParallelConfig": _all("cp_comm_strategy"),
    "DeepSpeedSequenceParallelConfig": _since((1, 12), "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"),
    "TERecipeKwargs": _all("fp8_format", "amax_history_len", "amax_compute_algo", "margin", "interval", "use_autocast_during_eval")
    | _since((1, 11), "use_mxfp8_block_scaling"),
    "AORecipeKwargs": _all("config") | _since((1, 13), "enable_fsdp_float8_all_gather", "pad_inner_dim"),
    "GradientAccumulationPlugin": _all("num_steps", "sync_with_dataloader", "sync_each_batch"),
    "set_seed": _all("seed", "device_specific"),
    "notebook_launcher": _all(
        "function", "args", "num_processes", "mixed_precision", "use_port", "master_addr", "node_rank", "num_nodes", "rdzv_backend"
    ),
}
"""The keywords of each callable that the tool may write."""

METHODS: Mapping[str, Version] = _all(
    "accumulate",
    "autocast",
    "backward",
    "check_trigger",
    "clip_grad_norm_",
    "clip_grad_value_",
    "device",
    "gather",
    "gather_for_metrics",
    "get_state_dict",
    "gradient_accumulation_steps",
    "is_local_main_process",
    "is_main_process",
    "load_state",
    "local_process_index",
    "main_process_first",
    "maybe_context_parallel",
    "no_sync",
    "num_processes",
    "pad_across_processes",
    "prepare",
    "print",
    "process_index",
    "reduce",
    "register_for_checkpointing",
    "save",
    "save_model",
    "save_state",
    "set_trigger",
    "skip_first_batches",
    "sync_gradients",
    "torch_device_mesh",
    "unwrap_model",
    "wait_for_everyone",
)
"""Methods and properties of `Accelerator`."""

FLAGS: Mapping[str, Version] = (
    _all("config_file", "cpu", "multi_gpu", "tpu", "use_fsdp", "use_deepspeed", "use_parallelism_config", "mixed_precision", "dynamo_backend")
    | _all("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "same_network")
    | _all("main_training_function", "downcast_bf16")
    | _all(
        "fsdp_version",
        "fsdp_reshard_after_forward",
        "fsdp_auto_wrap_policy",
        "fsdp_transformer_layer_cls_to_wrap",
        "fsdp_state_dict_type",
        "fsdp_offload_params",
        "fsdp_cpu_ram_efficient_loading",
        "fsdp_activation_checkpointing",
    )
    | _all("deepspeed_config_file", "zero3_init_flag", "deepspeed_multinode_launcher")
    | _all(*(f"parallelism_config_{size}_size" for size in ("dp_replicate", "dp_shard", "cp", "tp")))
    | _since((1, 12), "parallelism_config_sp_size")
    | _all("fp8_backend", "fp8_format", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_margin", "fp8_interval")
    | _since((1, 13), "fp8_enable_fsdp_float8_all_gather", "fp8_pad_inner_dim")
)
"""Options of `accelerate launch`, without the dashes."""

FLAG_VALUES: Mapping[tuple[str, str], Version] = {
    ("fp8_backend", "te"): OLDEST,
    ("fp8_backend", "ao"): (1, 13),
}
"""Values of a flag that came later than the flag."""

YAML: Mapping[str, Version] = _all(
    "compute_environment",
    "debug",
    "distributed_type",
    "downcast_bf16",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "rdzv_backend",
    "use_cpu",
    "fsdp_config",
    "deepspeed_config",
    "parallelism_config",
    "fp8_config",
)
"""Top-level keys of an accelerate config file; Accelerate refuses unknown ones."""

SECTIONS: Mapping[str, Mapping[str, Version]] = {
    "fsdp_config": {name: version for name, version in FLAGS.items() if name.startswith("fsdp_")},
    "deepspeed_config": _all("deepspeed_config_file", "zero3_init_flag", "deepspeed_multinode_launcher"),
    "parallelism_config": _all(*(f"parallelism_config_{size}_size" for size in ("dp_replicate", "dp_shard", "cp", "tp")))
    | _since(
        (1, 12),
        "parallelism_config_sp_size",
        "parallelism_config_sp_backend",
        "parallelism_config_sp_seq_length_is_variable",
        "parallelism_config_sp_attn_implementation",
    ),
    "fp8_config": {name: version for name, version in FLAGS.items() if name.startswith("fp8_")},
}
"""Keys of the sections; an unknown one is accepted in silence, and does nothing."""

ENVIRONMENT: Mapping[str, Version] = (
    _all("ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    | _all("ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_ZERO3_INIT", "ACCELERATE_USE_PARALLELISM_CONFIG")
    | _all("FSDP_VERSION", "FSDP_RESHARD_AFTER_FORWARD", "FSDP_AUTO_WRAP_POLICY", "FSDP_TRANSFORMER_CLS_TO_WRAP", "FSDP_STATE_DICT_TYPE")
    | _all("FSDP_OFFLOAD_PARAMS", "FSDP_CPU_RAM_EFFICIENT_LOADING", "FSDP_ACTIVATION_CHECKPOINTING")
    | _all(*(f"PARALLELISM_CONFIG_{size}_SIZE" for size in ("DP_REPLICATE", "DP_SHARD", "CP", "TP")))
    | _since((1, 12), "PARALLELISM_CONFIG_SP_SIZE", "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION")
    | _all("ACCELERATE_FP8_BACKEND", "ACCELERATE_FP8_FORMAT", "ACCELERATE_FP8_AMAX_HISTORY_LEN", "ACCELERATE_FP8_AMAX_COMPUTE_ALGO")
    | _all("ACCELERATE_FP8_MARGIN", "ACCELERATE_FP8_INTERVAL")
    | _since((1, 13), "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "ACCELERATE_FP8_PAD_INNER_DIM")
)
"""Variables that Accelerate reads in the process that trains (what its launcher sets)."""


FIRST_STATE = {
    "torch": ('synchronize_rng_states(["torch"])', "synchronize_rng_states"),
    "numpy": ("{module}.random.set_state(broadcast_object_list([{module}.random.get_state()])[0])", "broadcast_object_list"),
    "random": ("{module}.setstate(broadcast_object_list([{module}.getstate()])[0])", "broadcast_object_list"),
}
"""Generator -> the line that gives every rank the first one's state, and what of accelerate.utils it calls."""


def needed(names: Iterable[str], table: Mapping[str, Version]) -> Version:
    """The oldest version that knows all the names. Raises KeyError for one that isn't in the table."""
    return max((table[name] for name in names), default=OLDEST)
