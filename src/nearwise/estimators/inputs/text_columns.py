"""Detection of numbers, dates and gaps among the texts of a column."""

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
_WORDS = 0.1  # largest share of cells with gap words that may count as missing
_SLIPS = 0.005  # ... and with any other text
_EVIDENCE = 200  # cells per column in the search for the decimal mark of a table


class Numbers(NamedTuple):
    """Numbers among the values of a column: their common format, and all other texts.

    `common` is None without numbers, or if their formats contradict each other.
    """

    common: Common | None
    others: list[str]
    tokens: dict[str, Token]


def numbers_among(values: Iterable[Any], *, majority: bool = False) -> Numbers:
    """Find the numbers among distinct values of a column; values other than text are numbers.

    With `majority`, numbers with the rarer decimal mark count as other texts.
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
    """Possible layouts of the dates among distinct texts, and all other texts."""
    if not all(isinstance(value, str) for value in values):
        return [], []
    words = [text for text in values if _is_gap(text) or text.strip() in ZERO_DATES]
    gaps = set(words)
    texts = [text for text in values if text not in gaps] if words else values
    layouts, odd = text_layouts(texts) if texts else ([], [])
    return layouts, words + odd


def dates_unlike(values: list[Any], layout: str) -> list[str]:
    """Distinct values of a column that are not dates of a layout."""
    read = read_texts(pd.Series(values, dtype=object), layout)
    return [value for value, date in zip(values, read, strict=True) if date is pd.NaT]


def may_be_gaps(texts: list[str], counts: pd.Series) -> bool:
    """Whether texts among numbers or dates may count as missing; `counts` are cells per text.

    Gap words may fill up to one cell in ten, other texts (typing errors) up to one in 200.
    """
    slips = [text for text in texts if not _is_gap(text) and text.strip() not in ZERO_DATES]
    n = counts.sum()
    return bool(counts[texts].sum() <= _WORDS * n and counts[slips].sum() <= _SLIPS * n)


def _is_gap(text: str) -> bool:
    return text.strip().casefold() in _GAP_WORDS


def decimal_of(frame: pd.DataFrame) -> Decimal:
    """Decimal mark in the text of a table; "" if there is none, or both."""
    found: set[Decimal] = set()
    for _, column in frame.items():
        if pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column):
            values = {v for v in column.dropna().iloc[:_EVIDENCE] if isinstance(v, str)}
            common, others, _ = numbers_among(values)
            if common is not None and 10 * len(others) <= len(values):
                found |= {mark for mark in DECIMALS if mark == common.decimal}
    return found.pop() if len(found) == 1 else ""
