"""A small set that is enough, found with few trials.

First bisection over the list as it is sorted: the shortest beginning that is enough, in log2(n) trials. Then what is
not needed is put back by QuickXplain (U. Junker, AAAI 2004), which halves what is left and goes into the halves that
hold something needed: at most 2 g log2(n / g) + 2 g trials for g needed members, and those that come first in the list
are kept before those that come later. Nothing of what it returns can be left out. Both need that more is never worse,
which holds nearly always; where it does not, the set is enough all the same, for each answer is one that was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Spent(Exception):
    """No further trial is allowed."""


def enough(ordered: Sequence[T], suffices: Callable[[Sequence[T]], bool]) -> list[T]:
    """The shortest beginning of `ordered` that suffices; the whole of it is known to. Raises what `suffices` raises."""
    least, most = 0, len(ordered)
    while most - least > 1:
        middle = (least + most) // 2
        if suffices(ordered[:middle]):
            most = middle
        else:
            least = middle
    return list(ordered[:most])


def minimal(ordered: Sequence[T], suffices: Callable[[Sequence[T]], bool]) -> list[T]:
    """What is needed of `ordered`, which suffices; in its order.

    `suffices` may raise Spent: then what was not tried yet is kept as needed.
    """
    spent = False

    def tried(kept: Sequence[T]) -> bool:
        nonlocal spent
        if not spent:
            try:
                return suffices(kept)
            except Spent:
                spent = True
        return False

    def needed(members: list[T], others: list[T]) -> list[T]:
        """The needed ones of `members`, given `others`, with which together they suffice."""
        if tried(others):
            return []
        if len(members) == 1 or spent:
            return members
        half = (len(members) + 1) // 2
        first, second = members[:half], members[half:]
        late = needed(second, others + first)
        early = needed(first, others + late)
        return early + late

    found = needed(list(ordered), [])
    return [member for member in ordered if member in found]
