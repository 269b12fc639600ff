"""One data set, preset and seed, with lazy training and loading of its models."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from nearwise.data import Dataset
from nearwise_lab.experiments.artifacts import _safe
from nearwise_lab.experiments.study.inputs import StudyInputs, make_inputs
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.experiments.study.replay import TrainedRun, run_digest, train_replay
from nearwise_lab.experiments.study.upper_bound import UpperBound, train_upper_bound
from nearwise_lab.records import Record


@dataclass
class Session:
    """Data, settings and models that all experiments of one seed use.

    `parameters` are those of `AttnKNNClassifier` (None replays the study), `preset` is that of a
    replay, or has the rows and grids of "v1". `out` is the results folder; its folder "checkpoints"
    holds what is trained, named by what decides it. `facts` belong to every record, `say` shows a
    line of progress, and human labels are looked for in `data_root`.
    """

    dataset: Dataset
    preset: StudyPreset
    parameters: dict[str, Any] | None
    seed: int
    out: Path
    device: torch.device
    facts: dict[str, Any]
    say: Callable[[str], None]
    data_root: Any = None

    @cached_property
    def inputs(self) -> StudyInputs:
        """The split with the original labels."""
        return make_inputs(self.dataset, self.preset, self.seed)

    def title(self, *parts: str) -> str:
        """Title of a job on the progress bar."""
        start = (self.dataset.name, self.preset.name, f"seed {self.seed}")
        return " · ".join(filter(None, (*start, *parts)))

    def blank(
        self,
        experiment: str,
        method: str,
        condition: str = "",
        noise: float = 0.0,
        noise_kind: str = "symmetric",
    ) -> Record:
        """Empty row of this session, with its final key."""
        return Record(
            self.dataset.name, method, self.seed, noise, noise_kind,
            experiment=experiment, preset=self.preset.name, condition=condition, **self.facts,
        )  # fmt: skip

    @cached_property
    def clean(self) -> TrainedRun:
        """The replay on the original rows and labels, trained once."""
        return self._replay(self.inputs, self.preset, run_digest(self.inputs, self.preset))

    def replay(self, inputs: StudyInputs, preset: StudyPreset) -> TrainedRun:
        """Train (or load) a replay on these rows."""
        digest = run_digest(inputs, preset)
        if digest == run_digest(self.inputs, self.preset):
            return self.clean
        return self._replay(inputs, preset, digest)

    def _replay(self, inputs: StudyInputs, preset: StudyPreset, digest: str) -> TrainedRun:
        return train_replay(
            inputs, preset, device=self.device, checkpoint=self._place("replayed", digest),
            progress=self._teller("replay", preset.epochs),
        )  # fmt: skip

    def upper_bound(self, inputs: StudyInputs) -> UpperBound:
        """Train (or load) the parametric upper bound on these rows."""
        settings = self.preset.model_dump_json(exclude={"name"})
        place = self._place("upper-bound", f"{settings}{inputs.seed}{inputs.digest}")
        return train_upper_bound(
            inputs, self.preset, device=self.device, checkpoint=place,
            progress=self._teller("upper bound", self.preset.cnn_epochs),
        )  # fmt: skip

    def _place(self, what: str, digest: str) -> Path:
        short = hashlib.sha256(digest.encode()).hexdigest()[:16]
        return self.out / "checkpoints" / _safe(self.dataset.name) / f"{what}-{short}"

    def _teller(self, what: str, epochs: int) -> Callable[[dict[str, Any]], None]:
        def tell(record: dict[str, Any]) -> None:
            self.say(self.title(f"{what}, epoch {record['epoch']} of {epochs}"))

        return tell

    @property
    def networks(self) -> Path:
        """Checkpoints of "v1" networks; fits that differ only in views or heads share them."""
        return self.out / "checkpoints" / "attention"

    def classifier(self, **changes: Any) -> Any:
        """Make `AttnKNNClassifier` of this seed, with some parameters and settings changed."""
        where: dict[str, Any] = {"random_state": self.seed, "device": str(self.device)}
        if self.dataset.kind == "images":
            where["checkpoint_dir"] = self.networks
        return make_classifier(where | (self.parameters or {}) | changes)


def make_classifier(parameters: Mapping[str, Any]) -> Any:
    """Make `AttnKNNClassifier` from parameters and settings in one list, the user's first."""
    from nearwise.estimators import AttnKNNClassifier, Settings

    own = dict(parameters)
    rare = {name: own.pop(name) for name in parameters if name in Settings.model_fields}
    return AttnKNNClassifier(**own, settings=Settings(**rare))
