"""Lines of delimited text outside the table: remarks, rules, units, totals and sources."""

import csv
import io
import re
from collections.abc import Sequence

from nearwise.data.tables.layout import BLANKS, Layout, first_line, layout_of, sample, split
from nearwise.data.tables.spellings import is_unit, tokenized
from nearwise.data.tables.unpack import Note
from nearwise.names import listed

_SEPARATOR = re.compile(rb'\s*"?sep=([,;|\t])"?[^\S\r\n]*(?:\r\n|\n|\r)', re.IGNORECASE)
_RULE = (
    rb"[^\S\r\n]*[|+]?[^\S\r\n]*:?-+:?[^\S\r\n]*(?:[|+][^\S\r\n]*:?-+:?[^\S\r\n]*)*[|+]?[^\S\r\n]*"
)
_TOTALS = frozenset(
    ("total", "totals", "grand total", "subtotal", "sum", "average", "mean", "gesamt", "summe",
     "insgesamt", "somme", "suma", "totale")
)  # fmt: skip
_REMARK = re.compile(
    r"(?:sources?|quelle|notes?|remarks?|footnote|copyright|last updated?|generated|exported|"
    r"data from|data source)\b\s*:?.*|[*©†].*|\(?\d+ rows?(?: \w+)?\)?",
    re.IGNORECASE | re.DOTALL,
)
_LAST = 5  # most footer lines
_FIRST = 30  # leading rows used to detect the type of a column
_FEWEST = 2  # least rows below a line of units


def separator_line(content: bytes, where: str, note: Note) -> tuple[bytes, str | None]:
    """Remove Excel's leading delimiter line (sep=;); return the rest and the delimiter."""
    found = _SEPARATOR.match(content)
    if found is None:
        return content, None
    delimiter = found[1].decode()
    note(f"{where}: the first line says that {delimiter!r} separates values; left out.")
    return content[found.end() :], delimiter


def without_remarks(content: bytes, delimiter: str | None, where: str, note: Note) -> bytes:
    """Remove leading lines with #, except the last one if it holds the column names."""
    remarks = re.match(rb"\s*(#[^\r\n]*\s*)+", content)
    if remarks is None:
        return content
    lines = [line for line in remarks[0].splitlines() if line.strip()]
    rest = content[remarks.end() :]
    layout = layout_of(sample(rest), delimiter)
    last = split(lines[-1].decode(errors="replace"), layout)
    following = split(first_line(rest), layout)
    n_numbers = sum(value.replace(".", "").strip().isdigit() for value in following)
    if 1 < len(last) == len(following) and 2 * n_numbers >= len(following):
        rest = lines.pop() + b"\n" + rest
    if lines:
        note(f"{where}: left out {len(lines)} lines at the top that begin with #.")
    return rest


def without_rules(content: bytes, where: str, note: Note) -> bytes:
    """Convert a Markdown table, or a database shell's output, to values between bars."""
    start = [line for line in content[: 1 << 16].splitlines()[:4] if line.strip()]
    rules = [at for at, line in enumerate(start) if _is_rule(line)]
    if len(start) < 2 or not rules or rules[0] > 1 or not any(b"|" in line for line in start[:2]):
        return content
    rows = [line for line in content.splitlines() if line.strip() and not _is_rule(line)]
    note(f"{where}: read as a table of Markdown; the lines of dashes are left out.")
    bare = (re.sub(rb"\s*\|\s*", b"|", line.strip().removeprefix(b"|")) for line in rows)
    return b"\n".join(line.removesuffix(b"|").strip() for line in bare) + b"\n"


def _is_rule(line: bytes) -> bool:
    return b"--" in line and (b"|" in line or b"+" in line) and bool(re.fullmatch(_RULE, line))


def with_row_names(content: bytes, layout: Layout, where: str, note: Note) -> bytes:
    """Name the first column if R wrote row names and so one column name too few."""
    names, *rows = _cells(_lines(content, _FIRST), layout) or [[]]
    if not rows or any(len(row) != len(names) + 1 for row in rows):
        return content
    first = [row[0].strip() for row in rows]
    quoted = all(line.lstrip().startswith('"') for line in _lines(content, _FIRST))
    counted = len(rows) >= _FEWEST and first == [str(i) for i in range(1, len(rows) + 1)]
    words = len(rows) >= _FEWEST and not any(map(tokenized, ([value] for value in first)))
    if (
        len(set(first)) < len(first)
        or not (quoted or counted or words)
        or not any(row[-1].strip() for row in rows)
    ):
        return content
    note(
        f"{where}: the first line has a name less than the others have values; their first values "
        "are taken for names of the rows, as R writes them."
    )
    mark = " " if layout.delimiter == BLANKS else layout.delimiter
    return b'""' + mark.encode() + content.lstrip()


def without_units(content: bytes, layout: Layout, where: str, note: Note) -> bytes:
    """Remove a line of units below the names; note a line of words that may be units."""
    lines = _lines(content, _FIRST)
    names, *rows = _cells(lines, layout) or [[]]
    if len(rows) <= _FEWEST or any(len(row) != len(names) for row in rows[:2]):
        return content
    words, *below = rows
    numeric = [at for at in range(len(names)) if _hold_numbers([row[at : at + 1] for row in below])]
    over = [words[at].strip() for at in numeric]
    if not any(over) or any(word and tokenized([word]) for word in over):
        return content
    named = listed([word for word in over if word])
    if not all(is_unit(word) for word in over if word):
        if len([word for word in over if word]) >= _FEWEST:
            note(
                f"{where}: line 2 holds words ({named}) where all lines below it hold numbers; it "
                "is read as a row, so that these columns hold text. If it is none, leave it out."
            )
        return content
    note(f"{where}: line 2 holds units ({named}); left out.")
    head, rest = _after(content, 1)
    return head + _after(rest, 1)[1]


def without_footer(content: bytes, layout: Layout, where: str, note: Note) -> bytes:
    """Remove totals and remarks at the end; note a last line that may be a total."""
    names, *rows = _cells(_lines(content, _FIRST), layout) or [[]]
    if len(names) < 2 or len(rows) <= _FEWEST:
        return content
    usual = [row[:1] for row in rows[:-_LAST] or rows[:_FEWEST]]
    under_numbers = _hold_numbers(usual)
    for _ in range(_LAST):
        kept = content.rstrip()
        before = max(kept.rfind(b"\n"), kept.rfind(b"\r")) + 1
        line = kept[before:].decode(errors="replace")
        if before <= len(first_line(content)) or line.count('"') % 2:
            return content
        cells = next(iter(_cells([line], layout)), [""])
        if cells[:1] in usual or (
            not _begins_footer(cells[0]) and not _is_remark(line, cells, len(names))
        ):
            return content
        if not under_numbers and sum(map(bool, map(str.strip, cells))) >= len(names):
            note(
                f"{where}: the last line begins with {cells[0].strip()!r} and is read as a row. If "
                "it is none, leave it out."
            )
            return content
        note(f"{where}: the last line is no row and left out: {line.strip()[:60]!r}.")
        content = kept[:before]
    return content


def _begins_footer(cell: str) -> bool:
    """Whether a line with this first value is a total or a source note, not a row."""
    word = cell.strip().casefold()
    return word.rstrip(":") in _TOTALS or (":" in word and _REMARK.fullmatch(word) is not None)


def _is_remark(line: str, cells: Sequence[str], n_columns: int) -> bool:
    """Whether the only value of a line is a remark."""
    filled = any(cell.strip() for cell in cells[1:])
    is_remark = _REMARK.fullmatch(line.strip().strip('"')) is not None
    return is_remark and (not filled or len(cells) < n_columns)


def _lines(content: bytes, n: int) -> list[str]:
    """Return the first nonblank lines: the line of names, and `n` lines below it."""
    found = io.StringIO(content[: 1 << 16].decode(errors="replace"), newline=None)
    lines = [line for line in found if line.strip()]
    if len(content) > 1 << 16 and len(lines) > 1:
        lines.pop()  # cut off
    return lines[: n + 1]


def _cells(lines: Sequence[str], layout: Layout) -> list[list[str]]:
    if layout.delimiter == BLANKS:
        return list(csv.reader((" ".join(line.split()) for line in lines), delimiter=" "))
    try:
        rows = csv.reader(lines, delimiter=layout.delimiter, skipinitialspace=layout.spaced)
        return [row for row in rows if row]
    except csv.Error:  # a value longer than csv allows
        return []


def _hold_numbers(cells: Sequence[Sequence[str]]) -> bool:
    texts = {cell.strip() for row in cells for cell in row} - {""}
    return bool(texts) and len(tokenized(texts, whole=True)) == len(texts)


def _after(content: bytes, n_lines: int) -> tuple[bytes, bytes]:
    """Split text behind its first `n_lines` nonblank lines."""
    found = re.match(rb"(?:\s*[^\r\n]+(?:\r\n|\n|\r|$)){%d}" % n_lines, content)
    at = found.end() if found else 0
    return content[:at], content[at:]
