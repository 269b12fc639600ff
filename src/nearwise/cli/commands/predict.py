"""``nearwise predict``: labels, probabilities and neighbors."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli import options
from nearwise.cli.answer_columns import (
    TrustOptions,
    beside,
    neighbor_columns,
    number_columns,
    spoken,
    trust_columns,
    write_json_lines,
)
from nearwise.cli.console import if_stopped, reported, say
from nearwise.cli.models import open_model, require_model
from nearwise.cli.outputs import check_output, holds_targets, require_data
from nearwise.cli.rows.rows import read_to_predict
from nearwise.cli.several import predicted_columns

if TYPE_CHECKING:
    import pandas as pd

Format = Literal["csv", "tsv", "parquet", "npz", "jsonl"]


@reported
def predict(
    model: options.ModelArgument,
    data: options.RowsArgument,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="CSV, TSV, Parquet, npz or JSON lines (.jsonl), by the suffix. - is "
            "standard output.",
        ),
    ] = "-",
    proba: Annotated[
        bool, typer.Option("--proba", help="Add the probability of every class.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the neighbors behind each prediction.")
    ] = False,
    neighbors: Annotated[
        int,
        typer.Option(min=0, help="With --explain: how many, largest weight first. 0 shows all."),
    ] = 5,
    coverage: options.CoverageOption = None,
    max_risk: options.RiskOption = None,
    sets: Annotated[
        bool, typer.Option("--sets", help="Add the prediction set: classes that are not ruled out.")
    ] = False,
    confidence: options.ConfidenceOption = None,
    output: Annotated[
        Literal["mean", "median", "mode"] | None,
        typer.Option(help="Numbers: statistic of the distribution to predict (default: mean)."),
    ] = None,
    quantiles: Annotated[
        str | None,
        typer.Option(metavar="LEVELS", help="Numbers: add quantiles, such as .05,.5,.95."),
    ] = None,
    novelty: Annotated[
        bool,
        typer.Option(
            "--novelty",
            help="Add the out-of-distribution p-value: the share of known rows with at least "
            "this novelty score.",
        ),
    ] = False,
    copy: options.CopyOption = None,
    resize: options.ResizeOption = False,
    skip_damaged: options.SkipDamagedOption = False,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="Format of the output, if the suffix does not show it."),
    ] = None,
    header: options.HeaderOption = None,
    sheet: options.SheetOption = None,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    r"""Predict the rows of a table, or images.

    The output has one row per row of DATA, in the same order: those of --copy, then 'prediction'.
    --proba adds 'proba_CLASS' for each class. Columns of DATA are matched by name.

    --explain adds 'base_proba' and 'neighbor_proba': the probability of the prediction by the base
    and by the neighbors alone. It adds 'null_mass', the share of attention that goes to no
    neighbor. For each neighbor it adds id, label, weight and distance, and how it differs, or the
    file of an image. The id is the row number in the training data, from 0. JSON lines also hold
    the neighbors' rows and the prediction without each. 'nearwise explain' shows all this.

    Four options add how far to trust a prediction, measured on held-out training rows. --coverage
    or --max-risk adds 'accepted': use the prediction, or leave the row to a person. --sets adds
    'set', the classes that are not ruled out, joined by |. A | in a class name is written \|. An
    empty set means that no class fits. --novelty adds 'novelty_p', the out-of-distribution p-value.
    It is the share of known rows with at least this novelty score. A threshold of 0.05 raises a
    false alarm for one known row in twenty.

    If MODEL predicts numbers, --confidence adds an interval, from 'low' to 'high'. --quantiles adds
    'quantile_LEVEL' for each level. --explain adds 'base_prediction', and neighbors have a target
    instead of a label.

    If MODEL has several targets, the output has 'prediction_TARGET' for each. --proba adds
    'proba_TARGET'. --sets adds 'labels': together they hold the share --confidence of the true
    labels of a row, on average.

    If MODEL is of images, DATA is images, or folders that hold images at any depth. The output
    begins with their 'file'. They are converted to greyscale or colour as the model needs.

    [bold]Examples[/bold]
      nearwise predict iris.model new.csv --out predictions.csv --proba
      nearwise predict iris.model new.csv --out why.jsonl --explain --neighbors 10
      nearwise predict iris.model new.csv --out answers.csv --coverage 0.9 --novelty
      nearwise predict iris.model new.csv --out sets.csv --sets --confidence 0.95
      nearwise predict price.model new.csv --quantiles .1,.5 --confidence 0.9
      nearwise predict flowers.model photos/ --resize --proba
      cat new.csv | nearwise predict iris.model - --copy id | head
    """
    trust_options = TrustOptions(coverage, max_risk, sets, novelty, confidence)
    trust_options.check()
    reading = options.ReadOptions(
        header, sheet, skip_damaged=skip_damaged, resize=resize, quiet=quiet
    )
    check_output("--out", out, data)
    require_model(model, several=True)
    require_data(data)
    if_stopped("Nothing was written: the same command begins anew.")
    form = form or _format_of(out)
    learned = open_model(model, store, several=True)

    import pandas as pd

    from nearwise.estimators import AttnKNNClassifier
    from nearwise.estimators.inputs.shared_work import shared_work
    from nearwise.estimators.uncertainty.explain import with_sources

    if holds_targets(model):
        names, one = learned.target_names_, learned.estimators_[0]
        copied, features = read_to_predict(one, model, data, copy or [], reading, others=names)
        wanted: dict[str, Any] = {
            "proba": proba,
            "output": output,
            "quantiles": quantiles,
            "explain": explain,
        }
        with shared_work():
            columns = predicted_columns(learned, model, features, trust_options, **wanted)
        _write(beside(copied, pd.DataFrame(columns)), out, form, quiet=quiet)
        return
    copied, features = read_to_predict(learned, model, data, copy or [], reading)
    n_shown = (neighbors or None) if explain else False
    query: Any
    if isinstance(learned, AttnKNNClassifier):
        of_numbers = {"output": output, "quantiles": quantiles}
        why = f"is for numbers, and {model} predicts classes"
        options.refuse(why, of_numbers, quantiles="Use --proba")
        trust_options.check_confidence()
        query = learned.query(features, explain=n_shown)
    else:
        options.refuse(
            f"is for classes, and {model} predicts numbers",
            {"proba": proba, "sets": sets, "max_risk": max_risk},
            proba="Use --quantiles .05,.5,.95",
            sets="Use --confidence 0.9, which adds an interval",
            max_risk="Use --coverage",
        )
        query = learned.query(features)
    chosen = trust_options.select(query)  # first, since it may raise
    trust = trust_columns(query, trust_options, chosen, as_text=form != "jsonl")
    explanations: Any = None
    if isinstance(learned, AttnKNNClassifier):
        probabilities, classes = query.proba(), query.model.classes
        columns = {"prediction": classes[probabilities.argmax(axis=1)]}
        if proba:
            columns |= {f"proba_{label}": probabilities[:, i] for i, label in enumerate(classes)}
        columns |= trust
        explanations = None if n_shown is False else query.explanations()
    else:
        columns = trust = number_columns(query, trust_options, output, quantiles) | trust
        if n_shown is not False:
            explanations = query.explanations(n_shown, trust_options.set_confidence)
    if form == "jsonl" and explanations is not None:
        # without columns, pandas 2 returns no records
        rows = copied.to_dict("records") or [{} for _ in explanations]
        records = [
            row | explanation.to_dict() | {name: values[i] for name, values in trust.items()}
            for i, (explanation, row) in enumerate(zip(explanations, rows, strict=True))
        ]
        write_json_lines(records, out)
    else:
        if explanations is not None:
            columns |= neighbor_columns(with_sources(explanations, features))
        _write(beside(copied, pd.DataFrame(columns)), out, form, quiet=True)
    if chosen is not None and not quiet:
        say(spoken(chosen))
    if not quiet and out != "-":
        say(f"Wrote {len(copied)} rows to {out}.")


def _write(result: "pd.DataFrame", out: str, form: Format, *, quiet: bool) -> None:
    from nearwise.data.tables.files import write_table

    if form == "jsonl":
        write_json_lines(result.to_dict("records"), out)
    else:
        write_table(result, out, format=form)
    if not quiet and out != "-":
        say(f"Wrote {len(result)} rows to {out}.")


def _format_of(out: str) -> Format:
    """Detect the format from the suffix, before any work is done."""
    from nearwise.data.tables.files import table_format

    if out == "-":
        return "csv"
    suffix = Path(out).suffix.lower()
    form: Format | None = "jsonl" if suffix in (".jsonl", ".ndjson") else table_format(out)
    if form is None:
        raise ValueError(
            f"--out {out}: the suffix {suffix!r} names no format. Use .csv, .tsv, .parquet, .npz "
            "or .jsonl, or say which with --format."
        )
    return form
