"""Draw docs/images/{abstention,prediction-sets,out-of-distribution}.png, on scikit-learn's digits.

The classifier reads the digits at 4 x 4 pixels, so that some are hard; they are drawn at full
size. Everything in the pictures is measured when this runs (no download, about a
minute):

    .venv/bin/python examples/trust_figures.py [FOLDER]
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier
from nearwise.metrics import risk_coverage_curve

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SETTINGS: dict[str, Any] = {"preset": "instant", "random_state": 0}
DARK, BLUE, ORANGE, GREY = "#222222", "#0f86c9", "#d9822b", "#b8bec4"
NOVEL = 8


def shrink(X: np.ndarray) -> np.ndarray:
    """Shrink digits of 8 x 8 pixels to 4 x 4, (n, 16)."""
    return X.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(-1, 16)


def main(folder: Path = FOLDER) -> None:
    """Fit, measure, draw."""
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style | {"text.color": DARK}):
        model = AttnKNNClassifier(**SETTINGS).fit(shrink(parts[0]), parts[2])
        save(draw_abstention(model, parts[1], parts[3]), folder / "abstention.png")
        save(draw_sets(model, parts[1], parts[3]), folder / "prediction-sets.png")
        save(draw_novelty(*parts), folder / "out-of-distribution.png")


def save(figure: Figure, path: Path) -> None:
    """Write a figure without a date or a version in it."""
    figure.savefig(path, dpi=110, metadata={"Software": None})
    print(path)


def draw_abstention(model: AttnKNNClassifier, X: np.ndarray, y: np.ndarray) -> Figure:
    """Draw risk against coverage, the promise at 80 %, and who is turned away."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.35, 1))[0]
    images, X = X, shrink(X)
    axis, proba = left.subplots(), model.predict_proba(X)
    curve = risk_coverage_curve(y, proba)
    label = f"AURC {1000 * curve.risk.mean():.1f}e-3"
    axis.plot(curve.coverage, curve.risk, color=BLUE, label=label)
    chosen = model.predict_selective(X, coverage=0.8)
    risk = (chosen.labels != y)[chosen.accepted].mean()
    axis.vlines(0.8, chosen.expected_risk, chosen.risk_bound, color=DARK, lw=2)
    axis.plot(0.8, chosen.expected_risk, "o", color=DARK, ms=4, label="expected, and 95 % bound")
    axis.plot(chosen.accepted.mean(), risk, "x", color=DARK, label="what came on new rows")
    axis.set_xlabel("coverage: share of rows answered")
    axis.set_ylabel("risk: share of answers wrong")
    axis.legend(frameon=False, fontsize=8, loc="center left")
    axis.set_ylim(0, 0.12)
    show_rows(right, images[np.argsort(chosen.score)[:12]], "the twelve least sure of all")
    return figure


def draw_sets(model: AttnKNNClassifier, X: np.ndarray, y: np.ndarray) -> Figure:
    """Draw coverage against confidence, the size of the sets, and some sets."""
    figure = Figure(figsize=(9.4, 3.2), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.6, 1))[0]
    first, second = left.subplots(1, 2)
    images, X = X, shrink(X)
    asked = np.arange(0.5, 0.991, 0.035)
    first.plot([0.5, 1], [0.5, 1], color=DARK, lw=0.8, ls=(0, (4, 3)))
    methods: list[tuple[Any, int | None, str]] = [("lac", None, BLUE), ("aps", 0, ORANGE)]
    for method, seed, color in methods:
        sets = [model.predict_set(X, c, method=method, seed=seed) for c in asked]
        covered = [one[np.arange(len(y)), y].mean() for one in sets]
        first.plot(asked, covered, color=color, label=method.upper())
        second.plot(asked, [one.sum(axis=1).mean() for one in sets], color=color)
    first.set_xlabel("confidence asked for")
    first.set_ylabel("true class in the set")
    first.legend(frameon=False, loc="upper left")
    second.set_xlabel("confidence asked for")
    second.set_ylabel("classes in a set")
    some_sets = model.predict_set(X, 0.95)
    sizes = some_sets.sum(axis=1)
    some = np.concatenate([np.flatnonzero(sizes == size)[:3] for size in (1, 2, 3)])
    titles = ["{" + ", ".join(map(str, np.flatnonzero(some_sets[row]))) + "}" for row in some]
    show_rows(right, images[some], "sets of confidence 95 %", titles, columns=3)
    return figure


def draw_novelty(
    X_train: np.ndarray, X_test: np.ndarray, y_train: np.ndarray, y_test: np.ndarray
) -> Figure:
    """Draw scores and p-values of known digits and of one that was never shown."""
    known = y_train != NOVEL
    model = AttnKNNClassifier(**SETTINGS).fit(shrink(X_train[known]), y_train[known])
    groups = [(f"known, {len(set(y_test)) - 1} classes", X_test[y_test != NOVEL], GREY)]
    groups.append((f"{NOVEL}, never shown", X_test[y_test == NOVEL], ORANGE))
    scores = [model.novelty_score(shrink(rows)) for _, rows, _ in groups]
    figure = Figure(figsize=(9.4, 3.2), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.6, 1))[0]
    first, second = left.subplots(1, 2)
    for (name, rows, color), score in zip(groups, scores, strict=True):
        bins = np.linspace(min(map(np.min, scores)), max(map(np.max, scores)), 30)
        first.hist(score, bins, density=True, color=color, alpha=0.75, label=name)
        p = np.sort(model.novelty_p_value(shrink(rows)))
        second.plot(p, np.arange(1, len(p) + 1) / len(p), color=color)
    second.plot([0, 1], [0, 1], color=DARK, lw=0.8, ls=(0, (4, 3)))
    is_novel = np.repeat([0, 1], list(map(len, scores)))
    auroc = roc_auc_score(is_novel, np.concatenate(scores))
    first.set_xlabel(f"novelty score, AUROC {auroc:.3f}")
    first.set_ylabel("density")
    first.set_ylim(0, 0.9)
    first.legend(frameon=False, fontsize=8)
    second.set_xlabel("flag where p is at most")
    second.set_ylabel("share flagged")
    odd = groups[1][1][np.argsort(scores[1])[::-1][:6]]
    usual = groups[1][1][np.argsort(scores[1])[:6]]
    show_rows(right, np.concatenate([odd, usual]), f"most and least novel {NOVEL}s")
    return figure


def show_rows(
    figure: FigureBase,
    rows: np.ndarray,
    title: str,
    titles: list[str] | None = None,
    columns: int = 4,
) -> None:
    """Draw digits in a grid."""
    figure.suptitle(title, fontsize=9)
    axes: list[Axes] = list(figure.subplots(-(-len(rows) // columns), columns).ravel())
    for place, axis in enumerate(axes):
        axis.imshow(rows[place].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
        axis.set_xticks([])
        axis.set_yticks([])
        if titles:
            axis.set_title(titles[place], fontsize=8)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
