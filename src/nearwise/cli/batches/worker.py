"""One process of a batch: it opens the model once, and answers part after part."""

import io
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nearwise.cli.batches.parts import Part
from nearwise.cli.console import USER_ERRORS, describe, say, typed
from nearwise.cli.models import Pin, open_model, pin_of
from nearwise.cli.rows.frames import Frame
from nearwise.cli.rows.image_rows import ImageOptions
from nearwise.cli.rows.rows import read_to_predict

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.classifier import AttnKNNClassifier


_ATTEMPTS = 3


class Question(Protocol):
    """Options of a query about rows; the same when a process passes them to another."""

    def table(
        self,
        model: "AttnKNNClassifier",
        copied: "pd.DataFrame",
        features: "pd.DataFrame | np.ndarray",
    ) -> "pd.DataFrame":
        """Give the answers, one row each, after the columns that are passed on."""

    def settings(self) -> dict[str, Any]:
        """Return all options, as JSON holds them."""


@dataclass(frozen=True)
class Job:
    """What all parts have in common."""

    question: Question
    model: Path
    pin: Pin
    out: Path
    keep: Sequence[str]
    images: ImageOptions
    header: bool | None
    folder: Path  # that paths are relative to
    store: str | None = None  # where the user says that the model's memory is


class Worker:
    """Makes parts of a job; Ray Data calls it with one part at a time.

    What a user can fix, and messages, go back to the process that started the job.
    """

    def __init__(self, job: Job) -> None:
        from nearwise.data.tables.pieces import PieceReader

        self._job, self._reader = job, PieceReader()
        self._model: AttnKNNClassifier | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Make the part that the row "part" describes: its number of rows, error and remarks."""
        (text,) = batch["part"]
        part, error, n_rows = Part(**json.loads(text)), "", 0
        with warnings.catch_warnings(record=True) as caught, redirect_stderr(io.StringIO()) as said:
            try:
                with _attempt(self._job.out / f".{part.name}.attempts.tmp"):
                    n_rows = self._make(part)
            except USER_ERRORS as mistake:
                error = describe(mistake)
        remarks = [*said.getvalue().splitlines(), *(f"warning: {w.message}" for w in caught)]
        shown = json.dumps([remark.replace(part.files[0], "{}") for remark in remarks])
        return {"file": [part.files[0]], "rows": [n_rows], "error": [error], "remarks": [shown]}

    def _make(self, part: Part) -> int:
        from nearwise.data.tables.files import write_table

        job = self._job
        os.chdir(job.folder)  # on this machine or another
        if self._model is None:
            self._model = open_pinned(job.model, job.pin, job.store)

        def read(path: str, header: bool | None, *, known: Any, like: Any, quiet: bool) -> Frame:
            found = self._reader.read(
                Path(path),
                part.piece,
                part.n_pieces,
                header=header,
                known=known,
                like=like,
                note=lambda text: say(f"note: {text}"),
            )
            return Frame(found[0].copy(deep=False), *found[1:])

        copied, features = read_to_predict(
            self._model, job.model, part.files, job.keep, job.images, header=job.header, read=read
        )
        # a piece of few and wide rows may have none
        table = job.question.table(self._model, copied, features) if len(copied) else copied
        write_table(table, job.out / part.name)
        return len(table)


@contextmanager
def _attempt(note: Path) -> Iterator[None]:
    """Count in a file how often a part was begun: Ray would for ever repeat what kills a process.

    ChildProcessError at the fourth time.
    """
    if note.exists() and note.stat().st_size >= _ATTEMPTS:
        note.unlink()
        raise ChildProcessError(
            f"this part's process was killed {_ATTEMPTS} times, as happens where memory is short. "
            "Give fewer --workers."
        )
    with note.open("ab") as file:
        file.write(b"x")
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def open_pinned(folder: Path, pin: Pin, store: str | None = None) -> "AttnKNNClassifier":
    """Open a model that must be at the version at which a job began; ValueError if it is not."""
    model = open_model(folder, store)
    seen = pin_of(model, folder)
    if seen != pin:
        raise ValueError(
            f"{folder} is {seen}, and the run began with {pin}: parts of two versions must not lie "
            "side by side. Leave the model and nearwise alone while a run goes on; undo the change "
            f"({typed('history', folder)}) and run the command again, or choose another --out."
        )
    return model
