"""The comparisons with eager PyTorch: of the final graph, and of every engine that could run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aot.report.html import digits, fold, paragraph, table_of
from aot.report.html import section as titled
from aot.text import sizes


def section(data: Mapping[str, Any]) -> str:
    """A row a comparison, at its worst; its cases and every output folded away."""
    compared = [("final graph, on onnxruntime", data.get("graph"))]
    compared += [(f"engine {target}", report) for target, report in (data.get("engine_reports") or {}).items()]
    known = [(name, report) for name, report in compared if report]
    limits = ", ".join(f"{name} {limit:g}" for name, limit in (data.get("budget") or {}).items())
    head = ("", "least cosine", "relative L2", "max abs", "cases", "")
    return titled(
        "Accuracy against eager PyTorch",
        paragraph(f"Budget: {limits}" if limits else "", "soft"),
        table_of(head, [_worst(name, report) for name, report in known]),
        *(_metric(name, report.get("metric")) for name, report in known),
        *(fold(f"Every case: {name}", _cases(report)) for name, report in known if report["ran"]),
        *(fold(f"Every output: {name}", _outputs(report)) for name, report in known if report["ran"]),
    )


def _worst(name: str, report: Mapping[str, Any]) -> tuple[str, ...]:
    if not report["ran"]:
        return name, "", "", "", "", str(report["reason"])
    cases = report["cases"]
    missed = sum(not case["accepted"] for case in cases)
    worst = [
        digits(choose((case[key] for case in cases if case[key] is not None), default=None))
        for key, choose in (("cosine", min), ("relative_l2", max), ("max_abs", max))
    ]
    return name, *worst, str(len(cases)), f"{missed} missed" if missed else "all keep the budget"


def _cases(report: Mapping[str, Any]) -> str:
    head = ("case", "data", "sizes", "cosine", "relative L2", "max abs", "")
    rows = [
        (
            case["name"], case["kind"], sizes(case["sizes"]), digits(case["cosine"]), digits(case["relative_l2"]),
            digits(case["max_abs"]), "ok" if case["accepted"] else "missed",
        )
        for case in report["cases"]
    ]  # fmt: skip
    return table_of(head, rows)


def _metric(name: str, metric: Mapping[str, Any] | None) -> str:
    if not metric:
        return ""
    if metric.get("ran") is False:
        return paragraph(f"The model's own metric, {name}: {metric['reason']}")
    here = metric["eager"] - metric["drop"]
    return paragraph(f"The model's own metric: {metric['eager']:.6g} of eager, {here:.6g} of the {name}.")


def _outputs(report: Mapping[str, Any]) -> str:
    rows = [
        (
            case["name"], name, digits(one["cosine"]), digits(one["relative_l2"]), digits(one["max_abs"]),
            digits(one["flips"]), one["nonfinite"]["ref"], one["nonfinite"]["mismatched"], one["failure"],
        )
        for case in report["cases"]
        for name, one in case["outputs"].items()
    ]  # fmt: skip
    head = ("case", "output", "cosine", "relative L2", "max abs", "flips", "NaN/Inf", "of them differ", "failure")
    return table_of(head, rows)
