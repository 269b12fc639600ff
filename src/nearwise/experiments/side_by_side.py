"""Long tasks in processes side by side, each telling what it is doing."""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from joblib import Parallel, cpu_count, delayed
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

Item = TypeVar("Item")
Told = Callable[[str], None]
Work = Callable[[Item, Told], None]
Jobs = int | str

_TELL_EVERY = 0.3  # seconds
_LOOK_FOR_PARENT_EVERY = 1.0  # seconds
_BETWEEN = " | "


def number_of_jobs(n_jobs: Jobs, device: str) -> int:
    """Give the number of processes that is asked for.

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
        return int(cpu_count()) if device == "cpu" else 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs < 1:
        raise ValueError(f'n_jobs {n_jobs!r} is no number of processes. Pass 1, 2, ... or "auto".')
    return n_jobs


def run_side_by_side(
    work: Work[Item], rounds: Sequence[Sequence[Item]], n_jobs: int, told: Told
) -> None:
    """Do tasks in processes of their own; a round begins when the one before is over.

    What a task makes it leaves on disk. The processors are shared out: a process has as many
    threads as there are processors for each, or what ``OMP_NUM_THREADS`` says. joblib's processes
    are used, and ended afterwards.

    Parameters
    ----------
    work : callable
        ``work(item, told)`` does one; of a module, or a partial of such a function.
    rounds : sequence of sequences of items
        The longest tasks of a round should come first.
    n_jobs : int
        Processes, at least 1; no more are started than a round has tasks.
    told : callable
        Called with what all of them are doing, from a thread. What it raises is raised when the
        round is over.

    Raises
    ------
    Exception
        What a task raises; the others are broken off.
    ChildProcessError
        If a process was killed, for which want of memory is the common reason.
    """
    n_jobs = min(n_jobs, max(map(len, rounds)))
    # what is large is shared; a process that writes to it gets a copy of its own
    processes = Parallel(
        n_jobs, backend="loky", batch_size=1, pre_dispatch="all", mmap_mode="c"
    )  # fmt: skip
    try:
        for items in rounds:
            with _relayed(told) as notes:
                processes(
                    delayed(_noted)(work, item, notes / str(i), os.getpid())
                    for i, item in enumerate(items)
                )
    except TerminatedWorkerError as error:
        raise ChildProcessError(
            f"One of {n_jobs} processes was killed, most likely for want of memory. Use fewer "
            "(jobs 1 needs the least); what is finished is kept."
        ) from error
    finally:
        get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _noted(work: Work[Item], item: Item, note: Path, caller: int) -> None:
    """Do one task in a process, with its words in a file."""
    _end_with(caller)
    try:
        work(item, lambda words: _write(note, words))
    finally:
        note.unlink(missing_ok=True)


def _write(note: Path, words: str) -> None:
    note.write_text(words, encoding="utf-8")


@contextlib.contextmanager
def _relayed(told: Told) -> Iterator[Path]:
    """Give a folder for notes, and tell what they say as it changes."""
    over = threading.Event()
    failed: list[Exception] = []

    def relay(folder: Path) -> None:
        before = ""
        while not over.wait(_TELL_EVERY):
            words = _BETWEEN.join(_read(folder))
            if words and words != before:
                try:
                    told(words)
                except Exception as error:  # raised below, where it is seen
                    failed.append(error)
                    return
                before = words

    with tempfile.TemporaryDirectory() as notes:
        thread = threading.Thread(target=relay, args=(Path(notes),), daemon=True)
        thread.start()
        try:
            yield Path(notes)
        finally:
            over.set()
            thread.join()
    if failed:
        raise failed[0]


def _read(folder: Path) -> list[str]:
    """Read the notes of the tasks that are being done."""
    found = []
    for note in sorted(folder.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # its task ended just now
            found.append(note.read_text(encoding="utf-8"))
    return [words for words in found if words]  # none while a note is being written


_watching = threading.Event()


def _end_with(caller: int) -> None:
    """End this process when the one that started it is gone: it may have been started again."""
    if _watching.is_set() or os.getpid() == caller:
        return
    _watching.set()

    def watch() -> None:
        while os.getppid() == caller:
            time.sleep(_LOOK_FOR_PARENT_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
