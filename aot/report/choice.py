"""How `--precision auto` came to its precision, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.text import number, sizes, table


def head(choice: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of `rows`: one with milliseconds for every profile that was timed."""
    return ("precision", *(f"ms at {sizes(at)}" if at else "ms" for at in choice["sizes"]), "cosine", "relative L2", "")


def rows(choice: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One a candidate."""
    found = []
    for one in choice["candidates"]:
        times = [number(ms) for ms in one["ms"]] or ["-"] * len(choice["sizes"])
        said = f"out: {one['out']}" if one["out"] else "chosen" if one["precision"] == choice["precision"] else ""
        found.append((one["precision"], *times, number(one["cosine"]), number(one["relative_l2"]), said))
    return found


def verdict(choice: Mapping[str, Any]) -> str:
    """`precision auto took fp8 on NVIDIA H200: 1.52 times as fast as fp16; int8 1.33 times`."""
    took = f" took {choice['precision']}" if choice["precision"] else ""
    on = f" on {choice['on']}" if choice["on"] else ""
    return f"precision auto{took}{on}: {choice['reason']}"


def paragraph(choice: Mapping[str, Any]) -> list[str]:
    """The verdict and the figures, for a terminal."""
    return [f"  {verdict(choice)}", table([head(choice), *rows(choice)])]
