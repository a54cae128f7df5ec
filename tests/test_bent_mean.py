"""Losses that are means of samples aren't said to bend one."""

from __future__ import annotations

import pytest

from script2accel import convert
from script2accel.rules import bent_mean


@pytest.mark.parametrize("loss", bent_mean.STRAIGHT)
def test_a_mean_of_samples_bends_nothing(loss: str) -> None:
    said = {found.id for found in convert(bent_mean.SCRIPT.replace("{loss}", loss).encode()).diagnostics}
    assert "S2A248" not in said


@pytest.mark.parametrize("loss", bent_mean.BENDING)
def test_what_bends_one_is_said_once(loss: str) -> None:
    said = [found.id for found in convert(bent_mean.SCRIPT.replace("{loss}", loss).encode()).diagnostics]
    assert said.count("S2A248") == 1
