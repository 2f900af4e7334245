"""TensorRT-RTX: builds without a GPU, one plan a target. Runs on RTX GPUs only, so here mostly «built, not run».

The compute capabilities are those of the module's `ComputeCapability` enumeration (1.7), kept as a constant so
that a decision need not import the module. Kernels are chosen when the engine is loaded: there is nothing to
time while building, and timing caches do not apply.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from aot.backends._nvinfer import Nvinfer
from aot.config import Precision
from aot.errors import EngineError, TargetError
from aot.runtime import vendors
from aot.targets import check_precision
from aot.toolchain import Machine

TARGETS = ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121")


class TensorRtRtx(Nvinfer):
    """See the module's docstring."""

    name = "tensorrt_rtx"
    title = vendors.TITLES[name]

    def targets(self, machine: Machine) -> tuple[str, ...]:
        """Every target it knows, this machine's GPU first."""
        here = machine.gpu.target if machine.gpu else None
        return tuple(sorted(TARGETS, key=lambda target: target != here)) if self.version() else ()

    def suits(self, precision: Precision, target: str) -> None:
        """See Backend.suits."""
        if target not in TARGETS:
            raise TargetError(
                f"TensorRT-RTX does not build for {target}",
                where=f"--target {target}",
                fix=f"it builds for {', '.join(TARGETS)}; for {target} use TensorRT: --until graph here, then "
                "aot build on the prepared artifact on a machine with that GPU",
            )
        check_precision(precision, target)

    def check(self, precision: Precision, target: str, machine: Machine) -> None:
        """See Backend.check."""
        if self.version() is None:
            raise TargetError(
                "TensorRT-RTX is not installed",
                where=f"--target {target}",
                fix="pip install tensorrt-rtx-cu13, or --until graph here and finish on the machine with the GPU",
            )
        self.suits(precision, target)

    def aim(self, trt: ModuleType, config: Any, target: str) -> None:
        """One compute capability a plan."""
        capability = getattr(trt.ComputeCapability, target.upper(), None)
        config.num_compute_capabilities = 1
        if capability is None or not config.set_compute_capability(capability, 0):
            raise EngineError(
                f"TensorRT-RTX {self.version()} does not know {target}", fix="pip install -U tensorrt-rtx-cu13"
            )

    def can_run(self, target: str, machine: Machine, hardware: str | None = None) -> str | None:
        """See Backend.can_run."""
        if machine.gpu is not None and machine.gpu.target not in TARGETS:
            return f"TensorRT-RTX does not run on {machine.gpu.target}"
        return super().can_run(target, machine, hardware)


BACKEND = TensorRtRtx()
