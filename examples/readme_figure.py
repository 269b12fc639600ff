"""Draw docs/images/demo.png: a digit, the neighbors behind its prediction, and reliability.

Everything in the picture is measured when this runs, on scikit-learn's digits (no download):

    .venv/bin/python examples/readme_figure.py [OUT.png]
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from reliability import DARK, draw_reliability, measured
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from nearwise import AttnKNNClassifier
from nearwise.estimators import Explanation

OUT = Path(__file__).parents[1] / "docs" / "images" / "demo.png"
N_NEIGHBORS = 6
BLUE, ORANGE, GREY = "#0f86c9", "#d9822b", "#b8bec4"


def main(out: Path = OUT) -> None:
    """Fit, predict, draw."""
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.5, stratify=y, random_state=0
    )
    model = AttnKNNClassifier(cv=3, random_state=0).fit(X_train, y_train)
    plain = KNeighborsClassifier(16).fit(X_train, y_train)
    ours, uniform = model.predict_proba(X_test), plain.predict_proba(X_test)

    right = ours.argmax(axis=1) == y_test  # class positions are the digits themselves
    hardest = int(np.where(right, ours.max(axis=1), np.inf).argmin())  # the least sure right answer
    explanation = model.explain(X_test[[hardest]], n_neighbors=N_NEIGHBORS)[0]

    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "text.color": DARK}):
        figure = Figure(figsize=(9.6, 5.2), layout="constrained")
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.35))[:, 0]
        draw_neighbors(top, X_test[hardest], int(y_test[hardest]), explanation, X_train)
        left, middle, last = bottom.subplots(1, 3, width_ratios=(1.25, 1, 1))
        draw_parts(left, explanation)
        title = measured("uniform k-NN, k = 16", y_test, uniform)
        draw_reliability(middle, y_test, uniform, title, GREY, counts=True)
        title = measured("attention over neighbors", y_test, ours)
        draw_reliability(last, y_test, ours, title, BLUE, counts=True)
        middle.set_ylabel("accuracy")
        figure.savefig(out, dpi=110, metadata={"Software": None})
    print(f"{out}: accuracy {right.mean():.3f}, test digit {hardest}, {len(y_test)} test rows")


def draw_neighbors(
    figure: FigureBase, query: np.ndarray, truth: int, why: Explanation, X_train: np.ndarray
) -> None:
    """Draw the query, then its weightiest neighbors with label and share of the attention."""
    axes = figure.subplots(1, N_NEIGHBORS + 1)
    show_image(axes[0], query.reshape(8, 8), DARK)
    axes[0].set_title(f"query: a {truth}", fontweight="bold")
    axes[0].set_xlabel(f"says {why.label}, p = {why.proba.max():.2f}")
    for axis, neighbor in zip(axes[1:], why.neighbors, strict=True):
        frame = BLUE if neighbor.label == truth else ORANGE
        show_image(axis, X_train[neighbor.id].reshape(8, 8), frame)
        axis.set_title(f"{neighbor.label}")
        axis.set_xlabel(f"weight {neighbor.weight:.2f}")


def show_image(axis: Axes, pixels: np.ndarray, frame: str) -> None:
    """Draw a digit (8, 8) from 0 to 16, or an image of bytes (h, w, 3), in a frame."""
    axis.imshow(pixels, cmap="gray_r", vmin=0, vmax=16)  # the last three are for grey alone
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(visible=True, color=frame, linewidth=2)


def draw_parts(axis: Axes, why: Explanation) -> None:
    """Draw the prediction beside its two halves, for the classes that get any of it."""
    halves = [
        ("base alone", why.base_proba, GREY),
        ("neighbors alone", why.neighbor_proba, ORANGE),
        ("together", why.proba, BLUE),
    ]
    classes = np.sort(np.argsort(sum(proba for _, proba, _ in halves))[-4:])
    for place, (name, proba, color) in enumerate(halves):
        axis.bar(np.arange(4) + 0.27 * (place - 1), proba[classes], 0.25, label=name, color=color)
    axis.set_xticks(range(4), [str(c) for c in classes])
    axis.set_xlabel("digit")
    axis.set_ylabel("probability")
    axis.set_ylim(0, 1)
    axis.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)
    axis.spines["right"].set_visible(False)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
