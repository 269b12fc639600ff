"""The study's experiments on a replayed preset, each as a list of jobs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from nearwise_lab.experiments.artifacts import keep_json
from nearwise_lab.experiments.runner import Job
from nearwise_lab.experiments.study.arms import Case, cases
from nearwise_lab.experiments.study.evaluate import (
    NEIGHBOR_METHODS,
    SHORT_METHODS,
    TTA,
    Prediction,
    evaluate_run,
    measured,
    sweep,
)
from nearwise_lab.experiments.study.findings import (
    REPLAY_FINDINGS,
    Explained,
    collapse,
    image_gallery,
    leak,
    memory_map,
    temperatures,
)
from nearwise_lab.experiments.study.model import Memory
from nearwise_lab.experiments.study.presets import change_preset
from nearwise_lab.experiments.study.replay import TrainedRun
from nearwise_lab.experiments.study.session import Session
from nearwise_lab.experiments.study.upper_bound import upper_bound_names
from nearwise_lab.records import Record


def replay_jobs(session: Session, experiment: str) -> list[Job]:
    """Jobs of an experiment.

    Wrong labels and long tails come in the memory alone, as there, and in all training rows,
    everything trained anew. An ablation leaves out the parts that the preset does not have.
    """
    if experiment == "k-sweep":
        return [_sweep(session)]
    if experiment == "theory":
        return [_theory(session)]
    jobs = []
    for case in cases(session, experiment):
        if case.changes and not _applies(session, case.changes):
            continue
        if case.in_memory:
            jobs.append(_evaluation(session, experiment, case, in_memory=True))
        jobs.append(_evaluation(session, experiment, case))
        if experiment != "ablation":
            jobs.append(_upper_bound(session, experiment, case))
    return jobs


def _sweep(session: Session) -> Job:
    """Uniform, distance and attention at every k, from one search over the trained replay."""
    sizes = [k for k in session.preset.sweep_k if k <= len(session.inputs.y_train)]
    blanks = tuple(
        session.blank("k-sweep", method, f"k={k}") for k in sizes for method in SHORT_METHODS
    )

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        wanted = {(record.method, record.condition): record for record in missing}
        run = session.clean
        for prediction in sweep(run, sizes):
            blank = wanted.get((prediction.method, f"k={prediction.k}"))
            if blank is not None:
                yield measured(blank, prediction, run.inputs, session.out)

    return Job(session.title("k-sweep"), blanks, make)


def _theory(session: Session) -> Job:
    """Compute diagnostics of the replay; the numbers are in `details`."""
    blanks = tuple(session.blank("theory", "attention", name) for name in REPLAY_FINDINGS)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        run = session.clean
        for blank in missing:
            details = REPLAY_FINDINGS[blank.condition](run)
            yield replace(blank, **run.inputs.sizes, k=run.preset.n_neighbors, details=details)

    return Job(session.title("theory"), blanks, make)


def _applies(session: Session, changes: dict[str, Any]) -> bool:
    """Whether changes apply to the preset."""
    preset, is_images = session.preset, session.inputs.is_images
    if all(getattr(preset, name) == value for name, value in changes.items()):
        return False
    if preset.objective == "classifier" or "augment" in changes:
        return "augment" in changes and is_images
    if "contrastive_kind" in changes or changes == {"knn_weight": 0.0}:
        return preset.contrastive_weight > 0
    return True


def _evaluation(session: Session, experiment: str, case: Case, *, in_memory: bool = False) -> Job:
    """Train (or load) a replay and evaluate it; `in_memory`: trained on all rows."""
    every = NEIGHBOR_METHODS if experiment == "main" else (*SHORT_METHODS, TTA)
    methods = [m for m in every if m != TTA or session.dataset.kind == "images"]
    condition = case.in_memory if in_memory else case.condition
    blanks = _blanks(session, experiment, methods, condition, case)

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        wanted = {record.method: record for record in missing}
        inputs = case.rows(session.inputs)
        preset = change_preset(session.preset, case.changes)
        run = session.replay(session.inputs if in_memory else inputs, preset)
        if in_memory:
            kept = torch.from_numpy(np.isin(session.inputs.train_index, inputs.train_index))
            keys = run.memory.keys[kept.to(run.memory.keys.device)]
            run = replace(run, memory=Memory(keys, inputs.y_train.to(keys.device)))
        for prediction in evaluate_run(run, [*wanted]):
            extra: dict[str, Any] = {"fit_seconds": run.seconds}
            attends = prediction.method == "attention"
            if attends and not in_memory:
                extra["details"] = _explanation(run)
                extra["choice"] = {"settings": run.preset.model_dump()}
            record = measured(wanted[prediction.method], prediction, inputs, session.out, **extra)
            if attends:
                _keep_figures(session, record, run, prediction.proba)
            yield record

    return Job(session.title(experiment, replace(case, condition=condition).label), blanks, make)


def _upper_bound(session: Session, experiment: str, case: Case) -> Job:
    names = upper_bound_names(session.dataset.kind == "images")

    def make(missing: Sequence[Record]) -> Iterator[Record]:
        inputs = case.rows(session.inputs)
        bound = session.upper_bound(inputs)
        for blank in missing:
            details: dict[str, Any] = {
                "n_held_out": int(inputs.held_out.sum()),
                "epochs": len(bound.history),
                "chance": float(inputs.y_test.bincount().max() / len(inputs.y_test)),
            }
            plain, proba = blank.method == names[0], bound.proba
            if not plain:
                details["temperature"], proba = bound.temperature, bound.tempered
            record = measured(
                blank, Prediction(blank.method, proba), inputs, session.out,
                fit_seconds=bound.seconds, details=details,
            )  # fmt: skip
            if plain:
                keep_json(session.out, record, "curves", bound.history)
            yield record

    blanks = _blanks(session, experiment, names, case.condition, case)
    return Job(session.title(experiment, names[0], case.label), blanks, make)


def _blanks(
    session: Session, experiment: str, methods: Sequence[str], condition: str, case: Case
) -> tuple[Record, ...]:
    noise = case.noise, case.noise_kind
    return tuple(session.blank(experiment, method, condition, *noise) for method in methods)


def _explanation(run: TrainedRun) -> dict[str, Any]:
    return {
        **leak(run),
        **{name: value for name, value in collapse(run).items() if name != "accuracy"},
        **temperatures(run),
        "best_epoch": run.best_epoch,
        "final_parts": run.history[-1]["parts"],
        "final_knn_clean": run.history[-1]["knn_clean"],
    }


def _keep_figures(session: Session, record: Record, run: TrainedRun, proba: np.ndarray) -> None:
    keep_json(session.out, record, "curves", run.history)
    if record.experiment == "main":
        keep_json(session.out, record, "maps", memory_map(run))
        if run.inputs.is_images:
            gallery = image_gallery(Explained(run), run.inputs, proba)
            keep_json(session.out, record, "galleries", gallery)
