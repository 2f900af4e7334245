"""TensorRT 10.6 to 11: times kernels on the GPU it builds for, so it builds only where that GPU is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aot import toolchain
from aot.backend import Launching
from aot.backends import _plugin_v3
from aot.backends._engine_layers import tactics
from aot.backends._nvinfer import Nvinfer
from aot.config import EngineOptions, Precision
from aot.errors import TargetError
from aot.records import TACTICS
from aot.runtime import plugin_v3, vendors
from aot.targets import CPU, check_precision
from aot.toolchain import Machine, release

if TYPE_CHECKING:
    from aot.runtime.kernels import Compiled

OLDEST = (10, 6)
AHEAD_OF_TIME = (10, 9)
"""The first TensorRT whose engines hold kernels of plugins and launch them without Python."""
_ELSEWHERE = "--until graph here and aot build on the prepared artifact there, or --backend tensorrt_rtx"


class TensorRt(Nvinfer):
    """See the module's docstring."""

    name = "tensorrt"
    title = vendors.TITLES[name]

    def targets(self, machine: Machine) -> tuple[str, ...]:
        """This machine's GPU."""
        return (machine.gpu.target,) if machine.gpu and self.version() else ()

    def suits(self, precision: Precision, target: str) -> None:
        """See Backend.suits."""
        if target == CPU:
            raise TargetError("TensorRT builds for GPUs", where="--target cpu", fix="--backend onnxruntime")
        check_precision(precision, target)

    def check(self, precision: Precision, target: str, machine: Machine) -> None:
        """See Backend.check."""
        version, where = self.version(), f"--backend tensorrt --target {target}"
        if machine.gpu is None:
            raise TargetError("TensorRT builds on the GPU it builds for, and here is none", where=where, fix=_ELSEWHERE)
        if version is None:
            raise TargetError(
                "TensorRT is not installed", where=where, fix="pip install tensorrt, or --backend tensorrt_rtx"
            )
        if release(version) < OLDEST:
            raise TargetError(
                f"TensorRT {version} is too old", where=where, fix=f"install {'.'.join(map(str, OLDEST))} or later"
            )
        if target != machine.gpu.target:
            raise TargetError(
                f"TensorRT builds on the GPU it builds for: this is {machine.gpu.name} ({machine.gpu.target})",
                where=where,
                fix=_ELSEWHERE,
            )
        check_precision(precision, target)

    def parses(self) -> bool:
        """Its parser needs a builder, and a builder a GPU."""
        return bool(self.targets(toolchain.machine()))

    def start(self) -> tuple[ModuleType, Any]:
        """Also registers plugins: the vendor's own, which its parser uses for ops such as RoiAlign, and ours."""
        trt, log = super().start()
        trt.init_libnvinfer_plugins(log, "")
        if self.launches(self.version()) == "python":
            plugin_v3.register(trt)
        return trt, log

    def launches(self, version: str | None) -> Launching | None:
        """See Backend.launches."""
        return "python" if version is not None and release(version) < AHEAD_OF_TIME else "ahead"

    def with_kernels(self, graph: Path, kernels: Mapping[str, Sequence[Compiled]], folder: Path) -> Path:
        """See Backend.with_kernels."""
        trt, _ = self.start()
        if self.launches(self.version()) == "python":
            return _plugin_v3.prepare(trt, graph, kernels, folder)
        from aot.backends import _quick_plugin

        return _quick_plugin.prepare(trt, graph, kernels, folder)

    def aim(self, trt: ModuleType, config: Any, target: str) -> None:
        """Nothing to say: the builder takes the GPU it runs on."""

    def origin(self) -> Mapping[str, str] | None:
        """The GPU and driver whose kernels were timed."""
        machine = toolchain.machine()
        return {"gpu": machine.gpu.name, "driver": machine.driver or "unknown"} if machine.gpu else None

    def look(self, trt: ModuleType, log: Any, plan: Path, options: EngineOptions) -> None:
        """See Nvinfer.look: a builder is where the GPU is."""
        runtime = trt.Runtime(log)
        if options.version_compatible and options.lean_runtime:
            runtime.engine_host_code_allowed = True
        engine = runtime.deserialize_cuda_engine(plan.read_bytes())
        if engine is not None:  # else the comparison says why
            plan.with_suffix(TACTICS).write_text(json.dumps(tactics(trt, engine), indent=1))

    def cache_name(self) -> str:
        """Timings hold for one TensorRT, GPU and driver."""
        origin = self.origin() or {}
        return f"tensorrt {self.version()} {origin.get('gpu')} {origin.get('driver')}"


BACKEND = TensorRt()
