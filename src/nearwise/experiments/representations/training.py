"""Train the fields of one seed, each stage once, and find again what was trained before."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nearwise.experiments.artifacts import load_json, save_json
from nearwise.experiments.representations.arms import Arm, Objective
from nearwise.experiments.representations.settings import StudyConfig
from nearwise.nn.field import PerceiverAutoencoder, find_models
from nearwise.probes.encoder import as_images
from nearwise.probes.probe_data import ProbeData, digest_of_part
from nearwise.training.field import train_field

Told = Callable[[str], None]
HISTORY = "history.json"


@dataclass(frozen=True)
class TrainedField:
    """A field with the course of its training.

    Attributes
    ----------
    model : PerceiverAutoencoder
    history : list of dict
        One entry an epoch over all stages: step, loss, mse, nce where it was asked for, and the
        errors on validation images.
    seconds : float
        Of training, all stages.
    """

    model: PerceiverAutoencoder
    history: list[dict[str, Any]]
    seconds: float


class Trainer:
    """Trains what is missing; a stage that two arms share is trained once.

    Parameters
    ----------
    data : ProbeData
    config : StudyConfig
    folder : Path
        Models are kept in folders below it, and found by what they say of themselves.
    device : str
    told : callable
        Called with what is being done.
    """

    def __init__(
        self, data: ProbeData, config: StudyConfig, folder: Path, device: str, told: Told
    ) -> None:
        self.config, self.folder, self.device, self.told = config, folder, device, told
        self.digest = digest_of_part(data.train)
        self._images = as_images(data.train.images)
        self._validation = as_images(data.validation.images)
        self._done: dict[str, TrainedField] = {}

    def train(self, arm: Arm, seed: int) -> TrainedField:
        """Train an arm's stages one after the other, or find them."""
        field: TrainedField | None = None
        for n in range(1, len(arm.stages) + 1):
            field = self._stage(arm.stages[:n], seed, field)
        assert field is not None  # an arm that is a field has stages
        return field

    def _stage(
        self, stages: tuple[Objective, ...], seed: int, before: TrainedField | None
    ) -> TrainedField:
        wanted = self._description(stages, seed)
        name = json.dumps(wanted, sort_keys=True)
        if name not in self._done:
            self._done[name] = self._found(wanted) or self._trained(stages, seed, before, wanted)
        return self._done[name]

    def _description(self, stages: tuple[Objective, ...], seed: int) -> dict[str, Any]:
        """Say all that decides a field, for `run["study"]`."""
        settings = [self.config.stage(s, finetune=i > 0) for i, s in enumerate(stages)]
        free = {"compile", "compile_mode", "checkpoint_every"}
        return {
            "data": self.digest,
            "seed": seed,
            "stages": [s.model_dump(mode="json", exclude=free) for s in settings],
        }

    def _found(self, wanted: Mapping[str, Any]) -> TrainedField | None:
        for file in find_models(self.folder, {"study": wanted, "finished": True}):
            told = load_json(file.folder / HISTORY)
            if told is not None:
                model = PerceiverAutoencoder.load(file.folder)
                return TrainedField(model, told["history"], told["seconds"])
        return None

    def _trained(
        self,
        stages: tuple[Objective, ...],
        seed: int,
        before: TrainedField | None,
        wanted: Mapping[str, Any],
    ) -> TrainedField:
        settings = self.config.stage(stages[-1], finetune=before is not None)
        place = self.folder / f"{'-then-'.join(stages)}-seed{seed}-{self.digest[:8]}"
        label = f"seed {seed}, {' then '.join(stages)}"

        def progress(record: Mapping[str, Any]) -> None:
            self.told(f"training {label}: epoch {record['epoch']} of {settings.epochs}")

        self.told(f"training {label}")
        model, epochs = train_field(
            self._images,
            settings,
            validation=self._validation,
            start_from=None if before is None else before.model,
            # another seed for the second stage: else it repeats the first one's batches
            seed=seed if before is None else seed + 10_007,
            device=self.device,
            checkpoint=place / "checkpoint",
            progress=progress,
        )
        if not model.run["finished"]:
            raise KeyboardInterrupt  # its checkpoint is there to go on from
        first = 0 if before is None else int(before.history[-1]["step"])
        own = [_curve_row(row, first, settings.epochs, int(model.run["step"])) for row in epochs]
        history = [*(before.history if before else []), *own]
        seconds = sum(float(r["seconds"]) for r in epochs) + (before.seconds if before else 0.0)
        save_json(place / HISTORY, {"history": history, "seconds": seconds})
        model.run["study"] = dict(wanted)
        model.save(place)
        return TrainedField(model.cpu(), history, seconds)


def _curve_row(row: Mapping[str, Any], first: int, epochs: int, last: int) -> dict[str, Any]:
    """One point of the learning curves; steps go on from stage to stage."""
    step = first + round((last - first) * int(row["epoch"]) / epochs)
    return {"step": step, **row["train"], **row.get("evaluation", {})}


def device_of(name: str) -> str:
    """Name the device: "auto" is a GPU where there is one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
