"""Draw lab/docs/images/long-tail.png: accuracy of each class under a long tail, before and after.

Everything in the picture is measured when this runs, on scikit-learn's digits (no download): the
training part is thinned to class sizes from 142 down to 2, the test part is balanced.

    .venv/bin/python examples/long_tail_figure.py [OUT.png]
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nearwise_lab.corrupt import long_tail
from reliability import DARK, draw_reliability
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier
from nearwise.metrics import ece
from nearwise.metrics.shots import shot_breakdown

OUT = Path(__file__).parents[1] / "docs" / "images" / "long-tail.png"
SEEDS = (0, 1, 2)
RATIO = 0.01
PRIORS: dict[Any, str] = {"train": "#b8bec4", "uniform": "#0f86c9"}
NAMES = {"train": 'class_prior="train"', "uniform": 'class_prior="uniform"'}


def main(out: Path = OUT) -> None:
    """Fit with both class shares on every seed, then draw."""
    proba: dict[str, list[np.ndarray]] = {prior: [] for prior in PRIORS}
    truth, counts = [], np.zeros(10, dtype=int)
    for seed in SEEDS:
        X, X_test, y, y_test = train_test_split(
            *load_digits(return_X_y=True), test_size=0.2, random_state=seed
        )
        kept = long_tail(y, RATIO, seed, least=2)
        counts = np.bincount(y[kept])
        for prior in PRIORS:
            model = AttnKNNClassifier(cv=3, class_prior=prior, random_state=seed)
            proba[prior].append(model.fit(X[kept], y[kept]).predict_proba(X_test))
        truth.append(y_test)
    y_all = np.concatenate(truth)
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "text.color": DARK}):
        figure = Figure(figsize=(9.6, 3.4), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.9, 1, 1))
        for place, (prior, color) in enumerate(PRIORS.items()):
            joined = np.concatenate(proba[prior])
            draw_classes(left, y_all, joined, place, NAMES[prior], color)
            title = f"{NAMES[prior]}\nECE {ece(y_all, joined):.3f}"
            draw_reliability((middle, right)[place], y_all, joined, title, color)
            shots = shot_breakdown(y_all, joined, counts, thresholds=(10, 50))
            shown = {k: round(shots[k], 3) for k in ("many", "medium", "few", "balanced")}
            print(prior, shown, f"ECE {ece(y_all, joined):.3f}")
        left.set_xticks(range(10), [f"{digit}\n{n}" for digit, n in enumerate(counts)])
        left.set_xlabel("digit, and its training rows (last seed)")
        left.set_ylabel("accuracy on balanced test rows")
        left.set_ylim(0, 1.02)
        left.spines["right"].set_visible(False)
        left.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        middle.set_ylabel("accuracy")
        figure.savefig(out, dpi=110, metadata={"Software": None})
    print(f"{out}: {len(SEEDS)} seeds, {len(y_all)} test rows")


def draw_classes(
    axis: Axes, y: np.ndarray, proba: np.ndarray, place: int, name: str, color: str
) -> None:
    """Draw the accuracy of every class."""
    right = proba.argmax(axis=1) == y
    heights = [right[y == label].mean() for label in range(10)]
    axis.bar(np.arange(10) + 0.4 * (place - 0.5), heights, 0.38, label=name, color=color)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
