"""Neural fields trained stage by stage, kept in a folder, and found again by their descriptions."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nearwise.data.images.pixels import as_images
from nearwise_lab.data.trained_on import keep_digests
from nearwise_lab.experiments.artifacts import load_json, save_json
from nearwise_lab.field_training.files import find_models
from nearwise_lab.field_training.run import FieldConfig, Objective, train_field
from nearwise_lab.nn.field import PerceiverAutoencoder
from nearwise_lab.probing.data import ProbeData, digest_of_part
from nearwise_lab.training.runs import FREE_SETTINGS

HISTORY = "history.json"
_CHECKPOINT = "checkpoint"
# a contrastive objective goes on from a model trained without it
STAGES: dict[Objective, tuple[Objective, ...]] = {
    "reconstruction": ("reconstruction",),
    "sparse": ("sparse",),
    "nce": ("reconstruction", "nce"),
    "sparse-nce": ("sparse", "sparse-nce"),
}
_FINETUNE_EPOCHS = {"digits": 10}
_OTHER_FINETUNE_EPOCHS = 5


def stage_configs(
    names: Sequence[Objective],
    settings: Mapping[str, Any],
    epochs: int | None = None,
    finetune_epochs: int | None = None,
) -> list[FieldConfig]:
    """Give the settings of stages that follow one another.

    Parameters
    ----------
    names : sequence of objectives
    settings : mapping
        Of `FieldConfig`, the same for all.
    epochs, finetune_epochs : int, optional
        Of the first stage, and of each further one. Default: the preset's own.

    Raises
    ------
    ValueError
        If a setting is unknown or out of range.
    """
    first, later = usual_epochs(str(settings.get("preset", "digits")))
    lengths = [epochs or first, *[finetune_epochs or later] * (len(names) - 1)]
    return [
        FieldConfig.model_validate({**settings, "objective": name, "epochs": length})
        for name, length in zip(names, lengths, strict=True)
    ]


def usual_epochs(preset: str) -> tuple[int, int]:
    """Epochs of a preset's first stage, and of each further one."""
    first = FieldConfig.model_validate({"preset": preset}).epochs
    return first, _FINETUNE_EPOCHS.get(preset, _OTHER_FINETUNE_EPOCHS)


@dataclass(frozen=True)
class FieldRun:
    """A trained field and where it lies.

    Attributes
    ----------
    model : PerceiverAutoencoder
        On the CPU.
    folder : Path
    history : list of dict
        A row per epoch over all stages: step, stage, loss, train_mse, nce where there was one, and
        the errors on validation images (mse, psnr, ...; see `reconstruction_errors`).
    seconds : float
        Of training, all stages.
    found : bool
        Whether it was there before.
    """

    model: PerceiverAutoencoder
    folder: Path
    history: list[dict[str, Any]]
    seconds: float
    found: bool


@dataclass(frozen=True)
class FieldProgress:
    """Callbacks of a run; each is called with the name of the stage first.

    Attributes
    ----------
    on_step : callable
        ``on_step(stage, step, n_steps)`` before each step, from 0.
    on_epoch : callable
        ``on_epoch(stage, record)`` after each epoch.
    """

    on_step: Callable[[str, int, int], None]
    on_epoch: Callable[[str, Mapping[str, Any]], None]


def run_field(
    data: ProbeData,
    stages: Sequence[FieldConfig],
    folder: str | Path,
    *,
    dataset: str = "",
    start_from: str | Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: FieldProgress | None = None,
) -> FieldRun:
    """Train a field by one stage after the other, or find what was trained before.

    Every stage is a model in a folder of its own, so that two runs that share a stage train it
    once. A run that was broken off goes on from its last epoch.

    Parameters
    ----------
    data : ProbeData
        Training images, and validation images to follow the error on.
    stages : sequence of FieldConfig
        At least one.
    folder : path
        Models lie in folders below it.
    dataset : str, default=""
        Its name, for the model's description.
    start_from : path, optional
        Folder of a model that the first stage goes on from.
    seed : int, default=0
    device : str, default="cpu"
    progress : FieldProgress, optional

    Raises
    ------
    KeyboardInterrupt
        If it is broken off; running it again goes on.
    ValueError
        As `train_field`, or if `start_from` holds no model.
    """
    if not stages:
        raise ValueError("stages is empty. Pass the settings of at least one.")
    run: FieldRun | None = None
    for n in range(1, len(stages) + 1):
        wanted = _description(data, stages[:n], seed, start_from)
        found = _find(Path(folder), wanted)
        if found is None:
            start = start_from if run is None else run.model
            found = _train(data, stages[:n], Path(folder), wanted, run, start, device, progress)
            found.model.run |= {"study": wanted, "dataset": dataset}
            found.model.save(found.folder)
            keep_digests(found.folder, data.train.images)
            shutil.rmtree(found.folder / _CHECKPOINT)  # three times the size of the model
        run = found
    assert run is not None  # there is a stage
    return run


def find_field(
    data: ProbeData, stages: Sequence[FieldConfig], folder: str | Path, *, seed: int = 0
) -> FieldRun | None:
    """Find what `run_field` trained before, from random weights; None if it did not finish."""
    return _find(Path(folder), _description(data, stages, seed, None))


def _description(
    data: ProbeData, stages: Sequence[FieldConfig], seed: int, start_from: str | Path | None
) -> dict[str, Any]:
    """Return all that decides a field."""
    channels, height, width = as_images(data.train.images[:1]).shape[1:]
    said: dict[str, Any] = {
        "data": digest_of_part(data.train),
        # the preset's name does not give its sizes, which another version may have changed
        "model": stages[-1].perceiver((height, width), channels).as_dict(),
        "seed": seed,
        "stages": [stage.model_dump(mode="json", exclude=FREE_SETTINGS) for stage in stages],
    }
    if start_from is not None:
        started = PerceiverAutoencoder.load(start_from).run
        said["start"] = {k: started.get(k) for k in ("fingerprint", "stages", "seed", "step")}
    return said


def _find(folder: Path, wanted: Mapping[str, Any]) -> FieldRun | None:
    for file in find_models(folder, {"study": dict(wanted), "finished": True}):
        kept = load_json(file.folder / HISTORY)
        if kept is not None:
            model = PerceiverAutoencoder.load(file.folder)
            return FieldRun(model, file.folder, kept["history"], kept["seconds"], found=True)
    return None


def _train(
    data: ProbeData,
    stages: Sequence[FieldConfig],
    folder: Path,
    wanted: Mapping[str, Any],
    before: FieldRun | None,
    start: PerceiverAutoencoder | str | Path | None,
    device: str,
    progress: FieldProgress | None,
) -> FieldRun:
    """Train the last of `stages`."""
    config, name = stages[-1], "-then-".join(stage.objective for stage in stages)
    place = _place(folder, f"{name}-seed{wanted['seed']}", wanted)
    model, epochs = train_field(
        as_images(data.train.images),
        config,
        validation=as_images(data.validation.images),
        start_from=start,
        seed=int(wanted["seed"]),
        device=device,
        checkpoint=place / _CHECKPOINT,
        progress=None if progress is None else partial(progress.on_epoch, config.objective),
        on_step=None if progress is None else partial(progress.on_step, config.objective),
    )
    if not model.run["finished"]:
        raise KeyboardInterrupt  # the checkpoint is there to go on from
    last = int(model.run["step"])
    first = last - last_stage_steps(model.run)
    own = [
        {
            "step": first + round((last - first) * row["epoch"] / config.epochs),
            "stage": config.objective,
            **{"train_mse" if k == "mse" else k: v for k, v in row["train"].items()},
            **row["evaluation"],
        }
        for row in epochs
    ]
    history = [*(before.history if before else []), *own]
    seconds = sum(row["seconds"] for row in epochs) + (before.seconds if before else 0.0)
    save_json(place / HISTORY, {"history": history, "seconds": seconds})
    return FieldRun(model.cpu(), place, history, seconds, found=False)


def last_stage_steps(run: Mapping[str, Any]) -> int:
    """Count the steps of the last stage of a model's `run`."""
    return int(run["step"]) - int((run["before"] or {}).get("step", 0))


def _place(folder: Path, name: str, wanted: Mapping[str, Any]) -> Path:
    """Folder of a run: named for readers, with a hash of what decides it."""
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    return folder / f"{name}-{digest[:8]}"
