"""The report of the suite, put together from the records and what lies beside them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from nearwise import __version__
from nearwise_lab.experiments.artifacts import load_json
from nearwise_lab.experiments.places import Place
from nearwise_lab.experiments.study.presets import CORRECTED
from nearwise_lab.report.commands import efficiency_command, experiment_command
from nearwise_lab.report.document import Block, Document, Fold, Section, Terms, Words
from nearwise_lab.report.drawing import slug
from nearwise_lab.report.facts import record_facts
from nearwise_lab.report.figures import (
    comparison_bars,
    reliability_diagrams,
    risk_coverage,
    training_curves,
)
from nearwise_lab.report.study.defects import defect_notes
from nearwise_lab.report.study.figures import confusion, memory_map, replay_curves, sweep_lines
from nearwise_lab.report.study.parts import Study, seed_words
from nearwise_lab.report.study.published import SAID
from nearwise_lab.report.study.tables import (
    ablation_table,
    claim_tables,
    cost_table,
    efficiency_table,
    experiment_table,
    published_table,
    sweep_table,
    theory_table,
    uniform_table,
    weights_table,
)
from nearwise_lab.report.study.theory_figures import efficiency_bars, purity_scatter, theory_panels
from nearwise_lab.report.study.verdicts import Finding, tally
from nearwise_lab.report.summary import Results
from nearwise_lab.report.tables import halves_table
from nearwise_lab.results.gallery import make_page_gallery
from nearwise_lab.results.measures import Predictions, Table

ATTENTION = "attention"
TITLE = "Attention over nearest neighbors: the study replayed, and corrected"
# An attention bar and line stand out; these are beside it in diagrams and risk curves.
DIAGRAMS = ("uniform", "distance", "distance-tuned", "attention", "attention+tta",
            "cnn+temperature", "mlp+temperature")  # fmt: skip
Findings = dict[str, dict[str, dict[str, Finding]]]


def study_document(
    study: Study,
    findings: Findings,
    title: str | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Document:
    """Gather words, tables, figures and galleries.

    Parameters
    ----------
    study : Study
    findings : dict
        Of `judge_claims`, by data set and preset.
    title : str, optional
        Heading of the report.
    progress : callable, optional
        Called with a few words before each part.
    """
    sections = []
    for dataset in study.datasets:
        sections.append(_verdict_section(dataset, findings[dataset]))
        sections.append(_published_section(study, dataset))
        for preset in study.presets_of(dataset):
            sections += _preset_sections(study, dataset, preset, progress)
        scatter = purity_scatter(study, dataset)
        if scatter is not None:
            sections.append(Section(f"{dataset}: the collapse", 3, [scatter]))
    sections += _efficiency_sections(study)
    sections.append(_how_section(study))
    footer = (
        f"Made by nearwise {__version__} from records.jsonl in its folder. The same tables are "
        "there as results.md, results.tex, results.csv and results.json; the figures are in "
        "report.html and report.pdf. 'nearwise report' renders all of them again."
    )
    return Document(title or TITLE, _lead(study), [s for s in sections if s.blocks], footer)


def _lead(study: Study) -> str:
    presets = study.presets
    ours = " and v1, the corrected method" if CORRECTED in presets else ""
    replays = [p for p in presets if p != CORRECTED]
    replayed = f"the study's presets {', '.join(replays)} as they were" if replays else ""
    what = f"{replayed}{ours}" if replays else ours.removeprefix(" and ")
    where = f" on {', '.join(study.datasets)}" if study.datasets else ""
    small = "" if not what else f"This report shows {what}{where}, {seed_words(study.seeds)}. "
    return (
        f"{small}Every number and every verdict is computed from the records; a difference inside "
        "its interval is written as none."
    )


def _verdict_section(dataset: str, findings: dict[str, dict[str, Finding]]) -> Section:
    counts = [f"{p}: {tally(f.verdict for f in found.values())}" for p, found in findings.items()]
    return Section(
        f"{dataset}: what became of the claims",
        2,
        [Words(f"{'; '.join(counts)}."), *claim_tables(dataset, findings)],
    )


def _published_section(study: Study, dataset: str) -> Section:
    table = published_table(study, dataset)
    title = f"{dataset}: the study's report, the replay and the corrected method"
    return Section(title, 3, [] if table is None else [table])


def _preset_sections(
    study: Study, dataset: str, preset: str, progress: Callable[[str], None]
) -> list[Section]:
    notes = defect_notes(study, dataset, preset)
    blocks: list[Block] = []
    if notes:
        blocks = [Words("Replayed as it was, with these defects:"), Terms(notes)]
    elif preset == CORRECTED:
        blocks = [
            Words(
                "The corrected method: rows never find themselves, everything that weighs "
                "neighbors is fitted on rows that the memory has not seen, a null neighbor speaks "
                "where the neighbors do not answer."
            )
        ]
    blocks += _failure_words(study, dataset, preset)
    sections = [Section(f"{dataset}, preset {preset}", 2, blocks)]
    there = study.experiments_of(dataset, preset)
    for name, make in _EXPERIMENTS.items():
        if name in there:
            progress(f"{dataset}, {preset}: {_TITLES[name]}")
            made = [b for b in make(study, dataset, preset) if b is not None]
            sections.append(Section(f"{dataset}, {preset}: {_TITLES[name]}", 3, made))
    missing = [e for e in _EXPERIMENTS if e not in there]
    if preset != CORRECTED:  # "weights" exchanges those of the classifier
        missing = [e for e in missing if e != "weights"]
    if missing:
        ask = experiment_command(missing[0], dataset, preset, study.records, study.folder)
        text = f"Not run for {preset} on {dataset}: {', '.join(missing)} (for example: {ask})."
        sections.append(Section(f"{dataset}, {preset}: not run", 3, [Words(text, "note")]))
    return sections


def _failure_words(study: Study, dataset: str, preset: str) -> list[Words]:
    """Failed rows, those with one reason in one sentence."""
    by_reason: dict[str, list[str]] = {}
    for r in study.failures(dataset, preset):
        row = " ".join(filter(None, [r.experiment, r.condition, r.method]))
        by_reason.setdefault(r.reason or "no reason given", []).append(f"{row} (seed {r.seed})")
    return [
        Words(
            f"{len(rows)} row{'s' * (len(rows) > 1)} failed: {reason} Rows: {', '.join(rows)}.",
            "failed",
        )
        for reason, rows in by_reason.items()
    ]


def _main_blocks(study: Study, dataset: str, preset: str) -> list[Block | None]:
    results = study.main(dataset, preset)
    name = f"{dataset}-{preset}"

    def heading(words: str) -> str:
        return study.heading(dataset, results, preset, words)

    costs = cost_table(study, dataset, preset)
    blocks: list[Block | None] = [
        experiment_table(study, dataset, "main", preset),
        None if costs is None else Fold("Times", [costs]),
    ]
    if results.ranked_methods(dataset):
        bars = results.bars(dataset)
        blocks.append(comparison_bars(dataset, bars, ATTENTION, heading("all methods"), name))
    blocks.append(uniform_table(study, dataset, preset))
    blocks += [
        _halves(results, dataset, preset, m)
        for m in results.methods
        if m == ATTENTION or (m.startswith(f"{ATTENTION}+") and results.halves(m))
    ]
    pooled = _pooled(results, dataset)
    if pooled:
        shown = {m: p for m, p in pooled.items() if m in DIAGRAMS}
        blocks.append(
            reliability_diagrams(dataset, shown or pooled, ATTENTION, heading("reliability"), name)
        )
        blocks.append(
            risk_coverage(dataset, shown or pooled, ATTENTION, heading("risk and coverage"), name)
        )
    elif results.methods:
        blocks.append(
            Words(
                "No predictions lie beside these records, so there are no reliability diagrams, "
                "risk-coverage curves and confusion matrices.",
                "note",
            )
        )
    blocks += _kept_blocks(study, dataset, preset, pooled)
    return blocks


def _weights_blocks(study: Study, dataset: str, preset: str) -> list[Block | None]:
    blocks: list[Block | None] = [
        Words(
            "One classifier is fitted per seed and condition. Each weighting gets the neighbors it "
            "found; gates of the spaces and the base, smoothing and temperature are fitted anew "
            "for each, to the same rows that memory and networks have not seen. Uniform: all "
            "alike. Distance: the reciprocal. Distance-tuned: one temperature by the NLL of the "
            "neighbors alone; distance-learned: one per key space, fitted with the pool. "
            "Multi-head: the original study's attention over keys. Attention: the weights of the "
            "classifier's own head, null included; classifier: its prediction with its own pool. "
            "Without a base nothing sees a network's prediction.",
            "note",
        ),
        weights_table(study, dataset, preset),
        experiment_table(study, dataset, "weights", preset),
    ]
    for place in study.places(dataset, "weights", preset):
        results = study.part(dataset, place)
        name = f"{dataset}-{preset}-{slug(place.condition)}"
        heading = study.heading(dataset, results, preset, place.label)
        if results.ranked_methods(dataset):
            bars = results.bars(dataset)
            blocks.append(comparison_bars(dataset, bars, ATTENTION, heading, name))
        pooled = {m: p for m, p in _pooled(results, dataset).items() if m in _DRAWN_WEIGHTS}
        if pooled:
            blocks.append(reliability_diagrams(dataset, pooled, ATTENTION, heading, name))
            blocks.append(risk_coverage(dataset, pooled, ATTENTION, heading, name))
    return blocks


_DRAWN_WEIGHTS = ("base", "uniform", "distance-tuned", "attention")


def _halves(results: Results, dataset: str, preset: str, method: str) -> Table | None:
    table = halves_table(results, dataset, method)
    if table is None:
        return None
    return replace(table, title=f"{dataset}, {preset}: what the two halves of {method} add")


def _kept_blocks(
    study: Study, dataset: str, preset: str, pooled: dict[str, Predictions]
) -> list[Block | None]:
    """Curves, confusion, the map of the memory and the gallery, of the first seed that has each."""
    results = study.main(dataset, preset)
    blocks: list[Block | None] = []
    curves: list[Block] = []
    for method in results.methods:
        found = _first_kept(results, dataset, method, "curves")
        if found is None:
            continue
        seed, history = found
        heading = _seed_heading(study, dataset, results, seed, preset, f"training of {method}")
        drawn = replay_curves(heading, dataset, preset, method, history)
        if drawn is None:
            name = f"{dataset}-{preset}"
            drawn = training_curves(dataset, method, history, heading, name)
        if drawn is not None:
            curves.append(drawn)
    blocks += curves[:2]
    if curves[2:]:
        blocks.append(Fold("Training of the other forms", curves[2:]))
    drawn_map = _first_kept(results, dataset, ATTENTION, "maps")
    if drawn_map is not None:
        heading = _seed_heading(study, dataset, results, drawn_map[0], preset, "map of the memory")
        blocks.append(memory_map(heading, f"map-{slug(f'{dataset}-{preset}')}", drawn_map[1]))
    else:
        blocks.append(Words("No sample of the memory was kept, so there is no map of it.", "note"))
    if pooled:
        best = ATTENTION if ATTENTION in pooled else next(iter(pooled))
        title = study.heading(dataset, results, preset, f"{best}: confusion")
        blocks.append(confusion(title, f"confusion-{slug(f'{dataset}-{preset}')}", pooled[best]))
    gallery = _first_kept(results, dataset, ATTENTION, "galleries")
    if gallery is not None and gallery[1].get("rows"):
        blocks.append(make_page_gallery(dataset, f"{ATTENTION} ({preset})", *gallery))
    else:
        blocks.append(Words("No test rows with their neighbors were kept for a gallery.", "note"))
    return blocks


def _first_kept(results: Results, dataset: str, method: str, what: str) -> tuple[int, Any] | None:
    for seed in results.seeds:
        path = results.artifact(what, dataset, method, seed, "json")
        stored = None if path is None else load_json(path)
        if stored:
            return seed, stored
    return None


def _seed_heading(study: Study, dataset: str, results: Results, seed: int, *words: str) -> str:
    one = Results([r for r in results.records if r.seed == seed])
    return study.heading(dataset, one, *words)


def _pooled(results: Results, dataset: str) -> dict[str, Predictions]:
    """Predictions of all seeds, a method each."""
    pooled = {}
    for method in results.methods:
        parts = [
            p
            for seed in results.values(dataset, method, "nll")
            if (p := results.predictions(dataset, method, seed)) is not None
        ]
        if parts:
            pooled[method] = Predictions(
                np.concatenate([p.y for p in parts]),
                np.concatenate([p.proba for p in parts]),
                np.concatenate([p.test_index for p in parts]),
                parts[0].classes,
            )
    return pooled


def _sweep_blocks(experiment: str) -> Callable[[Study, str, str], list[Block | None]]:
    def blocks(study: Study, dataset: str, preset: str) -> list[Block | None]:
        places = study.places(dataset, experiment, preset)
        table = experiment_table(study, dataset, experiment, preset)
        return [
            *([Words(SAID[experiment], "note")] if preset != CORRECTED else []),
            *(
                sweep_lines(study, dataset, experiment, list(some), words)
                for words, some in groupby(places, key=_varied)
            ),
            sweep_table(study, dataset, experiment, preset),
            None if table is None else Fold("Every method at every condition", [table]),
        ]

    return blocks


def _varied(place: Place) -> str:
    """Name what a sweep varied, where the experiment's name does not say it."""
    return "long-tail in the memory only" if place.condition.startswith("memory-") else ""


def _noise_blocks(study: Study, dataset: str, preset: str) -> list[Block | None]:
    experiment = "label-noise"
    places = study.places(dataset, experiment, preset)
    blocks: list[Block | None] = []
    if preset != CORRECTED:
        blocks.append(Words(SAID[experiment], "note"))
    for where in dict.fromkeys(p.condition for p in places):
        for kind in dict.fromkeys(p.noise_kind for p in places):
            some = [
                p for p in places if p.condition == where and (not p.noise or p.noise_kind == kind)
            ]
            in_words = {"where=memory": "the memory only"}.get(where, "all training rows")
            words = f"{kind} label noise in {in_words}"
            blocks.append(sweep_lines(study, dataset, experiment, some, words))
    table = experiment_table(study, dataset, experiment, preset)
    blocks.append(sweep_table(study, dataset, experiment, preset))
    blocks.append(None if table is None else Fold("Every method at every condition", [table]))
    return blocks


def _theory_blocks(study: Study, dataset: str, preset: str) -> list[Block | None]:
    return [theory_panels(study, dataset, preset), theory_table(study, dataset, preset)]


def _ablation_blocks(study: Study, dataset: str, preset: str) -> list[Block | None]:
    table = experiment_table(study, dataset, "ablation", preset)
    return [
        ablation_table(study, dataset, preset),
        None if table is None else Fold("Every method at every condition", [table]),
    ]


_EXPERIMENTS: dict[str, Callable[[Study, str, str], list[Block | None]]] = {
    "main": _main_blocks,
    "weights": _weights_blocks,
    "k-sweep": _sweep_blocks("k-sweep"),
    "label-noise": _noise_blocks,
    "long-tail": _sweep_blocks("long-tail"),
    "theory": _theory_blocks,
    "ablation": _ablation_blocks,
}
_TITLES = {
    "main": "all methods",
    "weights": "weights of the same neighbors",
    "k-sweep": "how many neighbors",
    "label-noise": "label noise",
    "long-tail": "imbalance",
    "theory": "why",
    "ablation": "one part at a time",
}


def _efficiency_sections(study: Study) -> list[Section]:
    sets = sorted({r.dataset for r in study.records if r.experiment == "efficiency"})
    sections = []
    for dataset in sets:
        blocks: Sequence[Block | None] = [
            Words(SAID["efficiency"], "note"),
            efficiency_bars(study, dataset),
            efficiency_table(study, dataset),
        ]
        kept = [b for b in blocks if b is not None]
        sections.append(Section(f"Efficiency of search: {dataset}", 2, kept))
    if not sets:
        text = f"Not run: efficiency ({efficiency_command(study.folder)})."
        sections.append(Section("Efficiency of search", 2, [Words(text, "note")]))
    return sections


def _how_section(study: Study) -> Section:
    return Section(
        "How this was measured",
        2,
        [
            Words(
                "Means over seeds with Student's 95 % interval. Differences are paired by seed on "
                "the same test rows; a single seed is compared by a bootstrap over its test rows. "
                "NLL is in nats per row, clipped at 1e-7 unless said otherwise. ECE has 15 "
                "equal-width bins of the top probability. Brier is summed over classes. AURC is "
                "the mean error over all coverages. The test part is read once, except where a "
                "defect of a replay says so."
            ),
            Fold("Hardware, versions and commands", [Terms(record_facts(study.records))]),
        ],
    )
