"""The study of representations: neural fields trained four ways, pixels, and what probes read."""

from nearwise_lab.experiments.representations.arms import ARMS, FIELDS, FIVE, Arm, arm_of
from nearwise_lab.experiments.representations.kept import load_comparison, save_comparison
from nearwise_lab.experiments.representations.looking import pca_map, tsne_map
from nearwise_lab.experiments.representations.records import Cell, Comparison
from nearwise_lab.experiments.representations.run import run_comparison
from nearwise_lab.experiments.representations.settings import StudyConfig, study_config

__all__ = [
    "ARMS",
    "FIELDS",
    "FIVE",
    "Arm",
    "Cell",
    "Comparison",
    "StudyConfig",
    "arm_of",
    "load_comparison",
    "pca_map",
    "run_comparison",
    "save_comparison",
    "study_config",
    "tsne_map",
]
