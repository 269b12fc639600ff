"""Tables: cells that say what their numbers mean."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nearwise.metrics import PairedDifference
from nearwise.report.measures import Mean, Measure, better

EMPTY = "-"


@dataclass(frozen=True)
class Cell:
    """Text of a cell and what it means.

    Attributes
    ----------
    text : str
        The number.
    mark : str
        "best", "better", "worse", "none" or nothing.
    detail : str
        What may stand smaller below or after the number, such as an interval.
    """

    text: str
    mark: str = ""
    detail: str = ""

    @property
    def line(self) -> str:
        """Everything in one line."""
        return f"{self.text} {self.detail}".rstrip()


@dataclass(frozen=True)
class Table:
    """A titled table; the first column names the row.

    Attributes
    ----------
    title, caption : str
        What it shows, and how to read it.
    columns : list of str
        Headings, the first for the row names.
    rows : list of (name, cells)
        Cells in the order of the columns after the first.
    wrap : bool
        Whether names and details are sentences, which may be broken over lines.
    """

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
    """Show a difference with its interval and the word for it."""
    if difference is None:
        return Cell(EMPTY)
    digits, scale = measure.digits, measure.scale
    interval = ""
    if difference.n > 1:
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
