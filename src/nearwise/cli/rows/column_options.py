"""Options that say what a column is used as, and the report of what all are used as."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearwise.cli.console import say
from nearwise.cli.rows.frames import require_columns
from nearwise.cli.rows.image_rows import names_images

if TYPE_CHECKING:
    from nearwise.classifier import ColumnReport


_ALL = 30  # columns up to which each has its line; of more, only those with something to say
_SHOWN = 20
_PLURAL = {"number": "numbers", "category": "categories", "date": "dates", "left out": "left out"}


def column_lines(reports: "Sequence[ColumnReport]", *, flags: bool) -> list[str]:
    """Lay a column report out, readable for ten thousand columns too.

    Returns `lines`, list of str: how many columns are used as what; then a line for each column of
    up to 30, else for the first 20 that are left out, dates, or come with a reason.

    Parameters
    ----------
    flags : bool
        Whether to name the flag of 'nearwise fit' that uses a column in another way.
    """
    counts = Counter(one.use for one in reports)
    named = [
        f"{n} {_PLURAL[use] if n > 1 or use == 'left out' else use}" for use, n in counts.items()
    ]
    lines = [f"{len(reports)} column{'s' if len(reports) > 1 else ''}: {', '.join(named)}."]
    with_gaps = [one for one in reports if one.missing]
    some = list(reports)
    if len(reports) > _ALL:
        some = [one for one in reports if one.reason or one.use in ("left out", "date")]
        some.sort(key=lambda one: one.use != "left out")
        if with_gaps:
            most = max(with_gaps, key=lambda one: one.missing)
            lines.append(
                f"  {len(with_gaps)} columns have gaps, most {most.name} ({most.missing} rows)."
            )
    shown = some if len(reports) <= _ALL else some[:_SHOWN]
    width = min(max((len(one.name) for one in shown), default=0), 30)
    lines += [f"  {one.name:<{width}}  {_described(one, flags)}" for one in shown]
    if len(some) > len(shown):
        lines.append(f"  and {len(some) - len(shown)} more like these ('nearwise inspect --json').")
    return lines


def _described(one: "ColumnReport", flags: bool) -> str:
    parts = [f"{one.use} ({one.type})"]
    if one.distinct is not None:
        parts.append(f"{one.distinct} distinct")
    if one.missing:
        parts.append(f"{one.missing} missing")
    if one.parts:
        parts.append("becomes " + ", ".join(one.parts))
    text = ", ".join(parts)
    if one.reason:
        text += f"; {one.reason}"
    if flags and one.change:
        text += f" (--{one.change} {_quoted(one.name)} changes that)"
    return text


def _quoted(name: str) -> str:
    return f'"{name}"' if " " in name else name


DropOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Leave a column out (an id, say); may be repeated."),
]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Use a column that would be left out as an id; may be repeated."
    ),
]
CategoryOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Take its numbers for categories (zip codes); may be repeated."
    ),
]
NumberOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="Take its text cells for gaps; may be repeated."),
]
DateOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="Take its text for dates, or say why not; may be repeated."
    ),
]


def column_uses(data: str, **flags: list[str] | None) -> dict[str, Any]:
    """Collect what the flags say of columns; one column, one use.

    Returns `uses`, dict of str to str: the flag that names each column. Raises ValueError if two
    flags name a column, or images are read.

    Parameters
    ----------
    data : str
        What is read.
    **flags : list of str, optional
        Columns named by ``--keep``, ``--category``, ``--number`` and ``--date``.
    """
    uses: dict[str, Any] = {}
    for use, names in flags.items():
        for name in names or []:
            if names_images(data):
                raise ValueError(f"--{use} names a column; images have none. Leave it out.")
            if uses.setdefault(name, use) != use:
                raise ValueError(f"--{uses[name]} and --{use} both name {name!r}. Give one.")
    return uses


def report(X: Any, data: str, uses: dict[str, Any], *, quiet: bool) -> None:
    """Say what the columns of a table will be used as; refuse here what cannot be used.

    Raises ValueError if a column is not there or cannot be used as asked.

    Parameters
    ----------
    data : str
        Names the table in messages.
    uses : dict of str to str
        As `column_uses` returns it.
    quiet : bool
        Say nothing.
    """
    from nearwise.classifier import report_columns

    require_columns(X, uses, data)
    reports = report_columns(X, uses)
    if not quiet:
        for line in column_lines(reports, flags=True):
            say(line)
