"""What the user asked for: one frozen record, filled from `[tool.script2accel]` and the flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from script2accel.errors import UsageError
from script2accel.knowledge.teaching import ROLES
from script2accel.parallelism import DIMENSIONS, Model, Request, Sizes

BATCH = ("per-device", "global")
CHECKPOINTING = ("keep", "state")
MIXED_PRECISION = ("no", "fp16", "bf16", "fp8")
ENGINES = {"none": "ddp", "ddp": "ddp", "fsdp2": "fsdp2", "hsdp": "fsdp2", "zero1": "deepspeed", "zero2": "deepspeed", "zero3": "deepspeed"}
"""Strategy -> what carries it out."""
PARALLELISM = ("in-script", "from-config")
STRATEGIC = ("strategy", *DIMENSIONS, "num_machines", "num_processes", "offload", "wrap")
"""The options that together name a strategy: what a flag says of one of them replaces the saved answers to the others."""


@dataclass(frozen=True)
class Options:
    """Choices of one conversion.

    `batch`: `per-device` keeps the loader's batch size on every process (global batch = batch size x processes);
    `global` splits it (`split_batches=True`). `mixed_precision`: None leaves the choice to the script and the
    accelerate config. `gradient_accumulation_steps`: how many batches make one optimizer step, for scripts that don't
    accumulate. `find_unused_parameters`: DDP looks for parameters that a step doesn't use, whatever the script says.
    `checkpointing`: `keep` leaves training checkpoints the files that they are, `state` makes them states of the accelerator.
    `scale_lr`: the learning rate times the number of processes. `reduce_train_metrics`: training numbers that are shown are those of all ranks.
    `trackers`: the script's experiment tracker becomes Accelerate's. `seed`: a number to seed with, for scripts that don't seed.
    `partial`: write what could be converted although
    some places need a person.

    `roles`: (dotted name, role) of functions and classes, for what calls of them give; a mapping is taken too.

    `strategy`, the sizes of the dimensions, `num_machines`, `num_processes`, `offload` and `wrap` (classes that FSDP wraps) are those of `init`;
    None is unknown. `gradient_clipping` is what DeepSpeed's own file says. `parallelism`: `from-config` leaves sizes and engine to the accelerate
    config, and puts only what they need into the script.
    """

    batch: str = "per-device"
    mixed_precision: str | None = None
    gradient_accumulation_steps: int | None = None
    checkpointing: str = "keep"
    find_unused_parameters: bool = False
    scale_lr: bool = False
    reduce_train_metrics: bool = False
    trackers: bool = False
    seed: int | None = None
    partial: bool = False
    parallelism: str = "in-script"
    strategy: str | None = None
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    sp: int = 1
    tp: int = 1
    num_machines: int | None = None
    num_processes: int | None = None
    offload: str = "none"
    wrap: tuple[str, ...] = ()
    gradient_clipping: float | None = None
    roles: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "roles", _roles(self.roles))
        if self.parallelism not in PARALLELISM:
            raise UsageError(f"parallelism must be one of {', '.join(PARALLELISM)}, not {self.parallelism!r}")
        if self.strategy is not None and self.strategy not in ENGINES:
            raise UsageError(f"strategy must be one of {', '.join(ENGINES)}, not {self.strategy!r}")
        for name in (*DIMENSIONS, "num_machines", "num_processes"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UsageError(f"{name.replace('_', '-')} must be a whole number from 1 on, not {value!r}")
        if self.strategy == "hsdp" and (self.dp_replicate == 1 or self.dp_shard == 1):
            raise UsageError("hsdp replicates and shards: dp-replicate and dp-shard are both more than 1; nearest valid: fsdp2")
        if not all(isinstance(name, str) and name.isidentifier() for name in self.wrap):
            raise UsageError(f"wrap must hold class names, not {', '.join(map(str, self.wrap))}")
        clipping = self.gradient_clipping
        if clipping is not None and (isinstance(clipping, bool) or not isinstance(clipping, (int, float)) or not clipping >= 0):
            raise UsageError(f"gradient-clipping must be a number from 0 (no clipping) on, not {clipping!r}")
        if self.batch not in BATCH:
            raise UsageError(f"batch must be one of {', '.join(BATCH)}, not {self.batch!r}")
        if self.checkpointing not in CHECKPOINTING:
            raise UsageError(f"checkpointing must be one of {', '.join(CHECKPOINTING)}, not {self.checkpointing!r}")
        if self.mixed_precision is not None and self.mixed_precision not in MIXED_PRECISION:
            raise UsageError(f"mixed-precision must be one of {', '.join(MIXED_PRECISION)}, not {self.mixed_precision!r}")
        for name, kind in (
            ("gradient_accumulation_steps", int),
            ("seed", int),
            ("partial", bool),
            ("find_unused_parameters", bool),
            ("scale_lr", bool),
            ("reduce_train_metrics", bool),
            ("trackers", bool),
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
                raise UsageError(f"{name.replace('_', '-')} must be of type {kind.__name__}, not {value!r}")
        if self.scale_lr and (self.batch == "global" or self.tp * self.cp * self.sp > 1):
            why = "the global batch stays as it is" if self.batch == "global" else "tp, cp and sp ranks share a batch"
            raise UsageError(f"scale-lr multiplies by the number of processes, but {why}; leave it out")
        if self.gradient_accumulation_steps is not None and self.gradient_accumulation_steps < 1:
            raise UsageError(f"gradient-accumulation-steps must be at least 1, not {self.gradient_accumulation_steps!r}")

    @property
    def sizes(self) -> Sizes:
        """The sizes as they are given."""
        return Sizes(*(getattr(self, name) for name in DIMENSIONS))

    @property
    def engine(self) -> str:
        """What carries the strategy out: what it says itself, or what its sizes need."""
        if self.strategy is not None:
            return ENGINES[self.strategy]
        return "deepspeed" if self.sp > 1 else "fsdp2" if self.dp_shard > 1 or self.cp > 1 else "ddp"

    @property
    def sharded(self) -> bool:
        """Whether FSDP2 shards the model: every forward pass and every look at the weights then takes all processes."""
        return self.engine == "fsdp2"

    @property
    def divided(self) -> bool:
        """Whether a process holds parts of the weights, or copies that an engine replaces."""
        return self.sharded or self.tp > 1 or self.zero > 0

    @property
    def zero(self) -> int:
        """The ZeRO stage of a DeepSpeed engine; 0 without one."""
        if self.engine != "deepspeed":
            return 0
        return int(self.strategy[-1]) if self.strategy is not None else 3

    @property
    def wrapped(self) -> bool:
        """Whether DDP wraps the model, so that its options have an effect."""
        return self.engine == "ddp"

    @property
    def grouped(self) -> bool:
        """Whether several processes work on the same batch."""
        return self.tp > 1 or self.cp > 1 or self.sp > 1

    @property
    def parallel(self) -> bool:
        """Whether more is asked for than plain data parallelism."""
        return self.engine != "ddp" or self.grouped

    def request(self, model: Model) -> Request:
        """The question that the rules of `parallelism` answer; processes that nobody counted are those that the sizes take."""
        sizes, processes = self.sizes, self.num_processes
        if self.engine == "fsdp2" and sizes.total == 1:
            sizes = Sizes(dp_shard=processes or 2)
        elif self.engine == "ddp" and sizes.total == 1 and processes is not None:
            sizes = Sizes(dp_replicate=processes)
        elif self.engine == "deepspeed" and sizes.dp_shard == 1:
            sizes = replace(sizes, dp_shard=max(2, processes or 2) // sizes.total or 1)
        return Request(sizes, self.engine, processes or sizes.total, self.num_machines or 1, model=model)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Options:
        """Options from a table such as `[tool.script2accel]` (dashes or underscores). Raises UsageError on an unknown key."""
        known = {field.name for field in fields(cls)}
        given = {key.replace("-", "_"): value for key, value in values.items()}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(known))}")
        wrap = given.get("wrap")
        return cls(**{**given, "wrap": tuple(wrap)} if isinstance(wrap, list) else given)  # type: ignore[arg-type]


def _roles(given: object) -> tuple[tuple[str, str], ...]:
    """A table of roles, or pairs of names and roles, in order of the names. Raises UsageError, naming the key."""
    if not isinstance(given, (Mapping, tuple)):
        raise UsageError(f"roles must be a table of dotted names and roles, not {given!r}")
    table = dict(_flat(given if isinstance(given, Mapping) else dict(given), ""))
    for name, role in table.items():
        if "." not in name or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"roles: {name!r} is no dotted name, such as `package.module.function`")
        if not isinstance(role, str) or role not in ROLES:
            raise UsageError(f"roles: {name!r} can't be {role!r}; the roles are {', '.join(ROLES)}")
    return tuple(sorted(table.items()))


def _flat(table: Mapping[str, object], above: str) -> Iterator[tuple[str, Any]]:
    """The entries of a table; TOML reads a name with dots that isn't quoted as tables in tables."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
