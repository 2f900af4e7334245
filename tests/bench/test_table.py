"""The answer for people."""

from __future__ import annotations

from typing import Any

import pytest

from aot.bench.table import short, text


def row(name: str, p50: float | None, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "tool": name, "name": name, "label": f"what {name} is", "precision": "fp16", "sizes": {"batch": 64, "seq": 512},
        "runs": 2000, "p50_ms": p50, "p90_ms": p50, "p99_ms": p50, "spread": 1.2345, "first_ms": 123456.7,
        "throughput": 123456.789, "launches": 1234, "gpu_bytes": 123 << 30, "host_bytes": 999 << 20,
        "energy_mj": 12345.6, "cosine": 0.9999999, "relative_l2": 1.234e-4, "reason": None,
    }  # fmt: skip
    return base | more


def answer(*rows: dict[str, Any], warnings: tuple[str, ...] = ()) -> str:
    machine = {"cpu": "AMD EPYC 9654 96-Core Processor", "threads": 192, "gpu": "NVIDIA H200", "driver": "580.65"}
    versions = {f"distribution-{number}": "12.34.56" for number in range(9)}
    return text({"machine": machine, "versions": versions, "rows": list(rows), "warnings": list(warnings)})


def test_it_fits_100_columns_whatever_the_figures() -> None:
    long = "a reason that somebody else's library gave " * 8
    said = answer(
        row("aot bert-base-large-uncased-with-a-long-name-fp8", 1234.56789),
        row("compile-reduce-overhead", 0.00012),
        row("onnxruntime-tensorrt", None, reason=long),
        warnings=(long,),
    )
    assert max(map(len, said.splitlines())) <= 100
    assert "123.00 GiB" in said
    assert "0.9999999  1.2e-04" in said


def test_the_fastest_comes_first() -> None:
    said = answer(row("slow", 2.0), row("fast", 1.0), row("middle", 1.5))
    lines = [line.split() for line in said.splitlines() if line.startswith(("  slow", "  fast", "  middle"))]
    assert [line[0] for line in lines if "what" not in line] == ["fast", "middle", "slow"] * 2
    assert "  slow    what slow is" in said


def test_a_column_that_no_row_has_is_left_out() -> None:
    assert "mJ" in answer(row("a", 1.0), row("b", 1.0, energy_mj=None))
    cpu = answer(row("a", 1.0, energy_mj=None, launches=None, gpu_bytes=None))
    assert not any(title in cpu for title in ("mJ", "launches", "GPU memory"))


def test_what_cannot_run_is_listed_with_the_reason_and_what_lacks_a_figure_apart() -> None:
    said = answer(
        row("a", 1.0, reason="launches: no GPU"),
        row("b", 1.0, reason="launches: no GPU"),
        row("c", None, reason="no GPU"),
    )
    assert "not measured\n  a, b: launches: no GPU" in said
    assert "not run\n  c: no GPU" in said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"),
        (0.0123456, "0.0123"),
        (0.123456, "0.123"),
        (1.23456, "1.235"),
        (123.456, "123.5"),
        (12345.6, "12346"),
    ],
)
def test_figures_are_short(value: float | None, said: str) -> None:
    assert short(value) == said
