"""Calls of a session that runs the final graph on onnxruntime: numbers, kinds of arrays, and what is refused."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import aot
from aot.errors import AotError, EngineError, InputError, UsageError
from aot.runtime import Session, Tensor, calls
from tests.runtime import artifacts, hammering
from tests.runtime.artifacts import WEIGHT, rows
from tests.runtime.test_dlpack import Foreign


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return aot.load(artifacts.linear(tmp_path / "tiny.aot"))


def test_it_says_what_it_takes_and_what_runs(session: Session) -> None:
    assert session.inputs == {"x": Tensor("float32", ("batch", 3))}
    assert session.outputs == {"y": Tensor("float32", ("batch", 2))}
    assert session.label.startswith("final graph, fp32 (onnxruntime ")
    assert session.label in repr(session)
    assert session.memory()["device_bytes"] == 0
    assert session.memory()["host_bytes"] > WEIGHT.nbytes


def test_every_way_to_call_it_gives_the_same_numbers(session: Session) -> None:
    for count in (1, 2, 3, 4):
        x = rows(count, count)
        expected = x @ WEIGHT
        with session.bound({"x": x}) as bound:
            bound.run()
            bound.synchronize()
            found = [session({"x": x}), session(x=x), session.submit(x=x).result(), bound.outputs()]
        for one in found:
            assert list(one) == ["y"]
            np.testing.assert_allclose(one["y"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "change",
    [lambda a: a[::-1], np.asfortranarray, lambda a: a.astype(">f4"), lambda a: np.broadcast_to(a[:1], a.shape)],
)
def test_arrays_of_any_layout_are_taken(session: Session, change: Any) -> None:
    x = change(rows(3))
    np.testing.assert_allclose(session(x=x)["y"], x @ WEIGHT, rtol=1e-5)


def test_not_a_number_goes_through(session: Session) -> None:
    x = rows(2)
    x[0, 0] = np.nan
    assert np.isnan(session(x=x)["y"]).tolist() == [[True, True], [False, False]]


def test_what_comes_back_is_of_the_kind_that_was_given(session: Session) -> None:
    x = rows(2)
    assert isinstance(session(x=x)["y"], np.ndarray)
    tensor = session(x=torch.from_numpy(x).requires_grad_())["y"]
    assert isinstance(tensor, torch.Tensor)
    torch.testing.assert_close(tensor, torch.from_numpy(x @ WEIGHT))
    foreign = session(x=Foreign(x))["y"]  # of a library that nobody knows, and which says of no way back
    np.testing.assert_allclose(foreign, x @ WEIGHT, rtol=1e-5)


def test_a_library_that_follows_the_array_api_gets_its_own_arrays(session: Session) -> None:
    class Namespace:
        @staticmethod
        def from_dlpack(array: Any) -> tuple[str, Any]:
            return "theirs", array

    class Standard(Foreign):
        def __array_namespace__(self) -> Any:
            return Namespace

    kind, array = session(x=Standard(rows(2)))["y"]
    assert kind == "theirs"
    np.testing.assert_allclose(array, rows(2) @ WEIGHT, rtol=1e-5)


def test_an_input_that_the_graph_does_not_read_is_asked_for_and_left(tmp_path: Path) -> None:
    folder = artifacts.write(
        tmp_path / "more.aot",
        artifacts.LINEAR,
        inputs={"unread": ("int64", ["batch"]), "x": ("float32", ["batch", 3])},
        outputs={"y": ("float32", ["batch", 2])},
        profiles=[artifacts.DIMS],
    )
    with aot.load(folder) as session:
        got = session(unread=np.zeros(2, np.int64), x=rows(2))
        np.testing.assert_allclose(got["y"], rows(2) @ WEIGHT, rtol=1e-5)


def test_half_precision_in_and_out(tmp_path: Path) -> None:
    graph = """<ir_version: 10, opset_import: ["": 20]>
    twice (float16[batch, 3] x) => (float16[batch, 3] y) { y = Add(x, x) }"""
    tensor = ("float16", ["batch", 3])
    folder = artifacts.write(
        tmp_path / "halves.aot", graph, {"x": tensor}, {"y": tensor}, [artifacts.DIMS], precision="fp16"
    )
    x = rows(2).astype(np.float16)
    with aot.load(folder) as session:
        got = session(x=x)["y"]
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got, x + x)
        assert session(x=torch.from_numpy(x))["y"].dtype == torch.float16


def test_bfloat16_is_taken_where_onnxruntime_has_kernels(tmp_path: Path) -> None:
    graph = """<ir_version: 10, opset_import: ["": 20]>
    same (bfloat16[batch, 3] x) => (bfloat16[batch, 3] y, float[batch, 3] z) { y = Identity(x)  z = Cast<to=1>(x) }"""
    folder = artifacts.write(
        tmp_path / "a.aot",
        graph,
        {"x": ("bfloat16", ["batch", 3])},
        {"y": ("bfloat16", ["batch", 3]), "z": ("float32", ["batch", 3])},
        [artifacts.DIMS],
        precision="bf16",
    )
    x = rows(2).astype(ml_dtypes.bfloat16)
    with aot.load(folder) as session:
        for given in (x, torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)):
            got = session(x=given)
            assert str(got["y"].dtype).removeprefix("torch.") == "bfloat16"
            np.testing.assert_array_equal(np.asarray(got["z"]), x.astype(np.float32))
        np.testing.assert_array_equal(session(x=x)["y"], x)
    graph = """<ir_version: 10, opset_import: ["": 20]>
    other (bfloat16[batch, 3] x) => (bfloat16[batch, 3] y) { y = Sin(x) }"""
    folder = artifacts.write(
        tmp_path / "b.aot", graph, {"x": ("bfloat16", ["batch", 3])}, {"y": ("bfloat16", ["batch", 3])},
        [artifacts.DIMS], precision="bf16",
    )  # fmt: skip
    with pytest.raises(EngineError, match="does not take the graph") as raised:
        aot.load(folder)
    assert "`aot run` emulates" in str(raised.value.fix)


def test_what_is_remembered_of_shapes_is_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "REMEMBERED", 2)
    for count in (1, 2, 3, 4, 1, 2, 3, 4):
        assert session(x=rows(count))["y"].shape == (count, 2)
        assert len(session._reader._known) <= 2


def test_a_bound_call_has_copies_of_its_own_and_outputs_before_its_first_run(session: Session) -> None:
    x = rows(2)
    bound = session.bound(x=x)
    x[:] = 0
    for _ in range(2):
        np.testing.assert_allclose(bound.outputs()["y"], rows(2) @ WEIGHT, rtol=1e-6)
        bound.run()


def test_a_tensor_whose_memory_holds_the_other_sign(session: Session) -> None:
    x = torch.complex(torch.zeros(2, 3), torch.from_numpy(rows(2))).conj().imag
    assert x.is_neg()
    np.testing.assert_allclose(session(x=x)["y"].numpy(), -rows(2) @ WEIGHT, rtol=1e-6)


class TestRefused:
    @pytest.mark.parametrize(
        ("inputs", "says"),
        [
            ({}, "input 'x' is missing"),
            ({"x": rows(1), "z": rows(1)}, "unknown input 'z'"),
            ({"X": rows(1)}, "unknown input 'X'"),
            ({"x": rows(1).astype(np.int64)}, "input 'x' is int64, and the model takes float32"),
            ({"x": torch.zeros(1, 3, dtype=torch.float64)}, "input 'x' is float64, and the model takes float32"),
            ({"x": torch.zeros(1, 3).to_sparse()}, "input 'x': a tensor"),
            ({"x": torch.zeros(1, 3, device="meta")}, "input 'x': a tensor on meta"),
            ({"x": torch.nested.nested_tensor([torch.zeros(1, 3)])}, "input 'x': a tensor on cpu of layout nested"),
            ({"x": rows(1)[0]}, "input 'x' has 1 axes, and the model takes 2"),
            ({"x": rows(2)[:, :2]}, "input 'x' axis 1 has size 2, and the model takes 3"),
            ({"x": rows(5)}, "Dim 'batch' has size 5 at input 'x' axis 0, and the engine takes 1..4"),
            ({"x": rows(0)}, "Dim 'batch' has size 0 at input 'x' axis 0, and the engine takes 1..4"),
            ({"x": [[1.0, 2.0, 3.0]]}, "input 'x': 'list' is no array"),
            ({"x": 3}, "input 'x': 'int' is no array"),
            ({"x": rows(1), 3: rows(1)}, "unknown input '3'"),
            ([rows(1)], "inputs come by name, not as a list"),
        ],
    )
    def test_the_message_says_what_and_the_way_out(self, session: Session, inputs: Any, says: str) -> None:
        for call in (session, session.submit, session.bound):
            with pytest.raises(InputError) as raised:
                call(inputs)
            assert raised.value.what.startswith(says)
            assert raised.value.fix

    def test_sizes_of_two_inputs_that_contradict_each_other(self, tmp_path: Path) -> None:
        graph = """<ir_version: 10, opset_import: ["": 20]>
        add (float[batch, seq] a, float[batch, seq] b) => (float[batch, seq] y) { y = Add(a, b) }"""
        tensor = ("float32", ["batch", "seq"])
        profiles = [{"batch": [1, 1, 2], "seq": [8, 8, 64]}, {"batch": [1, 8, 32], "seq": [8, 8, 16]}]
        folder = artifacts.write(
            tmp_path / "a.aot", graph, {"a": tensor, "b": tensor}, {"y": tensor}, profiles, multiples={"seq": 8}
        )
        session = aot.load(folder)

        def call(a: tuple[int, int], b: tuple[int, int]) -> Any:
            return session(a=np.zeros(a, np.float32), b=np.zeros(b, np.float32))["y"].shape

        assert call((2, 64), (2, 64)) == (2, 64)
        with pytest.raises(InputError, match="'seq' has two sizes: 16 at input 'a' axis 1, 24 at input 'b' axis 1"):
            call((1, 16), (1, 24))
        with pytest.raises(InputError, match="no optimization profile holds batch=8, seq=64 together") as raised:
            call((8, 64), (8, 64))
        assert raised.value.where == "profiles: batch 1..2, seq 8..64; batch 1..32, seq 8..16"
        with pytest.raises(InputError, match="'seq' has size 12 at input 'a' axis 1, no multiple of 8"):
            call((1, 12), (1, 12))

    def test_sizes_that_cannot_be_warm(self, session: Session) -> None:
        session.warm_up({"batch": 4})
        with pytest.raises(UsageError, match="unknown Dim 'bach'"):
            session.warm_up({"bach": 1})
        for size in (9, 10**12):  # of the second no memory could hold the input
            with pytest.raises(InputError, match=r"takes 1\.\.4"):
                session.warm_up({"batch": size})
        for bad in ({"batch": -1}, {"batch": "2"}, {"batch": 1.5}, ("batch", 2)):
            with pytest.raises(InputError, match=r"cannot have size|sizes come by Dim"):
                session.warm_up(bad)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="callers=0: they are counted from 1"):
            session.warm_up(callers=0)

    def test_a_session_that_is_closed(self, session: Session) -> None:
        with session:
            stream, bound = session.stream(), session.bound(x=rows(1))
            pending = session.submit(x=rows(1))
        np.testing.assert_allclose(pending.result()["y"], rows(1) @ WEIGHT, rtol=1e-6)
        for call in (session, session.submit, session.bound, stream, stream.submit):
            with pytest.raises(EngineError, match="the session is closed"):
                call(x=rows(1))
        acts: list[Callable[[], Any]] = [
            *(session.warm_up, session.stream, session.state, session.reset, session.__enter__),
            *(bound.run, bound.synchronize, bound.outputs, stream.state, stream.reset),
        ]
        for act in acts:
            with pytest.raises(EngineError, match="the session is closed"):
                act()

    def test_a_bound_call_that_is_closed(self, session: Session) -> None:
        with session.bound(x=rows(1)) as bound:
            bound.run()
        for act in (bound.run, bound.synchronize, bound.outputs):
            with pytest.raises(EngineError, match="the bound call is closed"):
                act()

    def test_every_error_is_one_of_aots(self) -> None:
        assert issubclass(InputError, AotError)


def test_nothing_keeps_a_session_that_is_closed(tmp_path: Path) -> None:
    session = aot.load(artifacts.linear(tmp_path / "a.aot"))
    session.submit(x=rows(1)).result()
    session.close()
    gone = weakref.ref(session._executor)
    del session
    gc.collect()
    assert gone() is None


def test_eight_threads_at_once_get_their_own_numbers(session: Session) -> None:
    hammering.hammer(session, WEIGHT, largest=4, calls=400)


@pytest.mark.slow
def test_ten_thousand_calls_of_eight_threads(session: Session) -> None:
    hammering.hammer(session, WEIGHT, largest=4, calls=10_000)
