"""Draw lab/docs/images/vit-training.png: accuracy of every attention layer, by one recipe.

From benchmarks/results/vit_training_digits.json, or another result of benchmarks/vit_training.py:

    python examples/vit_training_figure.py
    python examples/vit_training_figure.py --results benchmarks/results/vit_training_cifar10.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from nearwise_lab.report.drawing import ACCENT, FAINT, INK, page_style

ROOT = Path(__file__).resolve().parents[1]
BASE = "attention"
RECIPES = {False: "without augmentation", True: "with augmentation"}


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Draw a panel per recipe: a dot for the mean of each layer, a line for its seeds' range."""
    recipes = [on for on in RECIPES if any(row["augment"] == on for row in rows)]
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    with page_style():
        size = (3.9 * len(recipes) + 0.6, 0.9 + 0.23 * len(arms))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(1, len(recipes), squeeze=False)
        for axis, augmented in zip(axes[0], recipes, strict=True):
            own = sorted(
                (row for row in rows if row["augment"] == augmented), key=lambda row: row["top1"]
            )
            base = next((row["top1"] for row in own if row["arm"] == BASE), None)
            if base is not None:
                axis.axvline(base, color=FAINT, lw=1)
            for place, row in enumerate(own):
                axis.plot(row["top1_range"], (place, place), color=FAINT, lw=3, alpha=0.7)
                color = INK if row["arm"] == BASE else ACCENT
                axis.plot(row["top1"], place, "o", color=color, ms=4.5)
            axis.set_yticks(range(len(own)), [row["arm"] for row in own])
            axis.set_xlabel("top-1 accuracy of test images (%)")
            axis.set_title(RECIPES[augmented])
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=110, metadata={"Software": None})


def main() -> None:
    """Read the results and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT / "benchmarks" / "results" / "vit_training_digits.json"
    parser.add_argument("--results", type=Path, default=default)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "vit-training.png")
    args = parser.parse_args()
    draw(json.loads(args.results.read_text())["table"], args.out)


if __name__ == "__main__":
    main()
