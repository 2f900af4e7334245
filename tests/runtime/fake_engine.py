"""The runtime half of the stand-in for `tensorrt`: engines that compute with numpy in the memory of `fake_cuda`.

A plan is the name of one of MODELS and its profiles, as JSON. It refuses what TensorRT refuses, and tells of what would
be undefined: an address that is not aligned or not there, a graph whose context was set to something else meanwhile.
"""

from __future__ import annotations

import ctypes
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.backends import fake_tensorrt
from tests.backends.fake_plugins import DataType
from tests.backends.fake_tensorrt import Severity
from tests.runtime.artifacts import WEIGHT
from tests.runtime.fake_cuda import ALIGNED, Cuda

Arrays = Mapping[str, np.ndarray[Any, Any]]
Shape = tuple[int, ...]


class TensorIOMode(enum.Enum):
    INPUT, OUTPUT = range(2)


class TensorLocation(enum.Enum):
    DEVICE, HOST = range(2)


class ExecutionContextAllocationStrategy(enum.Enum):
    STATIC, ON_PROFILE_CHANGE, USER_MANAGED = range(3)


class IOutputAllocator:
    def __init__(self) -> None: ...


@dataclass(frozen=True)
class Model:
    """inputs, outputs: dtype and network shape. run: the outputs. shapes: of the outputs, -1 where values decide."""

    inputs: Mapping[str, tuple[str, Shape]]
    outputs: Mapping[str, tuple[str, Shape]]
    run: Callable[[Arrays], Arrays]
    shapes: Callable[[Mapping[str, Shape]], Mapping[str, Shape]]


def _linear(given: Arrays) -> Arrays:
    return {"y": given["x"] @ WEIGHT}


def _counter(given: Arrays) -> Arrays:
    total = given["state_sum"] + given["x"]
    return {"y": total * 2, "state_sum_out": total}


MODELS = {
    "linear": Model(
        {"x": ("FLOAT", (-1, 3))}, {"y": ("FLOAT", (-1, 2))}, _linear, lambda shapes: {"y": (shapes["x"][0], 2)}
    ),
    "counter": Model(
        {"x": ("FLOAT", (-1, 3)), "state_sum": ("FLOAT", (-1, 3))},
        {"y": ("FLOAT", (-1, 3)), "state_sum_out": ("FLOAT", (-1, 3))},
        _counter,
        lambda shapes: {"y": shapes["x"], "state_sum_out": shapes["x"]},
    ),
    "positive": Model(
        {"x": ("FLOAT", (-1, 3))},
        {"y": ("FLOAT", (-1,))},
        lambda given: {"y": given["x"][given["x"] > 0]},
        lambda shapes: {"y": (-1,)},
    ),
    "halves": Model(
        {"x": ("HALF", (-1, 3)), "n": ("INT64", (-1,))},
        {"y": ("BF16", (-1, 3))},
        lambda given: {"y": (given["x"] + given["n"][:, None]).astype(np.float32).view(np.uint32) >> 16},
        lambda shapes: {"y": shapes["x"]},
    ),
}
_DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "uint16", "INT64": "int64", "INT32": "int32"}


def plan(
    name: str,
    *profiles: Mapping[str, Sequence[Sequence[int]]],
    scratch: int = 1024,
    taken: Mapping[str, Any] | None = None,
) -> bytes:
    """The plan of a model. profiles: least, best and largest shape of every input. taken: dtype and elements of the
    weights that it was stripped of, of which `linear` computes with `w`."""
    return json.dumps({"model": name, "profiles": profiles, "scratch": scratch, "taken": taken or {}}).encode()


class Engine:
    """capturable: whether its runs may be captured. contexts: how many there are now."""

    capturable = True
    broken = False

    def __init__(self, said: Mapping[str, Any], cuda: Cuda, log: Any) -> None:
        self.cuda, self.log = cuda, log
        self.model = MODELS[said["model"]]
        self.profiles = said["profiles"]
        self.device_memory_size_v2 = said["scratch"]
        self.num_optimization_profiles = len(self.profiles)
        self.names = [*self.model.inputs, *self.model.outputs]
        self.num_io_tensors = len(self.names)
        self.made = 0
        self.taken: Mapping[str, Sequence[Any]] = said.get("taken", {})
        self.weights: dict[str, np.ndarray[Any, Any]] = {}

    def run(self, given: Arrays) -> Arrays:
        if not self.taken:
            return self.model.run(given)
        assert self.weights.keys() == self.taken.keys(), "a run without the weights"
        return {"y": given["x"] @ self.weights["w"].reshape(WEIGHT.shape).astype(np.float32)}

    def _of(self, name: str) -> tuple[str, Shape]:
        return {**self.model.inputs, **self.model.outputs}[name]

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.model.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return DataType[self._of(name)[0]]

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation.DEVICE

    def get_tensor_shape(self, name: str) -> Shape:
        return self._of(name)[1]

    def get_tensor_profile_shape(self, name: str, profile: int) -> Any:
        return self.profiles[profile][name]

    def create_execution_context(self, strategy: Any) -> Context:
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        self.made += 1
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.cuda = engine, engine.cuda
        self.active_optimization_profile = 0
        self.shapes: dict[str, Shape] = {}
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}
        self.memory = 0

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= self.engine.device_memory_size_v2
        assert self.cuda.holds(address, size)
        self.memory = address

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.active_optimization_profile = index
        self.shapes = {}
        return True

    def set_input_shape(self, name: str, shape: Any) -> bool:
        least, _, most = self.engine.profiles[self.active_optimization_profile][name]
        fits = len(shape) == len(most) and all(a <= b <= c for a, b, c in zip(least, shape, most, strict=True))
        if not fits:
            self.engine.log.log(Severity.ERROR, f"executionContext.cpp:99: {name} is outside the profile")
            return False
        self.shapes[name] = tuple(shape)
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in self.engine.model.inputs if name not in self.shapes]

    def get_tensor_shape(self, name: str) -> Shape:
        return self.shapes[name] if name in self.shapes else tuple(self.engine.model.shapes(self.shapes)[name])

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self.allocators[name] = allocator
        return True

    def execute_async_v3(self, stream: int) -> bool:
        graph, engine = self.cuda.captures(stream), self.engine
        if engine.broken:
            engine.log.log(Severity.ERROR, "executionContext.cpp:7: the layer exploded")
            return False
        assert int(stream) > 2, "TensorRT waits for the GPU on a default stream"
        assert not self.infer_shapes()
        assert self.memory or not engine.device_memory_size_v2, "a context without memory for activations"
        for name in engine.names:
            address = self.addresses.get(name)
            assert address or name in self.allocators, f"{name} has no address"
            assert not (address or 0) % ALIGNED, f"the address of {name} is not aligned"
        if graph is not None and not engine.capturable:
            graph.broken = True
            return True
        shapes, addresses, profile = dict(self.shapes), dict(self.addresses), self.active_optimization_profile

        def run() -> None:
            if graph is not None:
                now = (self.shapes, self.addresses, self.active_optimization_profile)
                assert now == (shapes, addresses, profile), "the context of a graph was set to something else"
            given = {name: self._read(name, shapes[name], addresses[name]) for name in engine.model.inputs}
            for name, array in engine.run(given).items():
                dtype = _DTYPES[engine._of(name)[0]]
                self._write(name, np.ascontiguousarray(array, dtype), addresses.get(name, 0))

        self.cuda.enqueue(stream, run)
        return True

    def _read(self, name: str, shape: Shape, address: int) -> np.ndarray[Any, Any]:
        array = np.empty(shape, _DTYPES[self.engine._of(name)[0]])
        assert not array.nbytes or self.cuda.holds(address, array.nbytes), f"{name} is not in the GPU's memory"
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array

    def _write(self, name: str, array: np.ndarray[Any, Any], address: int) -> None:
        if not address:
            address = self.allocators[name].reallocate_output_async(name, 0, array.nbytes, ALIGNED, 0)
            self.allocators[name].notify_shape(name, array.shape)
        assert not array.nbytes or self.cuda.holds(address, array.nbytes), f"{name} is not in the GPU's memory"
        ctypes.memmove(address, array.ctypes.data, array.nbytes)


@dataclass(frozen=True)
class Weights:
    dtype: Any
    address: int
    size: int


class Refitter:
    """Copies weights from where they lie when it refits, as TensorRT does."""

    def __init__(self, engine: Engine, log: Any) -> None:
        self.engine, self.log = engine, log
        self.given: dict[str, Weights] = {}

    def get_all_weights(self) -> list[str]:
        return list(self.engine.taken)

    def get_missing_weights(self) -> list[str]:
        return [name for name in self.engine.taken if name not in self.given]

    def get_weights_prototype(self, name: str) -> Weights:
        dtype, size = self.engine.taken[name]
        return Weights(DataType[dtype], 0, size)

    def set_named_weights(self, name: str, weights: Weights) -> bool:
        self.given[name] = weights
        return True

    def refit_cuda_engine(self) -> bool:
        for name, one in self.given.items():
            kind = np.dtype(_DTYPES[one.dtype.name])
            data = ctypes.string_at(one.address, one.size * kind.itemsize)
            self.engine.weights[name] = np.frombuffer(data, kind)
        if self.engine.broken:
            self.log.log(Severity.ERROR, "refit.cpp:7: weights of layer 3 are contradictory")
        return not self.engine.broken


def install(monkeypatch: pytest.MonkeyPatch, cuda: Cuda, version: str = "10.6.0") -> Any:
    """Put the stand-in where `import tensorrt` finds it; the engines that it loads are in its `engines`."""
    module = fake_tensorrt.install(monkeypatch, version)
    module.engines, module.runtimes = [], []

    class Runtime:
        engine_host_code_allowed = False

        def __init__(self, log: Any) -> None:
            self.log = log
            module.runtimes.append(self)

        def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
            try:
                said = json.loads(plan)
            except ValueError:
                self.log.log(Severity.ERROR, "runtime.cpp:42: Serialization assertion failed: not a plan")
                return None
            module.engines.append(Engine(said, cuda, self.log))
            return module.engines[-1]

    kinds = (TensorIOMode, TensorLocation, ExecutionContextAllocationStrategy, IOutputAllocator, Runtime, Refitter,
             Weights)  # fmt: skip
    for kind in kinds:
        monkeypatch.setattr(module, kind.__name__, kind, raising=False)
    module.DataType = DataType
    return module
