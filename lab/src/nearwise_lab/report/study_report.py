"""The report of the suite: replayed study, corrected method, and verdicts on the claims."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from nearwise_lab.experiments.places import WEIGHTS, Place
from nearwise_lab.experiments.study.presets import CORRECTED
from nearwise_lab.report import compare
from nearwise_lab.report.charts import Line, Lines, chart, line_of, points_of
from nearwise_lab.report.claims import tally, verdict_table
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
)
from nearwise_lab.report.drawing import ACCENT, INK, LINE_COLORS, Picture, picture, slug
from nearwise_lab.report.study import EFFICIENCY, Study
from nearwise_lab.report.study_claims import ATTENTION, Findings, judge_claims
from nearwise_lab.report.study_reported import (
    DATASET,
    REPORTED,
    SAID,
    SOURCE,
    Reported,
    defect_notes,
)
from nearwise_lab.report.summary import Results, seed_words
from nearwise_lab.results.measures import (
    COMPARED,
    EMPTY,
    MEASURES,
    NULL_MASS,
    SHOT_MEASURES,
    Cell,
    Measure,
    Table,
    show_mean,
)

TITLE = "Attention over nearest neighbors: the study replayed, and corrected"
_SHOWN = ("accuracy", "macro_f1", "nll", "brier", "ece", "aurc")
STUDY_MEASURES = (*(m for m in MEASURES if m.key in _SHOWN), *SHOT_MEASURES, NULL_MASS)
# A single seed is compared over its rows by a bootstrap for every cell: the sweeps show fewer.
HEADS = tuple(m for m in MEASURES if m.key in ("accuracy", "nll", "ece"))
PRESETS_A_TABLE = 4
_CORRECTED = (
    "The corrected method: rows never find themselves, everything that weighs neighbors is fitted "
    "on rows that the memory has not seen, a null neighbor speaks where the neighbors do not "
    "answer."
)
_WEIGHTS = (
    "The same classifier with its weights exchanged: memory, neighbors, smoothing and pool stay, "
    "and pool, smoothing and temperature are fitted anew for each, to the same rows that memory "
    "and networks have not seen. Uniform: all alike. Distance: the reciprocal. Distance-tuned: "
    "one temperature by the NLL of the neighbors alone; distance-learned: one per key space, "
    "fitted with the pool. Multi-head: the original study's attention over keys. Attention: the "
    "weights of the classifier's own head, null included; classifier: its prediction with its own "
    "pool. Without a base nothing sees a network's prediction."
)
_HOW = (
    "Means over seeds with Student's 95 % interval. Differences are paired by seed on the same "
    "test rows; a single seed is compared by a bootstrap over its test rows. The test part is "
    "read once, except where a defect of a replay says so."
)


def study_document(
    study: Study, title: str | None = None, progress: Callable[[str], None] = lambda step: None
) -> Document:
    """Compute the verdicts and collect words, tables, figures and galleries.

    `progress` is called with a few words before each part.
    """
    progress("verdicts on the claims")
    findings = {
        d: {p: judge_claims(study, d, p) for p in study.presets_of(d)} for d in study.datasets
    }
    sections = []
    for dataset in study.datasets:
        sections.append(_verdict_section(dataset, findings))
        heading = f"{dataset}: the study's report, the replay and the corrected method"
        sections.append(Section(heading, [published_table(study, dataset)], 3))
        for preset in study.presets_of(dataset):
            sections += _preset_sections(study, dataset, preset, progress)
    sections += _efficiency_sections(study)
    sections.append(Section("How this was measured", [Words(f"{_HOW} {compare.MEASURED}")]))
    return Document(
        title or TITLE, _lead(study), sections, record_facts(study.records), ATTENTION,
        _numbers(study), failed=compare.failed_rows(study.records),
        claims=[
            {"dataset": d, "preset": p, **found.as_dict()}
            for d, presets in findings.items()
            for p, judged in presets.items()
            for found in judged.values()
        ],
    )  # fmt: skip


def _lead(study: Study) -> str:
    ours = "v1, the corrected method" if CORRECTED in study.presets else ""
    replays = ", ".join(p for p in study.presets if p != CORRECTED)
    replayed = f"the study's presets {replays} as they were" if replays else ""
    what = " and ".join(filter(None, [replayed, ours]))
    where = f" on {', '.join(study.datasets)}" if study.datasets else ""
    small = f"This report shows {what}{where}, {seed_words(study.seeds)}. " if what else ""
    return (
        f"{small}Every number and every verdict is computed from the records; a difference inside "
        "its interval is written as none."
    )


def _verdict_section(dataset: str, findings: Findings) -> Section:
    found = findings[dataset]
    counts = [f"{p}: {tally(f.verdict for f in judged.values())}" for p, judged in found.items()]
    blocks: list[Block] = [Words(f"{'; '.join(counts)}.")]
    for start in range(0, len(found), PRESETS_A_TABLE):
        shown = {p: list(found[p].values()) for p in list(found)[start : start + PRESETS_A_TABLE]}
        more = f" ({', '.join(shown)})" if len(found) > PRESETS_A_TABLE else ""
        blocks.append(verdict_table(f"{dataset}: verdicts{more}", shown))
    return Section(f"{dataset}: what became of the claims", blocks)


def _preset_sections(
    study: Study, dataset: str, preset: str, progress: Callable[[str], None]
) -> list[Section]:
    notes = defect_notes(study, dataset, preset)
    blocks: list[Block] = [Words(_CORRECTED)] if preset == CORRECTED else []
    if notes:
        blocks = [Words("Replayed as it was, with these defects:"), Terms(notes)]
    mine = [r for r in study.records if (r.dataset, r.preset) == (dataset, preset)]
    failed = compare.failure_words(r for r in mine if r.status == "failed")
    sections = [Section(f"{dataset}, preset {preset}", [*blocks, *failed])]
    there = study.experiments_of(dataset, preset)
    for name, (title, make) in _EXPERIMENTS.items():
        if name in there:
            progress(f"{dataset}, {preset}: {title}")
            made = make(study, dataset, preset, name)
            sections.append(Section(f"{dataset}, {preset}: {title}", made, 3))
    missing = [e for e in _EXPERIMENTS if e not in there]
    if preset != CORRECTED:  # "weights" exchanges those of the classifier
        missing = [e for e in missing if e not in WEIGHTS]
    if missing:
        words = ["nearwise", "experiment", missing[0], "--dataset", dataset, "--preset", preset]
        ask = f"{shlex.join(words)} --out DIR"
        text = f"Not run for {preset} on {dataset}: {', '.join(missing)} (for example: {ask})."
        sections.append(Section(f"{dataset}, {preset}: not run", [Words(text, "note")], 3))
    return sections


def _main_blocks(study: Study, dataset: str, preset: str, name: str) -> list[Block | None]:
    results, place = study.main(dataset, preset), f"{dataset}, {preset}"
    blocks = compare.dataset_blocks(results, dataset, ATTENTION, place, "uniform")
    kept = {
        "predictions, so no diagrams and no confusion matrix": "predictions",
        "sample of the memory, so no map of it": "maps",
        "test rows with their neighbors, so no gallery": "galleries",
    }
    missing = [words for words, what in kept.items()
               if not compare.kept_files(results, what, dataset, ATTENTION)]  # fmt: skip
    return [*blocks, Words(f"Not kept: {'; '.join(missing)}.", "note") if missing else None]


def _weights_blocks(study: Study, dataset: str, preset: str, name: str) -> list[Block | None]:
    rows: dict[str, compare.Difference] = {}
    pictures: list[Block | None] = []
    for place in study.places(dataset, name, preset):
        results = study.part(dataset, place)
        words = f"{dataset}, {preset}, {place.label}"
        shown = ("base", "uniform", "distance-tuned", ATTENTION)
        pooled = compare.pooled_predictions(results, dataset, shown)
        heading = results.heading(dataset, words)
        pictures += compare.score_pictures(results, dataset, ATTENTION, heading, words, pooled)
        rows |= {f"{place.label}: {o}": _over_rows(results, dataset, o)
                 for o in other_weightings(results)}  # fmt: skip
    differences = difference_table(
        f"{dataset}, {preset}: what exchanging the weights of the same neighbors does",
        "Attention minus the other, all else equal: memory, neighbors, pool, rows that parameters "
        "are fitted to. In brackets a 95 % interval over seeds and test rows together.",
        "attention minus",
        rows,
        COMPARED,
    )
    every = experiment_table(study, dataset, name, preset)
    return [Words(_WEIGHTS, "note"), differences, every, *pictures]


def _over_rows(results: Results, dataset: str, other: str) -> compare.Difference:
    return lambda m: results.paired_over_rows(dataset, ATTENTION, other, m.key)


def other_weightings(results: Results) -> list[str]:
    """Methods of the experiment "weights" in comparison with attention."""
    return [method for method in results.methods if method not in (ATTENTION, "classifier")]


def _sweep_blocks(study: Study, dataset: str, preset: str, name: str) -> list[Block | None]:
    places = study.places(dataset, name, preset)
    memory = [p for p in places if p.condition.startswith("memory-")]
    groups = {name: [p for p in places if p not in memory], f"{name} in the memory only": memory}
    if name == "label-noise":
        inside = {"where=memory": "the memory only"}
        groups = {
            f"{kind} label noise in {inside.get(where, 'all training rows')}": [
                p for p in places if p.condition == where and (not p.noise or p.noise_kind == kind)
            ]
            for where in dict.fromkeys(p.condition for p in places)
            for kind in dict.fromkeys(p.noise_kind for p in places)
        }
    drawn = [sweep_lines(study, dataset, name, some, words) for words, some in groups.items()]
    said = SAID.get(name) if preset != CORRECTED else None
    return [
        Words(said, "note") if said else None,
        *drawn,
        change_table(study, dataset, name, preset),
        Fold("Every method at every condition", [experiment_table(study, dataset, name, preset)]),
    ]


_EXPERIMENTS: dict[str, tuple[str, Callable[[Study, str, str, str], list[Block | None]]]] = {
    "main": ("all methods", _main_blocks),
    "weights": ("weights of the same neighbors", _weights_blocks),
    "weights-noise": ("the same with wrong labels", _weights_blocks),
    "weights-tail": ("the same with a long tail", _weights_blocks),
    "k-sweep": ("how many neighbors", _sweep_blocks),
    "label-noise": ("label noise", _sweep_blocks),
    "long-tail": ("imbalance", _sweep_blocks),
    "theory": ("why", lambda *part: [error_picture(*part[:3]), theory_table(*part[:3])]),
    "ablation": ("one part at a time", _sweep_blocks),
}


def experiment_table(study: Study, dataset: str, experiment: str, preset: str) -> Table | None:
    """Mean and half-interval of every method at every condition; None without any number."""
    parts = [(p, study.part(dataset, p)) for p in study.places(dataset, experiment, preset)]
    measures = [
        m
        for m in STUDY_MEASURES
        if any(r.values(dataset, x, m.key) for _, r in parts for x in r.methods)
    ]
    if not measures:
        return None
    first, size = next((p, r) for _, p in parts for r in p.records if r.status == "ok")
    sizes = sorted({r.n_train for _, results in parts for r in results.records if r.n_train} or {0})
    table = Table(
        f"{dataset}, {preset}: {experiment}",
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys((sizes[0], sizes[-1])))} training rows, "
        f"{size.n_test:,} test rows, {size.n_classes} classes. {compare.over_seeds(first)}. "
        f"{compare.BOLD.replace('column', 'condition')}",
        ["condition: method", *(m.title for m in measures)],
    )
    for place, results in parts:
        names = {m: f"{place.label}: {m}" for m in results.methods}
        table.rows.extend(mean_rows(names, measures, results.means(dataset)))
    return table


def change_table(study: Study, dataset: str, experiment: str, preset: str) -> Table | None:
    """Attention minus uniform at every condition; of ablations, minus attention in full."""
    places = study.places(dataset, experiment, preset)
    parts = {p.label: study.part(dataset, p) for p in places if p.condition != "full"}
    if not parts:
        return None
    rows = {label: compare.paired(r, dataset, ATTENTION, "uniform") for label, r in parts.items()}
    what, words = f"{experiment}, attention minus uniform k-NN", "On the same rows"
    if experiment == "ablation":
        full = study.part(dataset, Place(experiment, preset, "full"))
        rows = {
            label: compare.paired(r, dataset, ATTENTION, ATTENTION, full)
            for label, r in parts.items()
        }
        what, words = "what each part does", "Attention with the part changed minus it in full"
    caption = f"{words}, {compare.pairing(next(iter(parts.values())))}."
    return difference_table(f"{dataset}, {preset}: {what}", caption, "attention", rows, HEADS)


def published_table(study: Study, dataset: str) -> Table | None:
    """Tabulate published and replayed numbers and, below, the corrected method's."""
    presets = [p for p in study.presets_of(dataset) if study.main(dataset, p).records]
    if not any(_version(p) in row.presets for row in REPORTED for p in presets):
        return None
    here = (
        "The replay ran on the same data set, from scratch, on the rows named below."
        if dataset == DATASET
        else f"The replay ran on {dataset}: compare the pattern, not the numbers."
    )
    table = Table(
        f"{dataset}: what the study reported, and the replay",
        f'"Reported" is from {SOURCE}. {here} NLL is clipped at 1e-9, as there.',
        ["preset: method", *(f"{x} {m.title}" for x in ("reported", "here") for m in HEADS)],
    )
    for preset in presets:
        results = study.main(dataset, preset)
        for method, row in _published_rows(study, dataset, preset):
            said = [Cell(EMPTY)] * 3
            if row is not None:
                said = [Cell(f"{row.accuracy:.4f}"), Cell(f"{row.nll:.3f}"), Cell(f"{row.ece:.4f}")]
            means = [results.mean(dataset, method, m.key) for m in HEADS]
            means[1] = results.mean(dataset, method, "nll_study") or means[1]  # clipped as there
            cells = [Cell(show_mean(mean, m)) for mean, m in zip(means, HEADS, strict=True)]
            table.rows.append((f"{preset}: {method}", said + cells))
    return table


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
    # what cannot be run on another data set (views of columns) is not a row
    names = [*run, *(m for m in known if m not in run and dataset == DATASET)]
    return [(name, known.get("cnn" if name == "mlp" else name)) for name in names]


_THEORY = (
    ("neighbors of a test row that agree", "collapse", "purity", 3),
    ("accuracy of their vote", "collapse", "details.accuracy", 3),
    ("agreement minus accuracy", "collapse", "excess", 3),
    ("neighbors of a remembered row with its label", "collapse", "memory_purity", 3),
    ("attention entropy over log k", "collapse", "attention_entropy", 4),
    ("error against k: a of a + b / k", "error-against-k", "a", 4),
    ("error against k: b of a + b / k", "error-against-k", "b", 4),
    ("error against k: r squared", "error-against-k", "r2", 3),
    ("best k", "error-against-k", "best_k", 0),
    ("square root of n", "error-against-k", "sqrt_n", 1),
    ("knn loss, rows among their own neighbors", "leak", "knn_loss_with_self", 4),
    ("knn loss, rows left out", "leak", "knn_loss_without_self", 4),
    ("attention on oneself", "leak", "self_weight", 4),
    ("even share, 1 / k", "leak", "even_share", 4),
    ("queries ordered alike by L2 and inner product", "norms", "same_order", 3),
    ("norm of keys: mean", "norms", "norms.mean", 4),
    ("norm of keys: spread", "norms", "norms.std", 4),
)


def theory_table(study: Study, dataset: str, preset: str) -> Table | None:
    """List the results of the theory experiment, one row per quantity."""
    table = Table(
        f"{dataset}, {preset}: theory",
        "What explains the results; mean ± half the 95 % t-interval where there is more than one "
        "seed.",
        ["quantity", "value"],
    )
    for title, condition, key, digits in _THEORY:
        results = study.part(dataset, Place("theory", preset, condition))
        found = results.mean(dataset, ATTENTION, key)
        if found is not None:
            table.rows.append((title, [Cell(show_mean(found, replace(NULL_MASS, digits=digits)))]))
    place = Place("theory", preset, "temperatures")
    for seed, values in study.details(dataset, place, ATTENTION, "temperatures").items():
        text = ", ".join(f"{v:.3f}" for v in values)
        table.rows.append((f"learned temperatures, seed {seed}", [Cell(text)]))
    return table if table.rows else None


def error_picture(study: Study, dataset: str, preset: str) -> Picture | None:
    """Error of the uniform vote against k, with its fit."""
    place = Place("theory", preset, "error-against-k")
    results = study.part(dataset, place)
    errors = study.details(dataset, place, ATTENTION, "error")
    rows = [
        {"k": k, "error": error}
        for seed, sizes in study.details(dataset, place, ATTENTION, "k").items()
        for k, error in zip(sizes, errors[seed], strict=True)
    ]
    points = points_of(rows, "k", "error")
    if not points:
        return None
    lines = {"error of the vote": Line(points, ACCENT, "o", "")}
    a, b, up_to, root = (results.mean(dataset, ATTENTION, key)
                         for key in ("a", "b", "fitted_up_to", "sqrt_n"))  # fmt: skip
    if a and b:
        end = up_to.mean if up_to else points[-1][0]
        fitted = [(k, a.mean + b.mean / k) for k, *_ in points if k <= end]
        lines[f"{a.mean:.3f} + {b.mean:.3f} / k"] = Line(fitted, LINE_COLORS[0])
    if root is not None and points[0][0] <= root.mean <= points[-1][0]:
        ends = [(root.mean, 0.0), (root.mean, max(p[1] for p in points))]
        lines[f"square root of n = {root.mean:.0f}"] = Line(ends, INK, "", ":")
    ticks = {k: f"{k:,}" for k in (1, 10, 100, 1000) if points[0][0] <= k <= points[-1][0]}
    panel = Lines("error of the vote", lines, "neighbors k", log="x", ticks=ticks)
    heading = results.heading(dataset, f"{dataset}, {preset}, error against k")
    figure = chart([panel], (7.2, 2.9), heading=heading)
    return picture(
        figure, f"error-{slug(f'{dataset}-{preset}')}", f"{heading}.",
        "Error of the uniform vote, the fitted a + b / k and the square root of the rows' number.",
    )  # fmt: skip


_VARIED = {
    "k-sweep": "neighbors k",
    "long-tail": "rows of the rarest class over those of the commonest",
    "label-noise": "share of wrong labels, %",
}


def sweep_lines(
    study: Study, dataset: str, experiment: str, places: Sequence[Place], words: str
) -> Picture | None:
    """Accuracy, NLL and ECE by condition, one line per method; None below two points."""
    scale = 100 if experiment == "label-noise" else 1
    parts = [(scale * p.number, study.part(dataset, p)) for p in places if p.number is not None]
    ticks = {n: f"{n:g}" for n in sorted({number for number, _ in parts})}
    if len(ticks) < 2 or experiment not in _VARIED:
        return None
    methods = list(dict.fromkeys(m for _, r in parts for m in r.methods))
    panels = []
    for measure in HEADS:
        lines = {}
        for place, method in enumerate(methods):
            means = [(n, r.mean(dataset, method, measure.key)) for n, r in parts]
            points = sorted((n, m.mean, m.half or 0.0) for n, m in means if m is not None)
            if points:
                lines[method] = line_of(method, points, place)
        panels.append(
            Lines(measure.title, lines, _VARIED[experiment] if measure == HEADS[1] else "",
                  log="" if experiment == "label-noise" else "x", ticks=ticks,
                  upside=experiment == "long-tail")
        )  # fmt: skip
    name = f"{dataset}, {places[0].preset}, {words}"
    heading = parts[-1][1].heading(dataset, name)
    return picture(
        chart(panels, (9.4, 2.8), heading=heading), f"sweep-{slug(name)}",
        f"{heading}: accuracy, NLL and ECE of {', '.join(methods)}.",
        "Means over seeds; bars are 95 % t-intervals where there is more than one seed.",
    )  # fmt: skip


_EFFICIENCY = (
    Measure("build_seconds", "build s", 3, None),
    Measure("search_ms_per_query", "search ms per query", 4, None),
    Measure("recall", "recall", 4, None),
    Measure("weigh_us_per_query", "weights, µs per query", 2, None),
)


def _efficiency_sections(study: Study) -> list[Section]:
    """Build and search times of the indexes and their recall; times of the weightings."""
    sections = []
    for dataset in sorted({r.dataset for r in study.records if r.experiment == EFFICIENCY}):
        parts = [(p, study.part(dataset, p)) for p in study.places(dataset, EFFICIENCY, "")]
        facts = next((r.details for _, part in parts for r in part.records), {})
        known = [k for k in ("n_rows", "dim", "n_queries", "k") if facts.get(k)]
        sizes = ", ".join(f"{k} = {facts[k]:,}" for k in known)
        table = Table(
            f"{dataset}: efficiency",
            f"Random unit keys ({sizes}). Times depend on the machine and on what else it did; "
            "recall is the share of the true nearest that were found. Weights: from neighbors that "
            "are found to the votes, in one thread or several as torch takes them.",
            ["index or weighting", *(m.title for m in _EFFICIENCY)],
        )
        for place, part in parts:
            names = {m: f"{m}, {place.label}" for m in part.methods}
            table.rows.extend(mean_rows(names, _EFFICIENCY, part.means(dataset)))
        blocks: list[Block] = [Words(SAID[EFFICIENCY], "note"), table]
        sections.append(Section(f"Efficiency of search: {dataset}", blocks))
    if not sections:
        small = " --small" if any("--small" in r.command for r in study.records) else ""
        text = f"Not run: efficiency (nearwise experiment efficiency{small} --out DIR)."
        sections.append(Section("Efficiency of search", [Words(text, "note")]))
    return sections


def _numbers(study: Study) -> compare.Numbers:
    """Every mean, difference and reported number, each as a row for CSV and JSON."""
    rows: compare.Numbers = []
    for dataset, place in study.all_places():
        results = study.part(dataset, place)
        keys = ("experiment", "preset", "condition", "noise", "noise_kind")
        where = {key: getattr(place, key) for key in keys}
        rows += compare.mean_numbers(results, dataset, **where)
        find, measures, pairs = results.paired, HEADS, [(ATTENTION, "uniform")]
        if place.experiment == "main":
            measures = COMPARED
            pairs = [(m, "uniform") for m in results.methods if m != "uniform"]
            pairs += [(m, half) for m in results.methods for half in results.halves(m)]
        elif place.experiment in WEIGHTS:
            find, measures = results.paired_over_rows, COMPARED
            pairs = [(ATTENTION, other) for other in other_weightings(results)]
        rows += compare.difference_numbers(find, dataset, pairs, measures, **where)
    rows += [
        {"kind": "reported", "dataset": DATASET, "experiment": "main", "preset": preset,
         "method": reported.method, "measure": m.key, "mean": getattr(reported, m.key)}
        for reported in REPORTED for preset in reported.presets for m in HEADS
    ]  # fmt: skip
    return rows
