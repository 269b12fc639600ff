"""Changes of a fitted model: adding, removing and relabelling rows, and when to refresh.

Every function returns a new model; the given model stays unchanged, also after an error.
"""

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nearwise.estimators.inputs.labels import (
    check_labels,
    label_values,
    positions_among,
    warn_of_alike_labels,
)
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

_REFRESH_AFTER = 0.5  # new rows that cause a refresh, per row of the memory at the last one
_REFRESH_NEW_CLASS = 0.02  # share of rows of new classes in the memory that causes a refresh
_FEWEST = 50  # fewest rows in the memory for a refresh


Fitted = TypeVar("Fitted", bound=FittedModel)


class Bound(NamedTuple):
    """Capacity of the memory, and the order of evictions.

    `gone`: ids of the rows to evict, if known from a replayed change.
    """

    capacity: int | None
    eviction: EvictionName
    gone: Tensor | None = None


class NewRows(NamedTuple):
    """Rows to add: original, and encoded in as many views as in `fit`.

    Weights are in the user's unit; `groups` are columns of the bank.
    """

    given: Any
    views: list[AnyRows]
    y: Any
    weight: np.ndarray | None
    names: np.ndarray | None
    groups: dict[str, Tensor]


def groups_of_new(model: FittedModel, given: np.ndarray | None, rows: AnyRows) -> dict[str, Tensor]:
    """Bank columns with the groups of new rows; empty if the model has no groups.

    Rows of a group that a base was trained on are not calibration rows, as the base does not
    predict them like rows of a new group.

    ValueError if groups are given and the model has none, or the reverse; a memory in a store has
    no groups.
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
    """Add rows, also of new classes, and evict rows beyond the capacity.

    Returns the model and the ids of the new rows.
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
    # Base and keys are not trained on the rows' labels, so these become calibration rows.
    keys, columns = predictor.keys_of_new(new.views)
    columns |= new.groups
    columns |= predictor.label_model.columns_of_new(lambda: predict_new(predictor, new.views))
    weight = None if new.weight is None else as_float(new.weight / model.weight_unit)
    labels = torch.from_numpy(positions[codes])
    ids = predictor.views.add_rows(keys, columns, labels, weight, n_classes)
    fork = replace(with_given(fork, new), classes=classes_with(model.classes, fresh))
    return bounded(fork.settled(), bound), ids


def with_given(fork: Fitted, new: NewRows) -> Fitted:
    """Store the original new rows."""
    if fork.predictor.views.keep_given(new.given, new.names):
        return fork
    if isinstance(fork.rows, pd.DataFrame):
        rows: Any = append_frame(fork.rows, as_frame(new.given))
    else:
        rows = np.concatenate([fork.rows, np.asarray(new.given, dtype=fork.rows.dtype)])
    return replace(fork, rows=rows, row_names=_with_names(fork, new.names, len(new.given)))


def without_rows(model: Fitted, ids: Any, *, forget_classes: bool = False) -> Fitted:
    """Remove remembered rows by id."""
    fork = model.fork()
    check_removal(fork, ids, forget_classes=forget_classes)
    return _forgotten(fork, ids)


def check_removal(model: FittedModel, ids: Any, *, forget_classes: bool = False) -> None:
    """Check that rows can be removed: ValueError, or UnknownIdError if one is not remembered."""
    views = model.predictor.views
    at = views.hold(ids)
    refuse_few(views, at)
    if not forget_classes and isinstance(model, FittedClassifier):
        refuse_emptied_classes(views, at, None, model.classes, "Removing")


def with_labels(
    model: FittedClassifier, ids: Any, y: Any, *, forget_classes: bool
) -> FittedClassifier:
    """Relabel remembered rows with known classes."""
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
    """Add the declared classes, and raise ValueError for labels of other classes."""
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
    """Add classes before their first row."""
    if not fresh:
        return model
    fork = replace(model.fork(), classes=classes_with(model.classes, fresh))
    fork.bank.n_classes = fork.n_classes
    fork.predictor.views.forget_labels()
    return fork.settled()


def refresh_is_due(model: FittedModel) -> bool:
    """Whether enough new rows, or rows of new classes, were added since the last refresh.

    Never after a fit with a hold-out split: networks take long to train, so the user decides.
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
    """Evict rows beyond the capacity, in an unpublished fork."""
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
    """Set the decay of votes with age for eviction by age, in an unpublished fork."""
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
    """Texts shown with the rows, new ones last; "" for a row without; None if no row has one."""
    if names is None and model.row_names is None:
        return None
    lengths = len(model.rows), n_rows
    parts = zip((model.row_names, names), lengths, strict=True)
    return np.concatenate([np.full(n, "", object) if own is None else own for own, n in parts])


def classes_with(before: np.ndarray, fresh: list[Any]) -> np.ndarray:
    """Append new classes to the present ones."""
    if not fresh:
        return before
    warn_of_alike_labels(fresh, before.tolist())
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
    """Raise ValueError if the capacity is too small for all classes with the new labels."""
    everyone = set(model.classes[model.label_positions.unique().numpy()].tolist())
    everyone |= set(np.asarray([] if y is None else y, dtype=object).ravel().tolist())
    check_capacity(capacity, len(everyone))
