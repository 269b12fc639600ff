"""``nearwise move``: write a model's memory to a row store, for memories larger than RAM."""

from pathlib import Path
from typing import Annotated

import typer

from nearwise.cli import options
from nearwise.cli.console import reported, say, steps, typed
from nearwise.cli.models import open_model
from nearwise.cli.options import named_store
from nearwise.cli.outputs import check_folder


@reported
def move(
    model: options.ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="The new model, which reads from the store."
        ),
    ],
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URI",
            help="New folder on disk, or new schema: postgresql://USER@HOST/DATABASE#SCHEMA. "
            "Default: a folder in the new model. Passwords come from PGPASSWORD or ~/.pgpass.",
        ),
    ] = None,
    quiet: options.QuietOption = False,
) -> None:
    """Write a model's training rows to a store on disk or in PostgreSQL, to save RAM.

    The new model predicts like the old one, which stays. It reads the neighbors of a row from the
    store when it predicts. So it opens at once, needs little RAM, and may outgrow this machine's
    RAM.

    The new model supports predict, inspect, verify, add, remove, relabel, undo, history, compact
    and serve. What needs all rows at once does not work: evaluate, clean and 'nearwise add
    --refresh'. Nor do the map and the review on the page of 'nearwise serve'. Needs the extra
    "disk" or "postgres".

    [bold]Examples[/bold]
      nearwise move iris.model --out large.model
      nearwise move iris.model -o big.model --store postgresql://me@db/flowers#iris
      nearwise add large.model more.csv
    """
    check_folder("--out", out, [model], for_model=True)
    from nearwise.estimators import move_memory
    from nearwise.estimators.stored.folder import is_stored

    if is_stored(model):
        raise ValueError(f"The memory of {model} is in a store already.")

    learned = open_model(model)

    with steps("writing rows", quiet=quiet) as tell:
        move_memory(
            learned, out, store, progress=lambda done, n_rows: tell(f"{done} of {n_rows} rows")
        )
    if not quiet:
        say(
            f"Moved {learned.fitted_.n_remembered} rows to {store or out / 'rows'}; {out} searches "
            f"them there. Try it: {typed('inspect', out, *named_store(store))}"
        )
