"""Verdicts: a claim, tested by a difference and its interval."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.results.measures import Measure, better, mean_with_interval

Verdict = Literal[
    "validated", "no difference", "inconclusive", "not validated", "not judged", "not measured"
]
# In the order in which they are counted.
MARKS: dict[Verdict, str] = {
    "validated": "better",
    "no difference": "none",
    "inconclusive": "none",
    "not validated": "worse",
    "not judged": "none",
    "not measured": "none",
}
NO_INTERVAL = "one seed and no predictions kept, so there is no interval"
ONE_SEED = "one seed gives no interval"


@dataclass(frozen=True)
class Finding:
    """Evidence of the records on one claim.

    Attributes
    ----------
    verdict : str
        One of `MARKS`. "validated" and "not validated": by the interval.
        "no difference": the interval of the difference holds 0. "inconclusive": it holds 0 and
        reaches past the bound of the claim. "not judged": measured, but without an interval, or
        beside what was not trained.
        "not measured": the records have nothing on the claim.
    estimate, low, high : float, optional
        The difference that decides and the ends of its 95 % interval, in the unit of the measure.
    n : int
        Pairs in the interval.
    over : str
        What the pairs are: "seeds" or "test rows".
    note : str
        What else decided, or why it was not judged or measured.
    digits : int
        Decimals shown.
    scale : float
        Factor applied before showing.
    unit : str
        Follows the amount of what is not a difference, such as a ratio, which has no sign.
    """

    verdict: Verdict
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    over: str = ""
    note: str = ""
    digits: int = 4
    scale: float = 1.0
    unit: str = ""

    @property
    def amount(self) -> str:
        """By how much, with the interval; empty where nothing was measured."""
        if self.estimate is None:
            return ""
        text = self._show(self.estimate)
        if self.low is not None and self.high is not None:
            text = f"{text} [{self._show(self.low)}, {self._show(self.high)}]"
        return f"{text} {self.unit}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON, without those that only concern how it is shown."""
        return {k: v for k, v in asdict(self).items() if k not in ("digits", "scale", "unit")}

    def _show(self, value: float) -> str:
        sign = "" if self.unit else "+"
        return f"{value * self.scale:{sign}.{self.digits}f}"


def not_measured(note: str = "") -> Finding:
    """Give the finding of a claim that nothing in the records concerns."""
    return Finding("not measured", note=note)


def tally(verdicts: Iterable[str]) -> str:
    """Count verdicts in words, those that occur: "11 validated, 10 no difference"."""
    found = Counter(verdicts)
    return ", ".join(f"{found[v]} {v}" for v in MARKS if found[v])


def joined(*notes: str) -> str:
    """Join notes to one line, empty ones left out."""
    return "; ".join(filter(None, notes))


def judge_improvement(difference: PairedDifference | None, measure: Measure) -> Finding:
    """Judge "the first is better than the second".

    Parameters
    ----------
    difference : PairedDifference or None
        First minus second.
    measure : Measure
        Gives which direction is better.

    Returns
    -------
    finding : Finding
        "validated" where the whole interval lies on the better side, "not validated" where it lies
        on the worse, "no difference" where it holds 0, "not judged" where it has no ends (a
        single seed), "not measured" without a difference.
    """
    if difference is None:
        return not_measured()
    if not math.isfinite(difference.high - difference.low):
        return Finding(
            "not judged", difference.mean, note=NO_INTERVAL,
            digits=measure.digits, scale=measure.scale,
        )  # fmt: skip
    words: dict[str, Verdict] = {
        "better": "validated",
        "worse": "not validated",
        "none": "no difference",
    }
    return _found(words[better(difference, measure)], difference, measure)


def judge_margin(
    difference: PairedDifference | None, measure: Measure, margin: float, note: str = ""
) -> Finding:
    """Judge "the first is not worse than the second by more than a margin".

    Parameters
    ----------
    difference : PairedDifference or None
        First minus second.
    measure : Measure
        Gives which direction is better.
    margin : float
        Positive, in the unit of the measure.
    note : str, optional
        Kept with the finding.

    Returns
    -------
    finding : Finding
        "validated" where the whole interval is within the margin; where it reaches past the
        margin, "inconclusive" if it holds 0 (too few rows or seeds), else "not validated".
        Without an interval as in `judge_improvement`.
    """
    found = judge_improvement(difference, measure)
    if difference is None or found.low is None:
        return replace(found, note=joined(note, found.note))
    sign = 1.0 if measure.higher_is_better else -1.0
    worst = min(sign * difference.low, sign * difference.high)
    verdict: Verdict = "not validated"
    if worst > -margin:
        verdict = "validated"
    elif difference.verdict == "none":
        verdict = "inconclusive"
        note = joined(note, f"the interval reaches past {margin:g}")
    return _found(verdict, difference, measure, note)


def judge_range(
    values: Sequence[float], low: float, high: float, *, note: str = "", digits: int = 4,
    interval: tuple[float, float] | None = None, unit: str = "",
) -> Finding:  # fmt: skip
    """Judge "the mean lies between `low` and `high`", the interval included.

    Parameters
    ----------
    values : sequence of float
        One a seed; none gives "not measured".
    low, high : float
        Where it should lie.
    note, digits, unit
        Kept with the finding.
    interval : (float, float), optional
        Interval over test rows, for a single seed; without it one seed is "not judged".

    Returns
    -------
    finding : Finding
        "validated" where the whole interval lies in the range, else "not validated".
    """
    if not len(values):
        return not_measured(note)
    mean = mean_with_interval(values)
    ends, over = (mean.low, mean.high), "seeds"
    if mean.low is None:
        if interval is None:
            note = joined(note, ONE_SEED)
            return Finding("not judged", mean.mean, note=note, digits=digits, unit=unit)
        ends, over = interval, "test rows"
    assert ends[0] is not None and ends[1] is not None  # set above
    inside = low <= ends[0] and ends[1] <= high
    verdict: Verdict = "validated" if inside else "not validated"
    return Finding(verdict, mean.mean, *ends, len(values), over, note, digits, unit=unit)


def _found(
    verdict: Verdict, difference: PairedDifference, measure: Measure, note: str = ""
) -> Finding:
    over = "test rows" if difference.method == "bootstrap" else "seeds"
    return Finding(
        verdict, difference.mean, difference.low, difference.high, difference.n, over, note,
        measure.digits, measure.scale,
    )  # fmt: skip
