"""The claims about learned attention over neighbors, each tested on the records."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest

from nearwise.metrics import accuracy, bootstrap_interval
from nearwise.metrics.checks import FloatArray
from nearwise_lab.experiments.places import Place
from nearwise_lab.experiments.study.presets import CORRECTED
from nearwise_lab.experiments.study.weights import WITH_BASE
from nearwise_lab.report.study.parts import Study
from nearwise_lab.report.study.verdicts import (
    Finding,
    joined,
    judge_improvement,
    judge_margin,
    judge_range,
    not_measured,
)
from nearwise_lab.report.summary import Results, paired_across
from nearwise_lab.results.measures import MEASURES, Measure

ATTENTION, TTA = "attention", "attention+tta"
MARGIN = 0.01  # one point of accuracy: what "does not matter" and "robust" may cost
# Of the collapse: purity over accuracy, ECE beside the error, and where neither is informative.
EXCESS, GAP, ACCURATE = 0.05, 0.03, 0.95
COST = 2.0
_MEASURES = {m.key: m for m in MEASURES}
_RESAMPLES = 300
_CHANCE = 0.05  # p-value of the test that an accuracy is above chance

Judge = Callable[[Study, str, str], Finding]


@dataclass(frozen=True)
class Claim:
    """A claim and how the records decide it.

    Attributes
    ----------
    key : str
        Short name for JSON and CSV.
    text : str
        The claim in words.
    judge : callable
        Takes the study, a data set and a preset.
    """

    key: str
    text: str
    judge: Judge


def improves(method: str, references: tuple[str, ...], key: str, experiment: str = "main") -> Judge:
    """Compare a method with the first of the references that was run, on the same rows."""

    def judge(study: Study, dataset: str, preset: str) -> Finding:
        place = Place(experiment, preset)
        results = study.part(dataset, place)
        for reference in references:
            difference = results.paired(dataset, method, reference, key)
            if difference is not None:
                found = judge_improvement(difference, _MEASURES[key])
                found = replace(found, note=found.note or _against(reference, references))
                why = _untrained(study, dataset, place, reference)
                return replace(found, verdict="not judged", note=why) if why else found
        return not_measured()

    return judge


def weighs_better(references: tuple[str, ...], key: str) -> Judge:
    """Compare attention with another weighting of the same neighbors.

    In the corrected method by the experiment "weights"; the replays' main experiment weighs the
    same neighbors in any case.
    """

    def judge(study: Study, dataset: str, preset: str) -> Finding:
        if preset != CORRECTED:
            return improves(ATTENTION, references, key)(study, dataset, preset)
        results = study.part(dataset, Place("weights", preset, WITH_BASE))
        difference = results.paired_over_rows(dataset, ATTENTION, references[0], key)
        if difference is None:
            return not_measured()
        return judge_improvement(difference, _MEASURES[key])

    return judge


def whole_improves(reference: str, key: str) -> Judge:
    """Compare the whole classifier with a method that shares no network with it."""

    def judge(study: Study, dataset: str, preset: str) -> Finding:
        if preset != CORRECTED:
            return not_measured("of the corrected method alone")
        return improves(ATTENTION, (reference,), key)(study, dataset, preset)

    return judge


def tta_repairs(study: Study, dataset: str, preset: str) -> Finding:
    """TTA lowers the calibration error, and attention without it does not."""
    results, measure = study.main(dataset, preset), _MEASURES["ece"]
    repaired = judge_improvement(results.paired(dataset, TTA, ATTENTION, "ece"), measure)
    before = results.mean(dataset, ATTENTION, "ece")
    if repaired.estimate is None or before is None:
        return not_measured()
    note = f"{100 * repaired.estimate / max(before.mean, 1e-12):+.0f} % of attention's ECE"
    alone = judge_improvement(results.paired(dataset, ATTENTION, "uniform", "ece"), measure)
    if repaired.verdict == "validated" and alone.verdict == "validated":
        note += f"; but attention alone changes uniform's ECE by {alone.amount}"
        return replace(repaired, verdict="not validated", note=note)
    return replace(repaired, note=joined(note, repaired.note))


def k_is_free(study: Study, dataset: str, preset: str) -> Finding:
    """Attention's worst k against its best."""
    places = study.places(dataset, "k-sweep", preset)
    means = {p: study.part(dataset, p).mean(dataset, ATTENTION, "accuracy") for p in places}
    known = {p: mean.mean for p, mean in means.items() if mean is not None}
    if len(known) < 2:
        return not_measured()
    best, worst = max(known, key=lambda p: known[p]), min(known, key=lambda p: known[p])
    difference = paired_across(
        dataset,
        (study.part(dataset, worst), ATTENTION),
        (study.part(dataset, best), ATTENTION),
        "accuracy",
    )
    note = f"worst {worst.label}, best {best.label}"
    return judge_margin(difference, _MEASURES["accuracy"], MARGIN, note)


def survives_noise(where: str, kind: str) -> Judge:
    """Attention at the highest rate of noise against none."""

    def judge(study: Study, dataset: str, preset: str) -> Finding:
        ends = _noise_ends(study, dataset, preset, where, kind)
        return _drop(study, dataset, ends, "accuracy")

    return judge


def better_under_noise(method: str, reference: str, key: str) -> Judge:
    """Compare two methods at the highest rate of symmetric noise in all rows."""

    def judge(study: Study, dataset: str, preset: str) -> Finding:
        ends = _noise_ends(study, dataset, preset, "everywhere", "symmetric")
        if ends is None:
            return not_measured()
        noisy = study.part(dataset, ends[1])
        found = judge_improvement(noisy.paired(dataset, method, reference, key), _MEASURES[key])
        return replace(found, note=joined(ends[1].label, found.note))

    return judge


def survives_imbalance(name: str) -> Judge:
    """Attention at the smallest ratio against the even one; `name` is that of the conditions."""

    def judge(study: Study, dataset: str, preset: str) -> Finding:
        found = study.places(dataset, "long-tail", preset)
        places = {p.number: p for p in found if p.condition.startswith(f"{name}=")}
        numbers = [number for number in places if number is not None]
        if len(numbers) < 2:
            return not_measured()
        return _drop(study, dataset, (places[max(numbers)], places[min(numbers)]), "accuracy")

    return judge


def costs_little(study: Study, dataset: str, preset: str) -> Finding:
    """Time of attention over that of uniform, seed by seed.

    Of methods that share the encoding of their queries, searching and weighing alone count: next
    to a network any weighting is free.
    """
    results, place = study.main(dataset, preset), Place("main", preset)
    mine, theirs = (
        study.details(dataset, place, method, "search_and_weigh_us_per_row")
        or results.values(dataset, method, "predict_us_per_row")
        for method in (ATTENTION, "uniform")
    )
    ratios = [mine[s] / theirs[s] for s in mine if theirs.get(s)]
    if not ratios:
        return not_measured()
    return judge_range(ratios, 0.0, COST, digits=2, unit="times uniform's")


def collapses(study: Study, dataset: str, preset: str) -> Finding:
    """Find the memory purer than answers are right, and the calibration error near the error.

    Where nearly all answers are right, a good memory looks the same, so it is not judged.
    """
    results = study.main(dataset, preset)
    pure = study.details(dataset, Place("main", preset), ATTENTION, "memory_purity")
    right = results.values(dataset, ATTENTION, "accuracy")
    errors = results.values(dataset, ATTENTION, "ece")
    seeds = [seed for seed in pure if seed in right and seed in errors]
    if not seeds:
        return not_measured("only replays tell the purity of their memory")
    accuracy = float(np.mean([right[seed] for seed in seeds]))
    excess = [pure[seed] - right[seed] for seed in seeds]
    if accuracy >= ACCURATE:
        note = f"accuracy {accuracy:.3f}: from {ACCURATE} on, a good memory is as pure"
        return Finding("not judged", float(np.mean(excess)), note=note)
    gaps = [errors[seed] - (1 - right[seed]) for seed in seeds]
    note = f"purity of the memory minus accuracy; ECE minus the error {np.mean(gaps):+.3f}"
    rows = _accuracy_over_rows(results, dataset, seeds[0]) if len(seeds) == 1 else None
    interval = None if rows is None else (pure[seeds[0]] - rows[1], pure[seeds[0]] - rows[0])
    found = judge_range(excess, EXCESS, 1.0, note=note, interval=interval)
    if found.verdict == "validated" and max(map(abs, gaps)) > GAP:
        return replace(found, verdict="not validated")
    return found


def leaks(study: Study, dataset: str, preset: str) -> Finding:
    """Measure the attention of training rows on themselves, in even shares."""
    own, error, even = (
        study.details(dataset, Place("main", preset), ATTENTION, key)
        for key in ("self_weight", "self_weight_error", "even_share")
    )
    seeds = [seed for seed in own if seed in error and seed in even]
    ratios = [own[seed] / even[seed] for seed in seeds]
    interval = None
    if len(seeds) == 1:
        half = 1.96 * error[seeds[0]] / even[seeds[0]]
        interval = ratios[0] - half, ratios[0] + half
    found = judge_range(ratios, 1.0, float("inf"), interval=interval, digits=2, unit="even shares")
    return replace(found, over="training rows") if interval is not None else found


def _untrained(study: Study, dataset: str, place: Place, method: str) -> str:
    """Why a reference that was trained for comparison is none; empty where it is one."""
    epochs = study.details(dataset, place, method, "epochs")
    if epochs and min(epochs.values()) < 2:
        return f"{method} was trained for one epoch"
    chance = study.details(dataset, place, method, "chance")
    for record in study.part(dataset, place).records:
        if record.method == method and record.seed in chance and record.accuracy is not None:
            right = round(record.accuracy * record.n_test)
            test = binomtest(right, record.n_test, chance[record.seed], alternative="greater")
            if test.pvalue > _CHANCE:
                return f"{method} is at chance, {record.accuracy:.3f}: it was not trained"
    return ""


def _accuracy_over_rows(results: Results, dataset: str, seed: int) -> tuple[float, float] | None:
    kept = results.predictions(dataset, ATTENTION, seed)
    if kept is None:
        return None

    def right(y: FloatArray, proba: FloatArray) -> float:
        return accuracy(y, np.argmax(proba, axis=1))

    found = bootstrap_interval(right, kept.y, kept.proba, n_resamples=_RESAMPLES)  # type: ignore[arg-type]
    return found.low, found.high


def _noise_ends(
    study: Study, dataset: str, preset: str, where: str, kind: str
) -> tuple[Place, Place] | None:
    places = [
        p
        for p in study.places(dataset, "label-noise", preset)
        if p.condition == f"where={where}" and (not p.noise or p.noise_kind == kind)
    ]
    if len(places) < 2:
        return None
    ends = min(places, key=lambda p: p.noise), max(places, key=lambda p: p.noise)
    return ends if not ends[0].noise and ends[1].noise else None


def _drop(study: Study, dataset: str, ends: tuple[Place, Place] | None, key: str) -> Finding:
    if ends is None:
        return not_measured()
    easy, hard = (study.part(dataset, place) for place in ends)
    difference = paired_across(dataset, (hard, ATTENTION), (easy, ATTENTION), key)
    return judge_margin(difference, _MEASURES[key], MARGIN, ends[1].label)


def _against(reference: str, references: tuple[str, ...]) -> str:
    if len(references) == 1:
        return ""
    return f"against {reference.replace(f'{ATTENTION}:', '').replace('-alone', ' alone')}"


def _better_claims(name: str, words: str, references: tuple[str, ...]) -> list[Claim]:
    keys = ("accuracy", "nll", "ece", "aurc")
    return [
        Claim(
            f"attention-{name}-{key}",
            f"Learned attention improves {_title(_MEASURES[key])} {words}",
            weighs_better(references, key),
        )
        for key in keys
    ]


def _whole_claims(name: str, words: str, reference: str) -> list[Claim]:
    return [
        Claim(
            f"classifier-{name}-{key}",
            f"The classifier improves {_title(_MEASURES[key])} over {words}",
            whole_improves(reference, key),
        )
        for key in ("accuracy", "nll")
    ]


def _title(measure: Measure) -> str:
    return measure.title.removesuffix(" x1000")


def _noise_claims() -> list[Claim]:
    claims = []
    for where, words in (("memory", "the memory alone"), ("everywhere", "all training rows")):
        for kind in ("symmetric", "asymmetric"):
            text = (
                f"Attention is robust to {kind} label noise in {words}: accuracy falls by at most"
            )
            claims.append(
                Claim(f"noise-{where}-{kind}", f"{text} 1 point", survives_noise(where, kind))
            )
    start = "With the most symmetric noise in all training rows,"
    for key in ("accuracy", "nll", "ece"):
        measure = _title(_MEASURES[key])
        for name, reference, words in (
            ("uniform", "uniform", "uniform k-NN"),
            ("tuned", "distance-tuned", "tuned distance k-NN"),
        ):
            text = f"{start} attention improves {measure} over {words}"
            judge = better_under_noise(ATTENTION, reference, key)
            claims.append(Claim(f"noise-over-{name}-{key}", text, judge))
        text = f"{start} a noise model improves {measure} of attention"
        judge = better_under_noise(f"{ATTENTION}+noise-model", ATTENTION, key)
        claims.append(Claim(f"noise-model-{key}", text, judge))
    return claims


_HEAD = ("base", f"{ATTENTION}:base-alone", "cnn+temperature", "mlp+temperature")
_BOUND = ("cnn+temperature", "mlp+temperature")
CLAIMS: tuple[Claim, ...] = (
    *_better_claims("uniform", "over uniform weights of the same neighbors", ("uniform",)),
    *_better_claims("distance", "over distance weights of the same neighbors", ("distance",)),
    *_better_claims(
        "tuned", "over tuned distance weights of the same neighbors", ("distance-tuned",)
    ),
    *_better_claims("head", "over the parametric head: the neighbors add to it", _HEAD),
    *_whole_claims("uniform", "plain k-NN", "uniform"),
    *_whole_claims("tuned", "tuned plain k-NN", "distance-tuned"),
    Claim(
        "attention-bound-accuracy",
        "Learned attention improves accuracy over the parametric upper bound",
        improves(ATTENTION, _BOUND, "accuracy"),
    ),
    Claim(
        "tta-accuracy",
        "TTA improves the accuracy of attention",
        improves(TTA, (ATTENTION,), "accuracy"),
    ),
    Claim("tta-repairs", "TTA alone repairs calibration (ECE)", tta_repairs),
    Claim(
        "k-ensemble-nll",
        "The k-ensemble improves the NLL of attention",
        improves("attention+k-ensemble", (ATTENTION,), "nll"),
    ),
    Claim(
        "adaptive-k-accuracy",
        "Adaptive k improves the accuracy of attention",
        improves("attention+adaptive-k", (ATTENTION,), "accuracy"),
    ),
    Claim(
        "k-does-not-matter",
        "k does not matter: the worst k is at most 1 point of accuracy behind the best",
        k_is_free,
    ),
    *_noise_claims(),
    *(
        Claim(
            key,
            f"Attention is robust to imbalance{where}: accuracy falls by at most 1 point at the "
            "smallest ratio",
            survives_imbalance(name),
        )
        for key, where, name in (
            ("imbalance", "", "ratio"),
            ("imbalance-memory", " of the memory alone", "memory-ratio"),
        )
    ),
    Claim(
        "little-compute",
        "Attention costs little: once rows are encoded, search and weights take at most twice the "
        "time of uniform k-NN",
        costs_little,
    ),
    Claim(
        "collapse",
        "The replay's memory is collapsed: purer than answers are right by .05 or more, and the "
        "ECE within .03 of the error",
        collapses,
    ),
    Claim(
        "leak",
        "The replay's attention favors the leak: a training row gives itself more than an even "
        "share",
        leaks,
    ),
)


def judge_claims(study: Study, dataset: str, preset: str) -> dict[str, Finding]:
    """Judge every claim for one data set and preset, by the claims' keys."""
    return {claim.key: claim.judge(study, dataset, preset) for claim in CLAIMS}
