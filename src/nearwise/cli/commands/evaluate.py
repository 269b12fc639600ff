"""``nearwise evaluate``: how good a model is on rows it has not learned from."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import rich.table
import typer

from nearwise.cli import options
from nearwise.cli.answer_columns import (
    TrustOptions,
    measure_number_trust,
    measure_trust,
    trust_in_words,
)
from nearwise.cli.class_tables import FEW, by_class, class_table, shot_table, shots_of
from nearwise.cli.console import grid, progress, reported, say, show, show_json
from nearwise.cli.models import open_model
from nearwise.cli.numbers import LEVEL, bootstrapped, by_slice, measure, number_tables
from nearwise.cli.options import ReadOptions
from nearwise.cli.outputs import check_output
from nearwise.cli.rows.rows import read_for_model, take_rows
from nearwise.cli.rows.scored_rows import ONLY_LEARNED, ScoredRows, score_rows
from nearwise.conditions import command_line, hardware, load_plugin, versions
from nearwise.safe_files import plain, write_aside

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.estimators import AttnKNNClassifier, AttnKNNRegressor

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
    large they are. Of numbers the error takes the place of wrong answers, and intervals that of
    sets, also by the size of the prediction; PIT counts are even where distributions are right.

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
    reading = ReadOptions(header, skip_unlabelled, None, None, skip_damaged, resize, quiet)
    rows = read_for_model(learned, model, data, target, reading, part="test")
    trust = TrustOptions(coverage, confidence=confidence)
    trust.check_ranges()
    classes = getattr(learned, "classes_", None)
    y = rows.y.to_numpy() if classes is None else class_positions(rows.y, classes, data)
    scored = score_rows(learned, rows.X, rows.y, y, data, rows.noun)
    features = take_rows(rows.X, scored.at)
    judge: Any = _of_numbers if classes is None else _of_classes
    found = judge(learned, features, scored, trust, resamples, quiet=quiet)
    numbers = {"model": str(model), "data": data, "n": len(scored.y), "rows": scored.as_json()}
    numbers |= found | {"level": LEVEL, "resamples": resamples}
    too_few = {} if found["intervals"] else {"intervals_not_measured": _too_few(len(scored.y))}
    written = []
    if json_file:
        _write_json(json_file, numbers | too_few)
        written.append(json_file)
    if report is not None:
        write_page(report, learned, data, features, scored, numbers)
        written.append(str(report))
    if json_file != "-":
        title = f"{model} on {scored.what} ({data})"
        lay_out = _tables if "by_class" in found else number_tables
        first, *others = lay_out(found, title)
        show(first)
        for remark in [*scored.remarks, *too_few.values(), *others]:
            show(remark)
    if written and not quiet and json_file != "-":
        say(f"Wrote {', '.join(written)}.")


def _of_classes(
    model: "AttnKNNClassifier",
    features: Any,
    scored: ScoredRows,
    options: TrustOptions,
    resamples: int,
    *,
    quiet: bool,
) -> dict[str, Any]:
    y, halves = scored.y, scored.halves
    scores, intervals = _measure(y, halves, resamples, quiet=quiet)
    trust: dict[str, Any] = {"not_measured": ONLY_LEARNED}
    if scored.new:
        trust = measure_trust(model, features, y, options)
    return {
        "metrics": scores["model"],
        "intervals": {name: list(ends) for name, ends in intervals.items()},
        "base_alone": scores["base alone"],
        "neighbors_alone": scores["neighbors alone"],
        "null_mass": float(scored.parts.null_mass.mean()),
        **trust,
        "by_class": by_class(model.classes_, y, halves["model"]),
        "shots": shots_of(model, y, halves),
    }


def _of_numbers(
    model: "AttnKNNRegressor",
    features: Any,
    scored: ScoredRows,
    options: TrustOptions,
    resamples: int,
    *,
    quiet: bool,
) -> dict[str, Any]:
    from nearwise.metrics import evaluate_numbers, pit_counts

    y, parts = scored.y, scored.parts
    trust: dict[str, Any] = {"not_measured": ONLY_LEARNED}
    if scored.new:
        trust, interval = measure_number_trust(model, features, y, options)
        parts |= interval
    return {
        "metrics": measure(y, parts),
        "intervals": bootstrapped(y, parts, LEVEL, resamples) if len(y) >= _FEWEST else {},
        "base_alone": evaluate_numbers(y, parts["base"]),
        **trust,
        "by_slice": by_slice(y, parts),
        "pit": pit_counts(parts["below"], parts["up_to"]),
    }


def _tables(found: dict[str, Any], title: str) -> list[str | rich.table.Table]:
    shown: list[str | rich.table.Table] = [_score_table(found, title)]
    if len(found["by_class"]) <= FEW:
        shown.append(class_table(found["by_class"]))
    elif found["shots"]:
        shown.append(shot_table(found["shots"]))
    null_mass = f"Attention that went to no neighbor: {found['null_mass']:.1%}"
    return [*shown, null_mass, trust_in_words(found)]


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


def _score_table(found: dict[str, Any], title: str) -> rich.table.Table:
    scores = [found[part] for part in ("metrics", "base_alone", "neighbors_alone")]
    interval, rows = f"{LEVEL:.0%} interval", []
    for name, (label, better) in _METRICS.items():
        low_high = " to ".join(f"{end:.4f}" for end in found["intervals"].get(name, ()))
        values = [f"{part[name]:.4f}" for part in scores]
        rows.append([label, values[0], low_high, *values[1:], better])
    heads = ["metric", "model", interval, "base alone", "neighbors alone", "better"]
    return grid(title, heads, rows, left=["better"])


def _write_json(path: str, numbers: dict[str, Any]) -> None:
    """Write numbers with the conditions they were made under."""
    conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
    if path == "-":
        show_json(numbers | conditions)
        return
    text = json.dumps(plain(numbers | conditions), indent=2, ensure_ascii=False)
    write_aside(Path(path), f"{text}\n".encode())
