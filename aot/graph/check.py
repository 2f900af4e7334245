"""The numbers of a rewrite: what a pass changed is run before and after, on random inputs of two sizes.

`Check` watches the passes. Of each it takes a few sites, unlike one another, runs the parts around them
(`aot.graph.sites`) in both graphs, and compares. A rewrite may rest on what is known of the values around it (a mask
is finite, a sum is positive), which random numbers do not respect: parts that differ are run again with more around
them, and in the end the whole graph decides. So a part that cannot be run by itself, or only differs by itself, is
said to be not checked, and a difference of the whole graph is an error of the pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from aot import origins
from aot.errors import GraphError
from aot.graph import Pass
from aot.graph.run import Difference, Trials, Unable, attempt, compare, differ, difference
from aot.graph.sites import Part, Target, TooLarge, parts, targets, whole
from aot.graph.state import State

SITES = 3
"""Sites of a pass that are checked."""
SECONDS = 3.0
"""After that only one site of each pass is checked."""
_PATIENCE = 5
"""How many times that, before nothing is checked any more."""
_HEAVY, _HEAVIEST = 1 << 27, 1 << 30
"""Bytes of weights up to which a part, and the whole graph, is run."""
_AROUND = ((0, 0), (2, 0), (6, 4))
"""Nodes more (before, behind) that a part gets in turn."""


@dataclass
class Checked:
    """What was compared of one pass. sites: how many; largest: the difference found that is nearest to its limit."""

    sites: int = 0
    largest: Difference = field(default_factory=Difference)
    unchecked: Counter[str] = field(default_factory=Counter)

    def note(self, found: Difference) -> None:
        """Count one comparison."""
        self.sites += 1
        self.largest = max(self.largest, found)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "checked": self.sites,
            "unchecked": dict(self.unchecked),
            "relative": self.largest.relative,
            "max_abs": self.largest.absolute,
            "relative_l2": self.largest.l2,
            "noise": self.largest.noise,
        }


@dataclass
class Check:
    """Watches passes; see the module's docstring.

    whole: compare the whole graph after every change instead, and with the first in the end (`total`). budget: seconds
    after which a pass has only one site checked, where it is not whole. Raises GraphError for a pass that changes what
    the graph computes.
    """

    whole: bool = False
    budget: float = SECONDS
    passes: dict[str, Checked] = field(default_factory=dict)
    total: Difference | None = None
    seconds: float = 0.0
    _first: Trials | None = None
    _last: Trials | None = None

    def __call__(self, one: Pass, before: State, after: State) -> None:
        """Compare the states before and after a change that `one` made."""
        start = time.perf_counter()
        try:
            checked = self.passes.setdefault(one.name, Checked())
            if self.whole:
                self._follow(one, before, after, checked)
            else:
                self._sample(one, before, after, checked, start)
        finally:
            self.seconds += time.perf_counter() - start

    def _follow(self, one: Pass, before: State, after: State, checked: Checked) -> None:
        """Compare whole graphs, each with the one before it and the last with the first."""
        try:
            self._first = self._first or attempt(whole(before))
        except Unable as error:
            raise GraphError(
                f"the graph cannot be run, so pass '{one.name}' cannot be verified: {error}",
                fix="leave --verify-passes out; sites are compared one by one then, where they run",
            ) from error
        found, self._last = compare(self._last or self._first, whole(after))
        if not found.within:
            raise _wrong(one, found, before, after, next(iter(targets(before, after)), None))
        checked.note(found)
        self.total = difference(self._first, self._last)

    @property
    def compared(self) -> bool:
        """Whether anything was."""
        return any(checked.sites for checked in self.passes.values())

    def largest(self) -> Difference:
        """The largest difference found, as a share of the output's magnitude, of those that are no noise."""
        return max((one for one in self._found() if not one.noise), key=_relative, default=Difference())

    def noise(self) -> Difference:
        """The largest difference found of those that are noise."""
        return max((one for one in self._found() if one.noise), key=_relative, default=Difference())

    def _found(self) -> list[Difference]:
        found = [checked.largest for checked in self.passes.values()]
        return found if self.total is None else [self.total, *found]

    def _sample(self, one: Pass, before: State, after: State, checked: Checked, start: float) -> None:
        for target in _unlike(before, after):
            if checked.sites >= SITES:
                return
            # Of every pass one site, unless that takes far too long.
            if self.seconds + time.perf_counter() - start > self.budget * (1 if checked.sites else _PATIENCE):
                checked.unchecked[f"the {self.budget:g} s for checks were spent"] += 1
                return
            self._compare(one, before, after, target, checked)

    def _compare(self, one: Pass, before: State, after: State, target: Target, checked: Checked) -> None:
        different: Difference | None = None
        reason = ""
        for back, forward in _AROUND:
            if forward and different is None:
                break  # it does not run, which what follows does not change
            try:
                old, new = parts(before, after, [target], back=back, forward=forward)
                _limit(old, new, _HEAVY)
                found = differ(old, new)
            except TooLarge:
                reason = reason or "too much of the graph belongs to it"
                break
            except Unable as error:
                reason = str(error)
                continue
            if found.within:
                checked.note(found)
                return
            different = found
        if different is None:
            checked.unchecked[reason] += 1
            return
        try:
            old, new = whole(before), whole(after)
            _limit(old, new, _HEAVIEST)
            found = differ(old, new)
        except Unable as error:
            checked.unchecked[f"differs by itself, and the whole graph does not run: {error}"] += 1
            return
        if not found.within:
            raise _wrong(one, found, before, after, target)
        checked.note(found)


def _relative(found: Difference) -> float:
    return found.relative


def _wrong(one: Pass, found: Difference, before: State, after: State, target: Target | None) -> GraphError:
    return GraphError(
        f"pass '{one.name}' changes what the graph computes: {found}",
        where=_where(before, after, target),
        fix=f"this is a bug of aot, please report it; --without-pass {one.name} goes on without that pass",
    )


def _limit(old: Part, new: Part, limit: int) -> None:
    if sum(tensor.nbytes for part in (old, new) for tensor in part.weights.values()) > 2 * limit:
        raise Unable("its weights are too large")


def _where(before: State, after: State, target: Target | None) -> str | None:
    if target is None:
        return None
    node = before.maker.get(target.before) or after.maker.get(target.after)
    return origins.where_of(node) if node is not None else f"value '{target.before}'"


def _unlike(before: State, after: State) -> Iterator[Target]:
    """The targets, such whose rewrites use other ops first."""
    groups: dict[tuple[object, ...], list[Target]] = {}
    for target in targets(before, after):
        sides = ((before, target.before), (after, target.after))
        kind = tuple(_kind(state, state.maker.get(key)) for state, key in sides)
        groups.setdefault(kind, []).append(target)
    for index in range(SITES):
        for group in groups.values():
            # The first, the last and the middle of a kind.
            if index < len(group):
                yield group[(0, -1, len(group) // 2)[index]]


def _kind(state: State, node: ir.Node | None) -> tuple[object, ...]:
    if node is None:
        return ()
    at = state.nodes[node]
    makers = (state.maker.get(key) for key in at.inputs)
    return (at.op, *(None if maker is None else state.nodes[maker].op for maker in makers))
