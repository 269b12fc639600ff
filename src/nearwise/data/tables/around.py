"""Rows around a table, in text and in sheets: titles, units, totals and sources."""

import re
from collections.abc import Collection, Iterable, Sequence

from nearwise.data.tables.spellings import is_unit, tokenized
from nearwise.data.tables.unpack import Note
from nearwise.names import listed

Row = Sequence[str]

_TOTALS = frozenset(
    ("total", "totals", "grand total", "subtotal", "sum", "average", "avg", "mean", "count",
     "gesamt", "gesamtsumme", "gesamtergebnis", "zwischensumme", "summe", "insgesamt",
     "durchschnitt", "mittelwert", "ø", "anzahl", "somme", "moyenne", "sous-total",
     "total général", "suma", "promedio", "recuento", "total general", "totale", "conteggio")
)  # fmt: skip
_PERHAPS = frozenset(("mittel", "media"))  # averages, but also a level and a department
_REMARK = re.compile(
    r"(?:sources?|quelle|notes?|remarks?|footnote|copyright|last updated?|generated|exported|"
    r"data from|data source)\b\s*:?.*|[*©†].*|\(?\d+ rows?(?: \w+)?\)?",
    re.IGNORECASE | re.DOTALL,
)
_LAST = 5  # most footer rows
_TITLES = 10  # most rows above the names
FIRST = 30  # leading rows used to detect the type of a column
FEWEST = 2  # least rows below a row of units, or above a footer


def n_titles(rows: Sequence[Row], known: Collection[str], where: str, note: Note) -> int:
    """Return the number of rows above the names: titles, groups of columns and empty rows.

    `rows` are the first ones, empty ones included. Every row above lacks a value in a column that
    has values below; the names lack none, except of the first column. A row with all columns of a
    model (`known`) holds the names.
    """
    at = _first_full(rows, known)
    titles = [row for row in rows[:at] if any(row)]
    if not titles or not ((known and {*known} <= {*rows[at]}) or _are_names(rows, at)):
        return 0
    shown = listed([" ".join(filter(None, row))[:60] for row in titles])
    note(f"{where}: {len(titles)} rows above the names of the columns are left out: {shown}.")
    return at


def _first_full(rows: Sequence[Row], known: Collection[str]) -> int:
    """Return the first row with all `known` names, or else with a value in every column; or 0."""
    head = rows[: _TITLES + 1]
    for at, row in enumerate(head):
        if known and {*known} <= {*row}:
            return at
    for at, row in enumerate(head):
        used = _used(rows[at + 1 :])
        if len(used) > 1 and any(row) and all(_cell(row, column) for column in used[1:]):
            return at
    return 0


def _used(rows: Sequence[Row]) -> list[int]:
    """Return the columns with a value in at least half of the nonempty rows."""
    rows = [row for row in rows if any(row)]
    width = max(map(len, rows), default=0)
    return [at for at in range(width) if 2 * sum(bool(_cell(row, at)) for row in rows) >= len(rows)]


def _are_names(rows: Sequence[Row], at: int) -> bool:
    """Whether a row below titles holds names.

    Its words stand over numbers, or an empty row is above it, or only titles of one cell.
    """
    names, below = rows[at], [row for row in rows[at + 1 :] if any(row)]
    used = _used(below)
    numbers = [names[column] for column in used if _are_numbers(names[column : column + 1])]
    apart = not any(rows[at - 1])
    if numbers and not (apart and len(numbers) < len(used) and _rise(numbers)):
        return False
    if any(
        names[column] == _cell(row, column) for column in used for row in below if names[column]
    ):
        return False
    over = [
        column
        for column in used
        if names[column] not in numbers
        and any(_are_numbers([_cell(row, column) for row in some]) for some in (below, below[1:]))
    ]
    of_one_cell = all(sum(map(bool, row)) <= 1 for row in rows[:at])
    words = [names[column] for column in over]
    if words:
        are_units = all(map(is_unit, words)) and max(map(len, words)) > 1  # x and y are names
        return apart or of_one_cell or not are_units
    return apart or (of_one_cell and len(used) > FEWEST)


def _rise(numbers: Sequence[str]) -> bool:
    """Whether numbers are whole and rise, as years do."""
    return all(map(str.isdecimal, numbers)) and [*map(int, numbers)] == sorted({*map(int, numbers)})


def has_units(rows: Sequence[Row], where: str, note: Note) -> bool:
    """Whether the row below the names holds units; note a row of words that may be units."""
    names, *below = rows or [[]]
    if len(below) <= FEWEST or any(len(row) != len(names) for row in below[:2]):
        return False
    words, *below = below
    over = [
        words[at] for at in range(len(names)) if _are_numbers([_cell(row, at) for row in below])
    ]
    if not any(over) or any(word and tokenized([word]) for word in over):
        return False
    named = listed([word for word in over if word])
    if all(is_unit(word) for word in over if word):
        note(f"{where}: the row below the names holds units ({named}); left out.")
        return True
    if len([word for word in over if word]) >= FEWEST:
        note(
            f"{where}: the row below the names holds words ({named}) where all rows below it hold "
            "numbers; it is read as a row, so that these columns hold text. If it is none, leave "
            "it out."
        )
    return False


def n_footers(rows: Sequence[Row], last: Iterable[tuple[str, Row]], where: str, note: Note) -> int:
    """Return the number of rows below the table; note a last row that may be a total.

    `rows` are the names and the first rows, `last` are the rows from the end on: their text and
    their cells. Rows without a value are below the table, too.
    """
    names, *rows = [row for row in rows if any(row)] or [[]]
    sure = rows[:-_LAST] or rows[:FEWEST]
    usual = [row[:1] for row in sure]
    under_numbers = _are_numbers([_cell(row, 0) for row in usual])
    n = n_empty = 0
    for line, cells in last:
        if not any(cells):
            n_empty += 1
            continue
        known = n >= _LAST or len(names) < 2 or len(rows) <= FEWEST or [*cells[:1]] in usual
        if known or not (_begins_footer(cells[0]) or _is_remark(line, cells, len(names))):
            break
        is_full = sum(map(bool, cells)) >= sum(map(bool, names))
        if not under_numbers and (is_full or not _is_certain(cells, sure)):
            note(
                f"{where}: the last row begins with {cells[0]!r} and is read as a row. If it is "
                "none, leave it out."
            )
            break
        note(f"{where}: the last line is no row and left out: {line.strip()[:60]!r}.")
        n += 1
    if n_empty:
        note(f"{where}: {n_empty} rows without any value at the end; left out.")
    return n + n_empty


def _begins_footer(cell: str) -> bool:
    """Whether a row with this first value is a total or a source note."""
    word = cell.casefold()
    is_remark = ":" in word and _REMARK.fullmatch(word) is not None
    return is_remark or word.rstrip(":") in _TOTALS | _PERHAPS


def _is_certain(cells: Row, above: Sequence[Row]) -> bool:
    """Whether the first value of a row is one of footers only, or all columns of words are empty.

    A department "Media" has words beside its numbers; an average has none.
    """
    if cells[0].casefold().rstrip(":") not in _PERHAPS:
        return True
    of_words = [
        at
        for at in range(1, max(map(len, above), default=0))
        if all(_cell(row, at) and not _are_numbers([_cell(row, at)]) for row in above)
    ]
    return bool(of_words) and not any(_cell(cells, at) for at in of_words)


def _is_remark(line: str, cells: Row, n_columns: int) -> bool:
    """Whether the only value of a row is a remark."""
    is_remark = _REMARK.fullmatch(line.strip().strip('"')) is not None
    return is_remark and (not any(cells[1:]) or len(cells) < n_columns)


def _cell(row: Row, column: int) -> str:
    return row[column] if column < len(row) else ""


def _are_numbers(cells: Iterable[str]) -> bool:
    texts = {*cells} - {""}
    return bool(texts) and len(tokenized(texts, whole=True)) == len(texts)
