"""Every reason why a module cannot be exported, by line, not the first alone.

Imports torch; import it only where torch is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._logging import structured

from aot.breaks import Break
from aot.declaration import ModelSpec
from aot.errors import ExportError
from aot.frontend import call, failures, lines, randomness, tracing
from aot.frontend.bridge import recurrent
from aot.frontend.failures import at_line
from aot.frontend.quiet import RAISED, silenced


def breaks(module: torch.nn.Module, spec: ModelSpec) -> list[Break]:
    """The reasons why `tracing.captured` would fail, in the order in which the model meets them; empty for none.

    torch's draft export runs on past what it cannot capture, with the values of the example; what it had to
    assume is a reason each. It sees one way of each branch. Empty, too, where inputs= is not
    what forward takes: the error of the export says so, and there is nothing to trace.
    """
    try:
        call.check(module, spec)
    except ExportError:
        return []
    module = call.flat(module, spec)
    reasons: list[Break] = []
    for sizes in tracing.examples(module, spec):
        made = tracing.attempt(module, spec, sizes)
        if made.program is not None:
            return randomness.drawn(made.program)
        reasons += made.reasons
        if not made.again:
            break
    firm = [reason for reason in reasons if reason.kind != failures.OTHER]
    return _distinct([*(firm or reasons[:1]), *_drafted(module, spec, next(tracing.examples(module, spec)))])


def _drafted(module: torch.nn.Module, spec: ModelSpec, sizes: Mapping[str, int]) -> Iterator[Break]:
    """What a draft export assumed, and the random ops it met; nothing where the draft fails itself."""

    def draft() -> Any:
        given, shapes = tracing.arguments(module, spec, sizes)
        with torch.no_grad(), recurrent.kept_whole():
            return torch.export.draft_export(module, (), given, dynamic_shapes=shapes, strict=False)

    try:
        program = silenced(draft)
    except RAISED:  # the reason is known already: it is what made the export fail
        return
    report = program._report
    # torch numbers the names of files once a process; a report holds those that are new to it.
    files = {number: name for name, number in structured.INTERN_TABLE.items()}
    for failure in report.failures if report is not None else ():
        found = _of(failure.failure_type.name, failure.data, files)
        if found is not None:
            yield found
    yield from randomness.drawn(program)


def _of(kind: str, data: Mapping[str, Any], files: Mapping[int, str]) -> Break | None:
    stack = [
        lines.Line(files[frame["filename"]], frame["line"], frame["name"])
        for frame in data.get("user_stack", ())
        if frame["filename"] in files
    ]
    at = lines.innermost(stack)
    if kind == "DATA_DEPENDENT_ERROR":
        # Behind an op without fake every size is a value, and torch itself asks for it.
        return at_line(*failures.on_values(at.code), at) if at and failures.decides(at.code) else None
    if kind == "MISSING_FAKE_KERNEL":
        return at_line(*failures.fakeless(str(data["op"])), at)
    if kind == "MISMATCHED_FAKE_KERNEL":
        op = str(data["op"])
        return at_line(
            "wrong fake",
            f"the fake of {op} promises another output than the op gives: {data['reason']}",
            "make the function under register_fake return the shape, strides and dtype of the real output",
            at,
        )
    return None  # conditions on sizes are tried over the declared ranges, which says more


def _distinct(found: list[Break]) -> list[Break]:
    """Each reason once: the same kind at the same line is one, and an op without fake has no line of its own."""
    kept: dict[tuple[object, ...], Break] = {}
    for reason in found:
        place: tuple[object, ...] = (reason.file, reason.line) if reason.kind != "op without fake" else (reason.what,)
        kept.setdefault((reason.kind, *place), reason)
    return list(kept.values())
