"""Progress of a fit: a bar with stage, loss, held-out NLL and elapsed time, or silence."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from nearwise.progress_bar import ProgressBar

_callback: ContextVar[Callable[[str], None] | None] = ContextVar("callback", default=None)


@contextmanager
def reporting_stages_to(callback: Callable[[str], None]) -> Iterator[None]:
    """Report stages and epochs of fits also to `callback`, independent of `verbose`."""
    token = _callback.set(callback)
    try:
        yield
    finally:
        _callback.reset(token)


class Progress:
    """Progress display of a fit on standard error: 0 is silent, 1 a bar, 2 also stage lines."""

    def __init__(self, verbose: int) -> None:
        self.verbose = verbose
        self._console = Console(file=sys.stderr)
        self._bar: ProgressBar | None = None
        self._callback = _callback.get()
        self._task: Any = None

    def __enter__(self) -> Self:
        if self.verbose:
            self._bar = ProgressBar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
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

    def stage(self, name: str) -> None:
        """Report the present stage."""
        if self._callback is not None:
            self._callback(name)
        if self._bar is not None:
            self._bar.reset(self._task, description=name, total=None, note="")
        if self.verbose > 1:
            self._console.print(name, highlight=False)

    def epoch(self, name: str, record: dict[str, Any], total: int) -> None:
        """Show an epoch's loss and held-out NLL; `total` is the largest number of epochs."""
        if self._callback is not None:
            self._callback(f"{name}, epoch {record['epoch']} of {total}")
        if self._bar is None:
            return
        task = self._bar.tasks[0]
        if task.description != name:
            self._bar.reset(self._task, description=name, total=total, note="")
        note = "".join(
            f"{label} {record[key]:.4f}  "
            for label, key in (("loss", "train_loss"), ("held-out NLL", "held_out_nll"))
            if record.get(key) is not None
        )
        self._bar.update(self._task, completed=record["epoch"], note=note)

    def say(self, text: str) -> None:
        """Print a line of text, also if progress is silent."""
        self._console.print(text, highlight=False)
