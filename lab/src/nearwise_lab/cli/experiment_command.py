"""``nearwise experiment``: the study's experiments, as they were and corrected."""

import json
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli.console import say, show, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder
from nearwise_lab.cli.needs import ConfigOption, DataRootOption, SetOption, lab_command
from nearwise_lab.cli.settings_text import parse_seeds, parse_settings, paths_among

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearwise_lab.experiments import Record
    from nearwise_lab.results.measures import Measure

NAMED = 3  # methods named of those that failed for one reason


@lab_command
def experiment(
    name: Annotated[
        Literal[
            "main",
            "weights",
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
            help="main, weights (v1 alone), k-sweep, label-noise, long-tail, efficiency, theory, "
            "ablation or all.",
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
                "v0.1 to v0.6: the study as described, defects included; v0.5-notebook, "
                "v0.6-notebook: as its notebook ran; v1: the corrected method."
            ),
        ),
    ] = "v1",
    seeds: Annotated[str, typer.Option(help="Seeds: 0-4, or 0,2,7.")] = "0",
    small: Annotated[
        bool, typer.Option("--small", help="A size that takes about a minute on two cores.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"],
        typer.Option(help="auto: a GPU if there is one."),
    ] = "auto",
    config: ConfigOption = None,
    changes: SetOption = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Run only the rows with such names, as in '*human-worse*' or 'k = 5, *'; "
            "a pattern that matches none lists them.",
        ),
    ] = None,
    data_root: DataRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run an experiment of the original study, as it was or corrected.

    Writes records.jsonl, predictions and curves, and the report. Every finished row and epoch is
    kept: stop it, run it again, and it goes on from there. Several experiments, presets and data
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
    failed = [record for record in records if record.status == "failed"]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(records)} rows failed; the others are kept, and running it "
            f"again tries these again. {' | '.join(_reasons(failed))}"
        )


def _show_rows(records: "Sequence[Record]") -> None:
    """Show the mean over seeds of every whole row, in the order of the records."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from nearwise_lab.experiments.places import place_of

    whole = [r for r in records if r.status == "ok" and r.part_of is None]
    measured = [r for r in whole if r.accuracy is not None]
    groups: dict[tuple[str, ...], list[Record]] = {}
    for r in measured:
        where = (r.experiment, r.dataset, r.preset, r.method, place_of(r).label)
        groups.setdefault(where, []).append(r)
    # distinguished only where there are differences; preset and method always
    titles = ("experiment", "dataset", "preset", "method", "condition")
    several = [len({key[i] for key in groups}) > 1 for i in range(len(titles))]
    shown = [i for i, title in enumerate(titles) if several[i] or title in ("preset", "method")]
    if groups and not several[-1] and next(iter(groups))[-1]:
        shown.append(len(titles) - 1)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i in shown:
        table.add_column(titles[i], no_wrap=titles[i] in ("preset", "method"), overflow="fold")
    measures = _measures()
    for measure in measures:
        table.add_column(measure.title, justify="right", no_wrap=True)
    for key, rows in groups.items():
        means = [_mean(rows, m.key) for m in measures]
        texts = [
            "-" if mean is None else f"{mean * m.scale:.{m.digits}f}"
            for m, mean in zip(measures, means, strict=True)
        ]
        table.add_row(*(key[i] for i in shown), *texts)
    if groups:
        show(table)
    left_out = len(whole) - len(measured)
    if left_out:
        names = sorted({r.experiment for r in whole if r.accuracy is None})
        words = "1 row" if left_out == 1 else f"{left_out} rows"
        show(f"{words} without these measures: see the report ({', '.join(names)}).")


def _measures() -> "list[Measure]":
    from nearwise_lab.results.measures import MEASURES

    return [m for m in MEASURES if m.key in ("accuracy", "nll", "ece", "aurc")]


def _mean(rows: "Sequence[Record]", key: str) -> float | None:
    values = [value for r in rows if (value := getattr(r, key)) is not None]
    return fmean(values) if values else None


def _verdicts(out: Path, records: "Sequence[Record]") -> list[str]:
    """Count what became of the claims, one line per data set and preset of this run."""
    from nearwise_lab.report.claims import tally

    claims = json.loads((out / "results.json").read_text(encoding="utf-8"))["claims"]
    found: dict[tuple[str, str], list[str]] = {}
    for claim in claims:
        found.setdefault((claim["dataset"], claim["preset"]), []).append(claim["verdict"])
    ran = {(r.dataset, r.preset) for r in records}
    return [f"{d}, {p}: {tally(v)}" for (d, p), v in found.items() if (d, p) in ran]


def _reasons(failed: "Sequence[Record]") -> list[str]:
    """Group failed rows by their reason: how many, and which methods."""
    groups: dict[str, list[str]] = {}
    for record in failed:
        groups.setdefault(record.reason or "no reason given", []).append(record.method)
    lines = []
    for reason, methods in groups.items():
        names = list(dict.fromkeys(methods))
        named = ", ".join([*names[:NAMED], *(["..."] if len(names) > NAMED else [])])
        lines.append(f"{len(methods)} row{'s' * (len(methods) > 1)} ({named}): {reason}")
    return lines


def _tell_defects(presets: set[str]) -> None:
    from nearwise_lab.experiments.study import PRESETS

    for preset in sorted(presets & set(PRESETS)):
        say(f"{preset} is replayed as it was, with its defects:")
        for defect, what in PRESETS[preset].defects.items():
            say(f"  {defect}: {what}")
