"""Records of the suite, by data set, experiment, preset and condition."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearwise_lab.experiments import Record
from nearwise_lab.experiments.places import Place, place_of
from nearwise_lab.report.summary import Results
from nearwise_lab.results.measures import Mean, mean_with_interval

EFFICIENCY = "efficiency"
EXPERIMENT_ORDER = (
    "main", "weights", "k-sweep", "label-noise", "long-tail", "theory", "ablation", EFFICIENCY,
)  # fmt: skip
METHOD_ORDER = (
    "uniform", "distance", "distance-tuned", "distance-learned", "multi-head", "attention",
    "base", "classifier", "attention+tta",
    "attention+k-ensemble", "attention+adaptive-k",
    "attention+noise-model", "attention+noise-model+tta",
    "attention+uniform-prior", "cnn", "cnn+temperature", "mlp",
    "mlp+temperature",
)  # fmt: skip


class Study:
    """All rows of a results folder that belong to an experiment.

    Parameters
    ----------
    records : sequence of Record
        From `read_records`; rows of comparisons are left out.
    folder : Path, optional
        Where predictions, curves, maps and galleries lie.

    Attributes
    ----------
    datasets : list of str
        Those that experiments were run on, without the rows made for efficiency.
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
            rows = sorted(self._parts.get(key, []), key=_method_rank)
            self._results[key] = Results(rows, self.folder)
        return self._results[key]

    def presets_of(self, dataset: str) -> list[str]:
        """Presets with rows on a data set, the study's versions before ours."""
        return sorted({p.preset for d, p in self._parts if d == dataset})

    def experiments_of(self, dataset: str, preset: str) -> list[str]:
        """Experiments with rows, in the order of the suite."""
        found = {p.experiment for d, p in self._parts if d == dataset and p.preset == preset}
        known = [e for e in EXPERIMENT_ORDER if e in found]
        return known + sorted(found - set(known))

    def places(self, dataset: str, experiment: str, preset: str) -> list[Place]:
        """Conditions of an experiment that hold rows, numbers in their order."""
        found = [
            p
            for d, p in self._parts
            if d == dataset and (p.experiment, p.preset) == (experiment, preset)
        ]
        return sorted(found, key=_place_rank)

    def all_places(self) -> list[tuple[str, Place]]:
        """Every data set and condition with rows, in the order of the report."""
        return sorted(self._parts, key=_order)

    def main(self, dataset: str, preset: str) -> Results:
        """Rows of the main experiment."""
        return self.part(dataset, Place("main", preset))

    def failures(self, dataset: str, preset: str | None = None) -> list[Record]:
        """Failed rows."""
        return [
            r
            for r in self.records
            if r.dataset == dataset and r.status == "failed" and preset in (None, r.preset)
        ]

    def details(self, dataset: str, place: Place, method: str, key: str) -> dict[int, Any]:
        """Look a key up in the rows' `details`, by seed; missing ones are left out."""
        rows = self._parts.get((dataset, place), [])
        return {
            r.seed: r.details[key]
            for r in sorted(rows, key=lambda r: r.seed)
            if r.method == method and r.status == "ok" and r.details.get(key) is not None
        }

    def detail(self, dataset: str, place: Place, method: str, key: str) -> Mean | None:
        """Mean over seeds of a number in `details`; None where it was not measured."""
        values = list(self.details(dataset, place, method, key).values())
        return mean_with_interval(values) if values else None

    def heading(self, dataset: str, results: Results, *words: str) -> str:
        """Title of a figure: data set, what, sizes and seeds."""
        size = next((r for r in results.records if r.n_test), None)
        sizes = "" if size is None else f" (n = {size.n_train:,} train, {size.n_test:,} test)"
        what = ", ".join([dataset, *(w for w in words if w)])
        return f"{what}{sizes}, {seed_words(results.seeds)}"


def seed_words(seeds: Sequence[int]) -> str:
    """Seeds in words: "seed 0", "seeds 0-4", "seeds 0, 2"."""
    seeds = sorted(seeds)
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]}-{seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


def _method_rank(record: Record) -> tuple[int, str, str, int]:
    known = METHOD_ORDER.index(record.method) if record.method in METHOD_ORDER else 99
    return (known, record.part_of or "", record.method, record.seed)


def _order(key: tuple[str, Place]) -> tuple[Any, ...]:
    dataset, place = key
    known = EXPERIMENT_ORDER.index(place.experiment) if place.experiment in EXPERIMENT_ORDER else 99
    return (dataset, place.preset, known, place.experiment, *_place_rank(place))


def _place_rank(place: Place) -> tuple[Any, ...]:
    number = place.number
    if place.experiment == "label-noise":
        return (place.condition, -1.0 if not place.noise else 0.0, place.noise_kind, place.noise)
    if place.condition == "full":  # what an ablation is compared with
        return ("", 0.0, "", 0.0)
    return (place.condition.split("=")[0], number or 0.0, place.condition, place.noise)
