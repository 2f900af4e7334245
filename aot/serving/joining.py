"""Which requests may be computed as one batch, how they are put together, and how the outputs come apart again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aot.errors import EngineError
from aot.profile import Profile
from aot.runtime.interchange import Array
from aot.runtime.manifest import Manifest, Tensor

Group = tuple[tuple[int, ...], ...]
"""The shapes of all inputs without axis 0: requests of one group differ in their number of rows alone."""
Limits = tuple[tuple[int, int], ...]
"""Ranges of rows, (from, to)."""


def batch_dim(manifest: Manifest) -> tuple[str | None, str]:
    """(Dim that is the batch of the model, or None; why, for people).

    It is the Dim that axis 0 of every input and output has, and no other axis. That the rows of a batch do not look at
    each other nothing in the manifest says; it is what a batch means.
    """
    tensors = {**manifest.inputs, **manifest.outputs}
    if manifest.states:
        return None, f"the model has states ({', '.join(manifest.states)})"
    first = {name: tensor.shape[0] if tensor.shape else None for name, tensor in tensors.items()}
    name, dim = next(iter(first.items()), ("", None))
    if not isinstance(dim, str):
        return None, f"axis 0 of '{name}' is no Dim"
    other = next((name for name, size in first.items() if size != dim), None)
    if other is not None:
        return None, f"axis 0 of '{other}' is not the Dim '{dim}'"
    inner = next((name for name, tensor in tensors.items() if not _foreseen(tensor, dim, manifest)), None)
    if inner is not None:
        return None, f"'{inner}' {list(tensors[inner].shape)} has an axis whose size may depend on other rows"
    return dim, f"requests are joined along the Dim '{dim}'"


def _foreseen(tensor: Tensor, batch: str, manifest: Manifest) -> bool:
    """Whether the other axes have sizes that are fixed, or follow from other Dims: `T`, or `(T - 1)//2 + 1`."""
    others = manifest.dims.keys() - {batch}
    read = [set(re.findall(r"[^\W\d]\w*", size)) for size in tensor.shape[1:] if isinstance(size, str)]
    return all(names and names <= others for names in read)


@dataclass(frozen=True)
class Joining:
    """dim: the batch of the model, None where it has none. most: rows of several requests together; 1: none are joined.

    why: they are joined, or not.
    """

    dim: str | None
    why: str
    profiles: tuple[Profile, ...]
    most: int

    @classmethod
    def of(cls, manifest: Manifest, most: int | None) -> Joining:
        """What the manifest allows. most: `--max-batch`, None for what the profiles take."""
        dim, why = batch_dim(manifest)
        if dim is None:
            return cls(None, f"requests are computed alone: {why}", manifest.profiles, 1)
        largest = min(max((profile[dim][2] for profile in manifest.profiles), default=1), most or 2**63)
        alone = "requests are computed alone: a batch has 1 row at the most"
        return cls(dim, why if largest > 1 else alone, manifest.profiles, largest)

    def rows(self, sizes: Mapping[str, int]) -> int:
        """The rows of a request, by the sizes of its Dims."""
        return 1 if self.dim is None else sizes[self.dim]

    def limits(self, sizes: Mapping[str, int]) -> Limits:
        """The rows that a batch may have with these sizes of the other Dims; none where requests are not joined."""
        if self.dim is None or self.most == 1:
            return ()
        ranges = {
            (profile[self.dim][0], min(profile[self.dim][2], self.most))
            for profile in self.profiles
            if all(profile[dim][0] <= size <= profile[dim][2] for dim, size in sizes.items() if dim != self.dim)
        }
        return tuple(sorted(ranges))


def group_of(inputs: Mapping[str, Array]) -> Group:
    """See Group."""
    return tuple([array.shape[1:] for array in inputs.values()])


def joined(requests: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    """The inputs of several requests of one group, one below the other."""
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    """The outputs of each request, views of the batch's. Raises EngineError for outputs that have not its rows."""
    total = sum(rows)
    for name, array in outputs.items():
        if array.shape[:1] != (total,):
            raise EngineError(f"output '{name}' is {list(array.shape)} for a batch of {total} rows")
    stops = np.cumsum(rows).tolist()
    return [
        {name: array[stop - count : stop] for name, array in outputs.items()}
        for count, stop in zip(rows, stops, strict=True)
    ]
