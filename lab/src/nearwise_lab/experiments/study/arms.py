"""Conditions of every experiment, and the parts that an ablation changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nearwise.data import Dataset
from nearwise.names import did_you_mean
from nearwise_lab.corrupt import NoiseKind, label_noise, long_tail
from nearwise_lab.data import load_human_labels
from nearwise_lab.data.sets import CIFAR10_CLASSES
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.experiments.study.session import Session

# Parts of the study's loss, head and training, off (or mended) one at a time.
REPLAY_ABLATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "without=knn-loss": {"knn_weight": 0.0},
    "without=contrastive": {"contrastive_weight": 0.0},
    "without=entropy": {"entropy_weight": 0.0},
    "without=mixup": {"mixup_alpha": 0.0},
    "without=label-smoothing": {"label_smoothing": 0.0},
    "without=hard-negatives": {"hard_negative_weight": 1.0},
    "without=heads": {"num_heads": 1},
    "without=distance-bias": {"distance_bias": False},
    "without=learned-temperature": {"learn_temperature": False},
    "with=leave-self-out": {"leave_self_out": True},
    "with=augmentation": {"augment": True},
    # Wishes of the study; beside the leak a row's own label is all that there is to learn.
    "with=learned-k": {"learned_k": True, "leave_self_out": True},
    "with=selective-loss": {"selective_weight": 1.0, "leave_self_out": True},
    "with=margin": {"contrastive_kind": "margin"},
}
# Parts of the corrected method.
ABLATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "without=base": {"estimator": None},
    "without=calibration": {"calibration": None},
}
# Data sets whose training rows are CIFAR-10's, in its order.
HUMAN_SETS = ("cifar10", "cifar10-features")
_PLAUSIBLE = 0.6  # a larger share of wrong labels means that the rows are in another order


@dataclass(frozen=True)
class Case:
    """One condition of an experiment; `condition`, `noise` and `noise_kind` are as in `Record`.

    `changes` are of the preset or, with "v1", of the classifier; `rows` makes the training rows
    from those of the data set. `in_memory` is the condition under which the memory alone has these
    rows; empty where there is none.
    """

    condition: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    noise: float = 0.0
    noise_kind: str = "symmetric"
    rows: Callable[[StudyInputs], StudyInputs] = lambda inputs: inputs
    in_memory: str = ""

    @property
    def label(self) -> str:
        """Condition and noise, for the progress bar."""
        noise = f"{self.noise_kind} {self.noise:g}" if self.noise else ""
        return " · ".join(filter(None, (self.condition, noise)))


def cases(session: Session, experiment: str) -> list[Case]:
    """Conditions of an experiment, in the order of their measurement."""
    preset = session.preset
    if experiment == "k-sweep":
        return [Case(f"k={k}", {"n_neighbors": k}) for k in preset.sweep_k]
    if experiment == "label-noise":
        # the highest rates decide the claims, so they come first
        grid = sorted(preset.noise_grid, key=lambda drawn: -drawn[0])
        return _human_cases(session) + [
            _noise_case(rate, kind, partial(_noisy, rate=rate, kind=kind)) for rate, kind in grid
        ]
    if experiment == "long-tail":
        return [
            Case(
                f"ratio={ratio:g}",
                rows=partial(_thinned, ratio=ratio),
                in_memory=f"memory-ratio={ratio:g}",
            )
            for ratio in preset.tail_ratios
        ]
    if experiment == "ablation":
        known = known_ablations(session.parameters is not None)
        wanted = known if preset.ablations is None else preset.ablations
        return [Case(name, known[name]) for name in wanted if name in known]
    return [Case()]


def known_ablations(corrected: bool) -> dict[str, dict[str, Any]]:
    """Parts of the corrected method, or of the study's."""
    return ABLATIONS if corrected else REPLAY_ABLATIONS


def refuse_unknown_parts(corrected: bool, changes: Mapping[str, Any]) -> None:
    """Raise ValueError if the user's "ablations" name a part that is none; name the nearest."""
    known = known_ablations(corrected)
    for name in changes.get("ablations") or ():
        if name not in known:
            raise ValueError(
                f"ablations: {name!r} is no part of the method.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}."
            )


def _noise_case(noise: float, kind: str, rows: Callable[[StudyInputs], StudyInputs]) -> Case:
    return Case(
        "where=everywhere", noise=float(noise), noise_kind=kind, rows=rows, in_memory="where=memory"
    )


def _noisy(inputs: StudyInputs, rate: float, kind: NoiseKind) -> StudyInputs:
    classes = inputs.classes
    return inputs.with_labels(
        label_noise(inputs.given_labels, rate, kind, inputs.seed, classes=classes)
    )


def _thinned(inputs: StudyInputs, ratio: float) -> StudyInputs:
    return inputs.take(long_tail(inputs.given_labels, ratio, inputs.seed, classes=inputs.classes))


# --- labels that people gave ----------------------------------------------------------------------


def _human_cases(session: Session) -> list[Case]:
    found = []
    for kind in human_kinds(session.preset, session.dataset):
        try:
            labels, wrong = human_labels(
                kind, session.dataset, session.inputs.train_index, session.data_root
            )
        except FileNotFoundError:  # "v1" has asked for the file before anything was run
            continue
        rows = partial(StudyInputs.with_labels, labels=labels)
        found.append(_noise_case(wrong, f"human-{kind}", rows))
    return found


def human_kinds(preset: StudyPreset, dataset: Dataset) -> tuple[str, ...]:
    """Names of the human labels that the preset requires and the data set can have."""
    return preset.human_labels if dataset.name in HUMAN_SETS else ()


def require_human_labels(
    preset: StudyPreset, dataset: Dataset, data_root: Any, *, asked: bool
) -> None:
    """Refuse to start without the human labels that a run will need.

    `asked`: whether the user named human labels, so that another data set is a mistake.

    Raises
    ------
    FileNotFoundError
        If the file is in none of the folders, all of which are named.
    ValueError
        If the data set is not CIFAR-10.
    """
    if asked and preset.human_labels and dataset.name not in HUMAN_SETS:
        raise ValueError(
            f"human_labels={list(preset.human_labels)} are of CIFAR-10; {dataset.name!r} has none. "
            f"Use one of {', '.join(HUMAN_SETS)}, or leave human_labels out."
        )
    for kind in human_kinds(preset, dataset):
        try:
            load_human_labels(kind, data_root=data_root)  # type: ignore[arg-type]
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"The experiment label-noise with human labels needs CIFAR-10N. {error} "
                "To run without: --set human_labels=[]."
            ) from error


def human_labels(
    kind: str, dataset: Dataset, rows: np.ndarray, data_root: Any
) -> tuple[np.ndarray, float]:
    """Labels ("worse" or "aggregate") that people gave to training rows, and the share of wrong.

    `rows` are positions in the data set; ValueError if so many labels are wrong that its rows
    cannot be in CIFAR-10's order.
    """
    names = load_human_labels(kind, data_root=data_root)  # type: ignore[arg-type]
    labels = dataset.classes[np.searchsorted(np.array(CIFAR10_CLASSES), names[rows])]
    wrong = float((labels != dataset.y[rows]).mean())
    if wrong > _PLAUSIBLE:
        raise ValueError(
            f"{100 * wrong:.0f} % of the human labels ({kind}) differ from those of "
            f"{dataset.name!r}, where at most 40 % do: its training rows are not in the order of "
            "CIFAR-10. Load the data set anew."
        )
    return labels, round(wrong, 4)
