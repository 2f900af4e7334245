"""Arrays that are on the GPU already: read where they lie, in the order of their stream; over the stand-ins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.errors import InputError
from tests.runtime import fake_cupy
from tests.runtime.artifacts import WEIGHT, rows
from tests.runtime.conftest import Loads
from tests.runtime.fake_cuda import Cuda


class TestOnTheGpu:
    @pytest.fixture
    def cupy(self, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> Any:
        return fake_cupy.install(monkeypatch, cuda, stream=cuda.new_stream())

    def test_arrays_are_used_in_place_on_the_callers_stream_without_waiting(
        self, linear: Loads, cuda: Cuda, cupy: Any
    ) -> None:
        session = linear()
        x = cupy.empty((2, 3))
        held, waits = [], []
        for seed in range(8):
            x.set(rows(2, seed))  # on the caller's stream: not there yet
            held = [*held[-1:], session(x=x)["y"]]
            waits.append(cuda.counts["cuStreamSynchronize"] + cuda.counts["cuEventSynchronize"])
        assert waits[-1] == waits[5]  # by then y was twice at each of three addresses
        assert isinstance(held[-1], cupy.ndarray)
        np.testing.assert_allclose(held[-1].get(), rows(2, 7) @ WEIGHT, rtol=1e-6)
        np.testing.assert_allclose(held[0].get(), rows(2, 6) @ WEIGHT, rtol=1e-6)
        assert not [call for call in cuda.counts if call.startswith("cuMemcpy")]

    def test_another_address_makes_another_graph(self, linear: Loads, cuda: Cuda, cupy: Any) -> None:
        session = linear()
        first, second = cupy.asarray(rows(2, 1)), cupy.asarray(rows(2, 2))
        kept = []  # what is kept cannot be given out again: every call has another address for y
        for _ in range(4):
            kept.append(session(x=first)["y"])
        assert cuda.counts["cuStreamBeginCapture"] == 0
        del kept
        for array, seed in [(first, 1), (second, 2)] * 4:
            np.testing.assert_allclose(session(x=array)["y"].get(), rows(2, seed) @ WEIGHT, rtol=1e-6)

    def test_the_default_stream_is_ordered_too(self, linear: Loads, cuda: Cuda, cupy: Any) -> None:
        cupy.stream = 0
        session = linear()
        x = cupy.empty((2, 3))
        for seed in range(6):
            x.set(rows(2, seed))
            np.testing.assert_allclose(session(x=x)["y"].get(), rows(2, seed) @ WEIGHT, rtol=1e-6)

    @pytest.mark.parametrize("change", ["scattered", "not aligned"])
    def test_what_does_not_fit_is_copied_on_the_gpu(self, linear: Loads, cuda: Cuda, cupy: Any, change: str) -> None:
        session = linear()
        array = rows(3) if change == "scattered" else rows(2)
        x = cupy.asarray(array).T if change == "scattered" else cupy.asarray(array).moved(16)
        expected = (array.T if change == "scattered" else array) @ WEIGHT
        for _ in range(4):
            np.testing.assert_allclose(session(x=x)["y"].get(), expected, rtol=1e-6)
        assert cuda.counts["cuMemcpyHtoDAsync"] == 0

    def test_the_first_input_says_of_which_kind_the_outputs_are(self, counter: Loads, cuda: Cuda, cupy: Any) -> None:
        session = counter()
        x, total = rows(2, 1), rows(2, 2)
        on_gpu = cupy.empty((2, 3))
        on_gpu.set(total)
        for _ in range(4):
            got = session(x=x, state_sum=on_gpu)
            assert isinstance(got["y"], np.ndarray)
            np.testing.assert_allclose(got["y"], 2 * (x + total), rtol=1e-6)
        for _ in range(4):
            got = session(x=on_gpu, state_sum=x)
            assert isinstance(got["y"], cupy.ndarray)
            np.testing.assert_allclose(got["y"].get(), 2 * (x + total), rtol=1e-6)

    def test_a_graph_with_a_copy_from_the_host_is_not_that_of_a_copy_on_the_gpu(
        self, counter: Loads, cuda: Cuda, cupy: Any
    ) -> None:
        session = counter()
        x = cupy.asarray(rows(2, 1))
        unaligned = cupy.asarray(rows(2, 3)).moved(16)
        for _ in range(2):
            for given, seed in ((rows(2, 2), 2), (unaligned, 3)):
                for _ in range(8):
                    got = session(x=x, state_sum=given)["y"]
                    np.testing.assert_allclose(got.get(), 2 * (rows(2, 1) + rows(2, seed)), rtol=1e-6)
        assert cuda.counts["cuGraphLaunch"] > 0

    def test_one_that_is_copied_for_a_call_from_the_host_is_waited_for(
        self, counter: Loads, cuda: Cuda, cupy: Any
    ) -> None:
        session = counter()
        for seed in range(6):
            scattered = cupy.empty((3, 3))
            scattered.set(rows(3, seed))
            got = session(x=rows(3), state_sum=scattered.T)["y"]
            np.testing.assert_allclose(got, 2 * (rows(3) + rows(3, seed).T), rtol=1e-6)

    def test_an_array_of_another_gpu_is_refused_by_name(self, linear: Loads, cupy: Any) -> None:
        x = cupy.asarray(rows(2))
        x.device.id = 1
        session = linear()
        with pytest.raises(InputError, match="'x' lies on GPU 1, and the engine runs on GPU 0"):
            session(x=x)
        np.testing.assert_allclose(session(x=rows(2))["y"], rows(2) @ WEIGHT, rtol=1e-6)

    def test_more_streams_than_lanes(self, linear: Loads, cuda: Cuda, cupy: Any) -> None:
        session = linear(contexts=2)
        for seed in range(9):
            cupy.stream = cuda.new_stream()
            x = cupy.empty((2, 3))
            x.set(rows(2, seed))
            np.testing.assert_allclose(session(x=x)["y"].get(), rows(2, seed) @ WEIGHT, rtol=1e-6)
        assert len(session._executor._pool.lanes) == 2  # type: ignore[attr-defined]

    def test_what_is_submitted_is_ready_in_the_order_of_the_stream(self, linear: Loads, cupy: Any) -> None:
        x = cupy.empty((2, 3))
        x.set(rows(2, 5))
        pending = linear().submit(x=x)
        assert pending.done()
        np.testing.assert_allclose(pending.result()["y"].get(), rows(2, 5) @ WEIGHT, rtol=1e-6)
