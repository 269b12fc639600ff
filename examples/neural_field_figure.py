"""Draw lab/docs/images/neural-field.png: digits read from a fifth of their pixels.

Two fields are trained when this runs, on scikit-learn's digits (no download): one reads all pixels
of an image, the other 13 of 64, different ones for each image and step. About three minutes on one
core.

    .venv/bin/python examples/neural_field_figure.py [OUT.png]
"""

import sys
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from nearwise_lab.data import load_images
from nearwise_lab.field_training import FieldConfig, reconstruction_errors, train_field
from nearwise_lab.probing.data import probe_data
from nearwise_lab.report.runs import picture_panels, reconstruction_rows
from reliability import DARK

from nearwise.data import Context
from nearwise.data.images.pixels import as_images

OUT = Path(__file__).parents[1] / "docs" / "images" / "neural-field.png"
COLORS = {"reconstruction": "#0f86c9", "sparse": "#d1495b"}
NAMES = {"reconstruction": "trained on all pixels", "sparse": "trained on 20 %"}
N_SHOWN = 9


def main(out: Path = OUT) -> None:
    """Train both fields, then draw."""
    data = probe_data(load_images("digits-images"), test_size=500 / 1797)
    train, held, test = (as_images(part.images) for part in data)
    models, curves = {}, {}
    for objective in COLORS:
        models[objective], history = train_field(
            train, FieldConfig.model_validate({"objective": objective}), validation=held
        )
        curves[objective] = history
        found = reconstruction_errors(models[objective], test, Context("per-image", 0.2))
        print(objective, {name: round(value, 4) for name, value in found.items()})
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "text.color": DARK}):
        figure = Figure(figsize=(9.6, 3.5), layout="constrained")
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.5))[0]
        draw_curves(left.subplots(), curves)
        draw_digits(right, models, test[:N_SHOWN])
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=110, metadata={"Software": None})


def draw_curves(axis: Axes, curves: dict[str, list[dict]]) -> None:
    """Error on held-out images against the epoch, from all and from some of their pixels."""
    for objective, history in curves.items():
        epochs = [row["epoch"] for row in history]
        for key, line in (("mse", "-"), ("sparse_mse", "--")):
            values = [row["evaluation"][key] for row in history]
            axis.plot(epochs, values, line, color=COLORS[objective], lw=1.5)
        axis.plot([], [], color=COLORS[objective], label=NAMES[objective])
    axis.plot([], [], "-", color=DARK, label="read from all pixels")
    axis.plot([], [], "--", color=DARK, label="read from 20 %")
    axis.set_xlabel("epoch")
    axis.set_ylabel("mean squared error, held-out digits")
    axis.set_ylim(0, 0.17)
    axis.spines["right"].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="upper right")


def draw_digits(figure: Figure, models: dict, images: torch.Tensor) -> None:
    """Images, the pixels that are shown, and what both fields read from these."""
    rows = {name: reconstruction_rows(model, images, 0.2) for name, model in models.items()}
    first = rows["reconstruction"]
    lines = {
        "image": first["image"],
        "from all": first["from all"],
        "the same, finer": first["all, x4"],
        "20 % shown": first["20% shown"],
        NAMES["reconstruction"]: first["from these"],
        NAMES["sparse"]: rows["sparse"]["from these"],
    }
    axes = figure.subplots(len(lines), len(images))
    for axis, panel in zip(axes.ravel(), picture_panels(lines), strict=True):
        panel.draw(axis)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
