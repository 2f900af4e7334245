"""Plans without weights, for later TensorRT, and for other GPUs: what the builder is told, and what is kept of it.

A stripped plan is built with REFIT_INDIVIDUAL, which leaves the vendor every fusion that does not depend on the weights
named here. REFIT alone makes every constant one that may change, and REFIT_IDENTICAL takes no others than those that it
was built with, so that fine-tunes could not share a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from aot.backend import Job
from aot.errors import EngineError


def configure(trt: ModuleType, network: Any, config: Any, job: Job) -> None:
    """Set the flags that the job's options ask for. Raises EngineError for a weight that cannot leave the plan."""
    options, flags = job.options, trt.BuilderFlag
    if options.strip:
        for name in job.leaving:
            if not network.mark_weights_refittable(name):
                raise EngineError(
                    f"weight '{name}' cannot leave the plan: TensorRT does not know it by that name",
                    where=str(job.graph),
                    fix="leave --strip away",
                )
        config.set_flag(flags.STRIP_PLAN)
        config.set_flag(flags.REFIT_INDIVIDUAL)
    if options.version_compatible:
        config.set_flag(flags.VERSION_COMPATIBLE)
        if not options.lean_runtime:
            config.set_flag(flags.EXCLUDE_LEAN_RUNTIME)
    if options.hardware_compatible is not None:
        level = getattr(trt.HardwareCompatibilityLevel, options.hardware_compatible.upper())
        config.hardware_compatibility_level = level


def facts(job: Job) -> Mapping[str, Any]:
    """What an engine's facts say of it (see records.Engine); nothing of a plain one."""
    options = job.options
    found: dict[str, Any] = {}
    if options.strip:
        found["stripped"] = {"weights": len(job.leaving)}
    if options.version_compatible:
        found["version_compatible"] = "with" if options.lean_runtime else "without"
    if options.hardware_compatible is not None:
        found["hardware_compatible"] = options.hardware_compatible
    return found
