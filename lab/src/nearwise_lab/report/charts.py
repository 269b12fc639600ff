"""The charts of every report: panels of bars, lines, points, pixels, reliability, confusion."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from nearwise.metrics import reliability_bins, risk_coverage_curve
from nearwise_lab.report.drawing import (
    ACCENT,
    FAINT,
    INK,
    LINE_COLORS,
    METHOD_LOOK,
    SOFT,
    Picture,
    page_style,
    picture,
    slug,
)
from nearwise_lab.results.measures import BARS, MEASURES, Mean, Predictions

CLASS_COLORS = (*LINE_COLORS, "#d55e00", "#56b4e9", "#e6c200")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
MAX_CLASSES = 20
N_BINS, MAX_DIAGRAMS = 10, 8
_HEADING_CHARACTERS = 10  # per inch, in a wide font
_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")  # powers of ten need fonts for formulas
_NONE = FuncFormatter(lambda value, _: "")

Point = Sequence[float]  # x, y and, where there is an interval, half its height


class Line(NamedTuple):
    """Points with their style; no mark if there are many, no line style for points alone."""

    points: Sequence[Point]
    color: str = INK
    mark: str = ""
    style: str = "-"


def line_of(name: str, points: Sequence[Point], place: int = 0, mark: bool = True) -> Line:
    """Style points as a method, or by their place among several."""
    turn = LINE_COLORS[place % len(LINE_COLORS)]
    color, shape, style = METHOD_LOOK.get(name, (turn, MARKS[place % len(MARKS)], "-"))
    return Line(points, color, shape if mark else "", style)


@dataclass(frozen=True)
class Span:
    """A value with the ends of its interval."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars with their intervals, the first at the top."""

    title: str
    means: Mapping[str, Mean | Span | None]
    colors: Mapping[str, str] = field(default_factory=dict)
    form: str = ""
    high: float | None = None

    def draw(self, axis: Axes) -> None:
        """Draw onto an axis."""
        for row, (name, mean) in enumerate(self.means.items()):
            if mean is None:
                continue
            axis.barh(row, mean.mean, height=0.62, color=self.colors.get(name, SOFT))
            end = mean.mean if mean.high is None else mean.high
            if mean.low is not None:
                axis.plot([max(0.0, mean.low), end], [row, row], color=INK, lw=1)
            if self.form:
                axis.annotate(self.form.format(mean.mean), (min(end, self.high or end), row),
                              xytext=(3, 0), textcoords="offset points", va="center",
                              size=7)  # fmt: skip
        axis.set_yticks(range(len(self.means)), list(self.means))
        axis.set_ylim(len(self.means) - 0.5, -0.5)
        if self.high is not None:
            axis.set_xlim(0, self.high)
        else:
            axis.set_xlim(0, axis.get_xlim()[1] * (1.25 if self.form else 1))
        axis.tick_params(axis="y", length=0)
        axis.locator_params(axis="x", nbins=4)


@dataclass(frozen=True)
class Lines:
    """Lines of points, with intervals where points have a third number.

    `log` is "x", "y" or "xy", `ticks` say where the x axis is marked and how, `square` is for two
    shares on one scale, `whole` for an x that counts (epochs), `upside` for one that falls.
    """

    title: str
    lines: Mapping[str, Line]
    x: str = ""
    y: str = ""
    log: str = ""
    ticks: Mapping[Any, str] = field(default_factory=dict)
    square: bool = False
    whole: bool = False
    upside: bool = False

    def draw(self, axis: Axes) -> None:
        """Draw onto an axis."""
        for name, (points, color, mark, style) in self.lines.items():
            half = [p[2] if len(p) > 2 else 0.0 for p in points]
            axis.errorbar(
                [p[0] for p in points], [p[1] for p in points], yerr=half if any(half) else None,
                marker="o" if len(points) == 1 and not mark else mark if len(points) < 15 else None,
                color=color, ls=style, label=name, lw=2.2 if color == ACCENT else 1.3,
                markersize=4.5, capsize=2,
            )  # fmt: skip
        for which, along in (("x", axis.xaxis), ("y", axis.yaxis)):
            if which in self.log:
                (axis.set_xscale if which == "x" else axis.set_yscale)("log")
                along.set_major_formatter(_PLAIN)
                along.set_minor_formatter(_NONE)
        if self.ticks:
            axis.set_xticks(list(self.ticks), list(self.ticks.values()))
            axis.minorticks_off()
        if self.square:
            values = [v for line in self.lines.values() for p in line.points for v in p[:2]]
            low = max(0.0, min(values, default=0.0) - 0.05)
            axis.plot([low, 1], [low, 1], color=FAINT, lw=1, ls="--", zorder=0)
            axis.set(xlim=(low, 1.01), ylim=(low, 1.01), aspect="equal")
        if self.whole:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if self.upside:
            axis.invert_xaxis()
        axis.set_xlabel(self.x)
        axis.set_ylabel(self.y)


@dataclass(frozen=True)
class Points:
    """Rows on a map, in the color and with the mark of their class."""

    title: str
    classes: Sequence[str]
    points: Any
    labels: Any
    outlined: Any = None
    outlined_labels: Any = None

    def draw(self, axis: Axes) -> None:
        """Draw onto an axis; outlined points lie above the fainter ones."""
        faint = self.outlined is not None
        sets = [(self.points, self.labels, 0.35 if faint else 0.75, 9, 0.0)]
        sets += [(self.outlined, self.outlined_labels, 1.0, 16, 0.4)] if faint else []
        for turn, (points, labels, alpha, size, edge) in enumerate(sets):
            points, labels = np.asarray(points), np.asarray(labels)
            for position, name in enumerate(self.classes):
                round_, place = divmod(position, len(CLASS_COLORS))
                own = points[labels == position]
                axis.scatter(
                    own[:, 0], own[:, 1], s=size, color=CLASS_COLORS[place], linewidths=edge,
                    marker=MARKS[(place + round_) % len(MARKS)], alpha=alpha, edgecolors=INK,
                    label=name if turn == len(sets) - 1 and position < 40 else None,
                )  # fmt: skip
        axis.set_xticks([])
        axis.set_yticks([])


@dataclass(frozen=True)
class Pixels:
    """An image, (h, w) or (h, w, 3) in [0, 1]; the first of a row names it."""

    pixels: Any
    title: str = ""
    label: str = ""

    def draw(self, axis: Axes) -> None:
        """Draw onto an axis."""
        axis.imshow(self.pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
        axis.set_ylabel(self.label, rotation=0, ha="right", va="center", fontsize=8)


@dataclass(frozen=True)
class Reliability:
    """Accuracy against confidence in ten bins, the rows in each below."""

    title: str
    predictions: Predictions
    color: str = SOFT

    def draw(self, axis: Axes) -> None:
        """Draw onto an axis, counts of rows below 0."""
        bins = reliability_bins(self.predictions.y, self.predictions.proba, n_bins=N_BINS)
        count = np.asarray(bins.count)
        filled, width = count > 0, 0.9 / N_BINS
        middle = (np.arange(N_BINS)[filled] + 0.5) / N_BINS
        axis.plot([0, 1], [0, 1], color=FAINT, lw=1, ls=(0, (4, 3)))
        axis.bar(middle, bins.accuracy[filled], width=width, color=self.color)
        axis.vlines(middle, bins.low[filled], bins.high[filled], color=INK, lw=1)
        height = 0.26 * np.log1p(count[filled]) / np.log1p(count.max())
        axis.bar(middle, height, bottom=-0.45, width=width, color=self.color)
        for x, y, n in zip(middle, height, count[filled], strict=True):
            text = str(n) if n < 1000 else f"{n / 1000:.{1 if n < 10_000 else 0}f}k"
            axis.text(x, y - 0.43, text, ha="center", fontsize=6)
        axis.set(xlim=(0, 1), ylim=(-0.46, 1.02), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        axis.set_xlabel("confidence")


@dataclass(frozen=True)
class Confusion:
    """Counts of predicted classes; the shade is the share of the true class."""

    title: str
    predictions: Predictions

    def draw(self, axis: Axes) -> None:
        """Draw onto an axis."""
        n = min(len(self.predictions.classes), MAX_CLASSES)
        counts = np.zeros((len(self.predictions.classes),) * 2, dtype=int)
        np.add.at(counts, (self.predictions.y, self.predictions.proba.argmax(axis=1)), 1)
        share = (counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))[:n, :n]
        axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for i, j in np.argwhere(counts[:n, :n]):
            color = "#ffffff" if share[i, j] > 0.55 else "#1d2127"
            axis.text(j, i, str(counts[i, j]), ha="center", va="center", color=color,
                      size=8 if n <= 12 else 6)  # fmt: skip
        names = self.predictions.classes[:n]
        axis.set_xticks(range(n), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axis.set_yticks(range(n), names)
        axis.set(xlabel="predicted", ylabel="true")


Panel = Bars | Lines | Points | Pixels | Reliability | Confusion


def chart(
    panels: Sequence[Panel],
    size: tuple[float, float],
    *,
    columns: int = 0,
    heading: str = "",
    legend: str = "",
) -> Figure:
    """Arrange panels, row by row, under a heading wrapped to their width.

    `size` is the width of the figure and the height of a row of panels, in inches. A legend, with
    `legend` for a title, stands beside the panels where more than one thing has a name.
    """
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    lines = textwrap.wrap(heading, max(1, int(_HEADING_CHARACTERS * size[0])))
    with page_style():
        height = size[1] * rows + 0.18 * len(lines)
        figure = Figure(figsize=(size[0], height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        if lines:
            figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=10, fontweight="bold")
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
        for place, (axis, panel) in enumerate(zip(axes, panels, strict=False)):
            panel.draw(axis)
            axis.set_title(panel.title, fontsize=9)
            left = panels[place - 1] if place % columns else None
            if isinstance(panel, Bars) and isinstance(left, Bars):
                axis.tick_params(labelleft=list(left.means) != list(panel.means))
        named: dict[str, Any] = {}
        for axis in axes:
            handles, labels = axis.get_legend_handles_labels()
            named = dict(zip(labels, handles, strict=True)) | named
        if len(named) > 1:
            figure.legend(named.values(), named, loc="outside right center", fontsize=8,
                          title=legend or None, ncols=1 + len(named) // 14)  # fmt: skip
    return figure


def score_bars(
    means: Mapping[str, Mapping[str, Mean | None]], reference: str, heading: str, name: str
) -> Picture:
    """Error, NLL, ECE and AURC of every method, the best NLL first; lower is better."""
    colors = {m: ACCENT for m in means if m.split(":")[0] == reference}
    panels = [
        Bars(title, {m: _shown(row[key], key) for m, row in means.items()}, colors)
        for key, title in BARS.items()
    ]
    repeated = any(m is not None and m.half for row in means.values() for m in row.values())
    caption = f"Lower is better in every panel; {reference} is highlighted. " + (
        "Means over seeds with 95 % t-intervals, which are not paired: see the differences."
        if repeated
        else "One run each."
    )
    figure = chart(panels, (9.4, 0.9 + 0.26 * len(means)), heading=heading)
    alt = f"Bars of error, NLL, ECE and AURC per method; {next(iter(means))} has the lowest NLL."
    return picture(figure, f"bars-{slug(name)}", alt, caption)


def _shown(mean: Mean | None, key: str) -> Mean | None:
    if mean is None:
        return None
    scale = next(m.scale for m in MEASURES if m.key == key)
    value = 1 - mean.mean if key == "accuracy" else mean.mean
    return Mean(scale * value, None if mean.half is None else scale * mean.half, mean.n)


def prediction_pictures(
    pooled: Mapping[str, Predictions], reference: str, heading: str, name: str, n_seeds: int = 1
) -> list[Picture]:
    """Reliability diagrams, and error against coverage, of several methods.

    `heading` stands over both, before what is shown; `name` makes their ids unique.
    """
    methods = list(pooled)[:MAX_DIAGRAMS]
    pools = " Rows of all seeds are pooled." if n_seeds > 1 else ""
    title = f"{heading}: " if heading else ""
    columns = min(4, len(methods))
    diagrams = [Reliability(m, pooled[m], ACCENT if m == reference else SOFT) for m in methods]
    figure = chart(diagrams, (max(2.35 * columns, 4.0), 2.9), columns=columns,
                   heading=f"{title}reliability")  # fmt: skip
    lines = {}
    for place, (method, kept) in enumerate(pooled.items()):
        curve = risk_coverage_curve(kept.y, kept.proba)
        at = np.unique(np.linspace(0, len(curve.coverage) - 1, 300).astype(int))
        points = list(zip(curve.coverage[at], curve.risk[at], strict=True))
        lines[method] = line_of(method, points, place, mark=False)
        if method == reference:
            lines[method] = Line(points, ACCENT)
    coverage = Lines("", lines, "coverage: share of rows answered, the surest first",
                     "error among them")  # fmt: skip
    return [
        picture(
            figure, f"reliability-{slug(name)}",
            f"Reliability diagrams of {', '.join(methods)}, each with counts of rows.",
            "Share of right answers among test rows with that top probability; on the diagonal "
            "the probabilities mean what they say. Lines are 95 % Wilson intervals, the strip "
            f"below counts rows (log scale).{pools}",
        ),
        picture(
            chart([coverage], (7.2, 3.1), heading=f"{title}risk and coverage"),
            f"risk-{slug(name)}", f"Error against coverage of {', '.join(lines)}.",
            "Error if only the surest rows were answered and the rest passed on; the area under "
            f"a line is its AURC.{pools}",
        ),
    ]  # fmt: skip


def confusion_picture(predictions: Predictions, heading: str, name: str) -> Picture:
    """Draw counts of predicted classes for the rows of each true class."""
    side = 2.4 + 0.34 * min(len(predictions.classes), MAX_CLASSES)
    figure = chart([Confusion("", predictions)], (max(7.2, side + 0.6), min(6.2, side)),
                   heading=heading)  # fmt: skip
    caption = (
        "Counts of test rows; the shade is the share of the true class. At "
        f"most the first {MAX_CLASSES} classes."
    )
    return picture(figure, f"confusion-{slug(name)}", f"Confusion matrix: {heading}.", caption)


def map_picture(drawn: Mapping[str, Any], heading: str, name: str) -> Picture:
    """Draw two principal components of remembered and test keys, colored by class."""
    panel = Points("", drawn["classes"], drawn["memory"], drawn["memory_label"], drawn["test"],
                   drawn["test_label"])  # fmt: skip
    space = f" of the space {drawn['space']!r}" if "space" in drawn else ""
    caption = (
        f"{len(drawn['memory']):,} remembered keys{space} (faint) and {len(drawn['test']):,} test "
        "keys (outlined), by the first two principal components: "
        f"{100 * drawn['explained']:.0f} % of the variance."
    )
    figure = chart([panel], (7.2, 3.4), heading=heading, legend="class")
    return picture(figure, f"map-{slug(name)}", f"Map of the memory: {heading}.", caption)


def training_picture(
    history: Sequence[Mapping[str, Any]], heading: str, name: str
) -> Picture | None:
    """Training curves against the epoch; None without epochs.

    A panel per stage with training loss and held-out NLL; of a replay, which records the parts of
    its loss: those, the entropy of attention, and the accuracy on the test rows.
    """
    rows = [r for r in history if r.get("epoch") is not None]
    if not rows:
        return None
    if any(r.get("parts") for r in rows):
        panels = _replay_panels([r for r in rows if r.get("parts")])
        caption = (
            'Parts of the training loss before their weights; "knn, plain rows" is the NLL of the '
            "vote on unmixed batches against plain labels. The epoch that was kept, by accuracy "
            "on the test rows as in the study, is marked."
        )
    else:
        stages = list(dict.fromkeys(str(r.get("stage", "training")) for r in rows))[:4]
        panels = [_stage(s, [r for r in rows if str(r.get("stage", "training")) == s])
                  for s in stages]  # fmt: skip
        caption = "Training loss and NLL on held-out training rows, means over the members of an " \
                  "ensemble. The test part plays no role here."  # fmt: skip
    figure = chart(panels, (max(7.2, 3.0 * len(panels)), 2.6), heading=heading)
    return picture(figure, f"curves-{slug(name)}", f"{heading}, against the epoch.", caption)


def _stage(stage: str, rows: Sequence[Mapping[str, Any]]) -> Lines:
    lines = {
        "training loss": Line(points_of(rows, "epoch", "train_loss"), FAINT, "", "--"),
        "held out": Line(points_of(rows, "epoch", "held_out_nll"), ACCENT),
    }
    return epochs(stage.replace("_", " "), lines, "nats per row")


def epochs(title: str, lines: Mapping[str, Line], y: str = "") -> Lines:
    """Draw lines against the epoch, without empty lines."""
    shown = {name: line for name, line in lines.items() if line.points}
    return Lines(title, shown, "epoch", y, whole=True)


def points_of(rows: Iterable[Mapping[str, Any]], x: str, *keys: str) -> list[Point]:
    """Points (x, mean at x) of values under nested keys; rows without a value are skipped."""
    found: dict[float, list[float]] = {}
    for row in rows:
        value: Any = row
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            found.setdefault(row[x], []).append(float(value))
    return [(at, float(np.mean(values))) for at, values in sorted(found.items())]


def _replay_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    def line(color: str, *keys: str, style: str = "-") -> Line:
        return Line(points_of(rows, "epoch", *keys), color, ".", style)

    parts = dict.fromkeys(p for r in rows for p in r["parts"] if p != "entropy")
    lines = {"total": line(INK, "train_loss", style="--")}
    for color, part in zip(LINE_COLORS, parts, strict=False):
        lines[part] = line(ACCENT if part == "knn" else color, "parts", part)
    lines["knn, plain rows"] = line(LINE_COLORS[-1], "knn_clean")
    if len(parts) == 1 and "ce" in lines and lines["ce"].points == lines["total"].points:
        del lines["total"]
    panels: list[Panel] = [epochs("parts of the loss, nats per row", lines)]
    entropy = line(ACCENT, "attention_entropy")
    if entropy.points:
        # weights over k neighbors have at most log k; the nearest whole k above what was seen
        k = int(np.ceil(np.exp(max(p[1] for p in entropy.points)) - 1e-3))
        even = Line([(p[0], np.log(k)) for p in entropy.points], FAINT, "", "--")
        shown = {"attention entropy": entropy, f"even weights, log {k}": even}
        panels.append(epochs("attention entropy, nats", shown))
    tested = line(LINE_COLORS[1], "test_accuracy")
    if tested.points:
        kept = Line([max(tested.points, key=lambda p: p[1])], INK, "o", "")
        panels.append(epochs("test accuracy", {"test accuracy": tested, "epoch kept": kept}))
    return panels
