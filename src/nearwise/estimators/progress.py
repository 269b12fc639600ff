"""Progress of a fit: step of steps, elapsed time and time left in one line, or silence."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from rich.cells import cell_len
from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.text import Text

from nearwise.estimators.steps import Steps
from nearwise.progress_bar import ProgressBar

_callback: ContextVar[Callable[[str], None] | None] = ContextVar("callback", default=None)
_named: ContextVar[str] = ContextVar("named", default="")
_MEASURES = (("loss", "train_loss"), ("held-out NLL", "held_out_nll"))
_LEFT, _BETWEEN = len("about 59 min left"), " · "
_ENDS = (_BETWEEN, ", ")  # where a line that is too long may end


@contextmanager
def reporting_stages_to(callback: Callable[[str], None]) -> Iterator[None]:
    """Report stages and epochs of fits also to `callback`, independent of `verbose`."""
    token = _callback.set(callback)
    try:
        yield
    finally:
        _callback.reset(token)


@contextmanager
def naming_steps(name: str) -> Iterator[None]:
    """Begin the lines of fits in the block with a name, such as that of one of several targets."""
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


class Progress:
    """Progress display of a fit on standard error: 0 is silent, 1 a line, 2 also stage lines."""

    def __init__(self, verbose: int) -> None:
        self.verbose = verbose
        self._console = Console(file=sys.stderr)
        self._bar: ProgressBar | None = None
        self._callback = _callback.get()
        self._named = _named.get()
        self._steps = Steps()
        self._task: Any = None
        self._note = ""

    def __enter__(self) -> Self:
        if self.verbose:
            self._bar = _StepLine(self.line, self._console)
            self._bar.start()
            self._task = self._bar.add_task("fit", total=None, note="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def plan(self, phases: Sequence[Mapping[str, int]]) -> None:
        """Set the expected steps: per phase, the start of the stages' names and their number."""
        self._steps.plan(phases)

    def expect(self, kind: str, n: int) -> None:
        """Change the expected number of steps of a kind that is in the plan."""
        self._steps.expect(kind, n)

    def stage(self, name: str) -> None:
        """Report the present stage, which is the next step."""
        self._steps.start(name)
        self._note = ""
        self._report(name)
        if self.verbose > 1:
            self._console.print(name, highlight=False)

    def epoch(self, name: str, record: dict[str, Any], total: int) -> None:
        """Show an epoch's loss and held-out NLL; `total` is the largest number of epochs."""
        if self._steps.name != name:
            self._steps.start(name)
        self._steps.reach(record["epoch"] / total)
        found = [f"{label} {record[key]:.4f}" for label, key in _MEASURES if record.get(key)]
        self._note = ", ".join([f"epoch {record['epoch']} of {total}", *found])
        self._report(f"{name}, epoch {record['epoch']} of {total}")

    def part(self, done: int, total: int) -> None:
        """Show how many of the present stage's parts are done."""
        self._steps.reach(done / total)
        self._note = f"{done:,} of {total:,}"
        if self._bar is not None:
            self._bar.update(self._task, description=self._steps.name, note=self._note)

    def say(self, text: str) -> None:
        """Print a line of text, also if progress is silent."""
        self._console.print(text, highlight=False)

    def line(self) -> str:
        """Step, elapsed time, time left, and the names of stage and measures, from left to right.

        Step and elapsed time have a constant width, and so has the time left once it is known.
        """
        steps, left = self._steps, self._steps.seconds_left()
        total = "" if steps.total is None else f" of {steps.total}"
        at = f"step {steps.number:>{max(len(total) - 4, 1)}}{total}"
        remaining = "" if left is None else f"{f'{spoken(left)} left':<{_LEFT}}"
        parts = [self._named, at, f"{clocked(steps.seconds):>5}", remaining, steps.name, self._note]
        return _BETWEEN.join(filter(None, parts))

    def _report(self, text: str) -> None:
        if self._callback is not None:
            total = self._steps.total
            at = "" if total is None else f" (step {self._steps.number} of {total})"
            self._callback(_BETWEEN.join(filter(None, [self._named, text + at])))
        if self._bar is not None:  # a line in a log file is due
            self._bar.update(self._task, description=self._steps.name, note=self._note)


class _StepLine(ProgressBar):
    """One line of text, computed anew at each refresh."""

    def __init__(self, line: Callable[[], str], console: Console) -> None:
        super().__init__(_Line(line, console), console=console, refresh_per_second=4)
        self._line = line

    def line(self) -> str:
        """Return the line for a log file."""
        return " ".join(self._line().split())


class _Line(ProgressColumn):
    def __init__(self, line: Callable[[], str], console: Console) -> None:
        super().__init__()
        self._line, self._console = line, console

    def render(self, task: Task) -> Text:
        """Return the parts of the line that fit into the terminal."""
        text = self._line()
        while cell_len(text) > self._console.width and (end := max(map(text.rfind, _ENDS))) > 0:
            text = text[:end]
        return Text(text, no_wrap=True, overflow="ellipsis")


def clocked(seconds: float) -> str:
    """Format a duration as on a clock: 4:10, or 1:04:10 from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def spoken(seconds: float) -> str:
    """Format an estimated duration: about 20 s, about 6 min, about 3 h."""
    if seconds < 55:
        return f"about {max(10, 10 * round(seconds / 10))} s"
    if seconds < 90 * 60:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {round(seconds / 3600)} h"
