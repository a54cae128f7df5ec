"""Configurations and commands through Accelerate's own readers: nothing is launched."""

from __future__ import annotations

import json
import os
import re
import shlex
import warnings
from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from script2accel.errors import UsageError
from script2accel.knowledge import axolotl as schema
from script2accel.knowledge.deepspeed import faults
from script2accel.launch import accelerate, axolotl, cluster, command, deepspeed
from script2accel.launch.command import Place, Script
from script2accel.launch.endpoint import host_fault, port_fault, rank_fault
from script2accel.launch.yaml import document
from script2accel.parallelism import DIMENSIONS, uses_config
from script2accel.workflow.answers import Answers, propose
from tests import cpu_shim
from tests.answer_cases import SEED, name, runnable

CASES = runnable()
IDS = [name(one) for one in CASES]
each = pytest.mark.parametrize("answers", CASES, ids=IDS)
AT = Place("0", "127.0.0.1", "29533")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No default configuration of the reader's, no fp8 library needed, and files in a folder of their own."""
    import accelerate.commands.launch as launch
    import accelerate.utils.launch as utils

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "default_config_file", str(tmp_path / "none.yaml"))
    monkeypatch.setattr(launch, "is_bf16_available", lambda *_: True)
    monkeypatch.setattr(utils, "is_fp8_available", lambda: True)
    monkeypatch.setattr(utils, "is_port_in_use", lambda _: False)
    for variable in [one for one in os.environ if one.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_"))]:
        monkeypatch.delenv(variable)


def parsed(line: str) -> Namespace:
    """A command line through Accelerate's parser and validation."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    words = shlex.split(line)
    args, defaults, from_config = _validate_launch_command(launch_command_parser().parse_args(words[words.index("launch") + 1 :]))
    fields = list(defaults.deepspeed_config) if defaults else []
    args.deepspeed_fields_from_accelerate_config = ",".join([*fields, *(["mixed_precision"] if from_config else [])])
    return args


def prepared(args: Namespace) -> dict[str, str]:
    """The variables that Accelerate's launcher would set, without those that were there."""
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    if args.use_deepspeed:
        found = prepare_deepspeed_cmd_env(args)[1]
    elif args.use_fsdp or args.multi_gpu:
        found = prepare_multi_gpu_env(args)
    else:
        found = prepare_simple_launcher_cmd_env(args)[1]
    return {key: value for key, value in found.items() if os.environ.get(key) != value}


def write(answers: Answers) -> None:
    """The files that a command may read."""
    Path(accelerate.FILE).write_text(accelerate.document(answers))
    if answers.engine == "deepspeed":
        Path(deepspeed.FILE).write_text(deepspeed.document(answers))


def forms(answers: Answers) -> list[str]:
    """Each way to write `accelerate launch` for the answers."""
    write(answers)
    found = [command.accelerate_launch(answers, Script(), AT, file=accelerate.FILE)]
    return [*found, command.accelerate_launch(answers, Script(), AT)] if command.has_flags(answers) else found


@each
def test_the_file_is_a_cluster_config(answers: Answers) -> None:
    from accelerate.commands.config.config_args import ClusterConfig

    write(answers)
    config = ClusterConfig.from_yaml_file(accelerate.FILE)
    assert yaml.safe_load(Path(accelerate.FILE).read_text()) == accelerate.config(answers)
    assert config.num_processes == answers.num_processes and config.num_machines == answers.num_machines
    assert config.use_cpu is (answers.hardware == "cpu")
    assert config.mixed_precision == (None if answers.engine == "deepspeed" else answers.mixed_precision)


@each
def test_every_command_is_valid_and_means_the_answers(answers: Answers) -> None:
    for line in forms(answers):
        args = parsed(line)
        assert args.training_script == "train.py" and args.num_processes == answers.num_processes and args.num_machines == answers.num_machines
        assert args.use_fsdp is (answers.engine == "fsdp2") and args.use_deepspeed is (answers.engine == "deepspeed")
        assert args.tpu is (answers.hardware == "tpu") and bool(args.use_parallelism_config) is uses_config(answers.request)
        if answers.hardware == "multi-node":
            assert (int(args.machine_rank), args.main_process_ip, args.main_process_port) == (0, "127.0.0.1", 29533)
            assert args.same_network and args.rdzv_backend == "static"
        if answers.hardware == "cpu" and answers.num_processes == 1 and "--cpu" in line:
            assert args.cpu
        if uses_config(answers.request):
            sizes = [getattr(args, f"parallelism_config_{dimension}_size", 1) for dimension in DIMENSIONS]
            assert sizes == [getattr(answers.sizes, dimension) for dimension in DIMENSIONS]


@each
def test_the_processes_get_what_torchrun_would_give_them(answers: Answers) -> None:
    """Every variable that the torchrun form sets has the value that Accelerate's launcher gives it."""
    if answers.hardware == "tpu":
        assert not command.torchrun(answers, Script(), AT)
        return
    ours = command.environment(answers)
    line = command.torchrun(answers, Script(), AT)
    assert [word for word in shlex.split(line) if "=" in word] == [f"{key}={value}" for key, value in ours.items()]
    if answers.hardware == "cpu" and answers.num_processes > 1:
        return  # accelerate launch reads the variable that its line sets
    for form in forms(answers):
        theirs = prepared(parsed(form))
        shared = {key: value for key, value in ours.items() if key in theirs or key != "ACCELERATE_USE_CPU"}
        given = {key: _flag(value) for key, value in theirs.items() if key in shared}
        assert given == {key: _flag(value) for key, value in shared.items()}, form


def _flag(value: str) -> str:
    """Accelerate reads 1 and true, in any case, as the same."""
    return {"1": "true", "0": "false"}.get(value, value.lower())


@each
def test_torchrun_takes_its_line(answers: Answers) -> None:
    from torch.distributed.run import get_args_parser

    words = shlex.split(command.torchrun(answers, Script("train.py", ("--lr", "1")), AT))
    if "torchrun" not in words:
        return
    args = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
    assert args.training_script == "train.py" and args.training_script_args == ["--lr", "1"]
    assert int(args.nproc_per_node) * int(str(args.nnodes).split(":")[0]) == answers.num_processes


@pytest.mark.parametrize("answers", [one for one in CASES if one.engine == "fsdp2" and one.mixed_precision in ("no", "bf16")], ids=name)
def test_the_accelerator_reads_the_answers_from_the_environment(answers: Answers) -> None:
    """The whole chain, from the file to the mesh, on a fake process group."""
    from accelerate import Accelerator

    for form in forms(answers):
        with cpu_shim.fake(0, answers.num_processes, prepared(parsed(form))):
            accelerator = Accelerator()
            plugin = accelerator.state.fsdp_plugin
            assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True and plugin.cpu_ram_efficient_loading is False
            assert tuple(plugin.transformer_cls_names_to_wrap or ()) == answers.wrap
            active = {key: size for key, size in answers.sizes.active.items()}
            mesh = accelerator.torch_device_mesh
            assert dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True)) == active


@pytest.mark.parametrize("answers", [one for one in CASES if one.engine == "deepspeed"], ids=name)
def test_the_deepspeed_plugin_reads_the_answers(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.utils import DeepSpeedPlugin

    for form in forms(answers):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for key, value in prepared(parsed(form)).items():
                patch.setenv(key, value)
            plugin = DeepSpeedPlugin()
            assert plugin.zero_stage == answers.zero and not plugin.zero3_init_flag
            plugin.set_mixed_precision(os.environ["ACCELERATE_MIXED_PRECISION"])
            found = plugin.deepspeed_config
            assert found["gradient_clipping"] == answers.gradient_clipping
            assert found["bf16"]["enabled"] is (answers.mixed_precision in ("bf16", "fp8"))
            assert found["fp16"]["enabled"] is (answers.mixed_precision == "fp16")
            assert ("offload_optimizer" in found["zero_optimization"]) is (answers.offload != "none")


def test_a_precision_beside_the_json_is_what_accelerate_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the file leaves it out."""
    from accelerate.utils import DeepSpeedPlugin

    answers = propose({"num_processes": 8, "strategy": "zero2", "mixed_precision": "bf16"})
    write(answers)
    Path(accelerate.FILE).write_text(document({**accelerate.config(answers), "mixed_precision": "bf16"}))
    for key, value in prepared(parsed(f"accelerate launch --config_file {accelerate.FILE} train.py")).items():
        monkeypatch.setenv(key, value)
    with pytest.raises(ValueError, match="will be ignored"):
        DeepSpeedPlugin()


@each
def test_the_json_follows_the_schema(answers: Answers) -> None:
    if answers.engine == "deepspeed":
        config = json.loads(deepspeed.document(answers))
        assert not faults(config) and config["gradient_clipping"] == answers.gradient_clipping


def test_the_schema_says_what_is_wrong() -> None:
    good: dict[str, object] = {"gradient_clipping": 0.0, "zero_optimization": {"stage": 2}}
    assert not faults(good)
    assert faults({"zero_optimization": {"stage": 2}}) == ["gradient_clipping is missing"]
    assert faults({**good, "zero_optimization": {"stage": 7}}) and faults({**good, "zero_optimization": {"stge": 2}}) and faults({**good, "foo": 1})
    assert faults({**good, "gradient_clipping": True}) and faults({**good, "bf16": {"enabled": 1}})


@each
def test_axolotl_fields_follow_its_schema(answers: Answers) -> None:
    if axolotl.refusal(answers):
        with pytest.raises(UsageError):
            axolotl.fields(answers)
        return
    fields = yaml.safe_load(axolotl.document(answers)) or {}
    assert fields == axolotl.fields(answers) and not schema.faults(fields)
    if answers.engine == "fsdp2":
        sizes = [fields.get(key, 1) for key in ("dp_replicate_size", "dp_shard_size", "context_parallel_size", "tensor_parallel_size")]
        assert sizes == [answers.dp_replicate, answers.dp_shard, answers.cp, answers.tp]


def test_axolotl_s_schema_says_what_is_wrong() -> None:
    assert schema.faults({"dp_size": 1}) and schema.faults({"dp_shard_size": "2"}) and schema.faults({"fsdp_config": {"fsdp_offload_params": True}})
    assert schema.faults({"attn_implementation": "flash"}) and schema.faults({"tensor_parallel_size": True})


def test_script_and_arguments_are_quoted() -> None:
    answers = propose(SEED)
    line = command.accelerate_launch(
        answers, Script("my train.py", ("--name", "a b", "$HOME", "it's")), command.place(answers, 1), file="my config.yaml"
    )
    assert shlex.split(line)[-5:] == ["my train.py", "--name", "a b", "$HOME", "it's"]
    assert '"$MAIN_PROCESS_IP"' in line and "'$HOME'" in line and "--machine_rank 1" in line
    assert Script("-x.py").words() == ["./-x.py"]


@pytest.mark.parametrize("file", [accelerate.FILE, None])
def test_the_slurm_script(file: str | None, tmp_path: Path) -> None:
    """Bash takes it, and what each node runs is a valid command."""
    import subprocess

    answers = propose({**SEED, "cluster": "slurm"})
    write(answers)
    text = cluster.slurm(answers, Script("train.py", ("it's", "a b")), file)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8" in text
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "scontrol").write_text("#!/bin/sh\nprintf 'node1\\nnode2\\n'\n")
    (fake / "srun").write_text('#!/bin/sh\nshift\nSLURM_NODEID=1 exec "$@"\n')
    (fake / "accelerate").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    for one in fake.iterdir():
        one.chmod(0o755)
    env = {**os.environ, "PATH": f"{fake}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]"}
    words = subprocess.run(["bash"], input=text, env=env, text=True, check=True, capture_output=True).stdout.splitlines()
    args = parsed("accelerate " + shlex.join(words))
    assert (args.machine_rank, args.main_process_ip, args.num_processes) == (1, "node1", 16) or (int(args.machine_rank), args.main_process_ip) == (
        1,
        "node1",
    )
    assert args.training_script_args == ["it's", "a b"]


def test_the_kubernetes_job() -> None:
    answers = propose({**SEED, "num_machines": 4, "cluster": "kubernetes"})
    write(answers)
    job = yaml.safe_load(cluster.kubernetes(answers, Script("dir/My_Train.py"), accelerate.FILE, "registry/image:1"))
    assert (
        job["apiVersion"] == "kubeflow.org/v1"
        and job["kind"] == "PyTorchJob"
        and re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", job["metadata"]["name"])
    )
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 3)
    for replica in replicas.values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch" and container["image"] == "registry/image:1" and container["resources"]["limits"]["nvidia.com/gpu"] == 4
        shell = container["command"][2]
        line = shell.removeprefix("exec ").replace('"$RANK"', "2").replace('"$MASTER_ADDR"', "a.b").replace('"$MASTER_PORT"', "23456")
        args = parsed(line)
        assert (int(args.machine_rank), args.main_process_ip, args.main_process_port) == (2, "a.b", 23456)


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1", "node1", "a-b.example.org", "node1.", "0.0.0.0"])
def test_a_host(host: str) -> None:
    assert not host_fault(host)


@pytest.mark.parametrize("host", ["", "10.0.0.256", "1.2.3", "a b", "-a", "a-.b", "a_b!", "http://a", "a:1", "a" * 64, ".", "a..b", "node\n1"])
def test_no_host(host: str) -> None:
    assert host_fault(host)


def test_ports_and_ranks() -> None:
    assert not port_fault(29500, machines=2) and not port_fault(0) and port_fault(0, machines=2) and port_fault(-1) and port_fault(65536)
    assert not rank_fault(1, 2) and rank_fault(2, 2) and rank_fault(-1, 2)


@pytest.mark.parametrize(
    "value",
    [
        {
            "a": "no",
            "b": "Yes",
            "c": "1",
            "d": "1e3",
            "e": "",
            "f": "a: b",
            "g": "#x",
            "h": "é\"'\\",
            "i": "null",
            "j": "~",
            "k": "- x",
            "l": "0x1",
            "on": "on",
        },
        {"list": [1, "two", {"three": [4, {"five": None}], "six": True}, [], {}], "text": "a\n  b\n", "open": "a\nb", "f": 1e-8, "n": 10**20},
    ],
)
def test_yaml_is_read_back_as_it_was(value: dict[str, object]) -> None:
    assert yaml.safe_load(document(value, ["a comment", ""])) == value
