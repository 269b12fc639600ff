"""CIFAR-10N in the experiment on label noise: the labels that people gave to training images."""

from typing import Any

import numpy as np

from nearwise.data import Dataset
from nearwise_lab.data import load_human_labels
from nearwise_lab.data.sets import CIFAR10_CLASSES
from nearwise_lab.experiments.study.presets import StudyPreset

# Data sets whose training rows are CIFAR-10's, in its order.
HUMAN_SETS = ("cifar10", "cifar10-features")
_PLAUSIBLE = 0.6  # a larger share of wrong labels means that the rows are in another order


def human_kinds(preset: StudyPreset, dataset: Dataset) -> tuple[str, ...]:
    """Names of the human labels that the preset requires and the data set can have."""
    return preset.human_labels if dataset.name in HUMAN_SETS else ()


def require_human_labels(
    preset: StudyPreset, dataset: Dataset, data_root: Any, *, asked: bool
) -> None:
    """Refuse to start without the human labels that a run will need.

    Parameters
    ----------
    asked : bool
        Whether the user named human labels, so that another data set is a mistake.

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
    """Labels that people gave to training rows, and the share of them that is wrong.

    Parameters
    ----------
    kind : {"worse", "aggregate"}
    dataset : Dataset
        One of `HUMAN_SETS`; of its training rows the first ones may be there alone.
    rows : int64 ndarray of shape (n,)
        Positions of training rows in the data set.

    Returns
    -------
    labels : ndarray of shape (n,)
        As the data set writes its classes.
    wrong : float in [0, 1]

    Raises
    ------
    ValueError
        If so many labels are wrong that the rows cannot be in CIFAR-10's order.
    """
    names = load_human_labels(kind, data_root=data_root)  # type: ignore[arg-type]
    codes = np.searchsorted(np.array(CIFAR10_CLASSES), names[rows])
    labels = dataset.classes[codes]
    wrong = float((labels != dataset.y[rows]).mean())
    if wrong > _PLAUSIBLE:
        raise ValueError(
            f"{100 * wrong:.0f} % of the human labels ({kind}) differ from those of "
            f"{dataset.name!r}, where at most 40 % do: its training rows are not in the order of "
            "CIFAR-10. Load the data set anew."
        )
    return labels, round(wrong, 4)
