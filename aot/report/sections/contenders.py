"""The benchmark: how fast aot is beside everything else that runs the model here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot.report.bench import Row, by_size, contender, measured, rows_of
from aot.report.html import digits, fold, listing, ms, paragraph, table_of
from aot.report.html import section as titled
from aot.report.svg import Bar, bars
from aot.text import sizes

_COLUMNS = {
    "p50 ms": ("p50_ms", 1.0),
    "p90 ms": ("p90_ms", 1.0),
    "p99 ms": ("p99_ms", 1.0),
    "first call ms": ("first_ms", 1.0),
    "per second": ("throughput", 1.0),
    "launches": ("launches", 1.0),
    "GPU MiB": ("gpu_bytes", 2.0**-20),
    "host MiB": ("host_bytes", 2.0**-20),
    "mJ": ("energy_mj", 1.0),
    "cosine": ("cosine", 1.0),
    "relative L2": ("relative_l2", 1.0),
}


def section(data: Mapping[str, Any]) -> str:
    """Bars for each size, fastest first; every figure in a table; what could not run, and why."""
    rows = rows_of(data)
    groups = [(size, measured(group)) for size, group in by_size(rows)]
    groups = [(size, group) for size, group in groups if group]
    drawn = [_bars(size, group) for size, group in groups]
    hidden = "".join(drawn[3:])
    said = "p50 / p99 of a call: the bar is the median, the thin line goes on to p99; shorter is better."
    return titled(
        "Beside everything else",
        paragraph(_where(data), "soft"),
        paragraph(said, "soft") if drawn else "",
        *drawn[:3],
        fold(f"{len(drawn) - 3} more sizes", hidden),
        fold("Every figure", _table(rows)),
        _left_out(rows),
        _doubts((data.get("bench") or {}).get("warnings") or ()),
    )


def _bars(size: Mapping[str, int], group: Sequence[Row]) -> str:
    ordered = sorted(group, key=lambda row: float(row["p50_ms"]))
    drawn = [
        Bar(
            contender(row),
            row["p50_ms"],
            _said(row),
            "bar" if row["tool"] == "aot" else "other",
            row.get("p99_ms"),
        )
        for row in ordered
    ]
    title = f"Latency at {sizes(size)}" if size else "Latency"
    said = "; ".join(f"{bar.label} {bar.said}" for bar in drawn)
    return f"<h3>{title}</h3>" + bars(title, said, drawn, above=True)


def _said(row: Row) -> str:
    """`0.41 / 0.492 ms`: short, for it stands beside a long name on a phone."""
    return f"{row['p50_ms']:.3g} / {ms(row['p99_ms'])}" if row.get("p99_ms") is not None else ms(row["p50_ms"])


def _table(rows: Sequence[Row]) -> str:
    head = ("contender", "sizes", *_COLUMNS)
    cells = [
        (
            contender(row),
            sizes(row.get("sizes") or {}),
            *(_figure(row.get(key), scale) for key, scale in _COLUMNS.values()),
        )
        for row in measured(rows)
    ]
    return table_of(head, cells)


def _figure(value: float | None, scale: float) -> str:
    return "" if value is None else digits(value * scale)


def _left_out(rows: Sequence[Row]) -> str:
    """What did not run, and why; folded away, why figures are missing of what did."""
    failed, partly = (_reasons(rows, timed) for timed in (False, True))
    head = f"<h3>What could not run</h3>{listing(failed)}" if failed else ""
    return head + fold("Why figures are missing", listing(partly))


def _reasons(rows: Sequence[Row], timed: bool) -> list[str]:
    """Each reason of a contender once, with its sizes where it is not that of all."""
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.get("reason") and (row.get("p50_ms") is not None) is timed:
            why.setdefault((contender(row), row["reason"]), []).append(sizes(row.get("sizes") or {}))
    many = len(by_size(rows))
    return [
        f"{name}: {reason}" + ("" if len(at) == many else f" ({'; '.join(at)})") for (name, reason), at in why.items()
    ]


def _doubts(warnings: Sequence[str]) -> str:
    """What the benchmark itself says of its figures: other work on the machine, differences within the noise."""
    return f"<h3>What to doubt</h3>{listing(warnings)}" if warnings else ""


def _where(data: Mapping[str, Any]) -> str:
    """The machine that the benchmark ran on, and its clocks."""
    bench = data.get("bench") or {}
    machine = bench.get("machine") or {}
    gpu = machine.get("gpu")
    name = gpu.get("name") if isinstance(gpu, dict) else gpu
    driver = f"driver {machine['driver']}" if machine.get("driver") else ""
    return ", ".join(str(one) for one in (name or machine.get("cpu"), driver) if one)
