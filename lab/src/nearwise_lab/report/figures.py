"""Figures of a comparison: bars, reliability diagrams, risk-coverage and training curves."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nearwise.metrics import reliability_bins, risk_coverage_curve
from nearwise_lab.report.drawing import (
    ACCENT,
    FAINT,
    INK,
    LINE_COLORS,
    METHOD_LOOK,
    SOFT,
    Picture,
    canvas,
    page_style,
    picture,
    slug,
)
from nearwise_lab.results.measures import BARS, MEASURES, Mean, Predictions

N_BINS = 10
MAX_DIAGRAMS = 8
_HEADING_CHARACTERS = 10  # per inch, in a wide font

Means = Mapping[str, Mapping[str, Mean | None]]  # by method and measure


def comparison_bars(
    dataset: str, means: Means, reference: str, heading: str = "", name: str = ""
) -> Picture:
    """Error rate, NLL, ECE and AURC of every method, with intervals, lower is better.

    `means` holds those of `BARS` for each method, the best NLL first. Here and below, `heading`
    is above the figure and `name` makes its ids unique in a page that shows a data set more
    than once.
    """
    order = list(means)[::-1]
    with page_style():
        figure, axes = canvas(9.4, 0.9 + 0.26 * len(order), 1, 4, sharey=True)
        head(figure, heading)
        for axis, (key, title) in zip(axes[0], BARS.items(), strict=True):
            _bars(axis, means, order, key, reference)
            axis.set_title(title)
        axes[0][0].set_yticks(range(len(order)), order)
    best = order[-1]
    alt = f"{dataset}: bars of error, NLL, ECE and AURC per method; {best} has the lowest NLL."
    repeated = any(
        m is not None and m.half is not None for row in means.values() for m in row.values()
    )
    bars = "Bars are means over seeds, lines 95 % t-intervals" if repeated else "One run each"
    not_paired = " The lines are not paired: see the differences below." if repeated else ""
    caption = f"Lower is better in every panel. {bars}; {reference} is highlighted.{not_paired}"
    return picture(figure, f"bars-{slug(name or dataset)}", alt, caption)


def head(figure: Figure, heading: str) -> None:
    """Put a heading over a figure, broken over lines where it is wider."""
    if heading:
        lines = head_lines(heading, float(figure.get_size_inches()[0]))
        figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=10, fontweight="bold")


def head_lines(heading: str, width: float) -> list[str]:
    """Lines of a heading over a figure of this width in inches, in bold type of 10 points."""
    return textwrap.wrap(heading, max(1, int(_HEADING_CHARACTERS * width)))


def _pooled(n_seeds: int) -> str:
    return " Rows of all seeds are pooled." if n_seeds > 1 else ""


def _bars(axis: Axes, means: Means, order: list[str], key: str, reference: str) -> None:
    scale = next(m.scale for m in MEASURES if m.key == key)
    for row, method in enumerate(order):
        mean = means[method][key]
        if mean is None:
            continue
        value = 1 - mean.mean if key == "accuracy" else mean.mean * scale
        color = ACCENT if method.split(":")[0] == reference else SOFT
        axis.barh(row, value, height=0.62, color=color)
        if mean.half is not None:
            half = mean.half * scale
            axis.plot([max(0.0, value - half), value + half], [row, row], color=INK, lw=1)
    axis.set_xlim(left=0)
    axis.tick_params(axis="y", length=0)
    axis.locator_params(axis="x", nbins=4)


def reliability_diagrams(
    dataset: str,
    pooled: dict[str, Predictions],
    reference: str,
    heading: str = "",
    name: str = "",
    n_seeds: int = 1,
) -> Picture:
    """Accuracy against confidence in ten bins, with counts; one diagram per method."""
    methods = list(pooled)[:MAX_DIAGRAMS]
    columns = min(4, len(methods))
    rows = -(-len(methods) // columns)
    with page_style():
        lines = head_lines(heading, 2.35 * columns) if heading else []
        room = 0.12 * bool(lines) + 0.18 * len(lines)  # inches
        height = 2.9 * rows + room
        figure = Figure(figsize=(2.35 * columns, height))
        if lines:
            title = "\n".join(lines)
            figure.text(0.01, 1 - 0.06 / height, title, va="top", size=10, weight="bold")
        for i, method in enumerate(methods):
            row, column = divmod(i, columns)
            top, bottom = _diagram_axes(figure, row, column, (rows, columns), 1 - room / height)
            color = ACCENT if method == reference else SOFT
            _reliability(top, bottom, pooled[method], color)
            top.set_title(method)
            if column == 0:
                top.set_ylabel("accuracy")
                bottom.set_ylabel("rows")
    alt = f"{dataset}: reliability diagrams of {', '.join(methods)}, each with counts of rows."
    caption = (
        "Share of right answers among test rows with that top probability; on the diagonal the "
        "probabilities mean what they say. Lines are 95 % Wilson intervals, the strip below "
        f"counts rows (log scale).{_pooled(n_seeds)}"
    )
    return picture(figure, f"reliability-{slug(name or dataset)}", alt, caption)


def _diagram_axes(
    figure: Figure, row: int, column: int, shape: tuple[int, int], share: float
) -> tuple[Axes, Axes]:
    """Two axes on one x at fixed positions, in the lower `share` of the figure's height.

    Automatic layout is slow for this many.
    """
    rows, columns = shape
    left, width = (column + 0.23) / columns, 0.72 / columns
    base, unit = share * (rows - 1 - row) / rows, share / rows
    top = figure.add_axes((left, base + 0.36 * unit, width, 0.53 * unit))
    bottom = figure.add_axes((left, base + 0.15 * unit, width, 0.15 * unit))
    return top, bottom


def _reliability(top: Axes, bottom: Axes, predictions: Predictions, color: str) -> None:
    bins = reliability_bins(predictions.y, predictions.proba, n_bins=N_BINS)
    filled = bins.count > 0
    middle, count = ((bins.lower + bins.upper) / 2)[filled], bins.count[filled]
    width = 0.86 / N_BINS
    top.plot([0, 1], [0, 1], color=FAINT, lw=1, ls=(0, (4, 3)))
    top.bar(middle, bins.accuracy[filled], width=width, color=color)
    top.vlines(middle, bins.low[filled], bins.high[filled], color=INK, lw=1)
    top.set_ylim(0, 1.02)
    top.set_yticks([0, 0.5, 1])
    height = np.log1p(count) / np.log1p(count.max())
    bottom.bar(middle, height, width=width, color=color)
    for x, y, n in zip(middle, height, count, strict=True):
        bottom.text(x, y + 0.08, _short_count(int(n)), ha="center", fontsize=6)
    bottom.set_ylim(0, 1.3)
    bottom.set_yticks([])
    bottom.set_xlabel("confidence")
    for axis in (top, bottom):
        axis.set_xlim(0, 1)
        axis.set_xticks([0, 0.5, 1])
    top.tick_params(axis="x", labelbottom=False)


def _short_count(n: int) -> str:
    if n < 1000:
        return str(n)
    return f"{n / 1000:.1f}k" if n < 10_000 else f"{n / 1000:.0f}k"


def risk_coverage(
    dataset: str,
    pooled: dict[str, Predictions],
    reference: str,
    heading: str = "",
    name: str = "",
    n_seeds: int = 1,
) -> Picture:
    """Error rate among the surest share of the test rows; one line per method."""
    with page_style():
        figure, axes = canvas(7.2, 3.0) if heading else canvas(6.2, 3.3)
        head(figure, heading)
        axis = axes[0][0]
        others = [m for m in pooled if m != reference][: len(LINE_COLORS)]
        for method, color in zip(others, LINE_COLORS, strict=False):
            known, _, line = METHOD_LOOK.get(method, (color, "", "-"))
            _risk_line(axis, pooled[method], known, method, 1.2, line)
        if reference in pooled:
            _risk_line(axis, pooled[reference], ACCENT, reference, 2.4)
        axis.set_xlabel("coverage: share of rows answered, the surest first")
        axis.set_ylabel("error among them")
        axis.set_xlim(0, 1)
        axis.set_ylim(bottom=0)
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    alt = f"{dataset}: error against coverage for {', '.join([*others, reference])}."
    caption = (
        "What the error would be if only the surest rows were answered and the rest passed on; "
        f"the area under a line is its AURC.{_pooled(n_seeds)}"
    )
    return picture(figure, f"risk-{slug(name or dataset)}", alt, caption)


def _risk_line(
    axis: Axes, predictions: Predictions, color: str, label: str, width: float, line: str = "-"
) -> None:
    curve = risk_coverage_curve(predictions.y, predictions.proba)
    keep = np.unique(np.linspace(0, len(curve.coverage) - 1, 300).astype(int))
    axis.plot(curve.coverage[keep], curve.risk[keep], color=color, label=label, lw=width, ls=line)


def training_curves(
    dataset: str,
    method: str,
    history: Sequence[dict[str, Any]],
    heading: str = "",
    name: str = "",
) -> Picture | None:
    """Training loss and held-out NLL against the epoch, a panel a stage; None without epochs."""
    rows = [r for r in history if r.get("epoch") is not None]
    stages = list(dict.fromkeys(str(r.get("stage", "training")) for r in rows))[:4]
    if not stages:
        return None
    with page_style():
        figure, axes = canvas(_curves_width(len(stages), heading), 2.5, 1, len(stages))
        head(figure, heading)
        for axis, stage in zip(axes[0], stages, strict=True):
            _curve_panel(axis, [r for r in rows if str(r.get("stage", "training")) == stage])
            axis.set_title(stage.replace("_", " "))
            axis.set_xlabel("epoch")
        axes[0][0].set_ylabel("nats per row")
        if heading:
            handles, labels = axes[0][-1].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right center")
        else:
            axes[0][-1].legend(loc="best")
    members = len({r.get("member") for r in rows})
    alt = f"{dataset}: training loss and held-out NLL of {method} against the epoch."
    caption = (
        f"{method} on {dataset}: training loss (dashed) and NLL on held-out training rows (solid)"
        f"{f', a line each of {members} members' if members > 1 else ''}. "
        "The test part plays no role here."
    )
    return picture(figure, f"curves-{slug(name or dataset)}-{slug(method)}", alt, caption)


def _curves_width(n_panels: int, heading: str) -> float:
    """Inches; a heading and the legend beside the panels need more."""
    return max(7.2, 2.4 * n_panels + 1.4) if heading else max(4.2, 2.4 * n_panels)


def _curve_panel(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    labels = {
        "train_loss": ("training loss", FAINT, "--"),
        "held_out_nll": ("held out", ACCENT, "-"),
    }
    for key, (label, color, style) in labels.items():
        for i, member in enumerate(dict.fromkeys(r.get("member") for r in rows)):
            points = [
                (r["epoch"], r[key])
                for r in rows
                if r.get("member") == member and r.get(key) is not None
            ]
            if points:
                x, y = zip(*points, strict=True)
                axis.plot(
                    x, y, style, color=color, lw=1.3, label=None if i else label,
                    marker="o" if len(x) == 1 else None, markersize=3,
                )  # fmt: skip
