"""Records of the suite, by data set, experiment, preset and condition."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearwise_lab.experiments import Record
from nearwise_lab.experiments.places import WEIGHTS, Place, place_of
from nearwise_lab.report.summary import Results

EFFICIENCY = "efficiency"
EXPERIMENT_ORDER = (
    "main", *WEIGHTS, "k-sweep", "label-noise", "long-tail", "theory", "ablation", EFFICIENCY,
)  # fmt: skip


class Study:
    """All rows of a results folder that belong to an experiment.

    `folder` is where predictions, curves, maps and galleries lie; `datasets` leaves out the rows
    made for efficiency.
    """

    def __init__(self, records: Sequence[Record], folder: Path | None = None) -> None:
        self.records = [r for r in records if r.experiment]
        self.folder = folder
        rows = [r for r in self.records if r.experiment != EFFICIENCY]
        self.datasets = sorted({r.dataset for r in rows})
        self.presets = sorted({r.preset for r in rows if r.preset})
        self.seeds = sorted({r.seed for r in self.records})
        self._parts: dict[tuple[str, Place], list[Record]] = {}
        for record in self.records:
            self._parts.setdefault((record.dataset, place_of(record)), []).append(record)
        self._results: dict[tuple[str, Place], Results] = {}

    def part(self, dataset: str, place: Place) -> Results:
        """Rows of one data set and condition; empty results where there are none."""
        key = (dataset, place)
        if key not in self._results:
            self._results[key] = Results(self._parts.get(key, []), self.folder)
        return self._results[key]

    def presets_of(self, dataset: str) -> list[str]:
        """Presets with rows on a data set, the study's versions before ours."""
        return sorted({p.preset for d, p in self._parts if d == dataset})

    def experiments_of(self, dataset: str, preset: str) -> list[str]:
        """Experiments with rows, in the order of the suite."""
        found = {p.experiment for d, p in self._parts if d == dataset and p.preset == preset}
        return [e for e in EXPERIMENT_ORDER if e in found]

    def places(self, dataset: str, experiment: str, preset: str) -> list[Place]:
        """Conditions of an experiment that hold rows, numbers in their order."""
        found = [p for d, p in self._parts if (d, p.experiment, p.preset)
                 == (dataset, experiment, preset)]  # fmt: skip
        return sorted(found, key=_place_rank)

    def all_places(self) -> list[tuple[str, Place]]:
        """Every data set and condition with rows, in the order of the report."""
        return sorted(self._parts, key=_order)

    def main(self, dataset: str, preset: str) -> Results:
        """Rows of the main experiment."""
        return self.part(dataset, Place("main", preset))

    def details(self, dataset: str, place: Place, method: str, key: str) -> dict[int, Any]:
        """Look a key up in the rows' `details`, by seed; missing ones are left out."""
        rows = self._parts.get((dataset, place), [])
        return {
            r.seed: r.details[key]
            for r in sorted(rows, key=lambda r: r.seed)
            if r.method == method and r.status == "ok" and r.details.get(key) is not None
        }


def _order(key: tuple[str, Place]) -> tuple[Any, ...]:
    dataset, place = key
    rank = EXPERIMENT_ORDER.index(place.experiment)
    return (dataset, place.preset, rank, *_place_rank(place))


def _place_rank(place: Place) -> tuple[Any, ...]:
    if place.experiment == "label-noise":
        return (place.condition, -1.0 if not place.noise else 0.0, place.noise_kind, place.noise)
    if place.condition == "full":  # what an ablation is compared with
        return ("", 0.0, "", 0.0)
    return (place.condition.split("=")[0], place.number or 0.0, place.condition, place.noise)
