"""Steps of a fit: how many are done of how many, and an estimate of the time left."""

import time
from collections.abc import Callable, Mapping, Sequence

# Usual cost of a step relative to a forest, by the start of its name. From single fits on two cores
# to tables of 500 to 20,000 rows (adult), 2,500, 3,000 (houses) and 1,500 (wine-quality). A step's
# own time counts more.
_COSTS = {
    "base: kernel-logistic": 0.3,
    "base: kernel-ridge": 0.3,
    "base: logistic": 0.1,
    "base: ridge": 0.1,
    "base: text-bayes": 0.02,
    "base: log-mlp": 4.0,
    "base: mlp": 6.0,
    "calibration: ": 8.0,
    "embedder": 20.0,
    "features": 0.0,  # mostly the start of libraries, which says nothing about other steps
    "head": 5.0,
    "key space": 7.0,
    "neighbors of fold": 2.0,
    "true labels": 20.0,
}
_SOONEST = 0.2  # share of the usual cost of all steps before the time left is estimated
_KEPT = 0.4  # usual share of the models of the base that are fitted to more folds than the first
_LATE = 0.25  # least time left of a late step, as a share of its time so far
_FIRST = 2  # folds of all models of the base


class Steps:
    """Count of steps, with an estimate of the remaining time.

    Steps are of kinds: step names that start alike, such as "base: mlp" for its folds. The plan
    may be wrong. Steps that come without a plan add to the total, and planned ones that were left
    out are subtracted as soon as that shows.

    Parameters
    ----------
    clock : callable, default=time.monotonic
        Returns the time in seconds.

    Attributes
    ----------
    name : str
        Name of the present step; empty before the first one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._step_began = clock()
        self._planned: dict[str, int] = {}  # in the expected order
        self._phase: dict[str, int] = {}
        self._started: dict[str, int] = {}
        self._seconds: dict[str, float] = {}  # of finished steps
        self._kind = ""
        self._share = 0.0
        self.name = ""

    def plan(self, phases: Sequence[Mapping[str, int]]) -> None:
        """Set the expected number of steps per kind, for phases that follow each other.

        The kinds of a phase take turns: a fold each, or several folds each.
        """
        self._planned = {kind: n for phase in phases for kind, n in phase.items()}
        self._phase = {kind: i for i, phase in enumerate(phases) for kind in phase}

    def expect(self, kind: str, n: int) -> None:
        """Change the expected number of steps of a kind that is in the plan."""
        self._planned[kind] = n

    def start(self, name: str) -> None:
        """Start the next step, which ends the present one."""
        now = self._clock()
        if self._kind:
            spent = now - self._step_began
            self._seconds[self._kind] = self._seconds.get(self._kind, 0.0) + spent
        fitting = [kind for kind in self._planned if name.startswith(kind)]
        self.name, self._step_began, self._share = name, now, 0.0
        self._kind = max(fitting, key=len, default=name)
        self._started[self._kind] = self._started.get(self._kind, 0) + 1
        if self._kind in self._planned:
            self._drop_skipped()

    def reach(self, share: float) -> None:
        """Set the finished share of the present step, in [0, 1]."""
        self._share = share

    @property
    def number(self) -> int:
        """Number of the present step, from 1; 0 before the first one."""
        return sum(self._started.values())

    @property
    def total(self) -> int | None:
        """Expected number of steps; None without a plan."""
        return self.number + sum(map(self._open, self._planned)) if self._planned else None

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    def seconds_left(self) -> float | None:
        """Estimate the seconds left; None without a plan, or if too little is finished."""
        done = sum(self._seconds[kind] for kind in self._seconds if _cost(kind))
        usual = sum(self._finished(kind) * _cost(kind) for kind in self._seconds)
        if usual <= _SOONEST * (
            usual + sum(self._due(kind) * _cost(kind) for kind in self._planned)
        ):
            return None
        present = self._clock() - self._step_began
        scale = done / usual
        expected = self._expected(self._kind, scale)
        if present > expected:  # slower than thought: so will others be
            scale = (done + present) / (usual + _cost(self._kind))
        rest = max(expected - present, _LATE * present)
        if self._share:  # of the largest number of epochs, and training may stop before
            by_share = present * (1 / self._share - 1)
            rest = min(by_share, rest) if self._finished(self._kind) else by_share
        return rest + sum(self._due(kind) * self._expected(kind, scale) for kind in self._planned)

    def _expected(self, kind: str, scale: float) -> float:
        """Estimate the seconds of a step: the mean of its kind, or its usual cost."""
        finished = self._finished(kind)
        return self._seconds[kind] / finished if finished else _cost(kind) * scale

    def _finished(self, kind: str) -> int:
        return self._started.get(kind, 0) - (kind == self._kind)

    def _open(self, kind: str) -> int:
        return max(self._planned[kind] - self._started.get(kind, 0), 0)

    def _due(self, kind: str) -> float:
        """Count the steps of a kind that will probably come."""
        n, first = self._open(kind), max(_FIRST - self._started.get(kind, 0), 0)
        is_base = kind.startswith("base: ") and self._started.get(kind, 0) <= _FIRST
        return min(n, first) + _KEPT * max(n - first, 0) if is_base else n

    def _drop_skipped(self) -> None:
        """Drop planned steps that were due before the present one.

        In the same phase, a kind with at least as many steps as the present one is still due.
        """
        turns, phase = self._started[self._kind], self._phase[self._kind]
        for kind in self._planned:
            if kind == self._kind:
                return
            started = self._started.get(kind, 0)
            if self._phase[kind] < phase or started < turns:
                self._planned[kind] = min(started, self._planned[kind])


def _cost(kind: str) -> float:
    return next((cost for start, cost in _COSTS.items() if kind.startswith(start)), 1.0)
