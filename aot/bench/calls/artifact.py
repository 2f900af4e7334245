"""An artifact as `aot.load` opens it: its engine on the GPU, else its final graph on onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aot.bench.contender import Call, Contender, Job
from aot.runtime import loading
from aot.runtime.session import Bound, Session

if TYPE_CHECKING:
    from aot.arrays import Arrays


def make(job: Job) -> Artifact:
    """See `tools.make`."""
    return Artifact(job)


class Artifact(Contender):
    """A session of the runtime; torch is not in its process."""

    _session: Session

    def __init__(self, job: Job) -> None:
        self._source = job.source
        self.precision = job.precision

    def load(self) -> None:
        """Raises what `aot.load` does."""
        self._session = loading.load(self._source)
        self.label = self._session.label

    def place(self, inputs: Mapping[str, Any]) -> Call:
        """Bound: inputs and outputs stay where the engine has them."""
        return _Called(self._session.bound(inputs))


class _Called(Call):
    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def enqueue(self) -> None:
        self._bound.run()

    def synchronize(self) -> None:
        self._bound.synchronize()

    def outputs(self) -> Arrays:
        return self._bound.outputs()
