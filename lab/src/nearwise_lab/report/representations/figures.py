"""Figures of the comparison in numbers: the five bars, the scatter, curves, the protocol."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nearwise_lab.experiments.representations import FIVE, Cell, Comparison, arm_of
from nearwise_lab.experiments.representations.records import PROTOCOL
from nearwise_lab.report.drawing import (
    ACCENT,
    FAINT,
    INK,
    LINE_COLORS,
    SOFT,
    Picture,
    canvas,
    page_style,
    picture,
    slug,
)
from nearwise_lab.report.figures import head
from nearwise_lab.report.representations.tables import context_words, mean_of

COLORS = {
    "pixels": LINE_COLORS[5],
    "sparse": LINE_COLORS[1],
    "full": LINE_COLORS[0],
    "full+nce": ACCENT,
    "sparse+nce": LINE_COLORS[3],
    "random": SOFT,
}
MARKS = ("o", "s", "^", "D", "v", "P", "X")
_KINDS = {"fixed": LINE_COLORS[0], "": LINE_COLORS[1], "batch": ACCENT}


def color_of(encoder: str) -> str:
    """Color of an encoder, the same in every figure."""
    return COLORS.get(encoder, LINE_COLORS[4])


def five_bars(comparison: Comparison) -> Picture:
    """Draw accuracy of the study's five representations, a panel for each context and probe."""
    probes, contexts = comparison.probes, comparison.contexts
    others = [n for n in comparison.encoders if n not in FIVE]
    names = [n for n in FIVE if n in comparison.encoders] + others
    with page_style():
        figure, axes = canvas(
            9.4, 0.8 + 0.42 * len(contexts) * (1 + len(names) / 2), len(contexts), len(probes),
            sharex=True, sharey=True,
        )  # fmt: skip
        head(figure, f"{comparison.facts.get('dataset', '')}: accuracy of frozen features".strip())
        for row, context in zip(axes, contexts, strict=True):
            for axis, probe in zip(row, probes, strict=True):
                _bar_panel(axis, comparison, names, probe, context)
                axis.set_title(f"{probe}, {context_words(context)}", fontsize=9)
    caption = (
        "Test accuracy; lines are 95 % t-intervals over seeds where there is more than one. The "
        "lines are not paired: the tables of differences are."
    )
    return picture(figure, "five-bars", "Bars of accuracy: encoder, probe and context.", caption)


def _bar_panel(
    axis: Axes, comparison: Comparison, names: Sequence[str], probe: str, context: str
) -> None:
    for place, name in enumerate(reversed(names)):
        mean = mean_of(comparison.values(Cell(name, probe, context)))
        if mean is None:
            continue
        axis.barh(place, mean.mean, height=0.72, color=color_of(name))
        end = mean.mean
        if mean.low is not None and mean.high is not None:
            end = max(end, mean.high)
            axis.plot([mean.low, mean.high], [place, place], color=INK, lw=1)
        axis.annotate(f"{mean.mean:.3f}", (min(end, 1.0), place), xytext=(3, 0), size=7,
                      textcoords="offset points", va="center")  # fmt: skip
    axis.set_yticks(range(len(names)), [arm_of(n).title for n in reversed(names)])
    axis.set_xlim(0, 1.25)
    axis.set_xticks([0, 0.5, 1])


def metric_scatter(comparison: Comparison) -> Picture | None:
    """k-NN against linear accuracy: what neighborhoods hold and what a hyperplane finds."""
    if not {"knn", "linear"} <= set(comparison.probes):
        return None
    with page_style():
        figure, axes = canvas(7.2, 4.2)
        head(figure, "What neighborhoods hold against what a hyperplane finds")
        axis = axes[0][0]
        low = 1.0
        for mark, context in zip(MARKS, comparison.contexts, strict=False):
            for name in comparison.encoders:
                near, far = (
                    mean_of(comparison.values(Cell(name, p, context))) for p in ("knn", "linear")
                )
                if near is None or far is None:
                    continue
                low = min(low, near.mean, far.mean)
                axis.errorbar(
                    near.mean, far.mean, xerr=near.half, yerr=far.half, marker=mark, ms=7, lw=0.8,
                    color=color_of(name), ls="", label=arm_of(name).title if mark == "o" else None,
                )  # fmt: skip
                if mark != "o":
                    continue
        ends = (max(0.0, low - 0.05), 1.0)
        axis.plot(ends, ends, color=FAINT, lw=1, ls="--", zorder=0)
        axis.set_xlim(ends)
        axis.set_ylim(ends)
        axis.set_xlabel("k-NN accuracy")
        axis.set_ylabel("linear accuracy")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    shapes = ", ".join(
        f"{_MARK_WORDS[m]} {context_words(c)}"
        for m, c in zip(MARKS, comparison.contexts, strict=False)
    )
    caption = f"Above the dashed line the linear probe finds more than k-NN. Marks: {shapes}."
    return picture(figure, "knn-linear", "Scatter of k-NN against linear accuracy.", caption)


_MARK_WORDS = {
    "o": "circle", "s": "square", "^": "triangle", "D": "diamond", "v": "wedge", "P": "plus",
    "X": "cross",
}  # fmt: skip


def protocol_bars(comparison: Comparison, probe: str) -> Picture | None:
    """Accuracy under the three ways of hiding pixels."""
    records = [r for r in comparison.part(PROTOCOL) if r["probe"] == probe]
    contexts = list(dict.fromkeys(r["context"] for r in records))
    if not contexts:
        return None
    names = [n for n in comparison.encoders if any(r["encoder"] == n for r in records)]
    width = 0.8 / len(contexts)
    with page_style():
        figure, axes = canvas(7.2, 3.0)
        head(figure, f"Which pixels are hidden decides more than what was learned: {probe}"
             if _protocol_wins(comparison, probe, names, contexts)
             else f"Effect of the way pixels are hidden: {probe}")  # fmt: skip
        axis = axes[0][0]
        for turn, context in enumerate(contexts):
            color = _KINDS.get(context.partition(":")[2], LINE_COLORS[2])
            for place, name in enumerate(names):
                mean = mean_of(comparison.values(Cell(name, probe, context), part=PROTOCOL))
                if mean is None:
                    continue
                x = place + (turn - (len(contexts) - 1) / 2) * width
                label = context_words(context) if place == 0 else None
                axis.bar(x, mean.mean, width=0.9 * width, color=color, label=label)
                if mean.half is not None:
                    ends = [mean.mean - mean.half, mean.mean + mean.half]
                    axis.plot([x, x], ends, color=INK, lw=1)
        axis.set_xticks(range(len(names)), [arm_of(n).title for n in names])
        axis.set_ylim(0, 1)
        axis.set_ylabel("accuracy")
        axis.legend(ncols=len(contexts), fontsize=8)
    caption = (
        "The same encoders, probe and share of pixels. Means over draws and seeds; lines are 95 % "
        "t-intervals over seeds."
    )
    name = f"protocol-{slug(probe)}"
    return picture(figure, name, f"Bars of {probe} accuracy a protocol.", caption)


def _protocol_wins(
    comparison: Comparison, probe: str, names: Sequence[str], contexts: Sequence[str]
) -> bool:
    """Whether the protocol moves the mean encoder further than encoders differ in any protocol."""
    cells = [[comparison.values(Cell(n, probe, c), part=PROTOCOL) for c in contexts] for n in names]
    table = np.array([[np.mean(list(v.values())) if v else np.nan for v in row] for row in cells])
    if not np.isfinite(table).all() or len(names) < 2 or len(contexts) < 2:
        return False
    return bool(np.ptp(table.mean(axis=0)) > np.ptp(table, axis=0).max())


def learning_curves(comparison: Comparison) -> Picture | None:
    """Training loss of every field against its steps, both stages."""
    recorded = [f for f in comparison.fields if f.get("history")]
    if not recorded:
        return None
    names = list(dict.fromkeys(f["encoder"] for f in recorded))
    keys = [
        k for k in ("train_mse", "nce") if any(k in row for f in recorded for row in f["history"])
    ]
    keys = keys or ["loss"]
    with page_style():
        figure, axes = canvas(9.4 if len(keys) > 1 else 7.2, 3.0, 1, len(keys))
        head(figure, "Learning curves")
        for axis, key in zip(axes[0], keys, strict=True):
            for name in names:
                for field in (f for f in recorded if f["encoder"] == name):
                    points = [(r["step"], r[key]) for r in field["history"] if key in r]
                    if points:
                        first = field is next(f for f in recorded if f["encoder"] == name)
                        axis.plot(*zip(*points, strict=True), color=color_of(name), lw=1.2,
                                  label=arm_of(name).title if first else None)  # fmt: skip
            axis.set_xlabel("steps")
            axis.set_title(_CURVES[key])
            if key == "train_mse":
                axis.set_yscale("log")
                # plain numbers: powers of ten would need mathematical fonts
                axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.yaxis.set_minor_formatter(lambda value, _: "")
            axis.legend(fontsize=8)
    caption = (
        "A line a field and seed. Finetuned fields share their first stage with their control, "
        "which goes on for as many steps without the contrastive term."
    )
    return picture(figure, "learning", "Learning curves of the fields.", caption)


_CURVES = {
    "train_mse": "reconstruction error of the batches",
    "nce": "contrastive term, nats",
    "loss": "training loss",
}


def purity_curves(comparison: Comparison) -> Picture | None:
    """Share of neighbors with the own label against their number."""
    rows = [g for g in comparison.geometry if g.get("purity_curve")]
    contexts = [c for c in comparison.contexts if any(g["context"] == c for g in rows)]
    if not rows:
        return None
    with page_style():
        figure, axes = canvas(max(7.2, 4.4 * len(contexts)), 3.0, 1, len(contexts), sharey=True)
        head(figure, "Neighbors with the own label")
        for axis, context in zip(axes[0], contexts, strict=True):
            for name in comparison.encoders:
                curve = _mean_curve([g for g in rows if (g["encoder"], g["context"])
                                     == (name, context)])  # fmt: skip
                if curve:
                    axis.plot(*zip(*curve, strict=True), color=color_of(name), marker=".", lw=1.3,
                              label=arm_of(name).title)  # fmt: skip
            axis.set_xscale("log")
            ticks = [k for k in (1, 10, 100) if k <= max(int(k) for k in rows[0]["purity_curve"])]
            axis.set_xticks(ticks, [str(t) for t in ticks])
            axis.minorticks_off()
            axis.set_xlabel("neighbors")
            axis.set_title(context_words(context))
        axes[0][0].set_ylabel("purity")
        axes[0][-1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    caption = "Purity of the k nearest other test rows by cosine; means over seeds and draws."
    return picture(figure, "purity", "Purity against the number of neighbors.", caption)


def _mean_curve(rows: Sequence[Any]) -> list[tuple[int, float]]:
    sizes: dict[int, list[float]] = {}
    for row in rows:
        for k, value in row["purity_curve"].items():
            sizes.setdefault(int(k), []).append(float(value))
    return [(k, float(np.mean(v))) for k, v in sorted(sizes.items())]
