"""Published numbers of the original study on CIFAR-10, and measured effects of its defects.

The only place where numbers are typed.
"""

from typing import NamedTuple

from nearwise_lab.experiments.places import Place
from nearwise_lab.experiments.study import DEFECTS, PRESETS, StudyPreset
from nearwise_lab.report.claims import compared
from nearwise_lab.report.compare import kept_files
from nearwise_lab.report.study import Study
from nearwise_lab.report.summary import paired_across
from nearwise_lab.results.measures import Measure

SOURCE = "the study's own report, CIFAR-10 at full size, one run a version"
DATASET = "cifar10"
ATTENTION = "attention"


class Reported(NamedTuple):
    """One reported row: versions, method, accuracy, NLL (clipped at 1e-9) and ECE (15 bins)."""

    presets: tuple[str, ...]
    method: str
    accuracy: float
    nll: float
    ece: float


_EARLY = ("v0.1", "v0.2", "v0.3")
REPORTED: tuple[Reported, ...] = (
    Reported(_EARLY, "uniform", 0.8861, 1.021, 0.0165),
    Reported(_EARLY, "distance", 0.8862, 1.018, 0.0347),
    Reported(_EARLY, "attention", 0.8854, 1.025, 0.0329),
    Reported(("v0.4",), "uniform", 0.8969, 0.964, 0.0243),
    Reported(("v0.4",), "distance", 0.8970, 0.964, 0.0566),
    Reported(("v0.4",), "attention", 0.8970, 0.964, 0.0578),
    Reported(("v0.4",), "cnn", 0.9494, 0.258, 0.0718),
    Reported(("v0.5",), "uniform", 0.8682, 2.053, 0.1297),
    Reported(("v0.5",), "distance", 0.8685, 2.054, 0.1099),
    Reported(("v0.5",), "attention", 0.8685, 2.054, 0.1300),
    Reported(("v0.5",), "attention+tta", 0.8720, 0.967, 0.0283),
    Reported(("v0.5",), "attention+k-ensemble", 0.8683, 2.047, 0.1299),
    Reported(("v0.5",), "cnn", 0.9512, 0.242, 0.0685),
    Reported(("v0.6",), "uniform", 0.8557, 2.028, 0.1336),
    Reported(("v0.6",), "distance", 0.8555, 2.028, 0.1169),
    Reported(("v0.6",), "attention", 0.8548, 2.058, 0.1359),
    Reported(("v0.6",), "attention+tta", 0.8554, 0.931, 0.0379),
    Reported(("v0.6",), "cnn", 0.9497, 0.247, 0.0726),
)

# What it reported on the other experiments, by experiment.
SAID: dict[str, str] = {
    "k-sweep": (
        "The study (v0.5, CIFAR-10) reported accuracies from 0.8680 to 0.8686 for every method and "
        "every k from 1 to 50."
    ),
    "label-noise": (
        "The study (v0.4, CIFAR-10, wrong labels in the memory alone) reported accuracy falling "
        "from 0.897 to 0.892 at 30 % symmetric noise, for every method."
    ),
    "long-tail": (
        "The study (v0.4, CIFAR-10, rows taken from the memory alone) reported accuracies from "
        "0.887 to 0.888 at ratio 0.01."
    ),
    "efficiency": (
        "The study (50,000 x 256 keys, k = 10, an Apple M4 Max) reported, in ms per query: flat L2 "
        "0.034, inner product 0.027, HNSW 0.051 and 41 s to build it; attention under 0.5."
    ),
}

# What of the records shows each defect, in the names of `_measured`.
_SHOWN = {
    "misaligned": "attention's accuracy differs from uniform k-NN's by {over_uniform}",
    "leak": "knn loss of the training rows {knn_loss_with_self:.4f} with themselves among their "
    "neighbors, {knn_loss_without_self:.4f} without; {self_weight:.1%} of the attention on "
    "oneself, where an even share is {even_share:.1%}",
    "collapse": "{memory_purity:.1%} of the neighbors of a remembered row carry its label; those "
    "of a test row agree to {purity:.1%}, and their vote is right for {vote:.1%}",
    "nothing-held-out": "attention's ECE is {ece:.4f} where its error is {error:.4f}",
    "noise-in-memory-only": "attention's accuracy goes {noise}",
    "tail-in-memory-only": "attention's accuracy goes {tail}",
    "mixup-neighbors": "without MixUp accuracy changes by {without_mixup}",
    "test-chosen": "the chosen epoch is {gain:.2f} points above the last one on the test rows",
}
_DETAILS = (
    "knn_loss_with_self", "knn_loss_without_self", "self_weight", "even_share", "purity", "excess",
    "memory_purity",
)  # fmt: skip
_POINTS = Measure("accuracy", "accuracy", 2, True, 100.0)


def defect_notes(study: Study, dataset: str, preset: str) -> list[tuple[str, str]]:
    """Describe each defect of a replay and its effect in the records."""
    settings = PRESETS.get(preset)
    for record in study.main(dataset, preset).records:
        try:
            settings = StudyPreset(**record.choice["settings"])
            break
        except (KeyError, TypeError, ValueError):  # none kept, or of another version of nearwise
            continue
    measured, notes = _measured(study, dataset, preset), []
    for name in settings.defects if settings is not None else ():
        try:
            shown = f"Here: {_SHOWN[name].format(**measured)}."
        except KeyError:
            shown = "Not measured here."
        notes.append((name.replace("-", " "), f"{DEFECTS[name]} {shown}"))
    return notes


def _measured(study: Study, dataset: str, preset: str) -> dict[str, float | str]:
    """Collect the measured values of attention."""
    results = study.main(dataset, preset)
    found: dict[str, float] = {}
    places = [Place("main", preset)] + [Place("theory", preset, c) for c in ("leak", "collapse")]
    for key in _DETAILS:
        for mean in (study.part(dataset, p).mean(dataset, ATTENTION, key) for p in places):
            if mean is not None:
                found.setdefault(key, mean.mean)
    if {"purity", "excess"} <= set(found):
        found["vote"] = found["purity"] - found["excess"]
    ece, right = (results.mean(dataset, ATTENTION, key) for key in ("ece", "accuracy"))
    if ece is not None and right is not None:
        found |= {"ece": ece.mean, "error": 1 - right.mean}
    histories = [history for _, history in kept_files(results, "curves", dataset, ATTENTION)]
    tested = [[r["test_accuracy"] for r in h if r.get("test_accuracy")] for h in histories]
    gains = [100 * (max(run) - run[-1]) for run in tested if run]
    if gains:
        found["gain"] = sum(gains) / len(gains)
    one, full = (
        study.part(dataset, Place("ablation", preset, c)) for c in ("without=mixup", "full")
    )
    differences = {
        "over_uniform": results.paired(dataset, ATTENTION, "uniform", "accuracy"),
        "without_mixup": paired_across(dataset, (one, ATTENTION), (full, ATTENTION), "accuracy"),
    }
    said = {k: compared(d, _POINTS) for k, d in differences.items()}
    words = {}
    for key, name, ends in (("noise", "label-noise", _WRONG), ("tail", "long-tail", _RARE)):
        parts = [_change(study, dataset, preset, name, *end) for end in ends]
        if any(parts):
            words[key] = " and ".join(filter(None, parts))
    return found | words | {k: f"{e[0].amount} points" for k, e in said.items() if e}


_WRONG = (("where=memory", "{:.0%} wrong labels (memory)"),
          ("where=everywhere", "{:.0%} wrong labels (everywhere)"))  # fmt: skip
_RARE = (("memory-ratio=", "ratio {:g} (memory)"), ("ratio=", "ratio {:g} (everywhere)"))


def _change(
    study: Study, dataset: str, preset: str, experiment: str, condition: str, words: str
) -> str:
    """Describe the change of accuracy, from the easiest to the hardest condition."""
    found = [p for p in study.places(dataset, experiment, preset)
             if p.condition.startswith(condition) and p.noise_kind == "symmetric"]  # fmt: skip
    means = [(p, study.part(dataset, p).mean(dataset, ATTENTION, "accuracy")) for p in found]
    known = [(p.number or 0.0, m.mean) for p, m in means if m is not None]
    known.sort(reverse=experiment == "long-tail")
    if len(known) < 2:
        return ""
    return f"from {known[0][1]:.4f} to {known[-1][1]:.4f} at {words.format(known[-1][0])}"
