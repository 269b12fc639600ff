"""``nearwise add`` and ``nearwise inspect``: what a model remembers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearwise.cli.console import say, show
from nearwise.cli.errors import reported
from nearwise.cli.frames import match_columns, read_frame, split_target
from nearwise.cli.models import check_place, open_model, sole_writer
from nearwise.cli.options import DataArgument, ModelArgument, QuietOption

if TYPE_CHECKING:
    from nearwise.estimators import AttnKNNClassifier

_SHOWN = 30


@reported
def add(
    model: ModelArgument,
    data: DataArgument,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", metavar="COLUMN", help="Default: the one learned from."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Leave MODEL as it is; write here."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Teach a model new rows without training it again; new classes too.

    The rows join the memory, so the next prediction may ask them. The folder changes in one step:
    whatever happens on the way, it holds the old model or the new one.

    [bold]Examples[/bold]
      nearwise add iris.model more.csv
      nearwise add iris.model more.csv --out bigger.model
    """
    if out is not None:
        check_place(out, overwrite=False)
    with sole_writer(model):
        learned = open_model(model)
        frame, labels = split_target(read_frame(data), target or learned.target_name_, data)
        features = match_columns(frame, learned.feature_names_in_, data)
        before = set(learned.classes_.tolist())
        learned.add(features, labels)
        learned.save(out or model)
    if not quiet:
        new = [str(label) for label in learned.classes_.tolist() if label not in before]
        say(
            f"Added {len(frame)} rows; {out or model} now remembers {len(learned.memory_)} rows"
            + (f", and the new classes {', '.join(new)}." if new else ".")
        )


@reported
def inspect(
    model: ModelArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Tell what a model is: rows, classes, columns, what was chosen, calibration, scores.

    [bold]Examples[/bold]
      nearwise inspect iris.model
      nearwise inspect iris.model --json
    """
    from nearwise.experiments.records import plain

    facts = describe(open_model(model))
    if as_json:
        print(json.dumps(plain(facts), indent=2, ensure_ascii=False))
    else:
        show(_fact_table(facts, str(model)))


def describe(model: "AttnKNNClassifier") -> dict[str, Any]:
    """Collect what a fitted model can tell about itself.

    Parameters
    ----------
    model : AttnKNNClassifier
        Fitted.

    Returns
    -------
    facts : dict
        rows, target, classes (rows of each), columns (type of each), choice, n_neighbors,
        calibration_source, temperature, oof_nll.
    """
    import numpy as np

    labels = np.asarray(model.memory_.labels)
    positions = labels.argmax(axis=1) if labels.ndim == 2 else labels
    counts = np.bincount(positions, minlength=len(model.classes_))
    return {
        "rows": len(model.memory_),
        "target": model.target_name_,
        "classes": {str(label): int(n) for label, n in zip(model.classes_, counts, strict=True)},
        "columns": model.column_types_,
        "choice": model.choice_,
        "calibration_source": model.calibration_source_,
        "temperature": model.temperature_,
        "oof_nll": model.oof_nll_,
    }


def _fact_table(facts: dict[str, Any], title: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        shown = _listed(value) if isinstance(value, dict) else str(value)
        table.add_row(name.replace("_", " "), shown)
    return table


def _listed(values: dict[str, Any]) -> str:
    lines = [f"{name}: {value}" for name, value in list(values.items())[:_SHOWN]]
    if len(values) > _SHOWN:
        lines.append(f"and {len(values) - _SHOWN} more (--json shows all)")
    return "\n".join(lines)
