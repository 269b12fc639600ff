"""``nearwise vit train``: a vision transformer with any attention layer, by the published flags."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.progress
import typer
from pydantic import ValidationError
from rich.console import Console

from nearwise.cli.console import INTERRUPTED, say, show, steps
from nearwise.cli.outputs import check_folder
from nearwise.progress_bar import ProgressBar
from nearwise.training.settings import plain_message
from nearwise_lab.cli.settings_text import paths_among
from nearwise_lab.cli.vit_flags import settings_command
from nearwise_lab.experiments.vit.settings import NEVER_EXISTED, VitSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearwise_lab.experiments.vit import VitRun

HELP = """Train a vision transformer whose tokens attend by any layer, or evaluate one.

Takes the flags of the published ConvNN code by their names and defaults, with underscores or \
dashes; switches as --augment, --no-augment or --augment True. Images stay on the device. Writes \
args.txt, model.txt, train_eval_results.txt, epochs.jsonl, summary.json, curves.png and the model \
to --output-dir. Every epoch is kept: stop it, run it again, and it goes on from there.

The test images decide nothing: the model of the last epoch counts, or with --validation that of \
the best one on images kept from training.

[bold]Examples[/bold]
  nearwise vit train --dataset digits --resize 0 --patch-size 2 --num-epochs 20
  nearwise vit train --layer ConvNNAttention --dataset cifar10 --K 9 --sampling-type random \
--num-samples 32
  nearwise vit train --layer KNNAttention --dataset cifar10 --resize 32 --patch-size 4 --augment \
--mixup 0.2 --label-smoothing 0.1 --scheduler cosine --warmup-epochs 5 --use-amp
  nearwise vit train --recipe published --layer ConvNNAttention --sampling-type random \
--num-samples 32
  nearwise vit train --test-only --output-dir runs/vit/Attention-cifar10-0 --noise 0.2 \
--noise-on test
"""


def _train(values: dict[str, Any], given: set[str], quiet: bool) -> None:
    settings = _checked(values)
    if settings.test_only:
        _evaluate(settings, given - {"test_only", "output_dir"}, quiet)
        return
    check_folder("--output-dir", Path(settings.folder), paths_among(settings.dataset))
    from nearwise_lab.experiments.vit import train_vit

    with training_bar(settings, quiet) as calls:
        run = train_vit(
            settings,
            progress=(lambda line: None) if quiet else say,
            **calls,
        )
    _report(run, quiet)


def train_command() -> Any:
    """Make the command, with an option for every setting."""
    return settings_command("train", _train, VitSettings, text=HELP, wrong=NEVER_EXISTED)


def _checked(values: dict[str, Any]) -> VitSettings:
    try:
        return VitSettings(**values)
    except ValidationError as error:
        message = plain_message(error).rstrip(".")
        raise ValueError(f"{message}. See nearwise vit train --help.") from None


def _evaluate(settings: VitSettings, given: set[str], quiet: bool) -> None:
    from nearwise_lab.experiments.vit import evaluate_vit

    with steps(f"Evaluating {settings.folder}", quiet=quiet):
        metrics = evaluate_vit(settings, given)
    _show_metrics(metrics)


def _report(run: "VitRun", quiet: bool) -> None:
    from nearwise_lab.report.runs import draw_vit_curves

    if run.history:
        draw_vit_curves(run.history, run.folder / "curves.png", title=str(run.summary["layer"]))
    _show_metrics(run.summary)
    if not quiet:
        say(
            f"Epoch {run.summary['best_epoch']} of {run.summary['epochs']} is kept. Everything is "
            f"in {run.folder}: train_eval_results.txt, epochs.jsonl, summary.json, curves.png."
        )
    if run.summary["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _show_metrics(metrics: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    titles = {"n_test": "test images", "top1": "top-1 %", "top5": "top-5 %", "nll": "NLL"}
    titles |= {"ece": "ECE", "aurc": "AURC x1000", "noise": "noise"}
    for title in titles.values():
        table.add_column(title, justify="right")
    scaled = {**metrics, "aurc": 1000 * metrics["aurc"]}
    digits = {"n_test": "{:,}", "nll": "{:.3f}", "ece": "{:.3f}", "noise": "{:g}"}
    table.add_row(*(digits.get(name, "{:.2f}").format(scaled[name]) for name in titles))
    show(table)


@contextmanager
def training_bar(
    settings: VitSettings, quiet: bool = False
) -> "Iterator[dict[str, Callable[[Any], None]]]":
    """Report each epoch's results, and count steps."""
    from nearwise_lab.experiments.vit.outputs import epoch_line

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    columns = (
        rich.progress.TextColumn("{task.description} {task.completed} of {task.total}"),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.fields[note]}"),
        rich.progress.TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=console, disable=quiet) as progress:
        task = progress.add_task("epoch", total=settings.num_epochs, note="")

        def on_epoch(record: dict[str, Any]) -> None:
            progress.update(task, completed=record["epoch"])
            if not quiet:
                progress.console.print(epoch_line(record), soft_wrap=True)

        yield {  # the names that `train_vit` has for them
            "on_step": lambda step: progress.update(task, note=f"step {step + 1}"),
            "on_epoch": on_epoch,
            "on_resume": lambda epochs: progress.update(task, completed=epochs),
        }
