"""Training and probing side by side, before the study goes through what they left on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nearwise.experiments.representations.arms import Arm
from nearwise.experiments.representations.looking import Told
from nearwise.experiments.representations.measuring import Study
from nearwise.experiments.representations.settings import StudyConfig
from nearwise.experiments.side_by_side import run_side_by_side
from nearwise.probes.probe_data import ProbeData
from nearwise.training.field import Objective


@dataclass(frozen=True)
class _Task:
    """One process' share: stages of a field that others wait for, or an arm to its last probe."""

    seed: int
    arm: Arm
    only: tuple[Objective, ...] = ()


class _NotMeasured(Exception):
    """Something would have to be measured."""


def measure_beforehand(study: Study, arms: Sequence[Arm], seeds: Sequence[int], jobs: int) -> None:
    """Train and probe what the folder lacks of the study's arms, in `jobs` processes.

    The study finds all of it there, and gives the same records as if it had measured them itself.
    """
    asked = _Asked(study)
    missing = [_Task(seed, arm) for seed in seeds for arm in arms if not asked.done(arm, seed)]
    if len(missing) < 2:
        return  # one task is faster with all threads
    # a first stage is shared by several arms, which wait for it; arms without one fill the gaps
    first = {
        (task.seed, task.arm.stages[:1]): _Task(task.seed, task.arm, task.arm.stages[:1])
        for task in missing
        if task.arm.is_field and asked.lacks(task.arm.stages[:1], task.seed)
    }
    untrained = [task for task in missing if not task.arm.is_field]
    fields = [task for task in missing if task.arm.is_field]
    run_side_by_side(
        partial(_do, study.name, study.data, study.config, study.folder, study.device),
        [[*first.values(), *untrained], fields],
        jobs,
        study.told,
    )


class _Asked:
    """What of the study is there."""

    def __init__(self, study: Study) -> None:
        self.study = Study(
            study.name, study.data, study.config, study.folder, study.device, self._refuse
        )

    def lacks(self, stages: Sequence[Objective], seed: int) -> bool:
        """Whether a field has still to be trained."""
        return self.study.trained(stages, seed) is None

    def done(self, arm: Arm, seed: int) -> bool:
        """Whether an arm is trained and all its probes are measured."""
        if arm.is_field and self.lacks(arm.stages, seed):
            return False
        try:
            self.study.probe_arm(arm, seed)
        except _NotMeasured:
            return False
        return True

    @staticmethod
    def _refuse(words: str) -> None:
        raise _NotMeasured(words)


def _do(
    name: str,
    data: ProbeData,
    config: StudyConfig,
    folder: Path,
    device: str,
    task: _Task,
    told: Told,
) -> None:
    """Do one task, in a process of its own."""
    study = Study(name, data, config, folder, device, told)
    if task.only:
        study.train(" and ".join(task.only), task.only, task.seed)
    else:
        study.probe_arm(task.arm, task.seed)
