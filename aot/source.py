"""What a build starts from: a declaration, a saved `.pt2`, or an `.onnx` file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.config import Precision, Request
from aot.declaration import ModelSpec
from aot.errors import TargetError, UsageError
from aot.plugins.replacing import NOTHING, Replacing

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.breaks import Break
    from aot.errors import ExportError
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
    suspects = (
        "look for state, randomness or a branch on a size in forward; "
        "if there is none, this is a bug in aot: please report it"
    )
    """What to do where the exported graph does not do what the model does."""

    @abstractmethod
    def write_onnx(self, folder: Path, replacing: Replacing = NOTHING) -> Mapping[str, Any]:
        """Write `model.onnx` (+ `.data`); return the facts of records.Exported. Raises ExportError or GraphError.

        replacing: the plugins whose patterns are looked for; a source that is no program has none.
        """

    def write_program(self, path: Path, precision: Precision) -> Mapping[str, Any]:
        """Write the model as an exported program that computes in `precision`; return what `program.write` does.

        Raises ExportError; TargetError for a source that has no program.
        """
        raise TargetError("the model is no program of torch's", fix="leave --route away")

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

    def read(self) -> Mapping[str, Any]:
        """What making the model read: {files: path -> {sha256}, packages: name -> {version}} and more; see trace.py."""
        return {"files": {}, "packages": {}}

    def breaks(self, error: ExportError) -> Sequence[Break]:
        """Every reason why the export fails, by line of the model's code; `error` is the one that ended it."""
        return error.breaks

    def score_key(self) -> str:
        """Digest that changes when a file that the metric alone read has changed; empty until one has."""
        return ""


def project_of(model: str) -> Path:
    """Whose `calib/`, `profiles/` and `plugins/` are looked up first: the folder of model.py, else the current one."""
    base = model.rpartition(":")[0] or model
    return next((Path(name).parent for name in (model, base) if name.endswith(".py")), Path.cwd())


def open_source(request: Request, run: Run) -> Source:
    """Open `request.model` by its form: `x.py[:name]`, `module:attribute`, `x.pt2`, `x.onnx`.

    Raises UsageError for a missing file or a form that is none of these, DeclarationError for what is
    wrong inside.
    """
    name = request.model
    suffix = Path(name).suffix
    if suffix == ".pt2":
        from aot.sources.pt2 import SavedProgram

        return SavedProgram(request, run)
    if suffix == ".onnx":
        from aot.sources.onnx_file import OnnxFile

        return OnnxFile(request, run)
    base, _, attribute = name.rpartition(":")
    module = bool(base) and all(part.isidentifier() for part in (*base.split("."), *attribute.split(".")))
    if suffix == ".py" or base.endswith(".py") or module:
        from aot.sources.declared import Declared

        return Declared(request, run)
    raise _not_a_model(name)


FORMS = (
    "MODEL is model.py, model.py:name, package.module:attribute, x.pt2, x.onnx, or a prepared artifact, x.aot or x.tar"
)


def _not_a_model(name: str) -> UsageError:
    path = Path(name)
    if not name:
        return UsageError("MODEL is empty", fix=FORMS)
    beside = path.with_name(f"{path.name}.py") if path.name else path
    if beside.is_file():
        return UsageError(f"'{name}' is not a model", fix=f"did you mean '{beside}'? {FORMS}")
    if path.is_dir():
        return UsageError(f"'{name}' is a folder, neither a model nor an artifact", fix=FORMS)
    if path.suffix in (".aot", ".tar"):
        if path.exists():
            return UsageError(f"'{name}' is not an artifact", fix=f"build it again; {FORMS}")
        return UsageError(f"no such artifact: {name}", fix="check the path, or build it: aot build model.py -o PATH")
    if path.suffix in (".pt", ".pth", ".safetensors", ".ckpt", ".bin"):
        return UsageError(
            f"'{name}' holds weights, and weights alone are not a model",
            fix="declare the model in a model.py whose function loads them",
        )
    found = "" if path.exists() else ", and no such file exists"
    return UsageError(f"'{name}' is not the form of a model{found}", fix=FORMS)
