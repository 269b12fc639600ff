"""Measures of predictions, their format, and rules for better and worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nearwise.metrics import aurc, ece
from nearwise_lab.comparisons import (
    PairedDifference,
    paired_bootstrap,
    paired_difference,
    with_components,
)


@dataclass(frozen=True)
class Predictions:
    """Probabilities (n_test, n_classes) of one method for the test part of one split.

    `y` has the positions of the true classes, `test_index` those of the rows in the data set,
    `classes` the names of the classes.
    """

    y: np.ndarray
    proba: np.ndarray
    test_index: np.ndarray
    classes: list[str]


LEVEL = 0.95


@dataclass(frozen=True)
class Measure:
    """Format of a column of the records.

    `key` is a field of `Record`, or a path into its details, such as "shots.many". Values are
    multiplied by `scale`; `interval` says whether half the interval stands beside the mean, and
    `higher_is_better` is None where neither end is good (costs are shown, not ranked).
    """

    key: str
    title: str
    digits: int
    higher_is_better: bool | None = False
    scale: float = 1.0
    interval: bool = True


MEASURES = (
    Measure("accuracy", "accuracy", 4, True),
    Measure("macro_f1", "macro F1", 4, True),
    Measure("nll", "NLL", 4),
    Measure("brier", "Brier", 4),
    Measure("ece", "ECE", 4),
    Measure("equal_mass_ece", "equal-mass ECE", 4),
    Measure("smooth_ece", "smooth ECE", 4),
    Measure("signed_gap", "signed gap", 4, None, interval=False),
    Measure("aurc", "AURC x1000", 1, False, 1000.0),
    Measure("augrc", "AUGRC x1000", 1, False, 1000.0),
    Measure("fit_seconds", "fit s", 1, None, interval=False),
    Measure("fit_cpu_seconds", "fit CPU s", 1, None, interval=False),
    Measure("predict_us_per_row", "predict µs/row", 0, None, interval=False),
    Measure("one_row_ms", "one row ms", 2, None, interval=False),
    Measure("model_mb", "MB", 2, None, interval=False),
    Measure("peak_memory_mib", "peak MiB", 0, None, interval=False),
)
_MORE_CALIBRATION = ("equal_mass_ece", "smooth_ece", "signed_gap", "augrc")
MAIN_MEASURES = tuple(m for m in MEASURES if m.key not in _MORE_CALIBRATION)
MORE_MEASURES = tuple(m for m in MEASURES if m.key in _MORE_CALIBRATION)
BARS = {  # drawn, each with its title
    "accuracy": "error (1 - accuracy)",
    "nll": "NLL",
    "ece": "ECE",
    "aurc": "AURC x1000",
}
_COSTS = ("fit_seconds", "fit_cpu_seconds", "predict_us_per_row", "one_row_ms", "model_mb")
COST_MEASURES = tuple(m for m in MEASURES if m.key in _COSTS)
NULL_MASS = Measure("null_mass", "null mass", 3, None)
SHOT_MEASURES = (
    Measure("shots.balanced", "balanced accuracy", 4, True),
    Measure("shots.many", "many-shot", 4, True),
    Measure("shots.medium", "medium-shot", 4, True),
    Measure("shots.few", "few-shot", 4, True),
)
COMPARED = tuple(m for m in MEASURES if m.key in ("accuracy", "nll", "brier", "ece", "aurc"))


@dataclass(frozen=True)
class Mean:
    """A mean over `n` seeds with half the width of its 95 % t-interval, None for one seed."""

    mean: float
    half: float | None
    n: int

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half is None else self.mean + self.half


def mean_with_interval(values: Sequence[float]) -> Mean:
    """Mean and half-width of Student's 95 % interval of one value per seed."""
    spread = paired_difference(values, np.zeros(len(values)), level=LEVEL)
    half = (spread.high - spread.low) / 2
    return Mean(spread.mean, float(half) if np.isfinite(half) else None, spread.n)


def better(difference: PairedDifference, measure: Measure) -> str:
    """Word for a difference: "better", "worse", or "none" inside its interval."""
    if difference.verdict == "none" or measure.higher_is_better is None:
        return "none"
    return "better" if (difference.verdict == "higher") == measure.higher_is_better else "worse"


FLOOR = 1e-7
N_RESAMPLES = 300

Rows = np.ndarray | slice
RowValues = Callable[[np.ndarray, np.ndarray], np.ndarray]


_MEANS: dict[str, RowValues] = {
    "accuracy": lambda y, proba: (proba.argmax(axis=1) == y).astype(np.float64),
    "nll": lambda y, proba: -np.log(np.maximum(proba[np.arange(len(y)), y], FLOOR)),
    "brier": lambda y, proba: ((proba - np.eye(proba.shape[1])[y]) ** 2).sum(axis=1),
}
_OTHERS: dict[str, Callable[..., float]] = {"ece": ece, "aurc": aurc}


def difference_over_rows(key: str, a: Predictions, b: Predictions) -> PairedDifference | None:
    """Metric (accuracy, nll, brier, ece or aurc) of `a` minus that of `b` on the same test rows.

    Percentile bootstrap over rows, `n` counts rows: what another test part of this size would show
    about these two fits. None for other metrics or other rows.
    """
    if not np.array_equal(a.test_index, b.test_index):
        return None
    if key in _MEANS:
        values = _MEANS[key]
        pairs = values(a.y, a.proba), values(b.y, b.proba)
        return paired_difference(*pairs, method="bootstrap", n_resamples=1000)
    if key in _OTHERS:
        return paired_bootstrap(_OTHERS[key], a.y, a.proba, b.proba, n_resamples=N_RESAMPLES)
    return None


def difference_over_seeds_and_rows(
    key: str, pairs: Sequence[tuple[Predictions, Predictions]]
) -> PairedDifference | None:
    """Metric of the first of each pair minus that of the second, averaged over the seeds.

    With a 95 % interval for new seeds and new rows: the variance between the seeds' differences,
    over their number, and where seeds share test rows that of drawing these; Student's quantile
    with Satterthwaite's degrees of freedom. A bootstrap over three or five seeds is too narrow. One
    seed leaves its own spread unknown: the interval is then over rows alone. `n` counts seeds.
    None for other metrics or without pairs.
    """
    if not pairs or not (key in _MEANS or key in _OTHERS):
        return None
    of_part: dict[bytes, list[tuple[Predictions, Predictions]]] = {}
    for a, b in pairs:
        if not np.array_equal(a.test_index, b.test_index):
            return None
        of_part.setdefault(a.test_index.tobytes(), []).append((a, b))
    whole = slice(None)
    values = [_difference_on(key, a, b)(whole) for a, b in pairs]
    parts: list[tuple[float, int]] = []
    if len(values) > 1:
        parts.append((float(np.var(values, ddof=1)) / len(values), len(values) - 1))
    for sharing in of_part.values():
        n_rows = len(sharing[0][0].y)
        if (len(sharing) > 1 or len(pairs) == 1) and n_rows > 1:
            share = len(sharing) / len(pairs)
            parts.append((share**2 * _variance_of_rows(key, sharing), n_rows - 1))
    return with_components(float(np.mean(values)), parts, len(values))


def _variance_of_rows(key: str, pairs: Sequence[tuple[Predictions, Predictions]]) -> float:
    """Variance of the mean difference of some seeds over drawings of their common test rows."""
    n_rows = len(pairs[0][0].y)
    if key in _MEANS:
        value = _MEANS[key]
        each = [value(a.y, a.proba) - value(b.y, b.proba) for a, b in pairs]
        return float(np.mean(each, axis=0).var(ddof=1)) / n_rows
    differences = [_difference_on(key, a, b) for a, b in pairs]
    rng = np.random.default_rng(0)
    draws = (rng.integers(0, n_rows, size=n_rows) for _ in range(N_RESAMPLES))
    return float(np.var([np.mean([d(rows) for d in differences]) for rows in draws], ddof=1))


def _difference_on(key: str, a: Predictions, b: Predictions) -> Callable[[Rows], float]:
    """Difference of a metric on some of the rows."""
    if key in _OTHERS:
        metric = _OTHERS[key]
        return lambda rows: metric(a.y[rows], a.proba[rows]) - metric(b.y[rows], b.proba[rows])
    each = _MEANS[key](a.y, a.proba) - _MEANS[key](b.y, b.proba)
    return lambda rows: float(each[rows].mean())


EMPTY = "-"


@dataclass(frozen=True)
class Cell:
    """Text of a cell, its mark ("best", "better", "worse", "none") and a smaller detail."""

    text: str
    mark: str = ""
    detail: str = ""

    @property
    def line(self) -> str:
        """Text and detail in one line."""
        return f"{self.text} {self.detail}".rstrip()


@dataclass(frozen=True)
class Table:
    """A titled table; the first column names the row, `wrap` lets sentences break over lines."""

    title: str
    caption: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]] = field(default_factory=list)
    wrap: bool = False


def show_mean(mean: Mean | None, measure: Measure) -> str:
    """Show a mean ± half-interval in the digits of its measure; one seed has no interval."""
    if mean is None:
        return EMPTY
    text = f"{mean.mean * measure.scale:.{measure.digits}f}"
    if mean.half is None or not measure.interval:
        return text
    return f"{text} ± {mean.half * measure.scale:.{measure.digits}f}"


def difference_cell(difference: PairedDifference | None, measure: Measure) -> Cell:
    """Show a difference with its interval and verdict."""
    if difference is None:
        return Cell(EMPTY)
    digits, scale = measure.digits, measure.scale
    interval = ""
    if np.isfinite(difference.high - difference.low):
        low, high = difference.low * scale, difference.high * scale
        interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    word = better(difference, measure)
    return Cell(f"{difference.mean * scale:+.{digits}f} {word}", word, interval)


def is_best(mean: Mean | None, others: Sequence[Mean | None], measure: Measure) -> bool:
    """Whether a mean equals the best of the others in the digits shown."""
    if mean is None or measure.higher_is_better is None:
        return False
    values = [o.mean for o in others if o is not None]
    best = max(values) if measure.higher_is_better else min(values)
    return round(mean.mean * measure.scale, measure.digits) == round(
        best * measure.scale, measure.digits
    )
