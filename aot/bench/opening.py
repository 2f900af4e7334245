"""What is to be compared: artifacts, a model, an ONNX file; at which sizes; and whether they are of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from aot import artifact, batches
from aot.declaration import ModelSpec
from aot.errors import UsageError
from aot.runners import Runnable, check_inputs, make_inputs, taken_by

if TYPE_CHECKING:
    from aot.arrays import Arrays
    from aot.artifact import Prepared
    from aot.profile import Triple
    from aot.run import Run
    from aot.source import Runner, Source

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Given:
    """artifacts: by the name they were given. source: the model that eager runs. onnx: the file for onnxruntime.
    spec: what all of them take."""

    artifacts: Mapping[str, Prepared]
    model: str | None
    source: Source | None
    onnx: str | None
    spec: ModelSpec

    def sizes(self) -> list[Sizes]:
        """The optimum of every profile of the first artifact; without one, of the model."""
        optima: list[Sizes] = [
            {dim: opt for dim, (_, opt, _) in profile.items()}
            for prepared in list(self.artifacts.values())[:1]
            for profile in prepared.plan.profiles
        ]
        return optima or [{name: dim.bounds[1] for name, dim in self.spec.dims.items()}]

    def inputs(self, sizes: Sizes, seed: int) -> Arrays:
        """Of these sizes: real ones, repeated or cut, where an artifact has a case that was not generated."""
        made = make_inputs(self.spec, sizes, seed)
        for prepared in self.artifacts.values():
            for case in prepared.references.cases():
                if case.kind != "generated":
                    return batches.resized(case.inputs, self.spec, sizes, seed)
        return made


def open_all(things: Sequence[str], model: str | None, dims: Mapping[str, Triple], run: Run) -> Given:
    """things: artifacts, ONNX files and models, in any order.

    Raises UsageError for nothing at all, for two models or two ONNX files, or where inputs differ; and what
    `artifact.load` and `open_source` raise.
    """
    names = list(dict.fromkeys(things))
    artifacts = {name: artifact.load(name) for name in names if artifact.is_artifact(name) or name.endswith(".aot")}
    onnx = _one("ONNX file", [name for name in names if name.endswith(".onnx")])
    rest = [name for name in names if name not in artifacts and name != onnx]
    model = _one("model", [*rest, *([model] if model else [])])
    if dims and model is None and onnx is None:
        raise UsageError("--dim has nothing to narrow: an artifact's sizes were fixed by its build", fix="add --model")
    source = _source(model, dims, run) if model is not None else None
    if not artifacts and source is None:
        if onnx is None:
            raise UsageError("nothing to run", fix="give an artifact, a model or an ONNX file: aot bench minilm.aot")
        spec = _source(onnx, dims, run).spec
    else:
        spec = next((prepared.spec for prepared in artifacts.values()), None) or source.spec  # type: ignore[union-attr]
    _agree(artifacts, model, source, onnx)
    return Given(artifacts, model, source, onnx, spec)


def full(spec: ModelSpec, asked: Sequence[Sizes]) -> list[Sizes]:
    """Sizes with every Dim in them, those left out at their optimum; each once. Raises UsageError for one that cannot
    be."""
    for sizes in asked:
        make_inputs(spec, sizes)
    found: list[Sizes] = [{name: one.get(name, dim.bounds[1]) for name, dim in spec.dims.items()} for one in asked]
    return [sizes for place, sizes in enumerate(found) if sizes not in found[:place]]


def _one(kind: str, names: Sequence[str]) -> str | None:
    if len(set(names)) > 1:
        raise UsageError(f"two of what there can be one of, a {kind}: {names[0]} and {names[1]}", fix="leave one away")
    return names[0] if names else None


def _source(name: str, dims: Mapping[str, Triple], run: Run) -> Source:
    from aot.config import Request
    from aot.source import open_source

    return open_source(Request(model=name, dims=dict(dims)), run)


def _agree(artifacts: Mapping[str, Prepared], model: str | None, source: Source | None, onnx: str | None) -> None:
    """Raise UsageError, naming both, for the first that takes other inputs than the one before it."""
    sides = [Runnable(name, "", prepared.spec, _unopened, prepared) for name, prepared in artifacts.items()]
    if source is not None:
        sides.append(Runnable(str(model), "", source.spec, _unopened))
    if onnx is not None and sides:
        if not Path(onnx).is_file():
            raise UsageError(f"no such file: {onnx}", fix="check the path")
        sides.append(Runnable(onnx, "", sides[0].spec, _unopened, given=taken_by(Path(onnx))))
    for one, other in pairwise(sides):
        check_inputs(one, other)


def _unopened() -> AbstractContextManager[Runner]:
    raise NotImplementedError("each is opened in a process of its own")
