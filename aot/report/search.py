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
    after = search["after"] or {}
    found = []
    for one in search["kept"]:
        without = one["without"]
        gained = ["-", "-"]
        shown = "not tried"
        if without is not None:
            shown = f"cosine {number(without['cosine'])}, relative L2 {number(without['relative_l2'])}"
            gained = [
                _difference(sign, after.get(key), without[key]) for key, sign in (("cosine", 1), ("relative_l2", -1))
            ]
        place = (one["module"] or "-", one["source"] or "-")
        share = f"{one['operations']:.2%}"
        found.append((one["node"], one["op"], one["was"], one["kept"], *place, shown, *gained, share))
    return found


def _difference(sign: int, after: float | None, before: float | None) -> str:
    return "-" if after is None or before is None else f"{sign * (after - before):.3g}"


def expected(search: Mapping[str, Any]) -> str:
    """How much of the work is still done in the low precision, and what that may be worth."""
    low = search["low"]
    share, before = low["after"], low["before"]
    times = 1 / (1 - share * (1 - 1 / _RATE))
    return (
        f"{share:.1%} of the multiply-adds are still in {low['precision']} (before: {before:.1%}): "
        f"up to {times:.2f} times as fast as with none, by operation counts alone; an estimate, not a measurement"
    )


def tail(search: Mapping[str, Any]) -> list[str]:
    """Sentences under the table."""
    said = [expected(search)]
    if search["exhausted"]:
        said.append(f"stopped after {search['trials']} trials: fewer nodes may be enough")
    return said


def paragraph(search: Mapping[str, Any]) -> Sequence[str]:
    """The lines of `aot build`."""
    before = search["before"]
    missed = f"cosine {number(before['cosine'])}, relative L2 {number(before['relative_l2'])}"
    if not search["met"]:
        return [
            f"  as asked for the budget is missed ({missed}), and no choice of nodes to keep wide can meet it:",
            f"    {search['why']}",
        ]
    narrow = [(*row[:6], row[6], row[9]) for row in rows(search)]
    head = (*HEAD[:6], HEAD[6], HEAD[9])
    trials = f"{search['trials']} sets of nodes tried"
    return [
        f"  as asked for the budget is missed ({missed}); {len(narrow)} nodes are kept wide for it ({trials}):",
        table([head, *narrow], indent="    "),
        *(f"    {line}" for line in tail(search)),
    ]
