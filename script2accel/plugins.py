"""Python expressions that construct Accelerate's own objects: `ParallelismConfig(...)`, plugins, recipes.

Text alone: who writes it into a script adds the imports (`knowledge.accelerate.MODULES` says from where).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from script2accel.parallelism import Sizes

FP8_BACKENDS = ("te", "ao")
FP8_RECIPES: Mapping[str, str] = {"te": "TERecipeKwargs", "ao": "AORecipeKwargs"}


@dataclass(frozen=True)
class Expression:
    """A call as source text, and the names of Accelerate in it."""

    text: str
    names: tuple[str, ...]


def call(name: str, arguments: Mapping[str, object], *inner: Expression) -> Expression:
    """`name(key=value, ...)`; a value that is an Expression is written as it stands."""
    words = [f"{key}={_literal(value)}" for key, value in arguments.items()]
    nested = [*inner, *(value for value in arguments.values() if isinstance(value, Expression))]
    names = dict.fromkeys([name, *(name for one in nested for name in one.names)])
    return Expression(f"{name}({', '.join(words)})", tuple(names))


def _literal(value: object) -> str:
    """A value as source text, strings in double quotes."""
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # JSON's escapes are Python's
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    return repr(value)


def parallelism_config(sizes: Sizes, *, alltoall: bool = False) -> Expression:
    """`ParallelismConfig` with the sizes that are switched on, in the order of the mesh."""
    arguments: dict[str, object] = {f"{name}_size": size for name, size in sizes.active.items()}
    if sizes.cp > 1 and alltoall:
        arguments["cp_handler"] = call("TorchContextParallelConfig", {"cp_comm_strategy": "alltoall"})
    if sizes.sp > 1:
        handler = {"sp_seq_length_is_variable": True, "sp_attn_implementation": "sdpa"}
        arguments |= {"sp_backend": "deepspeed", "sp_handler": call("DeepSpeedSequenceParallelConfig", handler)}
    return call("ParallelismConfig", arguments)


def fsdp_plugin(
    wrap: tuple[str, ...] | None = (), *, offload: bool = False, state_dict: str = "SHARDED_STATE_DICT", checkpointing: bool = False
) -> Expression:
    """`FullyShardedDataParallelPlugin` of version 2; without classes to wrap, a transformers model brings its list. None: the model is one unit."""
    policy = "no_wrap" if wrap is None else "transformer_based_wrap"
    arguments: dict[str, object] = {"fsdp_version": 2, "auto_wrap_policy": policy}
    if wrap:
        arguments["transformer_cls_names_to_wrap"] = list(wrap)
    arguments["state_dict_type"] = state_dict
    if offload:
        arguments["cpu_offload"] = True
    if checkpointing:
        arguments["activation_checkpointing"] = True
    return call("FullyShardedDataParallelPlugin", arguments)


def deepspeed_plugin(config: str | Mapping[str, object], *, whole: bool = False) -> Expression:
    """`DeepSpeedPlugin` from a file's name or a table; only there can `gradient_clipping` be 0.0 (the keyword drops it). `whole`: ZeRO 3 divides
    models when they are prepared, not while they are made."""
    return call("DeepSpeedPlugin", {"hf_ds_config": config, **({"zero3_init_flag": False} if whole else {})})


def fp8_recipe(backend: str) -> Expression:
    """The recipe's handler with its defaults."""
    return call(FP8_RECIPES[backend], {})


def accelerator(arguments: Mapping[str, object]) -> Expression:
    """`Accelerator(...)` over the given keywords; lists of expressions are allowed."""
    flat = {key: _listed(value) if isinstance(value, list) else value for key, value in arguments.items()}
    return call("Accelerator", flat)


def _listed(values: list[object]) -> Expression:
    inner = [value for value in values if isinstance(value, Expression)]
    names = dict.fromkeys(name for one in inner for name in one.names)
    return Expression(f"[{', '.join(one.text for one in inner)}]", tuple(names))
