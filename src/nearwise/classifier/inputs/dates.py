"""Columns of dates: recognized in text, read, and turned into numbers."""

import datetime
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

ISO = "ISO8601"
_MOVING = ("now", "today")  # pandas would take them for dates, another one whenever it reads them
_ISO_LIKE = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?\s?(Z|[+-]\d{2}:?\d{2})?)?"
)
_DAYS = ("%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y",
         "%d %B %Y", "%B %d, %Y")  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S")
_LAYOUTS = tuple(day + time for day in _DAYS for time in _TIMES)
_SWAPPED = {"%d/%m/%Y" + time: "%m/%d/%Y" + time for time in _TIMES}
_MAYBE = re.compile(r"(?=.*\d)[\w ,.:+/-]{8,40}")  # what could be a date, before it is parsed
_PLAUSIBLE = (1677, 2262)  # years that text other than ISO may name; codes look like others
_FEW = 20  # values that a layout is tried on before all


@dataclass(frozen=True)
class DateColumn:
    """How a column of dates becomes numbers; plain data that JSON can hold.

    `layout` is "ISO8601", or codes of strftime, or "" where the column holds dates; `zone` the time
    zone that moments are brought to, or ""; `origin` the first day of the training table, from
    which days count; `parts` those that vary in training, and days.
    """

    layout: str
    zone: str
    origin: str
    parts: list[str]

    def numbers(self, column: pd.Series, name: str) -> np.ndarray:
        """Return the parts of every date, float64 (n, n_parts), NaN where missing.

        ValueError, with row and value, if a cell is not a date, or has a time zone where those of
        training had none (and the reverse).
        """
        if column.isna().all():
            return np.full((len(column), len(self.parts)), np.nan)
        moments = _moments(column, self.layout, name)
        zone = _zone(moments)
        if bool(zone) != bool(self.zone):
            then, now = ("a", "none") if self.zone else ("no", f"one ({zone})")
            raise ValueError(
                f"The dates of column {name!r} had {then} time zone in training and have {now} "
                "now. Give dates like those of training (pandas: dt.tz_localize, dt.tz_convert)."
            )
        return _parts(_local(moments, self.zone), self.parts, self.origin)


def holds_dates(column: pd.Series) -> bool:
    """Whether a column's values are dates or moments, not text that looks like them."""
    dtype = column.dtype
    if pd.api.types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return True
    if isinstance(dtype, pd.ArrowDtype):
        return dtype.type is datetime.date
    values = column.dropna() if pd.api.types.is_object_dtype(dtype) else ()
    return len(values) > 0 and all(isinstance(v, datetime.date | np.datetime64) for v in values)


def text_layout(values: list[str], name: str, *, required: bool = False) -> str | None:
    """Return how all texts of a column write a date; None where they are not dates.

    Texts are different ones. ValueError only where the user declared these as dates (`required`):
    if day and month cannot be told apart.
    """
    if not all(_MAYBE.fullmatch(text.strip()) for text in values[:_FEW]):
        return None
    distinct = pd.Series(values, dtype=object).str.strip()
    few = distinct.iloc[:_FEW]
    if all(_ISO_LIKE.fullmatch(text) for text in few):
        iso = all(_ISO_LIKE.fullmatch(text) for text in distinct)
        return ISO if iso and _parse(distinct, ISO).notna().all() else None
    fitting = [layout for layout in _LAYOUTS if _fits(few, layout) and _fits(distinct, layout)]
    undecided = [day_first for day_first in fitting if _SWAPPED.get(day_first) in fitting]
    if undecided and required:
        raise ValueError(
            f"Column {name!r} holds dates such as {distinct.iloc[0]!r}, in which day and "
            "month cannot be told apart. Write them as 2024-12-31."
        )
    return None if undecided or not fitting else fitting[0]


def date_column(column: pd.Series, name: str, layout: str) -> DateColumn:
    """Learn how a training column of dates becomes numbers."""
    moments = _moments(column, layout, name)
    zone = _zone(moments)
    local = _local(moments, zone).dropna()
    origin = str(local.min().date()) if len(local) else "1970-01-01"
    varying = [part for part in ("year", "month", "day of week", "hour") if _varies(local, part)]
    return DateColumn(layout, zone, origin, [*varying, "days"])


def _varies(local: pd.Series, part: str) -> bool:
    return len(np.unique(_parts(local, [part], "1970-01-01"))) > 1


def _fits(texts: pd.Series, layout: str) -> bool:
    moments = _parse(texts, layout)
    first, last = _PLAUSIBLE
    return bool(moments.notna().all() and moments.dt.year.between(first, last).all())


def _parse(texts: pd.Series, layout: str) -> pd.Series:
    """Read text; NaT where it is not a date. Offsets from UTC are brought to UTC."""
    texts = texts.mask(texts.isin(_MOVING))
    with_offset = layout == ISO and texts.str.contains(r"\d(?:Z|[+-]\d{2}:?\d{2})$", na=False).any()
    return pd.to_datetime(texts, format=layout, errors="coerce", utc=bool(with_offset))


def _moments(column: pd.Series, layout: str, name: str) -> pd.Series:
    """Read a column of dates or text as datetime64, or name the first cell that is not a date."""
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if isinstance(column.dtype, pd.ArrowDtype):
        column = column.array.__arrow_array__().to_pandas()
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column
    plain = column.astype(object)
    is_text = plain.map(lambda value: isinstance(value, str)).astype(bool)
    if is_text.any():
        texts = plain.where(is_text).map(str.strip, na_action="ignore").astype(object)
        found = _parse(texts, layout or ISO)
        if layout not in ("", ISO):
            others = is_text & found.isna()
            if others.any():
                found = found.fillna(_parse(texts.where(others), ISO))
        odd = plain.notna() & ~is_text
        if odd.any():
            found = found.where(~odd, _dates(plain.where(odd)))
    else:
        found = _dates(plain)
    bad = np.flatnonzero(found.isna() & plain.notna())
    if len(bad):
        example = "2024-12-31" if layout in ("", ISO) else layout
        raise ValueError(
            f"Column {name!r} held dates in training and now holds {plain.iloc[bad[0]]!r} in row "
            f"{bad[0]} (counted from 0; {len(bad)} such rows of {len(plain)}). Give dates as "
            f"{example}, or leave the cell empty where the value is missing."
        )
    return found


def _dates(values: pd.Series) -> pd.Series:
    """Read dates and moments; NaT for what is none, numbers among them."""
    known = values.where(values.map(lambda v: isinstance(v, datetime.date | np.datetime64)))
    aware = known.map(lambda v: getattr(v, "tzinfo", None) is not None).any()
    return pd.to_datetime(known, errors="coerce", utc=bool(aware))


def _zone(moments: pd.Series) -> str:
    zone = getattr(moments.dtype, "tz", None)
    if zone is None:
        return ""
    try:
        pd.Timestamp(0, tz=str(zone))
    except (KeyError, ValueError, TypeError):
        return "UTC"  # a zone without a name that is the same on another machine
    return str(zone)


def _local(moments: pd.Series, zone: str) -> pd.Series:
    """Bring moments to the clock of a zone, to the second."""
    if zone:
        moments = moments.dt.tz_convert(zone).dt.tz_localize(None)
    return moments.astype("datetime64[s]")


def _parts(local: pd.Series, parts: list[str], origin: str) -> np.ndarray:
    when = local.dt
    columns: dict[str, Any] = {
        "year": lambda: when.year,
        "month": lambda: when.month,
        "day of week": lambda: when.day_of_week,
        "hour": lambda: when.hour + when.minute / 60,
        "days": lambda: (local - pd.Timestamp(origin).as_unit("s")).dt.total_seconds() / 86400,
    }
    return np.column_stack([columns[part]().to_numpy(dtype=float) for part in parts])
