"""What the texts of a column stand for: numbers, dates, or gaps among them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pandas as pd

from nearwise.data.tables.numeric_columns import GAP_MARKS
from nearwise.data.tables.spellings import (
    DECIMALS,
    Common,
    Decimal,
    Token,
    in_common,
    tokenized,
)
from nearwise.estimators.inputs.dates import ZERO_DATES, read_texts, text_layouts

_GAP_WORDS = frozenset(
    ("", "-", "--", "---", "\u2013", "\u2014", ".", "..", "*", "na", "n/a", "n.a.", "#n/a", "nan",
     "null", "nil", "none", "missing", "unknown", "not available", "not applicable")
) | {mark.casefold() for mark in GAP_MARKS}  # fmt: skip
_WORDS = 0.1  # share of cells up to which words for a gap count as missing among others
_SLIPS = 0.005  # ... and any other text
_EVIDENCE = 200  # cells of a column that the decimal mark of a table is looked for in


class Numbers(NamedTuple):
    """The numbers among the values of a column: what they have in common, and all other texts.

    `common` is None where there are none, or they contradict each other.
    """

    common: Common | None
    others: list[str]
    tokens: dict[str, Token]


def numbers_among(values: Iterable[Any], *, majority: bool = False) -> Numbers:
    """Find the numbers among different values of a column; what is not text is a number.

    With `majority` those of the rarer decimal mark count as other texts.
    """
    held = list(values)
    texts = [value for value in held if isinstance(value, str)]
    tokens = tokenized(texts, sampled=not majority)
    if majority and in_common(tokens.values()) is None:
        fits: list[dict[str, Token]] = [
            {text: token for text, token in tokens.items() if token.fits(mark)} for mark in DECIMALS
        ]
        tokens = max(fits, key=len)
    others = [text for text in texts if text not in tokens]
    numbers = [Token("", "0", plain=True)] if len(texts) < len(held) else []
    return Numbers(in_common([*tokens.values(), *numbers]), others, tokens)


def dates_among(values: list[Any]) -> tuple[list[str], list[str]]:
    """Return the layouts that the dates among different texts may have, and all other texts."""
    if not all(isinstance(value, str) for value in values):
        return [], []
    words = [text for text in values if _is_gap(text) or text.strip() in ZERO_DATES]
    gaps = set(words)
    texts = [text for text in values if text not in gaps] if words else values
    layouts, odd = text_layouts(texts) if texts else ([], [])
    return layouts, words + odd


def dates_unlike(values: list[Any], layout: str) -> list[str]:
    """Return those of the different values of a column that are no dates of a layout."""
    read = read_texts(pd.Series(values, dtype=object), layout)
    return [value for value, date in zip(values, read, strict=True) if date is pd.NaT]


def may_be_gaps(texts: list[str], counts: pd.Series) -> bool:
    """Whether texts among numbers or dates, of which there are `counts`, may count as missing.

    Words for a gap up to one cell in ten, other texts, which are slips, up to one in 200.
    """
    slips = [text for text in texts if not _is_gap(text) and text.strip() not in ZERO_DATES]
    n = counts.sum()
    return bool(counts[texts].sum() <= _WORDS * n and counts[slips].sum() <= _SLIPS * n)


def _is_gap(text: str) -> bool:
    return text.strip().casefold() in _GAP_WORDS


def decimal_of(frame: pd.DataFrame) -> Decimal:
    """Return the decimal mark that the text of a table shows; "" where it shows none, or both."""
    found: set[Decimal] = set()
    for _, column in frame.items():
        if pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column):
            values = {v for v in column.dropna().iloc[:_EVIDENCE] if isinstance(v, str)}
            common, others, _ = numbers_among(values)
            if common is not None and 10 * len(others) <= len(values):
                found |= {mark for mark in DECIMALS if mark == common.decimal}
    return found.pop() if len(found) == 1 else ""
