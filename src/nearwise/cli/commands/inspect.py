"""``nearwise inspect``: description of a model and its remembered rows."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import rich.table
import typer

from nearwise.cli import options
from nearwise.cli.console import reported, show, show_below, show_json
from nearwise.cli.models import open_model
from nearwise.cli.outputs import holds_targets
from nearwise.cli.rows.column_options import column_table
from nearwise.cli.rows.frames import free_name
from nearwise.cli.rows.parsing import parse_numbers
from nearwise.cli.scores import left_out_scores
from nearwise.cli.several import described
from nearwise.cli.tables import fact_table, grid, shown_cell

if TYPE_CHECKING:
    from nearwise.estimators.opening import Estimator

_WIDE = 12  # columns
_QUARTILES = ("least", "lower quartile", "median", "upper quartile", "largest")
_MEASURED = ("calibration_source", "temperature", "oof_nll", "left_out_crps", "spread", "bounds")
_TITLES = {
    "choice": "choices of the fit",
    "calibration_source": "calibration",
    "oof_nll": "out-of-fold NLL",
    "left_out_crps": "out-of-sample CRPS",
    "shown": "rows with something to show",
    "spread": "factor of distribution widths",
    "left_out": "out-of-sample scores",
}


@reported
def inspect(
    model: options.ModelArgument,
    scores: Annotated[
        bool,
        typer.Option("--scores", help="Also score the rows in memory, each predicted as if new."),
    ] = False,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="IDS",
            help="Show rows in memory instead, by the ids that 'nearwise predict --explain' gives "
            "to neighbors: 0-4 or 0,2,7.",
        ),
    ] = None,
    store: options.StoreOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Describe a model: rows, classes or numbers, columns, choices of the fit, calibration, scores.

    [bold]Examples[/bold]
      nearwise inspect iris.model
      nearwise inspect iris.model --scores --json
      nearwise inspect iris.model --rows 3,17
    """
    if rows is not None and scores:
        raise ValueError("--rows shows rows, --scores measures all of them. Give one of the two.")
    learned = open_model(model, store, several=not scores and rows is None)
    found: Any
    if holds_targets(model):
        found = described(learned, model)
        if as_json:
            show_json(found)
        else:
            show(fact_table(found, str(model)))
        return
    if rows is None:
        found = describe(learned, scores=scores)
    else:
        found = remembered_rows(learned, parse_numbers("--rows", rows))
    if as_json:
        show_json(found)
    elif rows is None:
        reports = learned.report_.column_report
        left = {"column_report"} | ({"columns"} if reports else set())
        facts = {_TITLES.get(n, n): one for n, one in found.items() if n not in left}
        show(fact_table(facts, str(model)))
        if reports:  # none for images
            show_below(column_table(reports))
    else:
        show(_row_table(found, str(model)))


def remembered_rows(model: "Estimator", ids: Sequence[int]) -> list[dict[str, Any]]:
    """Look remembered rows up by id: "id", the label by the target's name, "show", and the columns.

    "show" is missing if none of the rows has anything to show. A column with a taken name gets a
    "_" appended. An image has only its file, if known.
    """
    from nearwise.estimators.uncertainty.explain import without_pixels
    from nearwise.memory import UnknownIdError

    fitted, found, strange = model.fitted_, [], []
    for one in ids:
        try:
            found += fitted.look_up([one])
        except UnknownIdError:
            strange.append(one)
    if strange:
        named, n_rows = ", ".join(map(str, strange[:5])), fitted.n_remembered
        last = fitted.next_id - 1
        some_gone = " Others were evicted or removed." if n_rows <= last else ""
        raise ValueError(
            f"--rows: the model does not remember {named}. It remembers {n_rows} rows, with ids "
            f"up to {last}.{some_gone}"
        )
    of_images = fitted.predictor.encoder.kind == "images"  # whose "file" is what is shown
    has_shown = any(row.show for row in found) and not of_images
    records = []
    for row in found:
        record: dict[str, Any] = {"id": row.id}
        cells: list[tuple[str, Any]] = [(fitted.target_name, row.label)]
        cells += [("show", row.show)] if has_shown else []
        for name, value in [*cells, *without_pixels(row.row).items()]:
            record[free_name(name, record)] = value
        records.append(record)
    return records


def describe(model: "Estimator", *, scores: bool = False) -> dict[str, Any]:
    """Collect the facts about a fitted model.

    rows, target, fitted (when), task, classes (rows per class) or numbers (range), columns (use of
    each), column_report, for images from files files (number per folder), settings (other than
    defaults), choice. For other rows shown (number of rows with something to show). For classes
    calibration_source, temperature and oof_nll, for numbers left_out_crps, spread and bounds; with
    `scores` left_out (leave-one-out metrics of the remembered rows).
    """
    import numpy as np

    from nearwise.estimators import Settings
    from nearwise.estimators.model.fitted_model import FittedClassifier

    fitted, report = model.fitted_, model.report_
    params, defaults = model.get_params(deep=False), type(model)().get_params(deep=False)
    rare = Settings.of(params.pop("settings", None)).stored()
    held: dict[str, Any] = {"task": "regression"}
    if isinstance(fitted, FittedClassifier):
        counts = zip(fitted.classes, fitted.rows_per_class, strict=True)
        held = {"task": "classification", "classes": {str(c): int(n) for c, n in counts}}
    else:
        parts = np.quantile(fitted.numbers, [0, 0.25, 0.5, 0.75, 1]).tolist()
        held["numbers"] = dict(zip(_QUARTILES, parts, strict=True))
    names = [] if fitted.row_names is None else fitted.row_names.tolist()
    is_image = fitted.predictor.encoder.kind == "images"
    folders = [name.partition("/")[0] or "no file" for name in names if is_image]
    n_shown = sum(map(bool, names))
    facts = {
        "rows": fitted.n_remembered,
        "target": fitted.target_name,
        **({"fitted": fitted.fitted_at} if fitted.fitted_at else {}),  # not in older folders
        **held,
        "columns": report.columns,
        "column_report": [column.to_json() for column in report.column_report],
        **({"files": Counter(folders)} if folders else {}),
        **({"shown": n_shown} if n_shown and not is_image else {}),
        "settings": {
            name: value
            for name, value in params.items()
            if value is not defaults[name] and value != defaults[name] and name != "verbose"
        }
        | rare,
        "choice": report.choice,
    } | {name: getattr(report, name) for name in _MEASURED if hasattr(report, name)}
    if not fitted.holds_memory and isinstance(fitted, FittedClassifier):
        from nearwise.estimators.stored.memory import stored

        facts["memory"] = stored(fitted).store.place
    return facts | ({"left_out": left_out_scores(model)} if scores else {})


def _row_table(rows: list[dict[str, Any]], title: str) -> rich.table.Table:
    names, *lines = [[*rows[0]], *([*map(shown_cell, row.values())] for row in rows)]
    if len(names) > _WIDE:  # transposed: one line per column
        names, *lines = map(list, zip(names, *lines, strict=True))
    return grid(f"Rows in the memory of {title}", names, lines, left=names)
