"""What methods give that take a text apart, as names in a table of settings are: `"torch.optim.SGD".rsplit(".", 1)`."""

from __future__ import annotations

from script2accel.analysis.values import Value


def constant(value: Value) -> object:
    """The one constant that a value is; None where there are several, or something else."""
    held = [o.name for o in value.objs if o.kind == "const"]
    return held[0] if len(held) == len(value.objs) == 1 else None


def taken_apart(text: object, method: str, args: list[object]) -> str | tuple[str, ...] | None:
    """What a method of a text gives where all of it is written in the script; None for everything else."""
    match text, method, args:
        case str(), "split" | "rsplit", [str(mark)] if mark:
            return tuple(text.split(mark))
        case str(), "split", [str(mark), int(most)] if mark:
            return tuple(text.split(mark, most))
        case str(), "rsplit", [str(mark), int(most)] if mark:
            return tuple(text.rsplit(mark, most))
        case str(), "partition", [str(mark)] if mark:
            return text.partition(mark)
        case str(), "rpartition", [str(mark)] if mark:
            return text.rpartition(mark)
        case str(), "lower" | "upper" | "strip" | "title" | "capitalize", []:
            return str(getattr(text, method)())
    return None
