"""The defects of the replayed versions, each with what the records show of it."""

from collections.abc import Callable

from nearwise_lab.comparisons import PairedDifference
from nearwise_lab.experiments.artifacts import load_json
from nearwise_lab.experiments.places import Place
from nearwise_lab.experiments.study import DEFECTS, PRESETS, StudyPreset
from nearwise_lab.report.study.parts import Study
from nearwise_lab.report.summary import paired_across

ATTENTION = "attention"
NOT_MEASURED = "Not measured here."


def preset_settings(study: Study, dataset: str, preset: str) -> StudyPreset | None:
    """Give the settings a replay was run with, else those of its version; None for "v1"."""
    for record in study.main(dataset, preset).records:
        settings = record.choice.get("settings")
        if isinstance(settings, dict):
            try:
                return StudyPreset.model_validate(settings)
            except ValueError:  # written by another version of nearwise
                break
    return PRESETS.get(preset)


def defect_notes(study: Study, dataset: str, preset: str) -> list[tuple[str, str]]:
    """Name each defect of a replay with what it does and what the records show.

    Returns
    -------
    notes : list of (name, sentences)
        Empty for a preset without defects.
    """
    settings = preset_settings(study, dataset, preset)
    if settings is None:
        return []
    notes = []
    for name in settings.defects:
        shown = _SHOWN[name](study, dataset, preset) or NOT_MEASURED
        notes.append((name.replace("-", " "), f"{DEFECTS[name]} {shown}"))
    return notes


def _leak(study: Study, dataset: str, preset: str) -> str:
    values = [
        _detail(study, dataset, preset, key)
        for key in ("knn_loss_with_self", "knn_loss_without_self", "self_weight", "even_share")
    ]
    if values[0] is None or values[1] is None:
        return ""
    text = (
        f"Here: knn loss of the training rows {values[0]:.4f} with themselves among their "
        f"neighbors, {values[1]:.4f} without"
    )
    if values[2] is not None and values[3] is not None:
        text += (
            f"; {100 * values[2]:.1f} % of the attention on oneself, where an even share is "
            f"{100 * values[3]:.1f} %"
        )
    return f"{text}."


def _collapse(study: Study, dataset: str, preset: str) -> str:
    purity, excess, pure = (
        _detail(study, dataset, preset, key) for key in ("purity", "excess", "memory_purity")
    )
    if purity is None or excess is None or pure is None:
        return ""
    return (
        f"Here: {100 * pure:.1f} % of the neighbors of a remembered row carry its label; those of "
        f"a test row agree to {100 * purity:.1f} %, and their vote is right for "
        f"{100 * (purity - excess):.1f} %."
    )


def _nothing_held_out(study: Study, dataset: str, preset: str) -> str:
    results = study.main(dataset, preset)
    ece = results.mean(dataset, ATTENTION, "ece")
    accuracy = results.mean(dataset, ATTENTION, "accuracy")
    if ece is None or accuracy is None:
        return ""
    return f"Here: attention's ECE is {ece.mean:.4f} where its error is {1 - accuracy.mean:.4f}."


def _memory_noise(study: Study, dataset: str, preset: str) -> str:
    shown = []
    for where in ("memory", "everywhere"):
        places = [
            p
            for p in study.places(dataset, "label-noise", preset)
            if p.condition == f"where={where}" and p.noise_kind == "symmetric"
        ]
        means = [study.part(dataset, p).mean(dataset, ATTENTION, "accuracy") for p in places]
        known = [(p, m.mean) for p, m in zip(places, means, strict=True) if m is not None]
        if len(known) > 1:
            (_, first), (last, worst) = known[0], known[-1]
            shown.append(
                f"{first:.4f} to {worst:.4f} with {100 * last.noise:.0f} % wrong labels ({where})"
            )
    return f"Here: attention's accuracy goes from {' and from '.join(shown)}." if shown else ""


def _memory_tail(study: Study, dataset: str, preset: str) -> str:
    shown = []
    for name, where in (("memory-ratio", "memory"), ("ratio", "everywhere")):
        places = study.places(dataset, "long-tail", preset)
        places = [p for p in places if p.condition.startswith(f"{name}=") and p.number is not None]
        means = [study.part(dataset, p).mean(dataset, ATTENTION, "accuracy") for p in places]
        known = [(p, m.mean) for p, m in zip(places, means, strict=True) if m is not None]
        if len(known) > 1:
            (least, worst), (_, even) = known[0], known[-1]
            shown.append(f"{even:.4f} to {worst:.4f} at ratio {least.number:g} ({where})")
    return f"Here: attention's accuracy goes from {' and from '.join(shown)}." if shown else ""


def _mixup(study: Study, dataset: str, preset: str) -> str:
    one, full = (
        study.part(dataset, Place("ablation", preset, c)) for c in ("without=mixup", "full")
    )
    found = paired_across(dataset, (one, ATTENTION), (full, ATTENTION), "accuracy")
    return "" if found is None else f"Here: without MixUp accuracy changes by {_amount(found)}."


def _test_chosen(study: Study, dataset: str, preset: str) -> str:
    results = study.main(dataset, preset)
    gains = []
    for seed in results.seeds:
        path = results.artifact("curves", dataset, ATTENTION, seed, "json")
        history = None if path is None else load_json(path)
        accuracies = [r["test_accuracy"] for r in history or [] if r.get("test_accuracy")]
        if accuracies:
            gains.append(max(accuracies) - accuracies[-1])
    if not gains:
        return ""
    gain = sum(gains) / len(gains)
    return f"Here: the chosen epoch is {100 * gain:.2f} points above the last one on the test rows."


def _misaligned(study: Study, dataset: str, preset: str) -> str:
    found = study.main(dataset, preset).paired(dataset, ATTENTION, "uniform", "accuracy")
    if found is None:
        return ""
    return f"Here: attention's accuracy differs from uniform k-NN's by {_amount(found)}."


_SHOWN: dict[str, Callable[[Study, str, str], str]] = {
    "misaligned": _misaligned,
    "leak": _leak,
    "collapse": _collapse,
    "nothing-held-out": _nothing_held_out,
    "noise-in-memory-only": _memory_noise,
    "tail-in-memory-only": _memory_tail,
    "mixup-neighbors": _mixup,
    "test-chosen": _test_chosen,
}


def _detail(study: Study, dataset: str, preset: str, key: str) -> float | None:
    for place in (
        Place("main", preset),
        Place("theory", preset, "leak"),
        Place("theory", preset, "collapse"),
    ):
        found = study.detail(dataset, place, ATTENTION, key)
        if found is not None:
            return found.mean
    return None


def _amount(found: PairedDifference) -> str:
    text = f"{100 * found.mean:+.2f} points"
    if abs(found.low) == float("inf"):
        return text
    return f"{text} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
