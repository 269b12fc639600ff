"""Options that say what a column is used as, and the report of what all are used as."""

from typing import Annotated, Any

import typer

from nearwise.cli.console import say
from nearwise.cli.rows.column_lines import column_lines
from nearwise.cli.rows.frames import require_columns
from nearwise.cli.rows.image_rows import names_images

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

    Parameters
    ----------
    data : str
        What is read.
    **flags : list of str, optional
        Columns named by ``--keep``, ``--category``, ``--number`` and ``--date``.

    Returns
    -------
    uses : dict of str to str
        The flag that names each column.

    Raises
    ------
    ValueError
        If two flags name a column, or images are read.
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

    Parameters
    ----------
    X : DataFrame
    data : str
        Names the table in messages.
    uses : dict of str to str
        As `column_uses` returns it.
    quiet : bool
        Say nothing.

    Raises
    ------
    ValueError
        If a column is not there or cannot be used as asked.
    """
    from nearwise.classifier import report_columns

    require_columns(X, uses, data)
    reports = report_columns(X, uses)
    if not quiet:
        for line in column_lines(reports, flags=True):
            say(line)
