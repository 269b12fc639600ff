"""The progress bar of runs that go through many rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from nearwise.estimators.progress import reporting_stages_to
from nearwise.progress_bar import ProgressBar
from nearwise_lab.records import Record


@dataclass
class Bar:
    """The progress bar, or nothing."""

    progress: ProgressBar | None
    task: Any = None
    title: str = ""

    def show(self, text: str) -> None:
        """Report what is being done."""
        self.title = text
        self._describe(text)

    def stage(self, text: str) -> None:
        """Report the stage of a fit that is part of what is being done."""
        self._describe(f"{self.title} · {text}")

    def _describe(self, text: str) -> None:
        if self.progress is not None:
            self.progress.update(self.task, description=text)

    def expect(self, n_more: int) -> None:
        """Add steps to come."""
        if self.progress is not None:
            total = self.progress.tasks[self.task].total or 0
            self.progress.update(self.task, total=total + n_more)

    def skip(self) -> None:
        """Count something that was finished before."""
        if self.progress is not None:
            self.progress.advance(self.task)

    def done(self, record: Record) -> None:
        """Count what was just done; a failure is reported above the bar."""
        if self.progress is None:
            return
        if record.status == "failed":
            self.progress.console.print(
                f"failed: {record.dataset}, {record.method}, seed {record.seed}: {record.reason}",
                markup=False,
                highlight=False,
            )
        self.progress.advance(self.task)


@contextmanager
def shown_bar(total: int, shown: bool, out: str | PathLike[str]) -> Iterator[Bar]:
    """Show a bar of `total` steps on standard error, or nothing; Ctrl-C says what is kept.

    The bar also shows the stages of the classifier's fits.
    """
    if not shown:
        yield Bar(None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, transient=False) as progress:
        bar = Bar(progress, progress.add_task("comparing", total=total))
        try:
            with reporting_stages_to(bar.stage):
                yield bar
        except KeyboardInterrupt:
            progress.console.print(
                f"stopped; finished rows are kept in {out}, run again to go on",
                markup=False,
                soft_wrap=True,
            )
            raise
