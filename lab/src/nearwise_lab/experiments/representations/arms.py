"""The encoders that the study compares."""

from dataclasses import dataclass
from typing import Literal

from nearwise_lab.field_training.run import Objective


@dataclass(frozen=True)
class Arm:
    """One encoder of the study.

    Attributes
    ----------
    name, title : str
        In records, and in words.
    stages : tuple of objectives
        What a field is trained by, one stage after the other; empty for what is not trained. All
        fields take the same number of steps: where one is finetuned with the contrastive term, its
        control goes on without it for as many.
    pool : str
        How its tokens become one vector for k-NN, attention and linear probes.
    """

    name: str
    title: str
    stages: tuple[Objective, ...] = ()
    pool: Literal["mean", "flatten"] = "mean"

    @property
    def is_field(self) -> bool:
        """Whether it is a trained neural field."""
        return bool(self.stages)


PIXELS, RANDOM = "pixels", "random"
ARMS = (
    Arm(PIXELS, "original pixels", pool="flatten"),
    Arm("sparse", "sparse", ("sparse", "sparse")),
    Arm("full", "full baseline", ("reconstruction", "reconstruction")),
    Arm("full+nce", "full + NCE", ("reconstruction", "nce")),
    Arm("sparse+nce", "sparse + NCE", ("sparse", "sparse-nce")),
    Arm(RANDOM, "random init"),
)
ENCODERS = tuple(arm.name for arm in ARMS)
FIELDS = tuple(arm.name for arm in ARMS if arm.is_field)
FIVE = tuple(name for name in ENCODERS if name != RANDOM)
"""The five bars of the study, in its order."""


def arm_of(name: str) -> Arm:
    """Look an arm up by name; an encoder of the user's own is mean-pooled under its name."""
    return next((arm for arm in ARMS if arm.name == name), Arm(name, name))
