"""Measures of predictions: scores, calibration, selective risk, sets, intervals, numbers.

Input are numpy arrays, results are floats. For classes, `y` holds integer positions; `proba` has
one row of probabilities per row of `y`, with a sum of 1 within 1e-4; `sets` is True where a class
is in the row's set. All are checked, and errors include a remedy.
"""

from nearwise.metrics.calibration import (
    ReliabilityBins,
    classwise_ece,
    ece,
    equal_mass_ece,
    reliability_bins,
    signed_gap,
    smooth_ece,
)
from nearwise.metrics.drift import drift_evidence
from nearwise.metrics.evaluate import evaluate_probabilities
from nearwise.metrics.intervals import Interval, bootstrap_interval
from nearwise.metrics.labels import evaluate_labels
from nearwise.metrics.numbers import (
    evaluate_numbers,
    interval_coverage,
    pinball_loss,
    pit_counts,
)
from nearwise.metrics.scores import accuracy, brier, macro_f1, nll
from nearwise.metrics.selective import (
    RiskCoverageCurve,
    augrc,
    aurc,
    risk_coverage_curve,
)
from nearwise.metrics.sets import (
    evaluate_sets,
)
from nearwise.metrics.shots import shot_breakdown, uneven

__all__ = [
    "Interval",
    "ReliabilityBins",
    "RiskCoverageCurve",
    "accuracy",
    "augrc",
    "aurc",
    "bootstrap_interval",
    "brier",
    "classwise_ece",
    "drift_evidence",
    "ece",
    "equal_mass_ece",
    "evaluate_labels",
    "evaluate_numbers",
    "evaluate_probabilities",
    "evaluate_sets",
    "interval_coverage",
    "macro_f1",
    "nll",
    "pinball_loss",
    "pit_counts",
    "reliability_bins",
    "risk_coverage_curve",
    "shot_breakdown",
    "signed_gap",
    "smooth_ece",
    "uneven",
]
