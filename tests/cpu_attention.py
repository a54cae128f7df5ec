"""Context-parallel attention for CPU ranks: torch's own has kernels for CUDA alone. For tests, beside `cpu_shim`.

Only the attention kernel is replaced. Cutting the buffers, dealing chunks from both ends to each rank, hooks, sharding and the reduction of gradients
stay Accelerate's and torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

_KERNEL = F.scaled_dot_product_attention
SEQUENCE = 2  # of (batch, head, position, width)


def positions(length: int, rank: int, ranks: int) -> torch.Tensor:
    """Which positions of the whole sequence a rank holds: of twice as many chunks as ranks, the one at its place from each end."""
    size = length // 2
    near, far = rank * size, (2 * ranks - 1 - rank) * size
    return torch.cat([torch.arange(near, near + size), torch.arange(far, far + size)])


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Own queries against everybody's keys and values, gathered. Torch finds the function that it replaces by this one's name."""
    options = {"dropout_p": dropout_p, "scale": scale, "enable_gqa": enable_gqa}
    if not isinstance(query, DTensor):
        return _KERNEL(query, key, value, attn_mask=attn_mask, is_causal=is_causal, **options)
    if attn_mask is not None:
        raise ValueError("context parallelism attends without a mask")
    mesh = query.device_mesh
    keys, values = (part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()]) for part in (key, value))
    mine = query.to_local()
    mask = None
    if is_causal:
        held = [positions(mine.shape[SEQUENCE], rank, mesh.size()) for rank in range(mesh.size())]
        mask = held[mesh.get_local_rank()][:, None] >= torch.cat(held)[None, :]
    return DTensor.from_local(_KERNEL(mine, keys, values, attn_mask=mask, **options), mesh, [Shard(SEQUENCE)])


def install() -> None:
    """For the rest of this process, before a model runs."""
    F.scaled_dot_product_attention = scaled_dot_product_attention
