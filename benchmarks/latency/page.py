"""The kept result as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COLUMNS = (
    ("eager", "eager", "fp16"),
    ("compile", "compile-default", "fp16"),
    ("reduce-overhead", "compile-reduce-overhead", "fp16"),
    ("max-autotune", "compile-max-autotune", "fp16"),
    ("aot FP16", "aot", "fp16"),
    ("aot INT8", "aot", "int8"),
    ("aot FP8", "aot", "fp8"),
)


def text(rows: Sequence[Mapping[str, Any]], figure: str) -> str:
    """One line for each model and size; `figure` is a field of a row, such as `p50_ms`."""
    found = {(row["model"], row["batch"], row["length"], row["tool"], row["precision"]): row for row in rows}
    sizes = dict.fromkeys((row["model"], row["batch"], row["length"]) for row in rows)
    lines = [f"| model | batch | length | {' | '.join(title for title, _, _ in COLUMNS)} |", "|---" * 10 + "|"]
    for model, batch, length in sizes:
        cells = [found.get((model, batch, length, tool, precision), {}).get(figure) for _, tool, precision in COLUMNS]
        shown = ["-" if value is None else f"{value:.4g}" for value in cells]
        lines.append(f"| {model} | {batch} | {length or '-'} | {' | '.join(shown)} |")
    return "\n".join(lines)
