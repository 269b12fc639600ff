"""Reports of comparisons and of a single model, with parts that other reports use."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.experiments import METHODS, Record
from nearwise_lab.experiments.artifacts import load_json
from nearwise_lab.records import METRICS
from nearwise_lab.report import charts
from nearwise_lab.report.commands import record_facts
from nearwise_lab.report.document import (
    Block,
    Document,
    Fold,
    Section,
    Terms,
    Words,
    difference_table,
    mean_rows,
    mean_table,
)
from nearwise_lab.report.summary import Results, paired_across
from nearwise_lab.results.gallery import make_page_gallery
from nearwise_lab.results.measures import (
    COMPARED,
    COST_MEASURES,
    LEVEL,
    MAIN_MEASURES,
    MEASURES,
    MORE_MEASURES,
    NULL_MASS,
    SHOT_MEASURES,
    Mean,
    Measure,
    Predictions,
    Table,
)

Numbers = list[dict[str, Any]]
Difference = Callable[[Measure], PairedDifference | None]
DIAGRAMS = (
    "uniform", "distance", "distance-tuned", "knn-uniform", "knn-distance", "knn-tuned", "base",
    "attention+tta", "cnn+temperature", "mlp+temperature",
)  # fmt: skip
BOLD = "The best value of a column is bold, whether or not the difference is more than chance."
MEASURED = (
    "NLL is in nats per row, clipped at 1e-7. ECE has 15 equal-width bins of the top probability. "
    "Brier is summed over classes. AURC is the mean error over all coverages. Fit time includes "
    "tuning, and what methods share counts for each; prediction time is wall time per row after a "
    "warm-up; peak memory is the growth of the process during the fit."
)
_SPLITS = (
    "Every method gets the same split: stratified 80/20 by seed, or the official test part where "
    "a data set has one. Whatever a method tunes, it tunes inside the training part; the test "
    "part is read once."
)


def comparison_document(results: Results, title: str | None = None) -> Document:
    """Report of a folder of `compare`: each data set, and the ranks over all of them."""
    reference, first = results.reference(), results.records[0]
    noise = ""
    if first.noise:
        noise = (
            f" {100 * first.noise:.0f} % of the training labels were changed "
            f"({first.noise_kind}); test labels are clean."
        )
    known = [(m, METHODS[m].summary) for m in results.methods if m in METHODS]
    sections = [Section("Over all data sets", [ranks_table(results)])]
    numbers: Numbers = []
    for dataset in results.datasets:
        failed = failure_words(results.failures(dataset))
        blocks: list[Block | None] = [*failed, *dataset_blocks(results, dataset, reference)]
        sections.append(Section(dataset, blocks))
        pairs = [(m, reference) for m in results.every_method if m != reference]
        numbers += mean_numbers(results, dataset)
        numbers += difference_numbers(results.paired, dataset, pairs, COMPARED)
    numbers += [
        {"kind": "mean rank", "method": method, "measure": m.key, "mean": rank}
        for m in COMPARED
        for method, rank in results.mean_ranks(m.key).items()
    ]
    how: list[Block] = [Words(_SPLITS + noise), Terms(known), Words(MEASURED)]
    return Document(
        title or f"Methods compared: {', '.join(results.datasets)}",
        _lead(results, reference),
        [*sections, Section("How this was measured", how)],
        record_facts(results.records),
        reference,
        numbers,
        failed=failed_rows(results.records),
    )


def _lead(results: Results, reference: str) -> str:
    counts = [(len(results.methods), "method"), (len(results.datasets), "data set"),
              (len(results.seeds), "seed")]  # fmt: skip
    methods, sets, seeds = (f"{n} {word}{'s' * (n > 1)}" for n, word in counts)
    first = sum(results.ranked_methods(d)[:1] == [reference] for d in results.datasets)
    where = f"{'' if first else 'not '}the lowest mean NLL"
    if len(results.datasets) > 1:
        where = f"the lowest mean NLL on {first} of {len(results.datasets)}"
    return (
        f"{methods} on {sets}, {seeds}. {reference} has {where}; whether that is more than chance "
        "is shown below."
    )


def dataset_blocks(
    results: Results, dataset: str, reference: str, place: str = "", against: str = ""
) -> list[Block | None]:
    """Scores, differences, halves, diagrams, curves and hard rows of the methods on a data set.

    `reference` stands out, `against` is what others are compared with (default: the reference),
    `place` what the data set is called, such as "digits, v0.5".
    """
    place, order = place or dataset, results.ranked_methods(dataset)
    if not order:
        return []
    size = results.sizes(dataset)
    sizes = f"{size.n_train:,} training rows, {size.n_test:,} test rows, {size.n_classes} classes."

    def means(title: str, measures: Sequence[Measure], words: str = "") -> Block | None:
        caption = f"{words or f'{sizes} {BOLD}'} {over_seeds(results)}."
        names = order if measures[0] in MEASURES else results.every_method
        find = results.means(dataset)
        return mean_table(f"{place}: {title}", caption, "method", names, measures, find)

    against = against or reference
    differences = difference_table(
        f"{place}: difference from {against}",
        f"Method minus {against}, {pairing(results)}.",
        "method",
        {m: paired(results, dataset, m, against) for m in order if m != against},
        COMPARED,
    )
    sized = (r.details.get("shots") for r in results.records if r.dataset == dataset)
    shots: dict[str, Any] = next(filter(None, sized), {})
    groups = ", ".join(f"{n} {name}-shot" for name, n in shots.get("classes", {}).items() if n)
    by_size = f"Classes in groups by {shots.get('rule')}: {groups}."
    wanted = [reference, *(m for m in DIAGRAMS if m in order), *order]
    pooled = pooled_predictions(results, dataset, list(dict.fromkeys(wanted)))
    heading = results.heading(dataset, place)
    blocks: list[Block | None] = [
        means("results", (*MAIN_MEASURES, NULL_MASS)),
        means("more on calibration and selective risk", MORE_MEASURES),
        *score_pictures(results, dataset, reference, heading, place, pooled),
        differences,
        *(halves_table(results, dataset, m, place) for m in order),
        means("accuracy by the size of the class", SHOT_MEASURES, by_size) if shots else None,
    ]
    curves: list[Block | None] = []
    for method in sorted(order, key=lambda m: not m.startswith("attention")):
        for seed, history in kept_files(results, "curves", dataset, method)[:1]:
            words = results.heading(dataset, f"{place}, training of {method}", [seed])
            curves.append(charts.training_picture(history, words, f"{place}-{method}"))
    drawn_curves = [c for c in curves if c is not None]
    blocks += drawn_curves[:2]
    if drawn_curves[2:]:
        blocks.append(Fold("Training of the other methods", drawn_curves[2:]))
    for seed, drawn in kept_files(results, "maps", dataset, reference)[:1]:
        words = results.heading(dataset, f"{place}, memory", [seed])
        blocks.append(charts.map_picture(drawn, words, place))
    if pooled:
        best = reference if reference in pooled else next(iter(pooled))
        words = results.heading(dataset, f"{place}, {best}: confusion")
        blocks.append(charts.confusion_picture(pooled[best], words, place))
    for method in order:
        for seed, stored in kept_files(results, "galleries", dataset, method):
            if stored.get("rows"):
                return [*blocks, make_page_gallery(place, method, seed, stored)]
    return blocks


def score_pictures(
    results: Results, dataset: str, reference: str, heading: str, name: str,
    pooled: Mapping[str, Predictions],
) -> list[Block | None]:  # fmt: skip
    """Bars of every method's scores, and diagrams of methods with saved predictions."""
    bars = results.bars(dataset)
    if not bars:
        return []
    found: list[Block | None] = [charts.score_bars(bars, reference, heading, name)]
    if pooled:
        n_seeds = len(results.seeds)
        found += charts.prediction_pictures(pooled, reference, heading, name, n_seeds)
    return found


def paired(
    results: Results, dataset: str, method: str, reference: str, other: Results | None = None
) -> Difference:
    """Return a function from measure to the difference of two methods."""
    first, second = (results, method), (other or results, reference)
    if other is None:
        return lambda m: results.paired(dataset, method, reference, m.key)
    return lambda m: paired_across(dataset, first, second, m.key)


def halves_table(results: Results, dataset: str, method: str, place: str = "") -> Table | None:
    """Tabulate the effect of the neighbors: whole model, base alone, neighbors alone."""
    halves = results.halves(method)
    if not halves or results.mean(dataset, method, "nll") is None:
        return None
    null, mass = results.mean(dataset, method, "null_mass"), ""
    if null is not None:
        mass = f" On average {100 * null.mean:.0f} % of the attention weight is on no neighbor."
    names = {m: m.removeprefix(f"{method}:").replace("-", " ") for m in halves}
    minus = {f"whole minus {n}": paired(results, dataset, method, m) for m, n in names.items()}
    table = difference_table(
        f"{place or dataset}: contributions of base and neighbors to {method}",
        "Base alone is the base with its temperature, without neighbors; neighbors alone have the "
        "class prior in place of the base. Differences are the whole model minus one part, "
        f"{pairing(results)}.{mass}",
        "method",
        minus,
        COMPARED,
    )
    if table is not None:
        table.rows[:0] = mean_rows({method: method, **names}, COMPARED, results.means(dataset))
    return table


def ranks_table(results: Results) -> Table | None:
    """Mean ranks and geometric mean costs over data sets; None for a single data set."""
    ranks = {x.key: results.mean_ranks(x.key) for x in COMPARED}
    if len(results.datasets) < 2 or not ranks["nll"]:
        return None
    left_out = [m for m in results.methods if m not in ranks["nll"]]
    missing = f" Not on every data set, so left out: {', '.join(left_out)}." if left_out else ""

    def find(method: str, measure: Measure) -> Mean | None:
        if measure.key in ranks:
            return Mean(ranks[measure.key][method], None, 1)
        means = [results.mean(dataset, method, measure.key) for dataset in results.datasets]
        costs = [math.log(max(mean.mean, 1e-9)) for mean in means if mean is not None]
        return Mean(math.exp(np.mean(costs)), None, 1) if len(costs) == len(means) else None

    shown = [replace(m, digits=2, scale=1, higher_is_better=False) for m in COMPARED]
    return mean_table(
        f"Mean rank over {len(results.datasets)} data sets",
        f"Rank of the mean over seeds, averaged over {', '.join(results.datasets)}; 1 is best."
        f"{missing} Costs are geometric means over the data sets.",
        "method", list(ranks["nll"]), [*shown, *COST_MEASURES], find,
    )  # fmt: skip


def over_seeds(results: Results) -> str:
    """Describe the average behind a number: seeds and interval."""
    if results.kept:
        return "One model"
    if len(results.seeds) == 1:
        return f"One seed ({results.seeds[0]})"
    level = f"{100 * LEVEL:.0f} % t-interval"
    seeds = ", ".join(map(str, results.seeds))
    return f"Mean ± half the {level} over {len(results.seeds)} seeds ({seeds})"


def pairing(results: Results) -> str:
    """Describe the pairing of differences and their interval."""
    if len(results.seeds) == 1:
        return f"paired by test row, with its {100 * LEVEL:.0f} % bootstrap interval"
    return f"paired by seed, with its {100 * LEVEL:.0f} % t-interval"


def failure_words(failures: Iterable[Record]) -> list[Words]:
    """Describe failed rows, one sentence per reason."""
    by_reason: dict[str, list[str]] = {}
    for r in failures:
        row = " ".join(filter(None, [r.experiment, r.condition, r.method]))
        by_reason.setdefault(r.reason or "no reason given", []).append(f"{row} (seed {r.seed})")
    return [
        Words(f"{len(rows)} row{'s' * (len(rows) > 1)} failed: {reason} Rows: {', '.join(rows)}.",
              "failed")
        for reason, rows in by_reason.items()
    ]  # fmt: skip


def failed_rows(records: Iterable[Record]) -> Numbers:
    """Failed rows for JSON."""
    keys = ("dataset", "experiment", "preset", "condition", "method", "seed", "reason")
    return [{k: getattr(r, k) for k in keys} for r in records if r.status == "failed"]


def mean_numbers(results: Results, dataset: str, **where: Any) -> Numbers:
    """Every mean as a row for CSV and JSON."""
    return [
        {"kind": "mean", "dataset": dataset, **where, "method": method, "reference": None,
         "measure": x.key, "mean": m.mean, "low": m.low, "high": m.high, "n": m.n, "verdict": None}
        for method in results.every_method
        for x in (*MEASURES, NULL_MASS)
        if (m := results.mean(dataset, method, x.key)) is not None
    ]  # fmt: skip


def difference_numbers(
    find: Callable[[str, str, str, str], PairedDifference | None], dataset: str,
    pairs: Iterable[tuple[str, str]], measures: Sequence[Measure], **where: Any,
) -> Numbers:  # fmt: skip
    """Differences as rows for CSV and JSON, as `find` (of `Results`) gives them."""
    return [
        {"kind": "difference", "dataset": dataset, **where, "method": method,
         "reference": reference, "measure": x.key,
         **{k: d.as_dict()[k] for k in ("mean", "low", "high", "n", "verdict")}}
        for method, reference in pairs
        for x in measures
        if (d := find(dataset, method, reference, x.key)) is not None
    ]  # fmt: skip


def pooled_predictions(
    results: Results, dataset: str, methods: Sequence[str]
) -> dict[str, Predictions]:
    """Predictions of all seeds together, of the first eight methods with any."""
    pooled: dict[str, Predictions] = {}
    for method in methods:
        parts = [p for _, p in kept_files(results, "predictions", dataset, method)]
        if parts and len(pooled) < charts.MAX_DIAGRAMS:
            y, proba, index = (
                np.concatenate([getattr(p, key) for p in parts])
                for key in ("y", "proba", "test_index")
            )
            pooled[method] = Predictions(y, proba, index, parts[0].classes)
    return pooled


def kept_files(results: Results, what: str, dataset: str, method: str) -> list[tuple[int, Any]]:
    """Load the saved artifacts of a method's rows, with the seed of each."""
    if what == "predictions":
        found = [(seed, results.predictions(dataset, method, seed)) for seed in results.seeds]
    else:
        paths = [(s, results.artifact(what, dataset, method, s, "json")) for s in results.seeds]
        found = [(seed, load_json(path)) for seed, path in paths if path is not None]
    return [(seed, stored) for seed, stored in found if stored]


def model_document(
    title: str,
    lead: str,
    data: str,
    predictions: Mapping[str, Predictions],
    scores: Mapping[str, Mapping[str, float]],
    *,
    parts: Sequence[tuple[str, str]],
    sizes: tuple[int, int, int],
    history: Sequence[dict[str, Any]] = (),
    gallery: dict[str, Any] | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> Document:
    """Report of one model on labelled rows, called `data`.

    `predictions` and `scores` are of the whole model, which comes first, and of its `parts`, each
    with a description; `sizes` counts remembered rows, measured rows and classes; `history` has the
    epochs of training, `gallery` is from `make_gallery`, `facts` say what the numbers were made
    under.
    """
    whole = next(iter(predictions))
    counts = dict(zip(("n_train", "n_test", "n_classes"), sizes, strict=True))
    rows = [
        Record(data, part, 0, **counts, **{k: v for k, v in found.items() if k in METRICS})  # type: ignore[arg-type]
        for part, found in scores.items()
    ]
    blocks = dataset_blocks(Results(rows, kept=predictions), data, whole)
    blocks.append(charts.training_picture(history, f"training of {whole}", data))
    if gallery and gallery["rows"]:
        blocks.append(make_page_gallery(data, whole, 0, gallery))
    how = Section("How this was measured", [Terms(parts), Words(MEASURED)])
    return Document(title, lead, [Section(data, blocks), how], facts, whole)
