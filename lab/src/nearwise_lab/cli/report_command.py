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
    """Render the report of a results folder again, from its records.

    Writes report.html (one page that needs no network) and report.pdf. All tables become
    results.md, .tex, .csv and .json, all figures PDF, SVG and PNG files in figures/. Records do not
    change. For experiments, the report has a verdict for each claim whose experiment was run.

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
