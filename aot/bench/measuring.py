"""All contenders at one size: phase by phase, and in each phase one after the other while the rest are idle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aot.bench import cpus, schedule
from aot.bench.accuracy import distance, furthest
from aot.bench.lane import Lane
from aot.bench.meters import Meters
from aot.bench.worker import Worker
from aot.progress import Progress

if TYPE_CHECKING:
    from aot.arrays import Arrays

FLOW_SECONDS = 1.0
"""How long calls follow one another for throughput and energy: NVML's energy counter moves about every 0.1 s."""


@dataclass(frozen=True)
class Effort:
    """How long to measure: so many runs of each contender, or else as many as take so many seconds."""

    runs: int | None
    seconds: float
    seed: int = 0


@dataclass(frozen=True)
class Question:
    """What all are asked: the inputs, and the reference answers to them; `cases` are further inputs with theirs, for
    what has no reference at these. unanswered: why there is no reference."""

    inputs: Mapping[str, Any]
    padding: str | None
    reference: Arrays | None = None
    cases: Sequence[tuple[Mapping[str, Any], Arrays]] = ()
    unanswered: str | None = None


@dataclass
class Surroundings:
    """What the machine did meanwhile. clocks: after each block. others: the share of the CPUs that others took."""

    clocks: list[Mapping[str, Any]] = field(default_factory=list)
    others: float | None = None
    interrupted: bool = False


def measure(
    lanes: Sequence[Lane],
    question: Question,
    effort: Effort,
    meters: Meters,
    progress: Progress,
    worker: Callable[..., Worker] = Worker,
) -> Surroundings:
    """Measure into the lanes. One that fails says why and does not stop the others; an interrupt ends it."""
    around = Surroundings()
    steps = _Steps(lanes, progress)
    try:
        _start(lanes, worker)
        for lane in steps(lanes, "first call"):
            _first(lane, question, meters)
        _blocks(lanes, effort, meters, around, steps)
        for lane in steps(lanes, "throughput, memory, accuracy"):
            _beside(lane, meters)
            _launches(lane, meters)  # before other inputs come: a module may be compiled once more for them
            _judge(lane, question)
    except KeyboardInterrupt:
        around.interrupted = True
        for lane in lanes:
            if not lane.blocks:
                lane.failed = lane.failed or "interrupted before it was timed"
            _judge(lane, replace(question, cases=()))
    finally:
        for lane in lanes:
            lane.close()
    return around


class _Steps:
    """Counts what is done, for the progress bar."""

    def __init__(self, lanes: Sequence[Lane], progress: Progress) -> None:
        self._done, self._progress = 0, progress
        self._total = sum(lane.failed is None for lane in lanes) * (schedule.BLOCKS + 2)

    def __call__(self, lanes: Sequence[Lane], what: str) -> Iterator[Lane]:
        for lane in lanes:
            if lane.running is not None:
                self.step(f"{what} of {lane.name}")
                yield lane

    def step(self, what: str) -> None:
        self._progress.step(self._done, self._total, what)
        self._done += 1


def _start(lanes: Sequence[Lane], worker: Callable[..., Worker]) -> None:
    """All at once: importing their libraries is not timed."""
    for lane in lanes:
        if lane.job is not None and lane.failed is None:
            lane.worker = worker(lane.job)
            with lane.trying():
                lane.worker.send("start")
    for lane in lanes:
        if lane.running is not None:
            with lane.trying():
                lane.running.receive()


def _first(lane: Lane, question: Question, meters: Meters) -> None:
    """Load and call for the first time, then warm up."""
    assert lane.running is not None
    with lane.trying(), _memory(lane, meters) as watch:
        first = lane.running.ask("first", dict(question.inputs), watch=watch)
        lane.first, lane.load, lane.outputs = first["seconds"], first["load"], first["outputs"]
        lane.label, lane.precision = first["label"], first["precision"]
        lane.warm = lane.running.ask("warm", watch=watch)


@contextmanager
def _memory(lane: Lane, meters: Meters) -> Iterator[Callable[[], None] | None]:
    """The most GPU memory in use meanwhile, by the whole GPU, over what was before: only this lane works."""
    before = most = meters.memory()
    if before is None:
        lane.lacks["gpu_bytes"] = "no GPU"
        yield None
        return

    def watch() -> None:
        nonlocal most
        most = max(most or 0, meters.memory() or 0)

    try:
        yield watch
    finally:
        watch()
        lane.gpu_bytes = (most or 0) - before


def _blocks(lanes: Sequence[Lane], effort: Effort, meters: Meters, around: Surroundings, steps: _Steps) -> None:
    """The timed runs of all, in turns. Without a number of runs, as many as the warm-up says fit into the seconds."""
    by_name = {lane.name: lane for lane in lanes if lane.running is not None}
    runs = {
        name: effort.runs or schedule.runs_for(effort.seconds, lane.warm.once)
        for name, lane in by_name.items()
        if lane.warm is not None
    }
    processes = [os.getpid(), *(lane.worker.pid for lane in by_name.values() if lane.worker is not None)]
    before = cpus.read(processes)
    try:
        for blocks in schedule.rounds(runs, effort.seed):
            for name, count in blocks:
                lane = by_name[name]
                if lane.running is None:
                    continue
                steps.step(f"timing {name}")
                with lane.trying():
                    lane.blocks.append(lane.running.ask("block", count))
                clocks = meters.clocks()
                if clocks is not None:
                    around.clocks.append(clocks)
    finally:
        around.others = cpus.others(before, cpus.read(processes))


def _beside(lane: Lane, meters: Meters) -> None:
    """Throughput and energy, on a GPU, where calls need not wait for one another; host memory."""
    assert lane.running is not None
    energy = meters.energy()
    if meters.memory() is None:
        lane.lacks["energy_mj"] = "no GPU"
    elif lane.warm is not None:
        with lane.trying():
            lane.pace = lane.running.ask("back_to_back", FLOW_SECONDS, lane.warm.once)
            after = meters.energy()
            if energy is None or after is None:
                lane.lacks["energy_mj"] = "this GPU or its driver does not count energy"
            else:
                lane.energy = (after - energy) / lane.pace[0]
    if lane.running is not None:
        with lane.trying():
            lane.host_bytes = lane.running.ask("host_bytes")
            if lane.host_bytes is None:
                lane.lacks["host_bytes"] = "the system has no /proc/self/status"


def _launches(lane: Lane, meters: Meters) -> None:
    """Last, for the profiler slows what comes after."""
    if meters.memory() is None:
        lane.lacks["launches"] = "no GPU"
    elif lane.running is not None:
        with lane.trying("launches"):
            lane.launches = lane.running.ask("launches")


def _judge(lane: Lane, question: Question) -> None:
    if question.unanswered is not None:
        lane.lacks["cosine"] = question.unanswered
    elif question.reference is not None and lane.outputs:
        lane.distance = distance(question.reference, lane.outputs, question.inputs, question.padding)
    elif question.cases and lane.running is not None:
        with lane.trying("cosine"):
            found = []
            for inputs, wanted in question.cases:
                found.append(distance(wanted, lane.running.ask("answers", dict(inputs)), inputs, question.padding))
            lane.distance = furthest(found)
