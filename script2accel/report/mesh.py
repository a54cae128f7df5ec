"""Pictures of a device mesh: text, and SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from script2accel.mesh import JOINT, Mesh

_CELL, _HEAD, _GAP, _LINE = (112, 56), 34, 16, 18
_COLOURS = ("#4e79a7", "#59a14f", "#b6992d", "#e15759", "#b07aa1", "#499894", "#d37295", "#9d7660")


def text(mesh: Mesh) -> str:
    """A line for each rank, then the groups along each dimension."""
    shape = " x ".join(f"{name} {size}" for name, size in zip(mesh.names, mesh.shape, strict=True))
    lines = [f"{mesh.world} rank{'s' * (mesh.world != 1)}: {shape}", ""]
    heads = ["rank", "machine", "device", *mesh.names, "data"]
    rows = [[str(one) for one in (rank, mesh.node(rank), mesh.device(rank), *mesh.coordinates(rank), mesh.data(rank))] for rank in range(mesh.world)]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)]
    for name in mesh.names:
        lines += ["", f"{name}:"]
        lines += [f"  {' '.join(map(str, group))}{_crossing(mesh, group)}" for group in mesh.groups(name)]
    for name, parts in joints(mesh).items():
        lines += ["", f"{name} ({' and '.join(parts)} together):"]
        lines += [f"  {' '.join(map(str, group))}{_crossing(mesh, group)}" for group in mesh.groups(name)]
    return "\n".join(lines) + "\n"


def joints(mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """The joint meshes that are none of the dimensions and no other joint one, each with its parts."""
    found: dict[str, tuple[str, ...]] = {}
    for name, parts in JOINT.items():
        active = tuple(part for part in parts if part in mesh.names)
        if len(active) > 1 and active not in found.values():
            found[name] = active
    return found


def _crossing(mesh: Mesh, group: tuple[int, ...]) -> str:
    machines = sorted({mesh.node(rank) for rank in group})
    return f"  (machines {', '.join(map(str, machines))})" if len(machines) > 1 else ""


def svg(mesh: Mesh) -> str:
    """Machines as rows of devices; one colour for each part of the data; the groups that a rank forms in its tooltip."""
    columns = min(8, mesh.per_machine)
    rows = -(-mesh.per_machine // columns)
    width = 2 * _GAP + columns * _CELL[0]
    block = _HEAD + rows * _CELL[1] + _GAP
    legend = [f"{name}: {'; '.join(','.join(map(str, group)) for group in mesh.groups(name))}" for name in mesh.names]
    height = mesh.machines * block + (len(legend) + 1) * _LINE + _GAP
    width = max(width, 2 * _GAP + max(map(len, legend)) * 7)
    title = " x ".join(f"{name} {size}" for name, size in zip(mesh.names, mesh.shape, strict=True))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
        ' font-family="monospace" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for machine in range(mesh.machines):
        lines.append(f'<text x="{_GAP}" y="{machine * block + 22}" font-weight="bold">machine {machine}</text>')
    lines += [line for rank in range(mesh.world) for line in _cell(mesh, rank, columns, block)]
    top = mesh.machines * block + _LINE
    lines += [f'<text x="{_GAP}" y="{top + number * _LINE}">{escape(line)}</text>' for number, line in enumerate(legend)]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _cell(mesh: Mesh, rank: int, columns: int, block: int) -> Iterator[str]:
    row, column = divmod(mesh.device(rank), columns)
    x, y = _GAP + column * _CELL[0], mesh.node(rank) * block + _HEAD + row * _CELL[1]
    place = " ".join(f"{name}={at}" for name, at in zip(mesh.names, mesh.coordinates(rank), strict=True))
    groups = "; ".join(f"{name}: {','.join(map(str, mesh.group(name, rank)))}" for name in mesh.names)
    coordinates = ",".join(map(str, mesh.coordinates(rank)))
    yield f"<g><title>{escape(f'rank {rank}, machine {mesh.node(rank)}, device {mesh.device(rank)}: {place}. {groups}')}</title>"
    colour = _COLOURS[mesh.data(rank) % len(_COLOURS)]
    yield f'<rect x="{x}" y="{y}" width="{_CELL[0] - 8}" height="{_CELL[1] - 8}" rx="4" fill="{colour}" fill-opacity="0.25" stroke="{colour}"/>'
    yield f'<text x="{x + 8}" y="{y + 20}" font-weight="bold">rank {rank}</text><text x="{x + 8}" y="{y + 38}">({coordinates})</text></g>'
