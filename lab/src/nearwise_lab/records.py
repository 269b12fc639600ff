"""Records of trials, one JSON line each: appended whole, read back, never mixed with others."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

from nearwise.conditions import command_line, hardware, versions
from nearwise.safe_files import open_lock, plain, write_aside

RECORDS_FILE = "records.jsonl"
SETTINGS_FILE = "settings.json"
LOCK_FILE = ".lock"
REPORTS = ("report.html", "report.pdf", *(f"results.{end}" for end in ("md", "tex", "csv", "json")))

Key = tuple[str, str, int, float, str, str, str, str]


class RecordsError(ValueError):
    """A results folder that cannot be read or must not be written to."""


@dataclass(frozen=True)
class Record:
    """One result: a data set, a method, a seed and a noise level.

    Attributes
    ----------
    dataset, method : str
        Halves of an attention model are methods of their own, such as "attention:base-alone", with
        `part_of` naming the whole.
    seed : int
        Of the split, the noise and the method.
    noise, noise_kind : float, str
        Share of training labels changed, in [0, 1], "symmetric" or "asymmetric"; test labels are
        never changed.
    status, reason : {"ok", "failed"}, str
        A failed row has a reason and no metrics.
    k : int, optional
        Neighbors consulted, where the method has a number of them.
    n_train, n_test, n_classes : int
        Sizes of this split.
    accuracy ... augrc : float, optional
        On the test part, read once. Errors of calibration and selective risk are in [0, 1];
        NLL is in nats per row, clipped at 1e-7.
    null_mass : float, optional
        Mean weight of the null neighbor over test rows, in [0, 1].
    fit_seconds, fit_cpu_seconds : float, optional
        Wall time of `fit`, tuning included, and CPU time of all threads of this process.
    predict_us_per_row, one_row_ms : float, optional
        Wall time of `predict_proba` after a warm-up: microseconds per test row, and the median of
        milliseconds for one row.
    model_mb, peak_memory_mib : float, optional
        Size of the fitted model on disk in MB (10**6 bytes), see `stored_mb`, and growth of
        resident memory during `fit` at its peak in MiB, see `PeakMemory`.
    experiment, preset, condition : str
        Where the row belongs to an experiment: its name ("main", "k-sweep", ...), the preset
        ("v0.5", "v1", ...) and what was varied ("k=10", "ratio=0.01"). Empty in comparisons.
    details, choice : dict
        What an experiment measured beside the metrics, and what the method chose on its training
        part.
    versions, hardware, command, time : dict, dict, str, str
        What made the row, the command that makes it again, and when it was finished, UTC, ISO 8601.
    """

    dataset: str
    method: str
    seed: int
    noise: float = 0.0
    noise_kind: str = "symmetric"
    status: Literal["ok", "failed"] = "ok"
    reason: str | None = None
    part_of: str | None = None
    k: int | None = None
    n_train: int = 0
    n_test: int = 0
    n_classes: int = 0
    accuracy: float | None = None
    macro_f1: float | None = None
    nll: float | None = None
    brier: float | None = None
    ece: float | None = None
    equal_mass_ece: float | None = None
    classwise_ece: float | None = None
    smooth_ece: float | None = None
    signed_gap: float | None = None
    aurc: float | None = None
    augrc: float | None = None
    null_mass: float | None = None
    fit_seconds: float | None = None
    fit_cpu_seconds: float | None = None
    predict_us_per_row: float | None = None
    one_row_ms: float | None = None
    model_mb: float | None = None
    peak_memory_mib: float | None = None
    experiment: str = ""
    preset: str = ""
    condition: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    time: str = ""

    @property
    def key(self) -> Key:
        """Unique key of the row in its folder."""
        where = (self.experiment, self.preset, self.condition)
        return (self.dataset, self.method, self.seed, self.noise, self.noise_kind, *where)

    @property
    def whole_key(self) -> Key:
        """Key of the row that this one is a half of; its own where it is whole."""
        return replace(self, method=self.part_of or self.method).key

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Record":
        """Make a record of a line; fields of later versions are ignored."""
        return cls(**{name: value for name, value in values.items() if name in _NAMES})


_NAMES = [f.name for f in fields(Record)]
METRICS = tuple(_NAMES[_NAMES.index("accuracy") : _NAMES.index("null_mass")])
COSTS = tuple(_NAMES[_NAMES.index("fit_seconds") : _NAMES.index("experiment")])


def facts(command: str | None = None) -> dict[str, Any]:
    """Conditions that every record states: versions with the commit, hardware, command."""
    command = command_line() if command is None else command
    return {"versions": versions(), "hardware": hardware(), "command": command}


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def as_line(record: Mapping[str, Any]) -> str:
    """One line of JSON; a number that is not finite becomes null."""
    return json.dumps(plain(dict(record)), ensure_ascii=False, allow_nan=False) + "\n"


def read_lines(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read a folder's records as they were written; a last line torn by a kill is left out.

    RecordsError names a damaged line before the last. Empty where nothing was written yet.
    """
    path = Path(folder, RECORDS_FILE)
    return _parse(path.read_bytes())[0] if path.exists() else []


def append_lines(folder: str | os.PathLike[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Add records, on disk when this returns; lines of processes side by side do not mix.

    What a kill left of a last line is cut off first.
    """
    content = "".join(map(as_line, records)).encode()
    path = Path(folder, RECORDS_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+", buffering=0) as file:  # closing it gives the lock back
        _lock(file, wait=True)
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 2))
        if end and file.read(2) != b"}\n":
            file.seek(0)
            file.truncate(_parse(file.read())[1])
        if file.write(content) != len(content):
            raise OSError(f"{path} took a part of a record. Is the disk full?")
        os.fsync(file.fileno())


def _parse(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Whole lines, and the number of bytes that hold them."""
    found: list[dict[str, Any]] = []
    position = 0
    *lines, rest = data.split(b"\n")  # what follows the last newline is torn
    for number, line in enumerate(lines, start=1):
        values = None
        with suppress(ValueError):
            values = json.loads(line)
        if not isinstance(values, dict):
            if number == len(lines) and not rest:
                break  # a last line that was allocated but never filled
            raise RecordsError(
                f"{RECORDS_FILE}, line {number}, is damaged: {line[:60]!r}. Remove that line, or "
                "move the folder away and run again."
            )
        found.append(values)
        position += len(line) + 1
    return found, position


def read_records(folder: str | Path) -> list[Record]:
    """Read the rows of a folder of `compare` or `run_experiment`, the last one of each key.

    In order of finishing. A half of an attention row whose whole is missing (a kill came between
    them) is left out. RecordsError if there are no records, or a line before the last is damaged.
    """
    if not Path(folder, RECORDS_FILE).exists():
        raise RecordsError(
            f"no {RECORDS_FILE} in {folder}. Pass a folder written by `nearwise compare` or "
            "`nearwise experiment`."
        )
    return _records(folder)


def _records(folder: str | Path) -> list[Record]:
    rows: dict[Key, Record] = {}
    for number, values in enumerate(read_lines(folder), start=1):
        try:
            record = Record.of(values)
        except TypeError as error:
            raise RecordsError(
                f"{RECORDS_FILE}, line {number}, is no record of a comparison or experiment. "
                "Choose another folder."
            ) from error
        rows.pop(record.key, None)
        rows[record.key] = record
    return [r for r in rows.values() if r.whole_key in rows]


class RunFolder:
    """A results folder open for one writer; use as a context manager.

    It is made where it is missing; `settings` must equal those it was started with (see `bind` for
    what may be added later). RecordsError if another process is writing, the settings differ, or
    the folder holds records without settings.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = Path(path), settings
        self.records: list[Record] = []

    def __enter__(self) -> Self:
        """Lock the folder, read its rows, check its settings."""
        self._lock = lock_folder(self.path)
        try:
            self._bound = self._read_settings()
            self.records = _records(self.path)
            self.bind("settings", self.settings)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        """Release the lock."""
        self._lock.close()

    def _read_settings(self) -> dict[str, dict[str, Any]]:
        path = self.path / SETTINGS_FILE
        if not path.exists():
            foreign = [name for name in (RECORDS_FILE, *REPORTS) if (self.path / name).exists()]
            if foreign:
                raise RecordsError(
                    f"{self.path} has a {foreign[0]} but no {SETTINGS_FILE}: it was not made "
                    "by `nearwise compare`, which would replace it. Choose another folder."
                )
            return {}
        bound = None
        with suppress(ValueError):
            bound = json.loads(path.read_text())
        if not isinstance(bound, dict) or not isinstance(bound.get("settings"), dict):
            raise RecordsError(
                f"{path} holds no settings of comparisons or experiments: it is damaged, or of "
                "another command. Choose another folder."
            )
        return bound

    def bind(
        self,
        name: str,
        values: Mapping[str, Any],
        mine: Callable[[Record], bool] = lambda record: True,
    ) -> None:
        """Bind settings to the rows that `mine` selects; other values under the same name raise.

        Other values are taken where none of these rows has succeeded: the failed ones are removed.
        """
        wanted = plain(dict(values))
        found = self._bound.get(name, wanted)
        if found != wanted:
            if any(mine(record) and record.status == "ok" for record in self.records):
                names = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
                changes = "; ".join(f"{k}={found.get(k)!r}, now {wanted.get(k)!r}" for k in names)
                raise RecordsError(
                    f"{self.path} holds results of other {name} ({changes}). Results of both must "
                    "not be mixed: choose another folder, or go on with those of the folder."
                )
            self.records = [record for record in self.records if not mine(record)]
            text = "".join(as_line(asdict(record)) for record in self.records)
            write_aside(self.path / RECORDS_FILE, text.encode())
        if self._bound.get(name) != wanted:
            self._bound[name] = wanted
            write_aside(self.path / SETTINGS_FILE, json.dumps(self._bound, indent=1).encode())

    def finished(self) -> set[Key]:
        """Keys of the rows that need not be run again; failed ones are tried again."""
        return {r.key for r in self.records if r.status == "ok"}

    def append(self, records: Iterable[Record]) -> None:
        """Append rows, on disk when this returns; the row of the whole method after its halves."""
        records = list(records)
        append_lines(self.path, map(asdict, records))
        new = {r.key for r in records}
        self.records = [r for r in self.records if r.key not in new] + records


def lock_folder(path: Path) -> BinaryIO:
    """Lock a folder for writing by this process, until the returned file is closed."""
    path.mkdir(parents=True, exist_ok=True)
    lock = os.fdopen(open_lock(path / LOCK_FILE), "rb+")
    try:
        _lock(lock, wait=False)
    except OSError as error:
        lock.close()
        raise RecordsError(
            f"another process is writing to {path}. Wait for it, or choose another folder."
        ) from error
    return lock


def _lock(file: Any, *, wait: bool) -> None:
    """Lock an open file; OSError if another process holds the lock and `wait` is False."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock, one writer is the user's care
        return
    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
