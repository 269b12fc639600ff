"""Draw docs/images/weights.png: learned attention beside other weightings of the same neighbors.

    python examples/weights_figure.py [docs/images/weights.png]

From the records of `python benchmarks/weights.py record`: what attention gains in accuracy and
takes off NLL, ECE and AURC, with 95 % intervals, on labels as they are, with wrong ones, and with a
long tail.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "images" / "weights.png"
RESULTS = ROOT / "benchmarks" / "results"
NOISE = "30 % symmetric"
ROWS = {  # condition and noise, by what stands beside the row
    "labels as they are": ("", ""),
    "30 % wrong in the memory,\nafter the fit": ("memory; as-given; ", NOISE),
    "30 % wrong in all rows,\njudged by equally wrong ones": ("everywhere; as-given; ", NOISE),
    "the same, judged by\nright ones": ("everywhere; as-given; ", NOISE),
    "the same, every weighting\ncorrected alike": ("everywhere; corrected; ", NOISE),
    "rarest class 1 % of the largest,\nevery weighting corrected alike": (
        "ratio=0.01; corrected; ",
        "",
    ),
}
GIVEN = 2  # the row judged by given labels
COLUMNS = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE", "aurc": "AURC"}
OTHERS = {
    "uniform": "uniform",
    "distance-tuned": "distance, tuned",
    "distance-learned": "distance, learned per space",
    "multi-head": "multi-head attention",
    "base": "no neighbors: the network",
}
COLORS = {"24 tables, no base": "#0f86c9", "CIFAR-10, 10,000 images, with its network": "#d9822b"}


def differences(condition: str, noise: str, *, given: bool) -> list[dict[str, dict[str, Any]]]:
    """Attention minus each other weighting: on the tables, and on images."""
    tables = json.loads((RESULTS / "weights_tables.json").read_text())["results"]
    images = json.loads((RESULTS / "weights.json").read_text())["results"]
    last = "; given-labels" if given else ""
    of_tables = {
        row["attention minus"]: {key: row[key] for key in COLUMNS}
        for row in tables
        if row["group"] == "large-tables" and row["families"] == "all"
        and (row["condition"], row.get("noise", "")) == (f"{condition}without=base{last}", noise)
    }  # fmt: skip
    of_images = {
        row["method"]: {key: row[f"attention minus it, {key}"] for key in COLUMNS}
        for row in images
        if row["data"] == "cifar10-10000" and "attention minus it, nll" in row
        and (row["condition"], row.get("noise", "")) == (f"{condition}with=base{last}", noise)
    }  # fmt: skip
    return [of_tables, of_images]


def draw(path: Path) -> None:
    """Draw a row of panels per condition, a column per measure."""
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure, grid = plt.subplots(
            len(ROWS), len(COLUMNS), figsize=(10, 9.6), layout="constrained", sharey=True
        )
        for at, (title, place) in enumerate(ROWS.items()):
            groups = differences(*place, given=at == GIVEN)
            for axes, key in zip(grid[at], COLUMNS, strict=True):
                panel(axes, [{m: found[m][key] for m in found} for found in groups], key)
            grid[at][0].set_ylabel(title, rotation=0, ha="right", va="center", labelpad=8)
        for axes, name in zip(grid[0], COLUMNS.values(), strict=True):
            axes.set_title(f"{name}: gained" if name == "accuracy" else f"{name}: taken off")
        handles = [plt.Line2D([], [], color=c, marker="o", ms=4) for c in COLORS.values()]
        figure.legend(handles, COLORS, loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle("What learned attention gains on each weighting (right of 0: better)")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, metadata={"Software": None})


def panel(axes: Any, groups: list[dict[str, dict[str, Any]]], key: str) -> None:
    """Draw differences of one measure with their intervals; to the right attention is better."""
    sign = 1 if key == "accuracy" else -1
    axes.axvline(0, color="#888888", lw=0.8)
    for shift, (found, color) in enumerate(zip(groups, COLORS.values(), strict=True)):
        for at, method in enumerate(OTHERS):
            if method in found:
                gap = found[method]
                ends = sorted((sign * gap["low"], sign * gap["high"]))
                axes.plot(ends, [at + 0.24 * shift] * 2, color=color, lw=1.2)
                axes.plot(sign * gap["mean"], at + 0.24 * shift, "o", color=color, ms=3.5)
    axes.set_yticks(range(len(OTHERS)), OTHERS.values())
    axes.set_ylim(len(OTHERS) - 0.3, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE)
