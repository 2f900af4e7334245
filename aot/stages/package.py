"""Stage: put everything a build came to into one artifact, and sum it up."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot import lock, sbom, toolchain
from aot.artifact import (
    CandidatePart,
    EnginePart,
    Half,
    Manifest,
    Prepared,
    RecordPart,
    Records,
)
from aot.artifact_write import Contents, is_accepted, is_current, sweep, write
from aot.config import AUTO_PRECISION
from aot.profile import as_json
from aot.records import TACTICS, TIMING, Engine, Record, Report
from aot.report.search import sentences
from aot.run import Run, StageTime
from aot.runtime.files import SCHEMA, damaged, json_of
from aot.runtime.kernels import LAUNCHED
from aot.runtime.refit import WEIGHTS
from aot.stages.verify import rejudge
from aot.store import FACTS, digest

if TYPE_CHECKING:
    from aot.plan import Plan


@dataclass(frozen=True)
class Result:
    """What a build came to. `accepted` decides between exit codes 0 and 1; `summary` is what `--json` prints."""

    artifact: Path
    accepted: bool
    summary: dict[str, Any]


FORMS = ("stripped", "version_compatible", "hardware_compatible", "shape_inputs")
"""What the facts of an engine say only where it is another than the plain one (see records.Engine)."""


def package(
    run: Run, prepared: Prepared, plan: Plan, engines: Sequence[Engine], reports: Sequence[Report], output: Path | None
) -> Result:
    """Write the artifact (`NAME.aot` in the current folder by default) unless it is there already, unchanged.

    A build that misses its budget does not replace an artifact that kept its own: it is written beside it, as
    `NAME.rejected.aot`. Raises ArtifactError where the output is something else than an artifact or the disk refuses.
    """
    started = time.perf_counter()
    run.progress.stage("package")
    target = output or Path(f"{prepared.spec.name}.aot")
    built = [*zip(engines, reports, strict=True), *_kept(run, prepared, plan, engines)]
    reasons = [f"graph: {reason}" for reason in rejudge(prepared.checked.facts, plan.budget)]
    for engine, report in built:
        reasons += [f"engine {engine.target}: {reason}" for reason in rejudge(report.facts, plan.budget)]
    reasons += [f"not what was locked: {one}" for one in run.ledger.tactics(engines)]

    identity = _identity(prepared, plan, built)
    notices = []
    if reasons and is_accepted(target):
        kept, target = target, target.with_name(f"{target.stem}.rejected{target.suffix}")
        notices.append(f"{kept} is an accepted artifact and was kept; this build misses its budget and is in {target}")
        run.progress.warn(notices[0])
    current = is_current(target, identity)
    times = [*run.times]
    summary = summarize(prepared, plan, built, reasons, times)
    if current:
        sweep(target)
    else:
        try:
            contents = _contents(run, prepared, plan, built, summary, identity)
        except OSError as error:
            raise run.store.unreadable(error) from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if not prepared.history:  # all of it was made here
                raise
            said = f"a report does not say what its page shows: {error!r}"
            raise damaged(prepared.final.path.parent, said) from error
        current = not write(target, contents, run.store)

    if run.ledger.to is not None:
        lock.write(run.ledger.to, _lock(run, prepared, plan, built), engines)

    seconds = time.perf_counter() - started
    run.times.append(StageTime("package", seconds, current))
    run.progress.finished("package", seconds, current, str(target))
    summary["warnings"] += notices
    summary["stages"] = [asdict(stage) for stage in run.times]
    return Result(target, not reasons, {"artifact": str(target), **summary})


def _kept(run: Run, prepared: Prepared, plan: Plan, engines: Sequence[Engine]) -> list[tuple[Engine, Report]]:
    """Engines for other targets that the artifact already held; dropped where profiles or options changed."""
    fresh = {engine.target for engine in engines}
    old = [(engine, report) for engine, report in prepared.engines if engine.target not in fresh]
    if old and (plan.profiles != prepared.plan.profiles or plan.engine != prepared.plan.engine):
        names = ", ".join(engine.target for engine, _ in old)
        run.progress.warn(f"the engines for {names} were built with other profiles or options and are left out")
        return []
    return old


def summarize(
    prepared: Prepared,
    plan: Plan,
    built: Sequence[tuple[Engine, Report]],
    reasons: Sequence[str],
    times: Sequence[StageTime],
) -> dict[str, Any]:
    """What `aot build --json` prints, without the artifact's own path."""
    final = prepared.final.facts
    checked = prepared.checked.facts
    warnings = [*(sentences(prepared.search.facts) if prepared.search is not None else []), *final.get("warnings", ())]
    warnings += prepared.notices
    for report in [prepared.checked, *(report for _, report in built)]:
        warnings += [notice for notice in report.facts["notices"] if notice not in warnings]
    rows = []
    for engine, report in built:
        rows.append(
            {
                "target": engine.target,
                "backend": engine.facts["backend"],
                "version": engine.facts["version"],
                "file": f"engines/{_engine_file(engine)}",
                "sha256": engine.facts["sha256"],
                "bytes": engine.facts["bytes"],
                "seconds": engine.entry.seconds,
                "cached": engine.entry.cached,
                "verification": _numbers(report),
                **{form: engine.facts[form] for form in FORMS if form in engine.facts},
            }
        )
    return {
        "precision": AUTO_PRECISION if prepared.candidates else plan.precision,
        "choice": None if prepared.choice is None else prepared.choice.to_json(),
        "route": plan.route,
        "backend": plan.backend,
        "accepted": not reasons,
        "reasons": list(reasons),
        "engines": rows,
        "nodes": {"exported": prepared.exported_nodes, "final": prepared.final.nodes},
        "quantized": {"ops": sum(dict(final.get("ops", {})).values()), "qdq": final.get("qdq", 0)},
        "quantized_ops": dict(final.get("ops", {})),
        "verification": {
            "graph": _numbers(prepared.checked) | {"metric": checked.get("metric")},
            "engine": _worst_engine([report for _, report in built]),
        },
        "budget": plan.budget.model_dump(exclude_none=True),
        "search": None if prepared.search is None else dict(prepared.search.facts),
        "replaced": [dict(place) for place in prepared.replaced],
        "stages": [asdict(stage) for stage in times],
        "warnings": warnings,
    }


def _numbers(report: Report) -> dict[str, Any]:
    names = ("ran", "reason", "cosine", "relative_l2", "max_abs", "max_rel", "flips")
    return {name: report.facts.get(name) for name in names} | {"cases": len(report.facts["cases"])}


def _worst_engine(reports: Sequence[Report]) -> dict[str, Any]:
    """One answer for all engines: the least cosine of those that ran; where none ran, why not."""
    if not reports:
        return {"ran": False, "reason": "not built: no target was asked for and this machine has none"}
    ran = [report for report in reports if report.facts["ran"]]
    if not ran:
        return _numbers(reports[0])
    return _numbers(min(ran, key=lambda report: report.facts["cosine"] if report.facts["cosine"] is not None else 1.0))


def _identity(prepared: Prepared, plan: Plan, built: Sequence[tuple[Engine, Report]]) -> str:
    return digest(
        {
            "aot": toolchain.own_digest(),
            "spec": prepared.spec.to_json(),
            "plan": plan.to_json(),
            "nodes": prepared.exported_nodes,
            "records": {name: record.key for name, record in _files_of(prepared).items()},
            "choice": None if prepared.choice is None else prepared.choice.to_json(),
            "candidates": [
                [one.plan.to_json(), *(record.key for record in _files_of(one).values())] for one in prepared.candidates
            ],
            "engines": [[engine.key, engine.facts["sha256"], report.key] for engine, report in built],
        }
    )


def _records(prepared: Prepared) -> dict[str, Record]:
    records: dict[str, Record] = {
        "graph": prepared.final,
        "ranges": prepared.ranges,
        "references": prepared.references,
        "checked": prepared.checked,
    }
    return records if prepared.search is None else records | {"search": prepared.search}


def _files_of(prepared: Prepared) -> dict[str, Record]:
    """Every record by the folder that holds its files, kernels too."""
    return {**_records(prepared), **{f"kernels/{one.target}": one for one in prepared.kernels}}


def _own_records(candidate: Prepared) -> dict[str, Record]:
    """What a candidate has of its own: the references are those of the whole artifact."""
    return {name: record for name, record in _records(candidate).items() if name != "references"}


def _files(records: Mapping[str, Record], prefix: str = "") -> dict[str, Path]:
    """Every file of the records, by its name in the artifact."""
    return {
        f"{prefix}{name}/{path.relative_to(record.path)}": path
        for name, record in records.items()
        for path in sorted(record.path.rglob("*"))
        if path.is_file() and path.name != FACTS
    }


def _engine_file(engine: Engine) -> str:
    """An engine's name under `engines/`: `sm89.plan`."""
    return f"{engine.target}{Path(str(engine.facts['file'])).suffix}"


def _contents(
    run: Run,
    prepared: Prepared,
    plan: Plan,
    built: Sequence[tuple[Engine, Report]],
    summary: Mapping[str, Any],
    identity: str,
) -> Contents:
    from aot.report.io import describe_io
    from aot.report.render import render

    copies = _files(_files_of(prepared))
    for one in prepared.candidates:
        own = {name: record for name, record in _files_of(one).items() if name != "references"}
        copies |= _files(own, f"candidates/{one.plan.precision}/")
    texts: dict[str, str] = {}
    parts: list[EnginePart] = []
    details: dict[str, Any] = {}
    for engine, report in built:
        file = _engine_file(engine)
        copies[f"engines/{file}"] = engine.plan
        for beside in map(engine.plan.with_suffix, (TIMING, LAUNCHED, TACTICS)):
            if beside.is_file():
                copies[f"engines/{beside.name}"] = beside
        if engine.weights is not None:
            copies[f"engines/{WEIGHTS}"] = engine.weights
        facts = {**engine.facts, "file": file}
        details[engine.target] = report_detail(report, engine.target)
        texts[f"engines/{engine.target}.json"] = _text({"engine": facts, "report": details[engine.target]})
        parts.append(EnginePart(engine=_part(engine, facts), report=_part(report)))

    history = _history(run, prepared, plan, bool(parts))
    texts[lock.LOCK] = _lock(run, prepared, plan, built)
    texts[sbom.SBOM] = _text(_bill(prepared, history, built, json.loads(texts[lock.LOCK])["digests"]["graph"]))
    io = describe_io(prepared.final, prepared.spec)
    report_data = {
        "model": prepared.spec.name,
        **summary,
        "profiles": as_json(plan.profiles),
        "io": io,
        "graph": report_detail(prepared.checked, None),
        "engine_reports": details,
        "decisions": list(prepared.final.facts.get("decisions", ())),
        "steps": list(prepared.final.facts.get("steps", ())),
        "layers": _layers(prepared),
        "kernels": [dict(one.facts) for one in prepared.kernels],
        "launched": {engine.target: _launched(engine) for engine, _ in built},
        "identity": identity,
        "records": {name: record.key for name, record in _records(prepared).items()},
        "history": [half.model_dump(mode="json") for half in history],
    }
    texts["report.json"] = _text(report_data)
    texts["report.html"] = render(report_data)
    manifest = Manifest(
        schema_version=SCHEMA,
        kind="full" if parts else "prepared",
        name=prepared.spec.name,
        identity=identity,
        accepted=bool(summary["accepted"]),
        spec=prepared.spec.to_json(),
        plan=plan.to_json(),
        exported_nodes=prepared.exported_nodes,
        io=io,
        records=Records(**{name: _part(record) for name, record in _records(prepared).items()}),
        kernels=[_part(one) for one in prepared.kernels],
        replaced=[dict(place) for place in prepared.replaced],
        choice=None if prepared.choice is None else prepared.choice.to_json(),
        candidates=[
            CandidatePart(
                plan=one.plan.to_json(),
                kernels=[_part(found) for found in one.kernels],
                replaced=[dict(place) for place in one.replaced],
                **{name: _part(record) for name, record in _own_records(one).items()},
            )
            for one in prepared.candidates
        ],
        engines=parts,
        history=history,
        files={},
    )
    return Contents(manifest, copies, texts)


def report_detail(report: Report, target: str | None) -> dict[str, Any]:
    """A report in full: from its store entry, or from beside the engine in an artifact. Raises ArtifactError."""
    own, beside = report.path / "report.json", report.path / f"{target}.json"
    if own.is_file():
        return _object(json_of(own), own)
    return _object(_object(json_of(beside), beside).get("report"), beside)


def _object(found: Any, file: Path) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise damaged(file, "it does not hold a report")
    return found


def _part(record: Record, facts: Mapping[str, Any] | None = None) -> RecordPart:
    return RecordPart(stage=record.entry.stage, key=record.key, facts=dict(facts or record.facts))


def _layers(prepared: Prepared) -> dict[str, Any] | None:
    """The errors by layer that the search for nodes to keep wide began with; None where there was none."""
    if prepared.search is None:
        return None
    found: dict[str, Any] = json_of(prepared.search.path / "layers.json")
    return found


def _launched(engine: Engine) -> dict[str, Any]:
    """What is ours inside an engine: kernels, and what its attention became."""
    names = ("kernels", "attention_operators", "attention_kernels")
    return {name: engine.facts[name] for name in names if engine.facts.get(name)}


def _lock(run: Run, prepared: Prepared, plan: Plan, built: Sequence[tuple[Engine, Report]]) -> str:
    return run.ledger.text(plan, prepared.spec.name, prepared.final, [engine for engine, _ in built])


def _bill(
    prepared: Prepared, history: Sequence[Half], built: Sequence[tuple[Engine, Report]], graph: str
) -> dict[str, Any]:
    """The bill of materials: what any of the machines had a part in it with, and what the model is made of.

    graph: digest of the final graph.
    """
    packages = [one for half in history for part in (half.versions, half.packages) for one in part.items()]
    sources = {path: sha256 for half in history for path, sha256 in half.sources.items()}
    plugins = {
        f"plugins/{name}.py": sha256 for engine, _ in built for name, sha256 in engine.facts.get("plugins", {}).items()
    }
    others = [(name, version) for name, version in packages if name != "aot"]
    return sbom.bill(prepared.spec.name, _aot_version(), others, sources | plugins, graph)


def _history(run: Run, prepared: Prepared, plan: Plan, with_engines: bool) -> list[Half]:
    """This machine's part, after what a loaded artifact says of the machines before it."""
    did = [name for name, here in (("graph", not prepared.history), ("engines", with_engines)) if here]
    if not did:
        return list(prepared.history)
    found = {name: toolchain.version(name) for name in lock.TOOLS}
    known = run.ledger.known(plan)
    here = Half(
        did=did,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"aot": _aot_version()} | {name: version for name, version in found.items() if version is not None},
        machine=asdict(toolchain.machine()),
        command=run.command,
        sources=dict(known["sources"] or {}),
        packages={name: version for name, version in (known["packages"] or {}).items() if version is not None},
        stages=[asdict(stage) for stage in run.times],
    )
    return [*prepared.history, here]


def _aot_version() -> str:
    import aot

    return aot.__version__


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, sort_keys=False)
