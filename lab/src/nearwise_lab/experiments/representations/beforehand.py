"""Training and probing side by side, before the study goes through what they left on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nearwise_lab.experiments.representations.arms import Arm
from nearwise_lab.experiments.representations.measuring import Study
from nearwise_lab.experiments.representations.settings import StudyConfig
from nearwise_lab.experiments.side_by_side import Progress, run_side_by_side
from nearwise_lab.field_training.run import Objective
from nearwise_lab.probing.data import ProbeData


@dataclass(frozen=True)
class _Task:
    """One process' share: stages of a field that others wait for, or an arm to its last probe."""

    seed: int
    arm: Arm
    only: tuple[Objective, ...] = ()


class _NotMeasured(Exception):
    """Something would have to be measured."""


def measure_beforehand(study: Study, arms: Sequence[Arm], seeds: Sequence[int], jobs: int) -> int:
    """Train and probe what the folder lacks of the study's arms, in up to `jobs` processes.

    The study finds all of it there. With as many threads it would have measured the same itself;
    with more or fewer, sums are rounded otherwise.

    Returns
    -------
    processes : int
        How many there were; 1 where nothing could be done at once.
    """
    if jobs == 1:
        return 1
    asked = _Asked(study)
    missing = [_Task(seed, arm) for seed in seeds for arm in arms if not asked.done(arm, seed)]
    # a first stage is shared by several arms, which wait for it; what needs none fills the gaps
    first: dict[Any, _Task] = {}
    now, later = [], []
    for task in missing:
        stage = task.arm.stages[:1]
        if stage and asked.lacks(stage, task.seed):
            first[task.seed, stage] = _Task(task.seed, task.arm, stage)
            later.append(task)
        else:
            now.append(task)
    rounds = [[*first.values(), *sorted(now, key=lambda task: not task.arm.is_field)], later]
    processes = min(jobs, max(map(len, rounds)))
    if processes > 1:
        run_side_by_side(
            partial(_do, study.name, study.data, study.config, study.folder, study.device),
            rounds,
            processes,
            study.progress,
        )
    return max(processes, 1)


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
    progress: Progress,
) -> None:
    """Do one task, in a process of its own."""
    study = Study(name, data, config, folder, device, progress)
    if task.only:
        study.train(" and ".join(task.only), task.only, task.seed)
    else:
        study.probe_arm(task.arm, task.seed)
