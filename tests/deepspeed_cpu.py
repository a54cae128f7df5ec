"""Lets DeepSpeed run on CPU ranks over gloo without a compiler: its shared-memory collectives, which it would build on first use, are left out.

For tests alone, as `cpu_shim` is.
"""

from __future__ import annotations

import os

VARIABLES = {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true", "DS_SKIP_CUDA_CHECK": "1"}


def install() -> None:
    """For the rest of this process."""
    os.environ.update(VARIABLES)
    import deepspeed.comm.torch

    deepspeed.comm.torch.build_shm_op = lambda: None
