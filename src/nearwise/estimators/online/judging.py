"""Recalibration of a changed model on its leave-one-out predictions."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.fit.base import RIDGE
from nearwise.estimators.fit.head_fitting import (
    JUDGED,
    Known,
    accept_head,
    calibrated_views,
    predictions_of,
)
from nearwise.estimators.fit.problem import FitSettings
from nearwise.estimators.inputs.labels import lone_rows
from nearwise.estimators.model.class_predictor import ClassPredictor, Judgement
from nearwise.estimators.model.fitted_model import FittedClassifier
from nearwise.estimators.model.log_linear_pool import NOT_YET, Answer, mean_nll, shrink
from nearwise.estimators.model.memory_views import FITTED
from nearwise.estimators.uncertainty.calibration_rows import judged_positions
from nearwise.functional.threads import one_thread
from nearwise.memory.eviction import arrival_draws

_CHANGED = 0.05  # largest changed share of the rows without recalibration
_FEWEST = 20  # fewest rows for a recalibration
_ASKED = 500  # relabelled rows in the comparison with their neighbors
# Entries of `choice` about a calibration.
_NOTED = ("head_nll", "head_share", "classes", "merge", "merge_nll", "judged")


@one_thread(torch_only=True)
def judged_again(
    before: FittedClassifier, after: FittedClassifier, settings: Callable[[], FitSettings]
) -> FittedClassifier:
    """Recalibrate temperatures, share and class correction after many changes.

    `after` is the unpublished result of a change of `before`. If more than 5 % of the rows differ
    from those of the fit, and after every further 5 %, the calibration is fitted to the present
    rows. If fewer differ, also after undone changes, the calibration of the fit is used.
    """
    if not after.holds_memory:
        return after
    predictor, most = after.predictor, _CHANGED * len(after.bank)
    since_fit, changed = _n_since_fit(after), before.stream.changed + _n_changed(before, after)
    if since_fit <= most:
        changed = since_fit
        if predictor.of_fit is not None:
            predictor = _with(predictor, predictor.of_fit, of_fit=None)
    elif changed > most:
        changed, predictor = 0, _judged(after, settings)
    return replace(after, stream=replace(after.stream, changed=changed), predictor=predictor)


def _n_changed(before: FittedClassifier, after: FittedClassifier) -> int:
    """Count rows that a change added (and did not evict), removed or relabelled."""
    there, now = before.bank, after.bank
    stayed = int((now.ids < there.next_id).sum())
    relabelled = 0
    if len(there) == len(now) == stayed:  # a change of labels adds and removes no rows
        relabelled = int((before.label_positions != after.label_positions).sum())
    return len(there) - stayed + len(now) - stayed + relabelled


def _n_since_fit(model: FittedClassifier) -> int:
    """Count rows added, removed or relabelled since the fit."""
    stayed = model.bank.ids < model.stream.refreshed_at
    n_stayed = int(stayed.sum())
    relabelled = int((_relabelled(model) & stayed).sum())
    return len(model.bank) - n_stayed + model.stream.refreshed_size - n_stayed + relabelled


def _relabelled(model: FittedClassifier) -> Tensor:
    """Mask of rows relabelled since the fit, or since they were added, bool (n,)."""
    labels = model.label_positions
    return model.bank.columns.get(FITTED, labels) != labels


def _judgement(predictor: ClassPredictor) -> Judgement:
    decided = {name: getattr(predictor, name) for name in Judgement._fields if name != "choice"}
    noted = {name: predictor.choice[name] for name in _NOTED if name in predictor.choice}
    return Judgement(**decided, choice=noted)


def _with(predictor: ClassPredictor, judged: Judgement, of_fit: Judgement | None) -> ClassPredictor:
    choice = {name: note for name, note in predictor.choice.items() if name not in _NOTED}
    decided = judged._asdict() | {"choice": choice | judged.choice}
    return replace(predictor, **decided, of_fit=of_fit)


def _judged(model: FittedClassifier, settings: Callable[[], FitSettings]) -> ClassPredictor:
    """Recalibrate on the present rows; unchanged with few rows or a model of wrong labels."""
    predictor, rows = model.predictor, _judged_rows(model)
    if len(rows) < _FEWEST or not predictor.label_model.as_given:
        return predictor
    chosen = settings()
    # The class correction starts from the same shares as the head.
    known = Known(predictor.label_model, predictor.prior, model.n_classes)
    plain = replace(predictor, acceptance=NOT_YET, choice=dict(predictor.choice))
    _, views = plain.predict_judged(model.n_classes, predictor.n_views, rows)
    labels, weight = model.label_positions[rows], _weight(model, rows)
    ridge = RIDGE / len(rows)
    parts = predictions_of(plain, views[:1], labels, weight)
    again = accept_head(plain, *parts, known, chosen, ridge=ridge)
    again.choice["judged"] = {
        "rows": len(rows),
        "changed": _n_since_fit(model),
        "nll_before": _nll_of(predictor, views[0], labels, weight),
        "nll": again.acceptance.nll,
    }
    source = f"{again.acceptance.source}, after changes"
    again = replace(again, acceptance=replace(again.acceptance, source=source))
    if predictor.n_views > 1:
        parts = predictions_of(plain, views, labels, weight)
        again = calibrated_views(again, *parts, known, chosen, ridge=ridge)
    return _with(again, _judgement(again), of_fit=predictor.of_fit or _judgement(predictor))


def _nll_of(predictor: ClassPredictor, answer: Answer, labels: Tensor, weight: Tensor) -> float:
    """NLL of rows with the former share and temperature."""
    log_proba, accepted = answer.log_proba, predictor.acceptance
    if predictor.has_base:
        log_proba = shrink(log_proba, answer.base_log_proba, accepted.share)
    tempered = torch.log_softmax(log_proba / accepted.temperature, dim=1)
    return mean_nll(tempered, labels, weight)


# --- choice of rows -----------------------------------------------------------------------------


def _judged_rows(model: FittedClassifier) -> Tensor:
    """Draw calibration rows for a recalibration: bank positions, ascending.

    Relabelled rows are included only if their neighbors agree with the new labels, as after a
    correction or the renaming of a class. Otherwise the new labels may be wrong, and the rows with
    unchanged labels measure the neighbors, unless most rows were relabelled.
    """
    rows, relabelled = judged_positions(model.predictor), _relabelled(model)
    rows = rows[torch.from_numpy(~lone_rows(model.label_positions.numpy()))[rows]]
    if 0 < 2 * int(relabelled.sum()) < len(relabelled) and not _supported(model, relabelled):
        rows = rows[~relabelled[rows]]
    return _drawn(model, rows, JUDGED)


def _weight(model: FittedClassifier, rows: Tensor) -> Tensor:
    """Weights (n,) that give rows of the fit and later rows their shares of the memory.

    After a fit with a hold-out split, few rows of the fit are calibration rows, but all later ones.
    """
    of_fit, judged = model.bank.ids < model.stream.refreshed_at, model.predictor.judged
    n_judged = int((of_fit & judged).sum())
    share = int(of_fit.sum()) / n_judged if n_judged else 1.0
    return model.bank.sample_weight[rows] * torch.where(of_fit[rows], share, 1.0)


def _supported(model: FittedClassifier, relabelled: Tensor) -> bool:
    """Whether neighbors of relabelled rows agree more with the new labels than with the former."""
    views, labels = model.predictor.views, model.label_positions
    some = _drawn(model, torch.nonzero(relabelled)[:, 0], _ASKED)
    spec, ids = views.specs[0], model.bank.ids
    found = views.search(spec, model.bank.keys[spec.name][some], spec.n_neighbors, ids[some])
    near = labels[found.indices.cpu()]
    new, former = (one[some, None] for one in (labels, model.bank.columns[FITTED]))
    return int((near == new).sum()) >= int((near == former).sum())


def _drawn(model: FittedClassifier, positions: Tensor, most: int) -> Tensor:
    """Draw at most `most` rows, by their ids alone, so that the draw is repeatable."""
    draws = arrival_draws(model.bank.ids[positions], model.stream.seed)
    first = torch.from_numpy(np.argsort(draws, kind="stable")[:most])
    return positions[first].sort().values
