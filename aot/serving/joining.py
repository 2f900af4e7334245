"""Which requests may be computed as one batch, how they are put together, and how the outputs come apart again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aot.errors import EngineError
from aot.profile import Profile
from aot.runtime.interchange import Array
from aot.runtime.manifest import Manifest, Tensor

Group = tuple[tuple[int, ...], ...]
"""The shapes of all inputs without axis 0: requests of one group differ in their number of rows alone."""


def batch_dim(manifest: Manifest) -> tuple[str | None, str]:
    """The Dim that is the batch of the model, or None, and why, for people.

    It is the Dim that axis 0 of every input and output has, and no other axis. That rows do not look at each other
    is what a batch means; nothing in the manifest says so.
    """
    tensors = {**manifest.inputs, **manifest.outputs}
    if manifest.states:
        return None, f"requests are computed alone: the model has states ({', '.join(manifest.states)})"
    first = {name: tensor.shape[0] if tensor.shape else None for name, tensor in tensors.items()}
    dim = next(iter(first.values()), None)
    if not isinstance(dim, str) or dim not in manifest.dims:
        name = next(iter(first), "")
        return None, f"requests are computed alone: axis 0 of '{name}' is no Dim"
    other = next((name for name, size in first.items() if size != dim), None)
    if other is not None:
        return None, f"requests are computed alone: axis 0 of '{other}' is not the Dim '{dim}'"
    inner = next((name for name, tensor in tensors.items() if not _known(tensor, dim, manifest)), None)
    if inner is not None:
        return None, f"requests are computed alone: '{inner}' {list(tensors[inner].shape)} may mix rows"
    return dim, f"requests are joined along the Dim '{dim}'"


def _known(tensor: Tensor, batch: str, manifest: Manifest) -> bool:
    """Whether no other axis is the batch, or of a size that nobody knows before."""
    return all(size != batch and (isinstance(size, int) or size in manifest.dims) for size in tensor.shape[1:])


@dataclass(frozen=True)
class Joining:
    """The rows that one call takes. dim: the batch; None: every request is computed alone. most: never more rows."""

    dim: str | None
    why: str
    profiles: tuple[Profile, ...]
    most: int | None

    @classmethod
    def of(cls, manifest: Manifest, most: int | None) -> Joining:
        """What the manifest allows. most: `--max-batch`."""
        dim, why = batch_dim(manifest)
        if most == 1:
            dim, why = None, "requests are computed alone: --max-batch 1"
        return cls(dim, why, manifest.profiles, most)

    def limits(self, sizes: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
        """The ranges of rows, (from, to), that the profiles take at these sizes of the other Dims."""
        if self.dim is None:
            return ()
        ranges = {
            (profile[self.dim][0], min(profile[self.dim][2], self.most or profile[self.dim][2]))
            for profile in self.profiles
            if all(profile[dim][0] <= size <= profile[dim][2] for dim, size in sizes.items() if dim != self.dim)
        }
        return tuple(sorted(ranges))

    @property
    def largest(self) -> int:
        """The most rows of any batch."""
        if self.dim is None:
            return 1
        return min(max(profile[self.dim][2] for profile in self.profiles), self.most or 2**63)


def group_of(inputs: Mapping[str, Array]) -> Group:
    """See Group."""
    return tuple(array.shape[1:] for array in inputs.values())


def joined(requests: Sequence[Mapping[str, Array]]) -> Mapping[str, Array]:
    """The inputs of several requests of one group, one below the other."""
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([one[name] for one in requests]) for name in requests[0]}


def split(outputs: Mapping[str, Array], rows: Sequence[int]) -> list[dict[str, Array]]:
    """The outputs of each request, views of the batch's. Raises EngineError where the rows are others."""
    total = sum(rows)
    wrong = next((name for name, array in outputs.items() if array.shape[:1] != (total,)), None)
    if wrong is not None:
        raise EngineError(f"output '{wrong}' is {list(outputs[wrong].shape)} for {total} rows")
    stops = np.cumsum(rows).tolist()
    return [
        {name: array[stop - count : stop] for name, array in outputs.items()}
        for count, stop in zip(rows, stops, strict=True)
    ]
