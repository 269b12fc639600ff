"""``nearwise evaluate``: how good a model is on rows it has not learned from."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.table
import typer

from nearwise.cli import options
from nearwise.cli.answer_columns import TrustOptions, measure_trust, trust_in_words
from nearwise.cli.class_tables import FEW, by_class, class_table, shot_table, shots_of
from nearwise.cli.console import progress, reported, say, show, show_json
from nearwise.cli.models import open_model
from nearwise.cli.outputs import check_output
from nearwise.cli.rows.image_rows import ImageOptions
from nearwise.cli.rows.rows import read_for_model, take_rows
from nearwise.cli.rows.scored_rows import ONLY_LEARNED, score_rows
from nearwise.conditions import command_line, hardware, load_plugin, versions
from nearwise.safe_files import plain, write_aside

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

# metric -> how it reads, and which way is better
_METRICS = {
    "accuracy": ("accuracy", "higher"),
    "macro_f1": ("macro F1", "higher"),
    "nll": ("NLL (nats per row)", "lower"),
    "brier": ("Brier score", "lower"),
    "ece": ("ECE (15 bins)", "lower"),
    "equal_mass_ece": ("ECE (equal mass)", "lower"),
    "classwise_ece": ("ECE (classwise)", "lower"),
    "smooth_ece": ("ECE (smooth)", "lower"),
    "signed_gap": ("confidence - accuracy", "near 0"),
    "aurc": ("AURC", "lower"),
    "augrc": ("AUGRC", "lower"),
}
_WITH_INTERVAL = ("accuracy", "macro_f1", "nll", "brier", "ece", "aurc")
LEVEL = 0.95
_FEWEST = 10  # rows from which resampling them says how far scores may be off


@reported
def evaluate(
    model: options.ModelArgument,
    data: options.DataArgument,
    target: options.KnownTargetOption = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write the numbers; - is standard output."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page with diagrams and hard cases."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=20, help="Bootstrap resamples behind each interval.")
    ] = 500,
    coverage: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Measure the answers when only this share of rows is answered."
        ),
    ] = 0.9,
    confidence: options.ConfidenceOption = None,
    resize: options.ResizeOption = False,
    skip_damaged: options.SkipDamagedOption = False,
    skip_unlabelled: options.SkipUnlabelledOption = False,
    header: options.HeaderOption = None,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Measure a model on labelled rows it has not learned from.

    Rows that equal rows it learned from, in all columns the model uses and in ids that both tables
    have, are not mixed with the others: they are counted and scored separately, each predicted
    without itself by what was not fitted on it. If DATA holds no other rows, these scores are
    shown. Without ids, and where as many new rows would equal remembered ones, all are scored.

    The model's two halves are scored beside it: the base alone (neighbors switched off) and the
    neighbors alone; the difference between model and base is what the neighbors add. Intervals are
    95 % percentile bootstraps over rows. For images DATA is a folder with one folder per class; if
    it has a training and a test part, the latter is used.

    Then follows how well the model estimates its limits: the share of wrong answers when only the
    surest --coverage of rows is answered, beside what the training rows, predicted as if new,
    promised (with --confidence); and how often sets of --confidence hold the true class, and how
    large they are.

    [bold]Examples[/bold]
      nearwise evaluate iris.model test.csv
      nearwise evaluate iris.model test.csv --json scores.json --report report.html
      nearwise evaluate flowers.model flowers/ --resize
    """
    check_output("--json", json_file, [data])
    check_output("--report", report, [data, *([json_file] if json_file else [])])
    if report is not None:
        write_page = load_plugin("The page of --report", "nearwise.pages", "evaluate")()
    learned = open_model(model, store)
    images = ImageOptions(skip_damaged=skip_damaged, resize=resize)
    rows = read_for_model(
        learned,
        model,
        data,
        target,
        images,
        part="test",
        skip_unlabelled=skip_unlabelled,
        header=header,
        quiet=quiet,
    )
    y = class_positions(rows.y, learned.classes_, data)

    scored = score_rows(learned, rows.X, rows.y, y, data, rows.noun)
    features, y, halves = take_rows(rows.X, scored.at), scored.y, scored.halves
    scores, intervals = _measure(y, halves, resamples, quiet=quiet)
    null_mass = float(scored.parts.null_mass.mean())
    trust_options = TrustOptions(coverage, confidence=confidence)
    trust_options.check_ranges()
    trust = (
        measure_trust(learned, features, y, trust_options)
        if scored.new
        else {"not_measured": ONLY_LEARNED}
    )
    shots = shots_of(learned, y, halves)
    classes = by_class(learned.classes_, y, halves["model"])
    written = []
    if json_file:
        numbers = {
            "model": str(model),
            "data": data,
            "n": len(y),
            "rows": scored.as_json(),
            "metrics": scores["model"],
            "intervals": {name: list(ends) for name, ends in intervals.items()},
            "level": LEVEL,
            **({} if intervals else {"intervals_not_measured": _too_few(len(y))}),
            "resamples": resamples,
            "base_alone": scores["base alone"],
            "neighbors_alone": scores["neighbors alone"],
            "null_mass": null_mass,
            **trust,
            "by_class": classes,
            "shots": shots,
        }
        _write_json(json_file, numbers)
        written.append(json_file)
    if report is not None:
        write_page(report, learned, data, features, scored, scores, trust)
        written.append(str(report))
    if json_file != "-":
        show(_score_table(scores, intervals, f"{model} on {scored.what} ({data})"))
        for remark in scored.remarks:
            show(remark)
        if not intervals:
            show(_too_few(len(y)))
        if len(classes) <= FEW:
            show(class_table(classes))
        elif shots:
            show(shot_table(shots))
        show(f"Attention that went to no neighbor: {null_mass:.1%}")
        show(trust_in_words(trust))
    if written and not quiet and json_file != "-":
        say(f"Wrote {', '.join(written)}.")


def class_positions(labels: "pd.Series", classes: "np.ndarray", where: str) -> "np.ndarray":
    """Translate labels to positions among the model's classes; ValueError for any other label."""
    import pandas as pd

    positions = pd.Index(classes).get_indexer(pd.Index(labels.to_numpy()))
    unknown = labels[positions < 0]
    if len(unknown):
        names = ", ".join(repr(str(label)) for label in unknown.unique()[:5])
        advice = (
            "Write labels as True and False"
            if classes.dtype.kind == "b"
            else "Add rows of that class with 'nearwise add'"
        )
        raise ValueError(
            f"{where}: {len(unknown)} of {len(labels)} rows have a label that the model does not "
            f"have ({names}); it has {', '.join(repr(str(label)) for label in classes[:20])}. "
            f"{advice}, or leave those rows out."
        )
    return positions


def _measure(
    y: "np.ndarray", halves: "dict[str, np.ndarray]", resamples: int, *, quiet: bool
) -> tuple[dict[str, dict[str, float]], dict[str, tuple[float, float]]]:
    """Scores of each part, and the model's intervals; none of too few rows."""
    from nearwise import metrics

    scores = {name: metrics.evaluate_probabilities(y, proba) for name, proba in halves.items()}
    intervals: dict[str, tuple[float, float]] = {}
    if len(y) < _FEWEST:
        return scores, intervals
    for name in progress(_WITH_INTERVAL, "intervals", quiet=quiet):
        interval = metrics.bootstrap_interval(
            getattr(metrics, name), y, halves["model"], level=LEVEL, n_resamples=resamples
        )
        intervals[name] = (interval.low, interval.high)
    return scores, intervals


def _too_few(n_rows: int) -> str:
    return (
        f"There are no intervals: {n_rows} row{'s are' if n_rows > 1 else ' is'} too few to tell "
        f"how far these scores may be off; give at least {_FEWEST}."
    )


def _score_table(
    scores: dict[str, dict[str, float]], intervals: dict[str, tuple[float, float]], title: str
) -> rich.table.Table:
    table = rich.table.Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("model", justify="right", style="bold")
    table.add_column(f"{LEVEL:.0%} interval", justify="right")
    table.add_column("base alone", justify="right")
    table.add_column("neighbors alone", justify="right")
    table.add_column("better")
    for name, (label, better) in _METRICS.items():
        low_high = "{:.4f} to {:.4f}".format(*intervals[name]) if name in intervals else ""
        values = [f"{scores[part][name]:.4f}" for part in scores]
        table.add_row(label, values[0], low_high, *values[1:], better)
    return table


def _write_json(path: str, numbers: dict[str, Any]) -> None:
    """Write numbers with the conditions they were made under."""
    conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
    if path == "-":
        show_json(numbers | conditions)
        return
    text = json.dumps(plain(numbers | conditions), indent=2, ensure_ascii=False)
    write_aside(Path(path), f"{text}\n".encode())
