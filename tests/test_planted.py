"""The instrument itself: conversions by hand that are right pass, and every planted error is caught, where it is said to show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential import compare
from tests.differential.bench import Bench
from tests.differential.cases import Case, named
from tests.differential.planted import HAND, PLANTED, Planted, right, wrong


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("planted"))
    yield bench
    bench.close()


def case_of(name: str) -> Case:
    """The fixture script that a conversion by hand belongs to (accumulation is refused by the tool, so its fixture is named so)."""
    return named("accumulation_module" if name == "accumulation" else name)


@pytest.mark.parametrize("name", sorted(path.stem for path in HAND.glob("*.py")))
def test_right_conversion_passes(bench: Bench, name: str) -> None:
    case, source = case_of(name), right(name).encode()
    found = compare.one_process(case, bench.original(case), bench.one(case, source))
    assert not found, "\n".join(found)
    plain, ranks = bench.original(case, fixed_order=True), bench.two(case, source)
    found = compare.processes(case, plain, ranks)
    assert not found, "\n".join(found)
    apart = compare.distance(plain, ranks)
    assert apart.parameters < 1e-5, f"{apart}: the tolerance stands on right conversions being far closer than it"


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name.replace(" ", "-"))
def test_planted_error_is_caught(bench: Bench, planted: Planted) -> None:
    case, source = case_of(planted.case), wrong(planted)
    if planted.processes == 1:
        found = compare.one_process(case, bench.original(case), bench.one(case, source))
    else:
        found = compare.processes(case, bench.original(case, fixed_order=True), bench.two(case, source))
    assert any(planted.caught in line for line in found), f"not caught by {planted.caught!r}; found:\n" + "\n".join(found)


def test_a_launch_that_leaves_every_rank_alone_is_caught(bench: Bench) -> None:
    case = named("digits_argparse")
    born = "    accelerator = Accelerator()\n"
    alone = right(case.name).replace(born, "    import os\n    os.environ.pop('ACCELERATE_USE_CPU')\n" + born)
    found = compare.processes(case, bench.original(case, fixed_order=True), bench.two(case, alone.encode()))
    assert any("ran as 1 process(es)" in line for line in found), found


@pytest.mark.slow
def test_warm_and_cold_make_the_same_trace(bench: Bench) -> None:
    case = named("trainer_best_checkpoint")
    source = right(case.name).encode()
    warm, cold = bench.two(case, source), bench.two(case, source, cold=True)
    assert not cold.code, cold.complaint()
    for one, other in zip(warm.ranks, cold.ranks, strict=True):
        assert (one.losses, one.steps, one.writes, one.processes, one.out) == (other.losses, other.steps, other.writes, other.processes, other.out)
