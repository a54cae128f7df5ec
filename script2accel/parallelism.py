"""Sizes of a `ParallelismConfig` and what Accelerate says to them, told without torch and before anything is written.

The rules are those of accelerate 1.15.0 (`parallelism_config.py`, `accelerator.py`, `state.py`), and the combinations that it accepts without a
word but does not carry out. Each rule names its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from math import log2, prod

DIMENSIONS = ("dp_replicate", "dp_shard", "cp", "sp", "tp")
"""The order of the mesh, row-major: ranks that differ in `tp` alone are neighbours (parallelism_config.py, `_get_mesh`)."""
ENGINES = ("ddp", "fsdp1", "fsdp2", "deepspeed")
DEVICES = ("gpu", "tpu", "cpu", "mps")


@dataclass(frozen=True)
class Sizes:
    """How many ways each dimension splits; 1 switches it off."""

    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    sp: int = 1
    tp: int = 1

    @property
    def total(self) -> int:
        """How many processes the sizes take."""
        return prod(astuple(self))

    @property
    def active(self) -> Mapping[str, int]:
        """The dimensions that are switched on, in the order of the mesh."""
        return {name: size for name, size in zip(DIMENSIONS, astuple(self), strict=True) if size != 1}

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.active.items()) or "every size 1"


@dataclass(frozen=True)
class Model:
    """What is known of the model; None where it isn't. `masked`: attention with a mask that isn't causal."""

    heads: int | None = None
    kv_heads: int | None = None
    sequence: int | None = None
    transformers: bool | None = None
    masked: bool = False
    models: int = 1


@dataclass(frozen=True)
class Request:
    """Sizes, the engine that shards, and what they run on; `processes` counts all machines."""

    sizes: Sizes
    engine: str = "fsdp2"
    processes: int = 1
    machines: int = 1
    device: str = "gpu"
    model: Model = field(default_factory=Model)

    def __str__(self) -> str:
        return f"{self.sizes} with {self.engine} on {self.processes} process{'es' * (self.processes != 1)}"


@dataclass(frozen=True)
class Refusal:
    """A rule that the request breaks: its name, what is wrong, who says so, and the nearest requests that break none."""

    rule: str
    what: str
    source: str
    nearest: tuple[Request, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} ({self.source}); " + (
            f"nearest valid: {' or '.join(map(str, self.nearest))}" if self.nearest else "no size makes this valid"
        )


def _least(request: Request) -> str:
    bad = [f"{name}={size}" for name, size in zip(DIMENSIONS, astuple(request.sizes), strict=True) if size < 1]
    return f"sizes are at least 1, not {', '.join(bad)}" if bad else ""


def _machines(request: Request) -> str:
    if request.machines < 1 or request.processes < 1:
        return f"{request.processes} processes on {request.machines} machines"
    if request.processes % request.machines:
        return f"{request.processes} processes can't be shared evenly by {request.machines} machines"
    return ""


def _device(request: Request) -> str:
    plain = request.engine == "ddp" and set(request.sizes.active) <= {"dp_replicate"}
    if request.device == "gpu" or (plain and (request.device != "mps" or request.processes == 1)):
        return ""
    if request.device == "mps":
        return "MPS is one device in one process"
    return f"sharding and model parallelism need GPUs, not {request.device.upper()}: Accelerate refuses the sizes there and turns FSDP into DDP"


def _exclusive(request: Request) -> str:
    return "cp and sp exclude each other" if request.sizes.cp > 1 and request.sizes.sp > 1 else ""


def _replicas(request: Request) -> str:
    sizes = request.sizes
    if (sizes.tp > 1 or sizes.cp > 1) and sizes.dp_replicate > 1 and sizes.dp_shard == 1:
        return "tp and cp don't go with pure data parallelism (dp_replicate > 1 and dp_shard = 1)"
    return ""


def _product(request: Request) -> str:
    if request.sizes.total == request.processes:
        return ""
    product = " x ".join(map(str, astuple(request.sizes)))
    return f"{' x '.join(DIMENSIONS)} = {product} = {request.sizes.total}, not the number of processes {request.processes}"


def _shards(request: Request) -> str:
    sizes = request.sizes
    if request.engine == "fsdp2" and sizes.dp_shard == 1 and sizes.cp == 1 and request.processes > 1:
        return "FSDP2 has no dimension to shard over (dp_shard and cp are 1)"
    return ""


def _version(request: Request) -> str:
    return "a ParallelismConfig goes with FSDP2, not with FSDP1" if request.engine == "fsdp1" and request.sizes.total > 1 else ""


def _context(request: Request) -> str:
    return "cp needs FSDP2" if request.sizes.cp > 1 and request.engine != "fsdp2" else ""


def _silent_ddp(request: Request) -> str:
    if request.sizes.dp_shard > 1 and request.engine == "ddp":
        return "dp_shard without FSDP2 shards nothing: Accelerate trains with plain DDP, or with tp without any averaging, and says nothing"
    return ""


def _sequence_engine(request: Request) -> str:
    return "sp works under DeepSpeed alone; elsewhere Accelerate ignores it" if request.sizes.sp > 1 and request.engine != "deepspeed" else ""


def _deepspeed(request: Request) -> str:
    sizes = request.sizes
    if request.engine != "deepspeed":
        return ""
    if sizes.tp > 1 or sizes.cp > 1:
        return "DeepSpeed takes sp of these sizes; tp and cp aren't documented with it"
    if sizes.dp_replicate > 1 and sizes.sp == 1:
        return "ZeRO shards over all processes: dp_replicate would do nothing"
    return ""


def _heads(request: Request) -> str:
    model, tp, sp = request.model, request.sizes.tp, request.sizes.sp
    if model.heads is not None and (model.heads % tp or model.heads % sp):
        return f"{model.heads} attention heads can't be shared by {'tp' if model.heads % tp else 'sp'}={tp if model.heads % tp else sp}"
    if model.kv_heads is not None and model.kv_heads % tp:
        return f"{model.kv_heads} key/value heads can't be shared by tp={tp}"
    if model.kv_heads is not None and model.kv_heads % sp and sp % model.kv_heads:
        return f"{model.kv_heads} key/value heads and sp={sp}: one must divide the other"
    return ""


def _sequence(request: Request) -> str:
    length, cp, sp = request.model.sequence, request.sizes.cp, request.sizes.sp
    if length is not None and cp > 1 and length % (2 * cp):
        return f"a sequence of {length} can't be cut into 2 x cp = {2 * cp} equal parts, which torch's load balancing expects"
    if length is not None and length % sp:
        return f"a sequence of {length} can't be shared by sp={sp}"
    return ""


def _plan(request: Request) -> str:
    model, sizes = request.model, request.sizes
    if model.transformers is False and (sizes.tp > 1 or sizes.sp > 1):
        return f"{'tp' if sizes.tp > 1 else 'sp'} needs a transformers model" + (" with a tensor-parallel plan" if sizes.tp > 1 else "")
    return ""


def _mask(request: Request) -> str:
    return "cp attends without a mask or causally, and this model passes an attention mask" if request.model.masked and request.sizes.cp > 1 else ""


def _models(request: Request) -> str:
    if request.model.models > 1 and request.engine in ("fsdp2", "deepspeed"):
        return f"{request.engine} prepares one model, and the script trains {request.model.models}"
    return ""


RULES: Mapping[str, tuple[Callable[[Request], str], str]] = {
    "least": (_least, "accelerate/parallelism_config.py, __post_init__"),
    "machines": (_machines, "accelerate/utils/launch.py, prepare_multi_gpu_env"),
    "device": (_device, "accelerate/accelerator.py, multi_device; accelerate/state.py, AcceleratorState"),
    "exclusive": (_exclusive, "accelerate/parallelism_config.py, __post_init__"),
    "replicas": (_replicas, "accelerate/parallelism_config.py, __post_init__"),
    "product": (_product, "accelerate/parallelism_config.py, _validate_accelerator"),
    "shards": (_shards, "accelerate/parallelism_config.py, _validate_accelerator"),
    "version": (_version, "accelerate/parallelism_config.py, _validate_accelerator"),
    "context": (_context, "accelerate docs, concept_guides/context_parallelism"),
    "silent-ddp": (_silent_ddp, "accelerate/state.py, AcceleratorState"),
    "sequence-engine": (_sequence_engine, "accelerate docs, concept_guides/sequence_parallelism"),
    "deepspeed": (_deepspeed, "accelerate docs, concept_guides/sequence_parallelism"),
    "heads": (_heads, "transformers' tensor-parallel plans; deepspeed/runtime/sequence_parallel/ulysses_sp.py"),
    "sequence": (_sequence, "torch/distributed/tensor/experimental/_context_parallel; deepspeed/runtime/sequence_parallel/ulysses_sp.py"),
    "plan": (_plan, "accelerate/accelerator.py, _prepare_tp and _prepare_deepspeed"),
    "mask": (_mask, "accelerate docs, concept_guides/context_parallelism"),
    "models": (_models, "accelerate/accelerator.py, prepare"),
}


def valid(request: Request) -> bool:
    """Whether no rule refuses the request."""
    return not any(check(request) for check, _ in RULES.values())


def refusals(request: Request) -> tuple[Refusal, ...]:
    """Every rule that the request breaks; all name the same nearest valid requests."""
    broken = [(rule, what, source) for rule, (check, source) in RULES.items() if (what := check(request))]
    near = nearest(request) if broken else ()
    return tuple(Refusal(rule, what, source, near) for rule, what, source in broken)


def nearest(request: Request) -> tuple[Request, ...]:
    """Up to two valid requests: the one whose sizes differ least on as many processes, and the one with these sizes on as many as they take."""
    found: list[Request] = []
    for engine in (request.engine, *(engine for engine in ("fsdp2", "deepspeed", "ddp") if engine != request.engine)):
        on_engine = replace(request, engine=engine)
        fitting = [one for sizes in _factorizations(request.processes) if valid(one := replace(on_engine, sizes=sizes))]
        if fitting:
            found.append(min(fitting, key=lambda one: _distance(request.sizes, one.sizes)))
            break
    other = replace(request, processes=max(1, request.sizes.total))
    if other.processes != request.processes and valid(other):
        found.append(other)
    return tuple(found)


def _distance(wanted: Sizes, offered: Sizes) -> tuple[float, ...]:
    """How far sizes are from the wanted ones, in doublings; of two as far, the one that leaves the model whole comes first."""
    pairs = zip(astuple(wanted), astuple(offered), strict=True)
    away = sum(abs(log2(max(1, one)) - log2(two)) for one, two in pairs)
    return (round(away, 6), offered.cp, offered.sp, offered.tp, offered.dp_replicate)


def _factorizations(number: int) -> Iterator[Sizes]:
    """Every way to share a number of processes among the dimensions."""

    def split(rest: int, count: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield (rest,)
            return
        for size in (size for size in range(1, rest + 1) if rest % size == 0):
            for others in split(rest // size, count - 1):
                yield (size, *others)

    if number > 0:
        for sizes in split(number, len(fields(Sizes))):
            yield Sizes(*sizes)


def notes(request: Request) -> Iterator[str]:
    """What is valid and yet deserves a look: groups that talk between machines."""
    per_machine = request.processes // request.machines
    if request.machines > 1 and request.sizes.tp > 1 and per_machine % request.sizes.tp:
        yield f"tp={request.sizes.tp} crosses machines of {per_machine} processes; it is typically kept within one (axolotl docs, nd_parallelism)"
    inner = request.sizes.total // max(1, request.sizes.dp_replicate)
    if request.machines > 1 and request.sizes.dp_replicate > 1 and inner > 1 and per_machine % inner:
        yield f"a replica of {inner} processes crosses machines of {per_machine}; HSDP usually shards within one (axolotl docs, nd_parallelism)"


def features(request: Request) -> frozenset[str]:
    """The names under which `knowledge.gates` knows what the request needs."""
    sizes = request.sizes
    found = {name for name in ("cp", "sp", "tp") if getattr(sizes, name) > 1}
    if request.engine == "fsdp2":
        found |= {"fsdp2"} | ({"fsdp2+tp"} if sizes.tp > 1 else set())
    return frozenset(found | ({"parallelism"} if uses_config(request) else set()))


def uses_config(request: Request) -> bool:
    """Whether a `ParallelismConfig` is needed: plain DDP and ZeRO without sp do without."""
    if request.engine == "fsdp2":
        return request.sizes.total > 1
    return bool({"tp", "cp", "sp"} & set(request.sizes.active))
