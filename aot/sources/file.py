"""What `.pt2` and `.onnx` files share: an interface that is read once and remembered with the file's digest."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import toolchain, trace
from aot.batches import refuse_huge
from aot.config import Request
from aot.declaration import DTYPES, Input, ModelSpec
from aot.errors import GraphError
from aot.run import Run, StageTime
from aot.source import Runner, Source
from aot.sources.dims import Found, bounded, identifier, values
from aot.sources.loading import missing
from aot.store import digest

if TYPE_CHECKING:
    from aot.arrays import Arrays


@dataclass(frozen=True)
class Tensor:
    """An input of the file: fixed sizes as integers, dynamic axes as `Found`."""

    name: str
    dtype: str
    shape: Sequence[int | Found]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        shape = [asdict(size) if isinstance(size, Found) else size for size in self.shape]
        return {"name": self.name, "dtype": self.dtype, "shape": shape}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tensor:
        """The inverse of `to_json`."""
        shape = [Found(**size) if isinstance(size, dict) else size for size in data["shape"]]
        return cls(data["name"], data["dtype"], shape)


class FileSource(Source):
    """A model that is a file: no calibration data, no metric, Dims from the file and from `--dim`."""

    def __init__(self, request: Request, run: Run) -> None:
        self.path = Path(request.model)
        if not self.path.is_file():
            raise missing(self.path)
        self.path = self.path.resolve()
        self.project = Path.cwd()
        name = digest([str(self.path), sys.prefix])
        record = None if request.fresh else run.store.recall("sources", name)
        keep = partial(run.store.remember, "sources", name)
        fresh = (
            record is None
            or record.get("aot") != toolchain.own_digest()
            or not trace.unchanged(record["model"], partial(keep, record))
        )
        if fresh or record is None:
            tensors = self.describe()
            for tensor in tensors:
                self._check(tensor)
            read = {"files": {str(p): trace.signed(p) for p in self.files()}, "packages": {}}
            described = [tensor.to_json() for tensor in tensors]
            record = {"aot": toolchain.own_digest(), "model": read, "inputs": described, "ops": self.ops()}
            keep(record)
        run.times.append(StageTime("load", 0.0, not fresh))
        tensors = [Tensor.from_json(tensor) for tensor in record["inputs"]]
        axes = [size for tensor in tensors for size in tensor.shape if isinstance(size, Found)]
        ranges = values(request.dims, {t.name: t.dtype for t in tensors}, {axis.name for axis in axes})
        sizes = {name: triple for name, triple in request.dims.items() if name not in ranges}
        dims = bounded(axes, sizes, request.model)
        inputs = {
            t.name: Input(
                [dims[size.name] if isinstance(size, Found) else size for size in t.shape],
                t.dtype,
                *ranges.get(t.name, (None, None)),
            )
            for t in tensors
        }
        self.spec = ModelSpec(identifier(self.path.stem), inputs)
        refuse_huge(self.spec)
        self._read: dict[str, Any] = record["model"]
        self.key = digest(
            [trace.key(record["model"], self.path.parent), self.spec.to_json(), self.plugins_key(record["ops"])]
        )

    def read(self) -> Mapping[str, Any]:
        """See Source.read."""
        return self._read

    def _check(self, tensor: Tensor) -> None:
        if tensor.dtype not in DTYPES:
            raise GraphError(
                f"input '{tensor.name}' is of dtype {tensor.dtype}, which no engine takes",
                where=str(self.path),
                fix=f"one of: {', '.join(DTYPES)}",
            )

    @abstractmethod
    def describe(self) -> list[Tensor]:
        """The inputs, in order. Raises GraphError or ExportError for a file that cannot be read."""

    def files(self) -> list[Path]:
        """The file, and those that belong to it."""
        return [self.path]

    def ops(self) -> list[str]:
        """The ops in the file that a plugin may implement, `domain::name`, where the file says."""
        return []

    @abstractmethod
    def plugins_key(self, ops: Sequence[str]) -> str:
        """Of what the file is made into depends on in the plugins there are; ops: as `ops` says them."""

    def data_key(self) -> str:
        """Of the inputs that data is generated from."""
        return digest(["generated", self.spec.to_json()["inputs"]])

    def batches(self) -> Iterator[Arrays] | None:
        """A file declares no data."""
        return None

    def score(self, run: Runner) -> float | None:
        """A file declares no metric."""
        return None
