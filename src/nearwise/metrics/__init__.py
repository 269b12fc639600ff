"""Measures of predictions: scores, calibration, selective risk, sets, novelty, intervals.

Numpy in, floats out. `y` holds integer class positions; `proba` one row of probabilities for each
row of `y`, which sums to 1 within 1e-4; `sets` is True where a class is in the row's set. All are
checked, and an error says what to do.
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
from nearwise.metrics.detection import aupr, auroc, evaluate_detection, fpr_at_tpr
from nearwise.metrics.drift import drift_evidence
from nearwise.metrics.evaluate import evaluate_probabilities
from nearwise.metrics.intervals import Interval, bootstrap_interval
from nearwise.metrics.scores import accuracy, brier, confusion_matrix, macro_f1, nll
from nearwise.metrics.selective import (
    RiskCoverageCurve,
    augrc,
    aurc,
    risk_at_coverage,
    risk_coverage_curve,
)
from nearwise.metrics.sets import (
    class_coverage_gap,
    coverage_by_class,
    coverage_by_size,
    evaluate_sets,
    mean_set_size,
    set_coverage,
    size_stratified_coverage,
)
from nearwise.metrics.shots import shot_breakdown, shot_groups, uneven

__all__ = [
    "Interval",
    "ReliabilityBins",
    "RiskCoverageCurve",
    "accuracy",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "bootstrap_interval",
    "brier",
    "class_coverage_gap",
    "classwise_ece",
    "confusion_matrix",
    "coverage_by_class",
    "coverage_by_size",
    "drift_evidence",
    "ece",
    "equal_mass_ece",
    "evaluate_detection",
    "evaluate_probabilities",
    "evaluate_sets",
    "fpr_at_tpr",
    "macro_f1",
    "mean_set_size",
    "nll",
    "reliability_bins",
    "risk_at_coverage",
    "risk_coverage_curve",
    "set_coverage",
    "shot_breakdown",
    "shot_groups",
    "signed_gap",
    "size_stratified_coverage",
    "smooth_ece",
    "uneven",
]
