"""``nearwise move``: write a model's memory to a store that outgrows this machine's memory."""

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
            help="A folder on disk or postgresql://USER@HOST/DATABASE#SCHEMA, not there yet; by "
            "default a folder in the new model. Passwords come from PGPASSWORD or ~/.pgpass.",
        ),
    ] = None,
    quiet: options.QuietOption = False,
) -> None:
    """Write the memory of a model to a store, so that it may outgrow this machine's memory.

    The new model predicts as the old one, which stays. It fetches the neighbors of each row when it
    predicts, so it opens at once and needs little memory. The commands predict, inspect, verify,
    add, remove, relabel, undo, history, compact and serve work with it as with any other model;
    what needs all remembered rows at once (evaluate, clean, refresh, the map and the review of the
    page) does not. Needs the extra disk or postgres.

    [bold]Examples[/bold]
      nearwise move iris.model --out large.model
      nearwise move iris.model --out shared.model --store postgresql://me@db.example/flowers#iris
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
