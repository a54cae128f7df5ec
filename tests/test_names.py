"""Every name, keyword, flag, key and variable that can be written is one of the installed Accelerate, and of those that the tables promise."""

from __future__ import annotations

import ast
import inspect
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from script2accel.knowledge import accelerate as table
from script2accel.knowledge.gates import GATES, gates
from script2accel.launch import accelerate, command, deepspeed, snippets
from script2accel.launch.command import Place, Script
from script2accel.parallelism import Sizes, features
from script2accel.plugins import Expression, call, fp8_recipe, parallelism_config
from script2accel.workflow.answers import Answers
from tests import cpu_shim
from tests.answer_cases import cases, least, name, runnable

CASES = cases()


def installed() -> table.Version:
    import accelerate as library

    major, minor = library.__version__.split(".")[:2]
    return int(major), int(minor)


def known(entries: Mapping[str, table.Version]) -> set[str]:
    """The entries that the installed version must have."""
    return {entry for entry, since in entries.items() if since <= installed()}


def parser_flags() -> set[str]:
    from accelerate.commands.launch import launch_command_parser

    return {option.lstrip("-").replace("-", "_") for action in launch_command_parser()._actions for option in action.option_strings}


def test_the_tables_are_those_of_the_installed_accelerate() -> None:
    from accelerate import Accelerator
    from accelerate.commands.config.config_args import ClusterConfig

    for callable_, keywords in table.KEYWORDS.items():
        module = import_module(table.MODULES[callable_])
        if max(keywords.values()) <= installed() or hasattr(module, callable_):
            parameters = set(inspect.signature(getattr(module, callable_)).parameters)
            assert known(keywords) <= parameters and not (set(keywords) - known(keywords)) & parameters, callable_
    flags = parser_flags()
    assert known(table.FLAGS) <= flags and not (set(table.FLAGS) - known(table.FLAGS)) & flags
    assert known(table.YAML) <= {one.name for one in fields(ClusterConfig)}
    for section in table.SECTIONS.values():
        assert known(section) <= flags
    assert all(hasattr(Accelerator, method) for method in known(table.METHODS))


def test_the_tables_of_variables_are_those_that_accelerate_reads() -> None:
    import accelerate as library

    text = "\n".join(path.read_text(encoding="utf-8") for path in Path(inspect.getfile(library)).parent.rglob("*.py"))
    for variable in known(table.ENVIRONMENT):
        ends = [variable] + [
            variable.removeprefix(prefix) for prefix in ("ACCELERATE_FP8_", "FSDP_", "PARALLELISM_CONFIG_") if variable.startswith(prefix)
        ]
        assert any(f'"{one}"' in text for one in ends), variable


def calls(text: str) -> Iterator[tuple[str, set[str]]]:
    """Each call of a plain name, with its keywords."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id, {keyword.arg for keyword in node.keywords if keyword.arg}


def emitted(answers: Answers) -> Iterator[tuple[str, table.Version]]:
    """Whatever the answers make the tool write, with the version that it needs. KeyError: it is in no table."""
    for text in (snippets.construction(answers), snippets.notebook(answers)):
        for callable_, keywords in calls(text):
            assert f"import {callable_}" in text or re.search(rf"import .*\b{callable_}\b", text), callable_
            yield callable_, table.needed(keywords, table.KEYWORDS[callable_])
    file = yaml.safe_load(accelerate.document(answers))
    yield "yaml", table.needed(file, table.YAML)
    for section, keys in file.items():
        if isinstance(keys, dict):
            yield section, table.needed(keys, table.SECTIONS[section])
    lines = [command.accelerate_launch(answers, Script(), Place("0", "host", "1"), file=form) for form in ("file.yaml", None)]
    for line in lines if command.has_flags(answers) else lines[:1]:
        flags = dict(re.findall(r"--(\w+)(?: (\S+))?", line))
        yield "flags", table.needed(flags, table.FLAGS)
        yield from (("value", since) for (flag, value), since in table.FLAG_VALUES.items() if flags.get(flag) == value)
    yield "environment", table.needed(command.environment(answers), table.ENVIRONMENT)


@pytest.mark.parametrize("answers", CASES, ids=name)
def test_everything_that_can_be_written_is_in_the_tables(answers: Answers) -> None:
    """1.10 suffices unless the gates say otherwise: sp needs 1.12, fp8 with torchao 1.13."""
    needed = max(since for _, since in emitted(answers))
    assert needed <= table.NEWEST
    assert needed == least(answers)


def test_the_gates_are_those_of_accelerate() -> None:
    from accelerate.utils import constants

    oldest = {(gate.feature, gate.package): gate.least for gate in GATES}
    assert oldest["fsdp2", "torch"] == constants.FSDP2_PYTORCH_VERSION
    assert oldest["tp", "torch"] == constants.BETA_TP_AVAILABLE_PYTORCH_VERSION
    assert oldest["tp", "transformers"] == constants.BETA_TP_AVAILABLE_TRANSFORMERS_VERSION
    assert oldest["cp", "torch"] == constants.BETA_CP_AVAILABLE_PYTORCH_VERSION
    assert f"{table.OLDEST[0]}.{table.OLDEST[1]}" == oldest["parallelism", "accelerate"]
    assert all(gate.source for gate in GATES)
    seen = frozenset().union(*(features(answers.request) for answers in CASES))
    assert {gate.feature for gate in gates(seen)} == seen


def test_the_fp8_fields_have_the_documented_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.utils import TERecipeKwargs, dataclasses

    monkeypatch.setattr(dataclasses, "is_transformer_engine_available", lambda: True)
    recipe = TERecipeKwargs()
    made = accelerate.fp8(next(one for one in CASES if one.fp8_backend == "te" and one.mixed_precision == "fp8"))
    assert {key: made[f"fp8_{key}"] for key in ("amax_history_len", "amax_compute_algo", "margin", "interval")} == {
        key: getattr(recipe, key) for key in ("amax_history_len", "amax_compute_algo", "margin", "interval")
    }
    assert made["fp8_format"] == recipe.fp8_format


@pytest.mark.parametrize("answers", [one for one in runnable() if one.mixed_precision != "fp8"], ids=name)
def test_the_python_form_constructs_what_the_answers_say(answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every plugin through its own constructor; the Accelerator too where it needs neither a GPU nor another package."""
    monkeypatch.chdir(tmp_path)
    Path(deepspeed.FILE).write_text(json.dumps(deepspeed.config(answers))) if answers.zero else None
    text = snippets.construction(answers)
    with cpu_shim.fake(0, answers.num_processes), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if answers.engine == "deepspeed" or answers.mixed_precision != "no":
            text = text.replace("accelerator = Accelerator(", "accelerator = dict(")
        found: dict[str, object] = {}
        exec(text, found)
        if "parallelism_config" in found:
            config = found["parallelism_config"]
            assert {key: size for key, size in config._sizes.items() if size > 1} == answers.sizes.active  # type: ignore[attr-defined]
        if "fsdp_plugin" in found:
            assert tuple(found["fsdp_plugin"].transformer_cls_names_to_wrap or ()) == answers.wrap  # type: ignore[attr-defined]
        if "deepspeed_plugin" in found:
            assert found["deepspeed_plugin"].deepspeed_config["gradient_clipping"] == answers.gradient_clipping  # type: ignore[attr-defined]


def test_expressions() -> None:
    assert call("f", {"a": 'it\'s "so"', "b": ["x"], "c": {"k": 1.5}, "d": (True, None)}).text == (
        'f(a="it\'s \\"so\\"", b=["x"], c={"k": 1.5}, d=[True, None])'
    )
    context = parallelism_config(Sizes(cp=2), alltoall=True)
    assert context == Expression(
        'ParallelismConfig(cp_size=2, cp_handler=TorchContextParallelConfig(cp_comm_strategy="alltoall"))',
        ("ParallelismConfig", "TorchContextParallelConfig"),
    )
    assert fp8_recipe("ao").text == "AORecipeKwargs()"
