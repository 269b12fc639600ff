"""Draw lab/docs/images/representations.png: what probes read from neural fields, and the protocol.

Left and middle: accuracy of frozen features of the digits from all pixels and from a fifth of
them, k-NN against the transformer probe. Right: k-NN with the same share of pixels hidden in three
ways. Measured when this runs (minutes; what the folder already contains is not measured again), on
scikit-learn's digits (no download):

    .venv/bin/python examples/representations_figure.py [OUT.png] [FOLDER]
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nearwise_lab.data import load_images
from nearwise_lab.experiments.representations import (
    Cell,
    Comparison,
    arm_of,
    load_comparison,
    run_comparison,
)

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "representations.png"
FOLDER = ROOT / "runs" / "representations-digits"
BLUE, ORANGE, GREY, DARK = "#0f86c9", "#d9822b", "#b8bec4", "#2b2f33"
PROBES = {"knn": ("k-NN", BLUE), "linear": ("linear", GREY), "transformer": ("transformer", ORANGE)}
PROTOCOL = {
    "0.2:fixed": ("one layout for all", BLUE),
    "0.2": ("another in each image", ORANGE),
    "0.2:batch": ("another in each batch", GREY),
}


def mean(found: Comparison, cell: Cell, part: str = "main") -> float:
    """Accuracy over seeds and draws."""
    values = found.values(cell, part=part)
    return sum(values.values()) / len(values)


def draw(axis: Axes, found: Comparison, groups: dict[str, tuple[str, str]], context: str) -> None:
    """Bars of every encoder: of probes in a context, or of ways to hide pixels (context "")."""
    height = 0.8 / len(groups)
    names = found.encoders[::-1]
    for turn, (key, (label, color)) in enumerate(groups.items()):
        for place, name in enumerate(names):
            cell = Cell(name, key, context) if context else Cell(name, "knn", key)
            value = mean(found, cell, "main" if context else "protocol")
            y = place - (turn - (len(groups) - 1) / 2) * height
            axis.barh(y, value, height=0.9 * height, color=color,
                      label=label if place == 0 else None)  # fmt: skip
            axis.annotate(f"{value:.2f}", (value, y), xytext=(2, 0), textcoords="offset points",
                          va="center", size=6.5)  # fmt: skip
    axis.set_yticks(range(len(names)), [arm_of(n).title for n in names])
    axis.set_xlim(0, 1.12)
    axis.set_xticks([0, 0.5, 1])


def main(out: Path = OUT, folder: Path = FOLDER) -> None:
    """Measure what is missing, then draw."""
    if (folder / "comparison.json").exists():
        found = load_comparison(folder)
    else:
        found = run_comparison(load_images("digits-images"), folder, progress=print)
    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
             "text.color": DARK, "legend.frameon": False}  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for axis, context, title in zip(
            panels,
            ("full", "0.2", ""),
            ("the whole image seen", "a fifth of the pixels seen", "k-NN, a fifth seen"),
            strict=True,
        ):  # fmt: skip
            draw(axis, found, PROBES if context else PROTOCOL, context)
            axis.set_title(title, loc="left", size=10)
            axis.set_xlabel("accuracy of frozen features")
        panels[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=1, fontsize=8)
        panels[2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=1, fontsize=8)
        figure.savefig(out, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
