"""Figures of single runs as files: vision transformers, neural fields, probes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.data.contexts import Context
from nearwise_lab.nn.field import PerceiverAutoencoder
from nearwise_lab.report.charts import (
    Bars,
    Line,
    Lines,
    Panel,
    Pixels,
    Span,
    chart,
    epochs,
    points_of,
)
from nearwise_lab.report.drawing import ACCENT, FAINT, LINE_COLORS, save_figure
from nearwise_lab.results.measures import Mean

Rows = Sequence[Mapping[str, Any]]
_MOST_SHOWN = 10
_FINER = 4  # times the resolution of the last row
_HIDDEN = np.array([0.86, 0.88, 0.9])  # color of pixels that were not shown


def draw_vit_curves(history: Rows, path: Path, title: str = "") -> Path:
    """Draw loss and top-1 accuracy of `train_vit` against the epoch."""
    panels = []
    for key, words in (("loss", "loss"), ("top1", "top-1 accuracy (%)")):
        lines = {"training": Line(points_of(history, "epoch", "train", key), FAINT, "o", "--")}
        for part, color in (("validation", LINE_COLORS[0]), ("test", ACCENT)):
            found = points_of(history, "epoch", "evaluation", f"{part}_{key}")
            lines[part] = Line(found, color, "o")
        panels.append(epochs(words, lines))
    return save_figure(chart(panels, (8.0, 2.9), heading=title), path)


def draw_field_curves(history: Rows, path: Path) -> Path:
    """Draw the errors of a `FieldRun` against the steps; a line marks where a stage ends."""
    lines = {}
    for name, key, color, style in (
        ("training", "train_mse", FAINT, "--"), ("held out, all pixels", "mse", ACCENT, "-"),
        ("held out, some pixels", "sparse_mse", LINE_COLORS[0], "-"),
    ):  # fmt: skip
        if found := points_of(history, "step", key):
            lines[name] = Line(found, color, "", style)
    errors = [p[1] for line in lines.values() for p in line.points]
    for row, after in pairwise(history):
        if row["stage"] != after["stage"]:
            ends = [(row["step"], min(errors)), (row["step"], max(errors))]
            lines[f"end of {row['stage']}"] = Line(ends, FAINT, "", ":")
    panels: list[Panel] = [Lines("mean squared error, pixels in [0, 1]", lines, "steps", log="y")]
    if nce := points_of(history, "step", "nce"):
        line = {"contrastive": Line(nce, LINE_COLORS[2])}
        panels.append(Lines("contrastive loss (nats)", line, "steps"))
    return save_figure(chart(panels, (3.8 * len(panels) + 1.8, 3.0)), path)


def draw_reconstructions(
    model: PerceiverAutoencoder, images: Tensor, fraction: float, path: Path
) -> Path:
    """Draw the first ten images and their reconstructions from all and from some pixels."""
    rows = reconstruction_rows(model, images[:_MOST_SHOWN], fraction)
    n = len(next(iter(rows.values())))
    figure = chart(picture_panels(rows), (0.75 * n + 1.2, 0.78), columns=n)
    return save_figure(figure, path)


def picture_panels(rows: Mapping[str, Iterable[Any]]) -> list[Panel]:
    """Panels of named rows of pictures."""
    return [
        Pixels(pixels, label="" if place else name)
        for name, pictures in rows.items()
        for place, pixels in enumerate(pictures)
    ]


@torch.no_grad()
def reconstruction_rows(
    model: PerceiverAutoencoder, images: Tensor, fraction: float
) -> dict[str, NDArray[np.float64]]:
    """Rows of pictures (n, H, W, 3) in [0, 1], by title."""
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    n, _, height, width = pixels.shape
    shown = Context("per-image", fraction).indices(height * width, torch.arange(n), draw=-1)
    assert shown is not None  # a fraction below 1
    seen = torch.zeros(n, height * width, dtype=torch.bool).scatter(1, shown, True)
    given = _pictures(pixels)
    given[~seen.reshape(n, height, width).numpy()] = _HIDDEN
    finer = (height * _FINER - _FINER + 1, width * _FINER - _FINER + 1)
    return {
        "image": _pictures(pixels),
        "from all": _pictures(model.reconstruct(pixels)),
        f"{fraction:.0%} shown": given,
        "from these": _pictures(model.reconstruct(pixels, shown)),
        f"all, x{_FINER}": _pictures(model.reconstruct(pixels, size=finer)),
    }


def _pictures(images: Tensor) -> NDArray[np.float64]:
    values = images.clamp(0, 1).permute(0, 2, 3, 1).double().numpy()
    return np.repeat(values, 3, axis=3) if values.shape[3] == 1 else values


def probe_figure(records: Rows, path: Path, title: str = "") -> Path:
    """Draw accuracies of probes with their 95 % intervals, a panel for each context.

    `records` are those of `nearwise_lab.probing.protocol`; runs of one kind are averaged.
    """
    probes = list(dict.fromkeys(r["probe"] for r in records))
    encoders = list(dict.fromkeys(r["encoder"] for r in records))
    several = len({r["pool"] for r in records}) > 1
    places = dict.fromkeys((r["encoder"], r["pool"], r["probe"]) for r in records)
    ordered = sorted(places, key=lambda place: encoders.index(place[0]))
    names = {p: f"{p[0]}{f', {p[1]}' * several}: {p[2]}" for p in ordered}
    colors = {name: LINE_COLORS[probes.index(p[2]) % len(LINE_COLORS)] for p, name in names.items()}
    panels: list[Panel] = []
    for context in dict.fromkeys(r["context"] for r in records):
        means: dict[str, Mean | Span | None] = {}
        for place, name in names.items():
            own = [r for r in records if (r["context"], r["encoder"], r["pool"], r["probe"])
                   == (context, *place)]  # fmt: skip
            rows = [(r["accuracy"], *r["intervals"]["accuracy"]) for r in own]
            means[name] = Span(*(100 * np.mean(rows, axis=0))) if own else None
        words = f"context {context}" if context != "full" else "whole images"
        panels.append(Bars(f"{words}: test accuracy, %", means, colors, "{:.1f}"))
    size = (4.2 * len(panels) + 1.8, 0.9 + 0.24 * len(names))
    return save_figure(chart(panels, size, heading=title), path)
