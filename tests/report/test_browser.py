"""The page in a real browser: no errors, nothing wider than the screen, plots drawn where the data say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aot.report.render import render
from tests.report.browser import DARK, Browser, browser
from tests.report.samples import bench, report

PROGRAM = browser()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium: install one, or name it in CHROME")
pytest.importorskip("PIL", reason="Pillow, which reads the pictures, is not installed")

Colour = tuple[int, int, int]


@pytest.fixture(scope="module")
def page() -> str:
    """Every section, with names that are as long as real ones."""
    data = {**report(), "bench": bench()}
    for one in data["decisions"]:
        one["module"] = f"encoder.{one['module']}.a.rather.long.path.to.a.module"
        one["source"] = "transformers/models/a_model_with_a_long_name/modeling_a_model_with_a_long_name.py:1234"
    data["history"][0]["command"] = f"aot build model.py {'--target sm89 ' * 12}"
    data["warnings"] = ["a_word_that_is_wider_than_any_phone_" * 6]
    return render(data)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    assert PROGRAM is not None
    return Browser(PROGRAM, tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module")
def wide(chromium: Browser, page: str) -> tuple[dict[str, Any], Any]:
    """Where things lie at 800 pixels, and the picture."""
    found, console = chromium.measured(page, 800)
    assert console == []
    return found, chromium.picture(page, 800, int(found["height"]))


@pytest.fixture(scope="module")
def phone(chromium: Browser, page: str) -> dict[str, Any]:
    """Where things lie at 360 pixels."""
    found, console = chromium.measured(page, 360)
    assert console == []
    return found


def test_on_a_phone_nothing_is_wider_than_the_screen(phone: dict[str, Any]) -> None:
    assert phone["width"] == 360
    assert phone["wide"] == []
    assert phone["scroll"] == 360


def test_words_of_a_plot_stand_on_it_and_not_on_each_other(phone: dict[str, Any]) -> None:
    assert len(phone["plots"]) == 9
    for plot in phone["plots"]:
        boxes = [(one["said"], one["box"]) for one in plot["texts"]]
        for number, (said, (left, top, width, height)) in enumerate(boxes):
            assert left >= 0, said
            assert left + width <= 360, said
            for other, (left2, top2, width2, height2) in boxes[:number]:
                apart = (
                    left >= left2 + width2
                    or left2 >= left + width
                    or top >= top2 + height2 - 3
                    or top2 >= top + height - 3
                )
                assert apart, f"{plot['title']}: {said} on {other}"


def colour(text: str) -> Colour:
    red, green, blue = map(int, re.findall(r"\d+", text)[:3])
    return red, green, blue


def run(picture: Any, y: float, wanted: Colour) -> tuple[int, int]:
    """The first and the last pixel of that colour in a row."""
    row = [place for place in range(picture.width) if picture.getpixel((place, round(y))) == wanted]
    assert row, f"nothing of {wanted} at {y}"
    return row[0], row[-1] + 1


def test_bars_are_drawn_as_long_as_the_times_that_they_stand_for(wide: tuple[dict[str, Any], Any]) -> None:
    found, picture = wide
    plot = next(one for one in found["plots"] if one["title"] == "Latency at batch=1")
    times = {
        "aot, fp8": 0.41,
        "torch.compile max-autotune, fp16": 1.1,
        "torch.compile, fp16": 2.9,
        "eager PyTorch, fp16": 5.1,
    }
    left, _, width, _ = plot["box"]
    drawn = {}
    for shape in plot["shapes"]:
        name = shape["said"].partition(":")[0]
        _, top, _, height = shape["box"]
        first, last = run(picture, top + height / 4, colour(shape["colour"]))
        assert abs(first - left) <= 1
        drawn[name] = last - first
        assert picture.getpixel((round(left + width) - 1, round(top + height / 4))) == (255, 255, 255)
    assert drawn.keys() == times.keys()
    for name, length in drawn.items():
        assert length == pytest.approx(drawn["eager PyTorch, fp16"] * times[name] / 5.1, abs=2)


def test_every_point_and_bar_of_the_other_plots_is_drawn_in_its_colour(wide: tuple[dict[str, Any], Any]) -> None:
    found, picture = wide
    seen = 0
    for plot in found["plots"]:
        for shape in plot["shapes"]:
            left, top, width, height = shape["box"]
            if width < 3 or height < 3 or shape["kind"] == "stored":
                continue
            here = picture.getpixel((round(left + width / 2), round(top + height / 2)))
            wanted = colour(shape["colour"])
            # A line of another series, or the line over bars, may pass here: then its neighbours count.
            near = [picture.getpixel((round(left + width / 2) + step, round(top + height / 2))) for step in (-1, 1)]
            assert wanted in (here, *near), f"{plot['title']}: {shape['said']}"
            seen += 1
    assert seen > 50


def test_the_line_of_errors_rises_through_the_points_of_the_data(wide: tuple[dict[str, Any], Any]) -> None:
    """Errors grow from 0.001 to 0.016: on an axis from 1e-4 up the blue line climbs from left to right."""
    found, picture = wide
    plot = next(one for one in found["plots"] if one["title"] == "Relative L2 by layer")
    left, top, width, height = plot["box"]
    heights = []
    for share in (0.15, 0.5, 0.9):
        column = [picture.getpixel((round(left + share * width), round(top) + y)) for y in range(round(height) - 30)]
        blue = [y for y, (red, green, blue) in enumerate(column) if blue > 150 and red < 120 and green < 150]
        assert blue, share
        heights.append(sum(blue) / len(blue))
    assert heights[0] > heights[1] > heights[2]


def test_in_the_dark_the_page_is_dark_and_its_words_are_light(chromium: Browser, page: str) -> None:
    picture = chromium.picture(page, 800, 300, DARK)
    assert max(picture.getpixel((2, 2))) < 60
    assert min(high for _, high in picture.crop((0, 0, 400, 60)).getextrema()) > 200
