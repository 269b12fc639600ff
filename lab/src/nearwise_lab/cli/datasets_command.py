"""``nearwise datasets``: the registered data sets and their files on this machine."""

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearwise.cli.console import progress, reported, show
from nearwise_lab.cli.needs import DataRootOption

if TYPE_CHECKING:
    from nearwise_lab.data import DatasetSummary

_ABSENT = "not here"
_UNREADABLE = "cannot be read"


@reported
def datasets(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="A data set, a file or a folder of images to describe.",
        ),
    ] = None,
    data_root: DataRootOption = None,
) -> None:
    """List the data sets that 'nearwise compare' takes by name, or describe one.

    Files of a data set are searched for in the data root, then in the cache. A data set that is
    described by name is downloaded if it is not there.

    [bold]Examples[/bold]
      nearwise datasets
      nearwise datasets wine-red --data-root ~/data
      nearwise datasets my_table.csv:label
      nearwise datasets my_images/
    """
    from nearwise_lab.data import DatasetSummary, dataset_names, describe_dataset, load_dataset

    if name is not None:
        show(str(describe_dataset(load_dataset(name, data_root=data_root))))
        return
    known: dict[str, DatasetSummary | str] = {}
    for one in progress(dataset_names(), "looking"):
        try:
            with warnings.catch_warnings():  # about sets that were not named
                warnings.simplefilter("ignore")
                loaded = load_dataset(one, data_root=data_root, download=False)
            known[one] = describe_dataset(loaded)
        except FileNotFoundError:
            known[one] = _ABSENT
        except ImportError:
            known[one] = 'needs the extra "vision"'
        except (ValueError, OSError):
            known[one] = _UNREADABLE
    show(_listing(known))
    if _ABSENT in known.values():
        show("not here: 'nearwise datasets NAME' shows the folders searched, and downloads it.")
    if _UNREADABLE in known.values():
        show("cannot be read: 'nearwise datasets NAME' shows why.")


def _listing(known: "dict[str, DatasetSummary | str]") -> Any:
    from rich.table import Table

    table = Table()
    # a name is there to be typed: it keeps its width, the other columns shrink
    table.add_column("name", no_wrap=True, min_width=max(map(len, known), default=0))
    for title in ("rows", "columns", "classes", "missing", "target"):
        right = title != "target"
        table.add_column(title, justify="right" if right else "left")
    for name, summary in known.items():
        if isinstance(summary, str):
            table.add_row(name, summary)
            continue
        shape = summary.image_shape
        table.add_row(
            name,
            f"{summary.n_rows:,}",
            f"{summary.n_columns:,}" if shape is None else " x ".join(map(str, shape)),
            f"{len(summary.classes):,}",
            f"{sum(summary.missing.values()):,}",
            summary.target_name,
        )
    return table
