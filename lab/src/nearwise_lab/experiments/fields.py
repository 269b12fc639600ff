"""Neural fields trained stage by stage, saved in a folder, and found by their settings."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearwise.data.images.pixels import as_images
from nearwise_lab.data.trained_on import keep_digests
from nearwise_lab.experiments.artifacts import load_json, save_json
from nearwise_lab.field_training import FieldConfig, train_field
from nearwise_lab.field_training.config import Objective
from nearwise_lab.nn.field import PerceiverAutoencoder, find_models
from nearwise_lab.probing.data import ProbeData, digest_of_part

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
Say = Callable[[str], None]


def stage_configs(
    names: Sequence[Objective],
    settings: Mapping[str, Any],
    epochs: int | None = None,
    finetune_epochs: int | None = None,
) -> list[FieldConfig]:
    """Return the settings of consecutive training stages.

    `settings` of `FieldConfig` are the same for all; epochs are those of the first stage, and of
    each further one (default: the preset's own). ValueError if a setting does not fit.
    """
    first, later = usual_epochs(settings.get("preset", "digits"))
    lengths = [epochs or first, *[finetune_epochs or later] * (len(names) - 1)]
    return [
        FieldConfig(**{**settings, "objective": name, "epochs": length})
        for name, length in zip(names, lengths, strict=True)
    ]


def usual_epochs(preset: Any) -> tuple[int, int]:
    """Epochs of a preset's first stage, and of each further one."""
    first = FieldConfig(**{"preset": preset}).epochs
    return first, _FINETUNE_EPOCHS.get(preset, _OTHER_FINETUNE_EPOCHS)


@dataclass(frozen=True)
class FieldRun:
    """A trained field and its folder.

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


def run_field(
    data: ProbeData,
    stages: Sequence[FieldConfig],
    folder: str | Path,
    *,
    dataset: str = "",
    seed: int = 0,
    device: str = "cpu",
    progress: Say = lambda words: None,
) -> FieldRun:
    """Train a field stage by stage, or load the stages that were trained before.

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
    seed : int, default=0
    device : str, default="cpu"
    progress : callable, optional
        Called with stage and step before each step, and with the errors after each epoch.

    Raises
    ------
    KeyboardInterrupt
        If it is broken off; running it again goes on.
    ValueError
        As `train_field`.
    """
    run: FieldRun | None = None
    for n in range(1, len(stages) + 1):
        wanted = _description(data, stages[:n], seed)
        found = _find(Path(folder), wanted)
        if found is None:
            found = _train(data, stages[:n], Path(folder), wanted, run, device, progress)
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
    """Find a field trained earlier by `run_field` from random weights; None if unfinished."""
    return _find(Path(folder), _description(data, stages, seed))


def _description(data: ProbeData, stages: Sequence[FieldConfig], seed: int) -> dict[str, Any]:
    """Return all settings that identify a field."""
    channels, height, width = as_images(data.train.images[:1]).shape[1:]
    return {
        "data": digest_of_part(data.train),
        # the preset's name does not give its sizes, which another version may have changed
        "model": stages[-1].perceiver((height, width), channels).model_dump(mode="json"),
        "seed": seed,
        "stages": [stage.model_dump(mode="json", exclude=stage.free) for stage in stages],
    }


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
    device: str,
    progress: Say,
) -> FieldRun:
    """Train the last of `stages`."""
    config, name = stages[-1], "-then-".join(stage.objective for stage in stages)
    # the folder is named for readers, with a hash of what decides the run
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:8]
    place = folder / f"{name}-seed{wanted['seed']}-{digest}"
    errors = ""

    def on_epoch(record: Mapping[str, Any]) -> None:
        nonlocal errors
        shown = {"train MSE": record["train"]["mse"], "NCE": record["train"].get("nce"),
                 "held-out PSNR": record["evaluation"].get("psnr")}  # fmt: skip
        values = ", ".join(f"{k} {v:.4g}" for k, v in shown.items() if v is not None)
        errors = f"; epoch {record['epoch']}: {values}"
        progress(f"{config.objective}{errors}")

    model, epochs = train_field(
        as_images(data.train.images),
        config,
        validation=as_images(data.validation.images),
        start_from=before.model if before else None,
        seed=int(wanted["seed"]),
        device=device,
        checkpoint=place / _CHECKPOINT,
        progress=on_epoch,
        on_step=lambda step, of: progress(f"{config.objective}, step {step} of {of}{errors}"),
    )
    if not model.run["finished"]:
        raise KeyboardInterrupt  # the checkpoint is there to go on from
    last = int(model.run["step"])
    first = int((model.run["before"] or {}).get("step", 0))
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
