"""What the comparison measured, by encoder, probe and context."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from nearwise_lab.comparisons import (
    PairedDifference,
    crossed_difference,
    with_score_interval,
)
from nearwise_lab.experiments.representations.arms import ENCODERS

PROBES = ("knn", "attention", "linear", "transformer")
MAIN, POOLING, PROTOCOL = "main", "pooling", "protocol"
_CHANCE = 0.05  # p-value of the test that an accuracy is above chance
ProbeRecord = Mapping[str, Any]


class Cell(NamedTuple):
    """One place of the study: which encoder, read by which probe, from which context."""

    encoder: str
    probe: str
    context: str


@dataclass(frozen=True)
class Comparison:
    """Records of every seed and draw, with the right and wrong test rows of each.

    Attributes
    ----------
    records : sequence of dict
        Each with encoder, probe, pool, context, draw, seed, part ("main", "pooling" or
        "protocol"), accuracy and the other measures.
    right : callable (record) -> bool ndarray of shape (n_test,)
        Which test rows a record answered rightly, in the order of the test part.
    geometry, fields : sequence of dict
        What was measured of features, and of trained fields: errors a context, history.
    maps : sequence of dict
        Each with encoder, context, seed, way ("tsne" or "pca"), points (n, 2), labels (n,) and
        trustworthiness.
    pictures : dict
        Reconstructed test images: originals, a context each its seen pixels and what every field
        made of them; empty where there are none.
    facts : dict
        Data set, sizes, settings, hardware, versions, command, times.
    """

    records: Sequence[ProbeRecord]
    right: Callable[[ProbeRecord], NDArray[np.bool_]]
    geometry: Sequence[Mapping[str, Any]] = ()
    fields: Sequence[Mapping[str, Any]] = ()
    maps: Sequence[Mapping[str, Any]] = ()
    pictures: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def encoders(self) -> list[str]:
        """Encoders of the main part, in the order of the study."""
        return _ordered((r["encoder"] for r in self.part(MAIN)), ENCODERS)

    @property
    def probes(self) -> list[str]:
        """Probes of the main part."""
        return _ordered((r["probe"] for r in self.part(MAIN)), PROBES)

    @property
    def contexts(self) -> list[str]:
        """Contexts of the main part, the full one first."""
        return _ordered((r["context"] for r in self.part(MAIN)), ("full",))

    @property
    def sparse_contexts(self) -> list[str]:
        """Contexts of the main part that hide something."""
        return [c for c in self.contexts if c != "full"]

    @property
    def seeds(self) -> list[int]:
        """Seeds with at least one record."""
        return sorted({int(r["seed"]) for r in self.records})

    def part(self, part: str) -> list[ProbeRecord]:
        """Give the records of one part of the study."""
        return [r for r in self.records if r["part"] == part]

    def at(self, cell: Cell, part: str = MAIN, pool: str | None = None) -> list[ProbeRecord]:
        """Give the records of one place, all seeds and draws."""
        wanted = {"encoder": cell.encoder, "probe": cell.probe, "context": cell.context}
        if pool is not None:
            wanted["pool"] = pool
        return [r for r in self.part(part) if all(r[k] == v for k, v in wanted.items())]

    def values(
        self, cell: Cell, measure: str = "accuracy", part: str = MAIN, pool: str | None = None
    ) -> dict[int, float]:
        """Mean over draws of a measure, by seed; empty where nothing was measured."""
        found: dict[int, list[float]] = {}
        for r in self.at(cell, part, pool):
            if r.get(measure) is not None:
                found.setdefault(int(r["seed"]), []).append(float(r[measure]))
        return {seed: float(np.mean(v)) for seed, v in sorted(found.items())}

    def runs(
        self, cell: Cell, part: str = MAIN, pool: str | None = None
    ) -> dict[tuple[int, int], NDArray[np.float64]]:
        """Which test rows were right (1.0) or wrong (0.0), by seed and draw."""
        return {
            (int(r["seed"]), int(r["draw"])): self.right(r).astype(np.float64)
            for r in self.at(cell, part, pool)
        }

    def difference(self, first: Cell, second: Cell, part: str = MAIN) -> PairedDifference | None:
        """Accuracy of the first minus the second; None where no seed has both."""
        return self.contrast([(1.0, first), (-1.0, second)], part)

    def contrast(
        self, terms: Sequence[tuple[float, Cell]], part: str = MAIN
    ) -> PairedDifference | None:
        """Sum weighted accuracies of several places over the same rows, seeds and draws.

        Parameters
        ----------
        terms : sequence of (weight, Cell)
            Weights sum to 0.
        part : str, default="main"

        Returns
        -------
        difference : PairedDifference or None
            With the interval of `crossed_difference`, over seeds and test rows; draws that all
            places have are averaged first. Where few rows differ the interval is at least the
            score interval. None where no seed and draw has all places.
        """
        runs = [(weight, self.runs(cell, part)) for weight, cell in terms]
        common = set.intersection(*(set(found) for _, found in runs))
        if not common:
            return None
        seeds: dict[int, list[NDArray[np.float64]]] = {}
        for run in sorted(common):
            row = sum((w * found[run] for w, found in runs), start=np.zeros(1))
            seeds.setdefault(run[0], []).append(row)
        rows = np.stack([np.mean(of_seed, axis=0) for of_seed in seeds.values()])
        most = sum(abs(weight) for weight, _ in terms) / 2
        return with_score_interval(crossed_difference(rows), rows.mean(axis=0), most)

    def at_chance(self, cell: Cell) -> bool:
        """Whether the accuracy of a place is not above that of guessing one of the classes."""
        records = [r for r in self.at(cell) if r.get("n_classes")]
        if not records:
            return False
        n, right = int(records[0]["n"]), float(np.mean([r["accuracy"] for r in records]))
        chance = 1 / int(records[0]["n_classes"])
        return bool(binomtest(round(right * n), n, chance, alternative="greater").pvalue > _CHANCE)


def _ordered(names: Iterable[str], first: Sequence[str]) -> list[str]:
    """Distinct names, those of `first` in its order, others after as they came."""
    found = list(dict.fromkeys(names))
    return [n for n in first if n in found] + [n for n in found if n not in first]
