"""What a model takes, held against what it is given: dtypes, shapes, and the profile that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral

from aot.errors import InputError, unknown
from aot.profile import closest
from aot.runtime.manifest import Manifest, Tensor

Shape = tuple[int, ...]


class Signature:
    """The inputs of a model by name, its Dims and its profiles."""

    def __init__(self, manifest: Manifest) -> None:
        self.inputs = manifest.inputs
        self.profiles = manifest.profiles
        self._dims, self._multiples = manifest.dims, manifest.multiples
        self._states = set(manifest.states)

    def fit(self, shapes: Mapping[str, Shape]) -> tuple[int, dict[str, int]]:
        """(index of the profile, size of every Dim that the shapes show) for shapes of some inputs by name.

        Raises InputError for a rank, a fixed size or a Dim that does not fit, and for sizes that no profile holds.
        """
        sizes: dict[str, int] = {}
        seen: dict[str, str] = {}
        for name, shape in shapes.items():
            declared = self.inputs[name]
            called = self._called(name)
            if len(shape) != len(declared.shape):
                raise InputError(
                    f"{called} has {len(shape)} axes, and the model takes {len(declared.shape)}",
                    where=f"{called} {list(shape)}",
                    fix=f"give it as {declared}",
                )
            for axis, (size, wanted) in enumerate(zip(shape, declared.shape, strict=True)):
                place = f"{called} axis {axis}"
                if isinstance(wanted, int):
                    if size != wanted:
                        raise InputError(
                            f"{place} has size {size}, and the model takes {wanted}",
                            where=f"{called} {list(shape)}",
                            fix=f"give it as {declared}",
                        )
                elif sizes.setdefault(wanted, size) != size:
                    raise InputError(
                        f"Dim '{wanted}' has two sizes: {sizes[wanted]} at {seen[wanted]}, {size} at {place}",
                        fix="give all inputs the same size there"
                        + (", or reset the states to begin at another size" if self._states else ""),
                    )
                else:
                    seen.setdefault(wanted, place)
        index = closest(self.profiles, sizes)
        multiple = next((dim for dim, size in sizes.items() if size % self._multiples.get(dim, 1)), None)
        if multiple is not None:
            raise InputError(
                f"Dim '{multiple}' has size {sizes[multiple]} at {seen[multiple]}, "
                f"no multiple of {self._multiples[multiple]}",
                fix="pad the input",
            )
        if index is None:
            raise self._outside(sizes, seen)
        return index, sizes

    def _called(self, name: str) -> str:
        return f"state '{name}'" if name in self._states else f"input '{name}'"

    def _outside(self, sizes: Mapping[str, int], seen: Mapping[str, str]) -> InputError:
        """The error for sizes that no profile holds: the Dim that lies outside all of them, or the sizes together."""
        for dim, size in sizes.items():
            ranges = self._ranges(dim)
            if not any(low <= size <= high for low, high in ranges):
                return InputError(
                    f"Dim '{dim}' has size {size} at {seen[dim]}, and the engine takes {_either(ranges)}",
                    where=f"optimization profile{'s' if len(self.profiles) > 1 else ''} of the artifact",
                    fix="split or pad the input, or build with a profile that holds this size",
                )
        together = ", ".join(f"{dim}={size}" for dim, size in sizes.items())
        each = "; ".join(
            ", ".join(f"{dim} {profile[dim][0]}..{profile[dim][2]}" for dim in sizes) for profile in self.profiles
        )
        return InputError(
            f"no optimization profile holds {together} together",
            where=f"profiles: {each}",
            fix="split or pad the input, or build with a profile that holds these sizes",
        )

    def _ranges(self, dim: str) -> list[tuple[int, int]]:
        return sorted({(profile[dim][0], profile[dim][2]) for profile in self.profiles})

    def shape(self, name: str, sizes: Mapping[str, int]) -> Shape | None:
        """The shape of an input at sizes of its Dims; None where they leave one open."""
        shape = [sizes.get(one) if isinstance(one, str) else one for one in self.inputs[name].shape]
        return None if None in shape else tuple(size for size in shape if size is not None)

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sizes for every Dim: those given, and the optimum for the rest.

        Raises UsageError for an unknown Dim, InputError for what is no size.
        """
        if not isinstance(sizes, Mapping):
            raise InputError(f"sizes come by Dim, not as a {type(sizes).__name__}", fix="give {'NAME': size, ...}")
        for dim, size in sizes.items():
            if dim not in self._dims:
                raise unknown("Dim", str(dim), self._dims)
            if not isinstance(size, Integral) or size < 0:
                raise InputError(f"Dim '{dim}' cannot have size {size!r}", fix="give a whole number")
        return {dim: int(sizes.get(dim, bounds[1])) for dim, bounds in self._dims.items()}


def wrong_names(given: Iterable[str], inputs: Mapping[str, Tensor], kept: Sequence[str] = ()) -> InputError | None:
    """The error for inputs that are unknown or missing; None where neither is. kept: may be left out."""
    extra = [name for name in given if name not in inputs]
    takes = ", ".join(f"{name} {tensor}" for name, tensor in inputs.items())
    if extra:
        said = unknown("input", str(extra[0]), inputs)
        return InputError(said.what, fix=f"{(said.fix or '').partition('there are')[0]}the model takes {takes}")
    missing = [name for name in inputs if name not in set(given) and name not in kept]
    return InputError(f"input '{missing[0]}' is missing", fix=f"the model takes {takes}") if missing else None


def _either(ranges: Sequence[tuple[int, int]]) -> str:
    return " or ".join(str(low) if low == high else f"{low}..{high}" for low, high in ranges)
