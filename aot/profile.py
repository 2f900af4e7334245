"""Optimization profiles: Dim sizes as the builder and the runtime want them, and which of several fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2, prod

from aot.declaration import Dim, Input, ModelSpec
from aot.errors import ProfileError, unknown

Shape = tuple[int, ...]
Triple = tuple[int, int, int]
Profile = Mapping[str, Triple]


def as_json(profiles: Sequence[Profile]) -> list[dict[str, list[int]]]:
    """Profiles as plain data, for keys and manifests."""
    return [{dim: list(triple) for dim, triple in profile.items()} for profile in profiles]


def uses(spec: ModelSpec, dim: str) -> str:
    """Where a Dim is used: "input 'ids' axis 0, input 'mask' axis 0"."""
    return ", ".join(
        f"input '{name}' axis {axis}"
        for name, tensor in spec.inputs.items()
        for axis, size in enumerate(tensor.shape)
        if isinstance(size, Dim) and size.name == dim
    )


def resolve(spec: ModelSpec, given: Mapping[str, Triple], where: str) -> Profile:
    """One profile for every Dim of the model: what was given, and the Dim's own bounds for the rest.

    Raises ProfileError, naming Dim, input and axis, unless Dim.min <= min <= opt <= max <= Dim.max.
    """
    dims = spec.dims
    for name in given:
        if name not in dims:
            refusal = unknown("Dim", name, dims)
            raise ProfileError(f"{refusal.what} in a profile of model '{spec.name}'", where=where, fix=refusal.fix)
    profile: dict[str, Triple] = {}
    for name, dim in dims.items():
        low, opt, high = given.get(name, dim.bounds)
        least, _, most = dim.bounds
        asked = f"min={low} opt={opt} max={high}"
        place = f"{where}, Dim '{name}' ({uses(spec, name)})"
        if not low <= opt <= high:
            wrong = "min is above max" if low > high else "opt is above max" if opt > high else "opt is below min"
            raise ProfileError(
                f"impossible profile: {wrong} ({asked})", where=place, fix="a profile needs min <= opt <= max"
            )
        if low < least or high > most:
            raise ProfileError(
                f"the profile leaves the range of Dim '{name}': {asked}, declared {least} to {most}",
                where=place,
                fix=f"stay inside {least} to {most}, or widen aot.Dim('{name}', min=..., max=...)",
            )
        if any(size not in dim.sizes for size in (low, opt, high)):
            raise ProfileError(
                f"the profile has sizes that Dim '{name}' cannot have: {asked}, declared {dim}",
                where=place,
                fix=f"give multiples of {dim.multiple_of}",
            )
        profile[name] = (low, opt, high)
    return profile


def shapes(tensor: Input, profile: Profile, network: Sequence[int]) -> tuple[Shape, Shape, Shape]:
    """(minimum, optimum, maximum) shape of an input whose network shape is `network` (-1 for a dynamic axis).

    An axis that the network holds fixed keeps the network's size.
    """

    def at(which: int) -> Shape:
        declared = (profile[size.name][which] if isinstance(size, Dim) else size for size in tensor.shape)
        return tuple(fixed if fixed >= 0 else size for fixed, size in zip(network, declared, strict=True))

    return at(0), at(1), at(2)


def values(name: str, tensor: Input, volume: int) -> tuple[Shape, Shape, Shape]:
    """(minimum, optimum, maximum) values of an integer input that decides shapes, `volume` numbers each.

    They come from the input's `low` (included) and `high` (excluded). Raises ProfileError without them.
    """
    if tensor.low is None or tensor.high is None:
        raise ProfileError(
            f"the values of input '{name}' decide shapes inside the model, and nothing bounds them",
            where=f"input '{name}'",
            fix=f'declare their range: "{name}": aot.Input({list(tensor.shape)!r}, "{tensor.dtype}", low=1, high=65)',
        )
    low, high = int(tensor.low), int(tensor.high) - 1
    return (low,) * volume, ((low + high) // 2,) * volume, (high,) * volume


def closest(profiles: Sequence[Profile], sizes: Mapping[str, int]) -> int | None:
    """The index of the profile that holds these sizes of Dims, and of several the one tuned closest to them.

    Closeness is the distance of the sizes to the optimum in octaves, summed over the Dims; of two as close, the one
    with less room. None: no profile holds them.
    """

    def distance(index: int) -> tuple[float, int]:
        profile = profiles[index]
        octaves = sum(abs(log2(max(size, 1)) - log2(max(profile[dim][1], 1))) for dim, size in sizes.items())
        return octaves, prod(profile[dim][2] for dim in sizes)

    fitting = [
        index
        for index, profile in enumerate(profiles)
        if all(profile[dim][0] <= size <= profile[dim][2] for dim, size in sizes.items())
    ]
    return min(fitting, key=distance, default=None)


def choose(spec: ModelSpec, profiles: Sequence[Profile], sizes: Mapping[str, Sequence[int]]) -> int | None:
    """The index of the profile that holds these shapes of inputs by name and is closest to them; see `closest`."""
    seen = {
        declared.name: size
        for name, shape in sizes.items()
        if name in spec.inputs
        for declared, size in zip(spec.inputs[name].shape, shape, strict=False)
        if isinstance(declared, Dim)
    }

    return closest(profiles, seen)
