"""``nearwise clean``: rows of a table, or images of a folder, with suspected wrong labels."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import rich.table
import typer
from rich.cells import cell_len

from nearwise.cli import options
from nearwise.cli.console import (
    if_stopped,
    note_step,
    reported,
    say,
    terminal_width,
    typed_again,
)
from nearwise.cli.console import show as print_result
from nearwise.cli.outputs import check_output, require_data
from nearwise.cli.rows.column_options import column_uses
from nearwise.cli.rows.frames import free_name
from nearwise.cli.rows.image_rows import names_images
from nearwise.cli.rows.parsing import parse_noise
from nearwise.cli.rows.rows import Rows, read_to_learn
from nearwise.cli.rows.targets import estimator_for
from nearwise.cli.tables import cut, grid, shown_cell
from nearwise.names import listed

if TYPE_CHECKING:
    import pandas as pd

    from nearwise.estimators.noise.expected import ExpectedWrong

_NEIGHBORS = 5
_WIDEST = 4  # most columns shown per row
_FOR_NEIGHBORS = 22  # characters kept for the neighbors
_GAP = 3  # characters between columns
_LEAST = 12  # characters of what is shown with each row


@reported
def clean(
    data: options.DataArgument,
    target: options.TargetsOption = None,
    task: options.TaskOption = "auto",
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write all rows with their columns, most suspicious first. CSV, TSV or Parquet, "
            "by the suffix. - is standard output.",
        ),
    ] = None,
    drop: options.DropOption = None,
    keep: options.KeepOption = None,
    category: options.CategoryOption = None,
    number: options.NumberOption = None,
    date: options.DateOption = None,
    text: options.TextOption = None,
    keep_words: options.WordsOption = None,
    show: options.ShowOption = None,
    top: Annotated[int, typer.Option(min=1, help="Number of suspicious rows to print.")] = 10,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="auto|none|RATE",
            help="Share of wrong labels. auto: estimate it. none: take labels as they are. RATE: "
            "a share in [0, 1). Default: auto for images, none for tables. For tables auto takes "
            "many times longer and finds as many.",
        ),
    ] = None,
    judge: Annotated[
        Literal["nearwise", "cleanlab"],
        typer.Option(
            help='Ranking. cleanlab: its own, of the same probabilities (extra "labels").'
        ),
    ] = "nearwise",
    image_size: options.ImageSizeOption = None,
    color: options.ColorOption = None,
    skip_damaged: options.SkipDamagedOption = False,
    skip_unlabelled: options.SkipUnlabelledOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the fit.")] = 0,
    header: options.HeaderOption = None,
    sheet: options.SheetOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Find rows whose label, or number, looks wrong, and show their neighbors as evidence.

    Each row is predicted by models that were not fitted on it. The most suspicious rows come first.
    Check them before you change anything: rare cases look suspicious too. Rows count from 0.

    For images DATA is a folder with one folder per class. If few labels are wrong, the networks
    have learned most of them; "independent" marks the images held out of training.

    [bold]Examples[/bold]
      nearwise clean train.csv --target species
      nearwise clean train.csv -t churned --category zip --top 20 --out suspects.csv
      nearwise clean train.csv -t churned --noise auto
      nearwise clean flowers/ --image-size 64 --noise 0.05
    """
    check_output("--out", out, [data])
    if noise is not None:
        parse_noise("--noise", noise)  # before anything slow is imported
    require_data([data])
    slow = f" Faster: {typed_again('--noise', 'none')}" if noise == "auto" else ""
    if_stopped(f"Nothing was written: the same command begins anew.{slow}")

    from nearwise.data.tables.files import table_format

    are_images = names_images(data)
    rate = parse_noise("--noise", noise or ("auto" if are_images else "none"))
    if out not in (None, "-") and table_format(out) is None:
        raise ValueError(f"--out {out}: use the suffix .csv, .tsv or .parquet, or - for CSV.")
    if rate is None and are_images:
        raise ValueError(
            "--noise none: one network sees all images, so only an estimate of wrong labels can "
            "rank them. Use --noise auto, or say how many may be wrong: --noise 0.05."
        )
    uses = column_uses(data, keep=keep, category=category, number=number, date=date, text=text)
    reading = options.ReadOptions(
        header, sheet, skip_unlabelled, image_size, color, skip_damaged, quiet=quiet
    )
    words = keep_words or []
    rows = read_to_learn(
        data, target, reading, uses=uses, drop=drop or [], keep_words=words, show=show, task=task
    )

    if rows.y.ndim > 1:
        raise ValueError(
            f"--target names {rows.y.shape[1]} columns ({listed(list(rows.y))}), and clean looks "
            "at the labels of one. Give the option once, for each column in turn."
        )

    from nearwise.estimators import ColumnWarning, review
    from nearwise.estimators.progress import reporting_stages_to

    model = estimator_for(rows)(
        preset="instant" if rate is None else "default",
        label_noise=rate,
        columns=uses or None,
        random_state=seed,
        verbose=0 if quiet else 1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)  # part of the report
        with reporting_stages_to(note_step):
            model.fit(rows.source)
        note_step("the search for wrong labels")
    reviewed = review(model)
    issues = reviewed.issues(n_neighbors=_NEIGHBORS, judge=judge)
    if out != "-":
        shown = [] if rows.show is None else [rows.show]
        title = f"The {min(top, len(issues))} most suspicious {rows.noun} of {data}"
        uses = model.report_.columns
        names = [n for n in getattr(rows.X, "columns", ()) if uses.get(str(n)) != "left out"]
        print_result(_suspects(issues.head(top), rows, [*shown, *names[:_WIDEST]], title))
    if not quiet:
        say(_expected(model, reviewed.expected_wrong_labels()))
    if out is not None:
        write_issues(issues, rows, out)
        if not quiet and out != "-":
            say(f"Wrote {len(issues)} rows to {out}, most suspicious first.")
    if not quiet:
        say(_verdict(issues, rows))


def _expected(model: Any, expected: "ExpectedWrong") -> str:
    """Say how many labels are expected to be wrong, and what an estimate decided in the fit."""
    note = model.report_.choice.get("label_noise") or {}
    decided = f"; {note['decision']}" if "decision" in note else ""
    what = "labels" if hasattr(model, "classes_") else "targets"
    return f"Wrong {what}: {expected}{decided}."


def _verdict(issues: "pd.DataFrame", rows: Rows) -> str:
    """Count the suspects, and say what to do about them."""
    if rows.task == "regression":
        n, why = int((issues["suspicion"] > 0.5).sum()), "are more likely wrong than right"
        return f"{n} of {len(rows)} targets {why}. Correct them, or fit with --label-noise auto."
    n = int((issues["suggested"] != issues["given"]).sum())
    return (
        f"{n} of {len(rows)} {rows.noun} have another suggested label; if classes overlap, many of "
        "them are right. Check them; then correct the data, or fit with --label-noise auto."
    )


def write_issues(issues: "pd.DataFrame", rows: Rows, out: str) -> None:
    """Write the ranking, with the columns of each row, or its file for images.

    Neighbors are ids separated by blanks. A column with a name of the ranking gets a "_" appended.
    """
    import pandas as pd

    from nearwise.data.tables.files import write_table

    table = issues.assign(neighbors=[" ".join(map(str, ids)) for ids in issues["neighbors"]])
    numbers = rows.y.index[issues["id"].to_numpy()]
    if isinstance(rows.X, pd.DataFrame):  # row numbers of the file, since some rows may be skipped
        table["id"] = numbers
        table["neighbors"] = [
            " ".join(map(str, rows.y.index[list(ids)])) for ids in issues["neighbors"]
        ]
        columns: dict[str, pd.Series] = {}
        taken = set(table.columns)
        assert rows.frame is not None  # set for tables
        given = rows.frame.as_written(list(rows.X.columns)).loc[numbers]
        for name, column in given.set_axis(issues.index).items():
            free = free_name(name, taken)
            taken.add(free)
            columns[free] = column
        table = pd.concat([table, pd.DataFrame(columns)], axis=1)
    elif rows.names is not None:
        table.insert(1, "file", rows.names[issues["id"]])
    write_table(table, out)


def _suspects(issues: "pd.DataFrame", rows: Rows, names: list[str], title: str) -> rich.table.Table:
    """Make a table of suspects: what is shown with each, and columns and neighbors that fit."""
    is_number, suspects = "low" in issues, issues.to_dict("records")
    columns: dict[str, list[str]] = {
        f"{rows.y.name}\ngiven": [shown_cell(one["given"]) for one in suspects],
        "suggested": [shown_cell(one["suggested"]) for one in suspects],
    }
    if is_number:
        columns["usual\n(90 %)"] = [
            " to ".join(shown_cell(one[end]) for end in ("low", "high")) for one in suspects
        ]
    else:
        columns["given\nis right"] = [f"{100 * one['proba_given']:.1f} %" for one in suspects]
    number = {"row": [str(rows.y.index[one["id"]]) for one in suspects]}
    left = (terminal_width() or 10**6) - sum(map(_width, (number | columns).items())) - 2  # edges
    described = [rows.described(one["id"], names) for one in suspects]
    shown = {}
    if (face := "file" if rows.names is not None else rows.show) is not None:
        widest = max(left - _FOR_NEIGHBORS - _GAP, _LEAST)
        shown = {
            free_name(face, number | columns): [
                cut(values.pop(face), widest) for values in described
            ]
        }
    columns = number | shown | columns
    left -= sum(map(_width, shown.items()))
    for name in described[0]:
        column = free_name(name, columns), [values[name] for values in described]
        if left - _width(column) < _FOR_NEIGHBORS:
            break
        left -= _width(column)
        columns[column[0]] = column[1]
    columns["neighbors (rows)"] = [_neighbors(rows, one["neighbors"], left) for one in suspects]
    lines = zip(*columns.values(), strict=True)
    return grid(title, list(columns), lines, left=list(columns)[1:], fold=False)


def _width(column: tuple[str, list[str]]) -> int:
    head, values = column
    return max(map(cell_len, [*head.split("\n"), *values])) + _GAP


def _neighbors(rows: Rows, ids: "Sequence[int]", width: int) -> str:
    """Name the labels of the rows that fit, each with its rows: "no (3, 17), yes (4)"."""
    by_label: dict[str, list[str]] = {}
    for row in ids:
        label = shown_cell(rows.y.iloc[row])
        by_label.setdefault(label, []).append(str(rows.y.index[row]))
    text = ", ".join(f"{label} ({', '.join(found)})" for label, found in by_label.items())
    return text if len(text) <= width or len(ids) < 2 else _neighbors(rows, ids[:-1], width)
