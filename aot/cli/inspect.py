"""`aot inspect`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import click

from aot.cli import _options
from aot.report.search import paragraph
from aot.structure import shown
from aot.text import number, size_of, table, visible


@click.command("inspect", no_args_is_help=True)
@click.argument("artifact")
@click.option("--nodes", is_flag=True, help="Every node: its precision, module, source line, reason.")
@_options.json_option
def command(artifact: str, nodes: bool, as_json: bool) -> int:
    """Show what ARTIFACT is, what it takes, how it was made. Every file is checked against its digest.

    \b
    Example:
      aot inspect minilm.aot --nodes
    """
    from aot.artifact import check_files, prepared_of, read_manifest
    from aot.runtime.files import unpacked

    folder = unpacked(artifact)
    manifest = read_manifest(folder, shown=artifact)
    check_files(folder, manifest, shown=artifact)
    prepared_of(folder, manifest, shown=artifact)
    graph = manifest.records.graph.facts
    data: dict[str, Any] = manifest.model_dump(mode="json", include={"kind", "name", "accepted", "io", "history"})
    data |= {
        "artifact": artifact,
        "precision": manifest.plan["precision"],
        "route": manifest.plan.get("route", "onnx"),
        "choice": manifest.choice,
        "backend": manifest.plan["backend"],
        "profiles": manifest.plan["profiles"],
        "nodes": {"exported": manifest.exported_nodes, "final": graph.get("nodes")},
        "quantized": {"ops": graph.get("ops", {}), "qdq": graph.get("qdq", 0)},
        "verification": {k: v for k, v in manifest.records.checked.facts.items() if k != "budget"},
        "search": None if manifest.records.search is None else manifest.records.search.facts,
        "engines": [
            {**part.engine.facts, "cosine": part.report.facts.get("cosine"), "reason": part.report.facts.get("reason")}
            for part in manifest.engines
        ],
        "kernels": [part.facts for part in manifest.kernels],
        "replaced": manifest.replaced,
        "bytes": sum(file.bytes for file in manifest.files.values()),
        "keys": {name: record.key for name, record in manifest.records if record is not None},
        "structure": manifest.spec.get("structure", {}),
        "states": {name: state["output"] for name, state in manifest.spec.get("states", {}).items()},
    }
    decisions = graph.get("decisions", [])
    if nodes or as_json:
        data["decisions"] = decisions
    click.echo(json.dumps(data) if as_json else visible(describe(data, decisions, nodes)))
    return 0


def describe(data: dict[str, Any], decisions: list[dict[str, Any]], nodes: bool) -> str:
    """The answer for people."""
    kind = {"prepared": "a prepared artifact, without an engine", "full": "an artifact"}[data["kind"]]
    lines = [f"{data['artifact']}: {kind} of '{data['name']}', {data['precision']}, {size_of(data['bytes'])}"]
    if not data["accepted"]:
        lines.append("not accepted: it misses its accuracy budget (see report.html)")
    values = [
        (side[:-1], value["name"], value["dtype"], str(value["shape"]))
        for side in ("inputs", "outputs")
        for value in data["io"][side]
    ]
    if data["choice"]:
        from aot.report.choice import verdict

        lines.append(verdict(data["choice"]))
    lines += ["", table(values), ""]
    if data["structure"]:
        taken = ", ".join(f"{name}={shown(tree)}" for name, tree in data["structure"].items())
        lines.append(f"  forward takes {taken}")
    lines += [f"  {name} is {output} of the call before" for name, output in data["states"].items()]
    for index, profile in enumerate(data["profiles"]):
        ranges = (f"{name}={low}..{opt}..{high}" for name, (low, opt, high) in profile.items())
        lines.append(f"  profile {index}: {', '.join(ranges) or 'fixed sizes'}")
    found = data["verification"]
    facts = [
        ("nodes", f"{data['nodes']['exported']} -> {data['nodes']['final']}"),
        ("quantized", f"{data['quantized']['ops'] or 'nothing'}, {data['quantized']['qdq']} DequantizeLinear"),
        ("graph to source", f"cosine {number(found['cosine'])}, relative L2 {number(found['relative_l2'])}"),
    ]
    for engine in data["engines"]:
        state = engine["reason"] or f"cosine {number(engine['cosine'])}"
        facts.append((f"engine {engine['target']}", f"{engine['backend']}, {size_of(engine['bytes'])}, {state}"))
        facts += [("  form", said) for said in _forms(engine)]
        facts += [(f"  {one['plugin']}", _launched(one)) for one in engine.get("kernels", ())]
    facts += _replaced(data["replaced"])
    built = {engine["target"] for engine in data["engines"]}
    for carried in data["kernels"]:
        if carried["target"] not in built:
            facts += [(f"{one['plugin']} for {carried['target']}", _kernel(one)) for one in carried["kernels"]]
        facts += [(f"{one['op']} for {carried['target']}", f"no kernel: {one['why']}") for one in carried["left"]]
        facts += [(f"attention for {carried['target']}", _stays(one)) for one in _attention_left(carried)]
    for half in data["history"]:
        gpu = half["machine"]["gpu"]["name"] if half["machine"].get("gpu") else half["machine"].get("cpu")
        facts.append((" and ".join(half["did"]), f"{half['created']}, aot {half['versions']['aot']}, {gpu}"))
    lines += ["", table(facts), ""]
    if data["search"]:
        lines += [*paragraph(data["search"]), ""]
    rows: list[tuple[str, ...]]
    if nodes:
        rows = [(d["node"], d["op"], d["precision"], _origin(d), d["reason"]) for d in decisions]
    else:
        counts: dict[tuple[str, str], int] = {}
        for decision in decisions:
            group = (str(decision["precision"]), str(decision["op"]))
            counts[group] = counts.get(group, 0) + 1
        rows = [(precision, op, str(count)) for (precision, op), count in sorted(counts.items())]
    return "\n".join([*lines, table(rows)]) if rows else "\n".join(lines)


def _forms(engine: dict[str, Any]) -> list[str]:
    """In which ways an engine is another than the plain one (see docs/slim.md)."""
    stripped, lean, hardware = (engine.get(f) for f in ("stripped", "version_compatible", "hardware_compatible"))
    return [
        *([f"stripped: {stripped['weights']} weights are put in when it is loaded"] if stripped else []),
        *([f"version-compatible, {lean} the lean runtime in the plan"] if lean else []),
        *([f"hardware-compatible: {hardware}"] if hardware else []),
    ]


def _launched(one: dict[str, Any]) -> str:
    """`2 nodes, kernel 1a2b3c4d5e6f, needs Python and cuda-bindings to run`."""
    return _kernel(one) + (", needs Python and cuda-bindings to run" if one["needs_python"] else ", in the engine")


def _kernel(one: dict[str, Any]) -> str:
    """`2 nodes, kernel 1a2b3c4d5e6f and 3 more to choose from`, each by its digest."""
    nodes, digests = len(one["nodes"]), one["digests"]
    choice = f" and {len(digests) - 1} more to choose from" if len(digests) > 1 else ""
    return f"{nodes} node{'s' if nodes > 1 else ''}, kernel {digests[0][:12]}{choice}"


def _replaced(places: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(plugin, `takes 24 places that the model writes out: asked for`); attention that stays has a line of its own."""
    counts = Counter((place["plugin"], bool(place["replaced"]), place["why"]) for place in places)
    return [
        (plugin, f"{'takes' if taken else 'leaves'} {count} place{'s' * (count > 1)} that the model writes out: {why}")
        for (plugin, taken, why), count in counts.items()
        if taken or plugin != "attention"
    ]


def _attention_left(carried: dict[str, Any]) -> list[dict[str, Any]]:
    return list((carried.get("attention") or {}).get("left", ()))


def _stays(one: dict[str, Any]) -> str:
    """`2 stay two MatMuls and a Softmax: its mask is broadcast`."""
    count = len(one["nodes"])
    return f"{count} stay{'s' * (count == 1)} two MatMuls and a Softmax: {one['why']}"


def _origin(decision: dict[str, Any]) -> str:
    """`encoder.layer.0, models/bert.py:213`; `-` in artifacts of before origins were kept."""
    return ", ".join(filter(None, (decision.get("module"), decision.get("source")))) or "-"
