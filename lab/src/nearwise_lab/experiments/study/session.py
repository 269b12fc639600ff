"""One data set, preset and seed: what is trained on first use, and read back later."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
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

CHECKPOINTS = "checkpoints"


@dataclass
class Session:
    """What the experiments of one seed share.

    Parameters
    ----------
    dataset : Dataset
    preset : StudyPreset
    seed : int
    out : Path
        Results folder; checkpoints lie in its folder "checkpoints", named by what decides them.
    device : torch.device
    facts : dict
        versions, hardware and command of every record.
    say : callable
        Shows a line of progress.
    data_root : path, optional
        Where human labels are looked for.
    """

    dataset: Dataset
    preset: StudyPreset
    seed: int
    out: Path
    device: torch.device
    facts: dict[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None
    data_root: Any = None
    _inputs: StudyInputs | None = None
    _clean: TrainedRun | None = None

    @property
    def inputs(self) -> StudyInputs:
        """The split with its labels as they are."""
        if self._inputs is None:
            self._inputs = make_inputs(self.dataset, self.preset, self.seed)
        return self._inputs

    def blank(
        self,
        experiment: str,
        method: str,
        condition: str = "",
        noise: float = 0.0,
        noise_kind: str = "symmetric",
    ) -> Record:
        """Row of this session before anything is measured; its key is final."""
        return Record(
            self.dataset.name, method, self.seed, noise, noise_kind,
            experiment=experiment, preset=self.preset.name, condition=condition, **self.facts,
        )  # fmt: skip

    @property
    def clean(self) -> TrainedRun:
        """The replay on the labels and rows as they are, trained once."""
        if self._clean is None:
            self._clean = self.replay(self.inputs)
        return self._clean

    def replay(self, inputs: StudyInputs, preset: StudyPreset | None = None) -> TrainedRun:
        """Train (or read back) a replay on these rows, with the session's preset or another."""
        preset = self.preset if preset is None else preset
        digest = run_digest(inputs, preset)
        if self._clean is not None and digest == run_digest(self._clean.inputs, self._clean.preset):
            return self._clean
        return train_replay(
            inputs,
            preset,
            device=self.device,
            checkpoint=self._place("replay", digest),
            progress=self._teller("replay", preset.epochs),
        )

    def upper_bound(self, inputs: StudyInputs) -> UpperBound:
        """Train (or read back) the parametric upper bound on these rows."""
        settings = self.preset.model_dump_json(exclude={"name"})
        digest = f"{settings}{inputs.seed}{inputs.digest}"
        return train_upper_bound(
            inputs,
            self.preset,
            device=self.device,
            checkpoint=self._place("upper-bound", digest),
            progress=self._teller("upper bound", self.preset.cnn_epochs),
        )

    def _place(self, what: str, digest: str) -> Path:
        return self.out / CHECKPOINTS / _safe(self.dataset.name) / f"{what}-{_short(digest)}"

    def _teller(self, what: str, epochs: int) -> Callable[[dict[str, Any]], None]:
        start = f"{self.dataset.name} · {self.preset.name} · seed {self.seed}"

        def tell(record: dict[str, Any]) -> None:
            self.say(f"{start} · {what}, epoch {record['epoch']} of {epochs}")

        return tell


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
