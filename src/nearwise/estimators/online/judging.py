"""A changed model is judged again: what a fit decides last, on predictions of left-out rows."""

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

_CHANGED = 0.05  # share of the remembered rows up to which a model stays as it was judged
_FEWEST = 20  # rows below which nothing is decided anew
_ASKED = 500  # relabelled rows whose neighbors are asked
# Entries of `choice` about a judgement.
_NOTED = ("head_nll", "head_share", "classes", "merge", "merge_nll", "judged")


@one_thread(torch_only=True)
def judged_again(
    before: FittedClassifier, after: FittedClassifier, settings: Callable[[], FitSettings]
) -> FittedClassifier:
    """Decide on temperatures, share and class correction again where many rows have changed.

    `after` is what a change made of `before`, not published yet. Once more than 5 % of the rows
    differ from those of the fit, and after every further 5 %, all is fitted as in a fit, to rows
    as they are now. While fewer differ, also because changes were undone, that of the fit holds.
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
    """Count rows that a change added (and did not forget), removed or relabelled."""
    there, now = before.bank, after.bank
    stayed = int((now.ids < there.next_id).sum())
    relabelled = 0
    if len(there) == len(now) == stayed:  # labels change where no row comes or goes
        relabelled = int((before.label_positions != after.label_positions).sum())
    return len(there) - stayed + len(now) - stayed + relabelled


def _n_since_fit(model: FittedClassifier) -> int:
    """Count rows that differ from those of the fit: present ones, and those that are gone."""
    stayed = model.bank.ids < model.stream.refreshed_at
    n_stayed = int(stayed.sum())
    relabelled = int((_relabelled(model) & stayed).sum())
    return len(model.bank) - n_stayed + model.stream.refreshed_size - n_stayed + relabelled


def _relabelled(model: FittedClassifier) -> Tensor:
    """Whether each row has another label than in the fit, or than it was added with, bool (n,)."""
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
    """Decide on the model as it is; the former decisions stay where its rows do not tell."""
    predictor, rows = model.predictor, _judged_rows(model)
    if len(rows) < _FEWEST or not predictor.label_model.as_given:
        return predictor
    chosen = settings()
    # The shares that predictions are corrected from are those that the head is given.
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
    """NLL of rows by share and temperature as they were."""
    log_proba, accepted = answer.log_proba, predictor.acceptance
    if predictor.has_base:
        log_proba = shrink(log_proba, answer.base_log_proba, accepted.share)
    tempered = torch.log_softmax(log_proba / accepted.temperature, dim=1)
    return mean_nll(tempered, labels, weight)


# --- which rows ---------------------------------------------------------------------------------


def _judged_rows(model: FittedClassifier) -> Tensor:
    """Draw the rows that are judged: bank positions, ascending.

    They are calibration rows, whose labels neither base nor keys have learned. Relabelled ones are
    among them only where their neighbors agree: a correction, or a class that was renamed. Where
    they do not, the new labels are what is being judged, and rows that kept theirs tell how much
    the neighbors are still worth; unless most rows were relabelled.
    """
    rows, relabelled = judged_positions(model.predictor), _relabelled(model)
    rows = rows[torch.from_numpy(~lone_rows(model.label_positions.numpy()))[rows]]
    if 0 < 2 * int(relabelled.sum()) < len(relabelled) and not _supported(model, relabelled):
        rows = rows[~relabelled[rows]]
    return _drawn(model, rows, JUDGED)


def _weight(model: FittedClassifier, rows: Tensor) -> Tensor:
    """Weights (n,) by which rows of the fit and later ones count as often as in the memory.

    Where one fold was held out, few rows of the fit are judged, and all later ones.
    """
    of_fit, judged = model.bank.ids < model.stream.refreshed_at, model.predictor.judged
    n_judged = int((of_fit & judged).sum())
    share = int(of_fit.sum()) / n_judged if n_judged else 1.0
    return model.bank.sample_weight[rows] * torch.where(of_fit[rows], share, 1.0)


def _supported(model: FittedClassifier, relabelled: Tensor) -> bool:
    """Whether the neighbors of relabelled rows rather have their new labels than the former."""
    views, labels = model.predictor.views, model.label_positions
    some = _drawn(model, torch.nonzero(relabelled)[:, 0], _ASKED)
    spec, ids = views.specs[0], model.bank.ids
    found = views.search(spec, model.bank.keys[spec.name][some], spec.n_neighbors, ids[some])
    near = labels[found.indices.cpu()]
    new, former = (one[some, None] for one in (labels, model.bank.columns[FITTED]))
    return int((near == new).sum()) >= int((near == former).sum())


def _drawn(model: FittedClassifier, positions: Tensor, most: int) -> Tensor:
    """Draw at most so many rows; by their ids alone, so that the same are drawn again."""
    draws = arrival_draws(model.bank.ids[positions], model.stream.seed)
    first = torch.from_numpy(np.argsort(draws, kind="stable")[:most])
    return positions[first].sort().values
