"""Engines of TensorRT, run by stand-ins that compute in the host's memory. What a GPU makes of it: tests/gpu."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import aot
from aot.errors import ArtifactError, EngineError, InputError
from aot.runtime import graphs, plugin_v3
from tests.backends import fake_tensorrt
from tests.runtime import artifacts, fake_cupy, hammering
from tests.runtime.artifacts import DIMS, WEIGHT, rows
from tests.runtime.conftest import Loads, plan_of
from tests.runtime.fake_cuda import Cuda
from tests.runtime.fake_driver import CUresult


def engine() -> Any:
    """The stand-in's engine that was loaded last."""
    return fake_tensorrt.MODULE.engines[-1]


def test_numbers_are_those_of_the_engine_whatever_was_run_before(linear: Loads) -> None:
    session = linear()
    assert session.label == "engine sm90 (tensorrt 10.6.0)"
    for seed in range(30):
        x = rows(1 + seed % 4, seed)
        np.testing.assert_allclose(session(x=x)["y"], x @ WEIGHT, rtol=1e-6)


def test_what_was_returned_is_the_callers(linear: Loads) -> None:
    session = linear()
    first = session(x=rows(2, 1))["y"]
    kept = first.copy()
    session(x=rows(2, 2))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("change", [lambda a: a[::-1], lambda a: np.asfortranarray(a), lambda a: a.astype(">f4")])
def test_arrays_of_any_layout_are_taken(linear: Loads, change: Any) -> None:
    x = change(rows(3))
    np.testing.assert_allclose(linear()(x=x)["y"], x @ WEIGHT, rtol=1e-6)


def test_torch_tensors_on_the_cpu_come_back_as_such(linear: Loads) -> None:
    x = torch.from_numpy(rows(3)).requires_grad_()
    got = linear()(x=x)["y"]
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, x.detach() @ torch.from_numpy(WEIGHT))


def test_a_batch_of_nothing_within_the_range(linear: Loads) -> None:
    session = linear(profiles=[{"batch": [0, 2, 4]}])
    for _ in range(3):
        assert session(x=rows(0))["y"].shape == (0, 2)


def test_dtypes_that_numpy_lacks(cuda: Cuda, tmp_path: Path) -> None:
    folder = artifacts.write(
        tmp_path / "halves.aot",
        None,
        inputs={"x": ("float16", ["batch", 3]), "n": ("int64", ["batch"])},
        outputs={"y": ("bfloat16", ["batch", 3])},
        profiles=[DIMS],
        engines=[artifacts.ENGINE],
        plan=plan_of("halves"),
    )
    x, n = rows(2).astype(np.float16), np.array([1, 2])
    with aot.load(folder) as session:
        got = session(x=x, n=n)["y"]
        tensor = session(x=torch.from_numpy(x), n=n)["y"]
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(got.astype(np.float32), x + n[:, None], rtol=2**-7)
    assert tensor.dtype == torch.bfloat16
    np.testing.assert_array_equal(tensor.float().numpy(), got.astype(np.float32))


class TestSteadyState:
    def test_nothing_is_allocated_or_set_once_shapes_were_seen(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        session.warm_up({"batch": 1}, {"batch": 3})
        before, memory = cuda.counts.copy(), session.memory()
        for seed in range(50):
            session(x=rows(1 + 2 * (seed % 2), seed))
        cuda.counts.subtract(before)
        assert {call: count for call, count in cuda.counts.items() if count} == {
            "cuGraphLaunch": 50,
            "cuStreamSynchronize": 50,
        }
        assert session.memory() == memory

    def test_a_warm_up_for_several_callers_makes_a_lane_for_each(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        session.warm_up({"batch": 2}, callers=3)
        before = cuda.counts["cuMemAlloc"]
        calls = [session.submit(x=rows(2, seed)) for seed in range(3)]
        for seed, call in enumerate(calls):
            np.testing.assert_allclose(call.result()["y"], rows(2, seed) @ WEIGHT, rtol=1e-6)
        assert cuda.counts["cuMemAlloc"] == before

    def test_without_sizes_the_optimum_of_every_profile_is_warm(self, linear: Loads, cuda: Cuda) -> None:
        session = linear(profiles=[{"batch": [1, 1, 2]}, {"batch": [2, 4, 8]}])
        session.warm_up()
        before = cuda.counts["cuGraphLaunch"]
        session(x=rows(1))
        session(x=rows(4))
        assert cuda.counts["cuGraphLaunch"] == before + 2

    def test_memory_is_what_is_allocated_and_all_of_it_comes_back(self, linear: Loads, cuda: Cuda) -> None:
        session = linear(plan={"scratch": 4096})
        plan = len(plan_of("linear", scratch=4096))
        assert session.memory() == {"device_bytes": plan, "host_bytes": 0}
        session(x=rows(2))
        # Activations, and a place of 256 bytes for x and for y: 4 rows of 12 and of 8 bytes at most.
        assert session.memory() == {"device_bytes": plan + 4096 + 512, "host_bytes": 512}
        assert (cuda.device, cuda.host) == (4096 + 512, 512)
        session.close()
        session.close()
        assert (cuda.device, cuda.host, cuda.retained) == (0, 0, 0)
        with pytest.raises(EngineError, match="closed"):
            session(x=rows(2))

    def test_a_bound_call_that_is_closed_touches_nothing(self, linear: Loads, cuda: Cuda) -> None:
        with linear().bound(x=rows(2)) as bound:
            bound.run()
        before = cuda.counts.copy()
        for act in (bound.run, bound.synchronize, bound.outputs):
            with pytest.raises(EngineError, match="the bound call is closed"):
                act()
        assert cuda.counts["cuStreamSynchronize"] == before["cuStreamSynchronize"]
        assert cuda.counts["cuGraphLaunch"] == before["cuGraphLaunch"]

    def test_a_call_that_was_submitted_is_done_when_the_session_is_closed(self, linear: Loads) -> None:
        session = linear()
        pending = session.submit(x=rows(2))
        session.close()
        assert pending.done()
        np.testing.assert_allclose(pending.result()["y"], rows(2) @ WEIGHT, rtol=1e-6)

    def test_a_session_that_nobody_has_any_more_gives_everything_back(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = artifacts.linear(tmp_path / "a.aot", engines=[artifacts.ENGINE], plan=plan_of("linear"))
        session = aot.load(folder)
        session(x=rows(2))
        bound = session.bound(x=rows(2))
        del session
        gc.collect()
        bound.run()  # what was made of it keeps it
        np.testing.assert_allclose(bound.outputs()["y"], rows(2) @ WEIGHT, rtol=1e-6)
        del bound
        gc.collect()
        assert (cuda.device, cuda.host, cuda.retained) == (0, 0, 0)


class TestGraphs:
    def test_the_second_call_is_captured_and_the_third_launched(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        seen = []
        for seed in range(4):
            x = rows(2, seed)
            np.testing.assert_allclose(session(x=x)["y"], x @ WEIGHT, rtol=1e-6)
            seen.append((cuda.counts["cuStreamBeginCapture"], cuda.counts["cuGraphLaunch"]))
        assert seen == [(0, 0), (1, 0), (1, 1), (1, 2)]

    def test_graphs_are_bounded_and_sizes_that_go_round_do_not_capture_all_the_time(
        self, linear: Loads, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aot.runtime.tensorrt.GRAPHS", 2)
        monkeypatch.setattr(graphs, "PATIENCE", 50)
        session = linear()
        lane = None
        for seed in range(40):
            session(x=rows(1 + seed % 4, seed))
            (lane,) = session._executor._pool.lanes  # type: ignore[attr-defined]
            assert lane.captured <= 2
        assert cuda.counts["cuStreamBeginCapture"] == 2
        for seed in range(60):  # two sizes are not asked for any more, and give their places up
            x = rows(3 + seed % 2, seed)
            np.testing.assert_allclose(session(x=x)["y"], x @ WEIGHT, rtol=1e-6)
        assert cuda.counts["cuStreamBeginCapture"] == 4
        assert cuda.counts["cuGraphExecDestroy"] == 2
        assert lane is not None
        assert lane.captured == 2

    def test_an_engine_that_cannot_be_captured_runs_plainly_and_is_not_tried_again(
        self, linear: Loads, cuda: Cuda
    ) -> None:
        session = linear()
        engine().capturable = False
        for seed in range(12):
            x = rows(1 + seed % 3, seed)
            np.testing.assert_allclose(session(x=x)["y"], x @ WEIGHT, rtol=1e-6)
        assert cuda.counts["cuStreamBeginCapture"] == 1
        assert cuda.counts["cuGraphLaunch"] == 0

    def test_outputs_whose_size_values_decide_are_never_captured(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = artifacts.write(
            tmp_path / "positive.aot",
            None,
            inputs={"x": ("float32", ["batch", 3])},
            outputs={"y": ("float32", ["?"])},
            profiles=[DIMS],
            engines=[artifacts.ENGINE],
            plan=plan_of("positive"),
        )
        with aot.load(folder) as session:
            for seed in range(6):
                x = rows(4, seed)
                np.testing.assert_array_equal(session(x=x)["y"], x[x > 0])
            assert session(x=-np.abs(rows(2)))["y"].shape == (0,)
            pending = session.submit(x=np.abs(rows(2)))
            assert pending.result()["y"].shape == (6,)
            with session.bound(x=np.abs(rows(3))) as bound:
                bound.run()
                assert bound.outputs()["y"].shape == (9,)
        assert cuda.counts["cuStreamBeginCapture"] == 0
        assert (cuda.device, cuda.host) == (0, 0)


class TestProfiles:
    PROFILES = ({"batch": [1, 1, 4]}, {"batch": [1, 8, 8]}, {"batch": [16, 16, 32]})

    def test_the_profile_is_the_one_tuned_closest(self, linear: Loads) -> None:
        session = linear(profiles=self.PROFILES)
        for size in (1, 2, 3, 4, 8, 16, 32, 5):
            x = rows(size)
            np.testing.assert_allclose(session(x=x)["y"], x @ WEIGHT, rtol=1e-6)
        fits = session._reader.signature.fit
        chosen = {size: fits({"x": (size, 3)})[0] for size in (1, 2, 3, 4, 8, 20)}
        assert chosen == {1: 0, 2: 0, 3: 1, 4: 1, 8: 1, 20: 2}

    def test_a_size_between_them_names_the_dim_and_the_ranges(self, linear: Loads) -> None:
        with pytest.raises(InputError) as raised:
            linear(profiles=self.PROFILES)(x=rows(12))
        assert "Dim 'batch' has size 12 at input 'x' axis 0, and the engine takes 1..4 or 1..8 or 16..32" in str(
            raised.value
        )


class TestSubmit:
    def test_more_calls_than_lanes_are_finished_by_the_ones_that_need_room(self, linear: Loads) -> None:
        session = linear(contexts=2)
        calls = [session.submit(x=rows(2, seed)) for seed in range(9)]
        for seed, call in reversed(list(enumerate(calls))):
            np.testing.assert_allclose(call.result()["y"], rows(2, seed) @ WEIGHT, rtol=1e-6)
            assert call.result() is call.result()
        assert len(session._executor._pool.lanes) == 2  # type: ignore[attr-defined]

    def test_it_does_not_wait_for_the_gpu(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        session.warm_up({"batch": 2})
        before = cuda.counts["cuStreamSynchronize"]
        pending = session.submit(x=rows(2))
        assert cuda.counts["cuStreamSynchronize"] == before
        assert not pending.done()
        pending.result()
        assert pending.done()

    def test_closing_finishes_what_was_submitted(self, linear: Loads) -> None:
        session = linear()
        pending = session.submit(x=rows(2))
        session.close()
        np.testing.assert_allclose(pending.result()["y"], rows(2) @ WEIGHT, rtol=1e-6)


class TestBound:
    def test_it_runs_on_what_it_was_given_and_copies_nothing(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        x = rows(3)
        with session.bound(x=x) as bound:
            before = cuda.counts.copy()
            x[:] = 0
            for _ in range(5):
                bound.run()
            bound.synchronize()
            cuda.counts.subtract(before)
            assert {call: n for call, n in cuda.counts.items() if n} == {"cuGraphLaunch": 5, "cuStreamSynchronize": 1}
            np.testing.assert_allclose(bound.outputs()["y"], rows(3) @ WEIGHT, rtol=1e-6)
        bound.close()

    def test_arrays_of_the_gpu_stay_the_callers(
        self, linear: Loads, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cupy = fake_cupy.install(monkeypatch, cuda, stream=cuda.new_stream())
        x = cupy.asarray(rows(3, 1))
        with linear().bound(x=x) as bound:
            x.set(rows(3, 2))
            bound.run()
            np.testing.assert_allclose(bound.outputs()["y"].get(), rows(3, 2) @ WEIGHT, rtol=1e-6)

    def test_an_engine_that_cannot_be_captured_runs_too(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        engine().capturable = False
        with session.bound(x=rows(3)) as bound:
            bound.run()
            bound.run()
            np.testing.assert_allclose(bound.outputs()["y"], rows(3) @ WEIGHT, rtol=1e-6)


class TestErrors:
    def test_what_tensorrt_logs_is_in_the_message_and_the_lane_comes_back(self, linear: Loads) -> None:
        session = linear(contexts=1)
        engine().broken = True
        with pytest.raises(EngineError, match="TensorRT does not run the engine: the layer exploded"):
            session(x=rows(2))
        engine().broken = False
        np.testing.assert_allclose(session(x=rows(2))["y"], rows(2) @ WEIGHT, rtol=1e-6)

    def test_what_a_plugins_kernel_raised_is_told_in_its_thread(
        self, linear: Loads, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = EngineError("the kernel is not launched", where="node 'norm' (add_rms_norm)")
        elsewhere = EngineError("of another call")
        monkeypatch.setattr(plugin_v3, "_kept", [(1, elsewhere), (threading.get_ident(), kept)])
        session = linear()
        engine().broken = True
        with pytest.raises(EngineError) as raised:
            session(x=rows(2))
        assert raised.value is kept
        assert plugin_v3._kept == [(1, elsewhere)]

    def test_an_error_of_the_gpu_says_its_name_and_what_to_do(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        session.warm_up({"batch": 2})
        cuda.refuses["cuStreamSynchronize"] = (CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, b"")
        pending = session.submit(x=rows(2))
        engine().log.log(fake_tensorrt.Severity.ERROR, "genericReformat.cpp:9: an access beyond the buffer")
        for call, said in (
            (pending.result, "an access beyond the buffer"),
            (lambda: session(x=rows(2)), "it gives no reason"),
        ):
            with pytest.raises(EngineError, match=f"CUDA_ERROR_ILLEGAL_ADDRESS.*; TensorRT: {said}") as raised:
                call()
            assert "start the process anew" in str(raised.value)
        del cuda.refuses["cuStreamSynchronize"]

    def test_a_gpu_that_is_full(self, linear: Loads, cuda: Cuda) -> None:
        session = linear()
        cuda.refuses["cuMemAlloc"] = (CUresult.CUDA_ERROR_OUT_OF_MEMORY, b"")
        with pytest.raises(EngineError, match=r"GPU 0 has no 1,024 bytes: CUDA_ERROR_OUT_OF_MEMORY"):
            session(x=rows(2))
        cuda.refuses.clear()
        np.testing.assert_allclose(session(x=rows(2))["y"], rows(2) @ WEIGHT, rtol=1e-6)

    def test_an_engine_of_other_inputs_than_the_manifest_says(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = artifacts.linear(tmp_path / "other.aot", engines=[artifacts.ENGINE], plan=plan_of("counter"))
        with pytest.raises(ArtifactError, match="has state_sum, x where the manifest has x"):
            aot.load(folder)
        folder = artifacts.linear(tmp_path / "halves.aot", engines=[artifacts.ENGINE], plan=plan_of("positive"))
        with aot.load(folder) as session:
            assert session.outputs["y"].dtype == "float32"

    def test_an_input_that_the_engine_does_not_read_is_asked_for_and_left(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = artifacts.write(
            tmp_path / "more.aot",
            None,
            inputs={"unread": ("int64", ["batch"]), "x": ("float32", ["batch", 3])},
            outputs={"y": ("float32", ["batch", 2])},
            profiles=[DIMS],
            engines=[artifacts.ENGINE],
            plan=plan_of("linear"),
        )
        with aot.load(folder) as session:
            for _ in range(3):
                got = session(unread=np.zeros(2, np.int64), x=rows(2))
                np.testing.assert_allclose(got["y"], rows(2) @ WEIGHT, rtol=1e-6)

    def test_a_plan_that_tensorrt_does_not_load(self, cuda: Cuda, tmp_path: Path) -> None:
        folder = artifacts.linear(tmp_path / "damaged.aot", engines=[artifacts.ENGINE], plan=b"no plan")
        with pytest.raises(
            EngineError, match=r"TensorRT 10.6.0 on NVIDIA H200 \(sm90\) cannot load the engine.*not a plan"
        ):
            aot.load(folder)


def hammered(linear: Loads, cuda: Cuda, calls: int) -> None:
    session = linear(profiles=[{"batch": [1, 2, 4]}, {"batch": [4, 8, 16]}], contexts=3)
    session.warm_up(*({"batch": size} for size in range(1, 17)), callers=3)
    memory = session.memory()
    hammering.hammer(session, WEIGHT, largest=16, calls=calls)
    assert session.memory() == memory
    assert len(session._executor._pool.lanes) == 3  # type: ignore[attr-defined]


def test_eight_threads_at_once_get_their_own_numbers_and_memory_does_not_grow(linear: Loads, cuda: Cuda) -> None:
    hammered(linear, cuda, 2000)


@pytest.mark.slow
def test_ten_thousand_calls_of_eight_threads(linear: Loads, cuda: Cuda) -> None:
    hammered(linear, cuda, 10_000)
