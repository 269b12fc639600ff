"""``nearwise report``: the content of a results folder, rendered from its records alone."""

from pathlib import Path
from typing import Annotated

import typer

from nearwise.cli.console import say, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.rows.parsing import split_list
from nearwise_lab.cli.needs import lab_command


@lab_command
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of 'nearwise experiment', 'compare' or 'field compare'."
        ),
    ],
    formats: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="Some of html, pdf, md, tex, csv, json, figures; default: all."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the report.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Render the report of a results folder again, from its records alone.

    Writes report.html (one page that needs no network), report.pdf, and all tables as results.md,
    .tex, .csv and .json beside the records, which are never changed; figures/ gets every figure as
    PDF, SVG and PNG. A folder of experiments gets the verdict on every claim, computed from the
    records; what was not run is left out.

    [bold]Examples[/bold]
      nearwise report runs/replay
      nearwise report runs/first --formats html,pdf,figures --title "Wine, five seeds"
    """
    from nearwise_lab.report import FORMATS, render_report

    wanted = split_list(formats) or FORMATS
    with steps("Writing the report", quiet=quiet) as progress:
        page = render_report(folder, title=title, formats=wanted, progress=progress)
    if not quiet:
        say(f"Report: {page}")
