"""``nearwise embed``: the keys of rows, by which their neighbors are found."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearwise.cli.answer_columns import beside
from nearwise.cli.batches.ray_engine import Cluster, run_batch
from nearwise.cli.console import reported, say
from nearwise.cli.models import open_model
from nearwise.cli.options import (
    AddressOption,
    EngineOption,
    HeaderOption,
    ModelArgument,
    QuietOption,
    RowsArgument,
    StoreOption,
    WorkersOption,
)
from nearwise.cli.outputs import check_output
from nearwise.cli.rows.image_rows import ImageOptions, ResizeOption, SkipDamagedOption
from nearwise.cli.rows.rows import read_to_predict

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.classifier import AttnKNNClassifier


@reported
def embed(
    model: ModelArgument,
    data: RowsArgument,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="CSV, TSV, Parquet or npz, by the suffix. With --engine ray a folder of "
            "Parquet files.",
        ),
    ],
    space: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which of MODEL's spaces the keys are from; an unknown name lists them.",
        ),
    ] = "features",
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Copy a column of DATA (an id, say); repeatable."),
    ] = None,
    resize: ResizeOption = False,
    skip_damaged: SkipDamagedOption = False,
    header: HeaderOption = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    store: StoreOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the keys of rows: the numbers by which a model finds their neighbors.

    The output has a row for each row of DATA, in the same order: the columns kept (for images their
    'file'), then the key in columns 'e0', 'e1', ...; in an npz the keys are one array X. Rows with
    keys close to each other are neighbors.

    --engine ray writes parts, as in 'nearwise predict'.

    [bold]Examples[/bold]
      nearwise embed iris.model new.csv --out keys.parquet
      nearwise embed iris.model new.csv --out keys.npz --keep id
      nearwise embed flowers.model photos/ --engine ray --out keys/
    """
    from nearwise.data.tables.files import table_format, write_table

    keys, cluster = Keys(space), Cluster(address, workers)
    images = ImageOptions(skip_damaged=skip_damaged, resize=resize)
    if engine == "ray":
        run_batch(
            keys,
            model,
            data,
            out,
            store=store,
            keep=keep or [],
            images=images,
            header=header,
            cluster=cluster,
            quiet=quiet,
        )
        return
    cluster.refuse()
    check_output("--out", out, data)
    form = "csv" if out == "-" else table_format(out)
    if form is None:
        raise ValueError(f"--out {out}: use the suffix .csv, .tsv, .parquet or .npz, or - for CSV.")
    learned = open_model(model, store)
    copied, features = read_to_predict(
        learned, model, data, keep or [], images, header=header, quiet=quiet
    )
    table = keys.table(learned, copied, features)
    n_numbers = table.shape[1] - copied.shape[1]
    if form == "npz":  # which holds columns f0, f1, ... as one array
        table = table.rename(columns={f"e{i}": f"f{i}" for i in range(n_numbers)})
    write_table(table, out, format=form)
    if not quiet and out != "-":
        say(f"Wrote {len(table)} keys of {n_numbers} numbers to {out}.")


@dataclass(frozen=True)
class Keys:
    """The keys of rows in a space."""

    space: str

    def settings(self) -> dict[str, Any]:
        """Return all options."""
        return {"command": "embed"} | asdict(self)

    def table(
        self,
        model: "AttnKNNClassifier",
        copied: "pd.DataFrame",
        features: "pd.DataFrame | np.ndarray",
    ) -> "pd.DataFrame":
        """Lay keys out as columns after those that are passed on."""
        import pandas as pd

        keys = model.keys(features, self.space).numpy()
        columns = [f"e{i}" for i in range(keys.shape[1])]
        return beside(copied, pd.DataFrame(keys, columns=columns))
