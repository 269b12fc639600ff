"""The study of representations: pixels and four kinds of neural fields, measured with probes."""

from nearwise_lab.experiments.representations.comparison import (
    Cell,
    Comparison,
    load_comparison,
    save_comparison,
)
from nearwise_lab.experiments.representations.run import run_comparison
from nearwise_lab.experiments.representations.settings import (
    ARMS,
    FIVE,
    Arm,
    StudyConfig,
    arm_of,
    study_config,
)

__all__ = [
    "ARMS",
    "FIVE",
    "Arm",
    "Cell",
    "Comparison",
    "StudyConfig",
    "arm_of",
    "load_comparison",
    "run_comparison",
    "save_comparison",
    "study_config",
]
