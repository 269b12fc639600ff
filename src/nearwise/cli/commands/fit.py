"""``nearwise fit``: learn a model from a table, or from folders of images."""

import time
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nearwise.cli import options
from nearwise.cli.checkpoints import check_checkpoints, checkpoints, fits_in
from nearwise.cli.console import INTERRUPTED, if_stopped, reported, say, typed_again
from nearwise.cli.fit_summary import summarize
from nearwise.cli.models import check_out, new_model
from nearwise.cli.outputs import check_folder, require_data
from nearwise.cli.rows.column_options import column_uses
from nearwise.cli.rows.parsing import parse_count, parse_cv, parse_noise
from nearwise.cli.rows.rows import read_to_learn
from nearwise.cli.rows.targets import estimator_for
from nearwise.cli.several import summarize_targets
from nearwise.interrupts import watch_interrupt


@reported
def fit(
    data: options.DataArgument,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder for the model.")
    ],
    target: options.TargetsOption = None,
    task: options.TaskOption = "auto",
    drop: options.DropOption = None,
    keep: options.KeepOption = None,
    category: options.CategoryOption = None,
    number: options.NumberOption = None,
    date: options.DateOption = None,
    text: options.TextOption = None,
    keep_words: options.WordsOption = None,
    weight: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the weight of each row.")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column that names the group of each row, such as a patient. Use it if new rows "
            "come from new groups. Rows of a group are held out together.",
        ),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="COLUMN",
            help="Column of dates or numbers, if new rows are later than these. The latest fifth "
            "of the rows is held out for validation and calibration.",
        ),
    ] = None,
    show: options.ShowOption = None,
    preset: Annotated[
        Literal["default", "instant"] | None,
        typer.Option(
            help="default: a base, and attention pretrained on other tables and trained further "
            "here. instant: one base model and the pretrained attention as it is, for tables and "
            "for images that are embedded without training."
        ),
    ] = None,
    estimator: Annotated[
        Literal["auto", "none"] | None,
        typer.Option(
            help="The base, combined with the neighbors. auto: a forest, and the models that "
            "improve on it. none: the class shares, or the mean of numbers, instead."
        ),
    ] = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Network to train or take. Tables: auto, identity (none), table (an embedding to "
            "search), deep (an MLP that may join the base). Images: auto, efficientnet-lite0 "
            "(pretrained), fast-cnn, fast-cnn-wide, resnet-small, resnet18, resnet50, "
            "hf:NAME\\[@REVISION], or the folder of a model.",
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Training epochs (passes over the rows) of a network.")
    ] = None,
    n_neighbors: Annotated[
        str | None, typer.Option(metavar="INT|auto", help="Neighbors per row and embedding space.")
    ] = None,
    cv: Annotated[
        str | None,
        typer.Option(
            "--cv",
            metavar="INT|SHARE|auto",
            help="Rows held out to fit attention and calibration. 5: each of 5 folds in turn "
            "(tables). 0.1: a tenth of the rows once.",
        ),
    ] = None,
    label_noise: Annotated[
        str | None,
        typer.Option(
            metavar="auto|RATE",
            help="Train on labels of which some are wrong, and predict the true ones. auto "
            "estimates the share of wrong labels. RATE sets it.",
        ),
    ] = None,
    class_prior: Annotated[
        Literal["train", "uniform"] | None,
        typer.Option(
            help="Class prior at prediction time. train: as in the training rows. uniform: the "
            "same for rare and common classes."
        ),
    ] = None,
    image_size: options.ImageSizeOption = None,
    color: options.ColorOption = None,
    skip_damaged: options.SkipDamagedOption = False,
    skip_unlabelled: options.SkipUnlabelledOption = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed, for the same model again.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted fit from its checkpoints.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model at --out.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more.")] = False,
    header: options.HeaderOption = None,
    sheet: options.SheetOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Fit a model to a table, or a classifier to a folder of images, and save it as a folder.

    A target of numbers with fractions means regression. Any other means classification, unless
    it has many different whole numbers. Many are more than 20, or more than 500 if each is in at
    least five rows. The output names the task.

    Columns of text are categories. Dates become year, month, day of week and number of days. Empty
    cells are missing values. Row numbers, row ids and text that differs in every row are left out.
    A report shows how each column is used and which option changes it.

    With several targets the model learns each of them, from the same rows. MODEL then has a folder
    per target, with a model of its own for the other commands: MODEL/TARGET.

    For images DATA is a folder with one folder per class. If it has a folder "train" beside "test"
    or "val", the model learns from "train" only. The others are left for 'nearwise evaluate'.
    Images above 64 pixels are embedded by the network of the extra "images", which is not trained.
    If their sizes differ, they are resized to 128 x 128, and so are later images.

    Checkpoints of the training are in MODEL.checkpoint until the model is saved. With --resume, a
    killed fit continues from there. Ctrl-C while networks, the base or the attention are trained
    keeps the best model so far. At other times Ctrl-C saves nothing. A message says which.

    [bold]Examples[/bold]
      nearwise fit train.csv --target species --out iris.model
      nearwise fit train.parquet -t churned -o churn.model --drop customer_id
      nearwise fit train.csv -t churned -o churn.model --category zip --keep id
      nearwise fit train.csv -t churned -o churn.model --resume
      nearwise fit train.csv -t churned -o churn.model --preset instant
      nearwise fit visits.csv -t relapse -o relapse.model --groups patient
      nearwise fit train.csv -t churned -o churn.model --time signed_up
      nearwise fit train.csv -t churned -o churn.model --label-noise auto
      nearwise fit wine.csv -t quality -o quality.model --task regression
      nearwise fit songs.csv -t happy -t calm -o songs.model
      nearwise fit photos.parquet -t 'tag_*' -o tags.model
      nearwise fit flowers/ --out flowers.model --image-size 64
    """
    check_out(out, overwrite=overwrite)
    check_folder("--out", out, [data], for_model=True)
    check_checkpoints(out)
    require_data([data])
    if_stopped("Nothing was saved: the fit had not begun.")
    if time_column is not None and cv is not None:
        raise ValueError("--time holds out the latest fifth of the rows. Leave --cv out.")
    if preset == "instant":
        options.refuse("trains a network, and --preset instant trains none", {"epochs": epochs})
    columns = column_uses(data, keep=keep, category=category, number=number, date=date, text=text)
    chosen: dict[str, Any] = {
        "preset": preset,
        "estimator": estimator,
        "n_neighbors": parse_count("--n-neighbors", n_neighbors),
        "cv": "latest" if time_column is not None else parse_cv("--cv", cv),
        "label_noise": None if label_noise is None else parse_noise("--label-noise", label_noise),
        "class_prior": class_prior,
        "columns": columns or None,
    }
    reading = options.ReadOptions(
        header, sheet, skip_unlabelled, image_size, color, skip_damaged, quiet=quiet
    )
    rows = read_to_learn(
        data,
        target,
        reading,
        uses=columns,
        drop=drop or [],
        keep_words=keep_words or [],
        weight=weight,
        groups=groups,
        time=time_column,
        show=show,
        task=task,
    )
    several = rows.y.ndim > 1
    make = estimator_for(rows, class_prior=class_prior, embedder=embedder, epochs=epochs)
    # options that are not given keep the estimator's defaults
    parameters = {name: value for name, value in chosen.items() if value is not None}
    parameters |= {"estimator": None} if estimator == "none" else {}

    from nearwise.estimators import ColumnWarning, Settings
    from nearwise.estimators.progress import reporting_stages_to
    from nearwise.estimators.storage.targets_folder import KIND as TARGETS

    own: dict[str, Any] = {} if embedder is None else {"embedder": embedder}
    own |= {} if epochs is None else {"train": {"epochs": epochs}}
    start = time.perf_counter()
    with (
        new_model(out, overwrite=overwrite, kind=TARGETS if several else make.folder_parts.KIND),
        checkpoints(out, resume=resume) as folder,
        watch_interrupt() as interrupt,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ColumnWarning)  # part of the report
        model = make(
            **parameters,
            random_state=seed,
            verbose=0 if quiet else 2 if verbose else 1,
            settings=Settings(**own, checkpoint_dir=folder),
        )
        step = ["the preparation"]
        try:
            with reporting_stages_to(lambda name: step.append(name)):
                model.fit(rows.source, sample_weight=rows.weight)
            step.append("saving")
            model.save(out)
        except KeyboardInterrupt:
            simple = rows.names is None and not (embedder or epochs or cv or label_noise)
            say(f"Stopped in {step[-1]}; nothing was saved. {_next_try(folder, preset, simple)}")
            raise typer.Exit(INTERRUPTED) from None
        if not quiet and several:
            summarize_targets(model, time.perf_counter() - start, out)
        elif not quiet:
            summarize(model, rows, time.perf_counter() - start, out, unnamed=header is False)
        if interrupt.seen:
            _say_stopped_early(out, folder, resume=resume)
            raise typer.Exit(INTERRUPTED)


def _say_stopped_early(out: Path, folder: Path, *, resume: bool) -> None:
    again = typed_again("--overwrite")
    resumes = ", with --resume from its checkpoints" if fits_in(folder) else ""
    say(
        f"Stopped early: {out} holds the best model so far; later steps are missing. To fit "
        f"in full{resumes}: {again}{' --resume' if resumes and not resume else ''}"
    )


def _next_try(folder: Path, preset: str | None, simple: bool) -> str:
    """Suggest a command after a stop without a saved model; `simple`: no rare options."""
    if fits_in(folder):
        return f"To go on from its checkpoints: {typed_again('--resume')}"
    if simple and preset != "instant":
        return f"A model takes seconds with: {typed_again('--preset', 'instant')}"
    return "There is no checkpoint to go on from: the same command begins anew."
