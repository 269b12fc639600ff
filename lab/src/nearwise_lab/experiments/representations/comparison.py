"""Results of the comparison by encoder, probe and context, and their files on disk."""

import io
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from nearwise.safe_files import write_aside
from nearwise_lab.comparisons import PairedDifference, crossed_difference, with_score_interval
from nearwise_lab.experiments.artifacts import save_json
from nearwise_lab.experiments.representations.settings import ARMS
from nearwise_lab.probing.measures import rows_of

PROBES = ("knn", "attention", "linear", "transformer")
MAIN, POOLING, PROTOCOL = "main", "pooling", "protocol"
FILE, ARRAYS = "comparison.json", "comparison.npz"
_CHANCE = 0.05  # p-value of the test that an accuracy is above chance
_DAMAGE = (ValueError, KeyError, TypeError, OSError, EOFError, BadZipFile, zlib.error)
ProbeRecord = Mapping[str, Any]


class Cell(NamedTuple):
    """One cell of the study's grid: encoder, probe and context."""

    encoder: str
    probe: str
    context: str


@dataclass(frozen=True)
class Comparison:
    """Records of every seed and draw, with the right and wrong test rows of each.

    Attributes
    ----------
    records : sequence of dict
        As `evaluate` returns them, with part ("main", "pooling" or "protocol").
    geometry, fields : sequence of dict
        What was measured of features, and of trained fields: errors per context, history.
    maps : sequence of dict
        Each with encoder, context, seed, way and trustworthiness; its points (n, 2) and labels
        (n,) are ``arrays["map0"]`` and ``arrays["map0_labels"]``, by its number.
    pictures : dict
        Seed, and the names of the fields per context: test images as ``arrays["originals"]``,
        what was shown of them as ``arrays["seen 0.2"]``, reconstructions as
        ``arrays["field 0.2 sparse"]``; empty where there are none.
    facts : dict
        Data set, sizes, settings, hardware, versions, command, times.
    arrays : dict of str to ndarray
    """

    records: Sequence[ProbeRecord]
    geometry: Sequence[Mapping[str, Any]] = ()
    fields: Sequence[Mapping[str, Any]] = ()
    maps: Sequence[Mapping[str, Any]] = ()
    pictures: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def encoders(self) -> list[str]:
        """Encoders of the main part, in the order of the study."""
        return _ordered((r["encoder"] for r in self.part(MAIN)), [arm.name for arm in ARMS])

    @property
    def probes(self) -> list[str]:
        """Probes of the main part."""
        return _ordered((r["probe"] for r in self.part(MAIN)), PROBES)

    @property
    def contexts(self) -> list[str]:
        """Contexts of the main part, the full one first."""
        return _ordered((r["context"] for r in self.part(MAIN)), ("full",))

    @property
    def seeds(self) -> list[int]:
        """Seeds with at least one record."""
        return sorted({int(r["seed"]) for r in self.records})

    def part(self, part: str) -> list[ProbeRecord]:
        """Return the records of one part of the study."""
        return [r for r in self.records if r["part"] == part]

    def at(self, cell: Cell, part: str = MAIN) -> list[ProbeRecord]:
        """Return the records of one cell, all seeds and draws."""
        return [r for r in self.part(part) if tuple(r[k] for k in Cell._fields) == cell]

    def values(
        self, cell: Cell, measure: str = "accuracy", part: str = MAIN
    ) -> dict[int, float]:  # fmt: skip
        """Mean over draws of a measure, by seed; empty if nothing was measured."""
        found: dict[int, list[float]] = {}
        for r in self.at(cell, part):
            if r.get(measure) is not None:
                found.setdefault(int(r["seed"]), []).append(float(r[measure]))
        return {seed: float(np.mean(v)) for seed, v in sorted(found.items())}

    def difference(self, first: Cell, second: Cell) -> PairedDifference | None:
        """Accuracy of the first minus the second; None where no seed has both."""
        return self.contrast([(1.0, first), (-1.0, second)])

    def contrast(self, terms: Sequence[tuple[float, Cell]]) -> PairedDifference | None:
        """Sum weighted accuracies of several cells over the same rows, seeds and draws.

        Parameters
        ----------
        terms : sequence of (weight, Cell)
            Weights sum to 0.

        Returns
        -------
        difference : PairedDifference or None
            With the interval of `crossed_difference`, over seeds and test rows; draws that all
            places have are averaged first. Where few rows differ the interval is at least the
            score interval. None where no seed and draw has all places.
        """
        runs = [
            {(int(r["seed"]), int(r["draw"])): weight * rows_of(r, "accuracy") for r in self.at(c)}
            for weight, c in terms
        ]
        common = set.intersection(*map(set, runs))
        if not common:
            return None
        seeds: dict[int, list[NDArray[np.float64]]] = {}
        for run in sorted(common):
            seeds.setdefault(run[0], []).append(np.sum([found[run] for found in runs], axis=0))
        rows = np.stack([np.mean(of_seed, axis=0) for of_seed in seeds.values()])
        most = sum(abs(weight) for weight, _ in terms) / 2
        return with_score_interval(crossed_difference(rows), rows.mean(axis=0), most)

    def at_chance(self, cell: Cell) -> bool:
        """Whether the accuracy of a cell is not above chance, by a binomial test."""
        records = self.at(cell)
        n, right = int(records[0]["n"]), float(np.mean([r["accuracy"] for r in records]))
        chance = 1 / int(records[0]["n_classes"])
        return bool(binomtest(round(right * n), n, chance, alternative="greater").pvalue > _CHANCE)


def _ordered(names: Iterable[str], first: Sequence[str]) -> list[str]:
    """Distinct names: first in the order of `first`, then in order of appearance."""
    found = list(dict.fromkeys(names))
    return [n for n in first if n in found] + [n for n in found if n not in first]


def save_comparison(comparison: Comparison, folder: str | os.PathLike[str]) -> None:
    """Save a comparison: one JSON file and its arrays, enough for the report."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **comparison.arrays)  # type: ignore[arg-type]
    write_aside(Path(folder) / ARRAYS, buffer.getvalue())
    content = {f.name: getattr(comparison, f.name) for f in fields(Comparison)}
    save_json(Path(folder) / FILE, {k: v for k, v in content.items() if k != "arrays"})


def load_comparison(folder: str | os.PathLike[str]) -> Comparison:
    """Load a comparison saved by `save_comparison`.

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
        with np.load(path.with_name(ARRAYS), allow_pickle=False) as stored:
            arrays = dict(stored)
        return Comparison(**json.loads(path.read_text(encoding="utf-8")), arrays=arrays)
    except _DAMAGE as error:
        raise ValueError(f"The comparison in {Path(folder)} is damaged: {error}.") from error
