"""An explanation for people, as wide as the terminal, from 60 to 100 columns."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from aot.backend import Unsupported
from aot.breaks import Break
from aot.explain.breaks import excerpt
from aot.explain.findings import Counts, Explanation, Group, Memory, Precision, Ranges, Remark, Target
from aot.text import size_of

WIDTH = 100
NARROWEST = 60
_SHOWN = 8
"""How many of a long list are shown; `--json` has them all."""


def describe(found: Explanation) -> str:
    """The whole answer; coloured where standard output is a terminal."""
    width = min(max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST), WIDTH)
    out = Console(file=io.StringIO(), width=width, force_terminal=sys.stdout.isatty(), highlight=False, soft_wrap=False)
    page = _Page(out)
    page.verdict(found)
    for number, one in enumerate(found.breaks, 1):
        page.broken(number, one)
    for refusal in found.refusals:
        page.section("Refused")
        page.told(refusal.what, refusal.where, refusal.fix)
    page.targets(found.targets)
    for target in found.targets:
        page.unsupported(target)
    page.remarks(found.remarks)
    if found.precision is not None:
        page.precision(found.precision)
    if found.memory is not None:
        page.memory(found.memory)
    page.profiles(found.profiles)
    for name, why in found.routes.items():
        page.section("Another route")
        page.told(f"--route {name}: {why}", None, None)
    stream = out.file
    assert isinstance(stream, io.StringIO)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


class _Page:
    def __init__(self, out: Console) -> None:
        self.out = out

    def verdict(self, found: Explanation) -> None:
        precision = f", {found.precision.name}" if found.precision else ""
        bad = ", ".join(_name(target) for target in found.targets if target.ok is False)
        if found.breaks:
            why = "the export breaks"
        elif found.refusals:
            why = "its graph is refused"
        else:
            why = f"nothing can be built for {bad}"
        line = Text(f"{found.model}{precision}: ", style="bold")
        if found.accepted:
            line.append("a build would pass", style="bold green")
        else:
            line.append(f"a build would fail: {why}", style="bold red")
        self.out.print(line)
        if found.accepted:
            self.out.print(Text("as far as the graph shows: only a build compares it with the model", style="dim"))

    def section(self, title: str) -> None:
        self.out.print()
        self.out.print(Text(title, style="bold"))

    def told(self, what: str, where: str | None, fix: str | None, indent: int = 2) -> None:
        """A sentence, where, and what would help."""
        self._indented(Text(what), indent)
        if where:
            self._labelled(Text("at", style="dim"), where, indent)
        self._fix(fix, indent)

    def broken(self, number: int, one: Break) -> None:
        if number == 1:
            self.section("The export breaks")
        else:
            self.out.print()
        place = f"{_near(one.file)}:{one.line}" if one.file else "the model"
        inside = f" in {one.function}" if one.file and one.function else ""
        self._indented(Text.assemble((place, "bold"), f"{inside}: {one.what}"), 2)
        lines = excerpt(one)
        if not lines and one.code:
            lines = [(one.line or 0, one.code)]
        for line, text in lines:
            here = line == one.line
            mark, style = (">", "bold red") if here else (" ", "dim")
            shown = Text(f"  {mark} {line:>5} | {text}", style=style)
            self.out.print(shown, no_wrap=True, overflow="ellipsis")
        self._fix(one.fix, 2)

    def targets(self, targets: Sequence[Target]) -> None:
        self.section("Targets")
        grid = _grid("", "", "native", "plugin", "rewriting", "none", numbers=4)
        for target in targets:
            title = f"{target.backend} {target.version or '(not installed)'}"
            if target.ops is None:
                grid.add_row(target.target or "any", title, *("-" * 4))
                continue
            counts = [sum(kind.values()) for kind in (target.ops.native, target.ops.plugin, target.ops.rewriting)]
            lacking = sum(target.ops.none.values())
            last = Text(str(lacking), style="bold red" if lacking else "")
            grid.add_row(target.target or "any", title, *(str(count) for count in counts), last)
        self.out.print(Padding(grid, (0, 0, 0, 2)))
        for target in targets:
            if target.ops is not None and target.ops.rewriting:
                self._labelled(Text(f"{_name(target)}, rewriting"), _counts(target.ops.rewriting), 2)
            if target.ops is not None and target.ops.plugin:
                self._labelled(Text(f"{_name(target)}, plugin"), _counts(target.ops.plugin), 2)
            for (op, does, why), count in Counter((one.op, one.does, one.why) for one in target.plugins).items():
                nodes = f"{count} node{'s' if count > 1 else ''}"
                what = "its kernel" if does == "kernel" else "the ops of its reference"
                self._indented(Text(f"{_name(target)}, {op} ({nodes}): {what}; {why}"), 2)
            if target.refused is not None:
                self.told(f"{_name(target)}: {target.refused.what}", None, target.refused.fix)
        notes = dict.fromkeys(note for target in targets for note in target.notes)
        for note in notes:
            self._indented(Text(note, style="dim"), 2)

    def unsupported(self, target: Target) -> None:
        if not target.unsupported:
            return
        self.section(f"What {_name(target)} does not take")
        shown = 0
        for (op, reason, fix), alike in _alike(target.unsupported):
            self._indented(Text.assemble((op or "the graph", "bold red"), f": {reason}"), 2)
            for one in alike[: max(_SHOWN - shown, 1)]:
                self._indented(Text(one.where or "", style="dim"), 4)
            if len(alike) > max(_SHOWN - shown, 1):
                self._indented(Text(f"and {len(alike) - max(_SHOWN - shown, 1)} more (--json lists them)"), 4)
            shown += len(alike)
            self._fix(fix, 4)

    def remarks(self, found: Sequence[Remark]) -> None:
        if not found:
            return
        self.section("To know")
        groups: dict[tuple[str, str], list[Remark]] = {}
        for one in found:
            groups.setdefault((one.op, one.note), []).append(one)
        for (op, note), (first, *others) in list(groups.items())[:_SHOWN]:
            node = f" '{first.node}'" if first.node else ""
            place = ", ".join(part for part in (first.module, first.source) if part)
            more = f" and {len(others)} more" if others else ""
            self._indented(Text.assemble((op, "bold"), f"{node}{place and f' ({place})'}{more}: {note}"), 2)
        if len(groups) > _SHOWN or len(found) > len(groups):
            left = sum(len(group) for group in list(groups.values())[_SHOWN:])
            self._indented(Text(f"{f'and {left} more ' if left else ''}(--json lists them all)", style="dim"), 2)

    def precision(self, found: Precision) -> None:
        self.section("Precision")
        if found.quantized:
            self._indented(Text(f"{found.name}: {_counts(found.quantized)}; the rest computes in {found.compute}"), 2)
        elif found.name != found.compute:
            listed = ", or as listed:" if found.wide else ""
            self._indented(Text(f"{found.name}: no op is quantized; all compute in {found.compute}{listed}"), 2)
        else:
            self._indented(Text(f"everything computes in {found.compute}" + (", except:" if found.wide else "")), 2)
        groups = _merged(found.wide)
        grid = _grid()
        for group in groups[:_SHOWN]:
            grid.add_row(f"{len(group.nodes):>4}", group.op, group.precision, group.reason)
        if groups:
            self.out.print(Padding(grid, (0, 0, 0, 2)))
        if len(groups) > _SHOWN:
            self._indented(Text(f"and {len(groups) - _SHOWN} more reasons (--json lists them)"), 2)
        for warning in found.warnings:
            self._indented(Text(f"warning: {warning}", style="yellow"), 2)
        if found.name != "fp32":
            self._indented(Text("ranges are not known yet: calibration may keep more of it in FP32", style="dim"), 2)

    def memory(self, found: Memory) -> None:
        self.section("Memory, estimates")
        grid = _grid()
        grid.add_row("engine", size_of(found.engine), f"of which weights {size_of(found.weights)}")
        left = f" (values of unknown size left out: {found.unknown})" if found.unknown else ""
        grid.add_row("activations", size_of(found.activations), f"at most, at the largest sizes{left}")
        grid.add_row("building", size_of(found.build), "of the host's memory")
        self.out.print(Padding(grid, (0, 0, 0, 2)))

    def profiles(self, found: Sequence[Ranges]) -> None:
        self.section("Profiles")
        for index, profile in enumerate(found):
            ranges = (f"{name}={low}..{opt}..{high}" for name, (low, opt, high) in profile.dims.items())
            self._indented(Text(f"{index}: {', '.join(ranges) or 'fixed sizes'}"), 2)
            grid = _grid()
            for name, triple in profile.inputs.items():
                grid.add_row(name, *(_shape(shape) for shape in (triple if profile.dims else triple[:1])))
            self.out.print(Padding(grid, (0, 0, 0, 5)))

    def _fix(self, fix: str | None, indent: int) -> None:
        if fix:
            self._labelled(Text("fix", style="green"), fix, indent)

    def _labelled(self, label: Text, text: str, indent: int) -> None:
        """A label, and beside it the text, wrapped in a column of its own."""
        grid = _grid()
        grid.add_row(label, text)
        self.out.print(Padding(grid, (0, 0, 0, indent)))

    def _indented(self, text: Text, indent: int) -> None:
        self.out.print(Padding(text, (0, 0, 0, indent)))


def _grid(*titles: str, numbers: int = 0) -> Table:
    grid = Table(box=None, show_header=bool(titles), header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    for index, title in enumerate(titles):
        number = index >= len(titles) - numbers
        grid.add_column(title, justify="right" if number else "left", no_wrap=number)
    return grid


def _near(file: str) -> str:
    """From the current folder, where the file lies inside it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _name(target: Target) -> str:
    return f"{target.target} ({target.backend})" if target.target else target.backend


def _counts(counts: Counts) -> str:
    return ", ".join(f"{count} {op}" for op, count in counts.items())


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _alike(found: Iterable[Unsupported]) -> list[tuple[tuple[str, str, str], list[Unsupported]]]:
    def key(one: Unsupported) -> tuple[str, str, str]:
        return one.op, one.reason, one.fix

    return [(what, list(group)) for what, group in groupby(sorted(found, key=key), key)]


def _merged(groups: Iterable[Group]) -> list[Group]:
    """Groups whose reasons differ in numbers only as one, with the first one's reason."""
    merged: dict[tuple[str, str, str], Group] = {}
    for group in groups:
        key = (group.op, group.precision, re.sub(r"\d+", "#", group.reason))
        known = merged.get(key)
        merged[key] = (
            group if known is None else Group(group.op, group.precision, known.reason, known.nodes + group.nodes)
        )
    return sorted(merged.values(), key=lambda group: -len(group.nodes))
