"""`report.html`: one page that needs no network and can be read on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from aot.config import QUANTIZED
from aot.report import choice, search
from aot.text import number, size_of, sizes, took

STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #c0392b; --good: #1e8449; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { margin: 0 0 .25rem; } h2 { margin: 2rem 0 .5rem; font-size: 1.15rem; }
.verdict { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font-size: .85em; overflow-wrap: anywhere; } summary { cursor: pointer; padding: .25rem 0; }
"""


def render(data: Mapping[str, Any]) -> str:
    """The page of a report, from what `report.json` holds."""
    title = f"{data['model']}, {data['precision']}"
    verdict = (
        '<p class="verdict good">Accepted: every comparison keeps the budget.</p>'
        if data["accepted"]
        else '<p class="verdict bad">Not accepted.</p>' + _list(data["reasons"])
    )
    sections = [
        f"<h1>{escape(title)}</h1>{verdict}",
        _notes(data["warnings"]),
        _section("What was built", _built(data)),
        _section("Stages", _stages(data["stages"])),
        _section("Final graph against eager", _comparison(data["graph"])),
        *(
            _section(f"Engine {target} against eager", _comparison(report))
            for target, report in data["engine_reports"].items()
        ),
        _choice(data.get("choice")),
        _search(data.get("search")),
        _section("Inputs and outputs", _io(data["io"], data["profiles"])),
        _section("Precision", _precision(data["decisions"], data["precision"])),
        _section("Versions", _history(data["history"])),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(sections)}</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}"


def table_of(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers come as preformatted text; a cell that starts like a number is set to the right."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    text = str(value)
    numeric = text[:1].isdigit() or (text[:1] == "-" and text[1:2].isdigit())
    return f'<td class="n">{escape(text)}</td>' if numeric else f"<td>{escape(text)}</td>"


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _notes(warnings: Sequence[str]) -> str:
    return _section("Worth knowing", _list(warnings)) if warnings else ""


def _built(data: Mapping[str, Any]) -> str:
    nodes, quantized = data["nodes"], data["quantized"]
    facts = [
        ("precision", data["precision"]),
        ("route", data["route"]),
        ("backend", data["backend"] or "none yet: a prepared artifact"),
        ("nodes", f"{nodes['exported']} exported, {nodes['final']} in the final graph"),
        ("quantized", f"{quantized['ops']} ops, {quantized['qdq']} DequantizeLinear nodes"),
        ("budget", ", ".join(f"{k} {v:g}" for k, v in data["budget"].items()) or "none"),
    ]
    engines = [(e["file"], e["backend"], size_of(e["bytes"]), took(e["seconds"], e["cached"])) for e in data["engines"]]
    return table_of(("", ""), facts) + (table_of(("engine", "backend", "size", "time"), engines) if engines else "")


def _stages(stages: Sequence[Mapping[str, Any]]) -> str:
    return table_of(("stage", "time"), [(s["name"], took(s["seconds"], s["cached"])) for s in stages])


def _comparison(report: Mapping[str, Any]) -> str:
    if not report["ran"]:
        return f"<p>{escape(str(report['reason']))}</p>"
    head = ("case", "data", "sizes", "cosine", "relative L2", "max abs", "")
    rows = [
        (
            c["name"], c["kind"], sizes(c["sizes"]),
            number(c["cosine"]), number(c["relative_l2"]), number(c["max_abs"]), "ok" if c["accepted"] else "missed",
        )
        for c in report["cases"]
    ]  # fmt: skip
    body = table_of(head, rows)
    metric = report.get("metric")
    if metric and metric.get("ran") is False:
        body += f"<p>The model's own metric: {escape(metric['reason'])}</p>"
    elif metric:
        here = metric["eager"] - metric["drop"]
        body += f"<p>The model's own metric: {metric['eager']:.6g} eager, {here:.6g} here.</p>"
    outputs = [
        (
            c["name"], name, number(m["cosine"]), number(m["relative_l2"]), number(m["max_abs"]),
            number(m["flips"]), m["nonfinite"]["ref"], m["nonfinite"]["mismatched"], m["failure"] or "",
        )
        for c in report["cases"]
        for name, m in c["outputs"].items()
    ]  # fmt: skip
    columns = ("case", "output", "cosine", "relative L2", "max abs", "flips", "NaN/Inf", "of them differ", "")
    return body + f"<details><summary>Every output</summary>{table_of(columns, outputs)}</details>"


def _choice(found: Mapping[str, Any] | None) -> str:
    """How `--precision auto` came to its precision."""
    if found is None:
        return ""
    body = f"<p>{escape(choice.verdict(found))}</p>" + table_of(choice.head(found), choice.rows(found))
    return _section("Why this precision", body)


def _search(found: Mapping[str, Any] | None) -> str:
    """Where the budget was missed at first: what is kept wide for it, or why that is not enough."""
    if found is None:
        return ""
    if not found["met"]:
        return _section("No choice of nodes to keep wide meets the budget", f"<p>{escape(found['why'])}</p>")
    body = table_of(search.HEAD, search.rows(found)) + _list(search.tail(found))
    return _section("Kept wide so that the budget holds", body)


def _io(io: Mapping[str, Any], profiles: Sequence[Mapping[str, Sequence[int]]]) -> str:
    rows = [
        (side[:-1], value["name"], value["dtype"], str(value["shape"]))
        for side in ("inputs", "outputs")
        for value in io[side]
    ]
    ranges = [
        (f"profile {index}", name, *triple)
        for index, profile in enumerate(profiles)
        for name, triple in profile.items()
    ]
    body = table_of(("", "name", "dtype", "shape"), rows)
    return body + (table_of(("", "dim", "min", "opt", "max"), ranges) if ranges else "")


def _precision(decisions: Sequence[Mapping[str, Any]], asked: str) -> str:
    if not decisions:
        return "<p>Every node is in the precision of the network.</p>"
    counts: dict[tuple[str, ...], int] = {}
    for decision in decisions:
        group = tuple(str(decision[key]) for key in ("op", "precision", "reason"))
        counts[group] = counts.get(group, 0) + 1
    body = table_of(("op", "precision", "why", "nodes"), [(*group, n) for group, n in sorted(counts.items())])
    wide = [decision for decision in decisions if kept_wide(decision, asked)]
    for title, chosen in ((f"Kept wide ({len(wide)})", wide), (f"Every node ({len(decisions)})", decisions)):
        rows = [
            (d["node"], d["op"], d["precision"], d.get("module", ""), d.get("source", ""), d["reason"]) for d in chosen
        ]
        nodes = table_of(("node", "op", "precision", "module", "source", "why"), rows)
        body += f"<details><summary>{title}</summary>{nodes}</details>" if rows else ""
    return body


def kept_wide(decision: Mapping[str, Any], asked: str) -> bool:
    """Whether a node was left wider than it might have been: FP32 in a narrow network, or a layer not quantized."""
    layer = asked in QUANTIZED and decision["op"] in ("MatMul", "Gemm", "Conv", "ConvTranspose")
    wide = ("fp16", "bf16", "fp32") if layer else ("fp32",)
    return asked != "fp32" and decision["precision"] in wide


def _history(history: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for half in history:
        machine = half["machine"]
        gpu = machine["gpu"]["name"] if machine.get("gpu") else "no GPU"
        place = f"{half['created']}: {' and '.join(half['did'])}, on {machine.get('cpu')}, {gpu}"
        rows = [(name, version) for name, version in half["versions"].items()]
        parts.append(f"<p>{escape(place)}</p>" + table_of(("package", "version"), rows))
    return "".join(parts)
