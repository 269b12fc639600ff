"""Scores of ``nearwise evaluate``, for classes and for numbers, and their tables."""

from typing import TYPE_CHECKING, Any

import rich.table

from nearwise.cli.answer_columns import TrustOptions, measure_trust, trust_in_words
from nearwise.cli.chance import LEVEL
from nearwise.cli.console import progress
from nearwise.cli.tables import grid, percent, shown_cell
from nearwise.cli.verdict import FEWEST

if TYPE_CHECKING:
    import numpy as np

    from nearwise.cli.rows.scored_rows import ScoredRows
    from nearwise.estimators.model.mixture import Mixture
    from nearwise.estimators.opening import Estimator

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # levels of the scored quantiles
_MEASURED = ("prediction", "crps", "quantiles", "interval")
_SLICES = 5
_BAR = 40  # characters of the longest bar
_FEW = 10  # most classes in the table with confusion counts
# metric -> display name, and better direction
METRICS = {
    "accuracy": ("accuracy", "higher"),
    "macro_f1": ("macro F1", "higher"),
    "nll": ("NLL (nats per row)", "lower"),
    "brier": ("Brier score", "lower"),
    "ece": ("ECE (15 bins)", "lower"),
    "equal_mass_ece": ("ECE (equal mass)", "lower"),
    "classwise_ece": ("ECE (classwise)", "lower"),
    "smooth_ece": ("ECE (smooth)", "lower"),
    "signed_gap": ("overconfidence", "near 0"),
    "aurc": ("AURC", "lower"),
    "augrc": ("AUGRC", "lower"),
    "rmse": ("RMSE", "lower"),
    "mae": ("MAE", "lower"),
    "r2": ("R2", "higher"),
    "crps": ("CRPS", "lower"),
    "pinball": ("pinball loss", "lower"),
    "coverage": ("coverage", "as asked"),
    "width": ("width", "lower"),
}
_WITH_INTERVAL = ("accuracy", "macro_f1", "nll", "brier", "ece", "aurc")


def judge(
    model: Any,
    features: Any,
    scored: "ScoredRows",
    options: TrustOptions,
    resamples: int,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Compute metrics, their intervals (unless rows are few), and trust, for classes or numbers."""
    from nearwise import metrics

    y, parts, enough = scored.y, scored.parts, len(scored.y) >= FEWEST
    trust, interval = measure_trust(model, features, scored, options)
    if isinstance(parts, dict):
        parts |= interval
        return {
            "metrics": measure(y, parts),
            "intervals": _bootstrapped(y, parts, resamples) if enough else {},
            "base_alone": metrics.evaluate_numbers(y, parts["base"]),
            **trust,
            "by_slice": _by_slice(y, parts),
            "pit": metrics.pit_counts(parts["below"], parts["up_to"]),
        }
    halves, intervals = scored.halves, {}
    scores = [metrics.evaluate_probabilities(y, proba) for proba in halves.values()]
    for name in progress(_WITH_INTERVAL if enough else (), "intervals", quiet=quiet):
        metric, proba = getattr(metrics, name), halves["model"]
        found = metrics.bootstrap_interval(metric, y, proba, level=LEVEL, n_resamples=resamples)
        intervals[name] = [found.low, found.high]
    return {
        "metrics": scores[0],
        "intervals": intervals,
        "base_alone": scores[1],
        "neighbors_alone": scores[2],
        "null_mass": float(parts.null_mass.mean()),
        **trust,
        "by_class": _by_class(model.classes_, y, halves["model"]),
        "shots": _shots_of(model, y, halves),
    }


def tables(found: dict[str, Any], title: str) -> list[str | rich.table.Table]:
    """Format the result of `judge`: scores first, trust in words last."""
    if "by_slice" in found:
        unit = ", in the unit of the target"
        return [_score_table(found, title + unit), *_number_tables(found), trust_in_words(found)]
    shown: list[str | rich.table.Table] = [_score_table(found, title)]
    if len(found["by_class"]) <= _FEW:
        shown.append(_class_table(found["by_class"]))
    elif found["shots"]:
        shown.append(_shot_table(found["shots"]))
    null_mass = f"Attention weight on no neighbor: {percent(found['null_mass'])}"
    return [*shown, null_mass, trust_in_words(found)]


def _score_table(found: dict[str, Any], title: str) -> rich.table.Table:
    def shown(value: Any) -> str:
        return f"{value:.4f}" if "by_class" in found else shown_cell(value)

    parts = [part for part in ("base_alone", "neighbors_alone") if part in found]
    rows = [
        [
            METRICS[name][0],
            shown(value),
            " to ".join(map(shown, found["intervals"].get(name, ()))),
            *(shown(found[part].get(name)) for part in parts),
            METRICS[name][1],
        ]
        for name, value in found["metrics"].items()
    ]
    names = [part.replace("_", "\n") for part in parts]  # two lines, as eighty characters are few
    heads = ["metric", "model", f"{percent(LEVEL, 0)} interval", *names, "better"]
    return grid(title, heads, rows, left=["better"])


# --- numbers ------------------------------------------------------------------------------------


def in_rows(y: "np.ndarray", mixture: "Mixture", base: Any) -> dict[str, "np.ndarray"]:
    """Return the scored quantities of predicted distributions and of the base, by row."""
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
    """Compute metrics of some rows; `rows` may have an "interval"."""
    from nearwise.metrics import evaluate_numbers

    some = {name: rows[name][at] for name in _MEASURED if name in rows}
    return evaluate_numbers(y[at], **some, levels=_LEVELS)


def left_out_scores(model: "Estimator") -> dict[str, float]:
    """Compute leave-one-out metrics of remembered rows; intervals are from quantiles."""
    from nearwise.estimators import AttnKNNClassifier
    from nearwise.estimators.uncertainty.intervals import calibration_numbers
    from nearwise.metrics import evaluate_probabilities

    if isinstance(model, AttnKNNClassifier):
        return evaluate_probabilities(model.fitted_.codes, model.predict_proba(None))
    known = calibration_numbers(model.fitted_.predictor)
    rows = in_rows(known.targets, known.mixture, None)
    return measure(known.targets, rows | {"interval": rows["quantiles"][:, [0, -1]]})


def _by_slice(y: "np.ndarray", rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Compute metrics of up to five equal parts of the rows, by the size of the prediction."""
    import numpy as np

    size, n = rows["prediction"], max(1, min(_SLICES, len(y) // 10))
    return [
        {"from": size[at[0]], "to": size[at[-1]], "rows": len(at)} | measure(y, rows, at)
        for at in np.array_split(np.argsort(size, kind="stable"), n)
    ]


def _bootstrapped(y: "np.ndarray", rows: dict[str, Any], resamples: int) -> dict[str, list[float]]:
    """Compute bootstrap intervals of all metrics."""
    from nearwise.metrics.intervals import percentiles, resampled

    values = resampled(lambda at: [*measure(y, rows, at).values()], len(y), LEVEL, resamples, 0)
    return {n: [*percentiles(of, LEVEL)] for n, of in zip(measure(y, rows), values.T, strict=True)}


def _number_tables(found: dict[str, Any]) -> list[rich.table.Table]:
    """Format scores by the size of the prediction, and PIT counts."""
    names = [name for name in ("rmse", "coverage", "width") if name in found["metrics"]]
    slices = [
        [f"{one['from']:.6g} to {one['to']:.6g}", one["rows"], *(one[n] for n in names)]
        for one in found["by_slice"]
    ]
    unit = _BAR / max(found["pit"])
    bars = [
        [f"{i / 10:g} to {(i + 1) / 10:g}", round(n), "\u2588" * round(n * unit)]
        for i, n in enumerate(found["pit"])
    ]
    sizes = ["prediction", "rows", *(METRICS[name][0] for name in names)]
    return [
        grid("By the size of the prediction", sizes, slices),
        grid("PIT: uniform if the distributions are right", ["part", "rows", ""], bars, left=[""]),
    ]


# --- classes ------------------------------------------------------------------------------------


def _by_class(classes: "np.ndarray", y: "np.ndarray", proba: "np.ndarray") -> list[dict[str, Any]]:
    """Count rows, recall and precision per class; for few classes, predicted classes too.

    A share without rows is None.
    """
    import numpy as np

    predicted, names = proba.argmax(axis=1), [str(label) for label in classes]
    of_class, taken_for, right = (
        np.bincount(some, minlength=len(names)).tolist()
        for some in (y, predicted, y[y == predicted])
    )
    found: list[dict[str, Any]] = [
        {
            "class": name,
            "rows": of_class[i],
            "recall": right[i] / of_class[i] if of_class[i] else None,
            "precision": right[i] / taken_for[i] if taken_for[i] else None,
        }
        for i, name in enumerate(names)
    ]
    if len(names) <= _FEW:
        for i, one in enumerate(found):
            counts = np.bincount(predicted[y == i], minlength=len(names)).tolist()
            one["predicted_as"] = dict(zip(names, counts, strict=True))
    return found


def _class_table(found: list[dict[str, Any]]) -> rich.table.Table:
    """Format the counts of `_by_class` for few classes."""
    title = "By class: recall, precision, and how many of its rows are predicted as each class"
    heads = ["class", "rows", "recall", "precision", *(f"as {one['class']}" for one in found)]
    rows = [
        [
            one["class"],
            one["rows"],
            *("-" if one[of] is None else f"{one[of]:.4f}" for of in ("recall", "precision")),
            *one["predicted_as"].values(),
        ]
        for one in found
    ]
    return grid(title, heads, rows)


def _shots_of(
    learned: Any, y: "np.ndarray", halves: "dict[str, np.ndarray]"
) -> dict[str, dict[str, Any]]:
    """Accuracy of each part by class size in the memory, if sizes differ."""
    from nearwise import metrics
    from nearwise.estimators import Settings
    from nearwise.estimators.model.memory_views import FINDABLE

    memory = learned.memory_
    labels, weight = memory.labels, None
    if Settings.of(learned.settings).max_per_class:
        # A searchable row has the weight of all rows that it represents.
        found = memory.columns.get(FINDABLE, slice(None))
        labels, weight = labels[found], memory.sample_weight[found]
    counts = labels.bincount(weight, minlength=len(learned.classes_)).round().long().numpy()
    if not metrics.uneven(counts):
        return {}
    return {name: metrics.shot_breakdown(y, proba, counts) for name, proba in halves.items()}


def _shot_table(shots: dict[str, dict[str, Any]]) -> rich.table.Table:
    """Format the result of `_shots_of`."""
    whole = shots["model"]
    rows = [
        [
            f"{name}-shot, {n_classes} classes",
            *("-" if part[name] is None else f"{part[name]:.4f}" for part in shots.values()),
        ]
        for name, n_classes in whole["classes"].items()
        if n_classes
    ]
    rows += [["mean over classes", *(f"{part['balanced']:.4f}" for part in shots.values())]]
    return grid(f"Accuracy by the size of the class ({whole['rule']})", ["classes", *shots], rows)
