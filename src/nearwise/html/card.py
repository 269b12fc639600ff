"""Card of an answer: verdict, row and neighbors, for page, notebook, terminal and report."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Literal, NamedTuple

from nearwise.cached import cached_property
from nearwise.data.tables.words import marked_words
from nearwise.html.neighbors import NeighborTable, neighbor_table
from nearwise.html.numbers import cell, decimals, number, percent, rounded_percent
from nearwise.names import listed

Meaning = Literal["good", "fair", "poor", "plain"]
# Lowest probability for each word, and the meaning of the word.
SURENESS: tuple[tuple[float, str, Meaning], ...] = (
    (0.95, "very sure", "good"),
    (0.85, "sure", "good"),
    (0.7, "fairly sure", "fair"),
    (0.5, "unsure", "poor"),
    (0.0, "very unsure", "poor"),
)
UNUSUAL, VERY_UNUSUAL = 0.05, 0.01  # largest out-of-distribution p-values
_MOST_DIFFERENCES = 3  # columns of a neighbor
_MOST_WORDS = 5  # that two texts share
_MOST_IN_SET = 4  # classes in the words of a prediction set


class Chip(NamedTuple):
    """A short statement about an answer; `about` says what it rests on."""

    text: str
    meaning: Meaning
    about: str


@dataclass(frozen=True)
class Face:
    """What a person sees of a row: pixels (height, width, channels), and a text, link or file."""

    pixels: Any = None
    show: str = ""

    @cached_property
    def picture(self) -> Any:
        """The pixels, or those of the local image file to show; None without any."""
        from nearwise.data.images.pictures import read_picture  # predictions need no decoder

        return read_picture(self.show) if self.pixels is None else self.pixels


def face_of(row: Any) -> Face:
    """Face of a remembered row, or of a neighbor."""
    return Face(pixels_of(row.row), row.show or "")


def pixels_of(row: Mapping[str, Any] | None) -> Any:
    """Pixels of an image, by its row; None for a table, whatever its columns are called."""
    found = None if row is None else row.get("image")
    return found if getattr(found, "ndim", 0) else None


@dataclass(frozen=True)
class CardNeighbor:
    """A neighbor on a card.

    Attributes
    ----------
    id : int or None
    label : str
        Label or target as given.
    weight : float
        Share of the attention, in [0, 1].
    bar : float
        Weight as a share of the largest weight, in [0, 1].
    agrees : bool
        Whether the label is the answer, or the target lies in its interval.
    distance : float
    face : Face
    differs : list of (column, value of the neighbor, value of the row)
        At most three columns, the most telling first; none for an embedding.
    without : str
        The answer without this neighbor, if known.
    flips : bool
        Whether that is another class.
    """

    id: int | None
    label: str
    weight: float
    bar: float
    agrees: bool
    distance: float
    face: Face
    differs: list[tuple[str, str, str]]
    without: str = ""
    flips: bool = False

    @property
    def difference(self) -> str:
        """The differing columns in words."""
        return ", ".join(starmap(_in_words, self.differs))


@dataclass(frozen=True)
class Card:
    """Content of a card.

    Attributes
    ----------
    target : str
        Name of the target; "" if unknown.
    answer : str
    chips : list of Chip
        How sure, the prediction set or interval, and whether the row is unusual.
    query : Face
    neighbors : list of CardNeighbor
        Largest weight first.
    null_mass, others : float
        Shares of the attention on no neighbor, and on neighbors that are not shown.
    """

    target: str
    answer: str
    chips: list[Chip]
    query: Face
    neighbors: list[CardNeighbor]
    null_mass: float
    others: float

    @property
    def claim(self) -> str:
        """The answer with the name of its target."""
        return f"{self.target} = {self.answer}" if self.target else self.answer

    @property
    def headline(self) -> str:
        """The claim and its chips in one line."""
        return " · ".join([self.claim, *(chip.text for chip in self.chips)])

    @property
    def attention(self) -> str:
        """A sentence that says where the attention went."""
        if not self.neighbors:
            return "No neighbor was used."
        n, held = len(self.neighbors), percent(sum(one.weight for one in self.neighbors))
        shown = "This neighbor has" if n == 1 else f"These {n} neighbors have"
        rest = f"no neighbor {percent(self.null_mass)}"
        if self.others > 0.0005:
            rest = f"others {percent(self.others)}, {rest}"
        return f"{shown} {held} of the attention, {rest}."

    @property
    def text(self) -> str:
        """The card as plain text, a line per neighbor."""
        heads = ("row", "label", "weight", "without it", "differs in")
        lines = [heads] + [
            (str(one.id), one.label, percent(one.weight), one.without, one.difference)
            for one in self.neighbors
        ]
        widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
        aligned = [
            "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([self.headline, *aligned, self.attention])


def make_card(
    explanation: Any,
    table: NeighborTable | None = None,
    *,
    novelty_p: float | None = None,
) -> Card:
    """Make the card of an explanation.

    Parameters
    ----------
    explanation : Explanation or NumberExplanation
    table : NeighborTable, optional
        The same neighbors column by column; by default made from the explanation.
    novelty_p : float, optional
        Out-of-distribution p-value, if the explanation has none.
    """
    e, pixels = explanation, pixels_of(explanation.row)
    of_numbers = hasattr(e, "interval")
    if table is None and pixels is None:
        table = neighbor_table(e, e.row)
    held = [one.weight for one in e.neighbors]
    shown = [
        _neighbor(
            e,
            one,
            one.weight / (max(held) or 1.0),
            of_numbers,
            _differences(table, at),
            face_of(one),
        )
        for at, one in enumerate(e.neighbors)
    ]
    p = novelty_p if novelty_p is not None else getattr(e, "novelty_p_value", None)
    return Card(
        e.target,
        number(e.prediction, decimals(e)) if of_numbers else str(e.label),
        (_number_chips(e) if of_numbers else _class_chips(e)) + novelty_chips(p),
        Face(pixels),
        shown,
        e.null_mass,
        max(0.0, 1.0 - e.null_mass - sum(held)),
    )


def _neighbor(
    e: Any,
    one: Any,
    bar: float,
    of_numbers: bool,
    differs: list[tuple[str, str, str]],
    face: Face,
) -> CardNeighbor:
    if of_numbers:
        label, agrees = number(one.target), e.interval[0] <= one.target <= e.interval[1]
        without, flips = number(one.prediction_without, decimals(e)), False
    else:
        label, agrees = str(one.label), bool(one.label == e.label)
        now, best = int(e.proba.argmax()), int(one.proba_without.argmax())
        flips = best != now
        without = percent(one.proba_without[best])
        if flips:
            without = f"{e.classes[best]} ({without})"
    return CardNeighbor(
        one.id, label, one.weight, bar, agrees, one.distance, face, differs, without, flips
    )


def _in_words(name: str, theirs: str, own: str) -> str:
    """Put a differing column in words: both values, or the words that two texts share."""
    pieces = marked_words(theirs, own)
    if not pieces:
        return f"{name} {theirs} (here {own})"
    shared = list(dict.fromkeys(piece.casefold() for piece, is_shared in pieces if is_shared))
    return f"{name} shares {listed(shared, n=_MOST_WORDS)}" if shared else f"{name} shares no word"


def _differences(table: NeighborTable | None, at: int) -> list[tuple[str, str, str]]:
    """Columns in which a neighbor differs from the row, the most telling first."""
    if table is None or table.query is None:
        return []
    return [
        (table.columns[column], cell(table.cells[at][column][0]), cell(table.query[column]))
        for column in table.telling[at][:_MOST_DIFFERENCES]
    ]


def sureness(p: float) -> tuple[str, Meaning]:
    """Words for a probability, and their meaning."""
    words, meaning = next((text, sense) for least, text, sense in SURENESS if p >= least)
    return f"{words} ({rounded_percent(p)})", meaning


def _class_chips(e: Any) -> list[Chip]:
    """How sure a class is, and its prediction set."""
    p = float(e.proba.max())
    chips = [Chip(*sureness(p), "Calibrated probability of the predicted class.")]
    found = e.prediction_set
    if found is None:
        return chips
    names = [str(one) for one in found]
    if len(names) > _MOST_IN_SET:
        names = [*names[: _MOST_IN_SET - 1], f"and {len(names) - _MOST_IN_SET + 1} more"]
    about = "Prediction set: in 9 of 10 rows it holds the true class."
    text = f"set {{{', '.join(names)}}}" if names else "empty set"
    if not names:
        about += " No class reaches its threshold here."
    return [*chips, Chip(text, "plain" if len(found) == 1 else "fair", about)]


def _number_chips(e: Any) -> list[Chip]:
    """Interval of a predicted number."""
    low, high = (number(end, decimals(e)) for end in e.interval)
    share = rounded_percent(e.confidence)
    about = f"Interval that holds the target in {share} of the rows."
    return [Chip(f"{low} to {high} ({share})", "plain", about)]


def novelty_chips(p: float | None) -> list[Chip]:
    """Warn of a row that is far from the known rows."""
    if p is None or not p <= UNUSUAL:  # also NaN
        return []
    words: tuple[str, Meaning] = ("unusual row", "fair")
    if p <= VERY_UNUSUAL:
        words = ("very unusual row", "poor")
    about = f"Only {percent(p)} of known rows are at least as far from their neighbors."
    return [Chip(*words, about)]
