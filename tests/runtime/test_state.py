"""States that stay where the engine is: on onnxruntime, and on a GPU that is not there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aot
from aot.errors import EngineError, InputError, UsageError
from aot.runtime import Session
from tests.runtime import artifacts, fake_cuda, fake_cupy, fake_engine
from tests.runtime.conftest import Loads, plan_of
from tests.runtime.fake_cuda import Cuda

Opens = Callable[..., Session]
ONE = np.ones((2, 3), np.float32)


@pytest.fixture(params=["onnxruntime", "gpu"])
def opens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Opens]:
    """Loads the model that gives twice the sum of all its inputs so far."""
    if request.param == "gpu":
        fake_engine.install(monkeypatch, fake_cuda.install(monkeypatch))
    made: list[Session] = []

    def load(**options: Any) -> Session:
        folder = artifacts.counter(
            tmp_path / f"{len(made)}.aot", engines=[artifacts.ENGINE], plan=plan_of("counter"), **options
        )
        made.append(aot.load(folder))
        assert made[-1].label.startswith("engine" if request.param == "gpu" else "final graph")
        return made[-1]

    yield load
    for session in made:
        session.close()


def doubled(outputs: Any) -> float:
    """What all elements of y are."""
    (value,) = set(outputs["y"].ravel().tolist())
    return float(value)


def test_each_call_takes_what_the_one_before_left(opens: Opens) -> None:
    session = opens()
    assert session.state() == {}
    for count in range(1, 9):
        got = session(x=ONE)
        assert list(got) == ["y"]  # the state stays where it is
        assert doubled(got) == 2 * count
    np.testing.assert_array_equal(session.state()["state_sum"], 8 * ONE)


def test_reset_begins_anew_and_takes_what_state_gave(opens: Opens) -> None:
    session = opens(initial=np.float32(10))
    assert doubled(session(x=ONE)) == 22
    kept = session.state()
    session(x=ONE)
    session.reset(kept)
    assert doubled(session(x=ONE)) == 24
    session.reset({"state_sum": torch.full((2, 3), 5.0)})
    assert doubled(session(x=ONE)) == 12
    session.reset()
    assert session.state() == {}
    assert doubled(session(x=ONE[:1])) == 22  # and another size


def test_a_warm_up_leaves_the_states_as_they_are(opens: Opens) -> None:
    session = opens(initial=np.float32(1))
    session.warm_up({"batch": 3})
    assert session.state() == {}
    assert doubled(session(x=ONE)) == 4  # another size than the one that was warmed up
    session.warm_up({"batch": 2}, {"batch": 4})
    np.testing.assert_array_equal(session.state()["state_sum"], 2 * ONE)
    assert doubled(session(x=ONE)) == 6


def test_a_state_that_begins_with_values_that_differ(opens: Opens) -> None:
    initial = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(opens(initial=initial)(x=ONE)["y"], 2 * (initial + ONE))


def test_streams_do_not_disturb_each_other(opens: Opens) -> None:
    session = opens()
    first, second = session.stream(), session.stream()
    for count in range(1, 5):
        assert doubled(first(x=ONE)) == 2 * count
        assert doubled(second(x=3 * ONE)) == 6 * count
        assert doubled(session(x=5 * ONE)) == 10 * count
    first.reset()
    assert doubled(first(x=ONE)) == 2
    assert doubled(second(x=ONE)) == 26
    first.close()
    second.close()


def test_a_caller_who_gives_the_state_gets_it_back_and_changes_nothing(opens: Opens) -> None:
    session = opens()
    session(x=ONE)
    got = session(x=ONE, state_sum=7 * ONE)
    np.testing.assert_array_equal(got["y"], 16 * ONE)
    np.testing.assert_array_equal(got["state_sum_out"], 8 * ONE)
    assert doubled(session(x=ONE)) == 4


def test_calls_that_were_submitted_hand_it_on_in_order(opens: Opens) -> None:
    session = opens()
    pending = [session.submit(x=ONE) for _ in range(20)]
    assert doubled(session(x=ONE)) == 42
    assert [doubled(call.result()) for call in reversed(pending)] == [2 * count for count in range(20, 0, -1)]


def test_a_call_that_fails_leaves_it(opens: Opens) -> None:
    session = opens()
    session(x=ONE)
    with pytest.raises(InputError, match="float64"):
        session(x=ONE.astype(np.float64))
    assert doubled(session(x=ONE)) == 4


def test_bound_calls_begin_where_the_model_does_every_time(opens: Opens) -> None:
    session = opens(initial=np.float32(1))
    session(x=ONE)
    with session.bound(x=ONE) as bound:
        bound.run()
        bound.run()
        np.testing.assert_array_equal(bound.outputs()["state_sum_out"], 2 * ONE)
    assert doubled(session(x=ONE)) == 6


def test_threads_may_share_a_stream(opens: Opens) -> None:
    session = opens()
    seen: list[float] = []

    def work() -> None:
        seen.extend(doubled(session(x=ONE)) for _ in range(25))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(seen) == [2.0 * count for count in range(1, 101)]


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda s: s(x=ONE[:1]), "Dim 'batch' has two sizes: 1 at input 'x' axis 0, 2 at state 'state_sum' axis 0"),
        (lambda s: s.reset({"state_sums": ONE}), "unknown state 'state_sums'"),
        (lambda s: s.reset({}), "the state 'state_sum' is missing"),
        (lambda s: s.reset([ONE]), "states come by name, not as a list"),
        (lambda s: s.reset(ONE), "states come by name, not as a ndarray"),
        (lambda s: s.reset({3: ONE}), "unknown state '3'"),
        (lambda s: s.reset({"state_sum": [1]}), "the state 'state_sum': 'list' is no array"),
        (
            lambda s: s.reset({"state_sum": ONE.astype(int)}),
            "the state 'state_sum' is int64, and the model takes float32",
        ),
        (lambda s: s.reset({"state_sum": ONE[:, :2]}), "state 'state_sum' axis 1 has size 2, and the model takes 3"),
    ],
)
def test_what_does_not_fit_is_said_and_changes_nothing(opens: Opens, act: Any, says: str) -> None:
    session = opens()
    session(x=ONE)
    with pytest.raises((InputError, UsageError), match=says):
        act(session)
    assert doubled(session(x=ONE)) == 4


def test_a_model_without_states_says_so(tmp_path: Path) -> None:
    session = aot.load(artifacts.linear(tmp_path / "a.aot"))
    with pytest.raises(UsageError) as raised:
        session.reset({"h": ONE})
    assert raised.value.fix == "the model keeps none: declare states=[...] in model.py"


class TestOnTheGpu:
    def test_it_never_goes_through_the_host(self, counter: Loads, cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
        cupy = fake_cupy.install(monkeypatch, cuda, stream=cuda.new_stream())
        session = counter()
        x = cupy.asarray(ONE)
        got = None
        for _ in range(12):
            got = session(x=x)
        assert not [call for call in cuda.counts if call.endswith("Async")]
        assert cuda.counts["cuGraphLaunch"] > 0  # two places each are two graphs for an address of y
        assert got is not None
        np.testing.assert_array_equal(got["y"].get(), 24 * ONE)

    def test_after_a_warm_up_every_call_is_a_launch_and_beginning_anew_allocates_nothing(
        self, counter: Loads, cuda: Cuda
    ) -> None:
        session = counter()
        session.warm_up({"batch": 2})
        before = cuda.counts.copy()
        for count in range(1, 6):
            assert doubled(session(x=ONE)) == 2 * count
        session.reset()
        assert doubled(session(x=ONE)) == 2
        cuda.counts.subtract(before)
        assert cuda.counts["cuGraphLaunch"] == 6
        assert not [call for call in cuda.counts if ("Alloc" in call or "Capture" in call) and cuda.counts[call]]

    def test_it_follows_the_caller_from_stream_to_stream(
        self, counter: Loads, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cupy = fake_cupy.install(monkeypatch, cuda)
        session = counter(contexts=3)
        streams = [cuda.new_stream(), cuda.new_stream(), 0]
        got = None
        for count in range(9):
            cupy.stream = streams[count % 3]
            x = cupy.empty((2, 3))
            x.set(ONE)
            got = session(x=x)["y"]
        assert got is not None
        np.testing.assert_array_equal(got.get(), 18 * ONE)  # only the last stream is waited for

    def test_its_memory_comes_back_with_the_stream(self, counter: Loads, cuda: Cuda) -> None:
        session = counter()
        session(x=ONE)
        before = session.memory()["device_bytes"]
        stream = session.stream()
        stream(x=ONE)
        assert session.memory()["device_bytes"] == before + 2 * 256
        stream.close()
        assert session.memory()["device_bytes"] == before
        stream(x=ONE)
        del stream
        assert session.memory()["device_bytes"] == before

    def test_it_does_not_outlive_the_session(self, counter: Loads, cuda: Cuda) -> None:
        session = counter()
        stream = session.stream()
        stream(x=ONE)
        session.close()
        assert (cuda.device, cuda.retained) == (0, 0)
        stream.close()
        for act in (lambda: stream(x=ONE), lambda: stream.submit(x=ONE), stream.state, stream.reset):
            with pytest.raises(EngineError, match="the session is closed"):
                act()
        assert (cuda.device, cuda.retained) == (0, 0)
