"""What is measured, how it is shown, and which difference counts as better."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nearwise.metrics import PairedDifference, paired_difference

LEVEL = 0.95


@dataclass(frozen=True)
class Measure:
    """How a column of the records is shown.

    Attributes
    ----------
    key : str
        Field of `Record`, or a path into its details, such as "shots.many".
    title : str
        Column heading.
    digits : int
        Decimals shown.
    higher_is_better : bool or None
        None for columns where neither end is good (costs are shown, not ranked).
    scale : float
        Factor applied before showing.
    interval : bool
        Whether the half-interval is shown beside the mean.
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
    Measure("predict_us_per_row", "predict µs/row", 0, None, interval=False),
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
COMPARED = tuple(m for m in MEASURES if m.key in ("accuracy", "nll", "brier", "ece", "aurc"))


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95 % t-interval.

    Attributes
    ----------
    mean : float
        In the unit of the values.
    half : float or None
        Half the width of the interval; None for one seed.
    n : int
        Number of seeds.
    """

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
    """Mean and half-width of the 95 % t-interval.

    Parameters
    ----------
    values : sequence of float
        One a seed, at least one.

    Returns
    -------
    Mean
        Student's interval with n - 1 degrees of freedom.
    """
    spread = paired_difference(values, np.zeros(len(values)), level=LEVEL)
    half = (spread.high - spread.low) / 2
    return Mean(spread.mean, float(half) if np.isfinite(half) else None, spread.n)


def better(difference: PairedDifference, measure: Measure) -> str:
    """Word for a difference: "better", "worse", or "none" inside its interval."""
    if difference.verdict == "none" or measure.higher_is_better is None:
        return "none"
    return "better" if (difference.verdict == "higher") == measure.higher_is_better else "worse"
