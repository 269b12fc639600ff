"""Last stage of a fit: fine-tuning of the head, its share and the temperatures."""

import copy
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.fit.class_calibration import fit_class_correction
from nearwise.estimators.fit.problem import FitSettings, Problem
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.class_prior import ClassCorrection, log_ratio
from nearwise.estimators.model.label_model import LabelModel
from nearwise.estimators.model.log_linear_pool import (
    Acceptance,
    Answer,
    Calibration,
    Merge,
    accept,
    clearly_better,
    fit_temperature,
    joined,
    mean_nll,
    merge_answers,
    shrink,
)
from nearwise.estimators.progress import Progress
from nearwise.nn import PretrainedNeighborHead, shared_head
from nearwise.training import HeadRows, train_head

JUDGED = 2_000  # most left-out rows for temperatures without a cross-fit
Folds = list[tuple[np.ndarray, np.ndarray]]


class CrossFit(NamedTuple):
    """Head and out-of-fold log-probabilities (n, C): pooled, and of the neighbors alone."""

    head: PretrainedNeighborHead
    log_proba: Tensor
    alone: Tensor

    def take(self, rows: Tensor) -> "CrossFit":
        """Select the predictions of some rows, with the same head."""
        return self._replace(log_proba=self.log_proba[rows], alone=self.alone[rows])


class Known(NamedTuple):
    """Context of a calibration: label model, class prior and classes, as in `Problem`."""

    label_model: LabelModel
    prior: Tensor
    n_classes: int


def tuned_head(
    predictor: ClassPredictor,
    data: HeadRows,
    folds: Folds,
    n_heads: int,
    settings: FitSettings,
    label_model: LabelModel,
    progress: Progress,
) -> tuple[CrossFit, Tensor, dict[str, float]]:
    """Fine-tune the head; used only if held-out rows are predicted clearly better.

    Uses the first `n_heads` of the folds, which are positions in `data`. Also returns the held-out
    rows, predicted by heads that they neither trained nor stopped (with over two folds), and their
    NLL before and after.
    """
    rows = torch.from_numpy(np.concatenate([held for _, held in folds[:n_heads]]))
    some = data.take(rows)
    plain = shared_head().predict(some.spaces, some.base_log_proba)
    fit = _cross_fit_head(predictor, data, folds, n_heads, settings, progress).take(rows)
    labelled = (some.labels, some.weight, label_model)
    before, after = (mean_nll(one, *labelled) for one in (plain.log_proba, fit.log_proba))
    nlls = {"nll_before": before, "nll_after": after}
    if not clearly_better(fit.log_proba, plain.log_proba, *labelled):
        head = copy.deepcopy(shared_head())
        return CrossFit(head, plain.log_proba, plain.neighbor_log_proba), rows, nlls
    return fit, rows, nlls


def _mean_of(heads: list[PretrainedNeighborHead]) -> PretrainedNeighborHead:
    """Head with the mean weights of several heads that started from the same weights."""
    mean = copy.deepcopy(heads[0])
    states = [head.state_dict() for head in heads]
    mean.load_state_dict(
        {name: torch.stack([s[name] for s in states]).mean(0) for name in states[0]}
    )
    return mean.eval().requires_grad_(False)


def predictions_of(
    predictor: ClassPredictor, views: list[Answer], labels: Tensor, weight: Tensor
) -> tuple[CrossFit, HeadRows]:
    """Concatenate predictions of rows in some views, as arguments of `accept_head`."""
    answer, n_views = joined(views), len(views)
    fit = CrossFit(predictor.head, answer.log_proba, answer.neighbor_log_proba)
    return fit, HeadRows([], answer.base_log_proba, labels.repeat(n_views), weight.repeat(n_views))


def accept_head(
    predictor: ClassPredictor,
    fit: CrossFit,
    data: HeadRows,
    problem: Problem | Known,
    settings: FitSettings,
    *,
    ridge: float = 0.0,
) -> ClassPredictor:
    """Set the head, and fit its share and the temperatures to out-of-fold predictions.

    `ridge` as in `fit_temperature`.
    """
    labelled = (data.labels, data.weight, problem.label_model)
    oof_nll = mean_nll(fit.log_proba, *labelled)
    part_temperatures = tuple(
        fit_temperature(part, *labelled, ridge=ridge)[0]
        for part in (data.base_log_proba, fit.alone)
    )
    acceptance = (
        accept(
            fit.log_proba,
            data.base_log_proba if predictor.has_base else None,
            *labelled,
            ridge=ridge,
        )
        if settings.calibrate
        else Acceptance(1.0, 1.0, "none (calibration=None)", oof_nll)
    )
    predictor.choice.update(head_nll=oof_nll, head_share=acceptance.share)
    log_proba = fit.log_proba
    if predictor.has_base:
        log_proba = shrink(log_proba, data.base_log_proba, acceptance.share)
    scores = log_proba / acceptance.temperature
    return replace(
        predictor,
        head=fit.head,
        acceptance=acceptance,
        part_temperatures=part_temperatures,
        classes=correct_classes(predictor, scores, data, problem, settings),
    )


def calibrated_views(
    predictor: ClassPredictor,
    fit: CrossFit,
    data: HeadRows,
    problem: Problem | Known,
    settings: FitSettings,
    *,
    ridge: float,
) -> ClassPredictor:
    """Choose the merge of views, and fit the temperatures of merged predictions.

    `fit` and `data` hold the views of the same rows, one view after another.
    """
    n_rows, n_classes = len(data) // predictor.n_views, len(predictor.prior)
    each = [
        Answer(
            predictor.shrunk(fit.log_proba[at], data.base_log_proba[at], n_classes),
            data.base_log_proba[at],
            fit.alone[at],
            torch.zeros(n_rows),
        )
        for at in torch.arange(len(data)).split(n_rows)
    ]
    first = data.take(torch.arange(n_rows))
    labelled = first.labels, first.weight, problem.label_model
    found: dict[Merge, tuple[float, Calibration, Tensor]] = {}
    merges: tuple[Merge, ...] = get_args(Merge)
    for merge in merges:
        merged = merge_answers(each, merge)
        fits = [fit_temperature(part, *labelled, ridge=ridge) for part in merged[:3]]
        whole = fits[0][0] if settings.calibrate else 1.0
        calibration = Calibration(whole, fits[1][0], fits[2][0])
        found[merge] = fits[0][1], calibration, merged.log_proba
    best = min(merges, key=lambda merge: found[merge][0])
    _, of_views, log_proba = found[best]
    predictor.choice.update(merge=best, merge_nll={merge: found[merge][0] for merge in merges})
    scores = log_proba / of_views.whole
    corrected = correct_classes(predictor, scores, first, problem, settings)
    return replace(predictor, merge=best, of_views=of_views._replace(classes=corrected))


def correct_classes(
    predictor: ClassPredictor,
    scores: Tensor,
    data: HeadRows,
    problem: Problem | Known,
    settings: FitSettings,
) -> ClassCorrection | None:
    """Fit the correction of calibrated scores (n, C) for the class prior; None if none is set.

    If labels may be wrong, Bayes' rule uses the estimated class shares, and nothing else is
    fitted, as row weights would depend on the unknown classes.
    """
    listed = slice(None if settings.class_prior is None else len(settings.class_prior))
    there = problem.prior[listed] / problem.prior[listed].sum()  # without classes added later
    shift = log_ratio(settings.class_prior, there)
    shares = None if settings.class_prior is None else tuple(settings.class_prior.tolist())
    if problem.label_model.tells_nothing(scores, data.labels, data.weight, predictor.choice):
        return ClassCorrection.to_shares(shift, problem.prior, shares)
    if settings.class_prior is None and not settings.per_class:
        return None
    unlisted = shift is not None and len(shift) < problem.n_classes
    if unlisted or not problem.label_model.as_given:
        correction, nlls = ClassCorrection.of_shift(shift, shares), dict[str, float]()
    else:
        kinds: tuple[str, ...] = ("temperature",) if settings.calibrate else ()
        if settings.per_class:
            kinds = ("temperature", "bias", "vector")
        held_out = (data.labels, data.weight, shift)
        found, nlls = fit_class_correction(scores, *held_out, kinds, settings.seed)
        correction = replace(found, wanted=shares)
    tried = {"nll": nlls} if nlls else {}
    predictor.choice["classes"] = {"source": correction.source} | tried
    return correction


def _cross_fit_head(
    predictor: ClassPredictor,
    data: HeadRows,
    folds: Folds,
    n_heads: int,
    settings: FitSettings,
    progress: Progress,
) -> CrossFit:
    """Fine-tune one head per fold for the first `n_heads` folds.

    A head is early-stopped on another fold than its own, so that its held-out rows neither train
    nor stop it. With only two folds the held-out rows stop it. The returned head has the mean
    weights.
    """
    log_proba = torch.zeros(len(data), data.base_log_proba.shape[1])
    alone, heads = torch.zeros_like(log_proba), []
    for member, (train, held_out) in enumerate(folds[:n_heads]):
        rows = torch.from_numpy(held_out)
        stop = folds[member - 1][1] if len(folds) > 2 else held_out
        train = np.setdiff1d(train, stop)
        head = copy.deepcopy(shared_head()).requires_grad_(True)

        progress.stage(f"head, member {member + 1}")

        def note(record: dict[str, Any], member: int = member) -> None:
            progress.epoch(f"head, member {member + 1}", record, settings.head.epochs)

        held = data.take(rows)
        records = train_head(
            head,
            data.take(torch.from_numpy(train)),
            data.take(torch.from_numpy(stop)),
            settings.head,
            seed=settings.seed + member,
            progress=note,
        )
        predictor.history.extend({"stage": "head", "member": member} | one for one in records)
        output = head.predict(held.spaces, held.base_log_proba)
        log_proba[rows] = output.log_proba
        alone[rows] = output.neighbor_log_proba
        heads.append(head)
    return CrossFit(_mean_of(heads), log_proba, alone)
