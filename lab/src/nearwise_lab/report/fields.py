"""Figures of a neural field: how it learned, and what it makes of images."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from torch import Tensor

from nearwise.data.contexts import Context
from nearwise_lab.nn.field import PerceiverAutoencoder
from nearwise_lab.report.drawing import ACCENT, FAINT, LINE_COLORS, canvas, page_style, recolor

_MOST_SHOWN = 10
_FINER = 4  # times the resolution of the last row
_HIDDEN = np.array([0.86, 0.88, 0.9])  # color of pixels that were not shown
_CURVES = (
    ("train_mse", "training", FAINT, "--"),
    ("mse", "held out, all pixels", ACCENT, "-"),
    ("sparse_mse", "held out, some pixels", LINE_COLORS[0], "-"),
)


def draw_curve(history: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the errors against the steps; a line marks where a stage begins.

    Parameters
    ----------
    history : sequence of dict
        As in `FieldRun`.
    path : Path
        Where to write the PNG.
    """
    has_nce = any("nce" in row for row in history)
    with page_style():
        figure, axes = canvas(7.6 if has_nce else 5.0, 3.0, 1, 1 + has_nce)
        axis = axes[0][0]
        for key, label, color, line in _CURVES:
            points = [(r["step"], r[key]) for r in history if r.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), line, color=color, label=label, lw=1.4)
        axis.set_yscale("log")
        # plain numbers: powers of ten would want fonts of mathematics
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_ylabel("mean squared error, pixels in [0, 1]")
        axis.legend(loc="best")
        if has_nce:
            points = [(r["step"], r["nce"]) for r in history if "nce" in r]
            marker = "o" if len(points) == 1 else None  # a line of one point is not seen
            axes[0][1].plot(*zip(*points, strict=True), marker=marker, color=ACCENT, lw=1.4)
            axes[0][1].set_ylabel("contrastive loss (nats)")
        for one in axes[0]:
            one.set_xlabel("steps")
            for row, after in pairwise(history):
                if row["stage"] != after["stage"]:
                    one.axvline(row["step"], color=FAINT, lw=1, ls=":")
        _write(figure, path)


def draw_reconstructions(
    model: PerceiverAutoencoder, images: Tensor, fraction: float, path: Path
) -> None:
    """Draw images, and what the model makes of all and of some of their pixels.

    Parameters
    ----------
    model : PerceiverAutoencoder
    images : uint8 or float Tensor of shape (n, C, H, W)
        The first ten are shown.
    fraction : float
        Share of the pixels that "some" is.
    path : Path
        Where to write the PNG.
    """
    with page_style():
        rows = reconstruction_rows(model, images[:_MOST_SHOWN], fraction)
        n = len(next(iter(rows.values())))
        figure, axes = canvas(0.75 * n + 1.2, 0.78 * len(rows), len(rows), n)
        draw_pictures(axes, rows)
        _write(figure, path)


def draw_pictures(axes: Any, rows: Mapping[str, Iterable[Any]]) -> None:
    """Draw named rows of pictures, each onto its row of `axes`."""
    for line, (label, pictures) in zip(axes, rows.items(), strict=True):
        for axis, picture in zip(line, pictures, strict=True):
            axis.imshow(picture, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            for side in axis.spines.values():
                side.set_visible(False)
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")


@torch.no_grad()
def reconstruction_rows(
    model: PerceiverAutoencoder, images: Tensor, fraction: float
) -> dict[str, NDArray[np.float64]]:
    """Pictures (n, H, W, 3) in [0, 1] of each kind, by what they are."""
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


def _write(figure: Figure, path: Path) -> None:
    recolor(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=130, metadata={"Software": None})
