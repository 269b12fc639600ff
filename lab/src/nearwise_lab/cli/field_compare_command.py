"""``nearwise field compare``: frozen representations, compared with one set of probes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nearwise.cli.console import say, show, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder
from nearwise.cli.rows.parsing import parse_count, split_list
from nearwise_lab.cli.needs import ConfigOption, DataRootOption, SetOption, lab_command
from nearwise_lab.cli.settings_text import (
    change_settings,
    image_set_name,
    parse_limit,
    parse_seeds,
    paths_among,
)

if TYPE_CHECKING:
    from nearwise.data import Dataset
    from nearwise.probes import Encoder
    from nearwise_lab.experiments.representations import Comparison, StudyConfig


@lab_command
def compare(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", metavar="DIR", help="Folder of models, records and report."),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            "--dataset", "-d", metavar="DATA", help="digits, cifar10, ... or a folder of images."
        ),
    ] = "digits",
    context: Annotated[
        str | None,
        typer.Option(
            help="Pixels that encoders read: full, 0.2 (a share, drawn per image), 0.2:fixed, "
            "0.2:batch; separated by commas. Default: full,0.2."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds: 0-2, or 0,2,7.")] = "0",
    probes: Annotated[
        str | None,
        typer.Option(
            help="Probes, separated by commas. Default: knn,attention,linear,transformer."
        ),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(help="Only these of pixels, sparse, full, full+nce, sparse+nce, random."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            metavar="NAME=ENCODER",
            help="Another encoder: a saved model, a transformers model, or module:function. May "
            "be repeated.",
        ),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="TRAIN,TEST", help="Maximum number of rows of each.")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if there is one.")
    ] = "auto",
    jobs: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Parallel processes for training and probing. auto: one per processor; one on a "
            "GPU.",
        ),
    ] = "auto",
    config: ConfigOption = None,
    changes: SetOption = None,
    data_root: DataRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Compare frozen representations with probes; models that are missing are trained first.

    The encoders are the original pixels, neural fields trained in four ways, and an untrained
    field. The four ways: from all pixels or a share of them, with and without a contrastive term,
    with as many steps each. k-NN, attention, linear and transformer probes read each encoder from
    every context. Writes report.html and .pdf, results.md, .tex, .csv and .json, and figures/.
    Finished parts are kept: a stopped run continues if the command is run again.

    [bold]Examples[/bold]
      nearwise field compare --out runs/digits
      nearwise field compare -d digits --context full,0.2 --seeds 0-2 --out runs/digits
      nearwise field compare -d cifar10 --seeds 0-2 --device cuda --set precision=bfloat16 -o runs/c
      nearwise field compare --limit 600,300 --set epochs=2 --set field.lr=0.001 -o runs/slice
    """
    check_folder("--out", out, paths_among(dataset))
    from nearwise_lab.data import load_images
    from nearwise_lab.experiments.representations import run_comparison
    from nearwise_lab.report import render_report
    from nearwise_lab.report.representations import judge_all

    name = image_set_name(dataset)
    given = {"contexts": context, "probes": probes}
    settings = _settings(name, given, limit, config, changes)
    loaded = load_images(name, data_root=data_root)
    with steps("Comparing", quiet=quiet) as progress:
        others = {} if not also else _encoders(also, loaded)
        comparison = run_comparison(
            loaded,
            out,
            seeds=parse_seeds(seeds),
            config=settings,
            arms=None if arms is None else split_list(arms),
            others=others,
            device=device,
            n_jobs=parse_count("--jobs", jobs) or "auto",
            progress=progress,
        )
    with steps("Writing the report", quiet=quiet) as progress:
        page = render_report(out, progress=progress)
    _show_accuracies(comparison)
    for found in judge_all(comparison):
        show(f"{found.claim.key}: {found.verdict}. {found.words}")
    if not quiet:
        say(f"Took {comparison.facts['times']}.")
        say(f"Report: {page} (.pdf). Tables: {out / 'results.md'} (.tex, .csv, .json).")


def _settings(
    dataset: str,
    given: dict[str, str | None],
    limit: str | None,
    config: Path | None,
    changes: list[str] | None,
) -> "StudyConfig":
    from nearwise_lab.experiments.representations import study_config
    from nearwise_lab.experiments.study.settings import read_config

    settings = change_settings({} if config is None else read_config(config), "--set", changes)
    settings |= {name: split_list(listed) for name, listed in given.items() if listed is not None}
    if limit is not None:
        settings["limit"] = parse_limit(limit)
    made = study_config(dataset, settings)
    made.stages(["sparse", "sparse-nce"])  # settings of the fields are right, too
    return made


def _encoders(also: list[str], loaded: "Dataset") -> "dict[str, Encoder]":
    """Load the encoders of --also, in addition to the study's own."""
    from nearwise_lab.probing import StoredFeatures, open_encoder

    found: dict[str, Encoder] = {}
    height, width, channels = loaded.X.shape[1:]
    for text in also:
        name, sign, encoder = text.partition("=")
        if not sign or not name or not encoder:
            raise ValueError(f"--also {text!r} is not NAME=ENCODER. Write --also dino=DIR.")
        made = open_encoder(encoder, (height, width), channels)
        if isinstance(made, StoredFeatures):
            raise ValueError(
                f"--also {text!r} names features, which cannot be computed from other contexts. "
                "Use 'nearwise probe' for them."
            )
        found[name] = made
    return found


def _show_accuracies(comparison: "Comparison") -> None:
    """Show the accuracy tables, one per context."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from nearwise_lab.report.representations import Tables

    tables = Tables(comparison)
    found = (tables.accuracy(context) for context in comparison.contexts)
    for content in filter(None, found):
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("encoder", no_wrap=True)
        for column in content.columns[1:]:
            table.add_column(column, justify="right", no_wrap=True)
        for name, cells in content.rows:
            marked = [Text(c.text, "bold" if c.mark == "best" else "") for c in cells]
            table.add_row(name, *marked)
        show(f"{content.title}. {content.caption}")
        show(table)
