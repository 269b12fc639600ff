"""ColumnReport: what a column of a table is, how it is used, and why."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from nearwise.classifier.inputs.dates import DateColumn

Use = Literal["number", "category", "date", "left out"]
Wish = Literal["keep", "number", "category", "date", "left out"]
WISHES: tuple[Wish, ...] = get_args(Wish)


class ColumnWarning(UserWarning):
    """A column is not used as it stands: left out, read with gaps, or hard to understand."""


@dataclass(frozen=True)
class ColumnReport:
    """What a column of the training table is and how it is used.

    Attributes
    ----------
    name : str
    type : str
        Of the values, as pandas names it.
    missing : int
        Rows without a value; cells in `gap_words` count.
    distinct : int or None
        Different values; None where they cannot be compared.
    use : {"number", "category", "date", "left out"}
    parts : tuple of str
        Numbers that a date becomes.
    gap_words : tuple of str
        Texts in a column of numbers that count as missing.
    reason : str
        Why, where the type alone does not say it.
    change : {"", "keep", "number", "category"}
        What to give for this column in `columns`, or as a flag of 'nearwise fit', to have it used
        in the other way.
    """

    name: str
    type: str
    missing: int
    distinct: int | None
    use: Use
    parts: tuple[str, ...] = ()
    gap_words: tuple[str, ...] = ()
    reason: str = ""
    change: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        plain = asdict(self)
        return plain | {"parts": list(self.parts), "gap_words": list(self.gap_words)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "ColumnReport":
        """Rebuild a report from what `to_json` returned."""
        tuples = {"parts": tuple(state["parts"]), "gap_words": tuple(state["gap_words"])}
        return cls(**(state | tuples))


@dataclass(frozen=True)
class ColumnPlan:
    """A report beside what reading the column needs; `warn`: the user should hear of it unasked."""

    report: ColumnReport
    date: DateColumn | None = None
    warn: bool = False
