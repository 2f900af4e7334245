"""What TensorRT and TensorRT-RTX share: one builder code over two modules with the same API.

The network is strongly typed: every tensor has the dtype that the ONNX graph gives it, INT8 and FP8 come
from explicit Q/DQ. No precision flag and no calibrator is ever touched, so one code serves 10.6 to 11.
"""

from __future__ import annotations

import re
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from aot import profile as shapes_of
from aot import toolchain
from aot.backend import Backend, Job, Session, Unsupported
from aot.backends import _graph, _slim
from aot.backends._build import make_monitor, supervised, useful
from aot.backends._refusals import Said, reason, refusals
from aot.config import EngineOptions
from aot.declaration import ModelSpec
from aot.errors import EngineError, GraphError, LockError, ProfileError
from aot.profile import Profile
from aot.progress import Progress
from aot.records import TIMING
from aot.runtime import plugin_v3, vendors
from aot.runtime.fits import gpu_fits, meant_for
from aot.runtime.log import last_lines, make_log
from aot.toolchain import Machine

if TYPE_CHECKING:
    from aot.timing_cache import TimingCaches


class Nvinfer(Backend):
    """A backend over one of the two vendor modules."""

    suffix = ".plan"

    def module(self) -> ModuleType:
        """The vendor's module. Raises EngineError where its libraries do not load."""
        return vendors.module(self.name)

    def version(self) -> str | None:
        """See Backend.version."""
        return vendors.version(self.name)

    def start(self) -> tuple[ModuleType, Any]:
        """The module, and a log for one build or one session."""
        trt = self.module()
        return trt, make_log(trt)

    @abstractmethod
    def aim(self, trt: ModuleType, config: Any, target: str) -> None:
        """Tell the builder what GPU to build for."""

    def origin(self) -> Mapping[str, str] | None:
        """The GPU and driver that took part in the build; None where none did."""
        return None

    def parses(self) -> bool:
        """Whether the vendor's parser can be asked on this machine."""
        return self.version() is not None

    def judge(self) -> str:
        """See Backend.judge."""
        return "parser" if self.parses() else "table"

    def unsupported(self, graph: Path) -> list[Unsupported]:
        """What the parser refuses, and what is known to pass it and fail in the builder."""
        from aot.backends import _operators

        model = _graph.load(graph)
        known = _operators.unsupported(model, self.name, parsed=self.parses())
        if not self.parses():
            return known
        trt, log = self.start()
        builder = self._builder(trt, log)

        def parse(model: bytes | None = None) -> Said | None:
            log.errors.clear()
            network = builder.create_network(_typed(trt))  # must live as long as the parser
            parser = trt.OnnxParser(network, log)
            if parser.parse_from_file(str(graph)) if model is None else parser.parse(model, str(graph)):
                return None
            if not parser.num_errors:
                return Said(-1, "", "", last_lines(log.errors))
            error = parser.get_error(0)
            return Said(error.node(), error.node_name(), error.node_operator(), error.desc())

        first = parse()
        if first is None:
            return known
        plugin_v3.raise_kept()
        told = [_operators.told(node, said.op, reason(said.text)) for node, said in refusals(model, first, parse)]
        return known + [found for found in told if found.node not in {other.node for other in known}]

    def build(self, job: Job, plan: Path, caches: TimingCaches | None, progress: Progress) -> Mapping[str, Any]:
        """See Backend.build. Raises GraphError, ProfileError or EngineError; KeyboardInterrupt ends it early."""
        trt, log = self.start()
        builder = self._builder(trt, log)
        network, parser = self._parse(trt, builder, log, job.graph)
        config = builder.create_builder_config()
        config.builder_optimization_level = job.options.optimization_level
        if job.options.workspace_mib is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, job.options.workspace_mib << 20)
        # On by default in the vendor's builder.
        (config.set_flag if job.options.tf32 else config.clear_flag)(trt.BuilderFlag.TF32)
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # layer names, for `aot inspect`
        self.aim(trt, config, job.target)
        _slim.configure(trt, network, config, job)
        values = [one.name for one in map(network.get_input, range(network.num_inputs)) if one.is_shape_tensor]
        for index, profile in enumerate(job.profiles):
            self._add_profile(builder, network, config, job.spec, profile, index)

        cache = self.cache_name()
        if job.timings is not None:
            self._lock(trt, config, job.timings)
        lease = None
        if caches is not None and cache is not None and job.timings is None:
            lease = caches.attach(config, cache, progress)
        stop = threading.Event()
        monitor = make_monitor(trt, stop)
        config.progress_monitor = monitor
        started = time.perf_counter()
        serialized = supervised(
            lambda: builder.build_serialized_network(network, config), lambda: monitor.state, stop, progress
        )
        seconds = time.perf_counter() - started
        for message in useful(log.warnings):
            progress.warn(f"{self.title}: {message}")
        if serialized is None:
            plugin_v3.raise_kept()
            if job.timings is not None:
                raise LockError(
                    f"{self.title} cannot build with the locked tactics alone: {last_lines(log.errors, 3)}",
                    where=f"engine {job.target}",
                    fix="build without --locked, which times what the cache lacks and writes a new lock",
                )
            self._refused(job, log.errors)
        with plan.open("wb") as file:
            file.write(memoryview(serialized))
        del parser  # the network holds memory of the parser's until here
        saved = lease is not None and lease.save()
        if lease is not None:
            lease.write(plan.with_suffix(TIMING))
        elif job.timings is not None:
            plan.with_suffix(TIMING).write_bytes(job.timings)
        self.look(trt, log, plan, job.options)
        facts: dict[str, Any] = {
            **_slim.facts(job),
            **({"shape_inputs": values} if values else {}),
            "origin": self.origin(),
            "builder_seconds": round(seconds, 3),
            "timing_cache": "does not apply",
        }
        if cache is not None:
            warm = job.timings is not None or (lease is not None and lease.warm)
            facts["timing_cache"] = {"used": warm, "saved": saved}
        return facts

    def look(self, trt: ModuleType, log: Any, plan: Path, options: EngineOptions) -> None:
        """Write the tactics of the engine beside it, where this machine can load it."""

    def cache_name(self) -> str | None:
        """What a timing cache is kept under; None for a builder that times nothing."""
        return None

    def _lock(self, trt: ModuleType, config: Any, timings: bytes) -> None:
        """Let the builder take tactics from this cache, and time none.

        Raises LockError where it is for another GPU or version.
        """
        cache = config.create_timing_cache(timings)
        if cache is None or not config.set_timing_cache(cache, False):
            raise LockError(
                f"{self.title} {self.version()} does not take the locked timing cache: it is for another GPU",
                fix="build where it was locked, or without --locked",
            )
        config.set_flag(trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)

    def _builder(self, trt: ModuleType, log: Any) -> Any:
        try:
            return trt.Builder(log)
        except (TypeError, RuntimeError) as error:  # pybind11 reports a null builder as a TypeError
            raise EngineError(
                f"{self.title} cannot make a builder here: {last_lines(log.errors) or error}",
                fix="aot doctor says what this machine can build",
            ) from error

    def _parse(self, trt: ModuleType, builder: Any, log: Any, graph: Path) -> tuple[Any, Any]:
        """The network and the parser that owns its weights. Raises GraphError for what the parser refuses."""
        network = builder.create_network(_typed(trt))
        parser = trt.OnnxParser(network, log)
        if not parser.parse_from_file(str(graph)):
            plugin_v3.raise_kept()
            said = parser.get_error(0).desc() if parser.num_errors else last_lines(log.errors) or "it gives no reason"
            raise GraphError(f"{self.title} cannot read the graph: {said}", where=str(graph))
        return network, parser

    def _add_profile(
        self, builder: Any, network: Any, config: Any, spec: ModelSpec, profile: Profile, index: int
    ) -> None:
        made = builder.create_optimization_profile()
        for position in range(network.num_inputs):
            tensor = network.get_input(position)
            shape = tuple(tensor.shape)
            declared = spec.inputs.get(tensor.name)
            if declared is None:
                if -1 in shape or tensor.is_shape_tensor:
                    raise ProfileError(f"graph input '{tensor.name}' is not declared, so nothing bounds its size")
                continue
            if tensor.is_shape_tensor:
                volume = 1
                for size in shape:
                    volume *= size
                low, opt, high = shapes_of.values(tensor.name, declared, volume)
                made.set_shape_input(tensor.name, low, opt, high)
            elif -1 in shape:
                low, opt, high = shapes_of.shapes(declared, profile, shape)
                made.set_shape(tensor.name, low, opt, high)
        if config.add_optimization_profile(made) < 0:
            raise ProfileError(f"{self.title} refuses optimization profile {index + 1}", where=str(dict(profile)))

    def _refused(self, job: Job, errors: list[str]) -> NoReturn:
        text = "\n".join(errors)
        named = _graph.blamed(_graph.load_structure(job.graph).graph, text)
        reason = last_lines(errors, 3) or "it gives no reason"
        raise EngineError(
            f"{self.title} {self.version()} could not build the engine for {job.target}: {reason}",
            where=named,
            fix=_advice(text),
        )

    def can_run(self, target: str, machine: Machine, hardware: str | None = None) -> str | None:
        """See Backend.can_run."""
        if machine.gpu is None:
            return "no GPU on this machine"
        if self.version() is None:
            return f"{self.title} is not installed"
        if not gpu_fits(target, machine.gpu.target, hardware):
            return f"it is for {meant_for(target, hardware)} and this machine has {machine.gpu.target}"
        return None

    def open(self, plan: Path, spec: ModelSpec, profiles: Sequence[Profile], weights: Path | None = None) -> Session:
        """See Backend.open."""
        from aot.backends._session import open_engine

        return open_engine(self, plan, spec, profiles, toolchain.machine(), weights)


_ADVICE = (
    ("HW-specific datatypes", "choose a precision that the target has: int8 or fp16"),
    (
        "out of memory|OutOfMemory|insufficient memory",
        "lower a profile's max, or set engine.workspace_mib in a profile file",
    ),
    (
        "nvinfer_lean",
        "install the lean runtime of the same version (pip install tensorrt-lean), or build with --no-lean-runtime",
    ),
    ("kMIN|kMAX|kOPT|optimization profile", "check the ranges with which the Dims enter the profile"),
    (
        "find any implementation|fallback kernel|NVRTC|dedicated kernel",
        "keep the node wide (placement.keep in a calibration recipe), or build with --precision fp16 to see whether "
        "the quantization is to blame",
    ),
)


def _advice(text: str) -> str:
    for pattern, advice in _ADVICE:
        if re.search(pattern, text):
            return advice
    return "build with --precision fp32: where that builds too, the precision is to blame; else the node above is"


def _typed(trt: ModuleType) -> int:
    """The flags of a strongly typed network. From 11 on every network is, and the flag may be gone."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)
