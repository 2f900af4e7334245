"""Arrays of any library, read without importing it: its module is there where one of its arrays is.

numpy, torch (on the CPU and on a GPU) and CuPy are known by name; whatever else speaks DLPack or
`__cuda_array_interface__` is taken through those (`dlpack.py`). What a call returns is of the kind of its first input,
in the model's order.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from aot.arrays import dtype_named
from aot.errors import InputError

_named = cache(dtype_named)
HOST = -1
"""The device of what lies in the host's memory."""
SOME_GPU = -2
"""The device of what does not say on which GPU it lies: the session's."""
Array = np.ndarray[Any, Any]
BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


_names: dict[np.dtype[Any], str] = {}


def name_of(dtype: np.dtype[Any]) -> str:
    """`dtype.name`, which numpy puts together anew each time."""
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = dtype.name
    return name


@cache
def bits(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that holds elements of a dtype: its own, or their bits where numpy lacks it."""
    return np.dtype(BITS.get(dtype, dtype))


@dataclass(slots=True)
class Given:
    """An array as its library describes it. device: the GPU that it lies on, SOME_GPU or HOST.

    address: of its first element. value: the array itself, which keeps its memory.
    """

    kind: Kind
    value: Any
    dtype: str
    shape: tuple[int, ...]
    device: int
    address: int
    contiguous: bool

    def host(self) -> Array:
        """Its elements in the host's memory, by their `bits`; copied only where they lie on a GPU."""
        return self.kind.host(self)


class Kind(ABC):
    """A library of arrays."""

    @abstractmethod
    def look(self, value: Any) -> Given:
        """What an array says of itself. Raises InputError for one that is not dense."""

    @abstractmethod
    def host(self, given: Given) -> Array:
        """See Given.host."""

    @abstractmethod
    def made(self, array: Array, dtype: str, like: Given) -> Any:
        """An array of this library with these elements (by their `bits`), where `like` is; may share their memory."""

    def whole(self, given: Given) -> Given:
        """The same array on its GPU, its elements in C order and aligned, ready in the order of `stream`."""
        raise NotImplementedError

    def empty(self, shape: Sequence[int], dtype: str, like: Given) -> Given:
        """New memory on the GPU of `like`, in the order of `stream`."""
        raise NotImplementedError

    def stream(self, device: int) -> int:
        """The stream of a GPU on which the caller's work is, as the driver's handle; 0 is the default one."""
        raise NotImplementedError


class Numpy(Kind):
    """numpy's arrays and scalars."""

    def look(self, value: Any) -> Given:
        """See Kind.look."""
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        # The address is never read: what lies on the host is copied into pinned memory.
        return Given(self, array, name_of(array.dtype), array.shape, HOST, 0, array.flags.c_contiguous)

    def host(self, given: Given) -> Array:
        """See Kind.host."""
        array: Array = given.value
        return array.view(bits(given.dtype)) if given.dtype in BITS else array

    def made(self, array: Array, dtype: str, like: Given) -> Any:
        """See Kind.made."""
        return array.view(dtype_named(dtype)) if dtype in BITS else array


class Torch(Kind):
    """torch's tensors. torch: its module, which is imported where one of them is."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._names: dict[Any, str] = {}
        self._dtypes: dict[str, Any] = {}

    def look(self, value: Any) -> Given:
        """See Kind.look."""
        kind = value.dtype
        name = self._names.get(kind)
        if name is None:
            name = self._names[kind] = str(kind).removeprefix("torch.")
        try:
            address = value.data_ptr()
        except RuntimeError as error:  # sparse ones and subclasses have none
            raise InputError(f"a tensor without memory of its own: {error}", fix="give a dense tensor") from error
        if value.is_meta or value.is_nested or value.layout is not self._torch.strided:
            layout = "nested" if value.is_nested else value.layout
            raise InputError(f"a tensor on {value.device} of layout {layout}", fix="give a dense tensor")
        if value.is_neg():  # its memory holds the numbers with the other sign
            return self.look(value.resolve_neg())
        return Given(self, value, name, value.shape, value.get_device(), address, value.is_contiguous())

    def host(self, given: Given) -> Array:
        """See Kind.host."""
        value = given.value.detach().cpu()
        if given.dtype in BITS:
            value = value.contiguous().view(self._dtype(bits(given.dtype).name.removeprefix("u")))
        found: Array = value.numpy()
        return found.view(bits(given.dtype)) if given.dtype in BITS else found

    def made(self, array: Array, dtype: str, like: Given) -> Any:
        """See Kind.made."""
        if dtype in BITS:
            signed = array.view(bits(dtype).name.removeprefix("u"))
            value = self._torch.from_numpy(signed).view(self._dtype(dtype))
        else:
            value = self._torch.from_numpy(array)
        return value if like.device == HOST else value.to(like.value.device)

    def whole(self, given: Given) -> Given:
        """See Kind.whole."""
        return self.look(given.value.detach().clone(memory_format=self._torch.contiguous_format))

    def empty(self, shape: Sequence[int], dtype: str, like: Given) -> Given:
        """See Kind.empty."""
        value = self._torch.empty(shape, dtype=self._dtype(dtype), device=like.value.device)
        return Given(self, value, dtype, tuple(shape), like.device, value.data_ptr(), True)

    def stream(self, device: int) -> int:
        """See Kind.stream."""
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def _dtype(self, name: str) -> Any:
        found = self._dtypes.get(name)
        if found is None:
            found = self._dtypes[name] = getattr(self._torch, name)
        return found


class Cupy(Kind):
    """CuPy's arrays. cupy: its module."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def look(self, value: Any) -> Given:
        """See Kind.look."""
        place = (value.device.id, value.data.ptr, value.flags.c_contiguous)
        return Given(self, value, name_of(value.dtype), value.shape, *place)

    def host(self, given: Given) -> Array:
        """See Kind.host."""
        found: Array = given.value.get()
        return found.view(bits(given.dtype)) if given.dtype in BITS else found

    def made(self, array: Array, dtype: str, like: Given) -> Any:
        """See Kind.made."""
        with self._cupy.cuda.Device(like.device):
            return self._cupy.asarray(array).view(dtype_named(dtype))

    def whole(self, given: Given) -> Given:
        """See Kind.whole."""
        with self._cupy.cuda.Device(given.device):
            return self.look(given.value.copy(order="C"))

    def empty(self, shape: Sequence[int], dtype: str, like: Given) -> Given:
        """See Kind.empty."""
        with self._cupy.cuda.Device(like.device):
            value = self._cupy.empty(shape, _named(dtype))
        return Given(self, value, dtype, tuple(shape), like.device, value.data.ptr, True)

    def stream(self, device: int) -> int:
        """See Kind.stream."""
        return int(self._cupy.cuda.get_current_stream(device).ptr)


NUMPY = Numpy()
_kinds: dict[type, Kind] = {np.ndarray: NUMPY}


def kind_of(value: Any) -> Kind:
    """The library of an array. Raises InputError for what is no array: a list, a number."""
    kind = _kinds.get(type(value))
    if kind is None:
        kind = _kinds[type(value)] = _found(value)
    return kind


@cache
def _one(kind: type[Torch | Cupy], module: Any) -> Kind:
    """One for all types of a library, so that arrays of a class and of its subclass are of one kind."""
    return kind(module)


def _found(value: Any) -> Kind:
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if isinstance(value, np.ndarray | np.generic):
        return NUMPY
    if torch is not None and isinstance(value, torch.Tensor):
        return _one(Torch, torch)
    if cupy is not None and isinstance(value, cupy.ndarray):
        return _one(Cupy, cupy)
    if hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"):
        from aot.runtime.dlpack import EXCHANGED

        return EXCHANGED
    if hasattr(value, "__array__"):
        return NUMPY
    raise InputError(
        f"'{type(value).__name__}' is no array",
        fix="give a numpy array, a torch tensor, or anything with DLPack or __cuda_array_interface__",
    )
