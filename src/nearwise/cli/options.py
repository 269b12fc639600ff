"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Table: CSV (or .gz), Parquet, Excel, JSON or npz; - is standard input. "
        "Images: a folder with one folder per class.",
    ),
]
RowsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA",
        help="Table: CSV (or .gz), Parquet, Excel, JSON or npz; - is standard input. Images: "
        "files, or folders of them.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="COLUMN", help="Column of a table with the labels."),
]
KnownTargetOption = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="COLUMN", help="Default: the one used in training."),
]
SkipUnlabelledOption = Annotated[
    bool, typer.Option("--skip-unlabelled", help="Tables: leave out rows without a label.")
]
HeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Tables: whether the first line holds column names. Without names columns are "
        "called 0, 1, 2, ... Without this option, a first line that seems to be data "
        "is refused.",
    ),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder written by 'nearwise fit'.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URI",
        help="Where MODEL's memory is, if it is in a store outside its folder. No other place is "
        "opened than the one you name, with your user name and settings.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]


def named_store(store: str | None) -> list[str]:
    """Repeat --store in a command that is suggested."""
    return [] if store is None else ["--store", store]
