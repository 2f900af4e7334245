"""The phases of a measurement, with processes that only note what they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.bench.accuracy import Distance, distance
from aot.bench.contender import Job
from aot.bench.lane import Lane
from aot.bench.measuring import Effort, Question, measure
from aot.bench.meters import Meters
from aot.bench.schedule import BLOCKS
from aot.bench.timing import Warm
from aot.bench.worker import Failed
from aot.progress import Silent

INPUTS = {"x": np.ones((4, 2), np.float32)}
ANSWER = {"y": np.array([3.0, 4.0], np.float32)}
RIGHT = Question(INPUTS, None, ANSWER)
HUNDRED = Effort(100, 1.0)


class Machine:
    """Everything that happens, in order: (contender, command). A run of `NAME` takes what `takes` says."""

    def __init__(self, **takes: float) -> None:
        self.takes, self.log = takes, list[tuple[str, str]]()
        self.fails: dict[tuple[str, str, int], BaseException] = {}
        self.answers = {name: ANSWER for name in takes}
        self.bytes, self.millijoules = 1000, 0

    def worker(self, job: Job) -> Any:
        return FakeWorker(self, job.tool)

    def commands(self, name: str) -> list[str]:
        return [command for who, command in self.log if who == name]

    def order(self, command: str) -> list[str]:
        return [who for who, what in self.log if what == command]


class FakeWorker:
    pid = 0

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name

    def send(self, command: str, *arguments: Any) -> None:
        self.machine.log.append((self.name, command))

    def receive(self, watch: Callable[[], None] | None = None) -> Any:
        return self._answer("start", ())

    def ask(self, command: str, *arguments: Any, watch: Callable[[], None] | None = None) -> Any:
        self.machine.log.append((self.name, command))
        if command == "first":
            self.machine.bytes += 500
            assert watch is None or watch() is None
            self.machine.bytes -= 100
        return self._answer(command, arguments)

    def _answer(self, command: str, arguments: tuple[Any, ...]) -> Any:
        machine = self.machine
        error = machine.fails.get((self.name, command, machine.commands(self.name).count(command)))
        if error is not None:
            raise error
        once = machine.takes[self.name]
        if command == "back_to_back":
            machine.millijoules += 3000
        return {
            "start": None,
            "first": {
                "seconds": 7.0,
                "load": 5.0,
                "outputs": machine.answers[self.name],
                "label": f"the label of {self.name}",
                "precision": "fp16",
            },
            "warm": Warm(once, 9, True),
            "block": [once] * (arguments[0] if command == "block" else 0),
            "back_to_back": (50, 2.0),
            "host_bytes": 123,
            "launches": 11,
            "answers": machine.answers[self.name],
        }[command]

    def close(self) -> None:
        self.machine.log.append((self.name, "close"))


class Gpu(Meters):
    """Meters that read the machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def memory(self) -> int | None:
        return self.machine.bytes

    def energy(self) -> int | None:
        return self.machine.millijoules

    def clocks(self) -> dict[str, Any] | None:
        return {"sm_mhz": 1980, "memory_mhz": 3201, "slowed": []}


def lanes(*names: str) -> list[Lane]:
    return [Lane(name, name, Job(name, "model", "fp16", True, 1, {})) for name in names]


def measured(machine: Machine, effort: Effort = HUNDRED, question: Question = RIGHT, gpu: bool = False) -> Any:
    found = lanes(*machine.takes)
    around = measure(found, question, effort, Gpu(machine) if gpu else Meters(None), Silent(), machine.worker)
    rows = {lane.name: lane.row({"batch": 4}, items=4) for lane in found}
    return rows, around


def test_first_calls_come_one_by_one_each_followed_by_its_warm_up() -> None:
    machine = Machine(a=0.001, b=0.002)
    measured(machine)
    phases = [(who, what) for who, what in machine.log if what in ("start", "first", "warm", "block")][:6]
    assert phases == [
        ("a", "start"), ("b", "start"), ("a", "first"), ("a", "warm"), ("b", "first"), ("b", "warm"),
    ]  # fmt: skip


def test_blocks_are_in_turns_in_the_order_of_the_seed() -> None:
    machine, other, again = (Machine(a=0.001, b=0.002, c=0.003) for _ in range(3))
    measured(machine, Effort(100, 1.0, seed=1))
    order = machine.order("block")
    rounds = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert len(rounds) == BLOCKS
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert {one[0] for one in rounds} == {"a", "b", "c"}
    measured(other, Effort(100, 1.0, seed=2))
    measured(again, Effort(100, 1.0, seed=1))
    assert other.order("block") != order == again.order("block")


def test_a_row_without_a_gpu_says_what_it_lacks() -> None:
    rows, _ = measured(Machine(a=0.002))
    assert rows["a"] == {
        "tool": "a",
        "name": "a",
        "label": "the label of a",
        "precision": "fp16",
        "sizes": {"batch": 4},
        "runs": 100,
        "p50_ms": 2.0,
        "p90_ms": 2.0,
        "p99_ms": 2.0,
        "spread": 0.0,
        "first_ms": 7000.0,
        "load_ms": 5000.0,
        "throughput": 2000.0,
        "launches": None,
        "gpu_bytes": None,
        "host_bytes": 123,
        "energy_mj": None,
        "cosine": 1.0,
        "relative_l2": 0.0,
        "reason": "gpu_bytes, energy_mj, launches: no GPU",
    }


def test_on_a_gpu_memory_is_the_peak_over_what_was_before_and_energy_that_of_calls_back_to_back() -> None:
    rows, around = measured(Machine(a=0.002, b=0.004), gpu=True)
    for row in rows.values():
        assert row["gpu_bytes"] == 500
        assert row["energy_mj"] == 3000 / 50
        assert row["throughput"] == 50 * 4 / 2.0
        assert row["launches"] == 11
        assert row["reason"] is None
    assert len(around.clocks) == 2 * BLOCKS


def test_the_profiler_comes_after_all_that_it_would_slow() -> None:
    machine = Machine(a=0.002)
    measured(machine, gpu=True)
    assert machine.commands("a")[-4:] == ["back_to_back", "host_bytes", "launches", "close"]


def test_seconds_give_each_contender_the_runs_that_fit() -> None:
    rows, _ = measured(Machine(fast=0.001, slow=0.1), Effort(None, 5.0))
    assert rows["fast"]["runs"] == 2000
    assert rows["slow"]["runs"] == 50
    assert rows["slow"]["p99_ms"] is None
    assert "p99_ms: 50 runs, and it takes 100: --runs 100" in rows["slow"]["reason"]


@pytest.mark.parametrize(("command", "which"), [("start", 1), ("first", 1), ("warm", 1), ("block", 7)])
def test_one_that_fails_is_listed_with_its_reason_and_stops_nobody(command: str, which: int) -> None:
    machine = Machine(a=0.001, bad=0.002, c=0.003)
    machine.fails["bad", command, which] = Failed("CUDA out of memory")
    rows, around = measured(machine)
    assert rows["bad"]["reason"] == "CUDA out of memory"
    assert (rows["bad"]["runs"], rows["bad"]["p50_ms"], rows["bad"]["throughput"]) == (0, None, None)
    assert machine.commands("bad").count("close") == 1
    assert machine.commands("bad")[-1] == "close"
    assert [rows[name]["runs"] for name in "ac"] == [100, 100]
    assert not around.interrupted


def test_launches_that_cannot_be_counted_leave_the_rest_of_the_row() -> None:
    machine = Machine(a=0.001)
    machine.fails["a", "launches", 1] = Failed("torch is not installed")
    rows, _ = measured(machine, gpu=True)
    assert rows["a"]["launches"] is None
    assert rows["a"]["runs"] == 100
    assert rows["a"]["reason"] == "launches: torch is not installed"


def test_one_that_cannot_run_here_gets_no_process() -> None:
    lane = Lane("onnxruntime-cuda", "onnxruntime-cuda", None, failed="no GPU")
    measure([lane], RIGHT, Effort(10, 1.0), Meters(None), Silent(), Machine().worker)
    assert lane.row({}, 1)["reason"] == "no GPU"


def test_an_interrupt_keeps_what_was_measured() -> None:
    machine = Machine(a=0.001, b=0.002)
    machine.fails["b", "block", 11] = KeyboardInterrupt()
    rows, around = measured(machine, Effort(100, 1.0))
    assert around.interrupted
    assert rows["b"]["runs"] == 50
    assert rows["b"]["p50_ms"] == 2.0
    assert rows["a"]["cosine"] == 1.0
    assert {machine.commands(name)[-1] for name in "ab"} == {"close"}


def test_an_interrupt_before_the_first_block_leaves_rows_that_say_so() -> None:
    machine = Machine(a=0.001, b=0.002)
    machine.fails["b", "first", 1] = KeyboardInterrupt()
    rows, around = measured(machine)
    assert around.interrupted
    assert {row["reason"] for row in rows.values()} == {"interrupted before it was timed"}


def test_a_fast_wrong_one_shows() -> None:
    machine = Machine(right=0.002, wrong=0.001, nan=0.001)
    machine.answers["wrong"] = {"y": np.array([4.0, 3.0], np.float32)}
    machine.answers["nan"] = {"y": np.array([np.nan, 4.0], np.float32)}
    rows, _ = measured(machine)
    assert rows["wrong"]["cosine"] == pytest.approx(24 / 25)
    assert rows["wrong"]["relative_l2"] == pytest.approx(2**0.5 / 5)
    assert rows["nan"]["reason"].startswith("output 'y': 1 of 2 values are NaN or infinite on one side alone")
    assert (rows["nan"]["cosine"], rows["nan"]["relative_l2"]) == (None, None)  # not those of the other value


def test_a_reference_that_is_not_a_number_says_nothing_of_the_contender() -> None:
    found = distance({"y": np.full(2, np.nan, np.float32)}, {"y": np.ones(2, np.float32)}, {}, None)
    assert found == Distance(wrong="output 'y': 2 of 2 values are NaN or infinite on one side alone")


def test_another_floating_point_dtype_and_another_name_are_compared_all_the_same() -> None:
    machine = Machine(half=0.002)
    machine.answers["half"] = {"embedding": np.array([3.0, 4.0], np.float16)}
    rows, _ = measured(machine)
    assert rows["half"]["cosine"] == 1.0


def test_without_a_reference_at_these_inputs_further_cases_are_asked_and_the_worst_counts() -> None:
    machine = Machine(a=0.002)
    cases = [(INPUTS, ANSWER), (INPUTS, {"y": np.array([4.0, 3.0], np.float32)})]
    rows, _ = measured(machine, question=Question(INPUTS, None, None, cases))
    assert machine.commands("a").count("answers") == 2
    assert rows["a"]["cosine"] == pytest.approx(24 / 25)


def test_without_any_reference_the_reason_is_in_the_row() -> None:
    question = Question(INPUTS, None, unanswered="the reference gives none: out of memory")
    rows, _ = measured(Machine(a=0.002), question=question)
    assert rows["a"]["p50_ms"] == 2.0
    assert rows["a"]["cosine"] is None
    assert "cosine: the reference gives none: out of memory" in rows["a"]["reason"]
