"""The hook of `.pre-commit-hooks.yaml`, installed by the real pre-commit in a scratch repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TRAINING = """import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
GIT = {f"GIT_{who}_{what}": "nobody@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def run(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") and name != "PYTHONPATH"}
    env = {**clean, **GIT, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, **environment}
    return subprocess.run(args, cwd=cwd, capture_output=True, text=True, env=env, timeout=600)


def repository(folder: Path) -> str:
    """Make a repository of what lies in a folder; its commit."""
    for args in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "all")):
        done = run("git", *args, cwd=folder)
        assert done.returncode == 0, done.stderr
    return run("git", "rev-parse", "HEAD", cwd=folder).stdout.strip()


def copy_of_the_tree(to: Path) -> Path:
    """The files of this checkout that belong to it, committed or not."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".git", ".*_cache", "build")
    shutil.copytree(ROOT / "script2accel", to / "script2accel", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, to / name)
    return to


def test_the_hook_names_a_command_that_exists() -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (hook["id"], hook["language"], hook["types_or"]) == ("script2accel-check", "python", ["python", "jupyter"])
    assert hook["entry"] == "script2accel check"


def test_the_hook_in_a_scratch_repository(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit")
    wheel = run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path / "wheels"), "click", cwd=tmp_path)
    if wheel.returncode:
        pytest.skip("no package index to install the hook's dependencies from")
    tool, project = tmp_path / "tool", tmp_path / "project"
    project.mkdir()
    commit = repository(copy_of_the_tree(tool))
    config = {"repos": [{"repo": str(tool), "rev": commit, "hooks": [{"id": "script2accel-check"}]}]}
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (project / "util.py").write_text("x = 1\n", encoding="utf-8")
    (project / "notes.txt").write_text("loss.backward()\n", encoding="utf-8")
    repository(project)
    home = str(tmp_path / "home")

    def hook() -> subprocess.CompletedProcess[str]:
        run("git", "add", "-A", cwd=project)
        return run(sys.executable, "-m", "pre_commit", "run", "--all-files", "--verbose", cwd=project, PRE_COMMIT_HOME=home)

    passed = hook()
    assert passed.returncode == 0 and "script2accel check" in passed.stdout and "Passed" in passed.stdout, passed.stdout + passed.stderr
    (project / "train.py").write_text(TRAINING, encoding="utf-8")
    failed = hook()
    assert failed.returncode == 1 and "Failed" in failed.stdout and "\ntrain.py:" in failed.stdout, failed.stdout + failed.stderr
    assert (project / "train.py").read_text(encoding="utf-8") == TRAINING
    (project / "train.py").write_text("x = (\n", encoding="utf-8")
    broken = hook()
    assert broken.returncode == 1 and "exit code: 2" in broken.stdout and "train.py:1:5: S2A003" in broken.stdout, broken.stdout + broken.stderr
