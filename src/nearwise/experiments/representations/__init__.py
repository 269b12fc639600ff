"""The study of representations: neural fields trained four ways, pixels, and what probes read."""

from nearwise.experiments.representations.arms import ARMS, FIELDS, FIVE, Arm, arm_of
from nearwise.experiments.representations.records import Cell, Comparison

__all__ = ["ARMS", "FIELDS", "FIVE", "Arm", "Cell", "Comparison", "arm_of"]
