"""A plan that TensorRT has loaded: its inputs and outputs, how large they get, and contexts to run it in."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np

from aot.errors import ArtifactError, EngineError
from aot.plugins.schema import TENSORRT_TYPES
from aot.runtime import plugin_v3, vendors
from aot.runtime.cuda import Gpu, Handle
from aot.runtime.interchange import Array, bits
from aot.runtime.kernels import LAUNCHED, read_kernels
from aot.runtime.log import last_lines, make_log
from aot.runtime.manifest import Engine, Manifest
from aot.runtime.refit import refit

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Slot:
    """An input or output. most: bytes at the largest sizes of any profile. host: TensorRT reads or writes it on the
    host. unbounded: an output whose size depends on values."""

    name: str
    dtype: str
    itemsize: int
    most: int
    host: bool = False
    unbounded: bool = False


class Plan:
    """A plan on a GPU. inputs, outputs: in the order that shapes and addresses take. scratch: bytes that a context
    needs for activations. size: bytes of the file, about what its weights take.

    Needs the GPU's context. Raises EngineError where TensorRT does not load it, ArtifactError where it is not the one
    that the manifest describes.

    captures: whether its calls can be captured in CUDA graphs, as far as was seen.
    """

    def __init__(self, gpu: Gpu, manifest: Manifest, engine: Engine) -> None:
        self.gpu = gpu
        self.captures = True
        self._making = threading.Lock()
        self._title = vendors.TITLES[engine.backend]
        module, self._version = vendors.runtime(engine.backend, lean=engine.compatible is not None)
        trt = self.trt = vendors.module(module)
        self._log = make_log(trt)
        if hasattr(trt, "init_libnvinfer_plugins"):
            trt.init_libnvinfer_plugins(self._log, "")
        path = manifest.path(engine.file)
        beside = str(PurePosixPath(engine.file).with_suffix(LAUNCHED))
        if beside in manifest.files:
            plugin_v3.register(trt)
            plugin_v3.learn(read_kernels(manifest.path(beside)))
        self._runtime = trt.Runtime(self._log)
        if engine.compatible == "with":
            self._runtime.engine_host_code_allowed = True  # the lean runtime inside, whose digest was checked
        self._where = f"{manifest.shown}/{engine.file}"
        self._engine = self._deserialized(path, engine)
        self.size = path.stat().st_size
        if engine.weights is not None:
            weights = manifest.path(engine.weights)
            refit(trt, self._engine, self._log, weights)
            self.size += weights.stat().st_size
        self.scratch = int(self._engine.device_memory_size_v2)
        self.profiles = int(self._engine.num_optimization_profiles)
        self._check(manifest)
        self.inputs = tuple(self._input(n, tensor.dtype) for n, tensor in manifest.inputs.items() if n in self._names)
        most = self._largest_outputs(manifest)
        self.captures = min(most.values(), default=0) >= 0 and not any(slot.host for slot in self.inputs)
        self.outputs = tuple(
            Slot(name, tensor.dtype, bits(tensor.dtype).itemsize, most[name], self._on_host(name), most[name] < 0)
            for name, tensor in manifest.outputs.items()
        )

    def _deserialized(self, path: Path, engine: Engine) -> Any:
        found = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if found is None:
            plugin_v3.raise_kept(here=True)
            raise EngineError(
                f"{self._title} {self._version} on {self.gpu} cannot load the engine, "
                f"built by {engine.version} for {engine.target}: {self.said()}",
                where=self._where,
                fix="build it again on this machine: aot build",
            )
        return found

    def _check(self, manifest: Manifest) -> None:
        engine, modes = self._engine, self.trt.TensorIOMode
        names = self._names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        for mode, tensors in ((modes.INPUT, manifest.inputs), (modes.OUTPUT, manifest.outputs)):
            held = {name for name in names if engine.get_tensor_mode(name) == mode}
            # An input that nothing reads may be missing from the engine.
            if not held <= set(tensors) or (mode == modes.OUTPUT and held != set(tensors)):
                raise self._other(f"has {', '.join(sorted(held))} where the manifest has {', '.join(sorted(tensors))}")
            for name, tensor in tensors.items():
                if name not in held:
                    continue
                wanted = getattr(self.trt.DataType, TENSORRT_TYPES.get(tensor.dtype, ""), None)
                found = engine.get_tensor_dtype(name)
                if found != wanted:
                    raise self._other(f"has '{name}' as {found}, and the manifest as {tensor.dtype}")

    def _other(self, said: str) -> ArtifactError:
        return ArtifactError(f"the engine is not the one of the manifest: it {said}", where=self._where,
                             fix="build it again: aot build")  # fmt: skip

    def _on_host(self, name: str) -> bool:
        return bool(self._engine.get_tensor_location(name) == self.trt.TensorLocation.HOST)

    def _input(self, name: str, dtype: str) -> Slot:
        volume = max(prod(self.largest(name, profile)) for profile in range(self.profiles))
        itemsize = bits(dtype).itemsize
        return Slot(name, dtype, itemsize, volume * itemsize, self._on_host(name))

    def largest(self, name: str, profile: int) -> Shape:
        """The largest shape of an input in a profile."""
        fixed = tuple(self._engine.get_tensor_shape(name))
        return fixed if -1 not in fixed else tuple(self._engine.get_tensor_profile_shape(name, profile)[2])

    def _largest_outputs(self, manifest: Manifest) -> dict[str, int]:
        """Bytes of every output at the largest sizes of any profile; -1 where values decide."""
        most = dict.fromkeys(manifest.outputs, 0)
        stream = self.gpu.stream()
        for profile in range(self.profiles):
            context = Context(self, profile, 0, stream)
            shapes = [self.largest(slot.name, profile) for slot in self.inputs]
            context.shape(shapes, self._largest_values(profile))
            for name, shape in context.output_shapes(manifest.outputs).items():
                size = prod(shape) * bits(manifest.outputs[name].dtype).itemsize
                most[name] = -1 if -1 in shape or most[name] < 0 else max(most[name], size)
        self.gpu.wait(stream)
        self.gpu.destroy_stream(stream)
        return most

    def _largest_values(self, profile: int) -> dict[str, Array]:
        """The largest values of inputs that decide shapes by them."""
        return {
            slot.name: np.array(self._engine.get_tensor_profile_values(profile, slot.name)[2], bits(slot.dtype))
            for slot in self.inputs
            if slot.host
        }

    def made_context(self) -> Any:
        """A new execution context that brings no memory of its own."""
        strategy = self.trt.ExecutionContextAllocationStrategy.USER_MANAGED
        with self._making:  # lanes of several threads share the engine
            context = self._engine.create_execution_context(strategy)
        if context is None:
            raise EngineError(f"{self._title} makes no execution context: {self.said()}", where=self._where)
        return context

    def said(self) -> str:
        """What TensorRT logged last; it is forgotten then."""
        said = last_lines(self._log.errors) or "it gives no reason"
        self._log.errors.clear()
        self._log.warnings.clear()
        return said

    def told(self) -> str:
        """The same as a clause of its own."""
        return f"{self._title}: {self.said()}"

    def close(self) -> None:
        """Unload it; no context of it may be left."""
        self._engine = self._runtime = None

    def refuse(self, doing: str) -> NoReturn:
        """Raise EngineError for a call that TensorRT refused, with what a plugin raised in this thread, or the log."""
        plugin_v3.raise_kept(here=True)
        raise EngineError(f"{self._title} {doing}: {self.said()}", where=self._where)


class Context:
    """An execution context with what it is set to, so that nothing is set twice. One call at a time.

    scratch: the address of the memory for activations, shared by all contexts of a lane.
    """

    def __init__(self, plan: Plan, profile: int, scratch: int, stream: Handle) -> None:
        self._plan = plan
        self._context = context = plan.made_context()
        if scratch:
            context.set_device_memory(scratch, plan.scratch)
        if context.active_optimization_profile != profile and not context.set_optimization_profile_async(
            profile, int(stream)
        ):
            plan.refuse(f"does not take optimization profile {profile + 1}")
        self._names = [slot.name for slot in (*plan.inputs, *plan.outputs)] if hasattr(plan, "outputs") else []
        self._shapes: Sequence[Shape] = ()
        self._addresses: Sequence[int] = (0,) * len(self._names)

    def shape(self, shapes: Sequence[Shape], values: Mapping[str, Array] | None = None) -> None:
        """Set the shapes of all inputs; values: of those that TensorRT reads on the host."""
        if shapes == self._shapes and not values:
            return
        for name, array in (values or {}).items():
            self._context.set_tensor_address(name, array.ctypes.data)
        for slot, shape in zip(self._plan.inputs, shapes, strict=True):
            if not self._context.set_input_shape(slot.name, tuple(shape)):
                self._plan.refuse(f"does not take input '{slot.name}' as {list(shape)}")
        self._shapes = shapes

    def output_shapes(self, names: Sequence[str] | Mapping[str, Any]) -> dict[str, Shape]:
        """The shapes of outputs for the inputs' shapes; -1 where values decide."""
        try:
            missing = self._context.infer_shapes()
        except RuntimeError as error:  # shapes that contradict each other inside the model
            self._plan.refuse(f"does not find the shapes of outputs ({' '.join(str(error).split())})")
        if missing:
            self._plan.refuse(f"does not know the shapes of outputs before {', '.join(missing)}")
        return {name: tuple(self._context.get_tensor_shape(name)) for name in names}

    def address(self, addresses: Sequence[int]) -> None:
        """Set where all inputs and then all outputs are; 0 for an output that has an allocator."""
        for name, new, old in zip(self._names, addresses, self._addresses, strict=True):
            if new != old and not self._context.set_tensor_address(name, new):
                self._plan.refuse(f"does not take the address of '{name}'")
        self._addresses = addresses

    def allocate_by(self, name: str, allocator: Any) -> None:
        """Let an allocator make room for an output."""
        self._context.set_output_allocator(name, allocator)

    def enqueue(self, stream: Handle) -> None:
        """Enqueue one run."""
        if not self._context.execute_async_v3(int(stream)):
            self._plan.refuse("does not run the engine")
