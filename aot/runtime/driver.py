"""Kernels as PTX, loaded and launched through the CUDA driver: no torch, no compiler, the driver alone.

cuda-bindings 12.8 and later, for CUDA 12 and 13, lay their modules out alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aot.errors import EngineError

PLENTY_OF_SHARED = 48 << 10
"""Bytes of shared memory that a kernel has without asking (CUDA C++ Programming Guide, compute capabilities)."""
_LOG_BYTES = 8 << 10
_loaded: dict[tuple[int, str, str, int], Kernel] = {}
_INSTALL = "pip install 'aot-engine[gpu]', or cuda-bindings alone"


@dataclass(frozen=True)
class Kernel:
    """A kernel of a module that is loaded in the context that was current; it stays loaded.

    entry: its name, for messages. shared: bytes of dynamic shared memory a program.
    """

    entry: str
    shared: int
    _driver: Any
    _function: Any

    @classmethod
    def load(cls, code: str, entry: str, shared: int) -> Kernel:
        """Hand PTX to the driver's compiler, once for each context. Without a current one the first GPU's primary one
        becomes it.

        Raises EngineError where cuda-bindings or the driver is missing, and for what the driver says of the text.
        """
        driver = bindings()
        key = (entered(driver), code, entry, shared)
        if key not in _loaded:
            _loaded[key] = cls._load(driver, code, entry, shared)
        return _loaded[key]

    @classmethod
    def _load(cls, driver: Any, code: str, entry: str, shared: int) -> Kernel:
        log = bytearray(_LOG_BYTES)
        options = driver.CUjit_option
        keys = [options.CU_JIT_ERROR_LOG_BUFFER, options.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        status, module = driver.cuModuleLoadDataEx(code.encode() + b"\0", len(keys), keys, [log, len(log)])
        said = log.split(b"\0", 1)[0].decode(errors="replace")
        check(driver, status, f"the driver does not load the kernel {entry}", said)
        status, function = driver.cuModuleGetFunction(module, entry.encode())
        check(driver, status, f"the module has no kernel {entry}")
        if shared > PLENTY_OF_SHARED:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (status,) = driver.cuFuncSetAttribute(function, attribute, shared)
            check(driver, status, f"the kernel {entry} does not get its {shared} bytes of shared memory")
        return cls(entry, shared, driver, function)

    def launch(self, grid: tuple[int, int, int], threads: int, arguments: Sequence[int], stream: int) -> None:
        """Enqueue the kernel on a stream; no program, nothing to do, where an axis of the grid is 0.

        arguments: addresses and int32 scalars, in the order of the kernel's parameters. Raises EngineError where the
        driver refuses; what fails while it runs, the next call of CUDA says.
        """
        if 0 in grid:
            return
        # The driver knows how wide each parameter is and reads so much of its 8 bytes: all little-endian machines.
        values = array("q", arguments)
        first, count = values.buffer_info()
        pointers = array("q", range(first, first + 8 * count, 8))
        (status,) = self._driver.cuLaunchKernel(
            self._function, *grid, threads, 1, 1, self.shared, stream, pointers.buffer_info()[0], 0
        )
        if status:
            check(self._driver, status, f"the kernel {self.entry} is not launched with the grid {grid}")


def bindings() -> Any:
    """The driver's API. Raises EngineError where cuda-bindings is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise EngineError(
            f"a GPU is reached through cuda-bindings, which does not load: {error}", fix=_INSTALL
        ) from error
    return driver


def entered(driver: Any) -> int:
    """What tells the current context from any other, past ones too; where there is none, the primary one of the first
    GPU becomes it."""
    start(driver)
    status, context = driver.cuCtxGetCurrent()
    check(driver, status, "the CUDA driver does not say its context")
    if not int(context):
        status, device = driver.cuDeviceGet(0)
        check(driver, status, "there is no GPU")
        status, context = driver.cuDevicePrimaryCtxRetain(device)
        check(driver, status, "the GPU gives no context")
        (status,) = driver.cuCtxSetCurrent(context)
        check(driver, status, "the GPU's context does not become the current one")
    status, identity = driver.cuCtxGetId(context)
    check(driver, status, "the GPU's context has no identity")
    return int(identity)


def start(driver: Any) -> None:
    """Raise EngineError where the driver is missing or does not start."""
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # what cuda-bindings raises where the driver's library is not found
        raise EngineError(
            f"the CUDA driver does not load: {' '.join(str(error).split())}", fix="aot doctor says what is missing"
        ) from error
    check(driver, status, "the CUDA driver does not start")


def check(driver: Any, status: Any, what: str, said: str = "") -> None:
    """Raise EngineError unless the status is success."""
    if not status:
        return
    _, text = driver.cuGetErrorString(status)
    name = getattr(status, "name", status)
    described = text.decode() if isinstance(text, bytes) else "an error unknown to it"
    more = f": {' '.join(said.split())}" if said.strip() else ""
    fix = (
        "the driver is older than the kernel's PTX: update the driver"
        if name == "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
        else None
    )
    raise EngineError(f"{what}: {name}, {described}{more}", fix=fix)
