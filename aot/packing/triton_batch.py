"""How many rows Triton may put into one batch, whatever it puts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from aot.profile import Profile
from aot.runtime.manifest import Manifest
from aot.serving.joining import batch_dim

LARGEST = 2**31 - 1
"""Of `max_batch_size`, an int32."""


@dataclass(frozen=True)
class Batch:
    """`max_batch_size` and what follows from it.

    most: 0 where the model has no batch that Triton could take away from the shapes. preferred: sizes that a profile is
    tuned for, and the largest one. notes: why, and what to know, for people.
    """

    most: int
    preferred: tuple[int, ...]
    notes: tuple[str, ...]


def batch_of(manifest: Manifest) -> Batch:
    """The batch of a model: axis 0 of every input and output, states too, if it is the same Dim of all.

    Triton joins any requests of equal shapes, up to `max_batch_size` rows: so that is the number up to which every
    batch has a profile, at each size that the profiles take of the other Dims.
    """
    dim, why = batch_dim(replace(manifest, states={}))
    step = manifest.multiples.get(dim, 1) if dim else 1
    most = min(_safe(manifest.profiles, dim, step), LARGEST) if dim and manifest.profiles else 0
    if dim is None or most < 1:
        return Batch(0, (), (f"max_batch_size 0: {why}.",))
    notes = [f"max_batch_size {most}: {why}, axis 0 of every input and output."]
    upto = max(profile[dim][2] for profile in manifest.profiles)
    if upto > most:
        notes.append(f"A profile takes {upto} rows, but not every size of the other Dims has one for {most + step}.")
    least = min(profile[dim][0] for profile in manifest.profiles)
    if least > 1:
        notes.append(f"Requests with fewer than {least} rows are refused: no profile takes them.")
    optima = {opt for low, opt, _ in (profile[dim] for profile in manifest.profiles) if 1 < opt <= most}
    return Batch(most, tuple(sorted(optima | {most})), tuple(notes))


def _safe(profiles: Sequence[Profile], dim: str, step: int) -> int:
    """The most rows, so that fewer have a profile as well, wherever the sizes of the other Dims have one."""
    others = tuple(name for name in profiles[0] if name != dim)

    @cache
    def least(fitting: frozenset[int], names: tuple[str, ...]) -> int:
        """Over all sizes of the Dims in `names`, of the profiles that fit those before."""
        if not names:
            return _joined([(profiles[at][dim][0], profiles[at][dim][2]) for at in fitting], step)
        bounds = {at: (profiles[at][names[0]][0], profiles[at][names[0]][2]) for at in fitting}
        # Which profiles fit changes at the ends of their ranges alone.
        sizes = {low for low, _ in bounds.values()} | {high + 1 for _, high in bounds.values()}
        sets = {frozenset(at for at, (low, high) in bounds.items() if low <= size <= high) for size in sizes}
        return min(least(some, names[1:]) for some in sets if some)

    return least(frozenset(range(len(profiles))), others)


def _joined(ranges: Sequence[tuple[int, int]], step: int) -> int:
    """The end of the ranges, from the lowest one on, as far as there is no gap."""
    end: int | None = None
    for low, high in sorted(ranges):
        if end is not None and low > end + step:
            break
        end = high if end is None else max(end, high)
    assert end is not None
    return end
