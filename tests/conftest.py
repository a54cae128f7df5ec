"""What the tests share: where fixtures are, the `--update-golden` switch, scripts of the standard library."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
PACKAGE = ROOT / "script2accel"


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites the expected files instead of comparing with them; read the diff before you commit it."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite fixtures/scripts/*/{after.py,said.txt}, fixtures/projects/*/{after,said.txt} and README's generated blocks",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Markers; tests must not pick up the reader's accelerate configuration."""
    config.addinivalue_line("markers", "slow: takes minutes; CI runs a sample of it instead")
    config.addinivalue_line("markers", "multi_gpu: needs two GPUs")
    config.addinivalue_line("markers", "gpu: needs a GPU")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether expected files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


def stdlib_files(limit: int = 100_000) -> list[Path]:
    """Every .py file of the running Python's standard library up to a size in bytes, sorted, site-packages left out."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "__pycache__"}
    found = (path for path in root.rglob("*.py") if not skipped & set(path.relative_to(root).parts))
    return sorted(path for path in found if path.stat().st_size <= limit)


def pytest_report_header() -> str:
    """The Python that runs, since positions and grammar depend on it."""
    return f"script2accel tests on Python {sys.version.split()[0]}, scratch in {tempfile.gettempdir()}"
