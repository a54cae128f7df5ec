"""A strategy for the script: from flags, from saved answers, from the accelerate config; and what is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from script2accel.errors import UsageError
from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert
from tests.cli_support import call
from tests.conftest import FIXTURES

OWN = (FIXTURES / "parallel" / "own_blocks" / "before.py").read_bytes()
LLAMA = (FIXTURES / "parallel" / "llama" / "before.py").read_bytes()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_bytes(OWN)


def test_saved_answers_are_not_asked_again() -> None:
    saved = call("init", "--no-input", "--hardware", "multi-gpu", "--num-processes", "4", "--dp-replicate", "2", "--dp-shard", "2")
    assert saved.exit_code == 0, saved.stderr
    shown = call("convert", "train.py", "--show-diff").stdout
    assert "ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)" in shown and 'transformer_cls_names_to_wrap=["Block"]' in shown


def test_a_flag_replaces_the_saved_strategy() -> None:
    call("init", "--no-input", "--hardware", "multi-gpu", "--num-processes", "4", "--dp-replicate", "2", "--dp-shard", "2")
    shown = call("convert", "train.py", "--show-diff", "--fsdp").stdout
    assert "FullyShardedDataParallelPlugin" in shown and "ParallelismConfig" not in shown
    refused = call("convert", "train.py", "--show-diff", "--dp-shard", "2")
    assert refused.exit_code == 1 and not refused.stdout and "nearest valid" in refused.stderr


def test_sizes_from_the_config_stay_out_of_the_script() -> None:
    shown = call("convert", "train.py", "--show-diff", "--dp-shard", "2", "--parallelism", "from-config").stdout
    assert "+    accelerator = Accelerator()" in shown and "Parallel" not in shown
    result = convert(LLAMA, Options(tp=2, dp_shard=2, parallelism="from-config"))
    assert b"device_mesh=accelerator.torch_device_mesh" in result.after and b"ParallelismConfig" not in result.after


@pytest.mark.parametrize(
    ("script", "options", "said"),
    [
        (OWN, {"tp": 2}, "tp needs a transformers model"),
        (OWN, {"cp": 2}, "isn't a causal language model"),
        (LLAMA, {"tp": 2, "dp_replicate": 2}, "tp and cp don't go with pure data parallelism"),
        (LLAMA, {"dp_shard": 2, "num_processes": 6}, "not the number of processes 6"),
        (LLAMA, {"dp_shard": 3, "num_machines": 2}, "can't be shared evenly by 2 machines"),
        (LLAMA, {"strategy": "zero2", "dp_replicate": 2}, "ZeRO shards over all processes"),
        (LLAMA, {"cp": 2, "sp": 2}, "cp and sp exclude each other"),
        (LLAMA, {"sp": 2}, "sequence parallelism isn't put into scripts"),
        (OWN, {"strategy": "zero2", "offload": "all"}, "parameters are offloaded by ZeRO 3 alone"),
        (OWN.replace(b"AdamW", b"SGD"), {"strategy": "zero3", "offload": "optimizer"}, "CPU offload makes DeepSpeed's own Adam"),
        (LLAMA, {"strategy": "ddp", "dp_shard": 2, "tp": 2}, "dp_shard without FSDP2"),
    ],
)
def test_refused(script: bytes, options: dict[str, object], said: str) -> None:
    result = convert(script, Options.from_mapping(options))
    assert result.outcome is Outcome.REFUSED and not result.changed
    assert any(said in found.message for found in result.errors), [found.message for found in result.errors]


@pytest.mark.parametrize("options", [{"strategy": "hsdp"}, {"dp_shard": 0}, {"parallelism": "both"}, {"wrap": ["a b"]}, {"tp": True}])
def test_wrong_options(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Options.from_mapping(options)
