"""Plots as inline SVG, without a script: shapes stretch with the page, text keeps its size.

Across, places are shares of the width (`10%`); down, they are pixels. So one drawing serves a phone and a wide screen.
What a percentage cannot say, a line's points, is drawn in a nested `svg` that is stretched to the plot's area. Colours
come from classes (`style.py`), and nothing is told by colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

LEFT = 9.0
"""Percent of the width that the labels of the vertical axis take."""
TOP, BOTTOM = 14, 22
ROW, BAR = 26, 12
_STEPS = (1.0, 2.0, 5.0)
_SHAPES = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "M-4 -4h8v8h-8z", "M0 -5l5 9h-10z", "M0 -5l5 5l-5 5l-5 -5z")


@dataclass(frozen=True)
class Axis:
    """Values of one direction. low, high: what its two ends stand for. log: powers are equally far apart."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """From 0 at `low` to 1 at `high`; what lies outside is put at the end."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, max(value, self._least)))
        return min(max((value - low) / (high - low), 0.0), 1.0)

    @property
    def _least(self) -> float:
        return self.low if self.log else -math.inf

    def ticks(self, most: int = 6) -> list[float]:
        """Round values between the ends, `most` at most."""
        if not self.log:
            step = _nice(self.high / (most - 1))
            return [step * n for n in range(math.floor(self.high / step + 1e-9) + 1)]
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        near = (1 - 1e-9) * self.low, (1 + 1e-9) * self.high
        fine = [s * 10.0**p for p in range(first, last + 1) for s in _STEPS if near[0] <= s * 10.0**p <= near[1]]
        if len(fine) <= most:
            return fine
        powers = [10.0**p for p in range(first, last + 1) if near[0] <= 10.0**p <= near[1]]
        return powers[:: math.ceil(len(powers) / most)]


def linear(values: Iterable[float]) -> Axis:
    """From 0 to a little more than the largest."""
    top = max(values, default=0.0)
    return Axis(0.0, top * 1.02 if top > 0 else 1.0)


def logarithmic(values: Iterable[float], least: float = 1e-12) -> Axis:
    """Around all values, from one round number (1, 2, 5 times a power of ten) to another; `least` stands for less."""
    found = [max(value, least) for value in values]
    low, high = (_round(min(found), up=False), _round(max(found), up=True)) if found else (least, 1.0)
    return Axis(low, high if high > low else low * 10, log=True)


def _nice(value: float) -> float:
    return _round(value, up=True) if value > 0 else 1.0


def _round(value: float, *, up: bool) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = math.floor(math.log10(value))
    steps = [step * 10.0**p for p in (power - 1, power, power + 1) for step in _STEPS]
    return next(s for s in steps if s >= value * (1 - 1e-9)) if up else max(s for s in steps if s <= value * (1 + 1e-9))


def plot(title: str, said: str, height: int, body: str) -> str:
    """A drawing with its name and what it shows, for those who cannot see it."""
    about = f"<title>{escape(title)}</title><desc>{escape(said)}</desc>"
    return f'<svg class="plot" width="100%" height="{height}" role="img">{about}{body}</svg>'


def text(x: float, y: float, said: str, kind: str = "", anchor: str = "start") -> str:
    """Words at a share of the width (percent) and a height (pixels)."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(said)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str, said: str = "") -> str:
    """A bar: x and width in percent, y and height in pixels. said: shown when it is pointed at."""
    inner = f"><title>{escape(said)}</title></rect>" if said else "/>"
    place = f'x="{x:.2f}%" y="{y:.1f}" width="{max(width, 0.15):.2f}%" height="{max(height, 0):.1f}"'
    return f'<rect class="{kind}" {place}{inner}'


def grid(axis: Axis, height: int, unit: str = "") -> str:
    """Lines across the plot, each with its value at the left."""
    parts = []
    for value in axis.ticks():
        y = level(axis, value, height)
        parts.append(f'<line class="grid" x1="{LEFT}%" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text(0, y + 4, f"{tick(value)}{unit}", "soft"))
    return "".join(parts)


def level(axis: Axis, value: float, height: int) -> float:
    """The height of a value, in pixels from the top of a plot that is `height` high."""
    return height - BOTTOM - axis.at(value) * (height - TOP - BOTTOM)


def across(share: float) -> float:
    """Percent of the whole width, of a share (0 to 1) of the plot's area."""
    return LEFT + share * (100 - LEFT)


def tick(value: float) -> str:
    """`0.05`, `20`, `1e-6`."""
    if value and not 1e-4 <= abs(value) < 1e5:
        return f"1e{round(math.log10(value))}" if math.log10(value) % 1 < 1e-9 else f"{value:.0e}".replace("e-0", "e-")
    return f"{value:g}"


def line(points: Sequence[tuple[float, float]], height: int, kind: str) -> str:
    """A line through points, each a share of the plot's area and a height in pixels."""
    drawn = " ".join(f"{x * 1000:.1f},{y:.1f}" for x, y in points)
    return stretched(f'<polyline class="{kind}" points="{drawn}"/>', height)


def stretched(body: str, height: int, width: float = 1000) -> str:
    """Shapes in units of `width` across, stretched over the plot's area."""
    box = f'viewBox="0 0 {width:g} {height}" preserveAspectRatio="none"'
    return f'<svg x="{LEFT}%" y="0" width="{100 - LEFT:g}%" height="{height}" {box}>{body}</svg>'


def mark(x: float, y: float, shape: int, kind: str, said: str) -> str:
    """A point of a line, its shape by its series; x a share of the plot's area."""
    path = f'<path class="{kind}" d="{_SHAPES[shape % len(_SHAPES)]}"><title>{escape(said)}</title></path>'
    return f'<svg x="{across(x):.2f}%" y="{y:.1f}" overflow="visible">{path}</svg>'


@dataclass(frozen=True)
class Bar:
    """One bar. value: its length. said: the numbers beside it. far: the end of a thin line beyond it."""

    label: str
    value: float
    said: str
    kind: str = "bar"
    far: float | None = None


def bars(title: str, said: str, rows: Sequence[Bar], *, above: bool = False, top: float | None = None) -> str:
    """Bars from the left, one below the other, from 0. above: labels stand over their bars, for long ones.

    top: what the longest possible bar stands for, where several plots are to be compared.
    """
    axis = linear([top] if top is not None else [max(row.value, row.far or 0.0) for row in rows])
    step, start, room = (ROW + 12, 0.0, 100.0) if above else (ROW, 30.0, 50.0)
    parts = []
    for number, row in enumerate(rows):
        y = number * step + (18 if above else 6)
        width = axis.at(row.value) * room
        end = max(width, axis.at(row.far or 0.0) * room)
        parts.append(rectangle(start, y, width, BAR, row.kind, f"{row.label}: {row.said}"))
        if row.far is not None and end > width:
            middle = y + BAR / 2
            parts.append(
                f'<line class="far" x1="{start + width:.2f}%" x2="{start + end:.2f}%" y1="{middle}" y2="{middle}"/>'
            )
            parts.append(
                f'<line class="far" x1="{start + end:.2f}%" x2="{start + end:.2f}%" y1="{y + 2}" y2="{y + BAR - 2}"/>'
            )
        if above:
            parts += [text(0, y - 5, row.label), text(100, y - 5, row.said, "strong", "end")]
        else:
            parts += [text(0, y + 10, row.label), text(start + end + 1, y + 10, row.said, "strong")]
    return plot(title, said, len(rows) * step + 4, "".join(parts))
