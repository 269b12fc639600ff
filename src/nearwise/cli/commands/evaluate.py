"""``nearwise evaluate``: metrics of a model on new rows."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nearwise.cli import options
from nearwise.cli.answer_columns import TrustOptions
from nearwise.cli.chance import LEVEL
from nearwise.cli.console import (
    if_stopped,
    reported,
    say,
    show,
    show_below,
    show_json,
    typed,
)
from nearwise.cli.models import open_model, require_model
from nearwise.cli.options import named_store
from nearwise.cli.outputs import check_output, holds_targets, require_data
from nearwise.cli.rows.rows import read_for_model, read_for_targets, take_rows
from nearwise.cli.rows.scored_rows import score_rows
from nearwise.cli.rows.targets import class_positions
from nearwise.cli.scores import judge, tables
from nearwise.cli.several import models_in, rows_to_score, score_tables, scores_of
from nearwise.cli.verdict import FEWEST, Inputs, judge_classes, judge_numbers
from nearwise.conditions import command_line, hardware, load_plugin, versions
from nearwise.safe_files import plain, write_aside


@reported
def evaluate(
    model: options.ModelArgument,
    data: options.DataArgument,
    target: options.KnownTargetOption = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write JSON scores. - is standard output."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a web page with diagrams and hard cases."),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=20, help="Bootstrap resamples behind each interval.")
    ] = 500,
    coverage: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of rows to accept when abstention is measured."),
    ] = 0.9,
    confidence: options.ConfidenceOption = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Print every score too: base and neighbors alone, by class or size, trust.",
        ),
    ] = False,
    resize: options.ResizeOption = False,
    skip_damaged: options.SkipDamagedOption = False,
    skip_unlabelled: options.SkipUnlabelledOption = False,
    header: options.HeaderOption = None,
    sheet: options.SheetOption = None,
    store: options.StoreOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Say how good a model is on labelled rows that it has not learned from, and what to do next.

    The first line compares the model with always giving one answer. It says whether probabilities
    or intervals are honest, and whether base and neighbors together beat each alone. Differences
    within chance are named so. Chance means 95 % intervals over rows. The second line has a command
    for what to do next.

    With --all the scores follow, of the model beside its two parts: the base alone and the
    neighbors alone. For images DATA is a folder with one folder per class. If it has a training and
    a test part, the test part is used.

    Rows of DATA that equal training rows are counted and scored separately. Equal means: in all
    columns that the model uses, and in ids that both tables have. Each is predicted without itself,
    by parts of the model that were not fitted on it. If DATA holds no other rows, these scores are
    shown. Without ids, new rows may equal training rows by chance. If as many are expected as are
    found, all rows are scored together.

    Abstention is measured on the most confident rows, the share --coverage of all. The share of
    wrong predictions stands beside the one expected from held-out training rows. So does an upper
    bound that holds with --confidence. Prediction sets of --confidence are measured by how often
    they hold the true class, and by their size.

    If MODEL has several targets, the scores of all together come first, then those of each.

    For numbers, the absolute error replaces the share of wrong predictions, and intervals replace
    sets. Scores are also shown by the size of the prediction. PIT counts (probability integral
    transform) are even if the predicted distributions are right.

    [bold]Examples[/bold]
      nearwise evaluate iris.model test.csv
      nearwise evaluate iris.model test.csv --all
      nearwise evaluate iris.model test.csv --json scores.json --report report.html
      nearwise evaluate flowers.model flowers/ --resize
    """
    check_output("--json", json_file, [data])
    check_output("--report", report, [data, *([json_file] if json_file else [])])
    if report is not None:
        write_page = load_plugin("The page of --report", "nearwise.pages", "evaluate")()
    require_model(model, several=True)
    require_data([data])
    if_stopped("No score was written. Fewer rows, or --resamples 100, take less time.")
    learned = open_model(model, store, several=True)
    reading = options.ReadOptions(
        header, sheet, skip_unlabelled, skip_damaged=skip_damaged, resize=resize, quiet=quiet
    )
    if holds_targets(model):
        why = f"is for one target, and {model} has {len(learned.target_names_)}"
        options.refuse(why, {"target": target, "report": report, "confidence": confidence})
        _evaluate_targets(learned, model, data, reading, json_file)
        return
    rows = read_for_model(learned, model, data, target, reading, part="test")
    trust = TrustOptions(coverage, confidence=confidence)
    trust.check_ranges()
    classes = getattr(learned, "classes_", None)
    y = rows.y.to_numpy() if classes is None else class_positions(rows.y, classes, data)
    scored = score_rows(learned, rows.X, rows.y, y, data, rows.noun)
    features = take_rows(rows.X, scored.at)
    found = judge(learned, features, scored, trust, resamples, quiet=quiet)
    numbers = {"model": str(model), "data": data, "n": len(scored.y), "rows": scored.as_json()}
    judged = judge_numbers if classes is None else judge_classes
    at = [*(["--no-header"] if header is False else []), *(["--sheet", sheet] if sheet else [])]
    read = tuple([*named_store(store), *at])
    own_target = target or learned.fitted_.target_name
    inputs = Inputs(str(model), data, "" if rows.names is not None else own_target, read)
    verdict = judged(learned, scored, found, inputs, resamples)
    numbers |= found | {"level": LEVEL, "resamples": resamples, "verdict": verdict.to_json()}
    too_few = {}
    if not found["intervals"]:
        n_rows = f"{len(scored.y)} row{'s are' if len(scored.y) > 1 else ' is'}"
        too_few["intervals_not_measured"] = (
            f"There are no intervals: {n_rows} too few for a bootstrap; give at least {FEWEST}."
        )
    written = []
    if json_file:
        _write_json(numbers | too_few, json_file)
        written.append(json_file)
    if report is not None:
        write_page(report, learned, data, features, scored, numbers)
        written.append(str(report))
    if json_file != "-":
        for line in [*scored.remarks, *verdict.lines]:
            show(line)
        if whole:
            title = f"{model} on {scored.what} ({data})"
            for result in [*tables(found, title), *too_few.values()]:
                show_below(result)
    if written and not quiet and json_file != "-":
        say(f"Wrote {', '.join(written)}.")


def _evaluate_targets(
    learned: Any, model: Path, data: str, reading: options.ReadOptions, json_file: str | None
) -> None:
    """Print the scores of a model of several targets."""
    rows = read_for_targets(learned, model, data, reading)
    chosen, remark = rows_to_score(learned, rows.X, rows.y, data)
    y = rows.y[chosen]
    found = scores_of(learned, rows.X[chosen], y, data)
    if json_file:
        _write_json({"model": str(model), "data": data} | found, json_file)
    if json_file != "-":
        if remark:
            show(remark)
        for table in score_tables(found, f"{model} on {len(y)} rows ({data})"):
            show_below(table)
        each = next(iter(models_in(model).values()))
        show(f"Calibration of a single target, and advice: {typed('evaluate', each, data)}")


def _write_json(found: dict[str, Any], json_file: str) -> None:
    conditions = {"command": command_line(), "versions": versions(), "hardware": hardware()}
    whole = plain(found | conditions)
    if json_file == "-":
        show_json(whole)
        return
    text = json.dumps(whole, indent=2, ensure_ascii=False)
    write_aside(Path(json_file), f"{text}\n".encode())
