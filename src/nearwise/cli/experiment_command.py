"""``nearwise experiment``: the study's experiments, as they were and corrected."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nearwise.cli.console import say, show
from nearwise.cli.errors import reported
from nearwise.cli.options import DataRootOption, QuietOption
from nearwise.cli.parsing import parse_seeds, parse_settings


@reported
def experiment(
    name: Annotated[
        Literal[
            "main", "k-sweep", "label-noise", "long-tail", "efficiency", "theory", "ablation", "all"
        ],
        typer.Argument(
            metavar="NAME",
            help="main, k-sweep, label-noise, long-tail, efficiency, theory, ablation or all.",
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
            help="v0.1 to v0.6: the study as it was, defects included; v1: the corrected method.",
        ),
    ] = "v1",
    seeds: Annotated[str, typer.Option(help="Seeds: 0-4, or 0,2,7.")] = "0",
    small: Annotated[
        bool, typer.Option("--small", help="A size that ends in about a minute on two cores.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"],
        typer.Option(help="auto: a GPU if there is one."),
    ] = "auto",
    config: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="Settings to change.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One setting to change; may be repeated."),
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
    from nearwise.experiments.study import run_experiment
    from nearwise.experiments.study.settings import read_config
    from nearwise.report import render_report

    _tell_defects(preset, quiet=quiet)
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
        progress=not quiet,
    )
    page = render_report(out)
    show(_verdicts((out / "results.md").read_text(encoding="utf-8")))
    if not quiet:
        say(
            f"Records: {out / 'records.jsonl'}. Tables: {out / 'results.md'} (.tex, .csv, .json). "
            f"Report: {page} (.pdf)"
        )
    failed = [record for record in records if record.status == "failed"]
    if failed:
        reasons = dict.fromkeys(f"{record.method}: {record.reason}" for record in failed)
        raise ValueError(
            f"{len(failed)} of {len(records)} rows failed; the others are kept, and running it "
            f"again tries these again. {' | '.join(reasons)}"
        )


def _verdicts(tables: str) -> str:
    """Take from the tables what became of the claims; the rest is in the files."""
    first, *sections = tables.split("\n## ")
    kept = [part for part in sections if "what became of the claims" in part.splitlines()[0]]
    return "\n## ".join([first, *kept])


def _tell_defects(preset: str, *, quiet: bool) -> None:
    from nearwise.experiments.study import PRESETS

    if quiet or preset not in PRESETS:
        return
    say(f"{preset} is replayed as it was, with its defects:")
    for defect, what in PRESETS[preset].defects.items():
        say(f"  {defect}: {what}")
