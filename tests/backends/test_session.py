"""What an engine's session does around Polygraphy's runner, with a stand-in for the runner and the engine."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import polygraphy.backend.trt
import pytest

from aot.backends._session import EngineSession
from aot.declaration import Dim, Input, ModelSpec
from aot.errors import EngineError

SPEC = ModelSpec("m", {"x": Input([Dim("batch", min=1, opt=4, max=8), 2])})
PROFILES = ({"batch": (1, 1, 2)}, {"batch": (2, 8, 8)})
OUTPUT = {"y": np.arange(6, dtype=np.float16).reshape(3, 2), "z": np.array([1.5, -2], ml_dtypes.bfloat16)}


class Runner:
    """Polygraphy's TrtRunner: outputs come as bytes in buffers that are longer than needed and used again."""

    def __init__(self, engine: Any) -> None:
        self.calls: list[Any] = []
        self.buffers = {name: np.zeros(64, np.uint8) for name in OUTPUT}

    def activate(self) -> None:
        self.calls.append("activate")

    def deactivate(self) -> None:
        self.calls.append("deactivate")

    def set_profile(self, index: int) -> None:
        self.calls.append(index)

    def infer(self, feed: Any, check_inputs: bool, return_raw_buffers: bool) -> Any:
        assert return_raw_buffers
        assert not check_inputs
        self.calls.append({name: (array.shape, array.dtype.name) for name, array in feed.items()})
        for name, array in OUTPUT.items():
            self.buffers[name][: array.nbytes] = array.reshape(-1).view(np.uint8)
        return {name: SimpleNamespace(array=self.buffers[name], shape=OUTPUT[name].shape) for name in OUTPUT}


class Engine:
    names = ("x", "y", "z")
    num_io_tensors = 3
    kinds: dict[str, str]

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_mode(self, name: str) -> str:
        return "in" if name == "x" else "out"

    def get_tensor_dtype(self, name: str) -> str:
        return self.kinds[name]


def opened(monkeypatch: pytest.MonkeyPatch, kind: str = "float32") -> EngineSession:
    monkeypatch.setattr(polygraphy.backend.trt, "TrtRunner", Runner)
    trt: Any = ModuleType("tensorrt")
    trt.TensorIOMode = SimpleNamespace(INPUT="in")
    trt.bfloat16 = "bfloat16"
    trt.nptype = np.dtype
    engine = Engine()
    engine.kinds = {"x": kind, "y": "float16", "z": "bfloat16"}
    return EngineSession(trt, engine, SPEC, PROFILES)


def test_each_call_takes_the_profile_that_holds_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(monkeypatch) as session:
        for batch in (1, 8, 3, 1):
            session({"x": np.zeros((batch, 2), np.float32)})
    calls = session._runner.calls
    shape = {n: {"x": ((n, 2), "float32")} for n in (1, 3, 8)}
    assert calls == ["activate", shape[1], 1, shape[8], shape[3], 0, shape[1], "deactivate"]


def test_outputs_have_their_own_dtype_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(monkeypatch) as session:
        got = session({"x": np.zeros((1, 2), np.float32)})
        for buffer in session._runner.buffers.values():
            buffer[:] = 0xFF
    for name, expected in OUTPUT.items():
        assert got[name].dtype == expected.dtype
        assert np.array_equal(got[name], expected)


def test_bfloat16_inputs_travel_as_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(monkeypatch, "bfloat16") as session:
        session({"x": np.zeros((1, 2), ml_dtypes.bfloat16)})
    assert session._runner.calls[1] == {"x": ((1, 2), "uint16")}


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "input 'x' is missing"),
        ({"x": np.zeros((1, 2))}, "input 'x' is float64, the engine takes float32"),
        ({"x": np.zeros((9, 2), np.float32)}, r"no optimization profile holds these shapes: x \[9, 2\]"),
    ],
)
def test_what_the_engine_does_not_take(monkeypatch: pytest.MonkeyPatch, inputs: Any, says: str) -> None:
    with opened(monkeypatch) as session, pytest.raises(EngineError, match=says):
        session(inputs)


class TestStopwatch:
    class Context:
        """Refuses once `enough` runs were started."""

        def __init__(self, enough: int) -> None:
            self.started: list[int] = []
            self.enough = enough

        def execute_async_v3(self, stream: int) -> bool:
            self.started.append(stream)
            return len(self.started) <= self.enough

    class Stream:
        ptr = 42
        waits = 0

        def synchronize(self) -> None:
            self.waits += 1

    def test_runs_follow_each_other_on_the_gpu_and_are_waited_for_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with opened(monkeypatch) as session:
            session._runner.context, session._runner.stream = self.Context(100), self.Stream()
            run = session.stopwatch({"x": np.zeros((8, 2), np.float32)})
            placed = list(session._runner.calls)
            assert run(5) > 0
        assert placed == ["activate", 1, {"x": ((8, 2), "float32")}]  # the profile of these sizes, inputs copied once
        assert session._runner.context.started == [42] * 5
        assert session._runner.stream.waits == 1

    def test_an_engine_that_stops_running_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with opened(monkeypatch) as session:
            session._runner.context, session._runner.stream = self.Context(2), self.Stream()
            run = session.stopwatch({"x": np.zeros((1, 2), np.float32)})
            with pytest.raises(EngineError, match="does not run"):
                run(3)
