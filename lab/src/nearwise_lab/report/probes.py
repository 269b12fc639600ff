"""Figure of probes: accuracy of each probe on each encoder, with intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nearwise_lab.report.drawing import LINE_COLORS

_STEP = 0.8  # width of a group of points
_MARKS = "osD^vPX*<>"


def probe_figure(records: Sequence[Mapping[str, Any]], path: Path, title: str = "") -> Path:
    """Draw accuracies with their 95 % intervals, a panel for each context.

    Parameters
    ----------
    records : sequence of dict
        As `nearwise_lab.probing.protocol` returns them; runs of one kind are averaged.
    path : Path
        Where the PNG is written.
    title : str, default=""

    Returns
    -------
    path : Path
    """
    contexts = list(dict.fromkeys(r["context"] for r in records))
    places = list(dict.fromkeys((r["encoder"], r["pool"]) for r in records))
    probes = list(dict.fromkeys(r["probe"] for r in records))
    # probes of tokens are shown beside those of every pool, alone where their encoder has none
    pooled = {encoder for encoder, pool in places if pool != "tokens"}
    rows = [place for place in places if place[1] != "tokens" or place[0] not in pooled]
    names = [_name(place, rows) for place in rows]
    height = 1.2 + (0.24 * len(probes) + 0.2) * len(rows)
    figure = Figure(figsize=(4.2 * len(contexts) + 1.4, height), layout="constrained")
    panels = figure.subplots(1, len(contexts), sharey=True, squeeze=False)[0]
    drawn: dict[str, Any] = {}  # of each probe, for the legend: no condition need have them all
    for axes, context in zip(panels, contexts, strict=True):
        for j, probe in enumerate(probes):
            for i, place in enumerate(rows):
                own = [r for r in records if r["context"] == context and r["probe"] == probe]
                own = [r for r in own if r["encoder"] == place[0]]
                own = [r for r in own if r["pool"] in (place[1], "tokens")]
                if own:
                    at = i - _STEP / 2 + _STEP * (j + 0.5) / len(probes)
                    drawn[probe] = _draw(axes, own, at, j)
        axes.set_title(f"context {context}" if context != "full" else "whole images", loc="left")
        axes.set_xlabel("test accuracy, %")
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(rows)), names)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)  # the first at the top, the last not on the edge
    handles = [drawn[probe] for probe in probes]
    panels[-1].legend(handles, probes, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=150)
    return path


def _name(place: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    encoder, pool = place
    several = len({p for e, p in rows if e == encoder}) > 1 or len({p for _, p in rows}) > 1
    return f"{encoder}\n{pool}" if several else encoder


def _draw(axes: Any, own: Sequence[Mapping[str, Any]], at: float, j: int) -> Any:
    mean = 100 * float(np.mean([r["accuracy"] for r in own]))
    low, high = (
        100 * float(np.mean([r["intervals"]["accuracy"][end] for r in own])) for end in (0, 1)
    )
    color = LINE_COLORS[j % len(LINE_COLORS)]
    return axes.errorbar(
        mean,
        at,
        xerr=[[max(mean - low, 0)], [max(high - mean, 0)]],
        fmt=_MARKS[j % len(_MARKS)],
        color=color,
        markersize=5,
        linewidth=1.2,
        capsize=2,
    )
