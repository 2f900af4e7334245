"""The artifact: a folder (or one `.tar`) with `manifest.json` and everything the engine needs, each with its digest.

    manifest.json   schema version, spec, plan, records (stage, key, facts), digests of every file, tool versions, machine
    graph/          the final ONNX (record QuantizedGraph)
    ranges/         calibration ranges (record Ranges)
    references/     inputs and eager outputs (record References)
    checked/        the comparison of the final graph with eager (record Report)
    engines/TARGET.plan     and TARGET.json beside it: the engine's facts and its report
    report.json, report.html
"""

from __future__ import annotations

from dataclasses import dataclass

from aot.declaration import ModelSpec
from aot.plan import Plan
from aot.records import QuantizedGraph, Ranges, References, Report


@dataclass(frozen=True)
class Prepared:
    """The first half of a build, from the store or from an artifact folder: what an engine is built and judged with."""

    spec: ModelSpec
    plan: Plan
    exported_nodes: int
    final: QuantizedGraph
    ranges: Ranges
    references: References
    checked: Report


def is_artifact(name: str) -> bool:
    """Whether the path is an artifact folder or tar (it holds a manifest)."""
    raise NotImplementedError


def load(name: str) -> Prepared:
    """Read an artifact, checking digests. Raises ArtifactError for a corrupt or foreign manifest."""
    raise NotImplementedError
