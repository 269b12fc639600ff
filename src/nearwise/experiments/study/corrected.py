"""The corrected method ("v1"): AttnKNNClassifier beside plain neighbors and its upper bound."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from nearwise.data import Dataset
from nearwise.experiments.records import Record
from nearwise.experiments.study.jobs import Job
from nearwise.experiments.study.presets import CORRECTED, StudyPreset
from nearwise.training import TrainConfig

# Fields of StudyPreset that mean something here: rows, grids of the experiments, the upper bound.
STUDY_FIELDS = (
    "backbone", "pretrained", "image_size", "channels", "dim", "split_seed", "max_rows",
    "max_test_rows", "held_out", "precision", "sweep_k", "ensemble_k", "noise_rates", "tail_ratios",
    "ablations",
    "cnn_epochs", "cnn_lr", "cnn_weight_decay", "cnn_label_smoothing", "cnn_batch_size",
)  # fmt: skip


@dataclass
class CorrectedSession:
    """One data set and seed of the corrected method.

    Parameters
    ----------
    dataset : Dataset
    study : StudyPreset
        Rows, grids and the upper bound's settings, as for the replays.
    parameters : dict
        Arguments of `AttnKNNClassifier`.
    seed : int
    out : Path
        Results folder.
    device : torch.device
    facts : dict
        versions, hardware and command of every record.
    say : callable
        Shows a line of progress.
    data_root : path, optional
        Where human labels are looked for.
    """

    dataset: Dataset
    study: StudyPreset
    parameters: dict[str, Any]
    seed: int
    out: Path
    device: torch.device
    facts: dict[str, Any] = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None
    data_root: Any = None

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
            experiment=experiment, preset=CORRECTED, condition=condition, **self.facts,
        )  # fmt: skip


def run_v1(experiment: str, session: CorrectedSession) -> list[Job]:
    """Jobs of one experiment with the corrected method.

    Parameters
    ----------
    experiment : {"main", "k-sweep", "label-noise", "long-tail", "theory", "ablation"}
    session : CorrectedSession

    Returns
    -------
    jobs : list of Job
    """
    if session.dataset.kind == "images":
        from nearwise.experiments.study.corrected_images import EXPERIMENTS as experiments
    else:
        from nearwise.experiments.study.corrected_tables import EXPERIMENTS as experiments
    return experiments[experiment](session)


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the user's settings into those of the study's frame and of `AttnKNNClassifier`.

    Returns
    -------
    study, parameters : dict, dict

    Raises
    ------
    ValueError
        If a name belongs to neither; the nearest known one is named.
    """
    from nearwise.estimators import AttnKNNClassifier

    known = AttnKNNClassifier._get_param_names()
    _refuse_unknown(settings, [*STUDY_FIELDS, *known])
    study = {k: v for k, v in settings.items() if k in STUDY_FIELDS}
    return study, {k: v for k, v in settings.items() if k not in STUDY_FIELDS}


def _refuse_unknown(settings: Mapping[str, Any], known: list[str]) -> None:
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."
            if name in TrainConfig.model_fields:
                hint = (
                    f"It belongs to the network's training: --config FILE.yaml with "
                    f"`train_params: {{{name}: ...}}`."
                )
            raise ValueError(f'Unknown setting {name!r} of "v1". {hint}')
