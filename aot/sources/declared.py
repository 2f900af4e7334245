"""A model declared in Python: `model.py`, `model.py:name`, `package.module:attribute`.

What the declaration read is kept as a record (see `aot/trace.py`), so that an unchanged one is not imported.
Three phases are kept apart: making the model decides the export, `calibration()` only the data,
`metric` only the score.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import arrays, batches, toolchain, trace
from aot.config import Precision, Request
from aot.content import plugin_digest
from aot.declaration import ModelSpec
from aot.decorator import Declaration
from aot.errors import CalibrationError, DeclarationError
from aot.plugins.replacing import NOTHING, Replacing
from aot.run import Run, StageTime
from aot.source import Runner, Source
from aot.sources import loading
from aot.sources.dims import narrowed
from aot.store import Workspace, digest

if TYPE_CHECKING:
    import torch

    from aot.arrays import Arrays
    from aot.breaks import Break
    from aot.errors import ExportError

EXPORT_TOOLS = ("torch", "onnx", "onnx-ir", "onnxscript")
KEPT = 4
"""How many states of a declaration are remembered."""


class Declared(Source):
    """A declaration, loaded only when something needs more than its record holds."""

    tools = EXPORT_TOOLS

    def __init__(self, request: Request, run: Run) -> None:
        self._place = loading.place(request.model)
        self._run = run
        self.project = self._place.folder
        self._name = digest([str(self._place), str(self._place.folder), sys.prefix])
        self._declaration: Declaration[Any] | None = None
        self._built: torch.nn.Module | None = None
        self._spool: Workspace | None = None
        found = run.store.recall("sources", self._name) or {}
        self._known: list[dict[str, Any]] = found.get("records", [])
        self._record = self._recalled(request.fresh) or self._look()
        self.spec = narrowed(ModelSpec.from_json(self._record["spec"]), request.dims)
        batches.refuse_huge(self.spec)
        plugins = plugin_digest(self.project)
        self.key = digest([trace.key(self._record["model"], self.project), self.spec.to_json(), plugins])

    def _recalled(self, fresh: bool) -> dict[str, Any] | None:
        """The record of the files as they are now. Several are kept, so that going back costs nothing either."""
        for record in self._known if not fresh else ():
            if record["aot"] == toolchain.own_digest() and trace.unchanged(
                record["model"], partial(self._keep, record)
            ):
                self._run.times.append(StageTime("load", 0.0, True))
                return record
        return None

    def _look(self) -> dict[str, Any]:
        """Load the declaration and build the model under watch, and keep what that read."""
        started = time.perf_counter()
        self._run.progress.stage("load", str(self._place))
        loading.enter(self._place)
        with self._watch() as seen:
            declaration = self._load()
            module = self._build()
            spec = declaration.spec()
            if declaration.states:
                from aot.frontend import state

                spec = state.completed(spec, module, declaration.states)
        record = {
            "aot": toolchain.own_digest(),
            "spec": spec.to_json(),
            "model": seen.record(*self._files(declaration)),
        }
        self._keep(record)
        seconds = time.perf_counter() - started
        self._run.times.append(StageTime("load", seconds, False))
        self._run.progress.finished("load", seconds, False)
        return record

    def _watch(self) -> trace.Recorder:
        return trace.Recorder(ignore=self._run.store.root)

    def _remember(self, phase: str, known: Mapping[str, Any]) -> None:
        self._record[phase] = dict(known)
        self._keep(self._record)

    def _keep(self, record: dict[str, Any]) -> None:
        others = [r for r in self._known if r is not record and r["aot"] == record["aot"]]
        self._known = [record, *others][:KEPT]
        self._run.store.remember("sources", self._name, {"records": self._known})

    def _files(self, declaration: Declaration[Any]) -> list[Path]:
        home = Path(inspect.getfile(declaration.build)).parent
        files = [home / name for name in declaration.files]
        for file in files:
            if not file.is_file():
                raise DeclarationError(f"files= names '{file.name}', which is not there", where=str(file))
        return [*files, *([self._place.file] if self._place.file else [])]

    def _load(self) -> Declaration[Any]:
        if self._declaration is None:
            self._declaration = loading.load(self._place)
            with loading.user_code("reading the declaration"):
                self._declaration.spec()
        return self._declaration

    def _build(self) -> torch.nn.Module:
        """The module, in eval mode. Seeded: random weights are the same in every process."""
        if self._built is None:
            declaration = self._load()
            import torch

            _seed()
            with loading.user_code(f"building '{declaration.name}'"):
                made = declaration.build()
            if not isinstance(made, torch.nn.Module):
                code = declaration.build.__code__
                raise DeclarationError(
                    f"'{declaration.name}' returns {_kind(made)}, not a torch.nn.Module",
                    where=f"{code.co_filename}:{code.co_firstlineno}",
                    fix="return the module itself",
                )
            self._built = made.eval()
        return self._built

    def write_onnx(self, folder: Path, replacing: Replacing = NOTHING) -> Mapping[str, Any]:
        """Export the module; it is built first where the record spared that."""
        from aot.frontend import export

        return export.write_module(self._build(), self.spec, folder, self.project, replacing)

    def write_program(self, path: Path, precision: Precision) -> Mapping[str, Any]:
        """Capture the module, its weights converted."""
        from aot.frontend import program

        return program.write_module(self._build(), self.spec, path, precision)

    def eager(self) -> Runner:
        """The module itself, run by torch on the CPU."""
        from aot.frontend.eager import Eager

        return Eager(self._build(), self.spec)

    def read(self) -> Mapping[str, Any]:
        """See Source.read."""
        found: Mapping[str, Any] = self._record["model"]
        return found

    def breaks(self, error: ExportError) -> Sequence[Break]:
        """See Source.breaks: the module is exported once more, past what broke it."""
        from aot.frontend.breaks import breaks

        return breaks(self._build(), self.spec)

    def data_key(self) -> str:
        """Known from the record, or by running `calibration()` once."""
        if not self.spec.has_calibration:
            return digest(["generated", self.spec.to_json()["inputs"]])
        known = self._record.get("data")
        if known is None or not trace.unchanged(known["read"], partial(self._keep, self._record)):
            known = self._take_data()
            self._remember("data", known)
        return str(known["key"])

    def _take_data(self) -> dict[str, Any]:
        """Run `calibration()` once, under watch, into a temporary folder; return what was read and the digest."""
        self._run.progress.stage("load", "calibration data")
        try:
            self._spool = self._run.store.workspace()
        except OSError as error:
            raise self._run.store.refused(error) from error
        self._load()
        contents = []
        with self._watch() as seen:
            for index, batch in enumerate(self._generated()):
                contents.append(batches.digest_of(batch))
                try:
                    arrays.save(self._spool.path / f"{index:05d}.npz", batch)
                except OSError as error:
                    raise self._run.store.refused(error) from error
        return {"key": digest(contents), "read": seen.record(), "count": len(contents)}

    def _generated(self) -> Iterator[Arrays]:
        """The user's batches as they come, each checked. Raises CalibrationError where there is none."""
        declaration = self._load()
        assert declaration.batches is not None
        _seed()
        where = f"{_name(declaration.batches)} of model '{declaration.name}', {self._place}"
        with loading.user_code(f"running {_name(declaration.batches)}"):
            made = declaration.batches()
        if not isinstance(made, Iterable):
            code = getattr(declaration.batches, "__code__", None)
            raise CalibrationError(
                f"{_name(declaration.batches)} returned {_kind(made)}, not batches",
                where=f"{code.co_filename}:{code.co_firstlineno}" if code else where,
                fix=f"yield one batch after another: yield {batches.example(self.spec)}",
            )
        with loading.user_code(f"running {_name(declaration.batches)}"):
            stream = iter(made)
        count, end = 0, object()
        while True:
            with loading.user_code(f"running {_name(declaration.batches)}"):
                batch = next(stream, end)
            if batch is end:
                break
            yield batches.checked(batch, self.spec, f"batch {count} of {where}")
            count += 1
        if not count:
            raise CalibrationError("the calibration data hold no batch", where=where, fix="yield at least one")

    def batches(self) -> Iterator[Arrays] | None:
        """Those that `data_key` kept where it ran `calibration()`; else a run of it."""
        if not self.spec.has_calibration:
            return None
        if self._spool is None:
            return self._generated()
        return (arrays.load(path) for path in sorted(self._spool.path.glob("*.npz")))

    def score(self, run: Runner) -> float | None:
        """Raises DeclarationError for a metric that fails or returns no number."""
        if not self.spec.has_metric:
            return None
        declaration = self._load()
        assert declaration.score is not None
        self._build()
        name = _name(declaration.score)
        _seed()
        with self._watch() as seen, loading.user_code(f"running {name}"):
            value = declaration.score(lambda **inputs: run(batches.checked(inputs, self.spec, f"run() in {name}")))
        known = self._record.get("metric", {})
        self._remember("metric", {"read": seen.record(), "key": known.get("key", "")})
        try:
            return float(value)
        except (TypeError, ValueError):
            raise DeclarationError(
                f"the metric {name} returned {value!r}, not a number", where=str(self._place), fix="return a float"
            ) from None

    def score_key(self) -> str:
        """Empty as long as what the metric read is as it was when it first ran."""
        known = self._record.get("metric")
        if known is None:
            return ""
        if not trace.unchanged(known["read"], partial(self._keep, self._record)):
            now = trace.renewed(known["read"])
            known = {"read": now, "key": trace.key(now, self.project)}
            self._remember("metric", known)
        return str(known["key"])


def _name(function: Any) -> str:
    return f"{getattr(function, '__name__', 'function')}()"


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _seed() -> None:
    """Start every source of randomness at the same place, so that two processes make the same model and data."""
    import random

    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
