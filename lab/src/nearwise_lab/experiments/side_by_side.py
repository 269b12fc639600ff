"""Long tasks in parallel processes, with progress of each."""

import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TypeVar

from nearwise.conditions import available_threads

Item = TypeVar("Item")
Progress = Callable[[str], None]
Work = Callable[[Item, Progress], None]
Jobs = int | str

_TELL_EVERY = 0.3  # seconds
_LOOK_FOR_PARENT_EVERY = 1.0  # seconds
_BETWEEN = " | "
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def number_of_jobs(n_jobs: Jobs, device: str) -> int:
    """Return the requested number of processes.

    Parameters
    ----------
    n_jobs : int or "auto"
        auto: on a CPU as many as this process may use processors, on a GPU one.
    device : str

    Raises
    ------
    ValueError
        If it is neither "auto" nor at least 1.
    """
    if n_jobs == "auto":
        return available_threads() if device == "cpu" else 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs < 1:
        raise ValueError(
            f'n_jobs {n_jobs!r} is not a number of processes. Pass 1, 2, ... or "auto".'
        )
    return n_jobs


def run_side_by_side(
    work: Work[Item], rounds: Sequence[Sequence[Item]], n_jobs: int, progress: Progress
) -> None:
    """Run tasks in child processes; a round begins when the previous one is complete.

    What a task makes it leaves on disk. The processors are shared out: a process has as many
    threads as there are processors for each, or ``OMP_NUM_THREADS``. A script that calls
    this with several processes needs ``if __name__ == "__main__":`` around what it runs.

    Parameters
    ----------
    work : callable
        ``work(item, progress)`` does one; of a module, or a partial of such a function.
    rounds : sequence of sequences of items
        The longest tasks of a round should come first.
    n_jobs : int
        Processes, at least 1; no more are started than a round has tasks. One task at a time is
        done in this process.
    progress : callable
        Called with what all of them are doing.

    Raises
    ------
    Exception
        What a task or `progress` raises; the others are broken off.
    ChildProcessError
        If a process was killed, most often for lack of memory.
    """
    n_jobs = min(n_jobs, max(map(len, rounds)))
    if n_jobs == 1:
        for items in rounds:
            for item in items:
                work(item, progress)
        return
    others = set(active_children())
    pool = ProcessPoolExecutor(
        n_jobs, get_context("spawn"), initializer=_begin, initargs=(os.getpid(),)
    )
    try:
        with _threads_for_each(n_jobs), tempfile.TemporaryDirectory() as notes:
            for number, items in enumerate(rounds):
                places = [Path(notes, f"{number}-{i:04}") for i in range(len(items))]
                waiting = [
                    pool.submit(_noted, work, item, note)
                    for item, note in zip(items, places, strict=True)
                ]
                _await(waiting, places, progress)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            f"One of {n_jobs} processes was killed, most likely for lack of memory. Use fewer "
            "(jobs 1 needs the least); what is finished is kept."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        started = set(active_children()) - others
        for process in started:
            process.terminate()
        for process in started:
            process.join()  # its processor time counts from then on


def _await(waiting: Sequence[Future[None]], notes: Sequence[Path], progress: Progress) -> None:
    """Wait for tasks, and report changes of their status."""
    before = ""
    left = set(waiting)
    while left:
        done, left = wait(left, _TELL_EVERY, FIRST_EXCEPTION)
        for task in done:
            task.result()
        words = _BETWEEN.join(_read(notes))
        if words and words != before:
            progress(words)
            before = words


def _read(notes: Sequence[Path]) -> list[str]:
    """Read the status of the running tasks."""
    found = []
    for note in notes:
        with contextlib.suppress(FileNotFoundError):  # of tasks to come, or that ended just now
            found.append(note.read_text(encoding="utf-8"))
    return [words for words in found if words]  # none while a note is being written


def _noted(work: Work[Item], item: Item, note: Path) -> None:
    """Run one task in a child process, with its status in a file."""

    def tell(words: str) -> None:
        note.write_text(words, encoding="utf-8")

    try:
        work(item, tell)
    finally:
        note.unlink(missing_ok=True)


@contextlib.contextmanager
def _threads_for_each(n_jobs: int) -> Iterator[None]:
    """Divide the processors among new processes, unless environment variables set the threads."""
    own = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(own, str(max(1, available_threads() // n_jobs))))
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]


def _begin(caller: int) -> None:
    """Ignore Ctrl-C, and exit when the parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == caller:
            time.sleep(_LOOK_FOR_PARENT_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
