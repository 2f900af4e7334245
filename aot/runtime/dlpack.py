"""Arrays of libraries that are not known by name, through DLPack or `__cuda_array_interface__`, in and out.

https://dmlc.github.io/dlpack and https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3. The
structures are those of DLPack 0.8, which later ones still exchange as capsules named `dltensor`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from aot.arrays import dtype_named
from aot.errors import InputError
from aot.runtime.driver import bindings, check, entered
from aot.runtime.interchange import HOST, SOME_GPU, Array, Given, Kind, bits

_CPU, _CUDA, _PINNED, _MANAGED = 1, 2, 3, 13
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool", 10: "float8_e4m3fn", 12: "float8_e5m2"}
_WHOLE = {name: code for code, name in _CODES.items() if not name.endswith(("int", "float"))}
"""Types whose name says how wide they are."""
_DEFAULT = 1
"""DLPack's and the array interface's word for the legacy default stream. Both sides wait for each other there."""


class _Tensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_NAME = b"dltensor"
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_exported: dict[int, Any] = {}
"""What capsules point to, by address, until their consumers are done with it."""


class Exchanged(Kind):
    """Whatever speaks DLPack or `__cuda_array_interface__`.

    Outputs are made by the `from_dlpack` of the array's own namespace where it has one (the array API standard); else
    they are numpy's on the host, and `DeviceArray` on a GPU.
    """

    def look(self, value: Any) -> Given:
        """See Kind.look."""
        if hasattr(value, "__cuda_array_interface__"):
            return self._of_interface(value, value.__cuda_array_interface__)
        try:
            device, _ = value.__dlpack_device__()
            capsule = value.__dlpack__(stream=_DEFAULT) if device in (_CUDA, _MANAGED) else value.__dlpack__()
        except (BufferError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"DLPack does not give it: {error}", fix="give a dense array") from error
        return self._of_capsule(value, capsule)

    def _of_interface(self, value: Any, said: Any) -> Given:
        if said.get("mask") is not None:
            raise InputError("an array with a mask", fix="give a dense array")
        dtype, shape = np.dtype(said["typestr"]), tuple(said["shape"])
        strides = said.get("strides")
        contiguous = strides is None or tuple(strides) == _strides(shape, dtype.itemsize)
        if said.get("stream") not in (None, _DEFAULT):
            _wait(_DEFAULT, int(said["stream"]))
        return Given(self, value, dtype.name, shape, SOME_GPU, int(said["data"][0]), contiguous)

    def _of_capsule(self, value: Any, capsule: Any) -> Given:
        tensor = _Managed.from_address(_pointer(capsule, _NAME)).tensor
        kind = _CODES.get(tensor.code, "")
        dtype = kind if kind in _WHOLE else f"{kind}{tensor.bits}"
        if not kind or tensor.lanes != 1:
            raise InputError(f"DLPack's type code {tensor.code} with {tensor.lanes} lanes", fix="give a dense array")
        shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
        itemsize = tensor.bits // 8 or 1
        strides = tuple(tensor.strides[axis] * itemsize for axis in range(tensor.ndim)) if tensor.strides else None
        contiguous = strides is None or 0 in shape or strides == _strides(shape, itemsize)
        address = (tensor.data or 0) + tensor.byte_offset
        if tensor.device_type not in (_CPU, _CUDA, _PINNED, _MANAGED):
            raise InputError(f"an array on DLPack's device {tensor.device_type}", fix="give one of the CPU or a GPU")
        device = HOST if tensor.device_type in (_CPU, _PINNED) else int(tensor.device_id)
        held = _Host(capsule, value, address, shape, strides, bits(dtype)) if device == HOST else (capsule, value)
        return Given(self, held, dtype, shape, device, address, contiguous)

    def host(self, given: Given) -> Array:
        """See Kind.host."""
        if isinstance(given.value, _Host):
            return np.asarray(given.value)
        if not given.contiguous:
            raise _scattered()
        made = np.empty(given.shape, bits(given.dtype))
        if made.nbytes:
            driver = bindings()
            entered(driver)
            (status,) = driver.cuMemcpyDtoH(made.ctypes.data, given.address, made.nbytes)
            check(driver, status, "an array is not copied from the GPU")
        return made

    def made(self, array: Array, dtype: str, like: Given) -> Any:
        """See Kind.made."""
        if like.device == HOST:
            own = array if array.dtype.name == dtype else array.view(dtype_named(dtype))
            return _in_namespace_of(like, own)
        found = self.empty(array.shape, dtype, like)
        if array.nbytes:
            driver = bindings()
            (status,) = driver.cuMemcpyHtoD(found.address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
            check(driver, status, "an array is not copied to the GPU")
        return found.value

    def whole(self, given: Given) -> Given:
        """See Kind.whole."""
        raise _scattered()

    def empty(self, shape: Sequence[int], dtype: str, like: Given) -> Given:
        """See Kind.empty."""
        array = DeviceArray(tuple(shape), dtype, max(like.device, 0))
        return Given(self, _in_namespace_of(like, array), dtype, tuple(shape), like.device, array.address, True)

    def stream(self, device: int) -> int:
        """See Kind.stream: the default one, since nothing says which the caller works on."""
        return 0


class DeviceArray:
    """A new array on a GPU, for libraries to take up: `torch.from_dlpack(array)`, `cupy.asarray(array)`.

    shape, dtype as numpy's; device: CUDA's number. Ready in the order of the default stream.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, device: int) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self._driver = driver = bindings()
        self._context = driver.cuCtxGetCurrent()[1]
        self.nbytes = prod(shape) * bits(dtype).itemsize
        status, address = driver.cuMemAllocAsync(max(self.nbytes, 1), 0)
        check(driver, status, f"GPU {device} has no {self.nbytes:,} bytes")
        self.address = int(address)

    def __del__(self) -> None:
        address = getattr(self, "address", 0)
        if address and not sys.is_finalizing():
            self._driver.cuCtxPushCurrent(self._context)
            self._driver.cuMemFreeAsync(address, 0)
            self._driver.cuCtxPopCurrent()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": bits(self.dtype).str,
            "data": (self.address, False),
            "strides": None,
            "stream": _DEFAULT,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    def __dlpack__(self, stream: int | None = None, **_: Any) -> Any:
        """A capsule for a consumer, whose stream waits for the default one."""
        if stream is not None and stream not in (-1, 0, _DEFAULT):
            _wait(stream, _DEFAULT)
        kind = self.dtype if self.dtype in _WHOLE else self.dtype.rstrip("0123456789")
        count = len(self.shape)
        shape = (ctypes.c_int64 * count)(*self.shape)
        managed = _Managed()
        tensor = managed.tensor
        tensor.data, tensor.device_type, tensor.device_id, tensor.ndim = self.address, _CUDA, self.device, count
        tensor.code = next(code for code, name in _CODES.items() if name == kind)
        tensor.bits, tensor.lanes = 8 * bits(self.dtype).itemsize, 1
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _DELETE
        place = ctypes.addressof(managed)
        _exported[place] = (self, managed, shape)
        return _new(place, _NAME, _DESTROY)


def _delete(place: int) -> None:
    """DLPack's deleter: the consumer is done."""
    _exported.pop(place, None)


def _destroy(capsule: int) -> None:
    """Of a capsule that nobody consumed; a consumer renames it."""
    if _valid(capsule, _NAME):
        _exported.pop(_raw_pointer(capsule, _NAME), None)


_DELETE, _DESTROY = _Deleter(_delete), _Destructor(_destroy)


class _Host:
    """Memory of the host as numpy takes it up, with what keeps it."""

    def __init__(
        self, capsule: Any, value: Any, address: int, shape: tuple[int, ...], strides: Any, dtype: np.dtype[Any]
    ) -> None:
        self.value, self._capsule = value, capsule
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (address, True),
            "strides": strides,
            "version": 3,
        }


def _in_namespace_of(like: Given, array: Any) -> Any:
    """The array in the library of `like`, where that says how; else the array itself."""
    value = like.value.value if isinstance(like.value, _Host) else like.value
    value = value[1] if isinstance(value, tuple) else value
    namespace = getattr(value, "__array_namespace__", None)
    return namespace().from_dlpack(array) if namespace is not None else array


def _strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Bytes from one element to the next along every axis, in C order."""
    made, size = [], itemsize
    for axis in reversed(shape):
        made.append(size)
        size *= axis
    return tuple(reversed(made))


def _wait(stream: int, other: int) -> None:
    """Let one stream wait for what is on another now."""
    driver = bindings()
    entered(driver)
    status, event = driver.cuEventCreate(int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    check(driver, status, "the GPU gives no event")
    (status,) = driver.cuEventRecord(event, driver.CUstream(other))
    check(driver, status, "the event is not recorded")
    (status,) = driver.cuStreamWaitEvent(driver.CUstream(stream), event, 0)
    check(driver, status, "the event is not waited for")
    driver.cuEventDestroy(event)


def _scattered() -> InputError:
    return InputError(
        "an array on the GPU whose elements do not lie in C order, of a library that is not known",
        fix="make it contiguous first",
    )


EXCHANGED = Exchanged()
