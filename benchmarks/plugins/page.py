"""The kept rows, and the table made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from _result import ROOT

START, END = "<!-- plugins: written by plugins.py -->", "<!-- /plugins -->"
TOOLS = ("eager", "compile", "compile-max-autotune", "tensorrt")
"""Beside aot and what a plugin's own peers are."""
Row = dict[str, Any]


def kept(name: str = "plugins") -> list[Row]:
    """The rows of `benchmarks/results/NAME.json`; none where there is no such file."""
    path = ROOT / "benchmarks/results" / f"{name}.json"
    return list(json.loads(path.read_text())["rows"]) if path.is_file() else []


def text(rows: Sequence[Row]) -> str:
    """One line for each plugin and size, what was not measured and why, in Markdown."""
    ceilings = {row["tool"]: row for row in rows if row["plugin"] == "roofline"}
    sizes: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["plugin"] != "roofline":
            sizes.setdefault((row["plugin"], _sizes(row)), []).append(row)
    head = ("plugin", "sizes", "dtypes", "aot, ms", "rate", *(f"{tool}, ms" for tool in TOOLS), "peer, ms", "error")
    lines = [_line(head), "|---" * len(head) + "|"]
    for (plugin, described), found in sizes.items():
        by_tool = {row["tool"]: row for row in found}
        own = by_tool.get("aot", {})
        peers = [row for row in found if row["tool"] not in ("aot", "copy", *TOOLS)]
        lines.append(
            _line(
                (
                    plugin + ("*" if found[0].get("derived") else ""),
                    described,
                    found[0].get("dtypes", ""),
                    f"{own['ms']:.4f}" if "ms" in own else "-",
                    _rate(own, ceilings),
                    *(_against(by_tool.get(tool), own) for tool in TOOLS),
                    "; ".join(f"{row['tool']} {_against(row, own)}" for row in peers) or "-",
                    f"{own['error']:.0e}" if own.get("error") is not None else "-",
                )
            )
        )
    if any(row.get("derived") for row in rows):
        lines += ["", "\\* sizes follow from the plugin's SHAPES; there are none of its own in `plugins/cases.py`."]
    failed = [f"- {row['plugin']} {_sizes(row)}, {row['tool']}: {row['reason']}" for row in rows if "reason" in row]
    return "\n".join([*lines, *(["", "What was not measured, and why:", "", *failed] if failed else [])])


def into(page: str, rows: Sequence[Row]) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{text(rows)}\n{END}{after}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sizes(row: Mapping[str, Any]) -> str:
    given = row.get("sizes", {})
    return " ".join(
        f"{name}={'x'.join(map(str, v)) if isinstance(v, list | tuple) else v}" for name, v in given.items()
    )


def _rate(own: Mapping[str, Any], ceilings: Mapping[str, Row]) -> str:
    """TFLOP/s where products are what is done, else GB/s, and what part that is of what the GPU does at most."""
    if "ms" not in own:
        return "-"
    if "tflops" in own:
        ceiling = ceilings.get(own["dtypes"].split()[0], {}).get("tflops")
        return f"{own['tflops']:.0f} TFLOP/s" + (f", {own['tflops'] / ceiling:.0%}" if ceiling else "")
    ceiling = ceilings.get("copy", {}).get("gb_per_s")
    return f"{own['gb_per_s']:.0f} GB/s" + (f", {own['gb_per_s'] / ceiling:.0%}" if ceiling else "")


def _against(row: Mapping[str, Any] | None, own: Mapping[str, Any]) -> str:
    """Milliseconds, and how many times as long that is as aot takes."""
    if row is None or "ms" not in row:
        return "-"
    return f"{row['ms']:.4f}" + (f" ({row['ms'] / own['ms']:.2f}x)" if "ms" in own else "")
