"""Scripts converted for FSDP2, HSDP, tensor and context parallelism, run on CPU ranks and compared with the original in one process.

Accelerate keeps these strategies for GPUs: `cpu_shim` and `cpu_attention` let its own code run on gloo ranks. Losses, learning rates, gathered
parameters, printed metrics and files must be those of the original's plain training. What CUDA and NCCL do of their own isn't looked at here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert
from tests.conftest import FIXTURES
from tests.differential import compare, launch
from tests.differential.bench import Bench
from tests.differential.cases import Case, read

PARALLEL = FIXTURES / "parallel"
DATA = ("dp_replicate", "dp_shard")
SIZES = (*DATA, "cp", "tp")
TOLD = ("slow", "own")
CLOSE = compare.Tolerance(losses=1e-6, parameters=1e-4, files=1e-5, files_floor=1e-6)


@dataclass(frozen=True)
class Parallel(Case):
    """One script, and the meshes that it is converted for: options, with `ranks` where sizes don't tell them, `slow` for the full run
    alone, `own` where the numbers that are printed are those of the main process's own batches."""

    mesh: tuple[Mapping[str, Any], ...] = ()

    @property
    def source(self) -> bytes:
        """The script's text."""
        return (PARALLEL / self.name / "before.py").read_bytes()


def cases() -> Iterator[Any]:
    """Every script with each of its meshes."""
    for path in sorted(PARALLEL.glob("*/case.toml")):
        case = read(path.parent, Parallel)
        assert isinstance(case, Parallel)
        for mesh in case.mesh:
            name = "-".join(f"{key}{value}" for key, value in mesh.items() if key not in TOLD)
            marks = [pytest.mark.slow] if mesh.get("slow") else []
            yield pytest.param(case, mesh, id=f"{case.name}-{name}", marks=marks)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("parallel"))
    yield bench
    bench.close()


def small_llama(folder: Path) -> str:
    """Puts a small Llama into a folder, its weights drawn here; gives the folder's name."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small_llama(tmp_path_factory.mktemp("llama"))


def conversion(case: Case, options: Mapping[str, Any]) -> bytes:
    """What the tool makes of a script under some options."""
    result = convert(case.source, Options.from_mapping({**case.options, **options}), "train.py")
    said = "\n".join(f"line {d.line}: {d.id} {d.message}" for d in result.diagnostics)
    assert result.outcome is Outcome.CONVERTED, f"{result.outcome.value}\n{said}"
    return result.after


@pytest.mark.parametrize(("case", "mesh"), list(cases()))
def test_trains_the_same_model(bench: Bench, llama: str, case: Parallel, mesh: Mapping[str, Any]) -> None:
    case = replace(case, argv=tuple(llama if word == "LLAMA" else word for word in case.argv))
    options = {key: value for key, value in mesh.items() if key not in ("ranks", *TOLD)}
    if mesh.get("own"):
        case = replace(case, metric=None)
    ranks = mesh.get("ranks") or prod(mesh.get(name, 1) for name in SIZES)
    shared = prod(mesh.get(name, 1) for name in ("cp", "tp"))
    after = conversion(case, options)
    found = launch.run(
        bench.warm,
        after,
        case.runs(halved=True),
        bench.folder(case.name),
        processes=ranks,
        divide=ranks // shared,
        fixed_order=True,
        as_gpus=True,
    )
    differences = compare.processes(case, bench.original(case, fixed_order=True), found, CLOSE)
    assert not differences, "\n".join(differences)


def test_each_script_has_a_mesh() -> None:
    assert [path.parent.name for path in sorted(PARALLEL.glob("*/before.py"))] == [path.parent.name for path in sorted(PARALLEL.glob("*/case.toml"))]
    assert Path(PARALLEL).is_dir()
