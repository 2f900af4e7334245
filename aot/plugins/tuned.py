"""The fastest config of a kernel, measured once on a GPU and used without measuring again.

`plugins/tuned/OP.json`, of the project and of the built-ins, holds one entry for each GPU, target, dtypes of the
inputs and bucket. A bucket is every named size of SHAPES rounded up to a power of two, leading axes (`...`) as their
product: what is fastest depends on how much there is to do, and little on the last digits. An entry knows the SHA-256
of what the kernel is written in: after a change to that the entry is stale, and no longer used.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aot.errors import PluginError
from aot.plugins.header import REST, Header

Shapes = Mapping[str, Sequence[int | None]]
"""Of the inputs, by name; None for a size that varies."""
Bucket = dict[str, int | None]
_SHARED = "aot.plugins"


@dataclass(frozen=True)
class Entry:
    """What was found for one size.

    gpu: the product's name. dtypes: of the inputs. ms: median of one launch, the L2 cache flushed before it. tried: how
    many configs; measured: how many launches were timed. source: see `source`. expanded_ms: of the
    plugin's function in an engine, in place of the kernel; None where that was not measured.
    """

    gpu: str
    target: str
    dtypes: tuple[str, ...]
    bucket: Mapping[str, int]
    config: Mapping[str, Any]
    ms: float
    tried: int
    measured: int
    shapes: Mapping[str, tuple[int, ...]]
    source: str
    date: str
    driver: str | None
    triton: str | None
    expanded_ms: float | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What an entry is for; there is one for each."""
        return (self.gpu, self.target, self.dtypes, tuple(self.bucket.items()))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        """The inverse of `dataclasses.asdict`."""
        shapes = {name: tuple(shape) for name, shape in data["shapes"].items()}
        return cls(**{**data, "dtypes": tuple(data["dtypes"]), "shapes": shapes})


def bucket(header: Header, shapes: Shapes) -> Bucket:
    """name of a size -> the least power of two that is not less, 0 for 0; None for one that varies."""
    found: Bucket = {}
    for name, axes in header.shapes.items():
        keyed = list(zip(header.keys(name, len(shapes[name])), shapes[name], strict=True))
        leading = [size for key, size in keyed if isinstance(key, tuple)]
        known = [size for size in leading if size is not None]
        together = [(REST, math.prod(known) if len(known) == len(leading) else None)] if REST in axes else []
        for axis, size in (*together, *((key, size) for key, size in keyed if isinstance(key, str))):
            if found.get(axis) is None:
                found[axis] = None if size is None else _rounded(size)
    return found


def _rounded(size: int) -> int:
    return 1 << (size - 1).bit_length() if size else 0


def source(header: Header) -> str:
    """SHA-256 of what the kernel is written in: of the plugin's file, where that is all."""
    found = [file.read_bytes() for file in written_in(header)]
    if len(found) > 1:
        found = ["".join(hashlib.sha256(one).hexdigest() for one in found).encode()]
    return hashlib.sha256(found[0]).hexdigest()


def written_in(header: Header) -> list[Path]:
    """The plugin's file, helper modules beside it (`_NAME.py`), and those of aot.plugins that it imports."""
    found = [header.file, *sorted(header.file.parent.glob("_*.py"))]
    shared = Path(__file__).parent
    for file in found:  # which grows
        for name in _imported(file):
            module = shared / f"{name}.py"
            if module.is_file() and module not in found:
                found.append(module)
    return found


def _imported(file: Path) -> Iterator[str]:
    """The modules of aot.plugins that a file names in its imports."""
    for statement in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(statement, ast.ImportFrom) and statement.module == _SHARED:
            yield from (one.name for one in statement.names)
        names = [one.name for one in statement.names] if isinstance(statement, ast.Import) else []
        names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
        yield from (name.removeprefix(f"{_SHARED}.") for name in names if name.startswith(f"{_SHARED}."))


def file_of(name: str, plugins: Path) -> Path:
    """Where the entries of an op are kept, in a folder of plugins."""
    return plugins / "tuned" / f"{name}.json"


def read(file: Path) -> list[Entry]:
    """The entries of a file; none where there is no file. Raises PluginError for one that is damaged."""
    try:
        return [Entry.from_json(one) for one in json.loads(file.read_text())["entries"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PluginError(
            f"what tuning found for {file.stem} cannot be read: {error}",
            where=str(file),
            fix=f"delete the file, or tune again: aot plugin tune {file.stem}",
        ) from error


def entries(header: Header, project: Path | None = None) -> tuple[list[Entry], list[str]]:
    """(the entries that hold, warnings about those that do not): of the project, then of the plugin's own folder.

    The project's take the place of those that were shipped for the same GPU, dtypes and bucket.
    """
    files = [file_of(header.name, header.file.parent)]
    if project is not None and project / "plugins" != header.file.parent:
        files.append(file_of(header.name, project / "plugins"))
    digest, found, warnings = source(header), dict[tuple[Any, ...], Entry](), list[str]()
    for file in files:
        held = read(file)
        stale = [one for one in held if one.source != digest]
        if stale:
            warnings.append(
                f"{len(stale)} of {len(held)} entries in {file} are of another version of {header.name}.py, "
                f"and not used; aot plugin tune {header.name} makes new ones"
            )
        found.update({one.key: one for one in held if one.source == digest})
    return list(found.values()), warnings


def matching(
    header: Header,
    target: str,
    dtypes: Sequence[str],
    shapes: Shapes,
    *,
    gpu: str | None = None,
    project: Path | None = None,
) -> list[Entry]:
    """The entries for these inputs; those of the GPU alone where there are any. A size that varies fits every one."""
    wanted = bucket(header, shapes)
    found = [
        one
        for one in entries(header, project)[0]
        if (one.target, one.dtypes) == (target, tuple(dtypes))
        and one.bucket.keys() == wanted.keys()
        and all(size is None or one.bucket[name] == size for name, size in wanted.items())
    ]
    own = [one for one in found if one.gpu == gpu]
    return own or found


def best(
    header: Header,
    target: str,
    dtypes: Sequence[str],
    shapes: Shapes,
    *,
    gpu: str | None = None,
    project: Path | None = None,
) -> Mapping[str, Any] | None:
    """The fastest config for these inputs; None where nothing was measured, or no one config is fastest in every case.

    gpu: the product's name where it is known, for several have one target. project: its folder; its entries count too.
    """
    found = [one.config for one in matching(header, target, dtypes, shapes, gpu=gpu, project=project)]
    return found[0] if found and all(one == found[0] for one in found) else None


def wins(
    header: Header,
    target: str,
    dtypes: Sequence[str],
    shapes: Shapes,
    *,
    gpu: str | None = None,
    project: Path | None = None,
) -> bool | None:
    """Whether the kernel is faster than the plugin's function in an engine, in every case; None: not measured."""
    found = matching(header, target, dtypes, shapes, gpu=gpu, project=project)
    if not found or any(one.expanded_ms is None for one in found):
        return None
    return all(one.expanded_ms is not None and one.ms < one.expanded_ms for one in found)


def write(header: Header, plugins: Path, found: Iterable[Entry]) -> Path:
    """Merge entries into `plugins/tuned/OP.json`, whole or not at all; stale ones go. Returns the file.

    Raises OSError where it cannot be written, PluginError where what is there is damaged.
    """
    file, digest = file_of(header.name, plugins), source(header)
    file.parent.mkdir(parents=True, exist_ok=True)
    held = {one.key: one for one in read(file) if one.source == digest}
    for one in found:
        before = held.get(one.key)
        # Another run without TensorRT does not take away what one with it has measured.
        kept = before.expanded_ms if before is not None and one.expanded_ms is None else one.expanded_ms
        held[one.key] = replace(one, expanded_ms=kept)
    ordered = sorted(held.values(), key=lambda one: (one.gpu, one.target, one.dtypes, list(one.bucket.values())))
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps({"entries": [asdict(one) for one in ordered]}, indent=1) + "\n")
    os.replace(partial, file)
    return file
