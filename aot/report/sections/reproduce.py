"""How to come to the same: commands, machines, versions, digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from aot.report.html import code, facts, fold, known, table_of
from aot.report.html import section as titled
from aot.text import size_of


def section(data: Mapping[str, Any]) -> str:
    """The commands in order, where each ran, every version and every digest."""
    history = data.get("history") or ()
    bench = known(data, "bench")
    commands = [*(half.get("command", "") for half in history), str(bench.get("command") or "")]
    machines = "".join(
        f"<h3>{escape(' and '.join(half['did']))}, {escape(half['created'])}</h3>{_machine(half)}" for half in history
    )
    if bench:
        machines += f"<h3>benchmark</h3>{_machine(bench)}"
    return titled(
        "How to reproduce", code(commands), machines, fold("Digests", table_of(("", "SHA-256"), _digests(data)))
    )


def _machine(part: Mapping[str, Any]) -> str:
    """GPU, driver and CPU, clocks where they are known, and the versions folded away."""
    machine = known(part, "machine")
    gpu = machine.get("gpu")
    if isinstance(gpu, Mapping):
        memory = f", {size_of(gpu['memory'])}" if gpu.get("memory") else ""
        gpu = f"{gpu.get('name')} ({gpu['target']}{memory})" if gpu.get("target") else gpu.get("name")
    versions = known(part, "versions")
    clocks = known(known(part, "clocks"), "gpu")
    mhz = [clocks.get("lowest_sm_mhz"), clocks.get("highest_sm_mhz")]
    clock = f"SM at {mhz[0]} to {mhz[1]} MHz" if all(mhz) else ""
    slowed = f", slowed by {', '.join(clocks['slowed'])}" if clocks.get("slowed") else ""
    brief = ", ".join(
        f"{name} {versions[name]}" for name in ("aot", "torch", "tensorrt", "onnxruntime") if versions.get(name)
    )
    rows = [
        ("GPU", gpu),
        ("driver", machine.get("driver")),
        ("CPU", machine.get("cpu")),
        ("clocks", clock + slowed),
        ("versions", brief),
    ]
    found = [(name, value or None) for name, value in rows]
    return facts(found) + fold(f"All {len(versions)} versions", table_of(("package", "version"), versions.items()))


def _digests(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if data.get("identity"):
        yield "the artifact, by what it was made from", data["identity"]
    for name, key in known(data, "records").items():
        yield f"{name}, by what it was made from", key
    for engine in data.get("engines") or ():
        if engine.get("sha256"):
            yield f"{engine['file']}, its bytes", engine["sha256"]
