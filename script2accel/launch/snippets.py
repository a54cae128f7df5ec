"""Python that says the same from within a script or a notebook."""

from __future__ import annotations

from collections.abc import Iterable

from script2accel.knowledge.accelerate import MODULES
from script2accel.launch import deepspeed
from script2accel.parallelism import uses_config
from script2accel.plugins import Expression, accelerator, call, deepspeed_plugin, fp8_recipe, fsdp_plugin, parallelism_config
from script2accel.workflow.answers import Answers


def imports(names: Iterable[str]) -> list[str]:
    """One line for each module, sorted."""
    modules: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        modules.setdefault(MODULES[name], []).append(name)
    return [f"from {module} import {', '.join(found)}" for module, found in sorted(modules.items())]


def construction(answers: Answers) -> str:
    """The objects that carry the answers into the script, and the Accelerator that takes them."""
    arguments: dict[str, object] = {}
    made: dict[str, Expression] = {}
    if answers.mixed_precision != "no" and answers.engine != "deepspeed":
        arguments["mixed_precision"] = answers.mixed_precision
    if uses_config(answers.request):
        made["parallelism_config"] = parallelism_config(answers.sizes)
    if answers.engine == "fsdp2":
        made["fsdp_plugin"] = fsdp_plugin(answers.wrap, offload=answers.offload == "all")
    if answers.engine == "deepspeed":
        made["deepspeed_plugin"] = deepspeed_plugin(deepspeed.FILE)
    if answers.mixed_precision == "fp8":
        arguments["mixed_precision"] = "fp8"
        arguments["kwargs_handlers"] = [fp8_recipe(answers.fp8_backend)]
    arguments |= {name: Expression(name, ()) for name in made}
    born = accelerator(arguments)
    names = [name for one in (*made.values(), born) for name in one.names]
    lines = [f"{name} = {one.text}" for name, one in made.items()]
    return "\n".join([*imports(names), "", *lines, f"accelerator = {born.text}"]) + "\n"


def notebook(answers: Answers, rank: int = 0) -> str:
    """A call of `notebook_launcher`; the training function, named `main` here, makes its own Accelerator."""
    arguments: dict[str, object] = {"num_processes": answers.per_machine if answers.num_machines > 1 else answers.num_processes}
    if answers.mixed_precision != "no":
        arguments["mixed_precision"] = answers.mixed_precision
    if answers.num_machines > 1:
        arguments |= {"num_nodes": answers.num_machines, "node_rank": rank, "master_addr": answers.main_process_ip or "MAIN_PROCESS_IP"}
        arguments["use_port"] = str(answers.main_process_port)
    found = call("notebook_launcher", {"function": Expression("main", ()), "args": Expression("()", ()), **arguments})
    return "\n".join([*imports(found.names), "", found.text]) + "\n"
