"""Draw docs/images/calibration.png: the soft-binned error, and a head that was trained with it.

Left: hard-binned and soft-binned calibration error of one prediction as its temperature changes;
the soft one has a slope everywhere. Right: reliability on test rows of a head trained on the NLL
alone and of one trained on the NLL and the soft error with a learned temperature, neither
calibrated afterwards. Measured when this runs, on scikit-learn's digits (no download):

    .venv/bin/python examples/calibration_figure.py [OUT.png]
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nearwise_lab.nn import CalibratedTraining
from nearwise_lab.nn.calibration_losses import soft_binned_ece
from reliability import DARK, draw_reliability, measured
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from nearwise import AttnKNNClassifier
from nearwise.classifier import Settings
from nearwise.metrics import ece, nll

OUT = Path(__file__).parents[1] / "docs" / "images" / "calibration.png"
BLUE, ORANGE, GREY = "#0f86c9", "#d9822b", "#b8bec4"


def main(out: Path = OUT) -> None:
    """Fit with and without the soft error in the loss, then draw."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)
    rare = Settings(calibration=None)
    soft_error = CalibratedTraining.model_validate({"ece_weight": 1.0})
    plain = AttnKNNClassifier(random_state=0, settings=rare).fit(X, y).predict_proba(X_test)
    model = AttnKNNClassifier(random_state=0, settings=rare.changed(head=soft_error))
    soft = model.fit(X, y).predict_proba(X_test)
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "text.color": DARK}):
        figure = Figure(figsize=(9.6, 3.2), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        draw_errors(left, y_test, plain)
        title = measured("NLL alone", y_test, plain)
        draw_reliability(middle, y_test, plain, title, GREY)
        title = measured("NLL + soft error", y_test, soft)
        draw_reliability(right, y_test, soft, title, BLUE)
        middle.set_ylabel("accuracy")
        figure.savefig(out, dpi=110, metadata={"Software": None})
    for name, proba in (("NLL alone", plain), ("NLL + soft error", soft)):
        print(f"{name}: NLL {nll(y_test, proba):.4f}, ECE {ece(y_test, proba):.4f}")


def draw_errors(axis: Axes, y: np.ndarray, proba: np.ndarray) -> None:
    """Draw both errors of a prediction against its temperature."""
    log_proba, labels = torch.log(torch.from_numpy(proba)), torch.from_numpy(y)
    temperatures = np.geomspace(0.4, 2.5, 60)
    moved = [torch.log_softmax(log_proba / t, dim=1) for t in temperatures]
    hard = [ece(y, one.exp().numpy()) for one in moved]
    soft = [float(soft_binned_ece(one, labels)) for one in moved]
    axis.plot(temperatures, hard, color=GREY, lw=2, label="15 hard bins (ECE)")
    axis.plot(temperatures, soft, color=ORANGE, lw=2, label="15 soft bins, squared")
    axis.set_xscale("log")
    axis.set_xticks([0.5, 1, 2], ["0.5", "1", "2"])
    axis.minorticks_off()
    axis.set_xlabel("temperature of the prediction")
    axis.set_ylabel("calibration error")
    axis.set_ylim(0, None)
    axis.spines["right"].set_visible(False)
    axis.legend(frameon=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
