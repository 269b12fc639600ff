"""Options for the use of columns, and the column report."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import rich.table

from nearwise.cli.options import refuse
from nearwise.cli.rows.image_rows import names_images
from nearwise.cli.tables import grid

if TYPE_CHECKING:
    from nearwise.estimators import ColumnReport


_ALL = 30  # most columns with one line each; beyond it, only notable columns
_SHOWN = 20
_MORE = {"date": r"(.+?)=(.*%.*)", "text": r"(.+?)=(.*[/\\].*)"}  # COLUMN=FORMAT, COLUMN=FOLDER
_PLURAL = {"number": "numbers", "category": "categories", "date": "dates", "text": "texts",
           "left out": "left out"}  # fmt: skip


def column_lines(reports: "Sequence[ColumnReport]", *, flags: bool) -> list[str]:
    """Format a column report, readable even for ten thousand columns.

    First the number of columns per use; then a line per column for up to 30, else for the first 20
    that are left out, dates, or have a reason. `flags` adds the flag of 'nearwise fit' that changes
    the use of a column.
    """
    counts = Counter(column.use for column in reports)
    named = [
        f"{n} {_PLURAL[use] if n > 1 or use == 'left out' else use}" for use, n in counts.items()
    ]
    lines = [f"{len(reports)} column{'s' if len(reports) > 1 else ''}: {', '.join(named)}."]
    with_gaps = [column for column in reports if column.missing]
    shown, n_explained = _named(reports), len(reports)
    if len(reports) > _ALL:
        n_explained = sum(bool(one.reason or one.use in ("left out", "date")) for one in reports)
        if with_gaps:
            most = max(with_gaps, key=lambda column: column.missing)
            lines.append(
                f"  {len(with_gaps)} columns have gaps, most {most.name} ({most.missing} rows)."
            )
    width = min(max((len(column.name) for column in shown), default=0), 30)
    lines += [f"  {column.name:<{width}}  {_described(column, flags)}" for column in shown]
    if n_explained > len(shown):
        lines.append(
            f"  and {n_explained - len(shown)} more like these ('nearwise inspect --json')."
        )
    return lines


def column_table(reports: "Sequence[ColumnReport]") -> rich.table.Table:
    """Make a table of the columns that `column_lines` names: use, values, and the reason."""
    heads = ("column", "used as", "distinct", "missing", "note")
    named = _named(reports)
    rows = [[one.name, one.use, one.distinct, one.missing or "", _note(one)] for one in named]
    title = column_lines(reports, flags=False)[0]
    if len(named) < len(reports):
        title += f" Here {len(named)} that need a look; --json has all."
    return grid(title, heads, rows, left=["used as", "note"], fold=False)


def _note(column: "ColumnReport") -> str:
    parts = [f"becomes {', '.join(column.parts)}"] if column.parts else []
    return "; ".join([*parts, *filter(None, [column.reason])])


def _named(reports: "Sequence[ColumnReport]") -> "list[ColumnReport]":
    """Return all of up to 30 columns, else the first 20 that are left out, dates, or explained."""
    if len(reports) <= _ALL:
        return list(reports)
    some = [column for column in reports if column.reason or column.use in ("left out", "date")]
    return sorted(some, key=lambda column: column.use != "left out")[:_SHOWN]


def _described(column: "ColumnReport", flags: bool) -> str:
    parts = [f"{column.use} ({column.type})"]
    if column.distinct is not None:
        parts.append(f"{column.distinct} distinct")
    if column.missing:
        parts.append(f"{column.missing} missing")
    if column.parts:
        parts.append("becomes " + ", ".join(column.parts))
    text = ", ".join(parts)
    if column.reason:
        text += f"; {column.reason}"
    if flags and column.change == "groups":
        text += f" (--groups {_quoted(column.name)} keeps them together)"
    elif flags and column.change:
        text += f" (--{column.change} {_quoted(column.name)} changes that)"
    return text


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


def column_uses(data: str, **flags: list[str] | None) -> dict[str, Any]:
    """Collect ``--keep``, ``--category``, ``--number``, ``--date`` and ``--text``: column to use.

    A date may have a format, ``--date day=%d-%m-%y``, and a text the folder of a model, with a
    slash in its path, ``--text body=./potion``.

    ValueError if two flags name a column, or `data` are images.
    """
    uses: dict[str, Any] = {}
    for use, names in flags.items():
        if names_images(data):
            refuse("names a column; images have none", {use: names or None})
        for name in names or []:
            more = re.fullmatch(_MORE[use], name) if use in _MORE else None
            name, wish = (more[1], f"{use}:{more[2]}") if more else (name, use)
            if uses.setdefault(name, wish) != wish:
                other = uses[name].partition(":")[0]
                raise ValueError(f"--{other} and --{use} both name {name!r}. Give one.")
    return uses
