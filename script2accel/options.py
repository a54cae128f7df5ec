"""What the user asked for: one frozen record, filled from `[tool.script2accel]` and the flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from script2accel.errors import UsageError

BATCH = ("per-device", "global")
MIXED_PRECISION = ("no", "fp16", "bf16", "fp8")


@dataclass(frozen=True)
class Options:
    """Choices of one conversion.

    `batch`: `per-device` keeps the loader's batch size on every process (global batch = batch size x processes);
    `global` splits it (`split_batches=True`). `mixed_precision`: None leaves the choice to the script and the
    accelerate config. `gradient_accumulation_steps`: how many batches make one optimizer step, for scripts that don't
    accumulate. `seed`: a number to seed with, for scripts that don't seed. `partial`: write what could be converted although
    some places need a person.
    """

    batch: str = "per-device"
    mixed_precision: str | None = None
    gradient_accumulation_steps: int | None = None
    seed: int | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        if self.batch not in BATCH:
            raise UsageError(f"batch must be one of {', '.join(BATCH)}, not {self.batch!r}")
        if self.mixed_precision is not None and self.mixed_precision not in MIXED_PRECISION:
            raise UsageError(f"mixed-precision must be one of {', '.join(MIXED_PRECISION)}, not {self.mixed_precision!r}")
        for name, kind in (("gradient_accumulation_steps", int), ("seed", int), ("partial", bool)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
                raise UsageError(f"{name.replace('_', '-')} must be of type {kind.__name__}, not {value!r}")
        if self.gradient_accumulation_steps is not None and self.gradient_accumulation_steps < 1:
            raise UsageError(f"gradient-accumulation-steps must be at least 1, not {self.gradient_accumulation_steps!r}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Options:
        """Options from a table such as `[tool.script2accel]` (dashes or underscores). Raises UsageError on an unknown key."""
        known = {field.name for field in fields(cls)}
        given = {key.replace("-", "_"): value for key, value in values.items()}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(f"unknown option {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return cls(**given)  # type: ignore[arg-type]
