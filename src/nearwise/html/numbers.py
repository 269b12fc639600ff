"""Display of numbers: shares, cells, targets, and the chart of a predicted distribution."""

import math
from typing import Any

import numpy as np

from nearwise.html.charts import Chart
from nearwise.html.neighbors import is_missing

_BARS, _TAIL = 48, 0.003  # bars of a chart, and the probability beyond each end
_MOST_DECIMALS = 12
_GAP, _SPACE = "\N{EN DASH}", "\N{NO-BREAK SPACE}"
_LARGEST = 1e15  # written without an exponent


def percent(share: float) -> str:
    """Format a share: 97.3 %; values near 0 % or 100 % are shown as limits."""
    if not math.isfinite(share):
        return _GAP
    percents = 100 * share
    if 0 < percents < 0.05:
        return f"<0.1{_SPACE}%"
    if 99.95 <= percents < 100:
        return f">99.9{_SPACE}%"
    return f"{percents:.1f}{_SPACE}%"


def cell(value: Any) -> str:
    """Format a cell; a dash for a missing value."""
    if is_missing(value):
        return _GAP
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value)


def rounded_percent(share: float) -> str:
    """Format a share in whole percents; values near 0 % or 100 % are shown as limits."""
    if 0 < share < 0.005:
        return f"<1{_SPACE}%"
    if 0.995 <= share < 1:
        return f">99{_SPACE}%"
    return f"{100 * share:.0f}{_SPACE}%"


def decimals(explanation: Any) -> int:
    """Decimals of an answer: a hundredth of its interval, at most one more than the targets."""
    low, high = explanation.interval
    of_width = 2 - int(np.floor(np.log10(high - low))) if high > low else _MOST_DECIMALS
    targets = [one.target for one in explanation.neighbors]
    of_data = (n for n in range(_MOST_DECIMALS) if all(round(y, n) == y for y in targets))
    return max(0, min(of_width, next(of_data, _MOST_DECIMALS) + 1, _MOST_DECIMALS))


def number(value: float, n_decimals: int | None = None) -> str:
    """Format a number with some decimals, or by default as given."""
    if not abs(value) < _LARGEST:
        return f"{value:.6g}"
    if n_decimals is not None:
        return f"{round(value, n_decimals) + 0.0:.{n_decimals}f}"
    return f"{value:.15g}" if value == round(value) else f"{value:.10g}"


def distribution(explanation: Any) -> tuple[Chart, list[tuple[float, float, float]]]:
    """Return a chart and bars (from, to, probability) of a predicted distribution."""
    mixture, n = explanation.distribution, decimals(explanation)
    ends = mixture.quantiles(np.array([_TAIL, 1 - _TAIL]))[0].tolist()
    shown = [*ends, *explanation.interval, *(one.target for one in explanation.neighbors)]
    margin = 0.02 * (max(shown) - min(shown)) or abs(ends[0]) / 100 or 1.0
    edges = np.linspace(min(shown) - margin, max(shown) + margin, _BARS + 1)
    shares = np.diff(mixture.cdf(edges[None])[0]).tolist()
    low, high = (number(end, n) for end in explanation.interval)
    range_x, range_y = (float(edges[0]), float(edges[-1])), (-0.12 * max(shares), max(shares))
    said = f"Predicted distribution, interval {low} to {high}"
    chart = Chart(said, "target", "probability", range_x, range_y, height=190)
    return chart, list(zip(edges[:-1].tolist(), edges[1:].tolist(), shares, strict=True))
