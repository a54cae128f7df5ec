"""Scripts converted for DeepSpeed's ZeRO, run by the real package on two CPU ranks and compared with the original in one process.

Losses, learning rates, printed metrics and files must be those of the original's plain training: with and without clipping, with accumulation and
schedulers, saved and loaded again. The table stands in the script, or in the JSON that the tool writes. Without DeepSpeed (`pip install deepspeed`)
these tests are skipped; what CUDA and NCCL do of their own isn't looked at.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from script2accel.launch import command, deepspeed
from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.answers import propose
from script2accel.workflow.convert import convert
from tests.conftest import FIXTURES
from tests.differential import compare, launch
from tests.differential.bench import Bench
from tests.differential.cases import Case, read
from tests.differential.trace import Run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install -e '.[deepspeed]'")
FOLDERS = (FIXTURES / "deepspeed", FIXTURES / "parallel")
CLOSE = compare.Tolerance(losses=1e-5, files=1e-4, files_floor=1e-5)
FORKED = {"S2A_WARM_ALSO": "deepspeed", "DS_ACCELERATOR": "cpu"}


@dataclass(frozen=True)
class Engine(Case):
    """One script, and what it is converted for."""

    mesh: tuple[Mapping[str, Any], ...] = ()
    folder: Path = FIXTURES

    @property
    def source(self) -> bytes:
        """The script's text."""
        return (self.folder / self.name / "before.py").read_bytes()


def named(name: str) -> Engine:
    """A script of either folder."""
    folder = next(folder for folder in FOLDERS if (folder / name).is_dir())
    case = read(folder / name, Engine)
    assert isinstance(case, Engine)
    return replace(case, folder=folder)


OWN = [
    pytest.param(path.parent.name, mesh, id=f"{path.parent.name}-{mesh['strategy']}")
    for path in sorted(FOLDERS[0].glob("*/case.toml"))
    for mesh in named(path.parent.name).mesh
]
SHARED = [pytest.param(name, {"strategy": stage}, id=f"{name}-{stage}") for name in ("own_blocks", "llama") for stage in ("zero2", "zero3")]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("deepspeed"))
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[launch.Launcher]:
    warm = launch.Warm(FORKED)
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.test_parallel import small_llama

    return small_llama(tmp_path_factory.mktemp("llama"))


def conversion(case: Case, options: Mapping[str, Any]) -> bytes:
    """What the tool makes of a script under some options."""
    result = convert(case.source, Options.from_mapping({"num_processes": 2, **case.options, **options}), "train.py")
    said = "\n".join(f"line {d.line}: {d.id} {d.message}" for d in result.diagnostics)
    assert result.outcome is Outcome.CONVERTED, f"{result.outcome.value}\n{said}"
    return result.after


def run(bench: Bench, engines: launch.Launcher, case: Engine, source: bytes, also: Mapping[str, str] | None = None) -> Run:
    """A conversion on two ranks, each with half the batch."""
    return launch.run(
        engines,
        source,
        case.runs(halved=True),
        bench.folder(case.name),
        processes=2,
        divide=2,
        fixed_order=True,
        as_gpus=True,
        also={"S2A_DEEPSPEED": "1", "DS_ACCELERATOR": "cpu", **(also or {})},
    )


@pytest.mark.parametrize(("name", "options"), [*OWN, *SHARED])
def test_trains_the_same_model(bench: Bench, engines: launch.Launcher, llama: str, name: str, options: Mapping[str, Any]) -> None:
    case = named(name)
    case = replace(case, argv=tuple(llama if word == "LLAMA" else word for word in case.argv))
    found = run(bench, engines, case, conversion(case, options))
    differences = compare.engine(case, bench.original(case, fixed_order=True), found, CLOSE)
    assert not differences, "\n".join(differences)


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_trains_the_same_model_from_the_generated_json(
    bench: Bench, engines: launch.Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """The script holds no plugin; the variables are those that the tool's own command sets."""
    answers = propose({"num_processes": 2, "strategy": stage, "gradient_clipping": 0.5})
    monkeypatch.chdir(tmp_path)
    Path(deepspeed.FILE).write_text(deepspeed.document(answers))
    case = named("own_blocks")
    source = conversion(case, {"strategy": stage, "parallelism": "from-config", "gradient_clipping": 0.5})
    assert b"DeepSpeedPlugin" not in source
    also = {**command.environment(answers), "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(tmp_path / deepspeed.FILE)}
    found = run(bench, engines, case, source, also)
    differences = compare.engine(case, bench.original(case, fixed_order=True), found, CLOSE)
    assert not differences, "\n".join(differences)


def test_clipping_is_seen(bench: Bench, engines: launch.Launcher) -> None:
    """That a script keeps its clip, and its lack of one, is no accident of small gradients: with the other, it trains otherwise."""
    for name, options, right, wrong in (
        ("wide", {"strategy": "zero2"}, b'"gradient_clipping": 0.0', b'"gradient_clipping": 1.0'),
        ("accumulated", {"strategy": "zero2"}, b'"gradient_clipping": args.clip if args.clip > 0 else 0.0', b'"gradient_clipping": 0.0'),
    ):
        case = named(name)
        source = conversion(case, options)
        assert right in source
        found = run(bench, engines, case, source.replace(right, wrong))
        assert compare.engine(case, bench.original(case, fixed_order=True), found, CLOSE)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="DeepSpeed builds its Adam for CPUs with g++")
@pytest.mark.parametrize("stage", ["zero2", "zero3"])
def test_offloads_adam(bench: Bench, engines: launch.Launcher, stage: str) -> None:
    case = named("own_blocks")
    source = conversion(case, {"strategy": stage, "offload": "optimizer" if stage == "zero2" else "all"})
    differences = compare.engine(case, bench.original(case, fixed_order=True), run(bench, engines, case, source), CLOSE)
    assert not differences, "\n".join(differences)
