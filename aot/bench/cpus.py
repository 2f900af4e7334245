"""What else the CPUs did meanwhile, as Linux counts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aot import toolchain

PROC = Path("/proc")


@dataclass(frozen=True)
class Reading:
    """Clock ticks since the system started: of the CPUs that this process may use, those spent and all; and those that
    the processes asked for have spent."""

    spent: int
    whole: int
    own: int


def read(processes: Sequence[int], proc: Path = PROC) -> Reading | None:
    """None where the system does not say. A process that has ended counts nothing."""
    try:
        lines = (proc / "stat").read_text().splitlines()
    except OSError:
        return None
    wanted = {f"cpu{number}" for number in toolchain.cpus()}
    spent = whole = 0
    for name, *ticks in (line.split() for line in lines if line.startswith("cpu")):
        if name in wanted:
            counts = [int(tick) for tick in ticks[:8]]  # what follows, guests, is in the first two already
            whole += sum(counts)
            spent += sum(counts) - counts[3] - counts[4]  # idle, waiting for a disk
    return Reading(spent, whole, sum(_ticks(process, proc) for process in processes))


def _ticks(process: int, proc: Path) -> int:
    """In user and kernel mode, fields 14 and 15 of proc_pid_stat(5); the name before may hold anything."""
    try:
        fields = (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def others(before: Reading | None, after: Reading | None) -> float | None:
    """The share of the CPUs' time between two readings that went to other processes."""
    if before is None or after is None or after.whole <= before.whole:
        return None
    foreign = (after.spent - before.spent) - (after.own - before.own)
    return max(0.0, foreign / (after.whole - before.whole))
