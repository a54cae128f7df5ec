"""Every fixture script against its conversion: the same training, files and printed metrics; the refused ones are refused with the right reason.

One process must be equal bit for bit, two gloo ranks with half the batch up to summation order (`tests.differential.compare.Tolerance`). The same
runs on GPUs: one in fp32, fp16 and bf16 (marker `gpu`), two under NCCL (marker `multi_gpu`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert
from tests.differential import compare
from tests.differential.bench import Bench
from tests.differential.cases import Case, every

CASES = every()
CONVERTED = [case for case in CASES if case.outcome == Outcome.CONVERTED.value]
REFUSED = [case for case in CASES if case.outcome == Outcome.REFUSED.value]
AT_TWO = [case for case in CONVERTED if case.two]
ON_GPU = compare.Tolerance(losses=1e-4, parameters=1e-2, metrics=1e-2, files=1e-2, files_floor=1e-3)

needs_gpu = pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
needs_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("differential"))
    yield bench
    bench.close()


def conversion(case: Case) -> bytes:
    """What the tool makes of a fixture script."""
    result = convert(case.source, Options.from_mapping(case.options), "train.py")
    said = "\n".join(f"line {d.line}: {d.id} {d.message}" for d in result.diagnostics)
    assert result.outcome is Outcome.CONVERTED, f"{result.outcome.value}\n{said}"
    return result.after


def name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CONVERTED, ids=name)
def test_one_process(bench: Bench, case: Case) -> None:
    source = conversion(case)
    found = compare.one_process(case, bench.original(case), bench.one(case, source))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", AT_TWO, ids=name)
def test_two_processes(bench: Bench, case: Case) -> None:
    source = conversion(case)
    found = compare.processes(case, bench.original(case, fixed_order=True), bench.two(case, source))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", [case for case in CONVERTED if not case.two], ids=name)
def test_two_processes_end_and_agree(bench: Bench, case: Case) -> None:
    """What can't be compared with one process still runs to its end, with equal ranks and one writer for each file."""
    found = compare.ranks_alone(bench.original(case, fixed_order=True), bench.two(case, conversion(case)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_refused(case: Case) -> None:
    result = convert(case.source, Options.from_mapping(case.options), "train.py")
    said = [f"{d.id} {d.message}" for d in result.errors]
    assert result.outcome is Outcome.REFUSED and not result.changed, said
    for words in case.diagnostics:
        assert any(words in line for line in said), f"no error says {words!r}: {said}"


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("case", CONVERTED, ids=name)
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_one_gpu(bench: Bench, case: Case, precision: str) -> None:
    plain = bench.original(case, fixed_order=True, gpu=True)
    converted = bench.one(case, conversion(case), fixed_order=True, gpu=True, precision=precision)
    full = precision == "no"
    found = compare.processes(case, plain, converted, ON_GPU) if full else compare.reduced_precision(plain, converted, precision)
    assert not found, "\n".join(found)


@pytest.mark.multi_gpu
@needs_two_gpus
@pytest.mark.parametrize("case", AT_TWO, ids=name)
def test_two_gpus(bench: Bench, case: Case) -> None:
    found = compare.processes(case, bench.original(case, fixed_order=True, gpu=True), bench.two(case, conversion(case), gpu=True), ON_GPU)
    assert not found, "\n".join(found)


def test_there_are_enough_comparable_scripts() -> None:
    shapes = {case.shape for case in AT_TWO}
    assert len(CONVERTED) >= 20 and len(AT_TWO) >= 16 and shapes == {"module", "helpers", "globals", "class"}
