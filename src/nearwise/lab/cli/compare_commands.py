"""``nearwise compare`` and ``nearwise demo``: methods side by side on the same splits."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from nearwise.cli.console import say, show, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder, paths_among
from nearwise.cli.rows.parsing import parse_seeds, split_list
from nearwise.lab.cli.needs import DataRootOption, lab_command


@lab_command
def compare(
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET...", help="Names ('nearwise datasets' lists them) or FILE:TARGET."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", help="Folder for records, tables and report."),
    ],
    seeds: Annotated[
        str, typer.Option(help="Seeds of the splits and of the methods: 0-4, or 0,2,7.")
    ] = "0-4",
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Default: all that are installed.")
    ] = None,
    noise: Annotated[
        float, typer.Option(metavar="RATE", help="Share of training labels changed, in [0, 1).")
    ] = 0.0,
    noise_kind: Annotated[
        Literal["symmetric", "asymmetric"],
        typer.Option(help="symmetric: to any other class; asymmetric: to the next class."),
    ] = "symmetric",
    data_root: DataRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on the same splits: means with intervals, paired differences, a report.

    Writes records.jsonl (a line for each data set, method and seed), tables as Markdown, LaTeX,
    CSV and JSON, and report.html. Every finished line is kept: stop it, run it again, and it goes
    on from there.

    [bold]Examples[/bold]
      nearwise compare digits wine-red --seeds 0-4 --out runs/first
      nearwise compare adult --methods attention,lightgbm,logistic --seeds 0,1 --out runs/adult
      nearwise compare digits --noise 0.3 --out runs/noisy
      nearwise compare my_table.csv:label --out runs/mine
    """
    check_folder("--out", out, paths_among(*datasets))
    from nearwise.lab.experiments import compare as run_comparison
    from nearwise.lab.report import render_report

    records = run_comparison(
        datasets,
        split_list(methods) or _installed_methods(),
        parse_seeds(seeds),
        out,
        noise=noise,
        noise_kind=noise_kind,
        data_root=data_root,
        progress=not quiet,
    )
    with steps("Writing the report", quiet=quiet) as told:
        page = render_report(out, progress=told)
    show((out / "results.md").read_text(encoding="utf-8"))
    if not quiet:
        say(f"Tables: {out / 'results.md'} (.tex, .csv, .json). Report: {page}")
    failed = [record for record in records if record.status == "failed"]
    if failed:
        reasons = dict.fromkeys(f"{record.method}: {record.reason}" for record in failed)
        raise ValueError(
            f"{len(failed)} of {len(records)} rows failed; the others are kept, and running it "
            f"again tries these again. {' | '.join(reasons)}"
        )


@lab_command
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the report.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the methods.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """Train on handwritten digits, compare, and write a report: a first look in a minute.

    Uniform, distance-weighted and attention k-NN and plain baselines on the same split of
    scikit-learn's digits. The report is one HTML page that needs no network: comparison,
    reliability diagrams, training curves, and wrong and uncertain digits with their neighbors.

    [bold]Examples[/bold]
      nearwise demo
      nearwise demo --out runs/second --seed 1
    """
    check_folder("--out", out)
    from nearwise.lab.report import run_demo

    run_demo(out, seed=seed, progress=not quiet)


def _installed_methods() -> list[str]:
    """All peers whose packages are here, and attention with its defaults."""
    from importlib.util import find_spec

    from nearwise.lab.experiments import METHODS, PEERS

    absent = [n for n in PEERS if (module := METHODS[n].module) and find_spec(module) is None]
    if absent:
        say(f"note: {', '.join(absent)} left out; pip install 'nearwise[peers]' brings them.")
    return [*(name for name in PEERS if name not in absent), "attention"]
