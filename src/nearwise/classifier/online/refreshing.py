"""The attention of a fitted classifier is brought up to date with a memory that has changed."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from nearwise.classifier.fit.problem import FitSettings
from nearwise.classifier.model.class_prior import CLASS_SHARES, ClassCorrection, log_ratio
from nearwise.classifier.model.log_linear_pool import (
    Acceptance,
    accept,
    fit_temperature,
    mean_nll,
)
from nearwise.classifier.model.memory_views import (
    FOLD,
    MemoryViews,
    SpaceSpec,
    measured,
)
from nearwise.classifier.model.predictor import Predictor
from nearwise.memory.eviction import arrival_draws
from nearwise.training import HeadRows, train_head

N_ROWS = 600  # rows the heads go on learning from
_HELD_OUT = 5  # one row in so many stops the training and calibrates
EPOCHS = 10


def can_refresh(predictor: Predictor) -> bool:
    """Whether remembered rows can be asked as if unseen."""
    as_given = predictor.is_cross_fitted and predictor.label_model.as_given
    return predictor.is_pretrained or (as_given and not _by_class(predictor))


def _by_class(predictor: Predictor) -> bool:
    """Whether a calibration a class was tried, which goes by the rows of the fit."""
    correction = predictor.classes
    return correction is not None and (
        correction.source != CLASS_SHARES
        and (correction.wanted is None or correction.source in ("bias", "vector"))
    )


def refuse_refresh(predictor: Predictor) -> None:
    """Say why a fit cannot be refreshed, where it cannot."""
    if can_refresh(predictor):
        return
    if not predictor.is_cross_fitted:
        raise ValueError(
            "This classifier held rows out once (validation_fraction), so its networks were "
            "trained on the labels of all remembered rows, which can teach the attention nothing "
            "any more. Fit again."
        )
    predictor.label_model.refuse_refresh()
    if _by_class(predictor):
        raise ValueError(
            'This classifier was calibrated class by class (calibration="per-class") on the rows '
            "of its fit. Fit again."
        )


def refresh_predictor(predictor: Predictor, settings: FitSettings) -> Predictor:
    """Take shares, units and reliability anew, and go on training the head.

    `predictor` is a fork: its memory changes, and the result has other heads.

    One head, begun at the first member's, then serves all members. Wanted class shares are set
    against those of the memory; classes that they do not list keep what they have.
    """
    refuse_refresh(predictor)
    predictor = replace(predictor, prior=predictor.views.class_shares())
    _measure_again(predictor, settings)
    data = _left_out_rows(predictor, _drawn_rows(predictor, settings.seed))
    head = copy.deepcopy(predictor.heads[0])  # the one there is may be in use
    head.prior = predictor.prior.to(head.prior.device)
    n = len(data)
    held_out = torch.arange(n) % _HELD_OUT == 0
    head_settings = settings.head.model_copy(
        update={"epochs": min(settings.head.epochs or EPOCHS, EPOCHS)}
    )
    judged = data.take(torch.nonzero(held_out)[:, 0])
    learned_from = data.take(torch.nonzero(~held_out)[:, 0])
    train_head(head, learned_from, judged, head_settings, seed=settings.seed)
    predictor = replace(predictor, heads=(head,) * predictor.n_members)
    acceptance, part_temperatures = _calibrate(predictor, judged, settings)
    classes = None
    if settings.class_prior is not None:
        shares = settings.class_prior
        there = predictor.prior[: len(shares)]
        shift = log_ratio(shares, there / there.sum())
        classes = ClassCorrection.of_shift(shift, tuple(shares.tolist()))
        predictor.choice["classes"] = {"source": classes.source}
    predictor.choice.update(refreshed_rows=n, refreshed_nll=acceptance.nll)
    return replace(
        predictor, acceptance=acceptance, part_temperatures=part_temperatures, classes=classes
    )


def _measure_again(predictor: Predictor, settings: FitSettings) -> None:
    """Units of the spaces, how many neighbors are asked, and the reliability of all rows."""
    views = predictor.views
    views.forget()
    specs = []
    for spec in views.specs:
        most = settings.n_neighbors if spec.scope == "all" else spec.n_neighbors
        fewest = min(len(views.rows(spec, member)) for member in range(predictor.n_members))
        k = max(1, min(most, fewest - 1))
        specs.append(measured(views, SpaceSpec(**(spec.to_json() | {"n_neighbors": k}))))
    views.specs = specs
    views.judge(predictor.n_members)
    for spec in specs:
        if spec.scope == "fold":
            _judge_added(views, spec)


def _judge_added(views: MemoryViews, spec: SpaceSpec) -> None:
    """Note the reliability of rows that no member held out, which all of them may find."""
    added = torch.nonzero(views.bank.columns[FOLD] < 0)[:, 0]
    if len(added):
        column = views.bank.columns[spec.reliability].clone()
        column[added] = views.reliability(spec, 0)[added]
        views.bank.columns[spec.reliability] = column


def _drawn_rows(predictor: Predictor, seed: int) -> Tensor:
    """Positions of at most `N_ROWS` rows, in a random order that seed and ids decide."""
    views = predictor.views
    rows = views.rows(views.specs[0], 0)  # where not all may be found, these stand for the others
    draws = arrival_draws(views.bank.ids[rows], seed + int(views.bank.ids.max()))
    return rows[torch.from_numpy(draws.argsort(kind="stable")[:N_ROWS])]


def _left_out_rows(predictor: Predictor, positions: Tensor) -> HeadRows:
    """Rows as a member sees them that was not fitted on them, each left out by id."""
    bank = predictor.views.bank
    folds = bank.columns[FOLD][positions]
    member_of = torch.where(folds < 0, bank.ids[positions] % predictor.n_members, folds)
    spaces, base = predictor.retrieve_left_out(positions, member_of)
    labels, weight = bank.labels[positions], predictor.views.weight(positions)
    return HeadRows(spaces, base, labels.to(base.device), weight.to(base.device))


def _calibrate(
    predictor: Predictor, rows: HeadRows, settings: FitSettings
) -> tuple[Acceptance, tuple[float, ...]]:
    """Decide on the head's share and the temperatures by rows the head was not fitted on."""
    output = predictor.heads[0].predict(rows.spaces, rows.base_log_proba)
    labelled = (rows.labels.cpu(), rows.weight.cpu())
    whole, base_alone = output.log_proba.cpu(), rows.base_log_proba.cpu()
    nll = mean_nll(whole, *labelled)
    parts = (base_alone, output.neighbor_log_proba.cpu())
    ridge = 1.0 / len(rows)
    temperatures = tuple(fit_temperature(part, *labelled, ridge=ridge)[0] for part in parts)
    if not settings.calibrate:
        return Acceptance(1.0, 1.0, "none (calibration=None)", nll), temperatures
    accepted = accept(whole, base_alone if predictor.has_base else None, *labelled, ridge=ridge)
    source = f"{accepted.source}, on {len(rows)} remembered rows left out"
    return replace(accepted, source=source), temperatures
