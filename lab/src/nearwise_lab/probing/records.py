"""Records of probes: one dict a measurement, kept a line each as they finish."""

import base64
import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from nearwise.metrics import aurc, bootstrap_interval, ece, evaluate_probabilities

Record = dict[str, Any]
RowMeasure = Literal["accuracy", "nll"]
RECORDS = "records.jsonl"
_TOP = 5
_RESAMPLES = 1000
_CURVE_RESAMPLES = 200
_CLIP = 1e-7
MEASURES = ("accuracy", "top5", "nll", "brier", "ece", "aurc")


def measure(codes: NDArray[np.int64], proba: NDArray[np.float64], seed: int = 0) -> Record:
    """Measure probabilities, with 95 % bootstrap intervals over rows.

    Parameters
    ----------
    codes : int64 ndarray of shape (n,)
        True class positions.
    proba : ndarray of shape (n, n_classes)
    seed : int, default=0
        Of the resamples.

    Returns
    -------
    record : dict
        accuracy, top5 (None with five classes or fewer), macro_f1, nll, brier, ece,
        equal_mass_ece, aurc; intervals (dict of measure -> [low, high]); correct and row_nll, hit
        and NLL of each row as text that `rows_of` reads.
    """
    found = evaluate_probabilities(codes, proba)
    per_row = row_losses(codes, proba)
    drawn = np.random.default_rng(seed).integers(0, len(codes), (_RESAMPLES, len(codes)))
    intervals = {
        name: np.quantile(values[drawn].mean(axis=1), [0.025, 0.975]).tolist()
        for name, values in per_row.items()
    }
    for name, metric in (("ece", ece), ("aurc", aurc)):
        _, low, high = bootstrap_interval(
            metric, codes, proba, n_resamples=_CURVE_RESAMPLES, random_state=seed
        )
        intervals[name] = [low, high]
    kept = ("accuracy", "macro_f1", "nll", "brier", "ece", "equal_mass_ece", "aurc")
    record: Record = {name: found[name] for name in kept}
    record["top5"] = float(per_row["top5"].mean()) if "top5" in per_row else None
    kept_rows = {"correct": packed(per_row["accuracy"] > 0), "row_nll": packed_nll(per_row["nll"])}
    return record | {"intervals": intervals} | kept_rows


def row_losses(
    codes: NDArray[np.int64], proba: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Accuracy, NLL, Brier score and, above five classes, top-5 hits of each row, (n,)."""
    n, n_classes = proba.shape
    of_truth = proba[np.arange(n), codes]
    rows = {
        "accuracy": (proba.argmax(axis=1) == codes).astype(np.float64),
        "nll": -np.log(np.maximum(of_truth, _CLIP)),
        "brier": (proba**2).sum(axis=1) - 2 * of_truth + 1,
    }
    if n_classes > _TOP:
        # a tie counts for the lowest class position, as in accuracy
        order = np.argsort(-proba, axis=1, kind="stable")[:, :_TOP]
        rows["top5"] = (order == codes[:, None]).any(axis=1).astype(np.float64)
    return rows


def packed(flags: npt.NDArray[np.bool_]) -> str:
    """Text of 0s and 1s, eight a byte, in hexadecimal; `unpacked` reads it."""
    return np.packbits(flags).tobytes().hex()


def unpacked(text: str, n: int) -> npt.NDArray[np.bool_]:
    """Read the `n` flags that `packed` wrote."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=n)
    return bits.astype(bool)


def packed_nll(nll: NDArray[np.float64]) -> str:
    """Text of the NLL of rows as float16, good to 1 in 2,000 a row; `unpacked_nll` reads it."""
    return base64.b64encode(nll.astype("<f2").tobytes()).decode()


def unpacked_nll(text: str) -> NDArray[np.float64]:
    """Read what `packed_nll` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype="<f2").astype(np.float64)


def rows_of(record: Mapping[str, Any], measure: RowMeasure) -> NDArray[np.float64]:
    """Accuracy or NLL of each test row of a record, (n,)."""
    if measure == "accuracy":
        return unpacked(record["correct"], record["n"]).astype(np.float64)
    return unpacked_nll(record["row_nll"])


def hashed(text: str, length: int = 16) -> str:
    """First hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:length]


Sources = Mapping[str, Any]
"""Hashes of encoders and of probes by name, and of rows with settings."""


def source_of(record: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Hashes of what a record is of; empty texts where the run has no such encoder or probe."""
    named = {part: sources[part].get(record[part], "") for part in ("encoder", "probe")}
    return {**named, "rows": sources["rows"]}


def _what_differs(record: Record, sources: Sources) -> str | None:
    """Return in what a record cannot be distinguished from those of a run."""
    own, other = source_of(record, sources), record["source"]
    if other["rows"] != own["rows"]:
        return "other rows (another data set, split or limit) or settings (such as views)"
    for part in ("encoder", "probe"):
        if own[part] and other[part] != own[part]:
            return f"another {part} called {record[part]!r}"
    return None


class RecordFile:
    """Records in a folder, a line each; what is there is not measured again.

    Parameters
    ----------
    folder : path or None
        None keeps nothing.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.path = None if folder is None else Path(folder) / RECORDS
        self.found: dict[str, Record] = {}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.found = {record["key"]: record for record in read_records(self.path.parent)}

    def refuse_others(self, sources: Sources, keys: Collection[str]) -> None:
        """Refuse records that could not be distinguished from those of a run.

        Parameters
        ----------
        sources : mapping
            Of the run.
        keys : collection of str
            Of the run's own records.

        Raises
        ------
        ValueError
            If there are records of other rows or settings, or of another encoder or probe of the
            same name.
        """
        for key, record in self.found.items():
            what = None if key in keys else _what_differs(record, sources)
            if what is not None:
                raise ValueError(
                    f"{self.path} holds records of {what}. These would be mixed up with them: "
                    "choose another folder."
                )

    def add(self, record: Mapping[str, Any]) -> None:
        """Append a record, whole or not at all."""
        text = json.dumps(record)
        self.found[record["key"]] = json.loads(text)  # the same whether read again or not
        if self.path is None:
            return
        # one unbuffered write, so that lines of processes side by side do not mix
        with self.path.open("ab+", buffering=0) as file:
            line = (text + "\n").encode()
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a killed run was in the middle of a line
                    line = b"\n" + line
            if file.write(line) != len(line):
                raise OSError(f"{self.path} took a part of a record. Is the disk full?")
            os.fsync(file.fileno())


def read_records(folder: str | os.PathLike[str]) -> list[Record]:
    """Read the records of a folder; a line that a killed run left unfinished is passed over."""
    path = Path(folder) / RECORDS
    records: list[Record] = []
    if not path.exists():
        return records
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and "key" in record:
            records.append(record)
    return records
