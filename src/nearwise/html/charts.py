"""Geometry of charts, in SVG units."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nearwise.cached import cached_property

_MOST_POINTS = 400  # of a line; more are not visible
_CHARACTER = 7  # largest width of a digit of a tick


@dataclass(frozen=True)
class Chart:
    """A chart with axes, drawn by the macro `chart` of charts.html.

    `x` and `y` are the ranges of the axes; `title` describes the chart for screen readers.
    """

    title: str
    x_label: str
    y_label: str
    x: tuple[float, float] = (0.0, 1.0)
    y: tuple[float, float] = (0.0, 1.0)
    width: int = 420
    height: int = 280

    right, top, bottom = 12, 12, 44

    @cached_property
    def left(self) -> int:
        """Left margin, with room for the axis label and the longest tick."""
        return 30 + _CHARACTER * max(3, *(len(text) for _, text in self.ticks("y")))

    def at_x(self, value: float) -> float:
        """Return the x coordinate of a value."""
        share = (value - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        return round(self.left + share * (self.width - self.left - self.right), 2)

    def at_y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        share = (value - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 2)

    def line(self, xs: Iterable[float], ys: Iterable[float]) -> str:
        """Return the points of a polyline."""
        points = np.column_stack([list(xs), list(ys)])
        if len(points) > _MOST_POINTS:
            points = points[np.linspace(0, len(points) - 1, _MOST_POINTS).astype(int)]
        return " ".join(f"{self.at_x(x)},{self.at_y(y)}" for x, y in points.tolist())

    def ticks(self, axis: str) -> list[tuple[float, str]]:
        """Return values of an axis at round numbers, with their text."""
        low, high = self.x if axis == "x" else self.y
        step = _step(high - low)
        values = np.arange(np.ceil(low / step - 1e-9) * step, high + 1e-9 * step, step)
        return [(float(value), f"{value + 0.0:.6g}") for value in values.round(12)]


def up_to_a_tick(largest: float) -> float:
    """Return the tick at or above the largest value, as the end of an axis from 0."""
    step = _step(largest)
    return float(np.ceil(largest / step - 1e-9) * step)


def _step(length: float) -> float:
    """Tick distance on an axis of this length: four or five ticks, at round numbers."""
    rough = length / 4 or 1.0
    power = 10.0 ** np.floor(np.log10(rough))
    return float(next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * 0.999))
