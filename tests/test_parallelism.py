"""Sizes and meshes against Accelerate itself, on a fake process group: what it refuses is refused, and every mesh is the one that it builds."""

from __future__ import annotations

import warnings
from dataclasses import astuple, replace
from itertools import product

import pytest

from script2accel.mesh import JOINT, Mesh
from script2accel.parallelism import DIMENSIONS, RULES, Model, Request, Sizes, features, nearest, notes, refusals, uses_config, valid
from tests import cpu_shim

WORLDS = (2, 4, 6, 8, 12, 16)
SILENT = {"silent-ddp", "sequence-engine", "deepspeed"}  # accepted by Accelerate and not carried out


def requests(world: int, engine: str) -> list[Request]:
    """Every request on a world whose sizes multiply to it, with a few that don't."""
    divisors = [size for size in range(1, world + 1) if world % size == 0]
    found = [Sizes(*sizes) for sizes in product(divisors, repeat=5)]
    return [Request(sizes, engine, world) for sizes in found if sizes.total in (world, world // 2, 2 * world) and sizes.sp in (1, 2)]


def accepted(request: Request) -> bool:
    """Whether Accelerate constructs itself with the request."""
    from accelerate import Accelerator
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    sizes = {f"{name}_size": size for name, size in zip(DIMENSIONS, astuple(request.sizes), strict=True)}
    with cpu_shim.fake(0, request.processes), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            plugin = FullyShardedDataParallelPlugin(fsdp_version=int(request.engine[-1])) if request.engine.startswith("fsdp") else None
            Accelerator(parallelism_config=ParallelismConfig(**sizes), fsdp_plugin=plugin)
        except (ValueError, RuntimeError):
            return False
    return True


@pytest.mark.parametrize("engine", ["ddp", "fsdp1", "fsdp2"])
def test_what_accelerate_refuses_is_refused_and_the_rest_is_accepted(engine: str) -> None:
    for request in (one for world in (4, 8) for one in requests(world, engine)):
        broken = {refusal.rule for refusal in refusals(request)}
        if accepted(request):
            assert broken <= SILENT | ({"product"} if request.sizes.sp > 1 else set()), request  # with sp it doesn't count
        else:
            assert broken - SILENT, request


@pytest.mark.parametrize("world", WORLDS)
def test_every_mesh_is_the_one_that_accelerate_builds(world: int) -> None:
    """Dimensions, shape, coordinates of all ranks, and every group, those of joint meshes included."""
    possible = [one for engine in ("fsdp2", "ddp") for one in requests(world, engine) if valid(one) and one.sizes.sp == 1]
    meshes = {one.sizes: one for one in possible}
    assert len(meshes) >= 3
    for request in meshes.values():
        ours = Mesh.of(request)
        for rank in range(world):
            _compare(ours, request, rank)


def _compare(ours: Mesh, request: Request, rank: int) -> None:
    from accelerate.parallelism_config import ParallelismConfig

    config = ParallelismConfig(**{f"{name}_size": size for name, size in request.sizes.active.items()})
    with cpu_shim.fake(rank, request.processes):
        theirs = config.build_device_mesh("cpu")
        assert theirs.mesh_dim_names == ours.names and tuple(theirs.shape) == ours.shape
        assert tuple(theirs.get_coordinate()) == ours.coordinates(rank)
        assert {name for name in JOINT if _submesh(theirs, name) is not None} == set(ours.group_names()) & set(JOINT)
        for name in ours.group_names():
            assert tuple(_submesh(theirs, name).mesh.flatten().tolist()) == ours.group(name, rank), (request, rank, name)


def _submesh(mesh: object, name: str) -> object:
    try:
        return mesh[name]  # type: ignore[index]
    except KeyError:
        return None


@pytest.mark.parametrize("sizes", [Sizes(2, 2, 2, 1, 2), Sizes(1, 4, 1, 1, 2), Sizes(4, 4), Sizes(16), Sizes(1, 1, 4, 1, 4)])
def test_the_data_that_a_rank_reads(sizes: Sizes) -> None:
    """As Accelerate's own loader shares it out; and the mesh that the Accelerator holds is ours."""
    import torch
    from accelerate import Accelerator
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.utils.data import DataLoader, TensorDataset

    mesh = Mesh.of(Request(sizes, "fsdp2", sizes.total, 2))
    for rank in range(sizes.total):
        with cpu_shim.fake(rank, sizes.total):
            plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if sizes.dp_shard * sizes.cp > 1 else None
            config = ParallelismConfig(**{f"{name}_size": size for name, size in sizes.active.items()})
            accelerator = Accelerator(parallelism_config=config, fsdp_plugin=plugin)
            assert tuple(accelerator.torch_device_mesh.get_coordinate()) == mesh.coordinates(rank)
            loader = accelerator.prepare_data_loader(DataLoader(TensorDataset(torch.arange(64)), batch_size=2))
            assert getattr(loader.batch_sampler, "process_index", 0) == mesh.data(rank)


def test_nodes_and_devices() -> None:
    mesh = Mesh.of(Request(Sizes(2, 2, 2, 1, 2), "fsdp2", 16, 2))
    assert [(mesh.node(rank), mesh.device(rank)) for rank in (0, 7, 8, 15)] == [(0, 0), (0, 7), (1, 0), (1, 7)]
    assert mesh.groups("dp_replicate")[0] == (0, 8) and mesh.groups("tp")[0] == (0, 1) and len(mesh.groups("cp")) == 8
    for name in mesh.group_names():
        assert sorted(rank for group in mesh.groups(name) for rank in group) == list(range(16))


BROKEN = {
    "least": Request(Sizes(dp_shard=0), processes=8),
    "machines": Request(Sizes(dp_shard=7), processes=7, machines=2),
    "device": Request(Sizes(dp_shard=2), processes=2, device="cpu"),
    "exclusive": Request(Sizes(cp=2, sp=2), processes=4),
    "replicas": Request(Sizes(dp_replicate=2, tp=2), "ddp", 4),
    "product": Request(Sizes(dp_shard=4), processes=16),
    "shards": Request(Sizes(tp=4), processes=4),
    "version": Request(Sizes(dp_shard=4), "fsdp1", 4),
    "context": Request(Sizes(cp=4), "ddp", 4),
    "silent-ddp": Request(Sizes(dp_shard=4), "ddp", 4),
    "sequence-engine": Request(Sizes(dp_shard=2, sp=2), "fsdp2", 4),
    "deepspeed": Request(Sizes(dp_shard=2, tp=2), "deepspeed", 4),
    "heads": Request(Sizes(dp_shard=2, tp=4), processes=8, model=Model(heads=6)),
    "sequence": Request(Sizes(cp=4), processes=4, model=Model(sequence=1028)),
    "plan": Request(Sizes(dp_shard=2, tp=2), processes=4, model=Model(transformers=False)),
    "mask": Request(Sizes(cp=4), processes=4, model=Model(masked=True)),
    "models": Request(Sizes(dp_shard=4), processes=4, model=Model(models=2)),
}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_names_a_source_and_the_nearest_valid_choice(rule: str) -> None:
    request = BROKEN[rule]
    found = {refusal.rule: refusal for refusal in refusals(request)}
    assert rule in found and found[rule].source
    near = found[rule].nearest
    assert all(map(valid, near))
    if rule in ("machines", "device"):  # the number of processes itself, or what they run on, is wrong
        return
    assert near and "nearest valid" in str(found[rule])
    for one in near:
        assert one.processes == request.processes or one.sizes == request.sizes


def test_the_nearest_choice_changes_as_little_as_it_can() -> None:
    assert nearest(Request(Sizes(dp_shard=2, tp=2), processes=8))[0].sizes == Sizes(dp_shard=4, tp=2)
    assert nearest(Request(Sizes(dp_shard=2, tp=2), processes=8))[1].processes == 4
    assert nearest(BROKEN["heads"])[0].sizes == Sizes(dp_shard=4, tp=2)
    assert nearest(BROKEN["silent-ddp"])[0].engine == "ddp" and nearest(BROKEN["silent-ddp"])[0].sizes == Sizes(dp_replicate=4)
    assert nearest(BROKEN["plan"])[0].sizes == Sizes(dp_shard=4)


def test_heads_of_keys_and_sequences() -> None:
    model = Model(heads=32, kv_heads=4, sequence=4096, transformers=True)
    assert valid(Request(Sizes(dp_shard=2, tp=4), processes=8, model=model))
    assert not valid(Request(Sizes(dp_shard=1, tp=8, cp=1), "ddp", 8, model=model))
    assert valid(Request(Sizes(sp=8), "deepspeed", 8, model=model))  # key/value heads are repeated
    assert not valid(Request(Sizes(sp=8), "deepspeed", 8, model=replace(model, sequence=4100)))
    assert valid(Request(Sizes(cp=8), processes=8, model=model))


def test_groups_that_cross_machines_are_noted() -> None:
    assert not list(notes(Request(Sizes(2, 2, 2, 1, 2), processes=16, machines=2)))
    assert len(list(notes(Request(Sizes(1, 1, 1, 1, 16), "ddp", 16, machines=2)))) == 1
    assert len(list(notes(Request(Sizes(3, 4, 1, 1, 1), processes=12, machines=2)))) == 1


def test_what_a_request_needs() -> None:
    assert features(Request(Sizes(2, 2, 2, 1, 2), processes=16)) == {"parallelism", "fsdp2", "fsdp2+tp", "tp", "cp"}
    assert not features(Request(Sizes(8), "ddp", 8)) and not uses_config(Request(Sizes(dp_shard=8), "deepspeed", 8))
    assert features(Request(Sizes(sp=8), "deepspeed", 8)) == {"parallelism", "sp"}
