"""Which versions of which package a feature needs, with the place that says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gate:
    """`feature` needs `package` from version `least` on, and below `below` where a later one took it away."""

    feature: str
    package: str
    least: str
    below: str = ""
    source: str = ""

    def __str__(self) -> str:
        until = f", <{self.below}" if self.below else ""
        return f"{self.package}>={self.least}{until} ({self.feature})"


GATES = (
    Gate("parallelism", "accelerate", "1.10", source="accelerate 1.10.0 brought `ParallelismConfig`"),
    Gate("sp", "accelerate", "1.12", source="accelerate 1.12.0 brought `sp_size`"),
    Gate("fp8-ao", "accelerate", "1.13", source="accelerate 1.13.0 brought `--fp8_backend ao`"),
    Gate("fsdp2", "torch", "2.6.0", source="accelerate/utils/constants.py: FSDP2_PYTORCH_VERSION"),
    Gate("tp", "torch", "2.3.0", source="accelerate/utils/constants.py: BETA_TP_AVAILABLE_PYTORCH_VERSION"),
    Gate("tp", "transformers", "4.52.0", source="accelerate/utils/constants.py: BETA_TP_AVAILABLE_TRANSFORMERS_VERSION"),
    Gate("cp", "torch", "2.6.0", source="accelerate/utils/constants.py: BETA_CP_AVAILABLE_PYTORCH_VERSION"),
    Gate("sp", "deepspeed", "0.18.2", source="accelerate/accelerator.py: _prepare_deepspeed"),
    Gate("sp", "transformers", "4.51.3", source="deepspeed/runtime/sequence_parallel/ulysses_sp.py"),
    Gate(
        "fsdp2+tp",
        "transformers",
        "4.52.0",
        "5.1.0",
        "accelerate 1.15.0 imports `ReplicateParallel` from transformers for it (accelerator.py, _prepare_tp), which 5.1.0 took away",
    ),
)


def gates(features: frozenset[str]) -> tuple[Gate, ...]:
    """The gates of some features."""
    return tuple(gate for gate in GATES if gate.feature in features)
