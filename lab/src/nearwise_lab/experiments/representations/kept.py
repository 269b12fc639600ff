"""The comparison on disk: one JSON file and the arrays beside it, enough for the report."""

import io
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from nearwise.safe_files import write_aside
from nearwise_lab.experiments.artifacts import save_json
from nearwise_lab.experiments.representations.records import Comparison
from nearwise_lab.probing.measures import unpacked

FILE, ARRAYS = "comparison.json", "comparison.npz"


def save_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> None:
    """Keep a comparison of records that `evaluate` made."""
    arrays: dict[str, NDArray[Any]] = {}
    maps = []
    for i, drawn in enumerate(comparison.maps):
        arrays |= {f"map{i}": drawn["points"], f"map{i}_labels": drawn["labels"]}
        maps.append({k: v for k, v in drawn.items() if k not in ("points", "labels")})
    pictures: dict[str, Any] = {}
    if comparison.pictures:
        arrays["originals"] = comparison.pictures["originals"]
        pictures = {"seed": comparison.pictures["seed"], "contexts": {}}
        for context, made in comparison.pictures["contexts"].items():
            if made.get("seen") is not None:
                arrays[f"seen {context}"] = made["seen"]
            arrays |= {f"field {context} {n}": images for n, images in made["fields"].items()}
            pictures["contexts"][context] = list(made["fields"])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_aside(Path(folder) / ARRAYS, buffer.getvalue())
    content = {
        "records": list(comparison.records),
        "geometry": list(comparison.geometry),
        "fields": list(comparison.fields),
        "maps": maps,
        "pictures": pictures,
        "facts": dict(comparison.facts),
    }
    save_json(Path(folder) / FILE, content)


def load_comparison(folder: str | os.PathLike[str]) -> Comparison:
    """Read what `save_comparison` kept.

    Raises
    ------
    ValueError
        If there is none, or it is damaged.
    """
    path = Path(folder) / FILE
    if not path.exists():
        raise ValueError(
            f"{Path(folder)} holds no comparison: {FILE} is missing. Let 'nearwise field compare' "
            "finish."
        )
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        with np.load(path.with_name(ARRAYS), allow_pickle=False) as stored:
            arrays = dict(stored)
        return Comparison(
            saved["records"],
            right_rows,
            saved["geometry"],
            saved["fields"],
            _maps(saved["maps"], arrays),
            _pictures(saved["pictures"], arrays),
            saved["facts"],
        )
    except (ValueError, KeyError, TypeError, OSError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(f"The comparison in {Path(folder)} is damaged: {error}.") from error


def right_rows(record: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which test rows a record of `evaluate` answered rightly."""
    return unpacked(record["correct"], record["n"])


def _maps(saved: list[dict[str, Any]], arrays: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**drawn, "points": arrays[f"map{i}"], "labels": arrays[f"map{i}_labels"]}
        for i, drawn in enumerate(saved)
    ]


def _pictures(saved: dict[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    if not saved:
        return {}
    contexts = {
        context: {
            "seen": arrays.get(f"seen {context}"),
            "fields": {n: arrays[f"field {context} {n}"] for n in names},
        }
        for context, names in saved["contexts"].items()
    }
    return {"seed": saved["seed"], "originals": arrays["originals"], "contexts": contexts}
