"""``nearwise field train``: train a neural field, stage by stage."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearwise.cli.console import say, show, steps
from nearwise.cli.options import QuietOption
from nearwise.cli.outputs import check_folder
from nearwise_lab.cli.needs import ConfigOption, DataRootOption, SetOption, lab_command
from nearwise_lab.cli.settings_text import change_settings, image_set_name, paths_among

if TYPE_CHECKING:
    from nearwise_lab.experiments.fields import FieldRun
    from nearwise_lab.field_training import FieldConfig
    from nearwise_lab.probing.data import ProbeData

_TEST_SHARE = 500 / 1797  # of sets without an official test part, such as the digits
_SMALL_IMAGE = 10  # pixels; up to here the preset for digits does


@lab_command
def train(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the models.")],
    objective: Annotated[
        Literal["reconstruction", "sparse", "nce", "sparse-nce"],
        typer.Option(
            help="Training objective. nce starts from a model without it, found or trained first."
        ),
    ] = "reconstruction",
    dataset: Annotated[
        str,
        typer.Option(
            "--dataset",
            "-d",
            metavar="DATA",
            help="digits, mnist, cifar10, cifar100, or a folder of class folders.",
        ),
    ] = "digits",
    preset: Annotated[
        Literal["auto", "original", "S", "S64", "XS", "digits"],
        typer.Option(help="Sizes of the model; auto: digits up to 10 pixels, else S64."),
    ] = "auto",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of the first stage. Default: the preset's.")
    ] = None,
    finetune_epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Epochs of the second stage, if there is one. Default: the preset's."
        ),
    ] = None,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Add a second stage without nce, with as many steps: the control of nce.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, batches and contexts.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=20, help="Maximum number of training images.")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="auto: a GPU if there is one.")
    ] = "auto",
    config: ConfigOption = None,
    changes: SetOption = None,
    data_root: DataRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a neural field: a Perceiver autoencoder that encodes an image as tokens.

    Writes the model, its history and two figures: the learning curve, and reconstructions from
    all and from some of the pixels. No labels are used. Validation images are only measured, test
    images not used. A stopped run continues from the last epoch if the command is run again. Saved
    models are found by their settings, under any folder name.

    [bold]Examples[/bold]
      nearwise field train --objective sparse --out runs/fields
      nearwise field train --objective sparse-nce --out runs/fields
      nearwise field train --objective sparse --control --out runs/fields
      nearwise field train -d cifar10 --device cuda --set precision=bfloat16 -o runs/cifar10
    """
    check_folder("--out", out, paths_among(dataset))
    from nearwise.functional.devices import choose_device
    from nearwise_lab.data import load_images
    from nearwise_lab.experiments.fields import run_field
    from nearwise_lab.probing import probe_data

    dataset = image_set_name(dataset)
    loaded = load_images(dataset, data_root=data_root)
    most = None if limit is None else (limit, len(loaded))
    data = probe_data(loaded, test_size=_TEST_SHARE, limit=most)
    size = min(data.train.images.shape[1:3])
    chosen = preset if preset != "auto" else ("digits" if size <= _SMALL_IMAGE else "S64")
    settings = _settings(config, changes)
    settings["preset"] = chosen
    stages = _stages(objective, settings, (epochs, finetune_epochs), control)
    with steps("Training", quiet=quiet) as progress:
        run = run_field(
            data,
            stages,
            out,
            dataset=dataset,
            seed=seed,
            device=str(choose_device(device)),
            progress=progress,
        )
    drawn = _draw(run, data, stages[-1])
    if run.found and not quiet:
        say("Found a model trained with these settings; nothing was trained.")
    _show(run)
    if not quiet:
        say(f"Model: {run.folder}. Figures: {', '.join(drawn)}.")


def _settings(config: Path | None, changes: list[str] | None) -> dict[str, Any]:
    from nearwise_lab.experiments.study.settings import read_config

    settings = change_settings({} if config is None else read_config(config), "--set", changes)
    for name in ("objective", "preset", "epochs"):
        if name in settings:
            raise ValueError(f"{name} has an option of its own: write --{name} {settings[name]}.")
    return settings


def _stages(
    objective: Any,
    settings: dict[str, Any],
    lengths: tuple[int | None, int | None],
    control: bool,
) -> "list[FieldConfig]":
    """Return the settings of the stages that lead to the objective."""
    from nearwise_lab.experiments.fields import STAGES, stage_configs

    names = STAGES[objective]
    if control:
        if len(names) > 1:
            raise ValueError(
                f"--control is the second stage without nce: it goes with reconstruction or "
                f"sparse, not with {objective}."
            )
        names = (*names, objective)
    return stage_configs(names, settings, *lengths)


def _draw(run: "FieldRun", data: "ProbeData", config: "FieldConfig") -> list[str]:
    from nearwise.data.images.pixels import as_images
    from nearwise_lab.report.runs import draw_field_curves, draw_reconstructions

    paths = (run.folder / "curve.png", run.folder / "reconstructions.png")
    draw_field_curves(run.history, paths[0])
    draw_reconstructions(run.model, as_images(data.validation.images), config.context, paths[1])
    return [path.name for path in paths]


_COLUMNS = (
    ("step", "steps", "d"),
    ("train_mse", "train MSE", ".5f"),
    ("nce", "NCE", ".3f"),
    ("psnr", "PSNR, all pixels", ".2f"),
    ("sparse_psnr", "PSNR, some", ".2f"),
    ("hidden_mse", "MSE, hidden", ".5f"),
)


def _show(run: "FieldRun") -> None:
    """Show the last metrics of each stage, one row per stage."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("objective")
    for _, title, _ in _COLUMNS:
        table.add_column(title, justify="right")
    ends = {row["stage"]: row for row in run.history}
    for stage, row in ends.items():
        table.add_row(stage, *(f"{row[k]:{f}}" if k in row else "-" for k, _, f in _COLUMNS))
    show(table)
