"""The result as a table in docs/serve.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

START, END = "<!-- serving: written by benchmarks/serving.py -->\n", "<!-- /serving -->"


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown, a line a row."""
    lines = ["| tokens | | requests/s | p50, ms | p99, ms | requests in a batch | times batch 1 |", "|" + "---|" * 7]
    for row in rows:
        figures = (f"{row['requests_per_second']:.0f}", f"{row['p50_ms']:.0f}", f"{row['p99_ms']:.0f}")
        cells = (str(row["length"]), row["method"], *figures, str(row["mean_batch"]), str(row.get("times_batch_1", "")))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def put(page: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table between its marks."""
    before, _, rest = page.read_text().partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}{table(rows)}{END}{after}")
