"""The user's settings: read from a file, then merged with a preset or with "v1"."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from nearwise.data import Dataset
from nearwise.names import did_you_mean
from nearwise.training import TrainConfig
from nearwise_lab.experiments.study.arms import refuse_unknown_parts
from nearwise_lab.experiments.study.presets import (
    CORRECTED,
    StudyPreset,
    change_preset,
    resolve_preset,
)
from nearwise_lab.experiments.study.session import make_classifier

# Fields of StudyPreset that mean something to "v1": rows, and grids of the experiments.
STUDY_FIELDS = (
    "image_size", "channels", "split_seed", "max_rows", "max_test_rows", "sweep_k", "ensemble_k",
    "noise_rates", "tail_ratios", "ablations", "human_labels",
)  # fmt: skip
SMALL_TABLE_ROWS = 400


def read_config(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a YAML file of settings to change.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is not a mapping or not YAML; names are checked where the settings are used.
    """
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 1}" if place is not None else ""
        raise ValueError(f"{path}{where} is not YAML. Write lines such as 'epochs: 5'.") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} holds {type(found).__name__}, not settings. Write lines such as 'epochs: 5'."
        )
    return {str(key): value for key, value in found.items()}


def resolve(
    dataset: Dataset, preset: str, small: bool, changes: Mapping[str, Any]
) -> tuple[StudyPreset, dict[str, Any] | None]:
    """Return the settings of a replay and None or, with "v1", its grids and its parameters.

    Raises
    ------
    ValueError
        If a name is unknown or a value does not fit the data set.
    """
    refuse_unknown_parts(preset == CORRECTED, changes)
    facts = dataset.name, dataset.kind, len(dataset)
    if preset != CORRECTED:
        return resolve_preset(preset, *facts, small=small, overrides=changes), None
    frame, parameters = split_settings(changes)
    if small and dataset.kind == "images":
        parameters = {"train": {"epochs": 6}} | parameters
    elif small and parameters.get("preset") != "instant":  # which trains nothing
        parameters = {"cv": 2} | parameters
    check_parameters(parameters, dataset)
    # Those of "v0.5", split by the run's seed, images as they are; no network is built of it.
    whole = resolve_preset("v0.5", *facts, small=small, overrides={"pretrained": False})
    fixed: dict[str, Any] = dict.fromkeys(("split_seed", "channels", "image_size"))
    fixed["name"] = CORRECTED
    if small and dataset.kind != "images":
        fixed["max_rows"] = SMALL_TABLE_ROWS
    return change_preset(whole, {**fixed, **frame}), parameters


def deciding(preset: StudyPreset, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Collect the settings that determine the results."""
    if parameters is None:
        return preset.model_dump()
    return {**preset.model_dump(include={"name", *STUDY_FIELDS}), **parameters}


def check_parameters(parameters: Mapping[str, Any], dataset: Dataset) -> None:
    """Check the classifier's parameters before any run."""
    from nearwise.estimators.fit.parameter_checks import check_settings

    size = len(dataset), len(dataset.classes)
    image_size = np.shape(dataset.X)[1:3] if dataset.kind == "images" else None
    check_settings(make_classifier(parameters), *size, seed=0, image_size=image_size)


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the user's settings into study settings and classifier settings.

    ValueError if a name belongs to neither; the nearest known one is named.
    """
    from nearwise.estimators import AttnKNNClassifier, Settings

    own = {*AttnKNNClassifier._get_param_names(), *Settings.model_fields} - {"settings"}
    known = [*STUDY_FIELDS, *sorted(own)]
    for name in settings:
        if name not in known:
            hint = did_you_mean(name, known) or f" Known: {', '.join(known)}."
            if name in TrainConfig.model_fields:
                hint = (
                    f" It belongs to the network's training: --config FILE.yaml with "
                    f"`train: {{{name}: ...}}`."
                )
            raise ValueError(f'Unknown setting {name!r} of "v1".{hint}')
    study = {k: v for k, v in settings.items() if k in STUDY_FIELDS}
    return study, {k: v for k, v in settings.items() if k not in STUDY_FIELDS}
