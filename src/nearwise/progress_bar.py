"""Progress bars on terminals and in notebooks, progress lines in log files.

Standard error of a long background run is often a file, where a bar cannot be drawn: there
`ProgressBar` writes a line every 30 seconds if the progress has changed.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import ProgressColumn, Task

_LINE_SECONDS = 30.0
_SILENT_SECONDS = 1.0


class ProgressBar(RichProgress):
    """A rich progress bar, or a line every 30 seconds if no bar can be drawn.

    Parameters
    ----------
    *columns : rich.progress.ProgressColumn
        Columns of the bar; by default rich's own. A line in a file is that of `line`.
    console : rich.console.Console, optional
        Output console; by default standard error.
    transient : bool, default=True
        Whether to remove the bar at the end.
    disable : bool, default=False
        Whether to show neither a bar nor lines.
    refresh_per_second : float, default=10
        Refreshes of the bar per second.
    """

    def __init__(
        self,
        *columns: ProgressColumn,
        console: Console | None = None,
        transient: bool = True,
        disable: bool = False,
        refresh_per_second: float = 10,
    ) -> None:
        super().__init__(
            *columns,
            console=Console(stderr=True) if console is None else console,
            transient=transient,
            disable=disable,
            refresh_per_second=refresh_per_second,
        )
        self._began = time.monotonic()
        self._writer: threading.Thread | None = None
        self._over = threading.Event()

    def start(self) -> None:
        """Show the bar, or start to write lines."""
        if self.disable:
            return
        if self.console.is_terminal or self.console.is_jupyter:
            super().start()
        elif self._writer is None:
            self._over.clear()
            self._writer = threading.Thread(target=self._write_lines, daemon=True)
            self._writer.start()

    def stop(self) -> None:
        """Remove the bar, or stop to write lines."""
        if self.live.is_started:
            super().stop()
        if self._writer is not None:
            self._over.set()
            self._writer.join()
            self._writer = None

    def line(self) -> str:
        """Return the line for a file: time since the start, then each task.

        A task shows its description, completed steps and field "note".
        """
        passed = timedelta(seconds=round(time.monotonic() - self._began))
        return f"{passed}  {self._state()}"

    def _state(self) -> str:
        return "; ".join(filter(None, map(_line, self.tasks)))

    def _write_lines(self) -> None:
        written = ""
        while not self._over.wait(_LINE_SECONDS):
            if (state := self._state()) != written:
                self.console.print(
                    self.line(), markup=False, emoji=False, highlight=False, soft_wrap=True
                )
                written = state


def _line(task: Task) -> str:
    parts = [task.description]
    if task.total is not None:
        parts.append(f"({task.completed:,.0f} of {task.total:,.0f})")
    parts.append(str(task.fields.get("note", "")))
    return " ".join(filter(None, parts))


@contextmanager
def late_bar(label: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error after one second, and remove it at the end.

    Yields a function that takes the number of completed steps.
    """
    if not shown:
        yield lambda done: None
        return
    bar = ProgressBar()
    task, began = bar.add_task(label, total=total), time.monotonic()

    def report(done: int) -> None:
        bar.update(task, completed=done)
        if time.monotonic() - began > _SILENT_SECONDS:
            bar.start()  # no effect if already shown

    try:
        yield report
    finally:
        bar.stop()
