"""Changes to a fitted model: rows come, go or get another label, and attention is refreshed.

Every function takes a model and gives a new one; the model it was given stays as it is, whatever
happens on the way.
"""

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nearwise.estimators.inputs.labels import check_labels, label_values, positions_among
from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.inputs.table import as_frame
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel
from nearwise.estimators.model.memory_views import FOLD, GROUPED
from nearwise.estimators.model.predictor import as_float
from nearwise.estimators.online.capacity import rows_to_forget
from nearwise.estimators.online.refreshing import can_refresh
from nearwise.estimators.online.updates import (
    predict_new,
    refuse_emptied_classes,
    refuse_few,
)
from nearwise.estimators.storage.row_storage import append_frame
from nearwise.memory.eviction import EvictionName, check_capacity, usual_half_life
from nearwise.warn import warn_user

_REFRESH_AFTER = 0.5  # of the memory at the last refresh: so many new rows cause the next
_REFRESH_NEW_CLASS = 0.02  # of the memory: so many rows of classes that attention has not met
_FEWEST = 50  # rows in the memory below which a refresh would learn nothing


Fitted = TypeVar("Fitted", bound=FittedModel)


class Bound(NamedTuple):
    """How many rows the memory may hold, and which go first.

    `gone`: ids of the rows to forget, where they are known: of a change that is made again.
    """

    capacity: int | None
    eviction: EvictionName
    gone: Tensor | None = None


class NewRows(NamedTuple):
    """Rows to remember, as the user gave them, and encoded in as many views as those of `fit`.

    Weights are in the unit of the user; `groups` are columns of the bank.
    """

    given: Any
    views: list[AnyRows]
    y: Any
    weight: np.ndarray | None
    names: np.ndarray | None
    groups: dict[str, Tensor]


def groups_of_new(model: FittedModel, given: np.ndarray | None, rows: AnyRows) -> dict[str, Tensor]:
    """Columns of the bank about the groups of new rows; empty where the model has no groups.

    Rows of a group that a base has learned are no calibration rows: it does not predict them as
    rows of a new group.

    ValueError if groups are given and the model has none, or the reverse; a memory in a store
    keeps none.
    """
    if not model.holds_memory:
        return {}
    if (model.group_name is None) != (given is None):
        if given is not None:
            raise ValueError(
                "This model was fitted without groups. Leave groups out, or fit again with groups."
            )
        said = f" ({model.group_name!r})" if model.group_name else ""
        raise ValueError(
            f"This model was fitted with groups{said}, and new rows came without. Give one "
            "value per row: groups=... (--groups COLUMN)."
        )
    name = next((one for one in GROUPED if one in model.bank.columns), None)
    if name is None:
        return {}
    groups = torch.from_numpy(rows.digests() if given is None else given)
    learned = torch.zeros(len(groups), dtype=torch.bool)
    if model.predictor.has_base:
        of_fit = model.bank.columns[name][model.bank.ids < model.stream.refreshed_at]
        learned = torch.isin(groups, of_fit)
    return {name: groups, FOLD: -learned.long()}


def with_rows(
    model: FittedClassifier, new: NewRows, bound: Bound
) -> tuple[FittedClassifier, Tensor]:
    """Remember rows, of new classes too; a memory over its capacity then forgets some.

    Gives the model and the new rows' ids.
    """
    views = model.predictor.views
    views.check_addable([], bound.capacity, has_base=model.predictor.has_base)
    if bound.capacity is not None:
        _check_room(model, new.y, bound.capacity)
    present, codes = check_labels(new.y, len(new.given))
    positions, fresh = positions_among(model.classes, present)
    views.check_addable(fresh, None, has_base=model.predictor.has_base)
    fork = model.fork()
    predictor, n_classes = fork.predictor, len(model.classes) + len(fresh)
    # Neither base nor keys have learned the rows' labels: they are calibration rows from now on.
    keys, columns = predictor.keys_of_new(new.views)
    columns |= new.groups
    columns |= predictor.label_model.columns_of_new(lambda: predict_new(predictor, new.views))
    weight = None if new.weight is None else as_float(new.weight / model.weight_unit)
    labels = torch.from_numpy(positions[codes])
    ids = predictor.views.add_rows(keys, columns, labels, weight, n_classes)
    fork = replace(with_given(fork, new), classes=classes_with(model.classes, fresh))
    return bounded(fork.settled(), bound), ids


def with_given(fork: Fitted, new: NewRows) -> Fitted:
    """Keep new rows as they were given."""
    if fork.predictor.views.keep_given(new.given, new.names):
        return fork
    if isinstance(fork.rows, pd.DataFrame):
        rows: Any = append_frame(fork.rows, as_frame(new.given))
    else:
        rows = np.concatenate([fork.rows, np.asarray(new.given, dtype=fork.rows.dtype)])
    return replace(fork, rows=rows, row_names=_with_names(fork, new.names, len(new.given)))


def without_rows(model: Fitted, ids: Any, *, forget_classes: bool = False) -> Fitted:
    """Forget remembered rows by id."""
    fork = model.fork()
    views = fork.predictor.views
    at = views.hold(ids)
    refuse_few(views, at)
    if not forget_classes and isinstance(model, FittedClassifier):
        refuse_emptied_classes(views, at, None, model.classes, "Removing")
    return _forgotten(fork, ids)


def with_labels(
    model: FittedClassifier, ids: Any, y: Any, *, forget_classes: bool
) -> FittedClassifier:
    """Give remembered rows other labels among the classes."""
    positions, unknown = positions_among(model.classes, label_values(y))
    if unknown:
        raise ValueError(
            f"Labels {unknown[:5]} are not among the classes {model.classes.tolist()[:10]}. "
            "Add rows of new classes by add()."
        )
    new, fork = torch.from_numpy(positions), model.fork()
    views = fork.predictor.views
    at = views.hold(ids)
    if not forget_classes and len(new) == len(at):
        refuse_emptied_classes(views, at, new, model.classes, "Relabelling")
    views.relabel_rows(ids, new)
    return fork.settled()


def with_declared(model: FittedClassifier, classes: Any, y: Any) -> FittedClassifier:
    """Give classes that were declared a column, and refuse labels that were not."""
    if classes is not None:
        unknown = positions_among(model.classes, label_values(classes))[1]
        if unknown and model.stream.declared:
            raise ValueError(
                f"classes lists {unknown[:5]}, which the first call did not. Leave it out."
            )
        model = with_classes(model, unknown)
    if model.stream.declared and y is not None:
        unknown = positions_among(model.classes, label_values(y))[1]
        if unknown:
            raise ValueError(
                f"y holds {unknown[:5]}, which the first call's classes did not list. Use "
                "add() for unexpected classes, or leave classes out of partial_fit."
            )
    return model


def with_classes(model: FittedClassifier, fresh: list[Any]) -> FittedClassifier:
    """Give classes a column before their first row."""
    if not fresh:
        return model
    fork = replace(model.fork(), classes=classes_with(model.classes, fresh))
    fork.bank.n_classes = fork.n_classes
    fork.predictor.views.forget_labels()
    return fork.settled()


def refresh_is_due(model: FittedModel) -> bool:
    """Whether enough new rows, or rows of new classes, came since the last refresh.

    Never where one fold was held out: its networks take long to train, so that is left to the user.
    """
    bank, stream = model.bank, model.stream
    if len(bank) < _FEWEST or model.predictor.held_rows_out or not can_refresh(model.predictor):
        return False
    arrived = int(bank.ids.max()) + 1 - stream.refreshed_at
    labels, of_fit = torch.from_numpy(model.codes), bank.ids < stream.refreshed_at
    of_new_classes = int((~torch.isin(labels, labels[of_fit])).sum())
    return arrived >= _REFRESH_AFTER * stream.refreshed_size or (
        of_new_classes >= max(4, _REFRESH_NEW_CLASS * len(bank))
    )


def bounded(fork: Fitted, bound: Bound) -> Fitted:
    """Forget what is beyond the capacity; `fork` is not published yet."""
    fork = forgetting(fork, bound)
    ids = bound.gone
    if ids is None:
        if bound.capacity is None or len(fork.bank) <= bound.capacity:
            return fork
        gone = rows_to_forget(
            fork.predictor.views,
            bound.capacity,
            bound.eviction,
            seed=fork.stream.seed,
            first=fork.stream.first,
        )
        ids = fork.bank.ids[gone]
    return replace(_forgotten(fork, ids), evicted=ids.numpy()) if len(ids) else fork


def forgetting(fork: Fitted, bound: Bound) -> Fitted:
    """Let votes fade with age where old rows go first; `fork` is not published yet."""
    half_life = None
    if bound.eviction == "age" and bound.capacity is not None:
        half_life = usual_half_life(bound.capacity)
    stream = replace(fork.stream, half_life=half_life)
    return replace(fork, stream=stream, evicted=np.empty(0, dtype=np.int64)).fading()


def _forgotten(fork: Fitted, ids: Any) -> Fitted:
    stays = fork.predictor.views.remove_rows(ids)
    if stays is not None:
        rows, names = fork.rows, fork.row_names
        is_table = isinstance(rows, pd.DataFrame)
        rows = rows.iloc[stays].reset_index(drop=True) if is_table else rows[stays]
        fork = replace(fork, rows=rows, row_names=None if names is None else names[stays])
    return fork.settled()


def _with_names(model: FittedModel, names: np.ndarray | None, n_rows: int) -> np.ndarray | None:
    """Names of the rows, new ones at the end; "" for those without among others that have one."""
    if names is None and model.row_names is None:
        return None
    before = np.full(len(model.rows), "") if model.row_names is None else model.row_names
    return np.concatenate([before, np.full(n_rows, "") if names is None else names])


def classes_with(before: np.ndarray, fresh: list[Any]) -> np.ndarray:
    """Put classes that come later after those there are."""
    if not fresh:
        return before
    extra = np.array(fresh, dtype=np.result_type(before, np.asarray(fresh)))
    classes = np.concatenate([before, extra])
    if _is_sorted(before) and not _is_sorted(classes):
        warn_user(
            f"classes_ is no longer sorted: {fresh[:5]} came later and stand last, and so do "
            "their columns. scikit-learn's scorers of probabilities (neg_log_loss, "
            "roc_auc_ovr) take columns in sorted order: give them "
            "proba[:, np.argsort(model.classes_)]."
        )
    return classes


def _is_sorted(classes: np.ndarray) -> bool:
    return bool((classes[:-1] <= classes[1:]).all())


def _check_room(model: FittedClassifier, y: Any, capacity: int) -> None:
    """Refuse new labels that a full memory could not hold beside what it must keep."""
    everyone = set(model.classes[model.label_positions.unique().numpy()].tolist())
    everyone |= set(np.asarray([] if y is None else y, dtype=object).ravel().tolist())
    check_capacity(capacity, len(everyone))
