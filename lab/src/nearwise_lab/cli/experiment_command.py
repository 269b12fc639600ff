"""``nearwise experiment``: the study's experiments, as they were and corrected."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli.console import say, show, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder
from nearwise_lab.cli.needs import (
    ConfigOption,
    DataRootOption,
    SetOption,
    lab_command,
    refuse_failed,
)
from nearwise_lab.cli.settings_text import parse_seeds, parse_settings, paths_among

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearwise_lab.experiments import Record


@lab_command
def experiment(
    name: Annotated[
        Literal[
            "main",
            "weights",
            "weights-noise",
            "weights-tail",
            "k-sweep",
            "label-noise",
            "long-tail",
            "efficiency",
            "theory",
            "ablation",
            "all",
        ],
        typer.Argument(
            metavar="NAME",
            help="main, weights, weights-noise, weights-tail (these three for v1 only), k-sweep, "
            "label-noise, long-tail, efficiency, theory, ablation or all.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for records and report.")
    ],
    dataset: Annotated[
        str,
        typer.Option(
            "--dataset",
            "-d",
            metavar="DATA",
            help="Name ('nearwise datasets' lists them), FILE:TARGET, or a folder of images.",
        ),
    ] = "digits-images",
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            "-p",
            metavar="NAME",
            help=(
                "v0.1 to v0.6: the study as described, with its defects; v0.5-notebook, "
                "v0.6-notebook: as in its notebook; v1: the corrected method."
            ),
        ),
    ] = "v1",
    seeds: Annotated[str, typer.Option(help="Seeds: 0-4, or 0,2,7.")] = "0",
    small: Annotated[
        bool, typer.Option("--small", help="A size that takes about a minute on two cores.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="auto: a GPU if there is one.")
    ] = "auto",
    config: ConfigOption = None,
    changes: SetOption = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Run only rows with matching names, such as '*human-worse*' or 'k = 5, *'. "
            "A pattern without a match lists the names.",
        ),
    ] = None,
    data_root: DataRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run an experiment of the original study, as published or corrected.

    Writes records.jsonl, predictions and curves, and the report. Finished rows and epochs are kept:
    a stopped run continues if the command is run again. Several experiments, presets and data
    sets may share a folder.

    [bold]Examples[/bold]
      nearwise experiment main --dataset digits-images --preset v0.5 --small --out runs/replay
      nearwise experiment k-sweep -d cifar10 -p v0.5 --seeds 0-2 --device cuda -o runs/cifar10
      nearwise experiment all -d wine-red -p v1 --seeds 0-4 -o runs/wine
      nearwise experiment main -d cifar10 -p v0.4 --set epochs=10 --set backbone=resnet18 -o runs/a
    """
    check_folder("--out", out, paths_among(dataset))
    from nearwise_lab.experiments.study import run_experiment
    from nearwise_lab.experiments.study.settings import read_config
    from nearwise_lab.report import render_report

    settings: dict[str, Any] = read_config(config) if config is not None else {}
    records = run_experiment(
        name,
        dataset,
        preset,
        parse_seeds(seeds),
        out,
        small=small,
        device=device,
        config=settings | parse_settings("--set", changes),
        data_root=data_root,
        only=only,
        progress=not quiet,
    )
    with steps("Writing the report", quiet=quiet) as progress:
        page = render_report(out, progress=progress)
    if not quiet:
        _tell_defects({record.preset for record in records})
    _show_rows(records)
    for line in _verdicts(out, records):
        show(line)
    if not quiet:
        say(
            f"Records: {out / 'records.jsonl'}. Tables: {out / 'results.md'} (.tex, .csv, .json). "
            f"Report: {page} (.pdf). Figures: {out / 'figures'}"
        )
    refuse_failed(records)


def _show_rows(records: "Sequence[Record]") -> None:
    """Show the mean over seeds of every whole row, in the order of the records."""
    import pandas as pd
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from nearwise_lab.experiments.places import place_of
    from nearwise_lab.results.measures import MEASURES, Mean, show_mean

    measures = [m for m in MEASURES if m.key in ("accuracy", "nll", "ece", "aurc")]
    titles = ["experiment", "dataset", "preset", "method", "condition"]
    whole = [r for r in records if r.status == "ok" and r.part_of is None]
    measured = [r for r in whole if r.accuracy is not None]
    if measured:
        places = [
            (r.experiment, r.dataset, r.preset, r.method, place_of(r).label) for r in measured
        ]
        values = pd.DataFrame(
            [[getattr(r, m.key) for m in measures] for r in measured], dtype=float
        )
        frame = pd.concat([pd.DataFrame(places, columns=titles), values], axis=1)
        means = frame.groupby(titles, sort=False, as_index=False).mean()
        # distinguished only where there are differences; preset and method always
        shown = [t for t in titles if means[t].nunique() > 1 or t in ("preset", "method")]
        if "condition" not in shown and means["condition"].any():
            shown.append("condition")
        table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        for title in shown:
            table.add_column(title, no_wrap=title in ("preset", "method"), overflow="fold")
        for measure in measures:
            table.add_column(measure.title, justify="right", no_wrap=True)
        for _, row in means.iterrows():
            found = [
                None if pd.isna(row[i]) else Mean(row[i], None, 1) for i in range(len(measures))
            ]
            texts = [show_mean(mean, m) for mean, m in zip(found, measures, strict=True)]
            table.add_row(*row[shown], *texts)
        show(table)
    left_out = len(whole) - len(measured)
    if left_out:
        names = sorted({r.experiment for r in whole if r.accuracy is None})
        words = "1 row" if left_out == 1 else f"{left_out} rows"
        show(f"{words} without these measures: see the report ({', '.join(names)}).")


def _verdicts(out: Path, records: "Sequence[Record]") -> list[str]:
    """Count the verdicts on the claims, one line per data set and preset of this run."""
    from nearwise_lab.report.claims import tally

    claims = json.loads((out / "results.json").read_text(encoding="utf-8"))["claims"]
    found: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        found.setdefault((claim["dataset"], claim["preset"]), []).append(claim["verdict"])
    ran = {(r.dataset, r.preset) for r in records}
    return [f"{d}, {p}: {tally(v)}" for (d, p), v in found.items() if (d, p) in ran]


def _tell_defects(presets: set[str]) -> None:
    from nearwise_lab.experiments.study import PRESETS

    for preset in sorted(presets & set(PRESETS)):
        say(f"{preset} is replayed as it was, with its defects:")
        for defect, what in PRESETS[preset].defects.items():
            say(f"  {defect}: {what}")
