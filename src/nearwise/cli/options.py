"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Table: CSV, TSV, Parquet or npz; - reads CSV from standard input. Images: a folder "
        "with a folder for each class.",
    ),
]
RowsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="DATA",
        help="Table: CSV, TSV, Parquet or npz; - reads CSV from standard input. Images: files, or "
        "folders of them.",
    ),
]
TargetOption = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="COLUMN", help="Column of a table with the labels."),
]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model folder written by 'nearwise fit'.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]
DataRootOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Where data sets lie (default: the NEARWISE_DATA variable, then the cache, then a "
        "download).",
    ),
]
