"""Figures of the theory and efficiency experiments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nearwise_lab.experiments.places import Place
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
from nearwise_lab.report.study.parts import Study, seed_words
from nearwise_lab.results.measures import Mean

_CURVE, _LEAK = "error-against-k", "leak"


def theory_panels(study: Study, dataset: str, preset: str) -> Picture | None:
    """Error against k with its fit, purity beside accuracy, the knn loss with and without self."""
    curves = study.details(dataset, Place("theory", preset, _CURVE), "attention", "k")
    purity = _collapse_points(study, dataset, preset)
    losses = [
        study.detail(dataset, place, "attention", f"knn_loss_{name}_self")
        for name in ("with", "without")
        for place in [Place("theory", preset, _LEAK)]
    ]
    has_leak = all(loss is not None for loss in losses)
    shown = [bool(curves), bool(purity), has_leak]
    if not any(shown):
        return None
    with page_style():
        figure, axes = canvas(max(7.2, 3.3 * sum(shown)), 2.9, 1, sum(shown))
        part = study.part(dataset, study.places(dataset, "theory", preset)[0])
        head(figure, study.heading(dataset, part, preset, "theory"))
        free = iter(axes[0])
        if curves:
            _error_panel(next(free), study, dataset, preset)
        if purity:
            _purity_panel(next(free), purity)
        if has_leak:
            _leak_panel(next(free), [loss for loss in losses if loss is not None])
    texts = [
        "Error of the uniform vote against k and the fitted a + b / k; the dotted line is the "
        "square root of the number of rows.",
        "Share of neighbors that agree beside the share of right votes: the wider the gap, the "
        "surer the wrong answers.",
        "Loss of the training rows with themselves among their neighbors, and left out.",
    ]
    caption = " ".join(t for t, is_there in zip(texts, shown, strict=True) if is_there)
    alt = f"{dataset}, {preset}: what the theory experiment found."
    return picture(figure, f"theory-{slug(dataset)}-{slug(preset)}", alt, caption)


def _error_panel(axis: Axes, study: Study, dataset: str, preset: str) -> None:
    place = Place("theory", preset, _CURVE)
    sizes = study.details(dataset, place, "attention", "k")
    errors = study.details(dataset, place, "attention", "error")
    common = sorted(set.intersection(*(set(s) for s in sizes.values())))
    rows = np.array([[errors[s][sizes[s].index(k)] for k in common] for s in sizes])
    mean = rows.mean(axis=0)
    axis.plot(common, mean, "o", color=ACCENT, markersize=4, label="measured")
    a, b = (study.detail(dataset, place, "attention", name) for name in ("a", "b"))
    if a is not None and b is not None:
        ends = study.details(dataset, place, "attention", "fitted_up_to").values()
        fine = np.geomspace(common[0], min(ends, default=common[-1]), 100)
        sign = "+" if b.mean >= 0 else "-"
        label = f"{a.mean:.3f} {sign} {abs(b.mean):.3f} / k"
        axis.plot(fine, a.mean + b.mean / fine, color=LINE_COLORS[0], lw=1.4, label=label)
    root = study.detail(dataset, place, "attention", "sqrt_n")
    if root is not None and common[0] <= root.mean <= common[-1]:
        axis.axvline(
            root.mean, color=INK, ls=":", lw=1, label=f"square root of n = {root.mean:.0f}"
        )
    axis.set_xscale("log")
    ticks = [k for k in (1, 10, 100, 1000) if common[0] <= k <= common[-1]]
    axis.set_xticks(ticks, [f"{k:,}" for k in ticks])
    axis.minorticks_off()
    top = float(max(mean))
    axis.set_ylim(0, 1.75 * top if top > 0 else 1)
    axis.set_xlabel("neighbors k")
    axis.set_title("error of the vote")
    axis.legend(fontsize=8, loc="upper left")


def _collapse_points(study: Study, dataset: str, preset: str) -> list[tuple[str, Mean]]:
    place = Place("theory", preset, "collapse")
    found = [
        (title, study.detail(dataset, place, "attention", key))
        for title, key in (("purity", "purity"), ("accuracy", "accuracy"))
    ]
    return [(title, mean) for title, mean in found if mean is not None]


def _purity_panel(axis: Axes, points: Sequence[tuple[str, Mean]]) -> None:
    _columns(axis, [t for t, _ in points], [m for _, m in points], [SOFT, ACCENT], "{:.3f}")
    axis.set_ylim(0, 1.12)
    axis.set_title("do neighbors agree, are they right?")


def _leak_panel(axis: Axes, losses: Sequence[Mean]) -> None:
    _columns(axis, ["with self", "without self"], losses, [ACCENT, SOFT], "{:.4f}")
    axis.set_title("knn loss, training rows, nats")


def _columns(
    axis: Axes, names: Sequence[str], means: Sequence[Mean], colors: Sequence[str], form: str
) -> None:
    for place, (mean, color) in enumerate(zip(means, colors, strict=False)):
        axis.bar(place, mean.mean, width=0.6, color=color)
        top = mean.mean
        if mean.half is not None:
            top = mean.mean + mean.half
            axis.plot([place, place], [mean.mean - mean.half, top], color=INK, lw=1)
        axis.annotate(form.format(mean.mean), (place, top), xytext=(0, 3),
                      textcoords="offset points", ha="center")  # fmt: skip
    axis.set_xticks(range(len(names)), names)
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.margins(y=0.15)
    axis.tick_params(axis="x", length=0)


def purity_scatter(study: Study, dataset: str) -> Picture | None:
    """Purity against accuracy over the presets and, where they are, their ablations."""
    points: dict[str, list[tuple[float, float]]] = {}
    first = None
    for preset in study.presets_of(dataset):
        for experiment in ("main", "ablation", "theory"):
            for place in study.places(dataset, experiment, preset):
                first = first or study.part(dataset, place)
                found = study.details(dataset, place, "attention", "purity")
                excess = study.details(dataset, place, "attention", "excess")
                for seed in found:
                    if seed in excess:
                        value = (found[seed], found[seed] - excess[seed])
                        points.setdefault(preset, []).append(value)
    if first is None or sum(len(set(p)) for p in points.values()) < 2:
        return None
    with page_style():
        figure, axes = canvas(7.2, 4.0)
        head(figure, study.heading(dataset, first, "purity against accuracy"))
        axis = axes[0][0]
        both = [v for p in points.values() for pair in p for v in pair]
        low = max(0.0, min(both) - 0.05)
        axis.plot(
            [low, 1], [low, 1], color=FAINT, lw=1, ls="--", label="agreement is as often right"
        )
        colors = (ACCENT, *LINE_COLORS)
        marks = "osD^vPX"
        for turn, (preset, pairs) in enumerate(points.items()):
            x, y = zip(*sorted(set(pairs)), strict=True)
            axis.plot(x, y, marks[turn % 7], color=colors[turn % 8], markersize=6, alpha=0.8,
                      label=preset)  # fmt: skip
        axis.set_xlim(low, 1.01)
        axis.set_ylim(low, 1.01)
        axis.set_aspect("equal")
        axis.set_xlabel("purity: share of neighbors that agree")
        axis.set_ylabel("accuracy of their vote")
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    caption = (
        "A point per seed and setting (preset, ablations). Below the line the neighbors agree more "
        "often than they are right."
    )
    return picture(
        figure, f"purity-{slug(dataset)}", f"{dataset}: purity against accuracy.", caption
    )


def efficiency_bars(study: Study, dataset: str) -> Picture | None:
    """Search time, build time and recall of every index."""
    found: list[tuple[str, dict[str, Mean]]] = []
    facts: dict[str, Any] = {}
    for place in study.places(dataset, "efficiency", ""):
        for record in study.part(dataset, place).records:
            facts = facts or record.details
        for method in study.part(dataset, place).methods:
            means = {
                key: study.detail(dataset, place, method, key)
                for key in ("search_ms_per_query", "build_seconds", "recall")
            }
            known = {key: mean for key, mean in means.items() if mean is not None}
            if known:
                found.append((method, known))
    if not found:
        return None
    found = found[::-1]
    titles = {
        "search_ms_per_query": ("search, ms per query", "{:.3f}"),
        "build_seconds": ("build, s", "{:.3f}"),
        "recall": ("recall", "{:.3f}"),
    }
    with page_style():
        figure, axes = canvas(9.4, 1.1 + 0.34 * len(found), 1, 3, sharey=True)
        head(figure, _efficiency_heading(study, dataset, facts))
        for axis, (key, (title, form)) in zip(axes[0], titles.items(), strict=True):
            for row, (method, shown) in enumerate(found):
                if key in shown:
                    color = ACCENT if method == "exact" else SOFT
                    _bar(axis, row, shown[key], color, form)
            axis.set_title(title)
            axis.set_xlim(0, 1.25 * axis.get_xlim()[1])
            axis.locator_params(axis="x", nbins=4)
            axis.tick_params(axis="y", length=0)
        axes[0][0].set_yticks(range(len(found)), [method for method, _ in found])
    caption = (
        "Random unit keys; times of one machine, warmed up. Recall is the share of the true "
        "nearest that were found. Lines are 95 % t-intervals over seeds."
    )
    return picture(
        figure, f"efficiency-{slug(dataset)}", f"{dataset}: times and recall of indexes.", caption
    )


def _bar(axis: Axes, place: int, mean: Mean, color: str, form: str) -> None:
    axis.barh(place, mean.mean, height=0.62, color=color)
    end = mean.mean
    if mean.half is not None:
        end = mean.mean + mean.half
        axis.plot([max(0.0, mean.mean - mean.half), end], [place, place], color=INK, lw=1)
    axis.annotate(form.format(mean.mean), (end, place), xytext=(4, 0), va="center",
                  textcoords="offset points", size=8)  # fmt: skip


def _efficiency_heading(study: Study, dataset: str, facts: dict[str, Any]) -> str:
    seeds = {r.seed for r in study.records if r.dataset == dataset}
    sizes = ""
    if facts.get("n_rows"):
        sizes = (
            f" (n = {facts['n_rows']:,} x {facts.get('dim')}, {facts.get('n_queries'):,} queries, "
            f"k = {facts.get('k')})"
        )
    return f"{dataset}, efficiency{sizes}, {seed_words(list(seeds))}"
