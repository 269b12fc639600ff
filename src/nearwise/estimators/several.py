"""Several targets of the same rows: one fitted model per target."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import is_classifier

from nearwise.estimators.fit.beside import Beside
from nearwise.estimators.inputs.labels import check_labels
from nearwise.estimators.inputs.rows import Rows, Source
from nearwise.estimators.inputs.several import matched, several_targets
from nearwise.estimators.inputs.shared_work import shared_work
from nearwise.estimators.model.fitted_model import FittedModel, FittedTargets
from nearwise.estimators.progress import naming_steps
from nearwise.estimators.settings import Settings
from nearwise.names import listed


def fit_each(
    estimator: Any,
    fit: Callable[..., FittedModel],
    source: Source,
    targets: Sequence[pd.Series],
    rows: Rows,
    columns: Any,
    sample_weight: Any,
) -> FittedTargets:
    """Fit a model to each target; ValueError names the target that cannot be fitted.

    `fit` takes rows with one target, and what the fits share.
    """
    _refuse_capacity(estimator)
    beside, models = _beside(estimator, targets, len(rows)), []
    with shared_work():
        for number, target in enumerate(targets):
            one = source._replace(y=target), rows, columns, sample_weight
            at = f"{target.name} ({number + 1} of {len(targets)})"
            with of_target(target.name), naming_steps(at):
                models.append(fit(*one, beside.at(number)))
    return FittedTargets([str(target.name) for target in targets], models)


def _beside(estimator: Any, targets: Sequence[pd.Series], n_rows: int) -> Beside:
    """Shared state of the fits; labels with two classes share folds and forests."""
    labels, numbers, alike = [], [], []
    if is_classifier(estimator):
        for number, target in enumerate(targets):
            with of_target(target.name):
                classes, codes = check_labels(target, n_rows)
            if len(classes) == 2:
                labels.append(codes)
                numbers.append(number)
            if len(classes) == 1:
                alike.append(str(target.name))
    if alike:
        raise ValueError(
            f"{len(alike)} of {len(targets)} targets have the same label in all {n_rows} rows: "
            f"{listed(alike)}. Leave them out, or add rows of another label."
        )
    return Beside(np.array(labels, dtype=np.int64).reshape(-1, n_rows).T, numbers)


def _refuse_capacity(estimator: Any) -> None:
    if Settings.of(estimator.settings).capacity is not None:
        raise ValueError(
            "A capacity evicts rows target by target, and several targets remember the same rows. "
            "Leave capacity out, or fit one model per target."
        )


@contextmanager
def of_target(name: Any) -> Iterator[None]:
    """Name the target in a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"Target {str(name)!r}: {error}") from error


def has_several(estimator: Any) -> bool:
    """Whether an estimator was fitted to several targets."""
    return isinstance(getattr(estimator, "fitted_", None), FittedTargets)


def has_same_rows(models: Sequence[FittedModel]) -> bool:
    """Whether models remember rows of the same ids, and give the next row the same id."""
    first = models[0].bank
    return all(
        torch.equal(one.bank.ids, first.ids) and one.next_id == models[0].next_id for one in models
    )


def estimators_of(estimator: Any) -> list[Any]:
    """Estimators of the single targets, each with the present version of its model."""
    found = []
    for fitted in estimator.fitted_.models:
        one = copy.copy(estimator)
        one.fitted_ = fitted
        found.append(one)
    return found


def each_target(combine: Callable[[list[Any]], Any] = list) -> Callable[..., Any]:
    """Decorate a method: with several targets it is called for each, and results are combined.

    An argument `y` has one column per target; None and a single number are passed on.
    """

    def decorate(method: Any) -> Any:
        @wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            if not has_several(self):
                return method(self, *args, **options)
            return combine(_called(method, self, estimators_of(self), args, options))

        return call

    return decorate


def changes_each_target(method: Any) -> Any:
    """Decorate a change of the memory: with several targets all change, or none.

    The result is that of the first target.
    """

    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        if not has_several(self):
            return method(self, *args, **options)
        with self._lock:
            _refuse_capacity(self)
            if not has_same_rows(self.fitted_.models):
                raise ValueError(
                    "The models of the targets do not remember the same rows, so that ids mean "
                    "different rows. Repeat the change that was interrupted, or fit again."
                )
            changed = estimators_of(self)
            results = _called(method, self, changed, args, options)
            self.fitted_ = replace(self.fitted_, models=[one.fitted_ for one in changed])
        return self if results[0] is changed[0] else results[0]

    return call


def _called(
    method: Any, whole: Any, each: list[Any], args: tuple[Any, ...], options: dict[str, Any]
) -> list[Any]:
    """Results of a method of the estimators of all targets."""
    given = inspect.signature(method).bind(whole, *args, **options).arguments
    given.pop("self")
    names, y = whole.fitted_.names, given.get("y")
    targets = None if y is None or np.isscalar(y) else matched(y, names)
    results = []
    with shared_work():
        for number, (one, name) in enumerate(zip(each, names, strict=True)):
            own = given if targets is None else given | {"y": targets[number]}
            with of_target(name):
                results.append(method(one, **own))
    return results


def partial_fit_each(estimator: Any, y: Any, classes: Any, learn: Callable[..., Any]) -> Any:
    """Learn a batch target by target; with an error in one of them no model changes.

    `learn` takes the estimator of one target, its labels and its declared classes or None. The
    caller holds the lock.
    """
    if has_several(estimator):
        names, each = estimator.fitted_.names, estimators_of(estimator)
    else:
        names = [str(one.name) for one in several_targets(y) or ()]
        each = [copy.copy(estimator) for _ in names]
    if classes is not None and len(classes) != len(names):
        raise ValueError(
            f"classes lists the classes of {len(classes)} targets, and there are {len(names)}. "
            "Give one array of classes per target."
        )
    for number, target in enumerate(matched(y, names)):
        with of_target(names[number]):
            learn(each[number], target, None if classes is None else classes[number])
    estimator.fitted_ = FittedTargets(names, [one.fitted_ for one in each])
    return estimator
