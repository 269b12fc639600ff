"""Number formats of a column: decimal mark, thousands separator, sign or unit."""

import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_EXPONENT = r"(?:[eE][+-]?\d+)?"
# 1,234.5 and 1'234.5 and 12,34,567; no leading zeros as in 01.02, which are codes
_POINT = re.compile(
    r"(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+|[1-9]\d{0,2}([,' \xa0])\d{3}(?:\1\d{3})*(?:\.\d+)?"
    rf"|[1-9]\d?(?:,\d\d)+,\d{{3}}(?:\.\d+)?){_EXPONENT}",
    re.ASCII,
)
_COMMA = re.compile(
    r"(?:(?:0|[1-9]\d*)(?:,\d+)?|,\d+|[1-9]\d{0,2}([.' \xa0])\d{3}(?:\1\d{3})*(?:,\d+)?)"
    rf"{_EXPONENT}",
    re.ASCII,
)
_MINUSES = "\u2212\ufe63\uff0d"
_QUOTES, _BLANKS = "\u2019\u02bc", "\u2002\u2003\u2007\u2008\u2009\u202f"
_TYPEWRITTEN = str.maketrans(
    dict.fromkeys(_MINUSES, "-") | dict.fromkeys(_QUOTES, "'") | dict.fromkeys(_BLANKS, "\xa0")
)
_WITHOUT = {
    decimal: str.maketrans(
        {decimal or ".": "."} | dict.fromkeys(f"{others}' \xa0{_QUOTES}{_BLANKS}", "")
    )
    for decimal, others in (("", ""), (".", ","), (",", "."))
}
_NINES = str.maketrans("012345678", "999999999")
_SYMBOLS = r"(?:(?:US|CA|AU|HK|NT|MX|[ACRS])?\$|[£¤¥¢₡-₿฿€]|kr\.?|Kč|zł|Ft|Rs\.?|Fr\.|lei)"
_CODES = (
    "AED|ARS|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|JPY|KES|KRW|"
    "KZT|MXN|MYR|NGN|NOK|NZD|PEN|PHP|PKR|PLN|QAR|RON|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
# units directly behind a number; a single capital as in 3B makes a code
_UNITS = (
    "[%‰°]|°[CFK]|[ghlms]|[kmµn]g|lbs?|oz|[kcmdµn]m|ft|yd|mi|[mcdh]l|gal|[mµn]s|secs?|mins?|hrs?|"
    "[kKMGT]i?B|[kMG]?Hz|[kM]W|[kMG]?Wh|[mk]V|mA|[hkM]?Pa|m?bar|psi|km/h|kmh|kph|mph|m/s|"
    "[cdk]?m[²³]|ft²|sqft|ha|px|pts?|bps?|k?cal|kJ|dBA?|rpm|CC|cc|hp|bhp|kmpl|km/kg|mpg|pp[mb]"
)
_WORD = r"[a-zµà-ÿ][^\W\d_]+\.?(?:/[^\W\d_]+)?"  # only after a blank
_TOKEN = re.compile(
    rf"(\(?)([+-]?)(?:({_SYMBOLS}|(?:{_CODES})(?=\s))\s*)?([+-]?)"
    r"([.,]?[0-9](?:[0-9.,' \xa0]*[0-9])?\.?(?:[eE][+-]?[0-9]+)?)"
    rf"(?:\s*({_SYMBOLS}|{_CODES}|{_UNITS})|\s+([VWLKF]|{_WORD}))?(\)?)"
)
_UNIT = (
    rf"(?:{_SYMBOLS}|{_CODES}|{_UNITS}|[A-Zdjt]|[kcm]?m[23]|[kmµn]?mol|deg|degrees?|percent|pct)"
)
_UNIT_WORDS = (
    "years?|yrs?|months?|weeks?|days?|hours?|minutes?|seconds?|persons?|people|count|number|text|"
    "string|int|integer|float|double|bool|boolean|date|datetime|unitless|none|n/a|-+"
)
_UNIT_CELL = re.compile(rf"{_UNIT}(?:[/·*^]{_UNIT})*|{_UNIT_WORDS}|\(.*\)|\[.*\]", re.IGNORECASE)
_ASCII_WORDS = re.compile(r"[^\W\d_]+\.?(?:/[^\W\d_]+)?")
_PADDED = re.compile(r"0\d", re.ASCII)
_SAMPLE = 50  # texts that are checked first
_MARK_WORDS = {",": "commas", ".": "points", "'": "apostrophes", " ": "blanks"}
_RATIOS = ("%", "‰")  # without the sign, .95 and 95 may be the same

Decimal = Literal["", ".", ","]
DECIMALS: tuple[Decimal, Decimal] = (".", ",")


class Token(NamedTuple):
    """Number format of all texts with one pattern: sign or unit, position of digits and marks.

    `body` has the digits and marks of the pattern, `span` is their position in a text; `point` and
    `comma` are the possible decimal marks.
    """

    sign: str
    body: str
    point: bool = True
    comma: bool = True
    negative: bool = False
    plain: bool = False
    minus: str = ""
    span: tuple[int, int] = (0, 0)

    def fits(self, decimal: "Decimal") -> bool:
        """Whether this is a number with a decimal mark, or without one for ""."""
        whole = not ("." in self.body or "," in self.body)
        return {".": self.point, ",": self.comma}.get(decimal, whole)


@dataclass(frozen=True)
class Spelling:
    """Number format of a column, as JSON-ready data.

    `decimal` is the decimal mark, "" for integers; `thousands` the thousands separator, `sign` a
    currency, percent sign or unit, `bare` whether some numbers lack it, `minus` a sign of negative
    numbers other than the hyphen.
    """

    decimal: Decimal = ""
    thousands: str = ""
    sign: str = ""
    bare: bool = False
    minus: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `Spelling(**state)` rebuilds it."""
        return asdict(self)

    @property
    def described(self) -> str:
        """Unusual features of the format: "'$' and commas at thousands"."""
        parts = [repr(self.sign)] if self.sign else []
        if self.decimal == ",":
            parts.append("a decimal comma")
        elif self.thousands:
            parts.append(f"{_MARK_WORDS[self.thousands]} at thousands")
        if self.minus:
            parts.append(f"{self.minus!r} at negative ones")
        return " and ".join(parts)

    @property
    def hides_from_pandas(self) -> bool:
        """Whether a number for pandas may be another number, or text, in this format."""
        return self.decimal == "," or (self.sign in _RATIOS and not self.bare)

    @property
    def example(self) -> str:
        """A number in this format."""
        digits = f"1{self.thousands}234" if self.thousands else "12"
        digits += f"{self.decimal}5" if self.decimal else ""
        if re.fullmatch(_SYMBOLS, self.sign) and not self.sign[-1].isalpha():
            return f"{self.sign}{digits}"
        return f"{digits}{self.sign}" if self.sign in _RATIOS else f"{digits} {self.sign}".strip()

    def numbers(self, column: pd.Series, name: str) -> pd.Series:
        """Parse the texts of a column; numbers are unchanged. float64, NaN for missing values.

        ValueError, with row and value, for text that does not fit the format.
        """
        codes, distinct = pd.factorize(column.astype(object))  # -1 is missing
        tokens = tokenized(v for v in distinct if isinstance(v, str))
        decimal = self.decimal
        if not decimal:
            common = in_common(tokens.values())
            decimal = common.decimal_by() if common is not None else ""
        fits = {token for token in {*tokens.values()} if self._allows(token, decimal)}

        def number(value: Any) -> float:
            if not isinstance(value, str):
                return float(value)
            token = tokens.get(value)
            return float(number_text(value, token, decimal)) if token in fits else np.nan

        read = np.array([*map(number, distinct), np.nan])[codes]
        bad = np.flatnonzero(np.isnan(read) & (codes >= 0))
        if len(bad):
            how = f" with {self.described}" if self.described else ""
            raise ValueError(
                f"Column {name!r} held numbers{how} in training and now holds "
                f"{column.iloc[bad[0]]!r} in row {bad[0]} (counted from 0; {len(bad)} such rows of "
                f"{len(column)}). Write numbers as in training ({self.example}), give a table of "
                "numbers instead of text (Parquet, a DataFrame), or leave the cell empty where the "
                "value is missing."
            )
        return pd.Series(read, index=column.index, name=column.name)

    def _allows(self, token: Token, decimal: Decimal) -> bool:
        if not token.fits(decimal):
            return False
        if token.sign or not self.sign:
            return token.sign == self.sign
        return self.bare or self.sign not in _RATIOS


@dataclass(frozen=True)
class Common:
    """Common format of the texts of a column that are all numbers.

    `decimal` is "either" for ambiguous numbers, as 1,234; `mark` is then the only mark that occurs.
    `signs` are all that occur, including "".
    """

    decimal: Decimal | Literal["either"]
    mark: str
    thousands: str
    signs: frozenset[str]
    minus: str
    plain: bool

    def decimal_by(self, usual: Decimal = "") -> Decimal:
        """Return the decimal mark; `usual` decides if both are possible.

        Without `usual`, commas separate thousands; with a currency points do, too.
        """
        if self.decimal != "either":
            return self.decimal
        if usual:
            return usual
        money = any(re.fullmatch(f"{_SYMBOLS}|{_CODES}", sign) for sign in self.signs)
        return "," if self.mark == "." and money else "."

    def spelling(self, usual: Decimal = "") -> Spelling:
        """Return the format of a column with these texts, with at most one sign."""
        decimal = self.decimal_by(usual)
        thousands = self.thousands
        if self.mark and self.mark != decimal:
            thousands = self.mark
        return Spelling(decimal, thousands, max(self.signs), len(self.signs) > 1, self.minus)


def tokenized(
    texts: Iterable[str], *, whole: bool = False, sampled: bool = False
) -> dict[str, Token]:
    """Return the tokens of all texts that are numbers in some format, by text.

    The result is empty with `whole` if any text is no number, and with `sampled` if fewer than half
    of the first texts are numbers.
    """
    found: dict[str, Token] = {}
    of_shape: dict[str, Token | None] = {}
    for number, text in enumerate(texts, start=1):
        shape = text.translate(_NINES)
        first = shape.find("9")
        if text[first : first + 1] == "0":  # a leading zero may make a code
            shape = f"{shape[:first]}0{shape[first + 1 :]}"
        if shape not in of_shape:
            of_shape[shape] = _token(shape)
        token = of_shape[shape]
        if token is not None:
            found[text] = token
        elif whole:
            return {}
        if sampled and number == _SAMPLE and 2 * len(found) < _SAMPLE:
            return {}
    return found


def _token(shape: str) -> Token | None:
    stripped = shape.strip()
    offset = shape.find(stripped)
    if NUMBER.fullmatch(stripped):
        body = stripped.lstrip("+-")
        comma = "." not in body or _COMMA.fullmatch(body) is not None
        span = (offset + len(stripped) - len(body), offset + len(stripped))
        return Token("", body, True, comma, stripped[0] == "-", plain=True, span=span)
    typed = stripped.translate(_TYPEWRITTEN)
    match = _TOKEN.fullmatch(typed)
    if match is None:
        return None
    opened, minus, before, inner, body, glued, word, closed = match.groups(default="")
    sign, odd = before or glued or word, ""
    if bool(opened) != bool(closed) or bool(opened) + bool(minus) + bool(inner) > 1:
        return None
    if before and (glued or word):
        return None
    if not before and len(sign.rstrip(".")) > 2 and _ASCII_WORDS.fullmatch(sign):
        sign = sign.rstrip(".").removesuffix("s")  # singular and plural: 1 year and 2 years
    negative = bool(opened) or "-" in minus + inner
    if opened:
        odd = "()"
    elif negative and typed != stripped:
        odd = next((c for c in stripped if c in _MINUSES), "")
    point, comma = _marks_of(body)
    span = (offset + match.start(5), offset + match.end(5))
    token = Token(sign, body, point, comma, negative, minus=odd, span=span)
    return token if point or comma else None


def _marks_of(body: str) -> tuple[bool, bool]:
    """Whether a body may have a decimal point, and a decimal comma."""
    last_point, last_comma = body.rfind("."), body.rfind(",")
    if last_point < 0 and last_comma < 0:
        fits = _POINT.fullmatch(body) is not None
        return fits, fits
    both = last_point >= 0 and last_comma >= 0
    point = (last_point > last_comma or not both) and _POINT.fullmatch(body) is not None
    comma = (last_comma > last_point or not both) and _COMMA.fullmatch(body) is not None
    return point, comma


def is_unit(text: str) -> bool:
    """Whether a text is a unit or a type, as in a line of units below the names."""
    return _UNIT_CELL.fullmatch(text) is not None


def in_common(tokens: Collection[Token]) -> Common | None:
    """Return the common format of numbers in text; None if they contradict each other."""
    if not tokens:
        return None
    tokens = set(tokens)
    bodies = [token.body for token in tokens]
    marks = {mark for mark in DECIMALS if any(mark in body for body in bodies)}
    marked = bool(marks)
    point, comma = all(token.point for token in tokens), all(token.comma for token in tokens)
    plain = all(token.plain for token in tokens)
    signs = frozenset(token.sign for token in tokens)
    if plain:
        decimal: Any = "" if not marked else "either" if comma else "."
        return Common(decimal, "." if decimal == "either" else "", "", signs, "", plain)
    if not (point or comma) or (point and comma and len(marks) > 1):
        return None
    blanks = {mark for body in bodies for mark in "' \xa0" if mark in body}
    if len(blanks) > 1 or (blanks == {" "} and not _are_amounts(tokens)):
        return None
    if all(token.minus == "()" for token in tokens) or any(map(_PADDED.match, bodies)):
        return None  # (1) and (2), $007
    thousands = blanks.pop().replace("\xa0", " ") if blanks else ""
    minus = max(token.minus for token in tokens)
    decimal = "" if not marked else "either" if point and comma else "." if point else ","
    mark = next((mark for mark in marks if mark != decimal), "")
    return Common(decimal, mark, thousands, signs, minus, plain)


def _are_amounts(tokens: Collection[Token]) -> bool:
    """Whether numbers with blanks are amounts; codes all have the same number of digits."""
    lengths = {sum(c.isdigit() for c in token.body) for token in tokens}
    return len(lengths) > 1 and min(lengths) <= 6


def number_text(text: str, token: Token, decimal: Decimal) -> str:
    """Convert a number with this decimal mark to the form that float() parses."""
    digits = text[slice(*token.span)].translate(_WITHOUT[decimal])
    return f"-{digits}" if token.negative else digits
