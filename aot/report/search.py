"""What the search for nodes to keep wide came to, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot.text import number, table

HEAD = (
    "kept wide",
    "op",
    "was",
    "is",
    "module",
    "source",
    "without it",
    "cosine gained",
    "relative L2 gained",
    "operations",
)
# How much faster a tensor core multiplies in the low precision than in the next wider one.
_RATE = 2.0


def rows(search: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One a node that is kept wide, under `HEAD`: what it computes in, what comes without it, and what it costs."""
    found: list[tuple[str, ...]] = []
    for one in search["kept"]:
        place = (one["module"] or "-", one["source"] or "-")
        without, gained = "not tried", ("-", "-")
        if one["without"] is not None:
            without, gained = said(one["without"]), _gained(search["after"], one["without"])
        cost = f"{one['operations']:.2%}"
        found.append((one["node"], one["op"], one["was"], one["kept"], *place, without, *gained, cost))
    return found


def sentences(search: Mapping[str, Any]) -> list[str]:
    """The same as sentences: one a node, then what it comes to; where no choice is enough, why."""
    if not search["met"]:
        missed = said(search["before"])
        return [f"the budget is missed ({missed}), and no choice of nodes to keep wide can meet it: {search['why']}"]
    found = []
    for row in rows(search):
        node, op, _, precision, module, source, without, *_, cost = row
        parts = [f"node '{node}' ({op})", *([f"module '{module}'"] if module != "-" else [])]
        place = ", ".join([*parts, *([source] if source != "-" else [])])
        found.append(
            f"kept in {precision} so that the budget holds: {place}; without it {without}; {cost} of all operations"
        )
    return [*found, *tail(search)]


def said(numbers: Mapping[str, Any]) -> str:
    """Cosine and relative L2; where these are of what is left finite, the reason why the budget is missed."""
    if _is_lost(numbers):
        return str(numbers["missed"])
    return f"cosine {number(numbers['cosine'])}, relative L2 {number(numbers['relative_l2'])}"


def _is_lost(numbers: Mapping[str, Any]) -> bool:
    return numbers["missed"] is not None and ("NaN" in numbers["missed"] or numbers["cosine"] is None)


def _gained(after: Mapping[str, Any] | None, without: Mapping[str, Any]) -> tuple[str, str]:
    """How much closer to eager, in cosine and in relative L2."""
    known = [one[name] for one in (after or {}, without) for name in ("cosine", "relative_l2") if one]
    if _is_lost(without) or after is None or None in known:
        return "-", "-"
    closer = after["cosine"] - without["cosine"], without["relative_l2"] - after["relative_l2"]
    return f"{closer[0]:.3g}", f"{closer[1]:.3g}"


def expected(search: Mapping[str, Any]) -> str:
    """How much of the work is still done in the low precision, and what that may be worth."""
    low = search["low"]
    share, before = low["after"], low["before"]
    if not share:
        return f"no layer is left in {low['precision']}: a wider --precision may be the better choice"
    times = 1 / (1 - share * (1 - 1 / _RATE))
    return (
        f"{share:.1%} of the multiply-adds are still in {low['precision']} (before: {before:.1%}): "
        f"up to {times:.2f} times as fast as with none, by operation counts alone; an estimate, not a measurement"
    )


def tail(search: Mapping[str, Any]) -> list[str]:
    """Sentences under the table."""
    more = f"stopped after {search['trials']} trials: fewer nodes may be enough"
    return [expected(search), *([more] if search["exhausted"] else [])]


def paragraph(search: Mapping[str, Any]) -> Sequence[str]:
    """The lines of `aot build`."""
    missed = said(search["before"])
    if not search["met"]:
        return [
            f"  as asked for the budget is missed ({missed}), and no choice of nodes to keep wide can meet it:",
            f"    {search['why']}",
        ]
    found = rows(search)
    brief = [(*row[:-3], row[-1]) for row in (HEAD, *found)]  # what is gained follows from the rest
    count = "one node is" if len(found) == 1 else f"{len(found)} nodes are"
    trials = f"{search['trials']} sets of nodes tried"
    return [
        f"  as asked for the budget is missed ({missed}); {count} kept wide for it ({trials}):",
        table(brief, indent="    "),
        *(f"    {line}" for line in tail(search)),
    ]
