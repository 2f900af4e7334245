"""The artifact: a folder (or one `.tar`) with `manifest.json` and everything the engine needs, each with its digest.

    manifest.json   schema version, spec, plan, records (stage, key, facts), digests of every file, and who built
                    what, when, with which versions
    graph/          the final ONNX (record QuantizedGraph); on the route torch-tensorrt an exported program (Program)
    kernels/TARGET/ kernels of plugins for that target (record Kernels)
    ranges/         calibration ranges (record Ranges)
    references/     inputs and eager outputs (record References)
    checked/        the comparison of the final graph with eager (record Report)
    search/         where the budget was missed: what is kept wide for it, and the errors by layer (record Repair)
    candidates/PRECISION/   of `--precision auto`, before a GPU has chosen: the other precisions, each with its graph/,
                    kernels/, ranges/, checked/ and search/
    engines/TARGET.plan     TARGET.json beside it: the engine's facts and its report; with TensorRT, TARGET.timing:
                            the timing cache as `trtexec --timingCacheFile` reads it, and TARGET.kernels: the kernels
                            that it launches from Python, where it does not hold them itself; TARGET.tactics: its layers
                            and their tactics; weights.safetensors: what stripped plans take when they are loaded
    aot.lock, sbom.cdx.json what it depends on, to make it again (`lock.py`), and what it is made of (`sbom.py`)
    report.json, report.html

This file reads; `artifact_write.py` writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from aot import routes, toolchain
from aot.choice import Choice
from aot.declaration import ModelSpec
from aot.errors import AotError, ArtifactError, StoreError
from aot.onnx_input.vetting import vet
from aot.plan import Plan
from aot.records import (
    KERNELS,
    Engine,
    Kernels,
    Program,
    QuantizedGraph,
    Ranges,
    Record,
    References,
    Repair,
    Report,
    StrippedWeights,
)
from aot.runtime.files import MANIFEST, REBUILD, check, manifest_data, unpacked
from aot.runtime.refit import WEIGHTS
from aot.runtime.sessions import NAME
from aot.store import Entry, Store, digest


@dataclass(frozen=True)
class Prepared:
    """The first half of a build, from the store or from an artifact folder: what an engine is built and judged with.

    search: which nodes were kept wide so that the budget holds, where it was missed.
    replaced: where patterns of plugins and attention occur, and what became of them (see records.Exported).
    notices: what was left without a kernel, told in this half.
    kernels: of the graph's plugins, for each target that they were compiled for.
    choice: how `--precision auto` came to this precision, or may come to another. candidates: while it may, the same
    model in those others.
    engines: engines that an artifact already holds, each with its report; none in a first build.
    history: who built what so far, for an artifact that was loaded.
    """

    spec: ModelSpec
    plan: Plan
    exported_nodes: int
    final: QuantizedGraph
    ranges: Ranges
    references: References
    checked: Report
    search: Repair | None = None
    replaced: tuple[Mapping[str, Any], ...] = ()
    notices: tuple[str, ...] = ()
    kernels: tuple[Kernels, ...] = ()
    choice: Choice | None = None
    candidates: tuple[Prepared, ...] = ()
    engines: tuple[tuple[Engine, Report], ...] = ()
    history: tuple[Half, ...] = ()


class _Part(BaseModel):
    # Deferred: an unchanged rebuild never validates a manifest, and need not pay for the validators.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class RecordPart(_Part):
    """A record: which stage made it, its store key, its facts."""

    stage: str
    key: str
    facts: dict[str, Any]


class Records(_Part):
    """The records of the first half."""

    graph: RecordPart
    ranges: RecordPart
    references: RecordPart
    checked: RecordPart
    search: RecordPart | None = None


class CandidatePart(_Part):
    """Another precision that the engine may have; its files are in `candidates/PRECISION`."""

    plan: dict[str, Any]
    graph: RecordPart
    ranges: RecordPart
    checked: RecordPart
    search: RecordPart | None = None
    kernels: list[RecordPart] = []
    replaced: list[dict[str, Any]] = []


class EnginePart(_Part):
    """An engine and its comparison; the plan is `engines/FILE`."""

    engine: RecordPart
    report: RecordPart


class FilePart(_Part):
    """The size and SHA-256 of one file."""

    bytes: int
    sha256: str


class Half(_Part):
    """When, where and with what versions a part of the build was done; did: `graph`, `engines` or both.

    command: what asked for it, as a line for a shell. stages: {name, seconds, cached}, in the order in which they ran.
    sources: SHA-256 of the files that the model is made of, by path; packages: versions of those that its code imports.
    """

    did: list[str]
    created: str
    versions: dict[str, str]
    machine: dict[str, Any]
    command: str = ""
    sources: dict[str, str] = {}
    packages: dict[str, str] = {}
    stages: list[dict[str, Any]] = []


class Manifest(_Part):
    """`manifest.json`. identity: digest of everything the content follows from; equal means nothing to write.
    digest: of the manifest itself (see `runtime.files.manifest_digest`), which the writer fills in."""

    schema_version: int
    digest: str = ""
    kind: Literal["prepared", "full"]
    name: str
    identity: str
    accepted: bool
    spec: dict[str, Any]
    plan: dict[str, Any]
    exported_nodes: int
    io: dict[str, list[dict[str, Any]]]
    records: Records
    kernels: list[RecordPart] = []
    replaced: list[dict[str, Any]] = []
    choice: dict[str, Any] | None = None
    candidates: list[CandidatePart] = []
    engines: list[EnginePart]
    history: list[Half]
    files: dict[str, FilePart]


R = TypeVar("R", bound=Record)


def is_artifact(name: str) -> bool:
    """Whether the path is an artifact folder or tar (it holds a manifest)."""
    path = Path(name)
    if path.is_dir():
        return (path / MANIFEST).is_file() or name.rstrip("/").endswith(".aot")
    return name.endswith(".tar") and path.is_file()


def load(name: str) -> Prepared:
    """Read an artifact, checking digests, and let parsers see its graphs in a process of their own first.

    Raises ArtifactError for a corrupt or foreign manifest, GraphError for a graph at which a parser comes to its end.
    """
    folder = unpacked(name)
    manifest = read_manifest(folder, shown=name)
    check_files(folder, manifest, shown=name)
    _vet_graphs(folder, manifest)
    return prepared_of(folder, manifest, shown=name)


def _vet_graphs(folder: Path, manifest: Manifest) -> None:
    """See `onnx_input.vetting`; what was seen is remembered by the digests of the files that belong to a graph."""
    versions = [toolchain.version(name) for name in ("onnx", NAME)]
    store = Store()
    for graph in (name for name in manifest.files if name.endswith(".onnx")):
        beside = str(PurePosixPath(graph).parent)
        files = [
            (name, one.sha256) for name, one in manifest.files.items() if str(PurePosixPath(name).parent) == beside
        ]
        key = digest([graph, sorted(files), versions])
        if store.recall("vetted", key) is None:
            vet(folder / graph)
            if versions[1] is not None:
                vet(folder / graph, "open")
            with suppress(StoreError):  # a store that cannot be written costs half a second each time
                store.remember("vetted", key, {"graph": graph})


def prepared_of(folder: Path, manifest: Manifest, shown: str) -> Prepared:
    """The records of an artifact folder whose manifest was read. Raises ArtifactError for one that lacks a record."""
    try:
        spec, plan = ModelSpec.from_json(manifest.spec), Plan.from_json(manifest.plan)
        others = [(Plan.from_json(part.plan), part) for part in manifest.candidates]
        plans = [plan, *(other for other, _ in others)]
        digest([manifest.spec, manifest.choice, *(one.to_json() for one in plans)])  # ValueError for NaN and infinity
        if any(set(profile) != set(spec.dims) for one in plans for profile in one.profiles):
            raise ValueError(f"a profile does not range over the Dims {', '.join(spec.dims)}")
        return replace(
            _half(spec, plan, manifest, folder),
            choice=None if manifest.choice is None else Choice.from_json(manifest.choice),
            candidates=tuple(_half(spec, other, manifest, folder, part) for other, part in others),
            engines=tuple(
                (_engine(part.engine, folder / "engines"), _record(Report, part.report, folder / "engines"))
                for part in manifest.engines
            ),
        )
    except (KeyError, TypeError, ValueError, AttributeError, AotError) as error:
        raise ArtifactError(
            f"the manifest does not describe a model: {' '.join(str(error).split())}",
            where=f"{shown}/{MANIFEST}",
            fix=REBUILD,
        ) from error


def _half(spec: ModelSpec, plan: Plan, manifest: Manifest, root: Path, other: CandidatePart | None = None) -> Prepared:
    """What was prepared in one precision: the artifact's own, or another one that it may be finished in."""
    parts = manifest.records if other is None else other
    kernels, replaced = (manifest.kernels, manifest.replaced) if other is None else (other.kernels, other.replaced)
    folder = root if other is None else root / "candidates" / plan.precision
    graph = QuantizedGraph if plan.route == routes.ONNX else Program
    return Prepared(
        spec=spec,
        plan=plan,
        exported_nodes=manifest.exported_nodes,
        final=_record(graph, parts.graph, folder / "graph"),
        ranges=_record(Ranges, parts.ranges, folder / "ranges"),
        references=_record(References, manifest.records.references, root / "references"),
        checked=_record(Report, parts.checked, folder / "checked"),
        search=None if parts.search is None else _record(Repair, parts.search, folder / "search"),
        replaced=tuple(replaced),
        kernels=tuple(_record(Kernels, part, folder / "kernels" / part.facts["target"]) for part in kernels),
        history=tuple(manifest.history),
    )


def _engine(part: RecordPart, folder: Path) -> Engine:
    engine = _record(Engine, part, folder)
    held = StrippedWeights(Entry("strip", part.key, folder, {}))
    return replace(engine, weighed=held) if "stripped" in part.facts else engine


def _record(kind: type[R], part: RecordPart, path: Path) -> R:
    return kind(Entry(part.stage, part.key, path, part.facts))


def read_manifest(folder: Path, shown: str | None = None) -> Manifest:
    """The manifest of an artifact folder, its form and its paths checked, the files not.

    Raises ArtifactError for a file that is missing or is not JSON, a newer schema, a wrong or missing
    field, a path that leaves the folder.
    """
    where = f"{shown or folder}/{MANIFEST}"
    data = manifest_data(folder, str(shown or folder))
    from aot.artifact_check import check_inner

    try:
        manifest = Manifest.model_validate(data)
        check_inner(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"the manifest is damaged: {place}: {first['msg']}", where=where, fix=REBUILD) from error
    for name in _needed(manifest):
        if name not in manifest.files:
            raise ArtifactError(f"the manifest is damaged: it does not list {name}", where=where, fix=REBUILD)
    for name in manifest.files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name or not name:
            raise ArtifactError(f"the manifest names a path outside the artifact: {name}", where=where, fix=REBUILD)
    return manifest


def _needed(manifest: Manifest) -> Iterator[str]:
    """The files that are looked for by names that the manifest's facts give."""
    for part in manifest.engines:
        yield f"engines/{part.engine.facts['file']}"
        yield f"engines/{part.engine.facts['target']}.json"
        if "stripped" in part.engine.facts:
            yield f"engines/{WEIGHTS}"
    for prefix, kernels in (
        ("", manifest.kernels),
        *((f"candidates/{one.plan['precision']}/", one.kernels) for one in manifest.candidates),
    ):
        yield from (f"{prefix}kernels/{part.facts['target']}/{KERNELS}" for part in kernels)


def check_files(folder: Path, manifest: Manifest, shown: str | None = None) -> None:
    """Raise ArtifactError, naming the file, for one that is missing, is a link out of the artifact, or changed; and for
    one in a folder of the artifact that the manifest does not list, which would be taken for a part of it."""
    for name, expected in manifest.files.items():
        check(folder, name, expected.bytes, expected.sha256, shown or str(folder))
    for top in {name.partition("/")[0] for name in manifest.files if "/" in name} | {"engines"}:
        for path in sorted((folder / top).rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name not in manifest.files and not path.is_dir():
                raise ArtifactError(
                    "a file in the artifact is none of its files: the manifest does not list it",
                    where=f"{shown or folder}/{name}",
                    fix="remove it, or copy the artifact again",
                )
