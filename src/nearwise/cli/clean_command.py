"""``nearwise clean``: the rows of a table whose label looks wrong."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nearwise.cli.console import say, show
from nearwise.cli.errors import reported
from nearwise.cli.frames import drop_columns, read_frame, split_target
from nearwise.cli.options import DataArgument, QuietOption
from nearwise.cli.parsing import parse_noise

if TYPE_CHECKING:
    import pandas as pd
    import rich.table

_NEIGHBORS = 5
_WIDEST = 4  # columns of a row that are shown


@reported
def clean(
    data: DataArgument,
    target: Annotated[
        str, typer.Option("--target", "-t", metavar="COLUMN", help="Column with the labels.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write all rows, worst first: CSV, TSV or Parquet, told by the suffix; - is "
            "standard output.",
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Leave a column out (an id, say); may be repeated."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Suspects to print.")] = 10,
    noise: Annotated[
        str,
        typer.Option(
            metavar="auto|none|RATE", help="Share of wrong labels: estimated, none, or in [0, 1)."
        ),
    ] = "auto",
    preset: Annotated[
        Literal["default", "fast"], typer.Option(help="fast: for a first look.")
    ] = "fast",
    judge: Annotated[
        Literal["nearwise", "cleanlab"],
        typer.Option(help='cleanlab: its ranking of the same probabilities (extra "labels").'),
    ] = "nearwise",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the fit.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """Find rows whose label looks wrong, and show the neighbors that say so.

    Every row is judged by models that were not fitted on it, most suspicious first. A suspect is a
    row to look at, not a verdict: rare cases look suspicious too. Rows count from 0.

    [bold]Examples[/bold]
      nearwise clean train.csv --target species
      nearwise clean train.csv -t churned --drop customer_id --top 20 --out suspects.csv
    """
    from nearwise.data.tables import table_format

    rate = parse_noise("--noise", noise)
    if out not in (None, "-") and table_format(out) is None:
        raise ValueError(f"--out {out}: use the suffix .csv, .tsv or .parquet, or - for CSV.")
    frame = drop_columns(read_frame(data), drop or [], data)
    features, labels = split_target(frame, target, data)

    from nearwise.estimators import AttnKNNClassifier

    model = AttnKNNClassifier(
        preset=preset, label_noise=rate, random_state=seed, verbose=0 if quiet else 1
    ).fit(features, labels)
    issues = model.label_issues(n_neighbors=_NEIGHBORS, judge=judge)
    if out != "-":
        title = f"The {min(top, len(issues))} most suspicious rows of {data}"
        show(_suspects(issues.head(top), features, labels, target, title))
    if rate == "auto" and not quiet:
        low, high = model.choice_["label_noise"]["interval"]
        say(f"Wrong labels: {model.noise_rate_:.1%} (95 % interval {low:.1%} to {high:.1%}).")
    if out is not None:
        write_issues(issues, out)
        if not quiet and out != "-":
            say(f"Wrote {len(issues)} rows to {out}, most suspicious first.")


def write_issues(issues: "pd.DataFrame", out: str) -> None:
    """Write the ranking; neighbors are ids with blanks between."""
    from nearwise.data.tables import write_table

    table = issues.assign(neighbors=[" ".join(map(str, ids)) for ids in issues["neighbors"]])
    write_table(table, out)


def _suspects(
    issues: "pd.DataFrame",
    features: "pd.DataFrame",
    labels: "pd.Series",
    target: str,
    title: str,
) -> "rich.table.Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("row", justify="right", style="bold")
    table.add_column(f"{target} given")
    table.add_column("suggested")
    table.add_column("given is right", justify="right")
    table.add_column("labels of its neighbors (rows)")
    shown = [str(column) for column in features.columns[:_WIDEST]]
    for name in shown:
        table.add_column(name)
    for suspect in issues.to_dict("records"):
        named = ", ".join(f"{labels.iloc[row]} ({row})" for row in suspect["neighbors"])
        values = [str(features.iloc[suspect["id"]][name]) for name in shown]
        table.add_row(
            str(suspect["id"]),
            str(suspect["given"]),
            str(suspect["suggested"]),
            f"{suspect['proba_given']:.1%}",
            named,
            *values,
        )
    return table
