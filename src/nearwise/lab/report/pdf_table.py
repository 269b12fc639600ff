"""Columns of a table on a PDF page: how wide, how large the type, what is broken over lines."""

from collections.abc import Sequence
from dataclasses import dataclass

from nearwise.report.drawing import text_width, wrapped
from nearwise.report.measures import Table

SIZES = (8.5, 8.0, 7.5, 7.0, 6.5, 6.0, 5.5)
GAP = 0.16  # inches between columns
_NAME_SHARE = 0.36
_DETAIL = 0.88  # size of a detail over that of its cell

Line = tuple[str, str, bool]  # text, mark, whether it is a detail


@dataclass(frozen=True)
class Columns:
    """Where the columns of a table stand.

    Attributes
    ----------
    size : float
        Points.
    starts, widths : list of float
        Inches from the left edge of the table.
    total : float
        Width of the table in inches.
    to_left : bool
        Whether cells begin at the left edge of their column, as sentences do.
    """

    size: float
    starts: list[float]
    widths: list[float]
    total: float
    to_left: bool = False


def lay_out(table: Table, width: float) -> tuple[Columns, list[list[list[Line]]]]:
    """Fit a table into a width.

    Parameters
    ----------
    table : Table
    width : float
        Inches.

    Returns
    -------
    columns : Columns
        In the largest type in which the table fits; what fits in none is broken over lines.
    rows : list of rows of cells of lines
        The headings first.
    """
    natural: list[float] = []
    size = SIZES[-1]
    for size in SIZES:
        natural = _natural_widths(table, size)
        if table.wrap or sum(natural) + GAP * (len(natural) - 1) <= width:
            break
    room = width - GAP * (len(natural) - 1)
    widths = _shared(natural, room)
    starts = [sum(widths[:i]) + GAP * i for i in range(len(widths))]
    columns = Columns(size, starts, widths, starts[-1] + widths[-1], table.wrap)
    headings = [
        [(line, "head", False) for line in wrapped(text, size * 1.07, w)]
        for text, w in zip(table.columns, widths, strict=True)
    ]
    rows = [headings]
    for name, cells in table.rows:
        row: list[list[Line]] = [[(x, "", False) for x in wrapped(name, size, widths[0])]]
        for cell, w in zip(cells, widths[1:], strict=True):
            lines = [
                (x, cell.mark, False) for x in wrapped(cell.text, size * _bolder(cell.mark), w)
            ]
            if cell.detail:
                lines += [(x, cell.mark, True) for x in wrapped(cell.detail, size * _DETAIL, w)]
            row.append(lines or [("", "", False)])
        rows.append(row)
    return columns, rows


def _bolder(mark: str) -> float:
    return 1.07 if mark == "best" else 1.0  # bold type is wider


def _natural_widths(table: Table, size: float) -> list[float]:
    widths = [text_width(text, size, True) for text in table.columns]
    for name, cells in table.rows:
        widths[0] = max(widths[0], text_width(name, size, False))
        for place, cell in enumerate(cells, start=1):
            widths[place] = max(
                widths[place],
                text_width(cell.text, size, True),
                text_width(cell.detail, size * _DETAIL, False),
            )
    return [w * 1.02 + 0.02 for w in widths]


def _shared(natural: Sequence[float], room: float) -> list[float]:
    """Widths that fit: each its own where there is room, else the widest give way."""
    if sum(natural) <= room:
        return list(natural)
    first = min(natural[0], _NAME_SHARE * room)
    rest, left = list(natural[1:]), room - first
    order = sorted(range(len(rest)), key=lambda i: rest[i])
    for done, place in enumerate(order):
        share = left / (len(rest) - done)
        rest[place] = min(rest[place], share)
        left -= rest[place]
    return [first + max(0.0, left), *rest]
