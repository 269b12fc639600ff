"""Figures of the bench of token layers: time and memory, and the curve of memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from nearwise_lab.report.drawing import INK, LINE_COLORS, PRINT_COLORS

Row = dict[str, Any]
MARKS = "os^DvPX*"


def draw_bench(rows: Sequence[Row], path: Path) -> Path:
    """Draw times and memory of every layer, and the curve where there is one.

    Parameters
    ----------
    rows : sequence of dict
        Of `nearwise_lab.experiments.token_layers.bench.run_bench`.
    path : Path
        A picture by its ending: .png, .svg or .pdf.

    Returns
    -------
    path : Path
    """
    lengths = sorted({row["tokens"] for row in rows if row["kind"] == "time"})
    curve = [row for row in rows if row["kind"] == "curve"]
    memory = any(row["kind"] == "memory" for row in rows)
    n_panels = len(lengths) * (1 + memory) + bool(curve)
    layers = len({row["layer"] for row in rows if row["kind"] == "time"})
    with matplotlib.rc_context(
        {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    ):
        figure = Figure(
            figsize=(4.4 * min(2, n_panels), (1.2 + 0.24 * max(9, layers)) * -(-n_panels // 2)),
            layout="constrained",
        )
        axes = figure.subplots(-(-n_panels // 2), min(2, n_panels), squeeze=False).flatten()
        places = iter(axes)
        for n in lengths:
            own = [row for row in rows if row["kind"] == "time" and row["tokens"] == n]
            draw_bars(next(places), own, f"N = {n}: time to that of dense attention", "ratio")
            if memory:
                own = [row for row in rows if row["kind"] == "memory" and row["tokens"] == n]
                draw_bars(next(places), own, f"N = {n}: peak memory, MiB", "")
        if curve:
            draw_curve(next(places), curve)
        for empty in places:
            empty.set_axis_off()
    figure.savefig(path, dpi=160)
    return path


def draw_bars(axes: Axes, rows: Sequence[Row], title: str, part: str) -> None:
    """Draw a pair of bars a layer: forward, and forward with backward."""
    for offset, what, color in (
        (-0.2, "forward", PRINT_COLORS["#0a0b0c"]),
        (0.2, "forward_backward", LINE_COLORS[0]),
    ):
        values = [row[what][part] if part else row[what] for row in rows]
        at = [i + offset for i in range(len(rows))]
        label = what.replace("_", " and ")
        axes.barh(at, values, height=0.38, color=color, label=label)
    axes.set_yticks(range(len(rows)), [row["layer"] for row in rows])
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=9)
    if part == "ratio":
        axes.axvline(1, color=PRINT_COLORS[INK], linewidth=0.8)
    # Below: wherever it stood inside, it would lie on the bars.
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.07))


def draw_curve(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw peak memory against the number of tokens, both in powers."""
    for i, name in enumerate(dict.fromkeys(row["layer"] for row in rows)):
        points = sorted((r["tokens"], r["mib"]) for r in rows if r["layer"] == name and r["mib"])
        if not points:
            continue
        tokens, mib = zip(*points, strict=True)
        color = LINE_COLORS[i % len(LINE_COLORS)]
        axes.plot(tokens, mib, marker=MARKS[i % len(MARKS)], color=color, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):  # powers of ten would need fonts for formulas
        axis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tokens N")
    axes.set_title("peak memory, forward and backward, MiB", loc="left", fontsize=9)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
