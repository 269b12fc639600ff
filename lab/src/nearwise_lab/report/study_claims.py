"""The claims about learned attention over neighbors, and their tests on the records."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import binomtest

from nearwise.metrics import accuracy, bootstrap_interval
from nearwise_lab.experiments.places import Place
from nearwise_lab.experiments.study.presets import CORRECTED
from nearwise_lab.experiments.study.weights import WITH_BASE
from nearwise_lab.report.claims import Claim, Evidence, Finding, compared, joined, judge, valued
from nearwise_lab.report.study import Study
from nearwise_lab.report.summary import Results, paired_across
from nearwise_lab.results.measures import MEASURES

ATTENTION, TTA = "attention", "attention+tta"
MARGIN = 0.01  # one point of accuracy: what "does not matter" and "robust" may cost
# Of the collapse: purity over accuracy, ECE beside the error, and where neither is informative.
EXCESS, GAP, ACCURATE = 0.05, 0.03, 0.95
COST = 2.0
_MEASURES = {m.key: m for m in MEASURES}
_RESAMPLES = 300
_CHANCE = 0.05  # p-value of the test that an accuracy is above chance

Answer = list[Evidence] | str
Find = Callable[[Study, str, str], Answer]
Findings = dict[str, dict[str, dict[str, Finding]]]  # by data set, preset and key


def _paired(
    method: str, references: Sequence[str], key: str, *, weights: bool = False, ours: bool = False
) -> Find:
    """Compare a method with the first of the references that was run, on the same rows.

    With `weights` by the experiment of that name in the corrected method; the replays' main
    experiment weighs the same neighbors in any case. `ours` is of the corrected method alone.
    """

    def find(study: Study, dataset: str, preset: str) -> Answer:
        if ours and preset != CORRECTED:
            return "of the corrected method alone"
        if weights and preset == CORRECTED:
            results = study.part(dataset, Place("weights", preset, WITH_BASE))
            difference = results.paired_over_rows(dataset, method, references[0], key)
            return compared(difference, _MEASURES[key])
        results = study.main(dataset, preset)
        there = (r for r in references if results.paired(dataset, method, r, key))
        if (reference := next(there, None)) is None:
            return []
        found = compared(results.paired(dataset, method, reference, key), _MEASURES[key])
        name = reference.replace(f"{ATTENTION}:", "").replace("-alone", " alone")
        against = f"against {name}" if len(references) > 1 else ""
        if why := _untrained(results, dataset, reference):
            return [replace(found[0], note=why, cap="not judged")]
        return [replace(found[0], note=found[0].note or against)]

    return find


def _untrained(results: Results, dataset: str, method: str) -> str:
    """Reason why a reference cannot be compared, such as no training; empty if there is none."""
    epochs = results.values(dataset, method, "epochs")
    if epochs and min(epochs.values()) < 2:
        return f"{method} was trained for one epoch"
    chance = results.values(dataset, method, "chance")
    n_test = results.values(dataset, method, "n_test")
    for seed, right in results.values(dataset, method, "accuracy").items():
        n = int(n_test[seed])
        if seed in chance:
            test = binomtest(round(right * n), n, chance[seed], alternative="greater")
            if test.pvalue > _CHANCE:
                return f"{method} is at chance, {right:.3f}: it was not trained"
    return ""


def _tta_repairs(study: Study, dataset: str, preset: str) -> Answer:
    """Test whether TTA lowers the calibration error and attention without TTA does not."""
    results, measure = study.main(dataset, preset), _MEASURES["ece"]
    repaired = compared(results.paired(dataset, TTA, ATTENTION, "ece"), measure)
    before = results.mean(dataset, ATTENTION, "ece")
    if not repaired or before is None:
        return []
    share = f"{100 * repaired[0].estimate / max(before.mean, 1e-12):+.0f} % of attention's ECE"
    alone = results.paired(dataset, ATTENTION, "uniform", "ece")
    if (repaired[0].high or 0) < 0 and alone is not None and alone.verdict == "lower":
        amount = compared(alone, measure)[0].amount
        share = joined(share, f"but attention alone changes uniform's ECE by {amount}")
        return [replace(repaired[0], note=share, cap="not validated")]
    return [replace(repaired[0], note=joined(share, repaired[0].note))]


def _between(study: Study, dataset: str, hard: Place, easy: Place, note: str) -> Answer:
    """Accuracy of attention under one condition minus another."""
    found = paired_across(dataset, (study.part(dataset, hard), ATTENTION),
                          (study.part(dataset, easy), ATTENTION), "accuracy")  # fmt: skip
    return compared(found, _MEASURES["accuracy"], note=note)


def _worst_k(study: Study, dataset: str, preset: str) -> Answer:
    places = study.places(dataset, "k-sweep", preset)
    means = {p: study.part(dataset, p).mean(dataset, ATTENTION, "accuracy") for p in places}
    known = {p: mean.mean for p, mean in means.items() if mean is not None}
    if len(known) < 2:
        return []
    best, worst = max(known, key=lambda p: known[p]), min(known, key=lambda p: known[p])
    return _between(study, dataset, worst, best, f"worst {worst.label}, best {best.label}")


def _noisy(where: str, kind: str, method: str = "", reference: str = "", key: str = "") -> Find:
    """Attention at the highest noise rate minus without noise, or two methods at that rate."""

    def find(study: Study, dataset: str, preset: str) -> Answer:
        places = sorted(study.places(dataset, "label-noise", preset), key=lambda p: p.noise)
        places = [p for p in places if p.condition == f"where={where}"]
        places = [p for p in places if not p.noise or p.noise_kind == kind]
        if not places or places[0].noise or not places[-1].noise:
            return []
        worst = places[-1]
        if not method:
            return _between(study, dataset, worst, places[0], worst.label)
        found = study.part(dataset, worst).paired(dataset, method, reference, key)
        return compared(found, _MEASURES[key], note=worst.label)

    return find


def _rarest(name: str) -> Find:
    """Attention at the smallest ratio of class sizes minus equal sizes; `name` is in conditions."""

    def find(study: Study, dataset: str, preset: str) -> Answer:
        places = study.places(dataset, "long-tail", preset)
        places = [p for p in places if p.condition.startswith(f"{name}=")]
        if len(places) < 2:
            return []
        return _between(study, dataset, places[0], places[-1], places[0].label)

    return find


def _cost(study: Study, dataset: str, preset: str) -> Answer:
    """Ratio of attention's time to the time of uniform votes, per seed.

    Of methods that share the encoding of their queries, searching and weighing alone count: next
    to a network any weighting is free.
    """
    results = study.main(dataset, preset)
    mine, theirs = (
        results.values(dataset, method, "search_and_weigh_us_per_row")
        or results.values(dataset, method, "predict_us_per_row")
        for method in (ATTENTION, "uniform")
    )
    ratios = [mine[s] / theirs[s] for s in mine if theirs.get(s)]
    return valued(ratios, digits=2, unit="times uniform's")


def _collapse(study: Study, dataset: str, preset: str) -> Answer:
    """Test for a memory purity above the accuracy, and an ECE near the error.

    Where nearly all answers are right, a good memory looks the same, so it is not judged.
    """
    results = study.main(dataset, preset)
    pure = results.values(dataset, ATTENTION, "memory_purity")
    right = results.values(dataset, ATTENTION, "accuracy")
    errors = results.values(dataset, ATTENTION, "ece")
    seeds = [seed for seed in pure if seed in right and seed in errors]
    if not seeds:
        return "only replays tell the purity of their memory"
    mean = float(np.mean([right[seed] for seed in seeds]))
    excess = [pure[seed] - right[seed] for seed in seeds]
    if mean >= ACCURATE:
        note = f"accuracy {mean:.3f}: from {ACCURATE} on, a good memory is as pure"
        return [Evidence(float(np.mean(excess)), note=note, cap="not judged")]
    gaps = [errors[seed] - (1 - right[seed]) for seed in seeds]
    note = f"purity of the memory minus accuracy; ECE minus the error {np.mean(gaps):+.3f}"
    kept, interval = results.predictions(dataset, ATTENTION, seeds[0]), None
    if len(seeds) == 1 and kept is not None:
        rows = bootstrap_interval(
            lambda y, proba: accuracy(y, np.argmax(proba, axis=1)), kept.y, kept.proba,
            n_resamples=_RESAMPLES,
        )  # fmt: skip
        interval = pure[seeds[0]] - rows.high, pure[seeds[0]] - rows.low
    found = valued(excess, interval, note=note)
    far = found[0].low is not None and max(map(abs, gaps)) > GAP
    return [replace(found[0], cap="not validated")] if far else found


def _leak(study: Study, dataset: str, preset: str) -> Answer:
    """Self-attention of training rows, as a multiple of the uniform share."""
    own, error, even = (
        study.main(dataset, preset).values(dataset, ATTENTION, key)
        for key in ("self_weight", "self_weight_error", "even_share")
    )
    seeds = [seed for seed in own if seed in error and seed in even]
    ratios = [own[seed] / even[seed] for seed in seeds]
    interval = None
    if len(seeds) == 1:
        half = 1.96 * error[seeds[0]] / even[seeds[0]]
        interval = ratios[0] - half, ratios[0] + half
    return valued(ratios, interval, "training rows", digits=2, unit="even shares")


def _title(key: str) -> str:
    return _MEASURES[key].title.removesuffix(" x1000")


_HEAD = ("base", f"{ATTENTION}:base-alone", "cnn+temperature", "mlp+temperature")
_BOUND = ("cnn+temperature", "mlp+temperature")
_WEIGHTINGS = (
    ("uniform", "over uniform weights of the same neighbors", ("uniform",)),
    ("distance", "over distance weights of the same neighbors", ("distance",)),
    ("tuned", "over tuned distance weights of the same neighbors", ("distance-tuned",)),
    ("head", "over the parametric head: the neighbors add to it", _HEAD),
)
_PLAIN = (("uniform", "plain k-NN", "uniform"), ("tuned", "tuned plain k-NN", "distance-tuned"))
_WHERE = (("memory", "the memory alone"), ("everywhere", "all training rows"))
_NOISY = "With the most symmetric noise in all training rows,"
_UNDER_NOISE = (
    ("over-uniform", "attention improves {} over uniform k-NN", ATTENTION, "uniform"),
    ("over-tuned", "attention improves {} over tuned distance k-NN", ATTENTION, "distance-tuned"),
    ("model", "a noise model improves {} of attention", f"{ATTENTION}+noise-model", ATTENTION),
)
_ROBUST = "Attention is robust to {}: accuracy falls by at most"
CLAIMS: tuple[Claim, ...] = (
    *(
        Claim(f"attention-{name}-{key}", f"Learned attention improves {_title(key)} {words}",
              _paired(ATTENTION, references, key, weights=True))
        for name, words, references in _WEIGHTINGS for key in ("accuracy", "nll", "ece", "aurc")
    ),
    *(
        Claim(f"classifier-{name}-{key}", f"The classifier improves {_title(key)} over {words}",
              _paired(ATTENTION, (reference,), key, ours=True))
        for name, words, reference in _PLAIN for key in ("accuracy", "nll")
    ),
    Claim("attention-bound-accuracy",
          "Learned attention improves accuracy over the parametric upper bound",
          _paired(ATTENTION, _BOUND, "accuracy")),
    Claim("tta-accuracy", "TTA improves the accuracy of attention",
          _paired(TTA, (ATTENTION,), "accuracy")),
    Claim("tta-repairs", "TTA alone repairs calibration (ECE)", _tta_repairs),
    Claim("k-ensemble-nll", "The k-ensemble improves the NLL of attention",
          _paired("attention+k-ensemble", (ATTENTION,), "nll")),
    Claim("adaptive-k-accuracy", "Adaptive k improves the accuracy of attention",
          _paired("attention+adaptive-k", (ATTENTION,), "accuracy")),
    Claim("k-does-not-matter",
          "k does not matter: the worst k is at most 1 point of accuracy behind the best",
          _worst_k, -MARGIN),
    *(
        Claim(f"noise-{where}-{kind}",
              f"{_ROBUST.format(f'{kind} label noise in {words}')} 1 point",
              _noisy(where, kind), -MARGIN)
        for where, words in _WHERE for kind in ("symmetric", "asymmetric")
    ),
    *(
        Claim(f"noise-{name}-{key}", f"{_NOISY} {words.format(_title(key))}",
              _noisy("everywhere", "symmetric", method, reference, key))
        for key in ("accuracy", "nll", "ece") for name, words, method, reference in _UNDER_NOISE
    ),
    *(
        Claim(key, f"{_ROBUST.format(f'imbalance{where}')} 1 point at the smallest ratio",
              _rarest(name), -MARGIN)
        for key, where, name in (("imbalance", "", "ratio"),
                                 ("imbalance-memory", " of the memory alone", "memory-ratio"))
    ),
    Claim("little-compute",
          "Attention costs little: once rows are encoded, search and weights take at most twice "
          "the time of uniform k-NN",
          _cost, 0.0, COST),
    Claim("collapse",
          "The replay's memory is collapsed: purer than answers are right by .05 or more, and the "
          "ECE within .03 of the error",
          _collapse, EXCESS, 1.0),
    Claim("leak",
          "The replay's attention favors the leak: a training row gives itself more than an even "
          "share",
          _leak, 1.0),
)  # fmt: skip


def judge_claims(study: Study, dataset: str, preset: str) -> dict[str, Finding]:
    """Compute the verdict on every claim for one data set and preset, by the claims' keys."""
    return {claim.key: judge(claim, study, dataset, preset) for claim in CLAIMS}
