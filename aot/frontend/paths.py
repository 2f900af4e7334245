"""Where the model's code goes another way for one call than for another. Imports torch, through `lines`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from aot.frontend import lines


def parting(one: Callable[[], object], other: Callable[[], object], *, around: bool = False) -> lines.Line | None:
    """The last line that both calls run before they first differ: the branch. None where they run the same lines.

    around: the second runs more than the model, so that only the files of the first count.
    """
    first, second = followed(one), followed(other)
    if around:
        files = {line.file for line in first}
        second = [line for line in second if line.file in files]
    if first == second:
        return None
    pairs = enumerate(zip(first, second, strict=False))
    same = next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(first), len(second)))
    return first[same - 1] if same else None


def first_seen(call: Callable[[], object], look: Callable[[], Iterable[str]]) -> dict[str, lines.Line]:
    """The line of the model's own code after which `look` first gives a name, for each that it gives during a call."""
    found: dict[str, lines.Line] = {}
    at: lines.Line | None = None

    def note() -> None:
        for name in look():
            if at is not None:
                found.setdefault(name, at)

    def at_event(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal at
        note()
        at, _ = lines.of_frame(frame.f_back if event == "return" else frame)
        return at_event

    _traced(call, at_event)
    note()
    return found


def followed(call: Callable[[], object]) -> list[lines.Line]:
    """Every line of the model's own code that a call runs, in order."""
    ran: list[lines.Line] = []

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            ran.append(lines.Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        return at_line

    _traced(call, at_line)
    return ran


def _traced(call: Callable[[], object], follow: Callable[[FrameType, str, Any], Any]) -> None:
    """Call, with Python's events in the model's own code."""

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        return follow if lines.is_model(frame.f_code.co_filename) else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        call()
    finally:
        sys.settrace(before)
