"""Lines of delimited text that are no rows: remarks, rules, and rows around the table."""

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from nearwise.data.tables.around import FEWEST, FIRST, Row, has_units, n_footers, n_titles
from nearwise.data.tables.layout import BLANKS, Layout, first_line, layout_of, sample, split
from nearwise.data.tables.spellings import tokenized
from nearwise.data.tables.unpack import Note

_SEPARATOR = re.compile(rb'\s*"?sep=([,;|\t])"?[^\S\r\n]*(?:\r\n|\n|\r)', re.IGNORECASE)
_RULE = (
    rb"[^\S\r\n]*[|+]?[^\S\r\n]*:?-+:?[^\S\r\n]*(?:[|+][^\S\r\n]*:?-+:?[^\S\r\n]*)*[|+]?[^\S\r\n]*"
)


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
    names, *rows = _cells(_lines(content, FIRST), layout) or [[]]
    if not rows or any(len(row) != len(names) + 1 for row in rows):
        return content
    first = [row[0].strip() for row in rows]
    quoted = all(line.lstrip().startswith('"') for line in _lines(content, FIRST))
    counted = len(rows) >= FEWEST and first == [str(i) for i in range(1, len(rows) + 1)]
    words = len(rows) >= FEWEST and not any(map(tokenized, ([value] for value in first)))
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


def without_titles(
    content: bytes, delimiter: str | None, known: Collection[str], where: str, note: Note
) -> bytes:
    """Remove titles and remarks above the names."""
    lines = sample(content)
    if len(lines) <= 1 or _is_rule(lines[0].encode()):
        return content
    # titles hide the delimiter: it is detected in the last lines
    layout = layout_of(lines[-max(FEWEST, len(lines) // 2) :], delimiter)
    if layout.delimiter == BLANKS:
        return content
    start = io.StringIO(content[: 1 << 16].decode(errors="replace"), newline=None)
    read = csv.reader(start, delimiter=layout.delimiter, skipinitialspace=layout.spaced)
    rows: list[Row] = []
    ends = [0]
    try:
        for row in islice(read, FIRST):
            if not _is_rule(layout.delimiter.join(row).encode()):
                rows.append([cell.strip() for cell in row])
                ends.append(read.line_num)
    except csv.Error:  # a value longer than csv allows
        return content
    n_lines = ends[n_titles(rows, known, where, note)]
    above = re.match(rb"(?:[^\r\n]*(?:\r\n|\n|\r)){%d}" % n_lines, content)
    return content[above.end() :] if above and n_lines else content


def without_units(content: bytes, layout: Layout, where: str, note: Note) -> bytes:
    """Remove a line of units below the names; note a line of words that may be units."""
    if not has_units(_stripped(_lines(content, FIRST), layout), where, note):
        return content
    head, rest = _after(content, 1)
    return head + _after(rest, 1)[1]


def without_footer(content: bytes, layout: Layout, where: str, note: Note) -> bytes:
    """Remove totals, remarks and lines without values at the end; note a possible total."""
    starts = [len(content)]
    end = b"\n" if b"\n" in content else b"\r"
    above = len(first_line(content))

    def last() -> Iterator[tuple[str, Row]]:
        while True:
            after = starts[-1]
            while content[after - 1 : after].isspace():
                after -= 1
            before = content.rfind(end, 0, after) + 1
            line = content[before:after].decode(errors="replace")
            if before <= above or line.count('"') % 2:
                return
            starts.append(before)
            yield line, next(iter(_stripped([line], layout)), [line])

    n = n_footers(_stripped(_lines(content, FIRST), layout), last(), where, note)
    return content[: starts[n]]


def without_empty_ends(content: bytes, layout: Layout, where: str, note: Note) -> bytes | None:
    """Remove delimiters at the end of lines with more values than the first, if all are empty."""
    lines = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", content)
    mark = re.escape(layout.delimiter.encode())
    try:
        (_, n_columns), *rows = number_of_values(content, layout)
    except (csv.Error, ValueError):  # a value longer than csv allows, or no row
        return None
    long = {end: n - n_columns for end, n in rows if n > n_columns}
    for end, n in long.items():
        ends = rb"(?:[^\S\r\n]*%s){%d}\s*\Z" % (mark, n)
        lines[end - 1], found = re.subn(ends, b"\n", lines[end - 1])
        if not found:
            return None
    if not long:
        return None
    note(
        f"{where}: {len(long)} lines end in more delimiters than the first (first: line "
        f"{min(long)}); left out."
    )
    return b"".join(lines)


def number_of_values(content: bytes, layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield the last line number of each row, counted from 1, and its number of values."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="")
    if layout.delimiter == BLANKS:
        yield from ((i, len(line.split())) for i, line in enumerate(text, 1) if line.strip())
        return
    rows = csv.reader(text, delimiter=layout.delimiter, skipinitialspace=layout.spaced)
    yield from ((rows.line_num, len(row)) for row in rows if row)


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


def _stripped(lines: Sequence[str], layout: Layout) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in _cells(lines, layout)]


def _after(content: bytes, n_lines: int) -> tuple[bytes, bytes]:
    """Split text behind its first `n_lines` nonblank lines."""
    found = re.match(rb"(?:\s*[^\r\n]+(?:\r\n|\n|\r|$)){%d}" % n_lines, content)
    at = found.end() if found else 0
    return content[:at], content[at:]
