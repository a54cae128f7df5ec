"""Axolotl's documented fields for parallelism, with their kinds (axolotl docs: nd_parallelism, config-reference; July 2026)."""

from __future__ import annotations

from collections.abc import Mapping

STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")

FIELDS: Mapping[str, type | tuple[str, ...]] = {
    "dp_shard_size": int,
    "dp_replicate_size": int,
    "tensor_parallel_size": int,
    "context_parallel_size": int,
    "expert_parallel_size": int,
    "fsdp_version": int,
    "fsdp_config": dict,
    "deepspeed": str,
    "bf16": bool,
    "fp16": bool,
    "fp8": bool,
    "attn_implementation": ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"),
}
"""Top-level fields."""

FSDP: Mapping[str, type | tuple[str, ...]] = {
    "activation_checkpointing": bool,
    "offload_params": bool,
    "sync_module_states": bool,
    "cpu_ram_efficient_loading": bool,
    "cpu_offload_pin_memory": bool,
    "use_orig_params": bool,
    "state_dict_type": STATE_DICTS,
    "final_state_dict_type": STATE_DICTS,
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"),
    "transformer_layer_cls_to_wrap": str,
    "min_num_params": int,
    "reshard_after_forward": bool,
    "mixed_precision_policy": str,
}
"""Fields of `fsdp_config`: Accelerate's, without its `fsdp_` prefix."""

SOURCE = "axolotl docs, nd_parallelism"


def faults(fields: Mapping[str, object], schema: Mapping[str, type | tuple[str, ...]] = FIELDS) -> list[str]:
    """What the documented schema has against some fields; empty for valid ones."""
    found = []
    for name, value in fields.items():
        kind = schema.get(name)
        if kind is None:
            found.append(f"unknown field {name}")
        elif isinstance(kind, tuple):
            found += [] if value in kind else [f"{name}: {value!r} is none of {', '.join(kind)}"]
        elif not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found.append(f"{name}: {value!r} is no {kind.__name__}")
        elif name == "fsdp_config" and isinstance(value, dict):
            found += faults(value, FSDP)
    return found
