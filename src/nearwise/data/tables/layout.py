"""Layout of delimited text: the delimiter, and blanks behind it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DELIMITERS = (",", ";", "\t", "|")
BLANKS = r"\s+"
_SAMPLE = 1 << 16  # bytes used to detect the layout


@dataclass(frozen=True)
class Layout:
    """Separator of values: a character, or a regular expression for blanks.

    `spaced`: a blank follows every delimiter and does not belong to the value.
    """

    delimiter: str
    spaced: bool

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for pandas' reader."""
        return {
            "sep": self.delimiter,
            "skipinitialspace": self.spaced,
            "encoding": "utf-8",
            "index_col": False,
            "low_memory": False,
        }


def first_line(content: bytes) -> str:
    """Return the first nonblank line."""
    line = re.match(rb"\s*([^\r\n]*)", content)
    return line[1].decode(errors="replace") if line else ""


def split(line: str, layout: Layout) -> list[str]:
    """Split a line without quotes into values."""
    return line.split() if layout.delimiter == BLANKS else line.split(layout.delimiter)


def sample(content: bytes) -> list[str]:
    """Return the first lines, with quoted text removed."""
    start = content[:_SAMPLE].decode(errors="replace")
    lines = re.split(r"\r\n|\n|\r", re.sub(r'"[^"]*"', '""', start))
    if len(content) > _SAMPLE and len(lines) > 1:
        lines.pop()  # cut off
    return [line for line in lines if line.strip()] or [""]


def layout_of(lines: Sequence[str], delimiter: str | None) -> Layout:
    """Detect the layout of lines without quoted text; the delimiter may be given."""
    delimiter = delimiter or _delimiter(lines)
    below = lines[1:] or lines
    spaced = delimiter != BLANKS and all(
        0 < line.count(delimiter) == line.count(f"{delimiter} ") for line in below
    )
    return Layout(delimiter, spaced)


def _delimiter(lines: Sequence[str]) -> str:
    """Choose a mark equally frequent in all lines, or all but the first; else the most frequent."""
    counts = {mark: [line.count(mark) for line in lines] for mark in _DELIMITERS}
    steady = [mark for mark, n in counts.items() if n[0] and len(set(n)) == 1]
    # 1,5;2,5 has at least as many commas as semicolons
    if {",", ";"} <= set(steady) and not any(re.search(r"(?<!\d),|,(?!\d)", x) for x in lines):
        return ";"
    # a first line unlike all others is a remark: ignore its marks
    below = [mark for mark, n in counts.items() if len(n) > 2 and n[1] and len(set(n[1:])) == 1]
    candidates = steady or below or [mark for mark, n in counts.items() if n[0]]
    if not candidates and _has_blanks(lines):
        return BLANKS
    return max(candidates or [","], key=lambda mark: counts[mark][:2])


def _has_blanks(lines: Sequence[str]) -> bool:
    """Whether blanks separate columns: equally many in each line, one column all numbers."""
    names, *below = rows = [line.split() for line in lines]
    if len({len(row) for row in below}) == 1 and len(names) + 1 == len(below[0]):
        rows = below  # R writes row names without a column name
    if len(rows[0]) < 2 or len({len(row) for row in rows}) > 1:
        return False
    columns = zip(*(rows[1:] or rows), strict=True)
    return any(all(re.fullmatch(r"[+-]?[\d.,]+(e[+-]?\d+)?", v) for v in c) for c in columns)
