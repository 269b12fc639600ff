"""``nearwise embed``: the keys of rows, used in the neighbor search."""

from typing import Annotated

import typer

from nearwise.cli import options
from nearwise.cli.answer_columns import beside
from nearwise.cli.console import if_stopped, reported, say
from nearwise.cli.models import open_model, require_model
from nearwise.cli.outputs import check_output, require_data
from nearwise.cli.rows.rows import read_to_predict


@reported
def embed(
    model: options.ModelArgument,
    data: options.RowsArgument,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="FILE", help="CSV, TSV, Parquet or npz, by the suffix."
        ),
    ],
    space: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which of MODEL's embeddings to write. An unknown name lists them all.",
        ),
    ] = "features",
    copy: options.CopyOption = None,
    resize: options.ResizeOption = False,
    skip_damaged: options.SkipDamagedOption = False,
    header: options.HeaderOption = None,
    sheet: options.SheetOption = None,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Write the embeddings (keys) of rows: the vectors by which a model finds their neighbors.

    The output has one row per row of DATA, in the same order. First come the columns of --copy
    (for images their 'file'), then the embedding in columns 'e0', 'e1', ... An npz file holds the
    embeddings as one array X. Rows with embeddings close to each other are neighbors.

    [bold]Examples[/bold]
      nearwise embed iris.model new.csv --out keys.parquet
      nearwise embed iris.model new.csv --out keys.npz --copy id
      nearwise embed flowers.model photos/ --out keys.parquet
    """
    require_model(model)
    require_data(data)
    check_output("--out", out, data)
    if_stopped("Nothing was written: the same command begins anew.")

    import pandas as pd

    from nearwise.data.tables.files import table_format, write_table

    reading = options.ReadOptions(
        header, sheet, skip_damaged=skip_damaged, resize=resize, quiet=quiet
    )
    form = "csv" if out == "-" else table_format(out)
    if form is None:
        raise ValueError(f"--out {out}: use the suffix .csv, .tsv, .parquet or .npz, or - for CSV.")
    learned = open_model(model, store)
    copied, features = read_to_predict(learned, model, data, copy or [], reading)
    keys = learned.keys(features, space)
    letter = "f" if form == "npz" else "e"  # an npz holds columns f0, f1, ... as one array
    columns = [f"{letter}{i}" for i in range(keys.shape[1])]
    write_table(beside(copied, pd.DataFrame(keys, columns=columns)), out, format=form)
    if not quiet and out != "-":
        say(f"Wrote {len(keys)} embeddings of {keys.shape[1]} numbers to {out}.")
