"""Which configs are tried, and which is taken: all of CONFIGS, or coordinate descent where the plugin has a SPACE.

Coordinate descent changes one parameter at a time: each of its values is timed, in turns, and the fastest is kept,
until a round over all parameters changes nothing. Parameters of kernels hang together little enough for that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST, MOST = 20, 50
"""How many configs of a SPACE are tried: the descent begins again, from the next of CONFIGS, where it ends before
LEAST."""

Config = Mapping[str, Any]
Times = Callable[[Sequence[Config]], Sequence[float | None]]
"""Milliseconds of each config, taken in turns; None for one that does not compile or run."""


@dataclass(frozen=True)
class Found:
    """The fastest config, its milliseconds, and all that were tried."""

    config: Config
    ms: float
    tried: int


def search(
    configs: Sequence[Config],
    space: Mapping[str, Sequence[Any]],
    times: Times,
    over: Callable[[], bool] = lambda: False,
) -> Found | None:
    """The fastest config; None where none runs.

    configs: the best guess first; of equally fast ones the first is taken. space: name -> values; a config that lacks a
    name has the first value. over: asked between groups whether to stop with the fastest so far.
    """
    if not space:
        taken = [(ms, place) for place, ms in enumerate(times(configs)) if ms is not None]
        return Found(configs[min(taken)[1]], min(taken)[0], len(configs)) if taken else None
    descent = _Descent(space, times, over)
    for start in configs:
        descent.run({name: values[0] for name, values in space.items()} | dict(start))
        if len(descent.tried) >= LEAST or over():
            break
    return descent.fastest()


class _Descent:
    """Configs tried so far, by their text, with their milliseconds."""

    def __init__(self, space: Mapping[str, Sequence[Any]], times: Times, over: Callable[[], bool]) -> None:
        self._space = space
        self._times = times
        self._over = over
        self.tried: dict[str, tuple[Config, float | None]] = {}

    def run(self, start: Config) -> None:
        """Descend from `start`, until nothing gets faster, MOST configs were tried, or time is over."""
        now = self._best([start])
        while len(self.tried) < MOST:
            before = now
            for name, values in self._space.items():
                if self._over():
                    return
                now = self._best([now, *({**now, name: value} for value in values)])
            if now == before:
                return

    def fastest(self) -> Found | None:
        """Of all that were tried."""
        runs = [(ms, place) for place, (_, ms) in enumerate(self.tried.values()) if ms is not None]
        if not runs:
            return None
        ms, place = min(runs)
        return Found(list(self.tried.values())[place][0], ms, len(self.tried))

    def _best(self, group: Sequence[Config]) -> Config:
        """The fastest of a group, the first where none runs. What is new is timed together with the first."""
        new = {_text(one): one for one in group if _text(one) not in self.tried}
        new = dict(list(new.items())[: max(MOST - len(self.tried), 0)])
        if new:
            together = {_text(group[0]): group[0]} | new
            self.tried.update(
                (text, (one, ms))
                for (text, one), ms in zip(together.items(), self._times(list(together.values())), strict=True)
            )
        known = [(self.tried[_text(one)][1], place) for place, one in enumerate(group) if _text(one) in self.tried]
        runs = [(ms, place) for ms, place in known if ms is not None]
        return group[min(runs)[1]] if runs else group[0]


def _text(one: Config) -> str:
    return json.dumps(one, sort_keys=True)
