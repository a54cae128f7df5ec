"""Files that start the same command on every machine of a cluster: a SLURM script, a Kubeflow PyTorchJob."""

from __future__ import annotations

import os
import re
import shlex

from script2accel.launch import yaml
from script2accel.launch.command import HOST, Place, Script, accelerate_launch
from script2accel.workflow.answers import Answers

SLURM, KUBERNETES = "job.slurm", "pytorchjob.yaml"


def slurm(answers: Answers, script: Script, file: str | None) -> str:
    """One task on each node, as accelerate's own examples/slurm do; the first node's name is asked for when the job runs."""
    at = Place('"$SLURM_NODEID"', f'"${HOST}"', str(answers.main_process_port))
    command = accelerate_launch(answers, script, at, file=file)
    return f"""#!/bin/bash
#SBATCH --job-name={_name(script)}
#SBATCH --nodes={answers.num_machines}
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:{answers.per_machine}

set -eu
{HOST}="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export {HOST}

srun --ntasks-per-node=1 bash -c {shlex.quote(command)}
"""


def kubernetes(answers: Answers, script: Script, file: str | None, image: str = "IMAGE") -> str:
    """A PyTorchJob of Kubeflow's training operator (kubeflow.org/v1): one pod for each machine; the operator sets RANK, MASTER_ADDR and
    MASTER_PORT in each."""
    command = accelerate_launch(answers, script, Place('"$RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"'), file=file)
    container = {
        "name": "pytorch",
        "image": image,
        "command": ["sh", "-c", f"exec {command}\n"],
        "resources": {"limits": {"nvidia.com/gpu": answers.per_machine}},
    }
    pod = {"restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": _name(script)},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, **pod}, "Worker": {"replicas": answers.num_machines - 1, **pod}}},
    }
    needed = [name for name in (script.path, file) if name]
    return yaml.document(job, [f"The image must hold {' and '.join(needed)}, and Accelerate"])


def _name(script: Script) -> str:
    """A name that both accept: lower-case letters, digits and dashes."""
    stem = os.path.splitext(os.path.basename(script.path))[0]
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:50].strip("-") or "train"
