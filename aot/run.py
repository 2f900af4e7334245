"""How a stage runs: its key is computed, the store is asked, the user is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aot import toolchain
from aot.lock import Ledger
from aot.progress import Progress
from aot.records import Record
from aot.store import Entry, Store, digest

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class StageTime:
    """One line of the timetable: a stage, its seconds in this run, and whether the store had it."""

    name: str
    seconds: float
    cached: bool


@dataclass
class Run:
    """One build in progress: where results are kept, who is told, and what has happened so far.

    of: which of several it does, where one build does the same for each; it ends a stage's name. done: the keys that
    such a build has asked for already: what several share is made once, `fresh` or not, and told once.
    command: the command line that asks for this build, for those who want to come to the same.
    ledger: what it depends on, for the lock that it writes, or is held against.
    """

    store: Store
    progress: Progress
    fresh: bool = False
    times: list[StageTime] = field(default_factory=list)
    of: str = ""
    done: set[str] | None = None
    command: str = ""
    ledger: Ledger = field(default_factory=Ledger)

    def stage(
        self,
        kind: type[R],
        name: str,
        make: Callable[[Path], Mapping[str, Any]],
        *,
        config: Mapping[str, Any],
        inputs: Sequence[Record | str],
        tools: Sequence[str] = (),
        detail: str = "",
        label: str | None = None,
    ) -> R:
        """Return the stage's record, from the store or by calling `make(folder) -> facts`.

        The key is the digest of the stage's name, `config` (plain data), the keys of `inputs`, the
        versions of the distributions in `tools`, and aot's own code. `label` is what the user sees.
        """
        key = _key(name, config, inputs, tools)
        shown = f"{label or name} {self.of}".rstrip()
        again = self.done is not None and key in self.done
        if not again:
            self.progress.stage(shown, detail)
        entry = self.store.fetch(name, key, make, fresh=self.fresh and not again)
        entry = replace(entry, ensure=partial(self._ensure, entry, make, shown))
        if self.done is not None:
            self.done.add(key)
        if again and entry.cached:
            return kind(entry)
        self.times.append(StageTime(shown, entry.seconds, entry.cached))
        self.progress.finished(shown, entry.seconds, entry.cached, detail)
        return kind(entry)

    def _ensure(self, entry: Entry, make: Callable[[Path], Mapping[str, Any]], shown: str) -> None:
        """Before the files of an entry are read: where they are not what was written, make them again, in its place."""
        if not self.store.sound(entry):
            self.progress.warn(f"what the store had of {shown} was damaged ({entry.path}); it is made again")
            self.store.condemn(entry)
            self.store.fetch(entry.stage, entry.key, make)

    def holds(
        self, name: str, *, config: Mapping[str, Any], inputs: Sequence[Record | str], tools: Sequence[str] = ()
    ) -> bool:
        """Whether the store has the record that `stage` would return, and it is not to be made again."""
        return not self.fresh and self.store.get(name, _key(name, config, inputs, tools)) is not None


def _key(name: str, config: Mapping[str, Any], inputs: Sequence[Record | str], tools: Sequence[str]) -> str:
    return digest(
        {
            "stage": name,
            "config": dict(config),
            "inputs": [i if isinstance(i, str) else i.key for i in inputs],
            "tools": {tool: toolchain.version(tool) for tool in tools},
            "aot": toolchain.own_digest(),
        }
    )
