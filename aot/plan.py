"""What a build will do, decided from the request, the declaration and the machine before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pathlib import Path
from typing import TYPE_CHECKING

from aot.config import Budget, EngineOptions, Precision, Recipe, Request, Verify
from aot.declaration import ModelSpec

if TYPE_CHECKING:
    from aot.artifact import Prepared

Triple = tuple[int, int, int]
Profile = Mapping[str, Triple]


@dataclass(frozen=True)
class Plan:
    """Every decision of a build. profiles: one mapping from Dim name to (min, opt, max) per optimization profile.

    backend None and targets empty: nothing here can build an engine, so the result is a prepared artifact.
    """

    precision: Precision
    recipe: Recipe
    profiles: tuple[Profile, ...]
    backend: str | None
    targets: tuple[str, ...]
    engine: EngineOptions
    budget: Budget
    verify: Verify


def decide(request: Request, spec: ModelSpec, project: Path) -> Plan:
    """Settle recipe, profiles, backend and targets. Raises UsageError, ProfileError or TargetError."""
    raise NotImplementedError


def decide_finish(request: Request, prepared: Prepared) -> Plan:
    """The plan of the second half: the prepared one, with this machine's backend and targets and the request's
    overrides. Raises UsageError where the request contradicts what was prepared (another precision)."""
    raise NotImplementedError
