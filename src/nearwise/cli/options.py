"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="Table: CSV, TSV, Parquet or npz; - reads CSV from standard input."
    ),
]
RowsArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="Table: CSV, TSV, Parquet or npz; - reads CSV from standard input. Images: a file, or "
        "a folder of them.",
    ),
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
