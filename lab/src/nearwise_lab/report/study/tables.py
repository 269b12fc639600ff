"""Tables of the suite: every method of an experiment, differences, the study's own numbers."""

from collections.abc import Sequence
from dataclasses import replace

from nearwise_lab.experiments.places import Place
from nearwise_lab.experiments.study.presets import CORRECTED
from nearwise_lab.report.study.claims import CLAIMS
from nearwise_lab.report.study.parts import Study, seed_words
from nearwise_lab.report.study.published import DATASET, REPORTED, SOURCE, Reported
from nearwise_lab.report.study.verdicts import MARKS, Finding
from nearwise_lab.report.summary import SHOT_MEASURES, Results, paired_across
from nearwise_lab.report.tables import over_seeds, pairing
from nearwise_lab.results.measures import (
    COMPARED,
    EMPTY,
    MEASURES,
    Cell,
    Mean,
    Measure,
    Table,
    difference_cell,
    is_best,
    show_mean,
)

NULL_MASS = Measure("null_mass", "null mass", 3, None)
_SHOWN = ("accuracy", "macro_f1", "nll", "brier", "ece", "aurc")
_COSTS = ("fit_seconds", "predict_us_per_row")
STUDY_MEASURES = (*(m for m in MEASURES if m.key in _SHOWN), *SHOT_MEASURES, NULL_MASS)
COST_MEASURES = tuple(m for m in MEASURES if m.key in _COSTS)
# A single seed is compared over its rows by a bootstrap for every cell: the sweeps show fewer.
SWEEP_COMPARED = tuple(m for m in COMPARED if m.key in ("accuracy", "nll", "ece"))
PRESETS_A_TABLE = 4


def experiment_table(study: Study, dataset: str, experiment: str, preset: str) -> Table | None:
    """Mean and half-interval of every method at every condition; None without any number."""
    places = study.places(dataset, experiment, preset)
    parts = [(place, study.part(dataset, place)) for place in places]
    measures = [
        m
        for m in STUDY_MEASURES
        if any(r.values(dataset, x, m.key) for _, r in parts for x in r.methods)
    ]
    if not measures:
        return None
    first, size = next((p, r) for _, p in parts for r in p.records if r.status == "ok")
    where = "a column" if len(parts) == 1 else "a condition"
    table = Table(
        f"{dataset}, {preset}: {experiment}",
        f"{_train_sizes(parts)} training rows, {size.n_test:,} test rows, {size.n_classes} "
        f"classes. {over_seeds(first)}; the best value of {where} "
        "is bold, whether or not the difference is more than chance.",
        ["method" if len(parts) == 1 else "condition: method", *(m.title for m in measures)],
    )
    for place, results in parts:
        table.rows.extend(_method_rows(results, dataset, measures, place.label))
    return table if table.rows else None


def cost_table(study: Study, dataset: str, preset: str) -> Table | None:
    """Fit and prediction times of the main experiment; None where there are none."""
    results = study.main(dataset, preset)
    table = Table(
        f"{dataset}, {preset}: what it costs",
        f"{over_seeds(results)}, on the machine named below. Fit time includes tuning; what "
        "methods share (one training, one search) counts for each.",
        ["method", *(m.title for m in COST_MEASURES)],
    )
    for method in results.methods:
        means = [results.mean(dataset, method, m.key) for m in COST_MEASURES]
        if any(means):
            cells = [Cell(show_mean(x, m)) for x, m in zip(means, COST_MEASURES, strict=True)]
            table.rows.append((method, cells))
    return table if table.rows else None


def _method_rows(
    results: Results, dataset: str, measures: Sequence[Measure], label: str
) -> list[tuple[str, list[Cell]]]:
    methods = [m for m in results.methods if results.values(dataset, m, "accuracy")]
    means = {m: [results.mean(dataset, m, x.key) for x in measures] for m in methods}
    rows = []
    for method in methods:
        cells = [
            Cell(
                show_mean(mean, x),
                "best" if is_best(mean, [means[o][i] for o in methods], x) else "",
            )
            for i, (x, mean) in enumerate(zip(measures, means[method], strict=True))
        ]
        rows.append((f"{label}: {method}" if label else method, cells))
    return rows


def uniform_table(study: Study, dataset: str, preset: str) -> Table | None:
    """How every method of the main experiment differs from uniform k-NN."""
    results = study.main(dataset, preset)
    methods = [m for m in results.methods if m != "uniform"]
    table = Table(
        f"{dataset}, {preset}: difference from uniform k-NN",
        f"Method minus uniform, {pairing(results)}. "
        '"None" means that the interval holds 0: no difference is shown.',
        ["method", *(m.title for m in COMPARED)],
    )
    for method in methods:
        cells = _differences(results, dataset, method, "uniform", COMPARED)
        if cells:
            table.rows.append((method, cells))
    return table if table.rows else None


def weights_table(study: Study, dataset: str, preset: str) -> Table | None:
    """Attention minus every other weighting of the same neighbors."""
    table = Table(
        f"{dataset}, {preset}: what exchanging the weights of the same neighbors does",
        "Attention minus the other, all else equal: memory, neighbors, pool, rows that parameters "
        "are fitted to. In brackets a 95 % bootstrap interval over seeds and test rows together. "
        '"None" means that the interval holds 0: no difference is shown.',
        ["attention minus", *(m.title for m in COMPARED)],
    )
    for place in study.places(dataset, "weights", preset):
        results = study.part(dataset, place)
        for reference in other_weightings(results):
            found = [
                results.paired_over_rows(dataset, "attention", reference, m.key) for m in COMPARED
            ]
            if any(found):
                cells = [difference_cell(d, m) for d, m in zip(found, COMPARED, strict=True)]
                table.rows.append((f"{place.label}: {reference}", cells))
    return table if table.rows else None


def other_weightings(results: Results) -> list[str]:
    """Methods of the experiment "weights" that attention is compared with."""
    return [method for method in results.methods if method not in ("attention", "classifier")]


def sweep_table(study: Study, dataset: str, experiment: str, preset: str) -> Table | None:
    """Attention minus uniform at every condition."""
    places = study.places(dataset, experiment, preset)
    parts = [study.part(dataset, p) for p in places]
    if not parts:
        return None
    table = Table(
        f"{dataset}, {preset}: {experiment}, attention minus uniform k-NN",
        f"On the same rows, {pairing(parts[0])}. "
        '"None" means that the interval holds 0: no difference is shown.',
        ["condition", *(m.title for m in SWEEP_COMPARED)],
    )
    for place, results in zip(places, parts, strict=True):
        cells = _differences(results, dataset, "attention", "uniform", SWEEP_COMPARED)
        if cells:
            table.rows.append((place.label, cells))
    return table if table.rows else None


def ablation_table(study: Study, dataset: str, preset: str) -> Table | None:
    """Attention with a part off (or mended) minus attention as the preset has it."""
    places = study.places(dataset, "ablation", preset)
    full = study.part(dataset, Place("ablation", preset, "full"))
    if not full.values(dataset, "attention", "accuracy"):
        return None
    table = Table(
        f"{dataset}, {preset}: what each part does",
        f"Attention with the part changed minus attention in full, {pairing(full)}. "
        '"None" means that the interval holds 0: no difference is shown.',
        ["attention", *(m.title for m in SWEEP_COMPARED)],
    )
    for place in places:
        if place.condition == "full":
            continue
        part = (study.part(dataset, place), "attention")
        found = [paired_across(dataset, part, (full, "attention"), m.key) for m in SWEEP_COMPARED]
        if any(found):
            cells = [difference_cell(d, m) for d, m in zip(found, SWEEP_COMPARED, strict=True)]
            table.rows.append((place.label, cells))
    return table if table.rows else None


def _differences(
    results: Results, dataset: str, method: str, reference: str, measures: Sequence[Measure]
) -> list[Cell]:
    found = [results.paired(dataset, method, reference, m.key) for m in measures]
    if not any(found):
        return []
    return [difference_cell(d, m) for d, m in zip(found, measures, strict=True)]


def published_table(study: Study, dataset: str) -> Table | None:
    """Put the study's own numbers beside the replays' and, below, ours for the same methods."""
    presets = [p for p in study.presets_of(dataset) if study.main(dataset, p).records]
    replays = [p for p in presets if any(_version(p) in row.presets for row in REPORTED)]
    if not replays:
        return None
    here = (
        "The replay ran on the same data set, from scratch, on the rows named below."
        if dataset == DATASET
        else f"The replay ran on {dataset}: compare the pattern, not the numbers."
    )
    table = Table(
        f"{dataset}: what the study reported, and the replay",
        f'"Reported" is from {SOURCE}. {here} NLL is clipped at 1e-9, as there.',
        ["preset: method", *(f"reported {x}" for x in _HEADS), *(f"here {x}" for x in _HEADS)],
    )
    for preset in presets:
        for method, reported in _published_rows(study, dataset, preset):
            cells = _reported_cells(reported) + _cells_here(study, dataset, preset, method)
            table.rows.append((f"{preset}: {method}", cells))
    return table


_HEADS = ("accuracy", "NLL", "ECE")


def _version(preset: str) -> str:
    """Version that a preset replays, as described or as its notebook ran."""
    return preset.removesuffix("-notebook")


def _published_rows(study: Study, dataset: str, preset: str) -> list[tuple[str, Reported | None]]:
    known = {row.method: row for row in REPORTED if _version(preset) in row.presets}
    run = study.main(dataset, preset).methods
    if preset == CORRECTED:  # beside what was reported of the same method, or not at all
        wanted = set(map(_version, study.presets_of(dataset)))
        there = {row.method for row in REPORTED if set(row.presets) & wanted}
        return [(m, None) for m in run if ("cnn" if m == "mlp" else m) in there]
    names = [*run, *(m for m in known if m not in run)]
    if dataset != DATASET:  # what cannot be run there (views of columns) is not a row
        names = run
    return [(name, known.get("cnn" if name == "mlp" else name)) for name in names]


def _reported_cells(row: Reported | None) -> list[Cell]:
    if row is None:
        return [Cell(EMPTY)] * 3
    return [Cell(f"{row.accuracy:.4f}"), Cell(f"{row.nll:.3f}"), Cell(f"{row.ece:.4f}")]


def _cells_here(study: Study, dataset: str, preset: str, method: str) -> list[Cell]:
    results = study.main(dataset, preset)
    measures = [m for m in MEASURES if m.key in ("accuracy", "nll", "ece")]
    means: list[Mean | None] = [results.mean(dataset, method, m.key) for m in measures]
    as_there = study.detail(dataset, Place("main", preset), method, "nll_study")
    means[1] = as_there or means[1]
    return [Cell(show_mean(mean, m)) for mean, m in zip(means, measures, strict=True)]


def claim_tables(dataset: str, findings: dict[str, dict[str, Finding]]) -> list[Table]:
    """Verdict on every claim, one column per preset.

    Parameters
    ----------
    dataset : str
    findings : dict
        For each preset, what `judge_claims` gives.
    """
    presets = list(findings)
    tables = []
    for start in range(0, len(presets), PRESETS_A_TABLE):
        shown = presets[start : start + PRESETS_A_TABLE]
        more = f" ({', '.join(shown)})" if len(presets) > PRESETS_A_TABLE else ""
        table = Table(f"{dataset}: verdicts{more}", CLAIMS_CAPTION, ["claim", *shown], wrap=True)
        for claim in CLAIMS:
            cells = [claim_cell(findings[p][claim.key]) for p in shown]
            table.rows.append((claim.text, cells))
        tables.append(table)
    return tables


CLAIMS_CAPTION = (
    "Computed from the records: the difference, its 95 % interval over paired seeds (a single "
    "seed: a bootstrap over its test rows; weightings of the same neighbors: one over seeds and "
    "test rows together) and what else decided. A claim that one is better than "
    "another is validated where the whole interval lies on the better side, not validated where "
    "it lies on the worse, and no difference where it holds 0. A claim that something costs at "
    "most 1 point of accuracy is validated where the whole interval lies within that bound; at "
    "or past the bound it is inconclusive where the interval holds 0, else not validated. A claim "
    "that a value lies in a range is validated where its whole interval does, else not validated. "
    "Not judged: measured, but without an interval. Not measured: the records hold nothing on it. "
    "Many claims are judged at once: one in twenty intervals misses by chance."
)


def claim_cell(finding: Finding) -> Cell:
    """Verdict, amount and note of a finding."""
    detail = "; ".join(filter(None, [finding.amount, finding.note]))
    return Cell(finding.verdict, MARKS[finding.verdict], detail)


def theory_table(study: Study, dataset: str, preset: str) -> Table | None:
    """List what the theory experiment found, one row per quantity."""
    rows: list[tuple[str, str, str, str, int]] = [
        ("neighbors of a test row that agree", "collapse", "purity", "", 3),
        ("accuracy of their vote", "collapse", "accuracy", "", 3),
        ("agreement minus accuracy", "collapse", "excess", "", 3),
        ("neighbors of a remembered row with its label", "collapse", "memory_purity", "", 3),
        ("attention entropy over log k", "collapse", "attention_entropy", "", 4),
        ("error against k: a of a + b / k", "error-against-k", "a", "", 4),
        ("error against k: b of a + b / k", "error-against-k", "b", "", 4),
        ("error against k: r squared", "error-against-k", "r2", "", 3),
        ("best k", "error-against-k", "best_k", "", 0),
        ("square root of n", "error-against-k", "sqrt_n", "", 1),
        ("knn loss, rows among their own neighbors", "leak", "knn_loss_with_self", "", 4),
        ("knn loss, rows left out", "leak", "knn_loss_without_self", "", 4),
        ("attention on oneself", "leak", "self_weight", "", 4),
        ("even share, 1 / k", "leak", "even_share", "", 4),
        ("queries ordered alike by L2 and inner product", "norms", "same_order", "", 3),
        ("norm of keys: mean", "norms", "norms", "mean", 4),
        ("norm of keys: spread", "norms", "norms", "std", 4),
    ]
    places = study.places(dataset, "theory", preset)
    seeds = sorted({s for p in places for s in study.part(dataset, p).seeds})
    table = Table(
        f"{dataset}, {preset}: theory",
        f"What explains the results, {seed_words(seeds)}; mean ± half the 95 % t-interval "
        "where there is more than one.",
        ["quantity", "value"],
    )
    for title, condition, key, inner, digits in rows:
        found = _theory_mean(study, dataset, Place("theory", preset, condition), key, inner)
        if found is not None:
            measure = replace(NULL_MASS, digits=digits)
            table.rows.append((title, [Cell(show_mean(found, measure))]))
    place = Place("theory", preset, "temperatures")
    learned = study.details(dataset, place, "attention", "temperatures")
    for seed, values in learned.items():
        text = ", ".join(f"{v:.3f}" for v in values)
        table.rows.append((f"learned temperatures, seed {seed}", [Cell(text)]))
    return table if table.rows else None


def _theory_mean(study: Study, dataset: str, place: Place, key: str, inner: str) -> Mean | None:
    from nearwise_lab.results.measures import mean_with_interval

    found = study.details(dataset, place, "attention", key).values()
    values = [v[inner] if inner else v for v in found]
    return mean_with_interval(values) if values else None


def efficiency_table(study: Study, dataset: str) -> Table | None:
    """Build and search times of the indexes and their recall; times of the weightings."""
    measures = (
        ("build_seconds", "build s", 3),
        ("search_ms_per_query", "search ms per query", 4),
        ("recall", "recall", 4),
        ("weigh_us_per_query", "weights, µs per query", 2),
    )
    places = study.places(dataset, "efficiency", "")
    seeds = sorted({s for p in places for s in study.part(dataset, p).seeds})
    table = Table(
        f"{dataset}: efficiency",
        "Times depend on the machine and on what else it did; recall is the share of the true "
        "nearest that were found. Weights: from neighbors that are found to the votes, in one "
        f"thread or several as torch takes them. {seed_words(seeds).capitalize()}.",
        ["index or weighting", *(title for _, title, _ in measures)],
    )
    for place in places:
        for method in study.part(dataset, place).methods:
            means = [study.detail(dataset, place, method, key) for key, _, _ in measures]
            if any(means):
                cells = [
                    Cell(show_mean(mean, replace(NULL_MASS, digits=digits)))
                    for mean, (_, _, digits) in zip(means, measures, strict=True)
                ]
                table.rows.append((f"{method}, {place.label}", cells))
    return table if table.rows else None


def _train_sizes(parts: Sequence[tuple[Place, Results]]) -> str:
    sizes = [r.n_train for _, results in parts for r in results.records if r.n_train]
    if not sizes:
        return "?"
    low, high = min(sizes), max(sizes)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
