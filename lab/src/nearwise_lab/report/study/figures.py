"""Figures of the suite: a measure against what was varied, training, confusion, the memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from sklearn.metrics import confusion_matrix

from nearwise_lab.experiments.places import Place
from nearwise_lab.report.drawing import (
    ACCENT,
    FAINT,
    INK,
    LINE_COLORS,
    METHOD_LOOK,
    Picture,
    canvas,
    page_style,
    picture,
    slug,
)
from nearwise_lab.report.figures import head
from nearwise_lab.report.study.parts import Study
from nearwise_lab.results.measures import MEASURES, Predictions

_PANELS = ("accuracy", "nll", "ece")
MAX_CLASSES = 20
PANEL_TITLES = {
    "k-sweep": "neighbors k",
    "long-tail": "rows of the rarest class over those of the commonest",
    "label-noise": "share of wrong labels, %",
}


def look(method: str) -> tuple[str, str, str]:
    """Color, mark and line of a method."""
    return METHOD_LOOK.get(method, (LINE_COLORS[6], ".", "-"))


def sweep_lines(
    study: Study, dataset: str, experiment: str, places: Sequence[Place], words: str = ""
) -> Picture | None:
    """Accuracy, NLL and ECE against what was varied, a line a method; None below two points."""
    parts = [(p, study.part(dataset, p)) for p in places if p.number is not None]
    if len({p.number for p, _ in parts}) < 2:
        return None
    preset = parts[0][0].preset
    methods = list(dict.fromkeys(m for _, r in parts for m in r.methods))
    log = experiment in ("k-sweep", "long-tail")
    with page_style():
        figure, axes = canvas(9.4, 2.8, 1, 3)
        head(figure, study.heading(dataset, parts[-1][1], preset, words or experiment))
        for axis, key in zip(axes[0], _PANELS, strict=True):
            measure = next(m for m in MEASURES if m.key == key)
            for turn, method in enumerate(methods):
                aside = turn - (len(methods) - 1) / 2
                _sweep_line(axis, dataset, parts, (method, key), aside, log)
            axis.set_title(measure.title)
            axis.margins(x=0.08)
            if log:
                axis.set_xscale("log")
            numbers = sorted({p.number for p, _ in parts if p.number is not None})
            shown = [100 * n for n in numbers] if experiment == "label-noise" else numbers
            axis.set_xticks(shown, [f"{n:g}" for n in shown])
            axis.minorticks_off()
            if experiment == "long-tail":
                axis.invert_xaxis()
        axes[0][1].set_xlabel(PANEL_TITLES.get(experiment, experiment))
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
    alt = f"{dataset}, {preset}: accuracy, NLL and ECE of {', '.join(methods)} in {experiment}."
    caption = "Means over seeds; bars are 95 % t-intervals where there is more than one seed."
    name = f"sweep-{slug(dataset)}-{slug(preset)}-{slug(words or experiment)}"
    return picture(figure, name, alt, caption)


def _sweep_line(
    axis: Axes, dataset: str, parts: Any, asked: tuple[str, str], aside: float, log: bool
) -> None:
    """Draw a method's line, `aside` steps off its position so that intervals do not overlap."""
    (method, key), points = asked, []
    for place, results in parts:
        mean = results.mean(dataset, method, key)
        if mean is not None:
            scale = 100 if place.experiment == "label-noise" else 1
            points.append((scale * place.number, mean.mean, mean.half or 0.0))
    if not points:
        return
    x, y, half = (np.array(v) for v in zip(*sorted(points), strict=True))
    if any(half):
        x = x * 1.04**aside if log else x + 0.012 * aside * (x[-1] - x[0])
    color, mark, line = look(method)
    width = 2.2 if method == "attention" else 1.3
    axis.errorbar(
        x, y, yerr=half if any(half) else None, color=color, marker=mark, ls=line, lw=width,
        markersize=4.5, capsize=2, label=method,
    )  # fmt: skip


def replay_curves(
    heading: str, dataset: str, preset: str, method: str, history: Sequence[dict[str, Any]]
) -> Picture | None:
    """Every part of a loss, the attention entropy and the test accuracy against the epoch."""
    rows = [r for r in history if r.get("epoch") is not None and r.get("parts")]
    if not rows:
        return None
    panels = [_loss_panel]
    if any(r.get("attention_entropy") is not None for r in rows):
        panels.append(_entropy_panel)
    if any(r.get("test_accuracy") is not None for r in rows):
        panels.append(_accuracy_panel)
    with page_style():
        figure, axes = canvas(max(7.2, 3.2 * len(panels) + 0.6), 2.8, 1, len(panels))
        head(figure, heading)
        for axis, draw in zip(axes[0], panels, strict=True):
            draw(axis, rows)
            axis.set_xlabel("epoch")
            axis.xaxis.get_major_locator().set_params(integer=True)
    alt = f"{dataset}, {preset}: parts of the loss of {method} against the epoch."
    caption = (
        'Parts of the training loss before their weights, as recorded in every epoch; "knn, '
        "plain rows\" is the vote's NLL on unmixed batches against plain labels."
    )
    if len(panels) > 1:
        caption += " The dashed line is the entropy of uniform weights."
    if len(panels) > 2:
        caption += (
            " The ring marks the epoch that was kept, by accuracy on the test rows, as there."
        )
    return picture(figure, f"loss-{slug(dataset)}-{slug(preset)}-{slug(method)}", alt, caption)


def _loss_panel(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        found = {
            "total": row.get("train_loss"),
            **row["parts"],
            "knn, plain rows": row.get("knn_clean"),
        }
        for name, value in found.items():
            if value is not None and name != "entropy":
                lines.setdefault(name, []).append((row["epoch"], value))
    if len(lines) == 2 and lines.get("ce") == lines.get("total"):
        del lines["total"]
    colors = {"total": INK, "knn": ACCENT, "knn, plain rows": LINE_COLORS[2]}
    others = iter(LINE_COLORS)
    for name, points in lines.items():
        x, y = zip(*points, strict=True)
        style = "--" if name == "total" else "-"
        color = colors.get(name) or next(others)
        axis.plot(x, y, style, color=color, marker=".", lw=1.4, label=name)
    axis.set_title("parts of the loss, nats per row")
    low, high = axis.get_ylim()
    low = min(0.0, low)
    axis.set_ylim(low, high + 0.12 * len(lines) * (high - low))  # room for the names
    axis.legend(fontsize=8, loc="upper right", ncols=2 if len(lines) > 3 else 1)


def _entropy_panel(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    points = [(r["epoch"], r["attention_entropy"]) for r in rows if r.get("attention_entropy")]
    x, y = zip(*points, strict=True)
    axis.plot(x, y, color=ACCENT, marker=".", lw=1.4)
    top = max(y)
    # weights over k neighbors have at most log k; the nearest whole k above what was seen
    k = int(np.ceil(np.exp(top) - 1e-3))
    axis.axhline(np.log(k), color=FAINT, ls="--", lw=1)
    axis.set_ylim(0, 1.12 * np.log(k) if k > 1 else 1)
    axis.annotate(f"log {k}", (x[-1], np.log(k)), xytext=(0, 3), textcoords="offset points",
                  ha="right", size=8)  # fmt: skip
    axis.set_title("attention entropy, nats")


def _accuracy_panel(axis: Axes, rows: Sequence[dict[str, Any]]) -> None:
    points = [(r["epoch"], r["test_accuracy"]) for r in rows if r.get("test_accuracy") is not None]
    x, y = zip(*points, strict=True)
    axis.plot(x, y, color=LINE_COLORS[1], marker=".", lw=1.4)
    best = int(np.argmax(y))
    axis.plot(x[best], y[best], "o", mfc="none", mec=INK, markersize=9)
    axis.margins(y=0.15)
    axis.set_title("test accuracy")


def confusion(heading: str, name: str, predictions: Predictions) -> Picture:
    """Shares of predicted classes among the rows of each true class, with counts."""
    n_classes = predictions.proba.shape[1]
    counts = confusion_matrix(
        predictions.y, predictions.proba.argmax(axis=1), labels=range(n_classes)
    )
    classes = predictions.classes
    if len(classes) > MAX_CLASSES:
        counts, classes = counts[:MAX_CLASSES, :MAX_CLASSES], classes[:MAX_CLASSES]
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    n = len(classes)
    side = 2.0 + 0.34 * n
    with page_style():
        figure, axes = canvas(max(7.2, side + 1.0), min(6.2, side + 0.6))
        head(figure, heading)
        axis = axes[0][0]
        axis.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for i in range(n):
            for j in range(n):
                if counts[i, j]:
                    color = "#ffffff" if share[i, j] > 0.55 else "#1d2126"
                    axis.text(j, i, str(int(counts[i, j])), ha="center", va="center",
                              size=8 if n <= 12 else 6, color=color)  # fmt: skip
        turn = 90 if max(map(len, classes)) > 3 else 0
        axis.set_xticks(range(n), classes, rotation=turn)
        axis.set_yticks(range(n), classes)
        axis.set_xlabel("predicted")
        axis.set_ylabel("true")
    first = f" The first {MAX_CLASSES} classes." if len(predictions.classes) > MAX_CLASSES else ""
    caption = (
        f"Counts of test rows, all seeds together; the shade is the share of the true class.{first}"
    )
    return picture(figure, name, f"Confusion matrix: {heading}.", caption)


def memory_map(heading: str, name: str, drawn: dict[str, Any]) -> Picture:
    """Two principal components of remembered and test keys, colored by class."""
    classes = drawn["classes"]
    memory, test = np.asarray(drawn["memory"]), np.asarray(drawn["test"])
    with page_style():
        figure, axes = canvas(7.2, 3.4)
        head(figure, heading)
        axis = axes[0][0]
        labels, test_labels = np.asarray(drawn["memory_label"]), np.asarray(drawn["test_label"])
        for position, title in enumerate(classes):
            color, mark = _class_look(position)
            own, asked = memory[labels == position], test[test_labels == position]
            axis.scatter(*own.T, s=9, color=color, marker=mark, alpha=0.35, linewidths=0)
            axis.scatter(*asked.T, s=16, color=color, marker=mark, label=title,
                         edgecolors=INK, linewidths=0.4)  # fmt: skip
        axis.set_xlabel("first principal component")
        axis.set_ylabel("second principal component")
        axis.set_aspect("equal", adjustable="datalim")
        columns = 1 + len(classes) // 13
        if len(classes) <= 2 * MAX_CLASSES:
            axis.legend(
                loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, ncols=columns,
                title="class",
            )  # fmt: skip
    space = f" of the space {drawn['space']!r}" if "space" in drawn else ""
    caption = (
        f"{len(memory):,} remembered keys{space} (faint) and {len(test):,} test keys (outlined); "
        f"the two components hold {100 * drawn['explained']:.0f} % of the variance."
    )
    return picture(figure, name, f"Map of the memory: {heading}.", caption)


_CLASS_COLORS = (*LINE_COLORS, "#d55e00", "#56b4e9", "#e6c200")
_CLASS_MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")


def _class_look(position: int) -> tuple[str, str]:
    """Color and mark of a class: both differ, so that neither is needed alone."""
    turn, place = divmod(position, len(_CLASS_COLORS))
    return _CLASS_COLORS[place], _CLASS_MARKS[(place + turn) % len(_CLASS_MARKS)]
