"""Predicted numbers of the command line: measured, and laid out in tables."""

from typing import TYPE_CHECKING, Any

import rich.table

from nearwise.cli.answer_columns import trust_in_words
from nearwise.cli.console import grid, shown_cell

if TYPE_CHECKING:
    import numpy as np

    from nearwise.estimators import AttnKNNRegressor
    from nearwise.estimators.model.mixture import Mixture

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the quantiles that are measured
_MEASURED = ("prediction", "crps", "quantiles", "interval")
_SLICES = 5
LEVEL = 0.95  # of the bootstrap
_BAR = 40  # characters of the longest bar
METRICS = {
    "rmse": ("RMSE", "lower"),
    "mae": ("MAE", "lower"),
    "r2": ("R2", "higher"),
    "crps": ("CRPS", "lower"),
    "pinball": ("pinball loss", "lower"),
    "coverage": ("coverage", "near the confidence"),
    "width": ("width", "lower"),
}


def in_rows(y: "np.ndarray", mixture: "Mixture", base: Any) -> dict[str, "np.ndarray"]:
    """Give what is measured of predicted distributions, and of a base's predictions, by row."""
    import numpy as np

    return {
        "prediction": mixture.mean(),
        "crps": mixture.crps(y),
        "quantiles": mixture.quantiles(np.array(_LEVELS)),
        "base": base,
        "below": mixture.cdf(np.nextafter(y, -np.inf)),
        "up_to": mixture.cdf(y),
    }


def measure(y: "np.ndarray", rows: dict[str, Any], at: Any = slice(None)) -> dict[str, float]:
    """Metrics of some rows; `rows` may have an "interval"."""
    from nearwise.metrics import evaluate_numbers

    some = {name: rows[name][at] for name in _MEASURED if name in rows}
    return evaluate_numbers(y[at], **some, levels=_LEVELS)


def left_out_scores(model: "AttnKNNRegressor") -> dict[str, float]:
    """Metrics of remembered rows, each predicted as if new; the interval is that of quantiles."""
    from nearwise.estimators.uncertainty.intervals import calibration_numbers

    known = calibration_numbers(model.fitted_.predictor)
    rows = in_rows(known.targets, known.mixture, None)
    return measure(known.targets, rows | {"interval": rows["quantiles"][:, [0, -1]]})


def by_slice(y: "np.ndarray", rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Metrics of up to five equal parts of the rows, by the size of the prediction."""
    import numpy as np

    size, n = rows["prediction"], max(1, min(_SLICES, len(y) // 10))
    return [
        {"from": size[at[0]], "to": size[at[-1]], "rows": len(at)} | measure(y, rows, at)
        for at in np.array_split(np.argsort(size, kind="stable"), n)
    ]


def bootstrapped(
    y: "np.ndarray", rows: dict[str, Any], level: float, resamples: int
) -> dict[str, list[float]]:
    """Intervals of all metrics, by resampled rows."""
    from nearwise.metrics.intervals import percentiles, resampled

    values = resampled(lambda at: [*measure(y, rows, at).values()], len(y), level, resamples, 0)
    return {n: [*percentiles(of, level)] for n, of in zip(measure(y, rows), values.T, strict=True)}


def number_tables(found: dict[str, Any], title: str) -> list[str | rich.table.Table]:
    """Lay out scores, scores by the size of the prediction, PIT counts, and trust in words."""
    scores, base, ends = found["metrics"], found["base_alone"], found["intervals"]
    rows = [
        [label, scores[n], " to ".join(map(shown_cell, ends.get(n, ()))), base.get(n), better]
        for n, (label, better) in METRICS.items()
        if n in scores
    ]
    names = [name for name in ("rmse", "coverage", "width") if name in scores]
    slices = [
        [f"{one['from']:.6g} to {one['to']:.6g}", one["rows"], *(one[n] for n in names)]
        for one in found["by_slice"]
    ]
    unit = _BAR / max(found["pit"])
    bars = [
        [f"{i / 10:g} to {(i + 1) / 10:g}", round(n), "\u2588" * round(n * unit)]
        for i, n in enumerate(found["pit"])
    ]
    heads = ["metric", "model", f"{LEVEL:.0%} interval", "base alone", "better"]
    sizes = ["prediction", "rows", *(METRICS[name][0] for name in names)]
    return [
        grid(f"{title}, in the unit of the target", heads, rows, left=["better"]),
        grid("By the size of the prediction", sizes, slices),
        grid("PIT: even if the distributions are right", ["part", "rows", ""], bars, left=[""]),
        trust_in_words(found),
    ]
