"""Arrays of libraries that are not known by name: what DLPack and `__cuda_array_interface__` say of them, both ways."""

from __future__ import annotations

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from aot.errors import InputError
from aot.runtime import dlpack
from aot.runtime.dlpack import EXCHANGED, DeviceArray
from aot.runtime.interchange import HOST, SOME_GPU
from tests.runtime import fake_cuda
from tests.runtime.fake_cuda import Cuda


class Foreign:
    """An array of a library that nobody knows, over another's."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return tuple(self.array.__dlpack_device__())


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = fake_cuda.install(monkeypatch)
    cuda.cuCtxPushCurrent(7)
    return cuda


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8", "uint8", "bool", "float64"])
def test_elements_on_the_host_are_read_where_they_lie(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    given = EXCHANGED.look(Foreign(array))
    assert (given.dtype, given.shape, given.device, given.contiguous) == (dtype, (2, 3), HOST, True)
    np.testing.assert_array_equal(given.host(), array)
    array[0, 0] = 1
    assert given.host()[0, 0] == 1


def test_strides_are_followed() -> None:
    array = np.arange(12.0).reshape(3, 4)
    given = EXCHANGED.look(Foreign(array.T[::2]))
    assert not given.contiguous
    np.testing.assert_array_equal(given.host(), array.T[::2])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks_come_as_their_bits(dtype: str) -> None:
    tensor = torch.tensor([1.5, -2.0]).to(getattr(torch, dtype))
    given = EXCHANGED.look(Foreign(tensor))
    assert given.dtype == dtype
    expected = np.array([1.5, -2.0]).astype(getattr(ml_dtypes, dtype))
    np.testing.assert_array_equal(given.host().view(expected.dtype), expected)


def test_what_dlpack_refuses_is_said() -> None:
    frozen = np.ones(2)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="readonly"):
        EXCHANGED.look(Foreign(frozen))


def test_an_array_on_a_gpu_says_where_it_is(cuda: Cuda) -> None:
    said = {"shape": (2, 3), "typestr": "<f2", "data": (0x7F00, False), "strides": (6, 2)}
    given = EXCHANGED.look(SimpleNamespace(__cuda_array_interface__=said))
    assert (given.dtype, given.shape, given.address, given.device) == ("float16", (2, 3), 0x7F00, SOME_GPU)
    assert given.contiguous
    given = EXCHANGED.look(SimpleNamespace(__cuda_array_interface__=said | {"strides": (2, 4)}))
    assert not given.contiguous
    with pytest.raises(InputError, match="C order"):
        EXCHANGED.whole(given)


def test_the_default_stream_waits_for_the_one_that_makes_the_array(cuda: Cuda) -> None:
    stream, happened = cuda.new_stream(), []
    said = {"shape": (1,), "typestr": "<f4", "data": (0x7F00, False), "stream": stream}
    cuda.enqueue(stream, lambda: happened.append("made"))
    EXCHANGED.look(SimpleNamespace(__cuda_array_interface__=said))
    assert happened == []
    cuda.cuStreamSynchronize(1)
    assert happened == ["made"]


class TestDeviceArray:
    def test_its_capsule_says_what_it_is_and_keeps_its_memory(self, cuda: Cuda) -> None:
        array = DeviceArray((2, 3), "bfloat16", 0)
        address = array.address
        given = EXCHANGED.look(Exported(array))
        assert (given.dtype, given.shape, given.address, given.device) == ("bfloat16", (2, 3), address, 0)
        assert cuda.device == 12
        del array
        gc.collect()
        assert cuda.device == 12  # the capsule that was looked at holds it
        del given
        gc.collect()
        assert cuda.device == 0
        assert dlpack._exported == {}

    def test_a_consumer_ends_it_with_the_deleter(self, cuda: Cuda) -> None:
        capsule = DeviceArray((4,), "int64", 0).__dlpack__()
        managed = dlpack._Managed.from_address(dlpack._pointer(capsule, b"dltensor"))
        rename = ctypes.pythonapi.PyCapsule_SetName
        rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
        rename(capsule, b"used_dltensor")
        del capsule
        assert cuda.device == 32
        managed.deleter(ctypes.addressof(managed))
        assert cuda.device == 0

    def test_the_array_interface_says_the_same(self, cuda: Cuda) -> None:
        array = DeviceArray((0, 3), "float32", 0)
        said = array.__cuda_array_interface__
        assert (said["shape"], said["typestr"], said["data"][0]) == ((0, 3), "<f4", array.address)


class Exported:
    """Gives only capsules."""

    def __init__(self, array: DeviceArray) -> None:
        self.__dlpack__ = array.__dlpack__
        self.__dlpack_device__ = array.__dlpack_device__
