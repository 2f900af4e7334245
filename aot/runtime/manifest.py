"""What an artifact is to someone who runs it, read from `manifest.json` with the standard library alone.

`aot/artifact.py` describes the whole file, and `aot inspect` holds it against that.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.errors import ArtifactError
from aot.profile import Profile
from aot.runtime import files
from aot.runtime.files import MANIFEST, REBUILD
from aot.runtime.interchange import bits
from aot.runtime.refit import WEIGHTS

GRAPH = "graph/model.onnx"


@dataclass(frozen=True)
class Tensor:
    """An input or output. dtype: as numpy or ml_dtypes names it. shape: a dynamic size is the name of its Dim; of an
    output it is `?` where nothing names it."""

    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Engine:
    """One engine of the artifact. target: `sm90`, ... or `cpu`. version: of the vendor's library that built it.

    hardware: its level of hardware compatibility, and compatible: whether it is version-compatible (see fits.py).
    weights: the file by name that it takes its weights from, of a stripped one. values: inputs whose values decide
    shapes.
    """

    target: str
    backend: str
    version: str
    file: str
    hardware: str | None = None
    compatible: str | None = None
    weights: str | None = None
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """An input that is fed back. output: what is its next value. initial: the bytes of its elements before the first
    call in C order, or of a single one where all are alike."""

    output: str
    initial: bytes


@dataclass(frozen=True)
class Manifest:
    """See the module's docstring.

    folder: where it lies; shown: as the user named it. dims: (min, opt, max) of every Dim, and multiples: what its
    sizes are multiples of. lows: the least value of integer inputs that declare one. files: (bytes, SHA-256) by name.
    graph: the final ONNX file by name, None where there is none.
    """

    folder: Path
    shown: str
    name: str
    precision: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    dims: Mapping[str, tuple[int, int, int]]
    multiples: Mapping[str, int]
    lows: Mapping[str, int]
    profiles: tuple[Profile, ...]
    states: Mapping[str, State]
    engines: tuple[Engine, ...]
    graph: str | None
    files: Mapping[str, tuple[int, str]]

    def path(self, name: str) -> Path:
        """Where a file of the artifact lies."""
        return self.folder / name

    def check(self, names: Iterable[str]) -> None:
        """Raise ArtifactError for the first of these files that is missing or not what was packed."""
        for name in names:
            if name not in self.files:
                raise ArtifactError(
                    f"the manifest is damaged: it does not list {name}", where=f"{self.shown}/{MANIFEST}", fix=REBUILD
                )
            files.check(self.folder, name, *self.files[name], self.shown)


def read(name: str) -> Manifest:
    """The manifest of an artifact, a folder or a `.tar`; its files are not checked.

    Raises UsageError for a path that is not there, ArtifactError for what is no artifact of this aot.
    """
    folder = files.unpacked(name)
    data = files.manifest_data(folder, name)
    try:
        return _manifest(data, folder, name)
    except KeyError as error:
        said = f"it lacks {error}"
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        said = " ".join(str(error).split())
    raise ArtifactError(f"the manifest is damaged: {said}", where=f"{name}/{MANIFEST}", fix=REBUILD)


def _manifest(data: Mapping[str, Any], folder: Path, shown: str) -> Manifest:
    spec, plan = data["spec"], data["plan"]
    dims = {str(name): _triple(bounds) for name, bounds in spec["dims"].items()}
    listed = {str(name): (int(one["bytes"]), str(one["sha256"])) for name, one in data["files"].items()}
    return Manifest(
        folder=folder,
        shown=shown,
        name=str(data["name"]),
        precision=str(plan["precision"]),
        inputs={name: _declared(_tensor(one), dims) for name, one in spec["inputs"].items()},
        outputs={str(one["name"]): _tensor(one) for one in data["io"]["outputs"]},
        dims=dims,
        multiples={name: int(multiple) for name, (_, _, _, multiple) in _longer(spec["dims"])},
        lows={
            name: int(one["low"])
            for name, one in spec["inputs"].items()
            if one["low"] is not None and "int" in one["dtype"]
        },
        profiles=tuple({dim: _triple(profile[dim]) for dim in dims} for profile in plan["profiles"]),
        states={
            name: State(str(one["output"]), base64.b64decode(one["initial"], validate=True))
            for name, one in spec.get("states", {}).items()
        },
        engines=tuple(_engine(part["engine"]["facts"]) for part in data["engines"]),
        graph=GRAPH if GRAPH in listed else None,
        files=listed,
    )


def _longer(dims: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((name, bounds) for name, bounds in dims.items() if len(bounds) == 4)


def _triple(bounds: Sequence[Any]) -> tuple[int, int, int]:
    low, opt, high, *_ = (int(size) for size in bounds)
    if not 0 <= low <= opt <= high:
        raise ValueError(f"sizes range over {[low, opt, high]}")
    return low, opt, high


def _tensor(one: Mapping[str, Any]) -> Tensor:
    shape = tuple("?" if size is None else size for size in one["shape"])
    for size in shape:
        if type(size) not in (int, str) or (type(size) is int and size < 0):
            raise ValueError(f"a shape holds {size!r}")
    dtype = str(one["dtype"])
    bits(dtype)  # TypeError for what is none
    return Tensor(dtype, shape)


def _declared(tensor: Tensor, dims: Mapping[str, Any]) -> Tensor:
    """An input, whose dynamic sizes are Dims."""
    for size in tensor.shape:
        if isinstance(size, str) and size not in dims:
            raise ValueError(f"no Dim is called {size!r}")
    return tensor


def _engine(facts: Mapping[str, Any]) -> Engine:
    name = str(facts["file"])
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"an engine's file is called {name!r}")
    return Engine(
        target=str(facts["target"]),
        backend=str(facts["backend"]),
        version=str(facts["version"]),
        file=f"engines/{name}",
        hardware=facts.get("hardware_compatible"),
        compatible=facts.get("version_compatible"),
        weights=f"engines/{WEIGHTS}" if facts.get("stripped") is not None else None,
        values=tuple(map(str, facts.get("shape_inputs", ()))),
    )
