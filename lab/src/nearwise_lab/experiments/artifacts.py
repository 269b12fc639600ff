"""Files saved beside the records, so that figures can be drawn later without refitting."""

import io
import json
import re
import zlib
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from nearwise.safe_files import plain, write_aside
from nearwise_lab.records import Record
from nearwise_lab.results.measures import Predictions

FLOAT32_CELLS = 1_000_000


def record_path(folder: str | Path, record: Record, what: str, suffix: str) -> Path:
    """Path of an artifact of a record: folder/what/dataset/method-seedN.suffix.

    Rows of an experiment have a folder for each preset, experiment and condition.
    """
    where = Path(folder)
    if record.experiment:
        noise = f"{record.noise_kind}-{record.noise:g}" if record.noise else ""
        parts = (record.preset, record.experiment, record.condition, noise)
        where = where.joinpath("artifacts", *(_safe(part) for part in parts if part))
    name = f"{_safe(record.method)}-seed{record.seed}.{suffix}"
    return where / what / _safe(record.dataset) / name


def keep_json(folder: str | Path, record: Record, what: str, value: Any) -> None:
    """Save JSON beside a record, such as its training curves."""
    save_json(record_path(folder, record, what, "json"), value)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".") or "_"


def save_predictions(path: Path, predictions: Predictions) -> None:
    """Write predictions as a compressed npz, aside and renamed.

    Probabilities are stored as float32, or float16 above a million cells, and renormalised when
    they are read.
    """
    small = predictions.proba.size <= FLOAT32_CELLS
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        y=predictions.y.astype(np.int32),
        proba=predictions.proba.astype(np.float32 if small else np.float16),
        test_index=predictions.test_index.astype(np.int64),
        classes=np.array(predictions.classes, dtype=np.str_),
    )
    write_aside(path, buffer.getvalue())


def load_predictions(path: Path) -> Predictions | None:
    """Read predictions; None if they were not saved."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            proba = stored["proba"].astype(np.float64)
            return Predictions(
                stored["y"].astype(np.int64),
                proba / proba.sum(axis=1, keepdims=True),
                stored["test_index"],
                [str(c) for c in stored["classes"]],
            )
    except (ValueError, KeyError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(_damaged(path, error)) from error


def save_json(path: Path, value: Any) -> None:
    """Write JSON, aside and renamed; numbers that are not finite become null."""
    write_aside(path, json.dumps(plain(value), ensure_ascii=False, allow_nan=False).encode())


def load_json(path: Path) -> Any:
    """Read JSON; None if it was not saved."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(_damaged(path, error)) from error


def _damaged(path: Path, error: Exception) -> str:
    return (
        f"{path} is damaged: {error}. Put back a copy, or delete it: only what it held is missing "
        "then."
    )
