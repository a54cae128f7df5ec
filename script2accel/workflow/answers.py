"""What the user said about hardware and strategy: one frozen record, checked as a whole, kept in a TOML table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from script2accel.errors import UsageError
from script2accel.launch.endpoint import PORT, host_fault, port_fault
from script2accel.options import ENGINES, MIXED_PRECISION
from script2accel.parallelism import Request, Sizes, refusals
from script2accel.plugins import FP8_BACKENDS

CHOICES: Mapping[str, tuple[str, ...]] = {
    "hardware": ("single-gpu", "multi-gpu", "multi-node", "tpu", "cpu", "mps"),
    "mixed_precision": MIXED_PRECISION,
    "fp8_backend": FP8_BACKENDS,
    "strategy": ("none", "ddp", "fsdp2", "hsdp", "zero1", "zero2", "zero3"),
    "offload": ("none", "optimizer", "all"),
    "optimizer": ("adam", "adamw", "other"),
    "cluster": ("none", "slurm", "kubernetes"),
}
SIZES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


@dataclass(frozen=True)
class Answers:
    """Every answer; `num_processes` counts all machines. `wrap`: block classes that FSDP wraps; empty leaves it to the model's own list."""

    hardware: str = "single-gpu"
    num_machines: int = 1
    num_processes: int = 1
    mixed_precision: str = "no"
    fp8_backend: str = "te"
    strategy: str = "none"
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    sp: int = 1
    tp: int = 1
    offload: str = "none"
    optimizer: str = "adamw"
    gradient_clipping: float = 0.0
    wrap: tuple[str, ...] = ()
    cluster: str = "none"
    main_process_ip: str = ""
    main_process_port: int = PORT

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{flag(name)} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        for one in fields(self):
            if one.type == "int" and type(getattr(self, one.name)) is not int:
                raise UsageError(f"{flag(one.name)} must be a whole number, not {getattr(self, one.name)!r}")
        if not all(name.isidentifier() for name in self.wrap):
            raise UsageError(f"wrap must hold class names, not {', '.join(self.wrap)}")
        if isinstance(self.gradient_clipping, bool) or not self.gradient_clipping >= 0:
            raise UsageError(f"gradient-clipping must be a number from 0 (no clipping) on, not {self.gradient_clipping!r}")

    @property
    def sizes(self) -> Sizes:
        """The sizes as the rules read them."""
        return Sizes(**{name: getattr(self, name) for name in SIZES})

    @property
    def engine(self) -> str:
        """What carries the strategy out: `ddp`, `fsdp2` or `deepspeed`."""
        return ENGINES[self.strategy]

    @property
    def zero(self) -> int:
        """The ZeRO stage; 0 without DeepSpeed."""
        return int(self.strategy[-1]) if self.engine == "deepspeed" else 0

    @property
    def per_machine(self) -> int:
        """Processes on one machine."""
        return self.num_processes // self.num_machines

    @property
    def request(self) -> Request:
        """The question that the rules of `parallelism` answer."""
        device = self.hardware if self.hardware in ("tpu", "cpu", "mps") else "gpu"
        return Request(self.sizes, self.engine, self.num_processes, self.num_machines, device)

    def table(self) -> dict[str, object]:
        """What is worth saving: everything that isn't the default, and the hardware always. Keys with dashes."""
        default = Answers()
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        kept = {name: value for name, value in values.items() if name == "hardware" or value != getattr(default, name)}
        return {flag(name): list(value) if isinstance(value, tuple) else value for name, value in kept.items()}


def flag(name: str) -> str:
    """A field's name as users write it."""
    return name.replace("_", "-")


KEYS = frozenset(flag(one.name) for one in fields(Answers))
"""The keys of the TOML table that belong to the answers (`mixed-precision` is shared with the conversion's options)."""


def from_table(values: Mapping[str, object]) -> dict[str, object]:
    """The answers in a table (dashes or underscores), by field; keys that belong to others are left out. Raises UsageError on a wrong type."""
    kinds: Mapping[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "tuple[str, ...]": list}
    given: dict[str, object] = {}
    for one in fields(Answers):
        value = values.get(flag(one.name), values.get(one.name))
        if value is None:
            continue
        if not isinstance(value, kinds.get(str(one.type), str)) or isinstance(value, bool):
            raise UsageError(f"{flag(one.name)}: {value!r} is of the wrong type")
        if isinstance(value, list) and not all(isinstance(item, str) for item in value):
            raise UsageError(f"{flag(one.name)}: only strings, not {value!r}")
        given[one.name] = tuple(value) if isinstance(value, list) else float(value) if one.type == "float" else value  # type: ignore[arg-type]
    return given


def problems(answers: Answers) -> tuple[str, ...]:
    """What is wrong with the answers as a whole, each with what would be right; empty when they can be carried out."""
    found = [*_counts(answers), *_precision(answers), *_strategy(answers), *_endpoint(answers)]
    return tuple(found) or tuple(map(str, refusals(answers.request)))


def _counts(answers: Answers) -> Iterator[str]:
    hardware, machines, processes = answers.hardware, answers.num_machines, answers.num_processes
    if machines < 1 or processes < 1:
        yield "num-machines and num-processes are at least 1"
    elif hardware in ("single-gpu", "mps") and (machines, processes) != (1, 1):
        yield f"{hardware} is one machine and one process; for more choose multi-gpu or multi-node"
    elif hardware == "multi-gpu" and (machines > 1 or processes < 2):
        yield "multi-gpu is one machine with two processes or more" + ("; choose multi-node" if machines > 1 else "; choose single-gpu for one")
    elif hardware == "multi-node" and machines < 2:
        yield "multi-node is two machines or more; choose multi-gpu for one"
    elif hardware in ("tpu", "cpu") and machines > 1:
        yield f"several machines of {hardware.upper()}s are not produced here (Accelerate: TPU pods, mpirun); give one machine"
    elif processes % machines:
        near = sorted({max(machines, processes - processes % machines), processes + machines - processes % machines})
        yield f"{processes} processes can't be shared evenly by {machines} machines; nearest valid: {' or '.join(map(str, near))}"


def _precision(answers: Answers) -> Iterator[str]:
    gpu = answers.hardware in ("single-gpu", "multi-gpu", "multi-node")
    if answers.mixed_precision == "fp8" and not gpu:
        yield "fp8 is documented for NVIDIA GPUs alone (accelerate docs, usage_guides/low_precision_training); nearest valid: bf16"
    if answers.mixed_precision == "fp16" and answers.hardware == "cpu":
        yield "fp16 does nothing on a CPU (accelerate/accelerator.py); nearest valid: bf16 or no"


def _strategy(answers: Answers) -> Iterator[str]:
    strategy, processes = answers.strategy, answers.num_processes
    if strategy == "none" and processes > 1:
        yield f"{processes} processes need a strategy; nearest valid: ddp"
    if strategy in ("ddp", "fsdp2", "hsdp") and processes == 1:
        yield f"{strategy} needs several processes; nearest valid: strategy none"
    if strategy == "hsdp" and processes > 1 and (answers.dp_replicate == 1 or answers.dp_shard == 1):
        yield "hsdp replicates and shards: dp-replicate and dp-shard are both more than 1; nearest valid: fsdp2"
    if answers.offload != "none" and strategy not in ("zero2", "zero3", "fsdp2", "hsdp"):
        yield f"offload goes with zero2, zero3, fsdp2 and hsdp, not with {strategy} (accelerate docs, usage_guides/deepspeed, usage_guides/fsdp)"
    if answers.offload == "all" and strategy == "zero2":
        yield "parameters are offloaded by ZeRO 3 alone (accelerate docs, usage_guides/deepspeed); nearest valid: offload optimizer"
    if answers.offload == "optimizer" and answers.engine == "fsdp2":
        yield "FSDP offloads parameters, gradients and optimizer together (accelerate docs, usage_guides/fsdp); nearest valid: offload all"
    if answers.offload != "none" and answers.engine == "deepspeed" and answers.optimizer == "other":
        yield "CPU offload makes DeepSpeed's own Adam of any other optimizer (accelerate/utils/deepspeed.py); nearest valid: offload none, or adamw"
    if answers.cluster != "none" and answers.hardware != "multi-node":
        yield f"{answers.cluster} files are written for multi-node; nearest valid: cluster none"


def _endpoint(answers: Answers) -> Iterator[str]:
    faults = [host_fault(answers.main_process_ip) if answers.main_process_ip else ""]
    faults.append(port_fault(answers.main_process_port, machines=answers.num_machines))
    yield from filter(None, faults)


def propose(given: Mapping[str, object]) -> Answers:
    """The given answers, and valid defaults for the others; what was given is kept even where it is wrong (`problems` says so)."""
    values = dict(given)
    taken = 1
    for name in SIZES:
        size = values.get(name, 1)
        taken *= size if isinstance(size, int) and size > 0 else 1
    machines, processes = values.get("num_machines"), values.get("num_processes")
    if "hardware" not in values:
        values["hardware"] = "multi-node" if _more(machines) else "multi-gpu" if _more(processes) or taken > 1 else "single-gpu"
    hardware = values["hardware"]
    values.setdefault("num_machines", 2 if hardware == "multi-node" else 1)
    least = {"multi-gpu": 2, "multi-node": _count(values["num_machines"])}.get(str(hardware), 1)
    values.setdefault("num_processes", max(least, taken) if hardware in ("multi-gpu", "multi-node") else 8 if hardware == "tpu" else 1)
    values.setdefault("strategy", _default_strategy(values, taken))
    _fill_sizes(values, taken)
    return Answers(**values)  # type: ignore[arg-type]


def _more(count: object) -> bool:
    return isinstance(count, int) and count > 1


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _default_strategy(values: Mapping[str, object], taken: int) -> str:
    if _count(values["num_processes"]) == 1:
        return "none"
    rest = _more(values.get("tp")) and _count(values["num_processes"]) > taken  # tp goes with sharded data alone
    if _more(values.get("sp")):
        return "zero3"
    if _more(values.get("dp_shard")) or _more(values.get("cp")) or rest:
        return "hsdp" if _more(values.get("dp_replicate")) else "fsdp2"
    return "ddp"


def _fill_sizes(values: dict[str, object], taken: int) -> None:
    """Give what the processes have left to the data dimension of the strategy that nobody named."""
    rest, left = divmod(_count(values["num_processes"]), taken)
    if left or rest == 1:
        return
    strategy, machines = str(values["strategy"]), _count(values["num_machines"])
    if strategy == "hsdp" and "dp_replicate" not in values and "dp_shard" not in values:
        replicas = machines if machines > 1 and rest % machines == 0 and rest > machines else 2 if rest % 2 == 0 and rest > 2 else 1
        values["dp_replicate"], values["dp_shard"] = replicas, rest // replicas
        return
    first = {"ddp": "dp_replicate", "none": "dp_replicate"}.get(strategy, "dp_shard")
    other = "dp_replicate" if first == "dp_shard" and strategy == "hsdp" else first
    name = first if first not in values else other
    if name not in values and not (first == "dp_replicate" and _more(values.get("tp"))):
        values[name] = rest
