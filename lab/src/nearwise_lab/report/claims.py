"""Claims: each a question, the comparison that answers it, its interval and its verdict."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.results.measures import Cell, Measure, Table, mean_with_interval

Verdict = Literal[
    "validated", "validated in part", "no difference", "inconclusive", "not validated",
    "not judged", "not measured",
]  # fmt: skip
# In the order in which they are counted, with their color.
MARKS: dict[Verdict, str] = {
    "validated": "better",
    "validated in part": "better",
    "no difference": "none",
    "inconclusive": "none",
    "not validated": "worse",
    "not judged": "none",
    "not measured": "none",
}
NO_INTERVAL = "one seed and no predictions kept, so there is no interval"
CAPTION = (
    "Computed from the records: the difference that decides, its 95 % interval over paired seeds "
    "(a single seed: over its test rows), and what else decided. That one is better than another "
    "is validated where the whole interval lies on the better side, not validated where it lies "
    "on the worse, no difference where it holds 0. That something costs at most a margin is "
    "validated where the interval lies within it; past it, inconclusive where it holds 0, else "
    "not validated. That a value lies in a range is validated where its whole interval does. "
    "Several comparisons that disagree validate in part. Not judged: measured without an "
    "interval. Not measured: the records hold nothing on it. Many claims are judged at once: one "
    "in twenty intervals misses by chance."
)


@dataclass(frozen=True)
class Evidence:
    """One comparison of the records that bears on a claim.

    `estimate` is a difference (with `zero`: 0 means that there is none) or a value, with the ends
    of its 95 % interval over `n` pairs, which are "seeds" or "test rows". `what` it is of, a `note`
    and how it is shown; what has a unit is no difference and has no sign. `sign` is -1 where a
    smaller value is better, and `cap` a verdict that other numbers force, whatever the interval.
    """

    estimate: float
    low: float | None = None
    high: float | None = None
    n: int = 0
    over: str = ""
    what: str = ""
    note: str = ""
    cap: Verdict | None = None
    sign: float = 1.0
    zero: bool = True
    digits: int = 4
    scale: float = 1.0
    unit: str = ""

    @property
    def above(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low is not None and self.low > 0

    @property
    def below(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high is not None and self.high < 0

    @property
    def amount(self) -> str:
        """Estimate with its interval, as text."""
        sign = "" if self.unit else "+"
        ends = [self.estimate, *(() if self.low is None else (self.low, self.high))]
        text, *interval = [f"{(e or 0.0) * self.scale:{sign}.{self.digits}f}" for e in ends]
        shown = f"[{', '.join(interval)}]" if interval else ""
        return " ".join(filter(None, [text, shown, self.unit]))


def compared(
    difference: PairedDifference | None, measure: Measure, what: str = "", note: str = "",
    cap: Verdict | None = None,
) -> list[Evidence]:  # fmt: skip
    """Convert a difference, first minus second, to evidence; none without a difference."""
    if difference is None:
        return []
    d, finite = difference, math.isfinite(difference.high - difference.low)
    return [
        Evidence(
            d.mean, d.low if finite else None, d.high if finite else None, d.n,
            "test rows" if d.method == "bootstrap" else "seeds", what,
            note if finite else joined(note, NO_INTERVAL), cap,
            1.0 if measure.higher_is_better else -1.0, digits=measure.digits, scale=measure.scale,
        )
    ]  # fmt: skip


def valued(
    values: Sequence[float], interval: tuple[float, float] | None = None,
    over: str = "test rows", **shown: Any,
) -> list[Evidence]:  # fmt: skip
    """Convert the mean of a value per seed to evidence; `interval` is for a single seed."""
    if not values:
        return []
    mean = mean_with_interval(values)
    ends = interval if mean.low is None else (mean.low, mean.high)
    if ends is None:
        note = joined(shown.pop("note", ""), "one seed gives no interval")
        return [Evidence(mean.mean, note=note, zero=False, **shown)]
    over = over if mean.low is None else "seeds"
    return [Evidence(mean.mean, *ends, len(values), over, zero=False, **shown)]


@dataclass(frozen=True)
class Claim:
    """A claim with its test: a short name for JSON and CSV, and the text.

    `evidence` goes from whatever `judge` is given to a list of Evidence, or to a note where nothing
    in the records concerns the claim. `low` and `high` are where the value must lie; of a
    difference, with the better side counted as positive.
    """

    key: str
    text: str
    evidence: Callable[..., list[Evidence] | str]
    low: float = 0.0
    high: float = math.inf


@dataclass(frozen=True)
class Finding:
    """Verdict of the records on one claim, with the evidence."""

    claim: Claim
    verdict: Verdict
    evidence: list[Evidence] = field(default_factory=list)
    note: str = ""

    @property
    def words(self) -> str:
        """Estimates and notes, in one line."""
        said = []
        for e in self.evidence:
            text = joined(e.amount, e.note)
            alone = len(self.evidence) == 1 and not e.what
            said.append(text if alone else f"{e.what}: {text}, {_one(self.claim, e)}")
        return joined(*said, self.note)

    def as_dict(self) -> dict[str, Any]:
        """Fields for JSON."""
        first = self.evidence[0] if len(self.evidence) == 1 else Evidence(math.nan)
        keys = ("estimate", "low", "high", "n", "over", "what", "note")
        return {
            "claim": self.claim.key, "text": self.claim.text, "verdict": self.verdict,
            "words": self.words,
            **{key: getattr(first, key) for key in keys[1:5]},
            "estimate": None if math.isnan(first.estimate) else first.estimate,
            "evidence": [{key: getattr(e, key) for key in keys} for e in self.evidence],
        }  # fmt: skip


def judge(claim: Claim, *where: Any) -> Finding:
    """Compute the verdict on a claim from its evidence in some records."""
    found = claim.evidence(*where)
    if isinstance(found, str) or not found:
        return Finding(claim, "not measured", note=found if isinstance(found, str) else "")
    verdicts = [_one(claim, e) for e in found]
    return Finding(claim, _pooled(verdicts), found)


def _one(claim: Claim, e: Evidence) -> Verdict:
    if e.cap is not None:
        return e.cap
    if e.low is None or e.high is None:
        return "not judged"
    if not e.zero:
        return "validated" if claim.low <= e.low and e.high <= claim.high else "not validated"
    if min(e.sign * e.low, e.sign * e.high) > claim.low:
        return "validated"
    if e.low <= 0 <= e.high:
        return "inconclusive" if claim.low else "no difference"
    return "not validated"


def _pooled(verdicts: Sequence[Verdict]) -> Verdict:
    if len(set(verdicts)) == 1:
        return verdicts[0]
    if "validated" in verdicts:
        return "validated in part"
    return next(v for v in ("not validated", "no difference", *MARKS) if v in verdicts)


def tally(verdicts: Iterable[str]) -> str:
    """Count the verdicts in words, without zeros: "11 validated, 10 no difference"."""
    found = Counter(verdicts)
    return ", ".join(f"{found[v]} {v}" for v in MARKS if found[v])


def joined(*notes: str) -> str:
    """Join notes to one line, empty ones left out."""
    return "; ".join(filter(None, notes))


def verdict_table(title: str, columns: Mapping[str, Sequence[Finding]]) -> Table:
    """Tabulate verdicts on the same claims, one column per data set, preset or context."""
    table = Table(title, CAPTION, ["claim", *columns], wrap=True)
    for found in zip(*columns.values(), strict=True):
        cells = [Cell(f.verdict, MARKS[f.verdict], f.words) for f in found]
        table.rows.append((found[0].claim.text, cells))
    return table
