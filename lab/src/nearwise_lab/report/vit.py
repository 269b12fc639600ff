"""Figures of vision transformers: curves of training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from nearwise_lab.report.drawing import ACCENT, FAINT, LINE_COLORS, canvas, page_style, recolor

_LOOK = {
    "training": (FAINT, "--"),
    "validation": (LINE_COLORS[0], "-"),
    "test": (ACCENT, "-"),
}


def draw_curves(history: Sequence[Mapping[str, Any]], out: Path, title: str = "") -> None:
    """Draw loss and top-1 accuracy against the epoch to a file.

    Parameters
    ----------
    history : sequence of dict
        Records of `train_vit`, at least one.
    out : Path
        Ending .png, .svg or .pdf.
    title : str, default=""
    """
    with page_style():
        figure, axes = canvas(7.4, 2.9, 1, 2)
        for axis, name, label in zip(
            axes[0], ("loss", "top1"), ("loss", "top-1 accuracy (%)"), strict=True
        ):
            _curve(axis, history, name)
            axis.set_xlabel("epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            axis.set_title(label)
        axes[0][0].legend()
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.draw_without_rendering()
        recolor(figure)
        figure.savefig(out, dpi=130, metadata={"Software": None} if out.suffix == ".png" else None)


def _curve(axis: Axes, history: Sequence[Mapping[str, Any]], name: str) -> None:
    for label, (color, style) in _LOOK.items():
        points = [
            (record["epoch"], value)
            for record in history
            if (value := _value(record, label, name)) is not None
        ]
        if points:
            x, y = zip(*points, strict=True)
            marker = "o" if len(x) < 15 else None
            axis.plot(x, y, style, color=color, label=label, lw=1.4, marker=marker, ms=3)


def _value(record: Mapping[str, Any], part: str, name: str) -> float | None:
    if part == "training":
        return float(record["train"][name])
    found = record["evaluation"].get(f"{part}_{name}")
    return None if found is None else float(found)
