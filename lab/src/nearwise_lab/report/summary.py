"""Records to numbers: means with intervals over seeds, paired differences, mean ranks."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearwise_lab.comparisons import PairedDifference, paired_difference, rank_methods
from nearwise_lab.experiments import Record
from nearwise_lab.experiments.artifacts import load_predictions, record_path
from nearwise_lab.results.measures import (
    BARS,
    LEVEL,
    Mean,
    Measure,
    Predictions,
    difference_over_rows,
    difference_over_seeds_and_rows,
    mean_with_interval,
)


class Results:
    """Records of one noise setting, from `read_records`, by data set, method and measure.

    `datasets` and `methods` (without the halves of attention) are in order of first appearance.
    `folder` is where predictions were kept, by which a single seed is compared over its test rows;
    `kept` holds predictions by method that lie in no folder.
    """

    def __init__(
        self,
        records: Sequence[Record],
        folder: Path | None = None,
        kept: Mapping[str, Predictions] | None = None,
    ) -> None:
        self.records, self.folder, self.kept = list(records), folder, kept or {}
        self._found: dict[tuple[str, ...], PairedDifference | None] = {}
        self._rows = {(r.dataset, r.method, r.seed): r for r in records}
        self.datasets = list(dict.fromkeys(r.dataset for r in records))
        self.methods = list(dict.fromkeys(r.method for r in records if r.part_of is None))
        self.seeds = sorted({r.seed for r in records})

    def values(self, dataset: str, method: str, key: str) -> dict[int, float]:
        """Values by seed; failed and missing rows are left out."""
        found = {}
        for seed in self.seeds:
            row = self._rows.get((dataset, method, seed))
            value = None if row is None else looked_up(row, key)
            if value is not None:
                found[seed] = float(value)
        return found

    def mean(self, dataset: str, method: str, key: str) -> Mean | None:
        """Mean over the seeds there are; None without any."""
        values = list(self.values(dataset, method, key).values())
        return mean_with_interval(values) if values else None

    def means(self, dataset: str) -> Callable[[str, Measure], Mean | None]:
        """Return `mean` as a function of method and measure."""
        return lambda method, measure: self.mean(dataset, method, measure.key)

    def paired(
        self, dataset: str, method: str, reference: str, key: str
    ) -> PairedDifference | None:
        """Return `method` minus `reference` on the seeds that both have; None without any.

        Paired by seed with a t-interval; a single seed is paired by test row where the
        predictions were kept.
        """
        question = (dataset, method, reference, key)
        if question not in self._found:
            one, other = (self, method), (self, reference)
            self._found[question] = paired_across(dataset, one, other, key)
        return self._found[question]

    def paired_over_rows(
        self, dataset: str, method: str, reference: str, key: str
    ) -> PairedDifference | None:
        """Return `method` minus `reference` with an interval over seeds and test rows together.

        Without the predictions of every seed that both have, as in `paired`.
        """
        question = (dataset, method, reference, key, "over rows")
        if question not in self._found:
            seeds = self.values(dataset, reference, key)
            kept = [
                [self.predictions(dataset, m, seed) for m in (method, reference)]
                for seed in self.values(dataset, method, key)
                if seed in seeds
            ]
            pairs = [(a, b) for a, b in kept if a is not None and b is not None]
            whole = difference_over_seeds_and_rows(key, pairs) if len(pairs) == len(kept) else None
            self._found[question] = whole or self.paired(dataset, method, reference, key)
        return self._found[question]

    def predictions(self, dataset: str, method: str, seed: int) -> Predictions | None:
        """Load the kept predictions of a row; None where there are none."""
        if method in self.kept:
            return self.kept[method]
        path = self.artifact("predictions", dataset, method, seed, "npz")
        return None if path is None else load_predictions(path)

    def artifact(self, what: str, dataset: str, method: str, seed: int, suffix: str) -> Path | None:
        """Path of an artifact of a row; None without a folder or the row."""
        row = self._rows.get((dataset, method, seed))
        if self.folder is None or row is None:
            return None
        return record_path(self.folder, row, what, suffix)

    def heading(self, dataset: str, words: str, seeds: Sequence[int] = ()) -> str:
        """Title of a figure, with sizes and seeds."""
        size = next((r for r in self.records if r.dataset == dataset and r.n_test), None)
        sizes = "" if size is None else f" (n = {size.n_train:,} train, {size.n_test:,} test)"
        return f"{words}{sizes}" + ("" if self.kept else f", {seed_words(seeds or self.seeds)}")

    def sizes(self, dataset: str) -> Record:
        """Return the record with the largest test part of the data set, for its sizes."""
        return max((r for r in self.records if r.dataset == dataset), key=lambda r: r.n_test)

    def failures(self, dataset: str) -> list[Record]:
        """Failed rows of a data set."""
        return [r for r in self.records if r.dataset == dataset and r.status == "failed"]

    def ranked_methods(self, dataset: str, key: str = "nll") -> list[str]:
        """Methods with a value, best mean first; halves of attention left out."""
        means = {m: self.mean(dataset, m, key) for m in self.methods}
        known = {m: mean.mean for m, mean in means.items() if mean is not None}
        sign = -1.0 if key in ("accuracy", "macro_f1") else 1.0
        return sorted(known, key=lambda m: sign * known[m])

    def bars(self, dataset: str) -> dict[str, dict[str, Mean | None]]:
        """Means of `BARS` of every method with an NLL, the best one first."""
        return {
            method: {key: self.mean(dataset, method, key) for key in BARS}
            for method in self.ranked_methods(dataset)
        }

    def halves(self, method: str) -> list[str]:
        """Names of the halves of an attention method."""
        found = (r.method for r in self.records if r.part_of == method)
        return list(dict.fromkeys(found))

    @property
    def every_method(self) -> list[str]:
        """All methods, the halves of each after it."""
        return [name for m in self.methods for name in (m, *self.halves(m))]

    def reference(self) -> str:
        """Name the method others are compared with: attention, else the best mean rank."""
        for name in ("attention", "attention-no-base"):
            if name in self.methods:
                return name
        ranks = self.mean_ranks("nll")
        return next(iter(ranks)) if ranks else self.methods[0]

    def mean_ranks(self, key: str) -> dict[str, float]:
        """Mean rank over data sets of the mean over seeds, for methods present on all of them."""
        means: dict[str, dict[str, float]] = {
            d: {m: mean.mean for m in self.methods if (mean := self.mean(d, m, key)) is not None}
            for d in self.datasets
        }
        common = set(self.methods).intersection(*(set(row) for row in means.values()))
        if not common or not means:
            return {}
        table = {d: {m: row[m] for m in row if m in common} for d, row in means.items()}
        return rank_methods(table, higher_is_better=key in ("accuracy", "macro_f1"))


def looked_up(row: Record, key: str) -> Any:
    """Value of a field, or of a path into the details; None where there is none."""
    value: Any = {**row.details, **vars(row)}  # fields come first: "accuracy" is the metric
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def paired_across(
    dataset: str, one: tuple[Results, str], other: tuple[Results, str], key: str
) -> PairedDifference | None:
    """Measure of `one` minus that of `other`, each some results and a method in them.

    Paired by seed with a t-interval; a single seed is paired by test row where the predictions of
    the same rows were kept, and has an infinite interval where they were not. None without a
    common seed.
    """
    (results, method), (others, reference) = one, other
    a, b = results.values(dataset, method, key), others.values(dataset, reference, key)
    both = [seed for seed in a if seed in b]
    if not both:
        return None
    if len(both) == 1:
        mine = results.predictions(dataset, method, both[0])
        theirs = others.predictions(dataset, reference, both[0])
        if mine is not None and theirs is not None:
            over_rows = difference_over_rows(key, mine, theirs)
            if over_rows is not None:
                return over_rows
    return paired_difference([a[s] for s in both], [b[s] for s in both], level=LEVEL)


def seed_words(seeds: Sequence[int]) -> str:
    """Seeds in words: "seed 0", "seeds 0-4", "seeds 0, 2"."""
    seeds = sorted(seeds)
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]}-{seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"
