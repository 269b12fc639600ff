"""Date columns: detection in text, parsing, and conversion to numbers."""

import datetime
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

ISO, TIME = "ISO8601", "time of day"
ZERO_DATES = frozenset(
    day + time
    for day in ("0000-00-00", "00-00-0000", "00/00/0000", "00.00.0000", "0000/00/00")
    for time in ("", " 00:00:00", "T00:00:00", " 00:00")
)  # missing dates in MySQL
_MOVING = ("now", "today")  # pandas would parse them as the current date
_ZONE = r"\s?(?:Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)"
_ISO_LIKE = re.compile(
    rf"\d{{4}}-\d{{2}}-\d{{2}}([T ]\d{{2}}:\d{{2}}(:\d{{2}}([.,]\d{{1,9}})?)?({_ZONE})?)?"
)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,9})?))?(?:\s?([AaPp])\.?[Mm]\.?)?")
_HALF = re.compile(r"([AaPp])\.?([Mm])\.?(?=$|\s|[+-])")
_DAY = re.compile(
    r"(?P<first>\d{1,4})(?P<mark>[./-])(?P<second>\d{4}|\d{1,2})(?:(?P=mark)(?P<third>\d{4}|\d{1,2}))?"
    r"|(?P<day>\d{1,2})(?P<a>[ -])(?P<month>[A-Za-z]{3,9})(?P<b>,? |-)(?P<year>\d{4}|\d{2})"
    r"|(?P<named>[A-Za-z]{3,9})(?: (?P<of>\d{1,2}),)?(?P<c>[ -])(?P<years>\d{4}|\d{2})"
)
_TIME = re.compile(
    rf"([T ])\d{{1,2}}:\d{{2}}(:\d{{2}}(\.\d{{1,9}})?)?(\s?[AaPp]\.?[Mm]\.?)?({_ZONE})?"
)
_PLAUSIBLE = (1677, 2262)  # years of non-ISO dates; texts with other years are codes
_PLAUSIBLE_MONTHS = (1800, 2100)  # years of months without a day
_FEW = 20  # values in the first trial of a layout


@dataclass(frozen=True)
class DateColumn:
    """Conversion of a date column to numbers, as plain data for JSON.

    `layout` is "ISO8601", "time of day", codes of strftime, or "" if the column holds dates;
    `zone` is the time zone for conversion, or ""; `origin` is the first day of the training
    table, day 0; `parts` are the date parts that vary in training, and days.
    """

    layout: str
    zone: str
    origin: str
    parts: list[str]

    def numbers(self, column: pd.Series, name: str) -> np.ndarray:
        """Return the parts of every date, float64 (n, n_parts), NaN where missing.

        ValueError, with row and value, if a cell is not a date, or has a time zone and the
        training dates had none (or the reverse).
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


# Codes of strftime as a person writes them
_SPELLED = {"%d": "DD", "%m": "MM", "%Y": "YYYY", "%y": "YY", "%b": "Jan", "%B": "January"}
_SPELLED |= {"%H": "hh", "%I": "hh", "%M": "mm", "%S": "ss", "%p": "am/pm"}


def spelled_layout(layout: str) -> str:
    """Describe the order of year, month and day in a layout: DD/MM/YYYY for %d/%m/%Y."""
    if layout == ISO:
        return "YYYY-MM-DD"
    return re.sub("%[a-zA-Z]", lambda code: _SPELLED.get(code[0], code[0]), layout)


def holds_dates(column: pd.Series) -> bool:
    """Whether a column's values are date or datetime objects, not text."""
    dtype = column.dtype
    if pd.api.types.is_datetime64_any_dtype(dtype) or isinstance(dtype, pd.PeriodDtype):
        return True
    if isinstance(dtype, pd.ArrowDtype):
        return dtype.type is datetime.date
    values = column.dropna() if pd.api.types.is_object_dtype(dtype) else ()
    return len(values) > 0 and all(isinstance(v, datetime.date | np.datetime64) for v in values)


def moments_of(column: pd.Series, layout: str = "") -> pd.Series:
    """Parse a column of dates, or of text with dates in one layout; NaT for other values.

    ValueError if several layouts are possible and `layout` is not given.
    """
    if holds_dates(column):
        return pd.to_datetime(_moments(column, "", str(column.name)), utc=True)
    distinct = [value for value in column.dropna().unique() if isinstance(value, str)]
    layouts = [layout] if layout else text_layouts(distinct)[0] if distinct else []
    if len(layouts) > 1:
        raise ValueError(
            f"Column {column.name!r} holds dates such as {distinct[0]!r}, which may be of the "
            f"formats {' or '.join(layouts)}. Name one (--date COLUMN=FORMAT), or write dates as "
            "2024-12-31."
        )
    found = read_texts(column.astype(object), layouts[0] if layouts else ISO)
    return pd.to_datetime(found, utc=True)


def holds_times(column: pd.Series) -> bool:
    """Whether a column's values are time objects, not text."""
    if not pd.api.types.is_object_dtype(column.dtype):
        return isinstance(column.dtype, pd.ArrowDtype) and column.dtype.type is datetime.time
    values = column.dropna()
    return len(values) > 0 and all(isinstance(v, datetime.time) for v in values)


def text_layouts(texts: list[str]) -> tuple[list[str], list[str]]:
    """Possible date layouts of a column's distinct texts, and the texts that do not fit.

    Several layouts if day, month or a two-digit year are ambiguous; none if the texts are not
    dates.
    """
    distinct = pd.Series(texts, dtype=object)
    few = distinct.iloc[:_FEW].str.strip()
    tried = dict.fromkeys(layout for text in few for layout in _candidates(text))
    most = [layout for layout in tried if 10 * _fits(few, layout).sum() >= 9 * len(few)]
    bad = {layout: distinct[~_fits(distinct.str.strip(), layout)] for layout in most}
    if not bad:
        return [], texts
    fewest = min(map(len, bad.values()))
    best = [layout for layout, found in bad.items() if len(found) == fewest]
    odd = bad[best[0]]
    if len(odd) and any(_fits(odd.str.strip(), layout).any() for layout in tried):
        return [], texts  # two layouts in one column
    if best[0] in ("%Y-%m", "%Y/%m") and _are_seasons(distinct):
        return [], texts
    return _year_first_or_last(best, distinct), odd.tolist()


def _are_seasons(texts: pd.Series) -> bool:
    """Whether texts such as 2010-11 mean two consecutive years, not year and month."""
    parts = texts.str.extract(r"\d\d(\d\d)\D(\d\d)$").astype(float)
    return bool(((parts[0] + 1) % 100 == parts[1]).all())


def _candidates(text: str) -> list[str]:
    """Possible layouts of a text."""
    if _ISO_LIKE.fullmatch(text):
        return [ISO]
    if _CLOCK.fullmatch(text):
        return [TIME]
    match = _DAY.match(text)
    if match is None:
        return []
    time = _TIME.fullmatch(text, match.end())
    if time is None and match.end() < len(text):
        return []
    return [day + (_clock_layout(time) if time else "") for day in _day_layouts(match)]


def _day_layouts(match: re.Match[str]) -> list[str]:
    if match["mark"]:
        return _numeric_layouts(match["first"], match["second"], match["third"], match["mark"])
    name = match["month"] or match["named"]
    month = "%b" if len(name) == 3 else "%B"
    year = "%Y" if len(match["year"] or match["years"]) == 4 else "%y"
    if match["day"]:
        return [f"%d{match['a']}{month}{match['b']}{year}"]
    if match["of"]:
        return [f"{month} %d,{match['c']}{year}"] if match["c"] == " " else []
    return [f"{month}{match['c']}{year}"]


def _numeric_layouts(first: str, second: str, third: str | None, mark: str) -> list[str]:
    if third is None:  # year and month
        order = {(4, 2): "%Y{0}%m", (2, 4): "%m{0}%Y", (1, 4): "%m{0}%Y"}
        found = order.get((len(first), len(second))) if mark != "." else None
        return [found.format(mark)] if found else []
    if len(first) == 4:
        return [f"%Y{mark}%m{mark}%d"] if len(third) <= 2 else []
    if len(first) == 3 or len(second) > 2 or len(third) == 1:
        return []
    if mark == "." and len(third) == 2 and len(first + second) < 4:
        return []  # a version number
    year = "%Y" if len(third) == 4 else "%y"
    orders = ["%d{0}%m{0}" + year] + (["%m{0}%d{0}" + year] if mark != "." else [])
    orders += ["%y{0}%m{0}%d"] if year == "%y" and mark != "." else []
    return [order.format(mark) for order in orders]


def _clock_layout(time: re.Match[str]) -> str:
    mark, seconds, fraction, half, zone = time.groups()
    layout = mark + ("%I" if half else "%H") + ":%M" + (":%S" if seconds else "")
    layout += (".%f" if fraction else "") + ("" if not half else " %p" if half[0] == " " else "%p")
    return layout + ("%z" if zone else "")


def _year_first_or_last(layouts: list[str], texts: pd.Series) -> list[str]:
    """Choose whether the two-digit year comes first or last, by the number of distinct values."""
    first = [layout for layout in layouts if layout.startswith("%y")]
    if not first or len(first) == len(layouts):
        return layouts
    parts = texts.str.extract(r"(\d+)\D\d+\D(\d+)")
    years, days = parts[0].nunique(), parts[1].nunique()
    if days <= years:
        return [layout for layout in layouts if layout not in first]
    return first if 2 * years < days else layouts


def date_column(column: pd.Series, name: str, layout: str) -> DateColumn:
    """Fit the conversion of a training column of dates to numbers."""
    moments = _moments(column, layout, name)
    zone = _zone(moments)
    local = _local(moments, zone).dropna()
    origin = str(local.min().date()) if len(local) else "1970-01-01"
    if layout == TIME or (
        layout not in ("", ISO) and not re.search("%[aAbBcdDFjmUWxyYGuV]", layout)
    ):
        return DateColumn(layout, zone, origin, ["hour of day"])
    varying = [part for part in ("year", "month", "day of week", "hour") if _varies(local, part)]
    return DateColumn(layout, zone, origin, [*varying, "days"])


def _varies(local: pd.Series, part: str) -> bool:
    return len(np.unique(_parts(local, [part], "1970-01-01"))) > 1


def _fits(texts: pd.Series, layout: str) -> pd.Series:
    """Mask of texts that are dates of this layout in a plausible year, bool (n,)."""
    if layout == ISO:
        return texts.map(lambda text: bool(_ISO_LIKE.fullmatch(text))) & _parse(texts, ISO).notna()
    moments = _parse(texts, layout)
    if layout == TIME:
        return moments.notna()
    first, last = _PLAUSIBLE if "%d" in layout else _PLAUSIBLE_MONTHS
    return moments.notna() & moments.dt.year.between(first, last)


def _parse(texts: pd.Series, layout: str) -> pd.Series:
    """Parse text; NaT if it is not a date. Times with an offset are converted to UTC."""
    texts = texts.mask(texts.isin(_MOVING)).astype(object)
    if layout == TIME:
        return _clock(texts)
    zoned = texts.str.contains(rf":\d\d[\d.,]*[APMapm. ]*{_ZONE}$", na=False)
    with_offset = (layout == ISO and zoned.any()) or "%z" in layout
    if with_offset:
        texts = texts.str.replace(r"\s?(?:UTC|GMT)$", "Z", regex=True)
        texts = texts.str.replace(r"(:\d\d\S*)\s?([+-]\d{2})$", r"\1\g<2>00", regex=True)
        texts = texts.str.replace(r"\s([+-]\d{2}:?\d{2})$", r"\1", regex=True)
    if "%p" in layout:
        texts = texts.str.replace(_HALF, r"\1\2", regex=True)
    return pd.to_datetime(texts, format=layout, errors="coerce", utc=bool(with_offset))


def _clock(texts: pd.Series) -> pd.Series:
    """Parse times of day as datetimes on 1 January 1970; NaT for other text."""
    parts = texts.str.extract(f"^{_CLOCK.pattern}$")
    hour, minute, second = (pd.to_numeric(parts[i], errors="coerce") for i in range(3))
    half = parts[3].str.lower()
    of_12 = hour.where(half.isna() | hour.between(1, 12)) % 12 + 12 * (half == "p")
    hour = hour.where(half.isna(), of_12)
    second = second.fillna(0)
    fits = hour.lt(24) & minute.lt(60) & second.lt(60)
    return pd.to_datetime((hour * 3600 + minute * 60 + second).where(fits), unit="s")


def check_format(layout: str, name: str) -> None:
    """Raise ValueError if a layout is not a strftime format for a date."""
    try:
        pd.to_datetime(pd.Series(["x"]), format=layout, errors="coerce")
    except ValueError as error:
        raise ValueError(
            f"columns={{{name!r}: 'date:{layout}'}}: {layout!r} is not a format ({error}). Write "
            "one such as %d-%m-%y or %m/%d/%Y %H:%M."
        ) from error


def _moments(column: pd.Series, layout: str, name: str) -> pd.Series:
    """Parse a column of dates or text as datetime64; ValueError names the first invalid cell."""
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if isinstance(column.dtype, pd.ArrowDtype):
        column = column.array.__arrow_array__().to_pandas()
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return column
    plain = column.astype(object)
    codes, distinct = pd.factorize(plain)
    of_distinct = read_texts(pd.Series(distinct, dtype=object), layout)
    found = of_distinct.reindex(codes).set_axis(plain.index)  # code -1, a gap, becomes NaT
    bad = np.flatnonzero(found.isna() & plain.notna() & ~plain.isin(ZERO_DATES))
    if len(bad):
        example = "2024-12-31" if layout in ("", ISO) else layout.replace(TIME, "14:05")
        raise ValueError(
            f"Column {name!r} held dates in training and now holds {plain.iloc[bad[0]]!r} in row "
            f"{bad[0]} (counted from 0; {len(bad)} such rows of {len(plain)}). Give dates as "
            f"{example}, or leave the cell empty where the value is missing."
        )
    return found


def read_texts(plain: pd.Series, layout: str) -> pd.Series:
    """Parse dates, datetimes and text in the layout or ISO 8601; NaT for other values."""
    if layout not in ("", ISO):
        plain = plain.map(_in_text, na_action="ignore")
    is_text = plain.map(lambda value: isinstance(value, str)).astype(bool)
    if not is_text.any():
        return _dates(plain)
    texts = plain.where(is_text).map(str.strip, na_action="ignore").astype(object)
    found = _parse(texts, layout or ISO)
    others = is_text & found.isna()
    like_iso = layout in ("", ISO) or layout.startswith("%Y-%d")
    if not like_iso and others.any():
        found = found.fillna(_parse(texts.where(others), ISO))
    odd = plain.notna() & ~is_text
    return found.where(~odd, _dates(plain.where(odd))) if odd.any() else found


def _in_text(value: Any) -> Any:
    """Convert times of day and whole numbers such as 20241231 to text; others unchanged."""
    if isinstance(value, datetime.time):
        return value.isoformat()
    whole = isinstance(value, int | float | np.number) and float(value).is_integer()
    return str(int(value)) if whole else value


def _dates(values: pd.Series) -> pd.Series:
    """Convert date and datetime objects; NaT for other values, including numbers."""
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
        return "UTC"  # a zone without a portable name
    return str(zone)


def _local(moments: pd.Series, zone: str) -> pd.Series:
    """Convert datetimes to local time in a zone, to the second."""
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
        "hour of day": lambda: when.hour + when.minute / 60 + when.second / 3600,
        "days": lambda: (local - pd.Timestamp(origin).as_unit("s")).dt.total_seconds() / 86400,
    }
    return np.column_stack([columns[part]().to_numpy(dtype=float) for part in parts])
