"""What a build will do, decided from the request, the declaration and the machine before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot.config import Budget, EngineOptions, Precision, Recipe, Request, Verify
from aot.declaration import ModelSpec

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


def decide(request: Request, spec: ModelSpec) -> Plan:
    """Settle recipe, profiles, backend and targets. Raises UsageError, ProfileError or TargetError."""
    raise NotImplementedError
