"""``nearwise vit train``: a vision transformer with any attention layer, by the published flags."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rich.progress
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from nearwise.cli.console import INTERRUPTED, say, show, steps
from nearwise.cli.outputs import check_folder
from nearwise.progress_bar import ProgressBar
from nearwise_lab.cli.settings_text import paths_among
from nearwise_lab.cli.vit_flags import checked, settings_command
from nearwise_lab.experiments.vit.outputs import epoch_line
from nearwise_lab.experiments.vit.settings import VitSettings

HELP = """Train or evaluate a vision transformer with any of the lab's attention layers.

Flags have the names and defaults of the published ConvNN code, with underscores or dashes. \
Switches are --augment, --no-augment or --augment True. Images stay on the device. Writes \
args.txt, model.txt, train_eval_results.txt, epochs.jsonl, summary.json, curves.png and the model \
to --output-dir. A stopped run continues from the last epoch if the command is run again.

Test images choose nothing. The result is the model of the last epoch. With --validation it is \
the model of the best epoch on held-out training images.

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
_COLUMNS = (  # of the table of metrics: name, title, form
    ("n_test", "test images", "{:,}"),
    ("top1", "top-1 %", "{:.2f}"),
    ("top5", "top-5 %", "{:.2f}"),
    ("nll", "NLL", "{:.3f}"),
    ("ece", "ECE", "{:.3f}"),
    ("aurc", "AURC x1000", "{:.2f}"),
    ("noise", "noise", "{:g}"),
)


def command() -> Any:
    """Make the command, with an option for every setting."""
    return settings_command("train", _train, VitSettings, HELP)


def _train(values: dict[str, Any], given: set[str], quiet: bool) -> None:
    from nearwise_lab.experiments.vit import evaluate_vit, train_vit
    from nearwise_lab.report.runs import draw_vit_curves

    settings = checked(values, "train")
    if settings.test_only:
        with steps(f"Evaluating {settings.folder}", quiet=quiet):
            metrics = evaluate_vit(settings, given - {"test_only", "output_dir"})
        _show_metrics(metrics)
        return
    check_folder("--output-dir", Path(settings.folder), paths_among(settings.dataset))
    with training_bar(settings, quiet) as calls:
        run = train_vit(settings, progress=(lambda line: None) if quiet else say, **calls)
    if run.history:
        draw_vit_curves(run.history, run.folder / "curves.png", title=str(run.summary["layer"]))
    _show_metrics(run.summary)
    if not quiet:
        say(
            f"Saved epoch {run.summary['best_epoch']} of {run.summary['epochs']} in {run.folder}, "
            "with train_eval_results.txt, epochs.jsonl, summary.json and curves.png."
        )
    if run.summary["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _show_metrics(metrics: dict[str, Any]) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for _, title, _ in _COLUMNS:
        table.add_column(title, justify="right")
    scaled = {**metrics, "aurc": 1000 * metrics["aurc"]}
    table.add_row(*(form.format(scaled[name]) for name, _, form in _COLUMNS))
    show(table)


@contextmanager
def training_bar(
    settings: VitSettings, quiet: bool = False
) -> Iterator[dict[str, Callable[[Any], None]]]:
    """Report each epoch's results, and count steps."""
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
