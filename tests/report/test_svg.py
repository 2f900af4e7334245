"""The small functions that plots are drawn with."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

import pytest

from aot.report import svg
from aot.report.svg import Axis, Bar


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([0.41, 5.1], 0.2, 10), ([0.03], 0.02, 0.05), ([1, 100], 1, 100), ([0.0, 2.0], 1e-12, 2)],
)
def test_a_logarithmic_axis_goes_from_one_round_number_around_the_values_to_another(
    values: list[float], low: float, high: float
) -> None:
    axis = svg.logarithmic(values)
    assert axis.low == pytest.approx(low)
    assert axis.high == pytest.approx(high)


def test_places_are_even_in_powers_on_a_logarithmic_axis_and_in_values_on_a_linear_one() -> None:
    log = Axis(0.01, 100, log=True)
    assert [log.at(value) for value in (0.01, 0.1, 1, 100, 0.0, 1e9)] == pytest.approx([0, 0.25, 0.5, 1, 0, 1])
    assert [Axis(0, 8).at(value) for value in (0, 2, 8, 9)] == pytest.approx([0, 0.25, 1, 1])


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (Axis(0.2, 10, log=True), [0.2, 0.5, 1, 2, 5, 10]),
        (Axis(1e-8, 1, log=True), [1e-8, 1e-6, 1e-4, 1e-2, 1]),
        (Axis(0, 58.6), [0, 20, 40]),
    ],
)
def test_ticks_are_few_and_round(axis: Axis, ticks: list[float]) -> None:
    assert axis.ticks() == pytest.approx(ticks)


@pytest.mark.parametrize(("value", "said"), [(0.05, "0.05"), (20, "20"), (1e-6, "1e-6"), (2e-7, "2e-7"), (0, "0")])
def test_ticks_are_written_short(value: float, said: str) -> None:
    assert svg.tick(value) == said


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_bars_are_as_long_as_their_values_say_and_say_what_they_are() -> None:
    rows = [Bar("one <1>", 2.0, "2 ms"), Bar("two", 4.0, "4 ms", "other", far=8.0)]
    found = drawn(svg.bars("Times", "one 2 ms; two 4 ms", rows, above=True))
    assert (found.attrib["role"], found.findtext("title"), found.findtext("desc")) == (
        "img", "Times", "one 2 ms; two 4 ms",
    )  # fmt: skip
    widths = [float(one.attrib["width"].rstrip("%")) for one in found.iter("rect")]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.02)
    far = next(one for one in found.iter("line") if one.attrib["x1"] != one.attrib["x2"])
    assert float(far.attrib["x2"].rstrip("%")) == pytest.approx(2 * widths[1], abs=0.02)
    assert [one.attrib["class"] for one in found.iter("rect")] == ["bar", "other"]
    assert [one.findtext("title") for one in found.iter("rect")] == ["one <1>: 2 ms", "two: 4 ms"]


def test_nothing_is_wider_than_the_page_whatever_the_values() -> None:
    text = svg.bars("t", "t", [Bar("a", 1e9, "1e9 s", far=5e9), Bar("b", 0.0, "0 s")])
    places = [float(place) for place in re.findall(r'x2?="([\d.]+)%"', text)]
    assert max(places) <= 100


def test_a_line_goes_through_its_points() -> None:
    line = drawn(svg.line([(0.0, 10.0), (0.5, 20.5), (1.0, 5.0)], 100, "whole")).find("polyline")
    assert line is not None
    assert line.attrib["points"] == "0.0,10.0 500.0,20.5 1000.0,5.0"
