"""Durations in text."""

import re

import pandas as pd

from nearwise.data.tables.numeric_columns import text_columns
from nearwise.data.tables.unpack import Note
from nearwise.names import listed

_DURATION = re.compile(
    r"\s*(-?\d+ days?,? (?:\d?\d:[0-5]\d:[0-5]\d)|\d{1,4}:[0-5]\d:[0-5]\d)(?:\.\d{1,9})?\s*",
    re.ASCII,
)
_BEYOND_A_DAY = re.compile(r"\s*(?:-?\d+ day|2[4-9]:|[3-9]\d:|\d{3,}:)", re.ASCII)


def with_durations(table: pd.DataFrame, where: str, note: Note) -> None:
    """Convert text columns in which every value is a duration to timedelta64, in place.

    They are written as 30:15:00 or "1 days 06:15:00". Columns without a duration of a day or more
    stay text: they may be times of day.
    """
    held = table.set_axis(range(table.shape[1]), axis=1)
    found = {table.columns[at]: column for at, column in text_columns(held).items()}
    found = {name: column for name, column in found.items() if _are_durations(column.dropna())}
    for name, column in found.items():
        table[name] = pd.to_timedelta(column.str.replace(",", ""))
    if found:
        note(f"{where}: read as durations: {listed(list(found))}.")


def _are_durations(values: pd.Series) -> bool:
    texts = values.iloc[:1].tolist()
    if not texts or not isinstance(texts[0], str) or not _DURATION.fullmatch(texts[0]):
        return False
    texts = values.unique().tolist()
    return all(isinstance(text, str) and _DURATION.fullmatch(text) for text in texts) and any(
        map(_BEYOND_A_DAY.match, texts)
    )
