"""Draw docs/images/cifar10.png: an unsure CIFAR-10 image, its neighbors, and reliability.

The reliability diagrams show the experiment "weights", which must have run before:

    python benchmarks/weights.py --datasets cifar10 --seeds 0-2
    python examples/cifar10_figure.py [--runs runs/weights] [--data-root DATA]

The classifier that predicts the image is fitted here, in five minutes with the network of that run.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure, FigureBase
from nearwise_lab.data import load_dataset
from nearwise_lab.experiments import read_records
from nearwise_lab.experiments.artifacts import load_predictions, record_path
from nearwise_lab.results.measures import Predictions
from readme_figure import BLUE, GREY, N_NEIGHBORS, ORANGE, show_image
from reliability import DARK, draw_reliability, measured

from nearwise import AttnKNNClassifier
from nearwise.classifier import Explanation
from nearwise.data import Dataset

OUT = Path(__file__).parents[1] / "docs" / "images" / "cifar10.png"
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SHOWN = {
    "base": ("the network alone", GREY),
    "uniform": ("network and neighbors,\nuniform weights", ORANGE),
    "distance-tuned": ("network and neighbors,\ntuned distance weights", ORANGE),
    "attention": ("network and neighbors,\nattention", BLUE),
}


def main(runs: Path, data_root: Path | None, out: Path) -> None:
    """Read the predictions of seed 0, fit the classifier, draw."""
    folder = runs / "cifar10"
    found = {method: predictions(folder, method) for method in SHOWN}
    dataset = load_dataset("cifar10", data_root=data_root)
    model, rows = fitted(dataset, folder)
    chosen = least_sure(found["attention"])
    row = int(found["attention"].test_index[chosen])
    why = model.explain(dataset.X[[row]], n_neighbors=N_NEIGHBORS)[0]
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "text.color": DARK}):
        figure = Figure(figsize=(9.6, 5.0), layout="constrained")
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.5))[:, 0]
        draw_neighbors(top, dataset, row, why, rows)
        axes = bottom.subplots(1, len(SHOWN), sharey=True)
        for axis, (method, (name, color)) in zip(axes, SHOWN.items(), strict=True):
            title = measured(name, found[method].y, found[method].proba)
            draw_reliability(axis, found[method].y, found[method].proba, title, color, counts=True)
        axes[0].set_ylabel("accuracy")
        figure.savefig(out, dpi=110, metadata={"Software": None})
    print(f"{out}: test image {row}")


def predictions(folder: Path, method: str) -> Predictions:
    """Give the test predictions of a weighting, with the base, of seed 0."""
    for record in read_records(folder):
        where = (record.experiment, record.condition, record.method, record.seed)
        if where == ("weights", "with=base", method, 0):
            kept = load_predictions(record_path(folder, record, "predictions", "npz"))
            if kept is not None:
                return kept
    raise SystemExit(f"{folder} holds no predictions of {method!r}: run benchmarks/weights.py.")


def fitted(dataset: Dataset, folder: Path) -> tuple[AttnKNNClassifier, np.ndarray]:
    """Fit the classifier of seed 0, and give its training rows by their place."""
    rows = np.setdiff1d(np.arange(len(dataset)), np.asarray(dataset.test_index))
    settings = {
        "tta": "flip",
        "device": "cpu",
        "checkpoint_dir": folder / "checkpoints" / "attention",
    }
    model = AttnKNNClassifier(random_state=0, settings=settings)
    return model.fit(dataset.X[rows], dataset.y[rows]), rows


def least_sure(found: Predictions) -> int:
    """Find the least sure right answer."""
    right = found.proba.argmax(axis=1) == found.y
    return int(np.where(right, found.proba.max(axis=1), np.inf).argmin())


def draw_neighbors(
    figure: FigureBase, dataset: Dataset, row: int, why: Explanation, rows: np.ndarray
) -> None:
    """Draw the image, then its weightiest neighbors with label and share of the attention."""
    axes = figure.subplots(1, N_NEIGHBORS + 1)
    truth = dataset.y[row]
    show_image(axes[0], np.asarray(dataset.X[row]), DARK)
    axes[0].set_title(f"test: {name(truth)}", fontweight="bold")
    axes[0].set_xlabel(f"says {name(why.label)}, p = {why.proba.max():.2f}")
    for axis, neighbor in zip(axes[1:], why.neighbors, strict=True):
        frame = BLUE if neighbor.label == truth else ORANGE
        show_image(axis, dataset.X[rows[neighbor.id]], frame)
        axis.set_title(name(neighbor.label))
        axis.set_xlabel(f"weight {neighbor.weight:.2f}")


def name(label: Any) -> str:
    """Name a class; the data set may number them."""
    return NAMES[int(label)] if str(label).isdigit() else str(label)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/weights"))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    main(options.runs, options.data_root, options.out)
