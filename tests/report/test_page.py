"""The page as text: what it says, that it needs nothing, and that what is not known is not there."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from aot import report as reports
from aot.errors import ArtifactError, UsageError
from aot.report.render import render
from aot.report.sections import SECTIONS
from tests.report.samples import bench, report, row

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Outline(HTMLParser):
    """Every tag closed in order; the text by section title."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


def titles(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def whole() -> dict[str, Any]:
    return {**report(), "bench": bench()}


def test_the_headline_says_verdict_speed_and_accuracy() -> None:
    said = " ".join(outline(render(whole())).text[:40])
    for shown in (
        "m, fp8", "Accepted", "cosine 0.995", "0.41 ms", "at batch=1, p99 0.492 ms", "12.44 times as fast as eager",
        "2.68 times as fast as torch.compile max-autotune, fp16, the fastest other", "fastest of all at 3 of 3 sizes",
        "0.9982", "36.0 MiB",
    ):  # fmt: skip
        assert shown in said


def test_every_section_is_there_and_linked_to() -> None:
    page = render(whole())
    assert titles(page) == [
        "Worth knowing", "Beside everything else", "Latency by shape", "Accuracy against eager PyTorch",
        "Where error enters", "Kept wide so that the budget holds", "Precision by layer", "Graph before and after",
        "Plugins, kernels, attention", "Stages", "Inputs and outputs", "How to reproduce",
    ]  # fmt: skip
    links = [source[1:] for source in outline(page).sources if source.startswith("#")]
    assert links == re.findall(r'<section id="([^"]+)"', page)


def test_it_needs_neither_network_nor_script() -> None:
    page = render(whole())
    assert "http" not in page
    assert "<script" not in page
    assert not re.search(r"@import|url\(|\son\w+=", page)
    assert [source for source in outline(page).sources if not source.startswith("#")] == ["data:,"]


def test_plots_have_a_role_a_name_and_words() -> None:
    plots = re.findall(r'<svg class="plot".*?><title>(.*?)</title><desc>(.*?)</desc>', render(whole()))
    assert len(plots) == render(whole()).count('role="img"') == 9
    assert all(title and said for title, said in plots)


def test_whatever_a_user_named_is_shown_as_it_is() -> None:
    evil = "<img src=x onerror=alert(1)>&\"'"

    def tainted(value: Any, key: str = "") -> Any:
        """Every string but those that the program itself decides on."""
        fixed = ("precision", "tool", "step", "did", "created", "route", "kept", "was", "target")
        if isinstance(value, dict):
            return {name: tainted(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [tainted(one, key) for one in value]
        return f"{value}{evil}" if isinstance(value, str) and key not in fixed else value

    page = render(tainted(whole()))
    assert "<img" not in page
    assert outline(page).sources.count("x") == 0
    assert "&lt;img src=x" in page


def without(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The data with each key but the three that it must have gone, or nothing in its place."""
    for key in data:
        if key not in ("model", "precision", "accepted"):
            yield {name: value for name, value in data.items() if name != key}
            yield {**data, key: None}


def test_what_is_not_known_is_not_there() -> None:
    for data in [*without(whole()), {"model": "m", "precision": "fp8", "accepted": False}]:
        page = render(data)
        said = " ".join(outline(page).text)
        assert not re.search(r"\bNone\b|\bnan\b|\bnull\b|\bNaN(?!/Inf)", said)
    assert titles(page) == []
    assert "Not accepted" in said


def test_numbers_that_are_missing_or_not_numbers_leave_their_cells_empty() -> None:
    data = whole()
    data["bench"]["rows"] = [row("aot", "fp8", 0.4, 1), row("eager", "fp16", 5.0, 1, p99_ms=float("nan"))]
    data["graph"]["cases"][0] |= {"cosine": None, "relative_l2": float("nan")}
    data["layers"]["rows"][2] |= {"relative_l2": None, "added": None, "finite": False, "cosine": None}
    said = " ".join(outline(render(data)).text)
    assert "not finite" in said
    assert not re.search(r"\bNone\b|\bnan\b", said)


def test_a_build_that_missed_says_why_first() -> None:
    data = report() | {"accepted": False, "reasons": ["graph: case 'max': cosine 0.9 is below 0.995"], "search": None}
    page = render(data)
    assert page.index("Not accepted") < page.index("cosine 0.9 is below 0.995") < page.index("<nav>")


def test_the_choice_of_a_precision_is_the_speed_where_there_is_no_benchmark() -> None:
    candidates = [
        {"precision": name, "out": None, "cosine": 0.999, "relative_l2": 0.01, "ms": [ms]}
        for name, ms in (("fp16", 2.0), ("fp8", 1.25))
    ]
    choice = {
        "precision": "fp8", "reason": "1.60 times as fast as fp16", "margin": 0.03, "on": "NVIDIA H200",
        "sizes": [{"batch": 8}], "candidates": candidates,
    }  # fmt: skip
    page = render(report() | {"choice": choice})
    assert "Why this precision" in titles(page)
    said = " ".join(outline(page).text[:30])
    assert "1.25 ms" in said
    assert "1.60 times as fast as fp16" in said


def test_where_aot_is_slower_the_page_says_so() -> None:
    data = whole()
    data["bench"]["rows"] = [
        row("aot", "fp16", 4.0, 64, p99_ms=4.4), row("compile-max-autotune", "fp16", 3.0, 64, p99_ms=3.2),
        row("aot", "fp16", 1.0, 1, p99_ms=1.1), row("compile-max-autotune", "fp16", 2.0, 1, p99_ms=2.2),
    ]  # fmt: skip
    said = " ".join(outline(render(data)).text[:30])
    assert "0.75 times as fast as torch.compile max-autotune, fp16, the fastest other" in said
    assert "fastest of all at 1 of 2 sizes" in said


def test_what_did_not_run_is_told_apart_from_figures_that_are_missing() -> None:
    data = whole()
    data["bench"]["rows"].append(row("aot", "fp16", 3.0, 1, reason="energy_mj: no meter"))
    page = render(data)
    failed, missing = page.index("What could not run"), page.index("Why figures are missing")
    assert failed < page.index("Torch-TensorRT, fp16: torch-tensorrt is not installed") < missing
    assert missing < page.index("aot, fp16: energy_mj: no meter (batch=1)")


def test_several_artifacts_go_by_their_names_and_what_to_doubt_is_said() -> None:
    data = whole()
    rows = [row("aot", "fp8", 0.4, 1, name="aot small"), row("aot", "fp16", 0.5, 1, name="aot large")]
    data["bench"] |= {"rows": rows, "warnings": ["batch=1: other processes took 40% of the CPUs' time"]}
    said = " ".join(outline(render(data)).text)
    for shown in ("aot small, fp8", "aot large, fp16", "What to doubt", "other processes took 40%"):
        assert shown in said
    assert "SM at 1965 to 1980 MHz" in said


def test_a_benchmarks_page_is_made_from_its_json_and_the_artifact(tmp_path: Path) -> None:
    folder = tmp_path / "m.aot"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report()))
    page = reports.page(bench(), folder)
    assert page == render(whole())
    assert len(SECTIONS) == 13


@pytest.mark.parametrize(
    ("written", "says"),
    [(None, "cannot be read"), ("{", "not JSON"), ("[]", "does not say what was built"), ("{}", "does not say what")],
)
def test_an_artifact_without_a_report_is_refused(tmp_path: Path, written: str | None, says: str) -> None:
    folder = tmp_path / "m.aot"
    folder.mkdir()
    if written is not None:
        (folder / "report.json").write_text(written)
    with pytest.raises(ArtifactError, match=says):
        reports.page(bench(), folder)
    with pytest.raises(UsageError, match="no such artifact"):
        reports.page(bench(), tmp_path / "n.aot")


def test_the_data_are_left_as_they_were() -> None:
    data = whole()
    before = copy.deepcopy(data)
    render(data)
    assert data == before
