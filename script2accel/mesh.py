"""The device mesh: which rank has which coordinates, node and device, and the groups that it forms; as Accelerate builds it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from script2accel.parallelism import DIMENSIONS, Request

JOINT = {"dp": ("dp_replicate", "dp_shard"), "dp_shard_cp": ("dp_shard", "cp"), "dp_cp": ("dp_replicate", "dp_shard", "cp")}
"""Meshes that Accelerate makes of several dimensions (parallelism_config.py, `build_device_mesh`)."""


@dataclass(frozen=True)
class Mesh:
    """Dimensions from the slowest to the fastest, over machines with as many processes each."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    machines: int = 1

    @classmethod
    def of(cls, request: Request) -> Mesh:
        """The mesh of a valid request: its active dimensions; for one process, a mesh of one."""
        active = request.sizes.active or {"dp_replicate": 1}
        return cls(tuple(active), tuple(active.values()), request.machines)

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return prod(self.shape)

    @property
    def per_machine(self) -> int:
        """How many ranks a machine holds."""
        return self.world // self.machines

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """The rank's place along each dimension; the last one changes fastest."""
        place = []
        for size in reversed(self.shape):
            rank, at = divmod(rank, size)
            place.append(at)
        return tuple(reversed(place))

    def node(self, rank: int) -> int:
        """The machine that holds the rank."""
        return rank // self.per_machine

    def device(self, rank: int) -> int:
        """The rank's device on its machine."""
        return rank % self.per_machine

    def group_names(self) -> tuple[str, ...]:
        """The dimensions, and the joint ones that Accelerate makes of them."""
        joint = [name for name, parts in JOINT.items() if any(part in self.names for part in parts)]
        return (*self.names, *joint)

    def groups(self, name: str) -> tuple[tuple[int, ...], ...]:
        """The groups of ranks along a dimension (or a joint one), each in its order, together a partition of all ranks."""
        parts = JOINT.get(name, (name,))
        along = [at for at, own in enumerate(self.names) if own in parts]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world):
            place = self.coordinates(rank)
            found.setdefault(tuple(at for axis, at in enumerate(place) if axis not in along), []).append(rank)
        return tuple(map(tuple, found.values()))

    def group(self, name: str, rank: int) -> tuple[int, ...]:
        """The rank's own group along a dimension."""
        return next(group for group in self.groups(name) if rank in group)

    def data(self, rank: int) -> int:
        """Which part of the data the rank reads: ranks of one tp or cp group read the same (data_loader.py, `prepare_data_loader`)."""
        at = 0
        for name, size, place in zip(self.names, self.shape, self.coordinates(rank), strict=True):
            if name in DIMENSIONS[:2] or name == "sp":
                at = at * size + place
        return at
