"""What a build starts from: a declaration, a saved `.pt2`, or an `.onnx` file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.config import Request
from aot.declaration import ModelSpec

if TYPE_CHECKING:
    from aot.records import Arrays
    from aot.run import Run

Runner = Callable[[Mapping[str, Any]], "Arrays"]


class Source(ABC):
    """A model before export. Nothing heavy is imported until a method below needs it.

    key: digest of everything the export depends on: the declaring file, the local modules it imports,
    every file read while the model was made (weights), the versions of the packages imported.
    project: the folder whose `calib/`, `profiles/`, `plugins/` are looked up first.
    tools: distributions whose version an export depends on (`torch`, `onnx`, ...).
    """

    spec: ModelSpec
    key: str
    project: Path
    tools: tuple[str, ...]

    @abstractmethod
    def write_onnx(self, folder: Path) -> Mapping[str, Any]:
        """Write `model.onnx` (+ `.data`); return {nodes, opset, outputs}. Raises ExportError or GraphError."""

    @abstractmethod
    def eager(self) -> Runner:
        """The reference: `run(inputs) -> outputs`, numpy in, numpy out (bfloat16 as `ml_dtypes`)."""

    @abstractmethod
    def data_key(self) -> str:
        """Digest of the calibration data; of the declared inputs where none is given."""

    @abstractmethod
    def batches(self) -> Iterator[Arrays] | None:
        """The user's calibration batches, checked against the declaration; None where there are none."""

    @abstractmethod
    def score(self, run: Runner) -> float | None:
        """The model's own metric of `run`; None where none is declared."""


def open_source(request: Request, run: Run) -> Source:
    """Open `request.model` by its form: `x.py[:name]`, `module:attribute`, `x.pt2`, `x.onnx`.

    Raises UsageError for a missing file or a form that is none of these, DeclarationError for what is
    wrong inside.
    """
    raise NotImplementedError
