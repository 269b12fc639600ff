"""``nearwise explain``: an answer and the neighbors behind it, in the terminal."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearwise.cli import options
from nearwise.cli.console import if_stopped, reported, show_cards
from nearwise.cli.models import open_model, require_model
from nearwise.cli.outputs import require_data
from nearwise.cli.rows.parsing import parse_numbers
from nearwise.cli.rows.rows import read_to_predict, take_rows

if TYPE_CHECKING:
    from nearwise.cli.explaining import Explained

_FIRST = 5  # rows shown if none are chosen


@reported
def explain(
    model: options.ModelArgument,
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROWS",
            help="Table: CSV (or .gz), Parquet, Excel, JSON, npz or svmlight. - is standard input. "
            "Images: files, or folders of files. Not with --id.",
        ),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="IDS",
            help="Explain rows of MODEL's memory instead, each left out of its own neighbors: "
            "17 or 3,17.",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="NUMBERS",
            help="Which rows of ROWS, counted from 0: 0,3 or 10-14. Default: the first five.",
        ),
    ] = None,
    header: options.HeaderOption = None,
    sheet: options.SheetOption = None,
    resize: options.ResizeOption = False,
    skip_damaged: options.SkipDamagedOption = False,
    neighbors: Annotated[
        int,
        typer.Option(
            "--neighbors",
            "-n",
            min=0,
            help="How many neighbors, largest weight first. 0 shows all.",
        ),
    ] = 5,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Show answers with the neighbors behind them: a card per row.

    A card begins with the answer in words: how sure it is, the classes or numbers that are not
    ruled out, and whether the row is unusual. Below the row stand its neighbors, with their share
    of the attention and the answer without them. Columns that differ come first.

    In a pipe or a file the cards are one table of tab-separated text.

    [bold]Examples[/bold]
      nearwise explain iris.model new.csv
      nearwise explain iris.model new.csv --rows 0,3 -n 10
      nearwise explain iris.model --id 17
      nearwise explain flowers.model photos/ --resize
    """
    if (ids is None) == (not data):
        seen = "Both are given" if data else "Neither is given"
        asks = "Give a table or images as ROWS, or ids of rows in memory as --id."
        raise ValueError(f"{asks} {seen}.")
    if ids is not None and rows is not None:
        raise ValueError("--rows numbers the rows of ROWS, and --id those in memory. Give one.")
    require_model(model)
    n = neighbors or None
    if ids is not None:
        from nearwise.cli.explaining import explain_remembered

        show_cards(explain_remembered(model, parse_numbers("--id", ids), n, store))
        return
    numbers = None if rows is None else parse_numbers("--rows", rows)
    given = data or []
    require_data(given)
    if_stopped("The rows shown so far are complete. Fewer --rows take less time.")
    reading = options.ReadOptions(
        header, sheet, skip_damaged=skip_damaged, resize=resize, quiet=quiet
    )
    learned = open_model(model, store)
    copied, features = read_to_predict(learned, model, given, [], reading)
    show_cards(_of_table(learned, features, copied, numbers, n, given))


def _of_table(
    learned: Any, features: Any, copied: Any, numbers: list[int] | None, n: int | None, data: Any
) -> "list[Explained]":
    import numpy as np

    from nearwise.cli.explaining import explain_rows

    chosen = list(range(min(_FIRST, features.shape[0]))) if numbers is None else numbers
    if chosen and max(chosen) >= features.shape[0]:
        raise ValueError(
            f"--rows: there is no row {max(chosen)}; rows count from 0 to {features.shape[0] - 1}."
        )
    names = {str(at): f"{data[0]}, row {at}" for at in chosen}
    if "file" in copied:
        names = {str(at): str(copied["file"].iloc[at]) for at in chosen}
    return explain_rows(learned, take_rows(features, np.array(chosen)), names, n)
