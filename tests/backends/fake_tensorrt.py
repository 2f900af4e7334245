"""A stand-in for the module `tensorrt`, for machines without it: everything up to the vendor's own work.

It holds the names that both 10.6 and 11 have, so that touching a removed one (a precision flag, a calibrator)
is an AttributeError, and records what is asked of it. What the real builder makes of it is seen on a GPU.
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest

from aot import toolchain
from aot.runtime import plugin_v3
from aot.toolchain import Gpu, Machine
from tests.backends import fake_plugins

H200 = Machine(Gpu("NVIDIA H200", "sm90", 141 << 30), "580.65.06", "a CPU")


class Severity(enum.IntEnum):
    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)


class ILogger:
    Severity = Severity

    def __init__(self) -> None: ...


class IProgressMonitor:
    def __init__(self) -> None: ...


class Cache:
    """An ITimingCache whose content is a set of lines; `gpu:` lines of another GPU make it foreign."""

    def __init__(self, lines: set[bytes]) -> None:
        self.lines = lines

    def combine(self, other: Cache, ignore_mismatch: bool) -> bool:
        assert ignore_mismatch is False
        self.lines |= other.lines
        return True

    def serialize(self) -> bytes:
        return b"\n".join(sorted(self.lines))


class Config:
    """An IBuilderConfig: only these attributes can be set."""

    __slots__ = (
        *("builder_optimization_level", "cache", "flags", "limits", "profiles"),
        *("hardware_compatibility_level", "profiling_verbosity", "progress_monitor"),
    )

    def __init__(self) -> None:
        self.flags = {"tf32"}  # as in the vendor's
        self.limits: dict[str, int] = {}
        self.profiles: list[Any] = []
        self.cache: Cache | None = None

    def set_flag(self, flag: str) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: str) -> None:
        self.flags.discard(flag)

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.limits[pool] = size

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, blob: bytes) -> Cache | None:
        return None if blob.startswith(b"garbage") else Cache(set(blob.split(b"\n")) - {b""})

    def set_timing_cache(self, cache: Cache, ignore_mismatch: bool) -> bool:
        assert ignore_mismatch is False
        if b"gpu:other" in cache.lines:
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Cache | None:
        return self.cache


@dataclass
class OptimizationProfile:
    shapes: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def set_shape(self, name: str, low: Any, opt: Any, high: Any) -> None:
        self.shapes[name] = (low, opt, high)

    def set_shape_input(self, name: str, low: Any, opt: Any, high: Any) -> None:
        self.values[name] = (low, opt, high)


@dataclass
class Network:
    flags: int
    inputs: list[Any] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    plugins: list[fake_plugins.Layer] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)

    def mark_weights_refittable(self, name: str) -> bool:
        self.marked += [name] if name in self.weights else []
        return name in self.weights

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> Any:
        return self.inputs[index]


class OnnxParser:
    """Takes every op but `Det`."""

    def __init__(self, network: Network, log: Any) -> None:
        self.network, self.errors = network, []

    num_errors = property(lambda self: len(self.errors))

    def get_error(self, index: int) -> Any:
        return self.errors[index]

    def parse_from_file(self, path: str) -> bool:
        return self._take(onnx.load(path, load_external_data=False).graph)

    def parse(self, model: bytes, path: str) -> bool:
        return self._take(onnx.load_from_string(model).graph)

    def _take(self, graph: onnx.GraphProto) -> bool:
        self.network.weights = [tensor.name for tensor in graph.initializer]
        fed = {name for node in graph.node if node.op_type == "ConstantOfShape" for name in node.input}
        for value in graph.input:
            shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in value.type.tensor_type.shape.dim)
            self.network.inputs.append(SimpleNamespace(name=value.name, shape=shape, is_shape_tensor=value.name in fed))
        for index, node in enumerate(graph.node):
            self.network.nodes.append(node.name)
            layer = fake_plugins.parsed(MODULE.get_plugin_registry(), node)
            if layer is not None:
                self.network.plugins.append(layer)
            if node.op_type == "Det":  # the real one ends at the first refusal as well
                said = {"node": index, "node_operator": node.op_type, "node_name": node.name, "desc": "false"}
                self.errors.append(SimpleNamespace(**{key: (lambda v=v: v) for key, v in said.items()}))
                return False
        return True


class Builder:
    """Builds `b"plan"`, times one kernel a node into the cache; fails with the module's `refusal`."""

    def __init__(self, log: Any) -> None:
        self.log = log
        MODULE.builders.append(self)

    def create_network(self, flags: int = 0) -> Network:
        return Network(flags)

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> OptimizationProfile:
        return OptimizationProfile()

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        self.network, self.config = network, config
        monitor = getattr(config, "progress_monitor", None)  # a builder need not be watched
        if monitor is not None:
            monitor.phase_start("Building", None, 2)
            if not monitor.step_complete("Building", 0):
                return None
            monitor.phase_finish("Building")
        for severity, message in MODULE.says:
            self.log.log(severity, message)
        if any(severity <= Severity.ERROR for severity, _ in MODULE.says):
            return None
        if config.cache is not None:
            timed = {f"kernel of {name}".encode() for name in network.nodes}
            if "error_on_miss" in config.flags and not timed <= config.cache.lines:
                self.log.log(Severity.ERROR, "timingCache.cpp:9: Cache miss")
                return None
            config.cache.lines |= timed
        return b"stripped" if "strip" in config.flags else b"plan"


class Runtime:
    """Loads nothing: no GPU."""

    def __init__(self, log: Any) -> None:
        self.log = log

    def deserialize_cuda_engine(self, plan: bytes) -> None:
        self.log.log(Severity.ERROR, "runtime.cpp:42: Serialization assertion failed: Version tag does not match")


MODULE: Any = ModuleType("tensorrt")


def install(monkeypatch: pytest.MonkeyPatch, version: str = "10.6.0", machine: Machine = H200) -> Any:
    """Put the stand-in where `import tensorrt` finds it, on a machine with an H200."""
    MODULE.__spec__ = ModuleSpec("tensorrt", None)
    MODULE.__version__ = version
    MODULE.builders, MODULE.says = [], []
    for kind in (ILogger, IProgressMonitor, OnnxParser, Builder, Runtime):
        setattr(MODULE, kind.__name__, kind)
    fake_plugins.install(MODULE)
    plugin_v3.register.cache_clear()
    MODULE.init_libnvinfer_plugins = lambda log, namespace: True
    MODULE.MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
    # FP16, INT8 and FP8 are gone from 11; whoever asks for them gets an AttributeError.
    MODULE.BuilderFlag = SimpleNamespace(
        TF32="tf32",
        STRIP_PLAN="strip",
        REFIT_INDIVIDUAL="refit_individual",
        VERSION_COMPATIBLE="version_compatible",
        EXCLUDE_LEAN_RUNTIME="exclude_lean_runtime",
        ERROR_ON_TIMING_CACHE_MISS="error_on_miss",
    )
    levels = {"NONE": "none", "AMPERE_PLUS": "ampere_plus"}
    MODULE.HardwareCompatibilityLevel = SimpleNamespace(**levels)
    MODULE.ProfilingVerbosity = SimpleNamespace(DETAILED="detailed")
    # 11 knows no weak typing, so the flag that asks for strong typing is gone.
    flags = {} if version.startswith("11") else {"STRONGLY_TYPED": 1}
    MODULE.NetworkDefinitionCreationFlag = SimpleNamespace(**flags)
    monkeypatch.setitem(sys.modules, "tensorrt", MODULE)
    known = toolchain.version
    monkeypatch.setattr(toolchain, "version", lambda name: version if name == "tensorrt" else known(name))
    monkeypatch.setattr(toolchain, "machine", lambda: machine)
    return MODULE
