"""The study's experiments on a replayed preset, each as a list of jobs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from nearwise_lab.corrupt import label_noise, long_tail
from nearwise_lab.experiments.artifacts import keep_json
from nearwise_lab.experiments.runner import Job
from nearwise_lab.experiments.study.evaluate import NEIGHBOR_METHODS, evaluate_run, sweep
from nearwise_lab.experiments.study.findings import (
    collapse,
    error_against_k,
    leak,
    memory_map,
    sphere,
)
from nearwise_lab.experiments.study.gallery import study_gallery
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.jobs import by_method, chosen_ablations, measured, sizes
from nearwise_lab.experiments.study.neighbors import Memory
from nearwise_lab.experiments.study.presets import change_preset
from nearwise_lab.experiments.study.replay import TrainedRun
from nearwise_lab.experiments.study.session import Session
from nearwise_lab.experiments.study.upper_bound import upper_bound_names
from nearwise_lab.records import Record

SHORT_METHODS = ("uniform", "distance", "attention")

# Each part of the loss, of the head and of the training, off (or mended) one at a time.
ABLATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "without=knn-loss": {"knn_weight": 0.0},
    "without=contrastive": {"contrastive_weight": 0.0},
    "without=entropy": {"entropy_weight": 0.0},
    "without=mixup": {"mixup_alpha": 0.0},
    "without=label-smoothing": {"label_smoothing": 0.0},
    "without=hard-negatives": {"hard_negative_weight": 1.0},
    "without=heads": {"num_heads": 1},
    "without=distance-bias": {"distance_bias": False},
    "without=learned-temperature": {"learn_temperature": False},
    "with=leave-self-out": {"leave_self_out": True},
    "with=augmentation": {"augment": True},
    # Wishes of the study; beside the leak a row's own label is all that there is to learn.
    "with=learned-k": {"learned_k": True, "leave_self_out": True},
    "with=selective-loss": {"selective_weight": 1.0, "leave_self_out": True},
    "with=margin": {"contrastive_kind": "margin"},
}


def main_jobs(session: Session) -> list[Job]:
    """Replay and upper bound, each with all of its evaluations."""
    methods = _neighbor_methods(session)
    return [
        _evaluation(session, "main", methods),
        _upper_bound(session, "main"),
    ]


def k_sweep_jobs(session: Session) -> list[Job]:
    """Uniform, distance and attention at every k, from one search over the trained replay."""
    blanks = tuple(
        session.blank("k-sweep", method, f"k={k}")
        for k in session.preset.sweep_k
        for method in SHORT_METHODS
    )

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        wanted = {(record.method, record.condition): record for record in missing}
        run = session.clean
        for k, prediction in sweep(run, session.preset.sweep_k):
            blank = wanted.get((prediction.method, f"k={k}"))
            if blank is not None:
                yield measured(blank, prediction, run.inputs, session.out)

    n_memory = len(session.inputs.y_train)
    kept = tuple(b for b in blanks if int(b.condition.removeprefix("k=")) <= n_memory)
    return [Job(_title(session, "k-sweep"), kept, make)]


def label_noise_jobs(session: Session) -> list[Job]:
    """Wrong labels in the memory alone, as there, and in all training labels, retrained."""
    inputs = session.inputs
    jobs: list[Job] = []
    for rate, kind in session.preset.noise_grid:
        given = label_noise(inputs.given_labels, rate, kind, session.seed, classes=inputs.classes)
        noisy = torch.from_numpy(np.searchsorted(inputs.classes, given))
        jobs += _noise_jobs(session, noisy, {"noise": float(rate), "noise_kind": kind})
    for name in session.preset.human_labels if session.dataset.name == "cifar10" else ():
        human = _human_labels(session, name)
        if human is not None:
            share = round(float((human != inputs.y_train).float().mean()), 4)
            row = {"noise": share, "noise_kind": f"human-{name}"}
            jobs += _noise_jobs(session, human, row)
    return jobs


def long_tail_jobs(session: Session) -> list[Job]:
    """Fewer and fewer rows of the later classes.

    In the memory alone, as the study did, and in all training rows, everything trained anew.
    """
    inputs = session.inputs
    jobs: list[Job] = []
    for ratio in session.preset.tail_ratios:
        rows = long_tail(inputs.given_labels, ratio, session.seed, classes=inputs.classes)
        part, condition = inputs.take(rows), f"ratio={ratio:g}"
        thinned = partial(_evaluation, session, "long-tail", _short(session), f"memory-{condition}")
        jobs.append(thinned(remembered=(rows, part)))
        jobs.append(_evaluation(session, "long-tail", _short(session), condition, part))
        jobs.append(_upper_bound(session, "long-tail", condition, part))
    return jobs


def theory_jobs(session: Session) -> list[Job]:
    """Find what explains the replay; the numbers are in `details`."""
    makers = {
        "norms": lambda run: sphere(run),
        "error-against-k": lambda run: error_against_k(run),
        "temperatures": lambda run: {"temperatures": run.model.attention.temperature.tolist()},
        "collapse": lambda run: collapse(run),
        "leak": lambda run: leak(run),
    }
    blanks = tuple(session.blank("theory", "attention", condition) for condition in makers)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        run = session.clean
        for blank in missing:
            yield _finding(blank, run, makers[blank.condition](run))

    return [Job(_title(session, "theory"), blanks, make)]


def ablation_jobs(session: Session) -> list[Job]:
    """Each part off (or mended), one at a time; parts the preset does not have are left out."""
    jobs = []
    now = session.preset.model_dump()
    for condition, changes in chosen_ablations(ABLATIONS, session.preset).items():
        same = all(now[name] == value for name, value in changes.items())
        if changes and (same or not _applies(session, changes)):
            continue
        jobs.append(_evaluation(session, "ablation", _short(session), condition, changes=changes))
    return jobs


def _applies(session: Session, changes: Mapping[str, Any]) -> bool:
    if session.preset.objective == "classifier":
        return "augment" in changes and session.inputs.is_images
    if "augment" in changes:
        return session.inputs.is_images
    if "contrastive_kind" in changes:
        return session.preset.contrastive_weight > 0
    return changes != {"knn_weight": 0.0} or session.preset.contrastive_weight > 0


def _neighbor_methods(session: Session) -> tuple[str, ...]:
    is_images = session.dataset.kind == "images"
    return tuple(m for m in NEIGHBOR_METHODS if is_images or m != "attention+tta")


def _short(session: Session) -> tuple[str, ...]:
    return (*SHORT_METHODS, *(("attention+tta",) if session.dataset.kind == "images" else ()))


def _evaluation(
    session: Session,
    experiment: str,
    methods: Sequence[str],
    condition: str = "",
    inputs: StudyInputs | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    row: Mapping[str, Any] | None = None,
    remembered: tuple[np.ndarray, StudyInputs] | None = None,
) -> Job:
    """Job that trains (or reads back) a replay and evaluates it.

    `remembered`: which of the rows trained on are in the memory, and with which labels.
    """
    blanks = tuple(session.blank(experiment, m, condition, **(row or {})) for m in methods)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        wanted = by_method(missing)
        preset = change_preset(session.preset, changes) if changes else session.preset
        run = session.replay(session.inputs if inputs is None else inputs, preset)
        memory, held = None, run.inputs
        if remembered is not None:
            rows, held = remembered
            keys = run.memory.keys[torch.from_numpy(rows)]
            memory = Memory(keys, held.y_train.to(keys.device))
        predictions = evaluate_run(run, memory=memory, methods=tuple(wanted))
        for prediction in predictions:
            blank = wanted[prediction.method]
            extra: dict[str, Any] = {"fit_seconds": run.seconds}
            if prediction.method == "attention" and remembered is None:
                extra["details"] = _explanation(run)
                extra["choice"] = {"settings": run.preset.model_dump()}
            record = measured(blank, prediction, held, session.out, **extra)
            if prediction.method == "attention":
                _keep_figures(session, record, run, prediction.proba)
            yield record

    return Job(_title(session, experiment, condition, row), blanks, make)


def _upper_bound(
    session: Session,
    experiment: str,
    condition: str = "",
    inputs: StudyInputs | None = None,
    row: Mapping[str, Any] | None = None,
) -> Job:
    names = upper_bound_names(session.dataset.kind == "images")
    blanks = tuple(session.blank(experiment, name, condition, **(row or {})) for name in names)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        wanted = by_method(missing)
        bound = session.upper_bound(session.inputs if inputs is None else inputs)
        for prediction in bound.predictions:
            blank = wanted.get(prediction.method)
            if blank is None:
                continue
            commonest = bound.inputs.y_test.bincount().max() / len(bound.inputs.y_test)
            details: dict[str, Any] = {
                "n_held_out": int(bound.inputs.held_out.sum()),
                "epochs": len(bound.history),
                "chance": float(commonest),
            }
            if prediction.method == names[1]:
                details["temperature"] = bound.temperature
            record = measured(
                blank, prediction, bound.inputs, session.out,
                fit_seconds=bound.seconds, details=details,
            )  # fmt: skip
            if prediction.method == names[0]:
                keep_json(session.out, record, "curves", bound.history)
            yield record

    return Job(_title(session, experiment, f"{names[0]} {condition}".strip(), row), blanks, make)


def _noise_jobs(session: Session, noisy: torch.Tensor, row: dict[str, Any]) -> list[Job]:
    everywhere = session.inputs.with_labels(noisy)
    make = partial(_evaluation, session, "label-noise", _short(session), row=row)
    return [
        make("where=memory", remembered=(np.arange(len(noisy)), everywhere)),
        make("where=everywhere", everywhere),
        _upper_bound(session, "label-noise", "where=everywhere", everywhere, row),
    ]


def _human_labels(session: Session, name: Literal["worse", "aggregate"]) -> torch.Tensor | None:
    """Human labels of the training rows; None where the data set's file is not at hand."""
    from nearwise_lab.data import load_human_labels

    try:
        labels = load_human_labels(name, data_root=session.data_root)
    except FileNotFoundError:
        return None
    inputs = session.inputs
    return torch.from_numpy(np.searchsorted(inputs.classes, labels[inputs.train_index]))


def _explanation(run: TrainedRun) -> dict[str, Any]:
    return {
        **leak(run),
        **{name: value for name, value in collapse(run).items() if name != "accuracy"},
        "temperatures": run.model.attention.temperature.tolist(),
        "best_epoch": run.best_epoch,
        "final_parts": run.history[-1]["parts"],
        "final_knn_clean": run.history[-1]["knn_clean"],
    }


def _keep_figures(session: Session, record: Record, run: TrainedRun, proba: np.ndarray) -> None:
    keep_json(session.out, record, "curves", run.history)
    if record.experiment == "main":
        keep_json(session.out, record, "maps", memory_map(run))
        if run.inputs.is_images:
            keep_json(session.out, record, "galleries", study_gallery(run, proba))


def _finding(blank: Record, run: TrainedRun, details: dict[str, Any]) -> Record:
    return replace(blank, **sizes(run.inputs), k=run.preset.n_neighbors, details=details)


def _title(
    session: Session, experiment: str, condition: str = "", row: Mapping[str, Any] | None = None
) -> str:
    noise = f"{row['noise_kind']} {row['noise']:g}" if row and row.get("noise") else ""
    parts = [session.dataset.name, session.preset.name, f"seed {session.seed}", experiment]
    return " · ".join(part for part in [*parts, condition, noise] if part)
