"""Changes of a fitted model, with recalibration or refit by the estimator's parameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from nearwise.estimators.fit.problem import FitSettings, Problem, given_folds
from nearwise.estimators.inputs.labels import check_weight
from nearwise.estimators.inputs.rows import Rows, Source
from nearwise.estimators.model.class_prior import check_class_prior
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel, FittedRegressor
from nearwise.estimators.model.memory_views import EMBEDDED, GROUP
from nearwise.estimators.online import changes, number_changes
from nearwise.estimators.online.changes import Bound, Fitted, NewRows, groups_of_new
from nearwise.estimators.online.judging import judged_again
from nearwise.estimators.online.refreshing import refuse_fixed_positions, refuse_refresh
from nearwise.estimators.progress import Progress
from nearwise.estimators.settings import Settings
from nearwise.functional.threads import one_thread


@one_thread()
def with_rows(
    params: Any,
    model: Fitted,
    source: Source,
    sample_weight: Any,
    views: Sequence[Any] | None,
    bound: Bound,
) -> tuple[Fitted, Tensor]:
    """Add rows, and recalibrate after many changes; returns the model and the ids."""
    rows = Rows.given(source.X, model.columns, model.predictor.encoder, views)
    _, y, names, groups, _ = source.naming(rows)
    everyone = rows.encode(model.predictor.tta if views is None else None)
    n_views = model.predictor.n_views
    if len(everyone) != n_views:
        raise ValueError(
            f"The remembered keys are means over {n_views} views of a row, and {len(everyone)} "
            "were given. Give as many (views=[...])."
        )
    weight = check_weight(sample_weight, len(rows))
    digests = None if groups is None else groups.of_rows(len(rows))
    own = groups_of_new(model, digests, everyone[0])
    new = NewRows(rows.X, everyone, y, weight, names, own)
    of_numbers = isinstance(model, FittedRegressor)
    make: Any = number_changes.with_rows if of_numbers else changes.with_rows
    changed, ids = make(model, new, bound)
    return _judged_again(params, model, changed), ids


def with_change(
    params: Any,
    model: Fitted,
    change: Callable[..., Fitted],
    *args: Any,
    **options: Any,
) -> Fitted:
    """Change remembered rows; refits if the model forgets exactly, else may recalibrate."""
    changed = change(model, *args, **options)
    if model.holds_memory and model.predictor.forgets_exactly:
        return fit_again(params, changed)
    return _judged_again(params, model, changed)


def relabelled(model: Any, ids: Any, y: Any, *, forget_classes: bool = False) -> Any:
    """Relabel remembered rows with known classes, or replace their targets."""
    if isinstance(model, FittedRegressor):
        return number_changes.with_targets(model, ids, y)
    return changes.with_labels(model, ids, y, forget_classes=forget_classes)


def refreshed(params: Any, model: Fitted) -> Fitted:
    """Refit to the remembered rows; ValueError if they lack data of the fit."""
    refuse_refresh(model.predictor)
    return fit_again(params, model)


def fit_again(params: Any, model: Fitted) -> Fitted:
    """Refit to the remembered rows with the same seed; the label model stays."""
    bank = model.bank
    weight = bank.sample_weight.double().numpy()
    own = None if (weight == 1).all() else weight / weight.mean()
    before: Any = model.predictor.encoder
    encoder = type(before)()
    encoded = encoder.learn(model.rows, params.columns, before)
    problem = Problem(encoder, encoded, model.codes, own, bank.n_classes, ids=bank.ids)
    problem.targets = model.numbers
    problem.embedded = bank.columns.get(EMBEDDED)
    given = bank.columns.get(GROUP)
    problem.group(
        None if given is None else given.numpy(), copies=model.predictor.views.label_model.as_given
    )
    problem.tta = model.predictor.tta
    problem.views = encoder.views(encoded, [], problem.tta)
    with Progress(params.verbose) as progress:
        settings = settings_of_refresh(params, model)
        predictor = params._fit_problem(problem, settings, progress)
    predictor.views.label_model = model.predictor.views.label_model
    if "label_noise" in model.predictor.choice:
        predictor.choice.setdefault("label_noise", model.predictor.choice["label_noise"])
    predictor.views.bank.next_id = bank.next_id
    arrived = int(bank.ids.max()) + 1
    stream = replace(model.stream, refreshed_at=arrived, refreshed_size=len(bank), changed=0)
    return replace(model, predictor=predictor, stream=stream).fading()


def settings_of_refresh(params: Any, model: FittedModel) -> FitSettings:
    """Check the settings for a refit; `n_neighbors` may exceed the number of rows."""
    bank, n_rows = model.bank, len(model.bank)
    encoder: Any = model.predictor.encoder
    if isinstance(params.n_neighbors, int | np.integer):
        n_rows = max(n_rows, int(params.n_neighbors) + 1)
    n_classes = bank.n_classes
    if isinstance(model, FittedClassifier):
        n_classes = _n_listed(params, model, n_classes)
    refuse_fixed_positions(params.cv)
    settings: FitSettings = params._checked_settings(
        n_rows,
        n_classes,
        model.stream.seed,
        n_views=model.predictor.n_views,
        image_size=encoder.size if encoder.kind == "images" else None,
        folds=given_folds(
            params.cv,
            model.rows,
            model.codes,
            None if GROUP not in bank.columns else bank.columns[GROUP].numpy(),
        ),
    )
    return settings


def _judged_again(params: Any, before: Any, after: Any) -> Any:
    """Recalibrate a changed classifier after many changes, by the present settings."""
    if isinstance(after, FittedRegressor):
        return after

    def settings() -> FitSettings:
        known = len(after.predictor.prior)
        wanted = check_class_prior(params.class_prior, _n_listed(params, after, known))
        seed, own = after.stream.seed, dict(Settings.of(params.settings))
        # Other settings are for fits only, and were checked with other rows.
        return FitSettings.model_construct(**own, class_prior=wanted, seed=seed)

    return judged_again(before, after, settings)


def _n_listed(params: Any, model: FittedClassifier, n_classes: int) -> int:
    """Count the classes in a class prior: `n_classes`, or fewer if classes were added later."""
    correction = model.predictor.classes
    if correction is not None and correction.wanted is not None:
        listed = len(correction.wanted)  # given shares do not include later classes
        if not isinstance(params.class_prior, str) and np.size(params.class_prior) == listed:
            return listed
    return n_classes
