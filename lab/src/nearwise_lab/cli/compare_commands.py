"""``nearwise compare`` and ``nearwise demo``: methods side by side on the same splits."""

from collections import defaultdict
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from nearwise.cli.console import say, show, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder
from nearwise.cli.rows.parsing import split_list
from nearwise_lab.cli.needs import DataRootOption, lab_command, refuse_failed
from nearwise_lab.cli.settings_text import parse_seeds, paths_among


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
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Method names or groups: peers, higher-peers, foundation-models. "
            "Default: attention and the installed peers.",
        ),
    ] = None,
    noise: Annotated[
        float, typer.Option(metavar="RATE", help="Share of training labels changed, in [0, 1).")
    ] = 0.0,
    noise_kind: Annotated[
        Literal["symmetric", "asymmetric"],
        typer.Option(help="symmetric: to any other class; asymmetric: to the next class."),
    ] = "symmetric",
    peer_weights: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Checkpoints of tabicl, tabpfn or lightpfn: NAME=PATH, or a folder of files with "
            "these names. May be repeated; nothing is downloaded.",
        ),
    ] = None,
    data_root: DataRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on the same splits: means with intervals, paired differences, a report.

    Writes records.jsonl, with one line per data set, method and seed. Also writes report.html, and
    tables as Markdown, LaTeX, CSV and JSON. Finished lines are kept: a stopped run continues if
    the command is run again.

    Cost stands beside quality: seconds per fit, microseconds per row of a batch, milliseconds for
    one row, megabytes of the saved model. The methods of higher-peers are tuned, bagged and
    temperature-scaled. They are LightGBM and CatBoost with 30 trials, RealMLP, TabM, xRFM, a stack,
    and the base without neighbors. They take minutes on a table of a thousand rows.

    [bold]Examples[/bold]
      nearwise compare digits wine-red --seeds 0-4 --out runs/first
      nearwise compare adult --methods attention,lightgbm,logistic --seeds 0,1 --out runs/adult
      nearwise compare wine --methods attention,higher-peers --seeds 0 --out runs/higher
      nearwise compare wine --peer-weights tabicl=tabicl.ckpt --out runs/pretrained
      nearwise compare digits --noise 0.3 --out runs/noisy
      nearwise compare my_table.csv:label --out runs/mine
    """
    check_folder("--out", out, paths_among(*datasets))
    from nearwise_lab.experiments import compare as run_comparison
    from nearwise_lab.experiments.peers.foundation import find_checkpoints
    from nearwise_lab.report import render_report

    weights = find_checkpoints(peer_weights or [])
    wanted = split_list(methods) or ["peers", *weights, "attention"]
    records = run_comparison(
        datasets,
        _present_methods(wanted, weights),
        parse_seeds(seeds),
        out,
        noise=noise,
        noise_kind=noise_kind,
        data_root=data_root,
        peer_weights=weights,
        progress=not quiet,
    )
    with steps("Writing the report", quiet=quiet) as progress:
        page = render_report(out, progress=progress)
    show((out / "results.md").read_text(encoding="utf-8"))
    if not quiet:
        say(f"Tables: {out / 'results.md'} (.tex, .csv, .json). Report: {page}")
    refuse_failed(records)


@lab_command
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the report.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and the methods.")] = 0,
    quiet: QuietOption = False,
) -> None:
    """Compare methods on handwritten digits and write a report, in about a minute.

    Uniform, distance-weighted and attention k-NN and simple baselines get the same split of
    scikit-learn's digits. The report is one HTML page that needs no network. It has the comparison,
    reliability diagrams, training curves, and wrong and uncertain digits with their neighbors.

    [bold]Examples[/bold]
      nearwise demo
      nearwise demo --out runs/second --seed 1
    """
    check_folder("--out", out)
    from nearwise_lab.report import run_demo

    page = run_demo(out, seed=seed, progress=not quiet)
    if not quiet:
        show((out / "results.md").read_text(encoding="utf-8"))
        say(f"Wrong and unsure digits with their neighbors, reliability, training curves: {page}")


def _present_methods(wanted: list[str], weights: Collection[str]) -> list[str]:
    """Expand groups to their installed methods; report the methods that are left out.

    Foundation models are left out where no weights are given, by whatever name they are requested.
    """
    from nearwise_lab.experiments.methods import GROUPS, METHODS, weights_wanted

    names, absent = [], defaultdict(list)
    for one in wanted:
        for name in GROUPS.get(one, (one,)):
            method = METHODS.get(name)
            if method and method.needs_weights and name not in weights:
                say(f"note: {name} left out; it {weights_wanted(name)}")
            elif one in GROUPS and method and method.module and find_spec(method.module) is None:
                absent[f"'nearwise-lab[{method.extra}]'" if method.extra else method.module].append(
                    name
                )
            else:
                names.append(name)
    for package, left_out in absent.items():
        say(f"note: {', '.join(left_out)} left out; pip install {package} brings them.")
    return names
