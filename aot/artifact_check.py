"""What a manifest must hold inside its records, for whatever reads it later to find it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from aot.config import Hardware

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Inner(BaseModel):
    # Deferred as in `artifact.py`. Facts that nothing here depends on may come and go.
    model_config = ConfigDict(extra="ignore", defer_build=True, strict=True)


class _Value(_Inner):
    name: str
    dtype: str
    shape: list[int | str | None]


class _Io(_Inner):
    inputs: list[_Value]
    outputs: list[_Value]


class _Spec(_Inner):
    name: str
    dims: dict[str, Annotated[list[int], Field(min_length=3, max_length=4)]]
    inputs: dict[str, dict[str, Any]]
    outputs: list[str]
    padding: str | None
    has_calibration: bool
    has_metric: bool
    structure: dict[str, dict[str, Any]] = {}
    states: dict[str, dict[str, str]] = {}


class _Plan(_Inner):
    precision: str
    recipe: dict[str, Any]
    profiles: list[dict[str, Annotated[list[int], Field(min_length=3, max_length=3)]]]
    backend: str | None
    targets: list[str]
    engine: dict[str, Any]
    budget: dict[str, Any]
    verify: dict[str, Any]


class _Decision(_Inner):
    node: str
    op: str
    precision: str
    reason: str
    module: str = ""
    source: str = ""


class _GraphFacts(_Inner):
    nodes: int
    ops: dict[str, int] = {}
    qdq: int = 0
    decisions: list[_Decision] = []
    warnings: list[str] = []


class _Metric(_Inner):
    eager: float
    drop: float


class _GraphMetric(_Metric):
    graph: float


class _Unscored(_Inner):
    ran: Literal[False]


class _ReportFacts(_Inner):
    ran: bool
    reason: str | None = None
    cosine: float | None
    relative_l2: float | None
    max_abs: float | None
    max_rel: float | None = None
    flips: float | None = None
    metric: _Metric | _Unscored | None
    failures: list[str]
    notices: list[str]
    cases: list[dict[str, Any]]


class _CheckedFacts(_ReportFacts):
    metric: _GraphMetric | None


class _Launched(_Inner):
    plugin: str
    nodes: list[str]
    source: Digest
    digests: list[Digest]


class _InEngine(_Launched):
    target: str
    needs_python: bool


class _Stripped(_Inner):
    weights: int


class _EngineFacts(_Inner):
    target: str
    backend: str
    version: str
    file: str
    bytes: int
    sha256: Digest
    kernels: list[_InEngine] = []
    stripped: _Stripped | None = None
    version_compatible: Literal["with", "without"] | None = None
    hardware_compatible: Hardware | None = None


class _Left(_Inner):
    op: str
    why: str


class _Place(_Inner):
    plugin: str
    node: str
    replaced: bool
    why: str


class _AttentionLeft(_Inner):
    why: str
    nodes: list[str]
    told: bool


class _Attention(_Inner):
    formed: list[str]
    left: list[_AttentionLeft]
    places: list[_Place]


class _KernelsFacts(_Inner):
    target: str
    kernels: list[_Launched]
    left: list[_Left]
    attention: _Attention | None = None


class _Kernels(_Inner):
    key: Digest
    facts: _KernelsFacts


class _Graph(_Inner):
    key: Digest
    facts: _GraphFacts


class _Report(_Inner):
    key: Digest
    facts: _ReportFacts


class _Engine(_Inner):
    key: Digest
    facts: _EngineFacts


class _Checked(_Inner):
    key: Digest
    facts: _CheckedFacts


class _Other(_Inner):
    key: Digest
    facts: dict[str, Any]


class _Numbers(_Inner):
    cosine: float | None
    relative_l2: float | None
    missed: str | None


class _Kept(_Inner):
    node: str
    op: str
    module: str
    source: str
    was: str
    kept: str
    operations: float
    without: _Numbers | None


class _Low(_Inner):
    precision: str
    before: Annotated[float, Field(ge=0, le=1)]
    after: Annotated[float, Field(ge=0, le=1)]


class _SearchFacts(_Inner):
    met: bool
    why: str
    kept: list[_Kept]
    before: _Numbers
    after: _Numbers | None
    low: _Low | None
    trials: int
    exhausted: bool


class _Search(_Inner):
    key: Digest
    facts: _SearchFacts


class _Records(_Inner):
    graph: _Graph
    ranges: _Other
    references: _Other
    checked: _Checked
    search: _Search | None = None


class _Candidate(_Inner):
    plan: _Plan
    graph: _Graph
    ranges: _Other
    checked: _Checked
    search: _Search | None = None
    kernels: list[_Kernels] = []
    replaced: list[_Place] = []


class _Built(_Inner):
    engine: _Engine
    report: _Report


class _Gpu(_Inner):
    name: str


class _Machine(_Inner):
    gpu: _Gpu | None = None
    cpu: str | None = None


class _Versions(_Inner):
    aot: str


class _Half(_Inner):
    did: list[Literal["graph", "engines"]]
    versions: _Versions
    machine: _Machine


class _Manifest(_Inner):
    identity: Digest
    io: _Io
    spec: _Spec
    plan: _Plan
    records: _Records
    kernels: list[_Kernels] = []
    replaced: list[_Place] = []
    candidates: list[_Candidate] = []
    engines: list[_Built]
    history: Annotated[list[_Half], Field(min_length=1)]


def check_inner(data: Mapping[str, Any]) -> None:
    """Raise pydantic's ValidationError for the first thing that is missing inside, or is of another type."""
    _Manifest.model_validate(data)
