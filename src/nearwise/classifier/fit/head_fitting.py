"""The last stage of a fit: heads, pooling, acceptance and temperature."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.fit.class_calibration import fit_class_correction
from nearwise.classifier.fit.problem import FitSettings, Problem
from nearwise.classifier.inputs.table import LARGE
from nearwise.classifier.model.class_prior import ClassCorrection, log_ratio
from nearwise.classifier.model.log_linear_pool import (
    Acceptance,
    accept,
    fit_temperature,
    mean_nll,
    shrink,
)
from nearwise.classifier.model.predictor import Predictor
from nearwise.classifier.progress import Progress
from nearwise.nn import NeighborHead, Neighborhood
from nearwise.nn.neighbor_head import Pooling
from nearwise.training import HeadRows, train_head

TRIED = 2  # folds by which the pooling is chosen
_FLAT = ("base_log_proba", "labels", "weight")


class CrossFit(NamedTuple):
    """Heads, and out-of-fold log-probabilities (n, C): pooled, and of the neighbors alone."""

    heads: list[Any]
    log_proba: Tensor
    alone: Tensor

    def take(self, rows: Tensor) -> "CrossFit":
        """Return the predictions of some rows, with the same heads."""
        return self._replace(log_proba=self.log_proba[rows], alone=self.alone[rows])


def choose_heads(
    predictor: Predictor,
    problem: Problem,
    settings: FitSettings,
    data: HeadRows,
    progress: Progress,
) -> CrossFit:
    """Fit one head per fold to rows whose neighborhoods are known, by the better pooling of two."""
    poolings: list[Pooling] = [settings.pooling] if settings.pooling != "auto" else ["log-linear"]
    small = len(problem.labels) <= LARGE and not settings.fast
    if settings.pooling == "auto" and predictor.has_base and small:
        poolings.append("mixture")
    tried = {
        pooling: cross_fit_heads(predictor, problem, settings, data, pooling, TRIED, progress)
        for pooling in poolings
    }
    judged = torch.cat([torch.from_numpy(rows) for _, rows in problem.folds[:TRIED]])
    tried_nll = {
        pooling: mean_nll(
            fit.log_proba[judged],
            problem.truth[judged],
            problem.row_weight[judged],
            problem.label_model,
        )
        for pooling, fit in tried.items()
    }
    best = min(tried_nll, key=lambda pooling: tried_nll[pooling])
    fit = cross_fit_heads(
        predictor, problem, settings, data, best, len(problem.folds), progress, tried[best]
    )
    predictor.choice.update(
        pooling=best,
        pooling_nll=tried_nll,
        spaces=[spec.name for spec in predictor.views.specs],
    )
    return fit


def accept_heads(
    predictor: Predictor,
    fit: CrossFit,
    data: HeadRows,
    problem: Problem,
    settings: FitSettings,
    *,
    ridge: float = 0.0,
) -> Predictor:
    """Take the heads; decide by out-of-fold predictions on their share and the temperatures.

    `ridge` is that of `fit_temperature`.
    """
    data = _flat_on_host(data)
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
        heads=tuple(fit.heads),
        acceptance=acceptance,
        part_temperatures=part_temperatures,
        classes=correct_classes(predictor, scores, data, problem, settings),
    )


def _flat_on_host(data: HeadRows) -> HeadRows:
    """Bring all but the neighborhoods to the CPU."""
    return replace(data, **{name: getattr(data, name).cpu() for name in _FLAT})


def correct_classes(
    predictor: Predictor, scores: Tensor, data: HeadRows, problem: Problem, settings: FitSettings
) -> ClassCorrection | None:
    """Fit the correction of calibrated scores (n, C) for the class prior; None if none is set.

    Where labels may differ from the classes, Bayes' rule takes the shares of the classes, and
    nothing is fitted beside it: how often a row counts depends on its class.
    """
    data = _flat_on_host(data)
    listed = slice(None if settings.class_prior is None else len(settings.class_prior))
    there = problem.prior[listed] / problem.prior[listed].sum()  # classes may have come since
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


def cross_fit_heads(
    predictor: Predictor,
    problem: Problem,
    settings: FitSettings,
    data: HeadRows,
    pooling: Pooling,
    n_members: int,
    progress: Progress,
    begun: CrossFit | None = None,
) -> CrossFit:
    """Fit the first `n_members` heads; go on from those begun.

    Each is stopped on another fold than its own, whose rows are then predicted by a head that they
    have neither trained nor stopped. Only where there are two folds do they stop it.
    """
    empty = torch.zeros(len(problem.labels), problem.n_classes)
    stage = f"{pooling} head" if settings.holds_out_once else "head"
    fit = begun or CrossFit([], empty, empty.clone())
    for member in range(len(fit.heads), min(n_members, len(problem.folds))):
        train, held_out = problem.folds[member]
        rows = torch.from_numpy(held_out)
        stop = problem.folds[member - 1][1] if len(problem.folds) > 2 else held_out
        train = np.setdiff1d(train, stop)
        head = _make_head(predictor, settings, pooling, data.spaces, settings.seed + member)
        head.to(data.labels.device)
        epochs = settings.head.epochs

        def note(record: dict[str, Any], member: int = member, epochs: int = epochs) -> None:
            progress.epoch(f"{stage}, member {member + 1}", record, epochs)

        held = data.take(rows)
        records = train_head(
            head,
            data.take(torch.from_numpy(train)),
            data.take(torch.from_numpy(stop)),
            settings.head,
            seed=settings.seed + member,
            progress=note,
        )
        predictor.history.extend({"stage": stage, "member": member} | record for record in records)
        output = head.predict(held.spaces, held.base_log_proba)
        fit.log_proba[rows] = output.log_proba.cpu()
        fit.alone[rows] = output.neighbor_log_proba.cpu()
        fit.heads.append(head)
    return fit


def _make_head(
    predictor: Predictor,
    settings: FitSettings,
    pooling: Pooling,
    spaces: list[Neighborhood],
    seed: int,
) -> NeighborHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return settings.head.make_head(
            len(spaces),
            predictor.prior,
            has_base=predictor.has_base,
            pooling=pooling,
            num_heads=settings.num_heads,
            null=settings.null,
        )
