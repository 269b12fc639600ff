"""Accuracy against confidence, as the figures beside this file draw it."""

import numpy as np
from matplotlib.axes import Axes

from nearwise.metrics import ece, nll, reliability_bins

DARK = "#222222"


def measured(name: str, y: np.ndarray, proba: np.ndarray) -> str:
    """Give a title with NLL and ECE below the name."""
    return f"{name}\nNLL {nll(y, proba):.3f}, ECE {ece(y, proba):.3f}"


def draw_reliability(
    axis: Axes,
    y: np.ndarray,
    proba: np.ndarray,
    title: str,
    color: str,
    *,
    n_bins: int = 10,
    counts: bool = False,
) -> None:
    """Draw accuracy against confidence; on the diagonal probabilities mean what they say."""
    bins = reliability_bins(y, proba, n_bins=n_bins)
    filled = bins.count > 0
    middle = ((bins.lower + bins.upper) / 2)[filled]
    axis.plot([0, 1], [0, 1], color=DARK, lw=0.8, ls=(0, (4, 3)))
    axis.bar(middle, bins.accuracy[filled], width=0.09, color=color)
    axis.vlines(middle, bins.low[filled], bins.high[filled], color=DARK, lw=1)
    if counts:
        for x, n in zip(middle, bins.count[filled], strict=True):
            axis.text(x, 0.02, str(n), ha="center", fontsize=6.5)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("confidence")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1.02)
    axis.spines["right"].set_visible(False)
