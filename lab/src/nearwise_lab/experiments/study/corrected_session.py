"""The frame of the corrected method: one data set and seed, its settings, its ablations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearwise.data import Dataset
from nearwise.names import did_you_mean
from nearwise.training import TrainConfig
from nearwise_lab.experiments.study.session import CHECKPOINTS, Session

# Fields of StudyPreset that mean something here: rows, and grids of the experiments.
STUDY_FIELDS = (
    "image_size", "channels", "split_seed", "max_rows", "max_test_rows", "sweep_k", "ensemble_k",
    "noise_rates", "tail_ratios", "ablations", "human_labels",
)  # fmt: skip


# Parts of the method, each of which is switched off in an ablation.
ABLATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "without=base": {"estimator": None},
    "without=calibration": {"calibration": None},
}
NOISE_MODEL = "attention+noise-model"  # the classifier with label_noise="auto"
MOST_NEIGHBORS = 64  # that the trained head may use


@dataclass
class CorrectedSession(Session):
    """One data set and seed of the corrected method; the preset gives rows and grids.

    Parameters
    ----------
    parameters : dict
        Parameters and settings of `AttnKNNClassifier`.
    """

    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def networks(self) -> Path:
        """Where trained networks lie; fits that differ in views or heads alone share theirs."""
        return self.out / CHECKPOINTS / "attention"

    def classifier(self, **changes: Any) -> Any:
        """Make `AttnKNNClassifier` of this seed, with some parameters and settings changed."""
        where = {"random_state": self.seed, "device": str(self.device)}
        return _made(where | self.parameters | changes)


def check_parameters(parameters: Mapping[str, Any], dataset: Dataset) -> None:
    """Refuse values that no fit to the data set takes, before anything is run."""
    from nearwise.classifier.fit.parameter_checks import check_settings

    size = len(dataset), len(dataset.classes)
    check_settings(_made(parameters), *size, seed=0, images=dataset.kind == "images")


def _made(parameters: Mapping[str, Any]) -> Any:
    """Make `AttnKNNClassifier` from parameters and settings in one list, the user's first."""
    from nearwise.classifier import AttnKNNClassifier, Settings

    own = dict(parameters)
    rare = {name: own.pop(name) for name in parameters if name in Settings.model_fields}
    return AttnKNNClassifier(**own, settings=Settings(**rare))


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the user's settings into those of the study's frame and of the classifier.

    Returns
    -------
    study, parameters : dict, dict

    Raises
    ------
    ValueError
        If a name belongs to neither; the nearest known one is named.
    """
    from nearwise.classifier import AttnKNNClassifier, Settings

    known = {*AttnKNNClassifier._get_param_names(), *Settings.model_fields} - {"settings"}
    _refuse_unknown(settings, [*STUDY_FIELDS, *sorted(known)])
    study = {k: v for k, v in settings.items() if k in STUDY_FIELDS}
    return study, {k: v for k, v in settings.items() if k not in STUDY_FIELDS}


def _refuse_unknown(settings: Mapping[str, Any], known: list[str]) -> None:
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or f" Known: {', '.join(known)}."
            if name in TrainConfig.model_fields:
                hint = (
                    f" It belongs to the network's training: --config FILE.yaml with "
                    f"`train: {{{name}: ...}}`."
                )
            raise ValueError(f'Unknown setting {name!r} of "v1".{hint}')
