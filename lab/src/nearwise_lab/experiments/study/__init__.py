"""The original study: its replay, its experiments, and the corrected method."""

from nearwise_lab.experiments.study.findings import fit_hyperbola
from nearwise_lab.experiments.study.presets import (
    DEFECTS,
    PRESET_NAMES,
    PRESETS,
    StudyPreset,
    get_preset,
    resolve_preset,
)
from nearwise_lab.experiments.study.replay import TrainedRun, train_replay
from nearwise_lab.experiments.study.suite import EXPERIMENTS, run_experiment

__all__ = [
    "DEFECTS",
    "EXPERIMENTS",
    "PRESETS",
    "PRESET_NAMES",
    "StudyPreset",
    "TrainedRun",
    "fit_hyperbola",
    "get_preset",
    "resolve_preset",
    "run_experiment",
    "train_replay",
]
