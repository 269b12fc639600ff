"""``nearwise datasets``: what the registry knows, and what is here."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearwise.cli.console import progress, show
from nearwise.cli.errors import reported
from nearwise.cli.options import DataRootOption

if TYPE_CHECKING:
    from nearwise.data import DatasetSummary


@reported
def datasets(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One data set, or a file; tells more about it."),
    ] = None,
    data_root: DataRootOption = None,
) -> None:
    """List the data sets that 'nearwise compare' knows by name, or describe one.

    Sets that need files are sought in the data root, then in the cache; only describing one by
    name downloads it.

    [bold]Examples[/bold]
      nearwise datasets
      nearwise datasets wine-red --data-root ~/data
      nearwise datasets my_table.csv:label
    """
    from nearwise.data import DatasetSummary, dataset_names, describe_dataset, load_dataset

    if name is not None:
        show(str(describe_dataset(load_dataset(name, data_root=data_root))))
        return
    known: dict[str, DatasetSummary | None] = {}
    for one in progress(dataset_names(), "looking"):
        try:
            known[one] = describe_dataset(load_dataset(one, data_root=data_root, download=False))
        except FileNotFoundError:
            known[one] = None
    show(_listing(known))
    if not all(known.values()):
        show("not here: 'nearwise datasets NAME' tells where it was sought, and downloads it.")


def _listing(known: "dict[str, DatasetSummary | None]") -> Any:
    from rich.table import Table

    table = Table()
    for title in ("name", "rows", "columns", "classes", "missing", "target"):
        right = title not in ("name", "target")
        table.add_column(title, justify="right" if right else "left")
    for name, summary in known.items():
        if summary is None:
            table.add_row(name, "not here")
            continue
        counts = (summary.n_rows, summary.n_columns, len(summary.classes))
        missing = sum(summary.missing.values())
        table.add_row(name, *(f"{n:,}" for n in counts), f"{missing:,}", summary.target_name)
    return table
