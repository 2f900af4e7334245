"""`--dim NAME=MIN:OPT:MAX`: narrowing declared Dims, and giving bounds where a file has none.

Of a file, NAME may also be an integer input, whose values then lie in MIN..MAX: a number that decides a branch or a
shape is fixed in that way, and indices get the range that they are drawn from.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from aot.config import check_triple
from aot.declaration import Dim, ModelSpec
from aot.errors import UsageError, unknown
from aot.profile import Triple


def narrowed(spec: ModelSpec, asked: Mapping[str, Triple]) -> ModelSpec:
    """The spec with the Dims that were asked for in place of the declared ones.

    Raises UsageError for a name that is not declared or a range outside the declared one, ProfileError
    unless min <= opt <= max.
    """
    declared = spec.dims
    dims: dict[str, Dim] = {}
    for name, (low, opt, high) in asked.items():
        if name not in declared:
            raise unknown("Dim", name, declared)
        check_triple(name, low, opt, high, "--dim")
        least, _, most = declared[name].bounds
        if low < least or high > most:
            raise UsageError(
                f"--dim {name}={low}:{opt}:{high} leaves the declared range {least}..{most}",
                where=f"model '{spec.name}'",
                fix=f"stay inside it, or widen aot.Dim({name!r}) in the declaration",
            )
        dims[name] = dataclasses.replace(declared[name], min=low, opt=opt, max=high)
    if not dims:
        return spec
    inputs = {
        name: dataclasses.replace(
            tensor, shape=[dims.get(d.name, d) if isinstance(d, Dim) else d for d in tensor.shape]
        )
        for name, tensor in spec.inputs.items()
    }
    return dataclasses.replace(spec, inputs=inputs)


@dataclass(frozen=True)
class Found:
    """A dynamic axis of a file: its name, where it is, and the range and optimum the file itself knows, if any."""

    name: str
    tensor: str
    axis: int
    low: int = 0
    high: int | None = None
    opt: int | None = None


def bounded(found: Sequence[Found], asked: Mapping[str, Triple], file: str) -> dict[str, Dim]:
    """A Dim for every dynamic axis of a file, by name.

    Raises UsageError, naming tensor, axis and the option to add, for those without bounds.
    """
    names = {axis.name for axis in found}
    for name, (low, opt, high) in asked.items():
        if name not in names:
            raise unknown("dimension", name, names)
        check_triple(name, low, opt, high, "--dim")
    dims: dict[str, Dim] = {}
    lacking: list[Found] = []
    for axis in found:
        if axis.name in dims or any(other.name == axis.name for other in lacking):
            continue
        if axis.name in asked:
            low, opt, high = asked[axis.name]
            if low < axis.low or (axis.high is not None and high > axis.high):
                raise UsageError(
                    f"--dim {axis.name}={low}:{opt}:{high} leaves the range of the file, {axis.low}..{axis.high}",
                    where=f"{file}: input '{axis.tensor}', axis {axis.axis}",
                )
            dims[axis.name] = Dim(axis.name, min=low, opt=opt, max=high)
        elif axis.high is not None:
            known = min(max(axis.opt, axis.low), axis.high) if axis.opt is not None else None
            dims[axis.name] = Dim(axis.name, min=axis.low, max=axis.high, opt=known)
        else:
            lacking.append(axis)
    if lacking:
        what = "; ".join(f"'{axis.name}' (input '{axis.tensor}', axis {axis.axis})" for axis in lacking)
        options = " ".join(f"--dim {axis.name}=1:8:64" for axis in lacking)
        plural = "dimension has" if len(lacking) == 1 else "dimensions have"
        raise UsageError(f"{len(lacking)} dynamic {plural} no bounds: {what}", where=file, fix=f"add {options}")
    return dims


def values(asked: Mapping[str, Triple], dtypes: Mapping[str, str], axes: Collection[str]) -> dict[str, tuple[int, int]]:
    """[low, high) of the integer inputs that `asked` names; a name that is an axis' as well means the axis.

    Raises ProfileError unless min <= opt <= max.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, (low, opt, high) in asked.items():
        if name not in axes and dtypes.get(name) in ("int32", "int64", "uint8", "int8"):
            check_triple(name, low, opt, high, "--dim")
            found[name] = (low, high + 1)
    return found


def identifier(text: str) -> str:
    """An identifier near `text`: other characters become underscores."""
    name = re.sub(r"\W+", "_", text).strip("_")
    return name if name.isidentifier() else f"d_{name}"
