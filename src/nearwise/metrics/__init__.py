"""Measures of predicted probabilities: scores, calibration, selective risk, intervals.

Numpy in, floats out. `y` holds integer class positions, `proba` one row of probabilities
for each row of `y`; both are checked, and an error says what to do.
"""

from nearwise.metrics.calibration import classwise_ece, ece, equal_mass_ece, signed_gap
from nearwise.metrics.evaluate import evaluate_probabilities
from nearwise.metrics.intervals import (
    Interval,
    PairedDifference,
    bootstrap_interval,
    paired_bootstrap,
    paired_difference,
    rank_methods,
)
from nearwise.metrics.reliability import ReliabilityBins, reliability_bins
from nearwise.metrics.scores import accuracy, brier, confusion_matrix, macro_f1, nll
from nearwise.metrics.selective import (
    RiskCoverageCurve,
    augrc,
    aurc,
    risk_at_coverage,
    risk_coverage_curve,
)
from nearwise.metrics.shots import shot_breakdown, shot_groups, uneven
from nearwise.metrics.smooth import smooth_ece

__all__ = [
    "Interval",
    "PairedDifference",
    "ReliabilityBins",
    "RiskCoverageCurve",
    "accuracy",
    "augrc",
    "aurc",
    "bootstrap_interval",
    "brier",
    "classwise_ece",
    "confusion_matrix",
    "ece",
    "equal_mass_ece",
    "evaluate_probabilities",
    "macro_f1",
    "nll",
    "paired_bootstrap",
    "paired_difference",
    "rank_methods",
    "reliability_bins",
    "risk_at_coverage",
    "risk_coverage_curve",
    "shot_breakdown",
    "shot_groups",
    "signed_gap",
    "smooth_ece",
    "uneven",
]
