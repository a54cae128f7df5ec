"""Answers: what goes together, where they are kept, and the commands that ask, show and read them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from xml.dom.minidom import parseString

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from script2accel.errors import UsageError
from script2accel.knowledge.deepspeed import offload_refusal
from script2accel.knowledge.guide import TOPICS, fp8
from script2accel.launch import accelerate, deepspeed
from script2accel.workflow import saved, toml
from script2accel.workflow.answers import CHOICES, KEYS, SIZES, Answers, from_table, problems, propose
from script2accel.workflow.questions import QUESTIONS
from tests.answer_cases import SEED, cases
from tests.cli_support import call

INIT = ["init", "--no-input", "--hardware", "multi-node", "--num-machines", "2", "--num-processes", "16"]
SIZED = [*INIT, "--dp-replicate", "2", "--dp-shard", "2", "--cp", "2", "--tp", "2"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def test_cases_are_many_and_valid() -> None:
    assert len(cases()) > 40 and not any(map(problems, cases()))
    assert {one.hardware for one in cases()} == set(CHOICES["hardware"]) and {one.strategy for one in cases()} == set(CHOICES["strategy"])


@pytest.mark.parametrize("hardware", CHOICES["hardware"])
@pytest.mark.parametrize("strategy", [None, *CHOICES["strategy"]])
@pytest.mark.parametrize("processes", [None, 1, 8])
def test_the_proposed_default_is_valid_or_the_problem_is_named(hardware: str, strategy: str | None, processes: int | None) -> None:
    given_ = {"hardware": hardware, **({"strategy": strategy} if strategy else {}), **({"num_processes": processes} if processes else {})}
    answers = propose(given_)
    assert all(getattr(answers, key) == value for key, value in given_.items())
    if strategy is None and processes is None:
        assert not problems(answers)


@pytest.mark.parametrize(
    ("given_", "words"),
    [
        ({"hardware": "single-gpu", "num_processes": 2}, "multi-gpu"),
        ({"hardware": "multi-gpu", "num_processes": 1}, "single-gpu"),
        ({"hardware": "multi-gpu", "num_machines": 2, "num_processes": 4}, "multi-node"),
        ({"hardware": "multi-node", "num_machines": 1, "num_processes": 4}, "multi-gpu"),
        ({"hardware": "multi-node", "num_machines": 3, "num_processes": 8}, "nearest valid: 6 or 9"),
        ({"hardware": "tpu", "num_machines": 2}, "one machine"),
        ({"hardware": "cpu", "mixed_precision": "fp16"}, "nearest valid: bf16"),
        ({"hardware": "tpu", "mixed_precision": "fp8"}, "nearest valid: bf16"),
        ({"num_processes": 2, "strategy": "none"}, "nearest valid: ddp"),
        ({"strategy": "fsdp2"}, "nearest valid: strategy none"),
        ({"num_processes": 8, "strategy": "hsdp", "dp_replicate": 1, "dp_shard": 8}, "nearest valid: fsdp2"),
        ({"num_processes": 8, "strategy": "ddp", "offload": "all"}, "offload goes with"),
        ({"num_processes": 8, "strategy": "zero2", "offload": "all"}, "nearest valid: offload optimizer"),
        ({"num_processes": 8, "strategy": "fsdp2", "offload": "optimizer"}, "nearest valid: offload all"),
        ({"num_processes": 8, "strategy": "zero3", "offload": "all", "optimizer": "other"}, "nearest valid: offload none"),
        ({"num_processes": 8, "cluster": "slurm"}, "nearest valid: cluster none"),
        ({**SEED, "main_process_ip": "no host"}, "no host name"),
        ({**SEED, "main_process_port": 0}, "1 to 65535"),
        ({"hardware": "cpu", "num_processes": 4, "dp_shard": 4}, "nearest valid"),
        ({"num_processes": 8, "dp_shard": 2, "tp": 2}, "dp_shard=4, tp=2"),
    ],
)
def test_what_does_not_go_together_is_said_with_what_would(given_: dict[str, object], words: str) -> None:
    assert any(words in problem for problem in problems(propose(given_))), problems(propose(given_))


@pytest.mark.parametrize(
    "given_", [{"hardware": "gpu"}, {"tp": "2"}, {"tp": True}, {"gradient_clipping": -1.0}, {"gradient_clipping": float("nan")}, {"wrap": ("a b",)}]
)
def test_a_wrong_value_is_refused(given_: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Answers(**given_)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("optimizer", "arguments", "kept"),
    [
        ("torch.optim.AdamW", {"lr": 1e-3, "betas": [0.5, 0.6], "eps": 1e-3, "weight_decay": 0.1}, True),
        ("Adam", {"amsgrad": False}, True),
        ("torch.optim.Adam", {"amsgrad": True}, False),
        ("torch.optim.AdamW", {"maximize": True}, False),
        ("torch.optim.Adagrad", {}, False),
        ("torch.optim.SGD", {"momentum": 0.9}, False),
        ("my.AdamW", {}, False),
    ],
)
def test_which_optimizers_offload_keeps(optimizer: str, arguments: dict[str, object], kept: bool) -> None:
    assert (not offload_refusal(optimizer, arguments)) is kept


# ------------------------------------------------------------------ the table


@pytest.mark.parametrize("answers", cases())
def test_a_table_is_read_back_as_it_was_saved(answers: Answers) -> None:
    for text, path in (("", ()), ("", saved.TABLE), ("# top\n[tool.other]\nx = 1\n", saved.TABLE)):
        after = toml.update(text, path, answers.table(), KEYS, "file")
        assert after.startswith(text)
        table = toml.table(toml.parse(after, "file"), path, "file")
        assert propose(from_table(table)) == answers
        assert toml.update(after, path, answers.table(), KEYS, "file") == after


DOCUMENT = """# about us
[project]
name = "x"  # a name

[tool.script2accel]   # ours
# what a batch means
batch = "global"
num_processes = 4     # on one machine
"tp" = 2
wrap = ["A # no comment"]  # blocks

# below
[tool.other]
tp = 7
"""


def test_comments_and_other_keys_stay() -> None:
    after = toml.update(DOCUMENT, saved.TABLE, {"hardware": "multi-gpu", "num-processes": 8, "wrap": ["B"]}, KEYS, "file")
    assert after == DOCUMENT.replace("num_processes = 4     # on", "num-processes = 8     # on").replace('"tp" = 2\n', "").replace(
        'wrap = ["A # no comment"]  # blocks\n', 'wrap = ["B"]  # blocks\nhardware = "multi-gpu"\n'
    )
    windows = toml.update(DOCUMENT.replace("\n", "\r\n"), saved.TABLE, {"tp": 3}, KEYS, "file")
    assert "\n" not in windows.replace("\r\n", "") and '\r\n"tp"' not in windows and "tp = 3\r\n" in windows


@pytest.mark.parametrize(
    "text",
    [
        "tool.script2accel.tp = 2\n",
        "[tool]\nscript2accel = {tp = 2}\n",
        "[tool]\nscript2accel.tp = 2\n",
        "[tool.script2accel]\nwrap = [\n  'A',\n]\n",
    ],
)
def test_what_can_t_be_rewritten_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="header of its own"):
        toml.update(text, saved.TABLE, {"tp": 4}, KEYS, "file")


LINES = st.sampled_from(
    ["", "# tp = 1", "[tool.script2accel]", "[a]", "[a.b]", "[[c]]", "x = 1", 'y = "#"', "tp = 2", "cp = 3 # c", "z = '''\ntp = 1\n'''", "[tool]"]
)


@given(st.lists(LINES, max_size=8), st.dictionaries(st.sampled_from(["tp", "hardware", "wrap"]), st.sampled_from([1, 2]), max_size=3))
@settings(max_examples=300, deadline=None)
def test_any_document_is_changed_in_its_table_alone_or_refused(lines: list[str], values: dict[str, int]) -> None:
    text = "\n".join(lines)
    try:
        before = toml.parse(text, "file")
        after = toml.update(text, saved.TABLE, values, KEYS, "file")
    except UsageError:
        return
    table = dict(toml.table(toml.parse(after, "file"), saved.TABLE, "file"))
    assert {key: value for key, value in table.items() if key in KEYS} == values
    others = {key: value for key, value in toml.table(before, saved.TABLE, "file").items() if key not in KEYS}
    assert {key: value for key, value in table.items() if key not in KEYS} == others
    kept = [line for line in text.split("\n") if not line.startswith(("tp", "cp"))]
    left = iter(after.split("\n"))
    assert all(line in left for line in kept)  # every other line, in its order


# ------------------------------------------------------------------ init


def test_init_saves_and_later_commands_read() -> None:
    result = call(*SIZED)
    assert result.exit_code == 0 and "script2accel.toml: saved" in result.stdout
    assert Path("script2accel.toml").read_text().startswith('hardware = "multi-node"\nnum-machines = 2\nnum-processes = 16\nstrategy = "hsdp"\n')
    again = call("init", "--no-input")
    assert again.exit_code == 0 and "unchanged" in again.stdout
    config = call("config")
    assert yaml.safe_load(config.stdout)["parallelism_config"] == {f"parallelism_config_{name}_size": 2 for name in SIZES if name != "sp"}
    assert "16 ranks" in call("mesh").stdout
    assert call("undo", "script2accel.toml").exit_code == 0 and not Path("script2accel.toml").exists()


def test_init_edits_one_answer_and_what_hangs_on_it() -> None:
    call(*SIZED)
    assert call("init", "--no-input", "--mixed-precision", "bf16").exit_code == 0
    assert saved.load({}) == replace(propose(SEED), mixed_precision="bf16")
    call("init", "--no-input", "--num-processes", "32")
    assert saved.load({}).sizes.total == 32 and saved.load({}).tp == saved.load({}).cp == 2
    call("init", "--no-input", "--hardware", "single-gpu")
    assert saved.load({}) == Answers(mixed_precision="bf16")


def test_init_writes_into_pyproject_and_keeps_the_rest() -> None:
    Path("pyproject.toml").write_text(DOCUMENT.replace("A # no comment", "A"))
    os.mkdir("deep")
    os.chdir("deep")
    assert call(*SIZED).exit_code == 0
    os.chdir("..")
    text = Path("pyproject.toml").read_text()
    assert "# what a batch means\n" in text and 'batch = "global"' in text and text.endswith("[tool.other]\ntp = 7\n")
    assert saved.load({}).tp == 2 and not Path("script2accel.toml").exists()


def test_the_conversion_reads_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cli_support import SCRIPT, use_toy

    use_toy(monkeypatch)
    Path("train.py").write_text(SCRIPT)
    Path("script2accel.toml").write_text('hardware = "multi-gpu"\nnum-processes = 8\nbatch = "global"\n')
    assert "global" in call("convert", "train.py", "--show-diff").stderr
    Path("script2accel.toml").write_text("nonsense = 1\n")
    for command in (["convert", "train.py", "--show-diff"], ["config"], ["mesh"], ["launch", "train.py"]):
        result = call(*command)
        assert result.exit_code == 2 and "nonsense" in result.stderr, command


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--dp-shard", "3"], "nearest valid"),
        (["--strategy", "ddp", "--deepspeed", "zero3"], "one strategy"),
        (["--fsdp", "--deepspeed", "zero3"], "one strategy"),
        (["--hardware", "gpu"], "gpu"),
        (["--tp", "x"], "x"),
        (["--main-process-ip", "a b"], "host name"),
    ],
)
def test_init_refuses_and_writes_nothing(flags: list[str], words: str) -> None:
    result = call(*INIT, *flags) if flags[0] != "--hardware" else call("init", *flags)
    assert result.exit_code == 2 and words in result.stderr and not os.listdir()


def test_every_question_has_a_flag_an_explanation_and_a_source() -> None:
    from script2accel.cli.init import command

    options = {parameter.name for parameter in command.params}
    assert {question.field for question in QUESTIONS} <= options
    assert {flag.replace("-", "_") for flag in KEYS} == {question.field for question in QUESTIONS}
    assert all(question.explanation and "\n" not in question.explanation and question.source for question in QUESTIONS)


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str, flags: tuple[str, ...] = ()) -> str:
    """A run of `init` on a terminal where somebody types these lines; then the end of input."""
    monkeypatch.setattr("script2accel.cli.init.interactive", lambda: True)
    return call("init", *flags, input="".join(f"{line}\n" for line in lines)).stdout


def test_the_interview(monkeypatch: pytest.MonkeyPatch) -> None:
    out = typed(monkeypatch, "gpu", "multi-gpu", "8", "bf16", "fsdp2", "2", "", "", "Block", "all", "y")
    assert "one of single-gpu, multi-gpu" in out and "script2accel.toml: saved" in out and "(accelerate docs, usage_guides/fsdp)" in out
    assert "+tp = 2" in out  # shown before it is saved
    assert saved.load({}) == Answers(
        "multi-gpu", num_processes=8, mixed_precision="bf16", strategy="fsdp2", dp_shard=4, tp=2, wrap=("Block",), offload="all"
    )


def test_the_interview_does_not_ask_what_a_flag_says_and_saves_nothing_without_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--hardware", "multi-gpu", "--num-processes", "8", "--strategy", "ddp", "--tp", "1")
    out = typed(monkeypatch, "", "n", flags=flags)
    assert out.count("[no]") == 1 and "left as it was" in out and not os.listdir()
    assert "Nothing was saved" in typed(monkeypatch, "multi-gpu") and not os.listdir()


def test_the_interview_asks_again_where_answers_don_t_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ("multi-gpu", "8", "", "fsdp2", "3", "", "", "", "")
    out = typed(monkeypatch, *wrong, "", "", "", "", "2", "", "4", "", "", "y")
    assert "That can't be carried out" in out and "nearest valid" in out
    assert saved.load({}).tp == 2


# ------------------------------------------------------------------ config, launch, mesh, guide


def test_config_shows_and_writes_when_told() -> None:
    assert call("config", "--num-processes", "8", "--deepspeed", "zero3").exit_code == 0 and not os.listdir()
    done = call("config", "--num-processes", "8", "--deepspeed", "zero3", "--output", "a.yaml", "--write")
    assert done.exit_code == 0 and {"a.yaml", deepspeed.FILE} <= set(os.listdir())
    assert "unchanged" in call("config", "--num-processes", "8", "--deepspeed", "zero3", "--output", "a.yaml", "--write").stderr
    assert call("undo").exit_code == 0 and "a.yaml" not in os.listdir()
    assert call("config", "--output", "a.json").exit_code == 2
    assert "dp_shard_size: 8" in call("config", "--num-processes", "8", "--fsdp", "--axolotl").stdout
    assert "fsdp_plugin=fsdp_plugin" in call("config", "--num-processes", "8", "--fsdp", "--code").stdout
    assert call("config", "--sp", "2", "--axolotl").exit_code == 2 and call("config", "--code", "--write").exit_code == 2


def test_config_asks_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("script2accel.cli.config.interactive", lambda: True)
    assert call("config", input="n\n").exit_code == 1 and not os.listdir()
    assert call("config", input="y\n").exit_code == 0 and accelerate.FILE in os.listdir()


def test_launch_prints_every_machine() -> None:
    call(*SIZED)
    result = call("launch", "train.py", "--", "--epochs", "3", "a b")
    assert result.stdout.count("accelerate launch --config_file accelerate_config.yaml --machine_rank") == 2
    assert result.stdout.count("torchrun --nnodes 2") == 2 and result.stdout.count("train.py --epochs 3 'a b'") == 4
    assert "config --write" in result.stderr and "MAIN_PROCESS_IP" in result.stderr
    one = call("launch", "train.py", "--form", "accelerate", "--machine-rank", "1", "--main-process-ip", "10.0.0.7", "--flags").stdout
    assert one.count("\n") == 1 and "--machine_rank 1 --main_process_ip 10.0.0.7 --main_process_port 29500" in one and "--use_fsdp" in one
    assert call("launch", "train.py", "--machine-rank", "2").exit_code == 2
    assert call("launch", "train.py", "--cluster", "slurm").stdout.startswith("# job.slurm")
    assert "kind: PyTorchJob" in call("launch", "train.py", "--form", "kubernetes").stdout
    assert "notebook_launcher(function=main" in call("launch", "train.py", "--form", "notebook").stdout


def test_launch_says_where_there_are_no_flags() -> None:
    result = call("launch", "train.py", "--num-processes", "8", "--tp", "8", "--flags")
    assert result.exit_code == 2 and "--config-file" in result.stderr
    assert call("launch", "train.py", "--hardware", "tpu", "--form", "torchrun").exit_code == 2
    assert call("launch", "train.py", "--form", "slurm").exit_code == 2
    assert call("launch", "t.py", "--hardware", "cpu", "--num-processes", "2", "--form", "accelerate").stdout.startswith("ACCELERATE_USE_CPU=true")


def test_mesh_draws_and_refuses() -> None:
    svg = call("mesh", "--num-processes", "8", "--dp-shard", "4", "--tp", "2", "--svg").stdout
    assert len(parseString(svg).getElementsByTagName("rect")) == 9
    assert call("mesh", "--num-processes", "8", "--tp", "2", "--svg", "-o", "m.svg").exit_code == 0 and Path("m.svg").exists()
    refused = call("mesh", "--num-processes", "8", "--dp-shard", "3")
    assert refused.exit_code == 2 and "nearest valid: dp_shard=8" in refused.stderr
    text = call("mesh", "--num-processes", "4", "--dp-shard", "2", "--cp", "2").stdout
    assert "dp_shard_cp (dp_shard and cp together):\n  0 1 2 3\n" in text and "\ncp:\n  0 1\n  2 3\n" in text


def test_the_guide() -> None:
    assert all(topic in call("guide").stdout for topic in TOPICS)
    for name, topic in TOPICS.items():
        text = call("guide", name).stdout
        assert all(fact.page in text for fact in topic.facts) and all(wrong.source in text for wrong in topic.wrong)
    assert not any(word in str(TOPICS).lower() for word in ("faster", "speedup", "throughput", " gb", "memory use"))
    assert call("guide", "seeding", "--gpu", "H100").exit_code == 2 and call("guide", "nonsense").exit_code == 2


@pytest.mark.parametrize("gpu", ["H100", "NVIDIA H100 80GB HBM3", "h200", "RTX 4090", "5090"])
def test_documented_for_fp8(gpu: str) -> None:
    assert ": documented" in fp8(gpu)


@pytest.mark.parametrize("gpu", ["A100", "V100", "L4", "B200", "3090", "RTX 2080 Ti", "MI300", "GH200x", ""])
def test_not_promised_for_fp8(gpu: str) -> None:
    assert "documented " + "(" not in fp8(gpu) and ("nothing is promised" in fp8(gpu) or "not documented" in fp8(gpu))


def test_the_guide_speaks_of_the_reader_s_own_script() -> None:
    Path("train.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\nnet = torch.nn.Linear(2, 2)\nadam = torch.optim.Adam(net.parameters())\n"
        "data = DataLoader(torch.randn(8, 2), batch_size=2)\nfor x in data:\n    loss = net(x).sum()\n    loss.backward()\n"
        "    adam.step()\n    adam.zero_grad()\n"
    )
    text = call("guide", "accumulation", "--script", "train.py").stdout
    assert "net, adam, data = accelerator.prepare(net, adam, data)" in text and "with accelerator.accumulate(net):" in text
