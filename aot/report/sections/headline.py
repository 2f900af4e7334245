"""The verdict, the speed, the accuracy: what is read when nothing else is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from aot.report.bench import best, by_size, contender, measured, rows_of
from aot.report.html import digits, known, listing, ms, paragraph
from aot.report.sections.stages import place
from aot.text import size_of, sizes


def section(data: Mapping[str, Any]) -> str:
    """Title and tiles; where the build is not accepted, the reasons right below."""
    route = "" if (data.get("route") or "onnx") == "onnx" else f"by {data['route']}"
    history = data.get("history") or ()
    made = f"{place(history[-1])}, {history[-1]['created'][:10]}" if history else ""
    engines = ", ".join(dict.fromkeys(f"{one['target']} ({one['backend']})" for one in data.get("engines") or ()))
    line = " · ".join(one for one in (engines or "prepared, without an engine", route, made) if one)
    missed = listing(data.get("reasons") or ())
    tiles = "".join(_tiles(data))
    return (
        f"<header><h1>{escape(data['model'])}, {escape(data['precision'])}</h1><p>{escape(line)}</p>"
        f'<div class="tiles">{tiles}</div>' + (f'<div class="note bad">{missed}</div>' if missed else "") + "</header>"
    )


def _tiles(data: Mapping[str, Any]) -> Iterator[str]:
    limits = ", ".join(f"{name} {limit:g}" for name, limit in (data.get("budget") or {}).items())
    if data["accepted"]:
        yield _tile(
            "Verdict", "✓ Accepted", f"every comparison keeps the budget ({limits or 'none given'})", kind="good"
        )
    else:
        yield _tile("Verdict", "✗ Not accepted", f"the budget is missed ({limits})" if limits else "", kind="bad")
    yield from filter(None, (_measured(data) or _chosen(data), _accuracy(data), _size(data)))


def _tile(name: str, big: str, *said: str, kind: str = "") -> str:
    style = f" {kind}" if kind else ""
    figure = f'<div class="big{style}">{escape(big)}</div>'
    return f'<div class="tile"><h3>{escape(name)}</h3>{figure}{"".join(map(paragraph, said))}</div>'


def _measured(data: Mapping[str, Any]) -> str:
    """From the benchmark: the first size, beside the fastest of the others and eager, and how often aot is ahead."""
    groups = [(size, best(rows, ours=True), best(rows, ours=False), rows) for size, rows in by_size(rows_of(data))]
    timed = [(size, ours, other, rows) for size, ours, other, rows in groups if ours is not None]
    if not timed:
        return ""
    size, ours, other, rows = timed[0]
    assert ours is not None
    at = f" at {sizes(size)}" if size else ""
    p99 = f", p99 {ms(ours['p99_ms'])}" if ours.get("p99_ms") is not None else ""
    said = [f"median of a call{at}{p99}"]
    eager = next((row for row in measured(rows) if row["tool"] == "eager"), None)
    for row, what in ((other, ", the fastest other"), (eager if eager is not other else None, "")):
        if row is not None:
            said.append(f"{row['p50_ms'] / ours['p50_ms']:.2f} times as fast as {contender(row)}{what}")
    raced = [(one, two) for _, one, two, _ in timed if one is not None and two is not None]
    if len(raced) > 1:
        won = sum(one["p50_ms"] < two["p50_ms"] for one, two in raced)
        said.append(f"fastest of all at {won} of {len(raced)} sizes")
    return _tile("Speed", ms(ours["p50_ms"]), *said)


def _chosen(data: Mapping[str, Any]) -> str:
    """From the choice of a precision, where there is no benchmark."""
    found = data.get("choice")
    taken = (
        [one for one in found["candidates"] if one["precision"] == found["precision"] and one["ms"]] if found else []
    )
    if not found or not taken:
        return ""
    at = f" at {sizes(found['sizes'][0])}" if found["sizes"] else ""
    return _tile("Speed", ms(taken[0]["ms"][0]), f"median of a run{at}, on {found['on']}", found["reason"])


def _accuracy(data: Mapping[str, Any]) -> str:
    """Of the engine where one ran, else of the final graph; the least over all cases."""
    found = known(data, "verification")
    engine, graph = known(found, "engine"), known(found, "graph")
    what, numbers = ("the engine", engine) if engine.get("ran") else ("the final graph, on onnxruntime", graph)
    if not numbers.get("ran") or numbers.get("cosine") is None:
        return ""
    said = [f"cosine to eager, the least over {numbers['cases']} cases, of {what}"]
    if numbers.get("relative_l2") is not None:
        said.append(f"relative L2 {digits(numbers['relative_l2'])}")
    metric = known(graph, "metric")
    if metric.get("eager") is not None:
        said.append(f"the model's metric: {metric['eager'] - metric['drop']:.4g}, eager {metric['eager']:.4g}")
    return _tile("Accuracy", digits(numbers["cosine"]), *said)


def _size(data: Mapping[str, Any]) -> str:
    engines = data.get("engines") or ()
    if not engines:
        return ""
    big = " + ".join(size_of(one["bytes"]) for one in engines)
    said = "; ".join(
        " ".join(str(part) for part in (one["target"], one["backend"], one.get("version")) if part) for one in engines
    )
    return _tile("Engine" if len(engines) == 1 else "Engines", big, said)
