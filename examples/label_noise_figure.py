"""Draw docs/images/label-noise.png: digits with planted wrong labels, most suspicious first.

    python examples/label_noise_figure.py [docs/images/label-noise.png]

Digits ship with scikit-learn; 10 % of the labels are changed, and the classifier ranks all rows.
"""

import sys
from pathlib import Path

import matplotlib as mpl

from nearwise import review

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from nearwise_lab.corrupt import label_noise
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score, precision_recall_curve

from nearwise.estimators import AttnKNNClassifier

PAGE = Path(__file__).parents[1] / "docs" / "images" / "label-noise.png"
SHOWN = 14


def draw(path: Path) -> None:
    """Fit, rank, draw the first suspects and how precise the ranking is."""
    X, y = load_digits(return_X_y=True)
    given = label_noise(y, 0.1, seed=0)
    model = AttnKNNClassifier(cv=3, label_noise="auto", random_state=0).fit(X, given)
    issues = review(model).issues()
    wrong = (given != y)[issues["id"]]
    figure = plt.figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[2, 1])[0]
    for axes, suspect in zip(
        left.subplots(2, SHOWN // 2).flat, issues.head(SHOWN).to_dict("records"), strict=True
    ):
        axes.imshow(X[suspect["id"]].reshape(8, 8), cmap="gray_r")
        found = "" if given[suspect["id"]] != y[suspect["id"]] else " (not planted)"
        axes.set_title(f"given {suspect['given']}\nsays {suspect['suggested']}{found}", fontsize=9)
        axes.set_axis_off()
    left.suptitle("The first suspects", fontsize=10)
    axes = right.subplots()
    precision, recall, _ = precision_recall_curve(wrong, issues["suspicion"])
    axes.plot(recall, precision)
    area = average_precision_score(wrong, issues["suspicion"])
    axes.set(xlabel="share of the wrong labels found", ylabel="share of suspects that are wrong")
    axes.set(ylim=(0, 1.02), xlim=(0, 1))
    axes.set_title(
        f"average precision {area:.3f}\nrate found {review(model).noise.rate:.3f}, "
        f"planted {np.mean(given != y):.3f}",
        fontsize=10,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"average precision {area:.4f}, rate {review(model).noise.rate:.4f}, {len(y)} rows")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
