"""Result rows and the folder that keeps them: appended one at a time, never lost, never mixed."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self

from nearwise.safe_files import open_lock, plain, write_aside

FORMAT_VERSION = 1
RECORDS_FILE = "records.jsonl"
SETTINGS_FILE = "settings.json"
LOCK_FILE = ".lock"
REPORTS = ("report.html", "report.pdf", *(f"results.{end}" for end in ("md", "tex", "csv", "json")))

METRICS = (
    "accuracy",
    "macro_f1",
    "nll",
    "brier",
    "ece",
    "equal_mass_ece",
    "classwise_ece",
    "smooth_ece",
    "signed_gap",
    "aurc",
    "augrc",
)
COSTS = (
    "fit_seconds",
    "fit_cpu_seconds",
    "predict_us_per_row",
    "one_row_ms",
    "model_mb",
    "peak_memory_mib",
)

Key = tuple[str, str, int, float, str, str, str, str]


class RecordsError(ValueError):
    """A results folder that cannot be read or must not be written to."""


@dataclass(frozen=True)
class Record:
    """One result: a data set, a method, a seed and a noise level.

    Attributes
    ----------
    dataset, method : str
        Names. Halves of an attention model are methods of their own, such as
        "attention:base-alone", with `part_of` naming the whole.
    seed : int
        Of the split, the noise and the method.
    noise : float
        Share of training labels changed, in [0, 1]; test labels are never changed.
    noise_kind : str
        "symmetric" or "asymmetric".
    status : {"ok", "failed"}
        A failed row has a `reason` and no metrics.
    k : int, optional
        Neighbors consulted, where the method has a number of them.
    n_train, n_test, n_classes : int
        Sizes of this split.
    accuracy ... augrc : float, optional
        On the test part, read once. Errors of calibration and selective risk are in [0, 1];
        NLL is in nats per row, clipped at 1e-7.
    null_mass : float, optional
        Mean weight of the null neighbor over test rows, in [0, 1].
    fit_seconds : float, optional
        Wall time of `fit`, tuning included.
    fit_cpu_seconds : float, optional
        CPU time of `fit`, all threads of this process added up.
    predict_us_per_row : float, optional
        Wall microseconds per test row of `predict_proba`, after a warm-up on a few rows.
    one_row_ms : float, optional
        Wall milliseconds of `predict_proba` on one row: the median over a few test rows.
    model_mb : float, optional
        Size of the fitted model on disk in MB (10**6 bytes); see `stored_mb`.
    peak_memory_mib : float, optional
        Growth of resident memory during `fit` at its peak, MiB; see `PeakMemory`.
    experiment, preset, condition : str
        Where the row belongs to an experiment: its name ("main", "k-sweep", ...), the preset
        ("v0.5", "v1", ...) and what was varied ("k=10", "ratio=0.01"). Empty in comparisons.
    details : dict
        What an experiment measured beside the metrics (memory purity, recall, a fitted curve).
    choice : dict
        What the method chose on its training part.
    versions, hardware : dict
        What made the row.
    command : str
        The command that makes it again.
    time : str
        When it was finished, UTC, ISO 8601.
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
        """What makes the row unique in its folder."""
        where = (self.experiment, self.preset, self.condition)
        return (self.dataset, self.method, self.seed, self.noise, self.noise_kind, *where)

    @property
    def whole_key(self) -> Key:
        """Key of the row that this one is a half of; its own where it is whole."""
        return replace(self, method=self.part_of or self.method).key

    def to_json(self) -> str:
        """One line of JSON; a number that is not finite becomes null."""
        return json.dumps(plain(asdict(self)), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Record":
        """Read a line; fields of later versions are ignored."""
        values = json.loads(line)
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


def read_records(folder: str | Path) -> list[Record]:
    """Read the rows of a results folder, the last one of each key, in order of finishing.

    Parameters
    ----------
    folder : str or Path
        A folder written by `compare`.

    Returns
    -------
    list of Record
        A last line torn by a kill is left out. A half of an attention row whose whole is
        missing (the kill came between them) is left out too.

    Raises
    ------
    RecordsError
        If there are no records, or a line before the last is damaged.
    """
    path = Path(folder) / RECORDS_FILE
    if not path.exists():
        raise RecordsError(
            f"no {RECORDS_FILE} in {folder}. Pass a folder written by `nearwise compare` or "
            "`nearwise experiment`."
        )
    return _parse(path)[0]


def _parse(path: Path) -> tuple[list[Record], int]:
    """Rows, and the number of bytes that hold whole lines."""
    data = path.read_bytes()
    rows: dict[Key, Record] = {}
    position = 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last newline is torn
        try:
            record = Record.from_json(line.decode())
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines) - 1 and not lines[-1]:
                break  # a last line that was allocated but never filled
            raise RecordsError(
                f"{path.name}, line {number}, is damaged: {line[:60]!r}. Remove that line, or "
                "move the folder away and run again."
            ) from error
        rows.pop(record.key, None)
        rows[record.key] = record
        position += len(line) + 1
    return [r for r in rows.values() if r.whole_key in rows], position


class RunFolder:
    """A results folder open for one writer; use as a context manager.

    Parameters
    ----------
    path : str or Path
        Created where it is missing. A torn last line is cut off.
    settings : dict
        Must equal those the folder was started with; see `claim_dataset` and `claim_preset` for
        what may be added later.

    Raises
    ------
    RecordsError
        If another process is writing, the settings differ, or the folder holds records
        without settings.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any]) -> None:
        self.path = Path(path)
        self.settings = {"format": FORMAT_VERSION, **plain(settings)}
        self.records: list[Record] = []
        self._file: BinaryIO

    def __enter__(self) -> Self:
        """Lock the folder, check its settings, read its rows."""
        self._lock = lock_folder(self.path)
        try:
            self._check_settings()
            self._open_records()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file and give the lock back."""
        self._file.close()
        self._lock.close()

    def _check_settings(self) -> None:
        path = self.path / SETTINGS_FILE
        if not path.exists():
            foreign = [name for name in (RECORDS_FILE, *REPORTS) if (self.path / name).exists()]
            if foreign:
                raise RecordsError(
                    f"{self.path} has a {foreign[0]} but no {SETTINGS_FILE}: it was not made "
                    "by `nearwise compare`, which would replace it. Choose another folder."
                )
            self._datasets: dict[str, Any] = {}
            self._presets: dict[str, Any] = {}
            self._write_settings()
            return
        try:
            found = json.loads(path.read_text())
            self._datasets = found.pop("datasets")
            self._presets = found.pop("presets", {})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordsError(
                f"{path} holds no settings of comparisons or experiments: it is damaged, or of "
                "another command. Choose another folder."
            ) from error
        for name, wanted in self.settings.items():
            if found.get(name) != wanted:
                if self._only_failures():
                    return self._start_afresh()
                raise RecordsError(
                    f"{self.path} was started with {name}={found.get(name)!r}, this run has "
                    f"{name}={wanted!r}. Results of both must not be mixed: choose another "
                    "folder, or run with the settings of the folder."
                )

    def _only_failures(self) -> bool:
        """Whether no row has succeeded."""
        path = self.path / RECORDS_FILE
        found = _parse(path)[0] if path.exists() else []
        return all(record.status == "failed" for record in found)

    def _start_afresh(self) -> None:
        """Take a folder that holds no row, or failed ones alone, for the settings of this run."""
        (self.path / RECORDS_FILE).unlink(missing_ok=True)
        self._datasets, self._presets = {}, {}
        self._write_settings()

    def _drop_failures(self, mine: Callable[[Record], bool]) -> bool:
        """Remove the rows that `mine` names, unless one has succeeded; return whether none has."""
        if any(mine(record) and record.status != "failed" for record in self.records):
            return False
        self.records = [record for record in self.records if not mine(record)]
        self._file.close()
        text = "".join(record.to_json() + "\n" for record in self.records)
        write_aside(self.path / RECORDS_FILE, text.encode())
        self._file = (self.path / RECORDS_FILE).open("ab")
        return True

    def _write_settings(self) -> None:
        settings = {**self.settings, "datasets": self._datasets}
        if self._presets:
            settings["presets"] = self._presets
        write_aside(self.path / SETTINGS_FILE, json.dumps(settings, indent=1).encode())

    def _open_records(self) -> None:
        path = self.path / RECORDS_FILE
        keep = 0
        if path.exists():
            self.records, keep = _parse(path)
        self._file = path.open("ab")
        if self._file.tell() != keep:
            self._file.truncate(keep)

    def claim_dataset(self, name: str, fingerprint: dict[str, Any]) -> None:
        """Note a data set's properties; refuse another one, unless no row of it succeeded."""
        fingerprint = plain(fingerprint)
        known = self._datasets.get(name)
        if known is None or (
            known != fingerprint and self._drop_failures(lambda r: r.dataset == name)
        ):
            self._datasets[name] = fingerprint
            self._write_settings()
        elif self._datasets[name] != fingerprint:
            raise RecordsError(
                f"{self.path} holds results of another data set called {name!r} "
                f"({self._datasets[name]}; now {fingerprint}). Choose another folder."
            )

    def claim_preset(
        self, name: str, settings: dict[str, Any], mine: Callable[[Record], bool]
    ) -> None:
        """Note settings; refuse others, unless no row succeeded that `mine` says to be of them."""
        wanted = plain(settings)
        found = self._presets.get(name)
        if found is None or (found != wanted and self._drop_failures(mine)):
            self._presets[name] = wanted
            self._write_settings()
        elif found != wanted:
            names = [k for k in {**found, **wanted} if found.get(k) != wanted.get(k)]
            changes = "; ".join(f"{k}={found.get(k)!r}, now {wanted.get(k)!r}" for k in names)
            raise RecordsError(
                f"{self.path} holds results of {name} with other settings ({changes}). Results of "
                "both must not be mixed: choose another folder, or run with the settings of the "
                "folder."
            )

    def finished(self) -> set[Key]:
        """Keys of the rows that need not be run again; failed ones are tried again."""
        return {r.key for r in self.records if r.status == "ok"}

    def append(self, records: Iterable[Record]) -> None:
        """Add rows, on disk when this returns; the whole goes after its halves."""
        records = list(records)
        self._file.write("".join(r.to_json() + "\n" for r in records).encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        new = {r.key for r in records}
        self.records = [r for r in self.records if r.key not in new] + records


def lock_folder(path: Path) -> BinaryIO:
    """Make a folder this process' alone to write to, until what is returned is closed."""
    path.mkdir(parents=True, exist_ok=True)
    lock = os.fdopen(open_lock(path / LOCK_FILE), "rb+")
    try:
        import fcntl
    except ImportError:  # Windows: no lock, one writer is the user's care
        return lock
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RecordsError(
            f"another process is writing to {path}. Wait for it, or choose another folder."
        ) from error
    return lock
