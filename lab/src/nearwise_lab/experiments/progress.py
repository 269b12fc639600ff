"""The progress bar of experiments."""

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
    """A progress bar, or none."""

    progress: ProgressBar | None
    task: Any = None
    title: str = ""

    def show(self, text: str) -> None:
        """Show the current task."""
        self.title = text
        self._describe(text)

    def stage(self, text: str) -> None:
        """Show the fit stage of the current task."""
        self._describe(f"{self.title} · {text}")

    def _describe(self, text: str) -> None:
        if self.progress is not None:
            self.progress.update(self.task, description=text)

    def expect(self, n_more: int) -> None:
        """Add to the total number of steps."""
        if self.progress is not None:
            total = self.progress.tasks[self.task].total or 0
            self.progress.update(self.task, total=total + n_more)

    def skip(self) -> None:
        """Count a row that an earlier run finished."""
        if self.progress is not None:
            self.progress.advance(self.task)

    def done(self, record: Record) -> None:
        """Count a finished record; a failure is printed above the bar."""
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
    """Show a bar of `total` steps on standard error, or none; Ctrl-C prints the results folder.

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
                f"stopped; finished rows are kept in {out}; run the command again to continue",
                markup=False,
                soft_wrap=True,
            )
            raise
