"""Common base class of classifier and regressor: parameters, published model, rows, folders."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.estimators.fit.problem import FitSettings, Problem
from nearwise.estimators.inputs.rows import Rows, Source
from nearwise.estimators.inputs.several import several_targets
from nearwise.estimators.model.fitted_model import FittedModel, StreamState
from nearwise.estimators.model.predictor import Predictor
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.online.changes import Bound
from nearwise.estimators.online.refreshing import can_refresh
from nearwise.estimators.progress import Progress
from nearwise.estimators.query import kneighbors
from nearwise.estimators.settings import Settings, unknown_hint
from nearwise.estimators.several import (
    changes_each_target,
    each_target,
    estimators_of,
    fit_each,
    has_several,
)
from nearwise.estimators.storage.persistence import load_model_folder, note_folder, save_model
from nearwise.estimators.storage.targets_folder import (
    is_of_targets,
    load_targets,
    save_targets,
)
from nearwise.estimators.stored.folder import is_stored, open_stored, refuse_trusted_store
from nearwise.forking import heed_forks
from nearwise.functional.threads import one_thread
from nearwise.memory import MemoryBank
from nearwise.memory.eviction import check_capacity

Model = TypeVar("Model", bound=FittedModel)
_RARE = "settings__"  # prefix of settings among the parameters


class NeighborEstimator(BaseEstimator, Generic[Model]):
    """Base class of estimators that publish successive versions of a fitted model.

    A change edits a fork of the model and publishes it by one assignment, so that any number of
    threads may predict at the same time.
    """

    fitted_: Model  # the present version for predictions; a change replaces it
    settings: Any
    verbose: int
    _fit_model: Callable[..., Model]  # fits to rows, without publishing the model
    _fit_problem: Callable[..., Predictor]
    folder_parts: Any  # module for storage in folders, `class_parts` or `number_parts`

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with `deep` also settings, such as "settings__index"."""
        params: dict[str, Any] = super().get_params(deep)
        if deep and "settings" in params:
            settings = params["settings"]
            rare = dict(settings if isinstance(settings, Settings) else Settings())
            rare |= settings if isinstance(settings, dict) else {}
            params |= {f"{_RARE}{name}": value for name, value in rare.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters by name, settings by `settings__index="exact"`; see scikit-learn."""
        known = self._get_param_names()
        strange = [name for name in params if name.partition("__")[0] not in known]
        if strange:
            raise ValueError(
                f"Invalid parameter {strange[0]!r} for estimator {type(self).__name__}."
                f"{unknown_hint(strange[0], known)} Valid parameters are: {known!r}."
            )
        nested = [name for name in params if name.startswith(_RARE)]
        rare = {name.removeprefix(_RARE): params.pop(name) for name in nested}
        super().set_params(**params)
        if rare:
            self.settings = Settings.of(self.settings).changed(**rare)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tags for scikit-learn, with support of missing values."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_writers"}

    def _html_repr(self) -> str:
        """scikit-learn's diagram; below it, what a fitted model remembers."""
        diagram = str(estimator_html_repr(self))
        if not self.__sklearn_is_fitted__() or has_several(self):
            return diagram
        from nearwise.html import notebook

        return diagram + notebook("model.html", model=self)

    @property
    def _lock(self) -> threading.RLock:
        """Lock for changes of the model; predictions never wait for it."""
        if "_writers" not in self.__dict__:
            heed_forks(self, NeighborEstimator._renew_lock)
        lock: threading.RLock = self.__dict__.setdefault("_writers", threading.RLock())
        return lock

    def _renew_lock(self) -> None:
        """Replace the lock by a new one, after a process fork."""
        self.__dict__.pop("_writers", None)

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        groups: Any,
        show: Any,
        views: Sequence[Any] | None = None,
    ) -> Self:
        source, columns = Source.of(X, y, groups, show), self.folder_parts.Columns()
        rows = Rows.given(source.X, columns, views=views)
        given, targets = source.naming(rows), several_targets(source.y)
        model: Any
        if targets is None:
            model = self._fit_model(given, rows, columns, sample_weight)
        else:
            model = fit_each(self, self._fit_model, given, targets, rows, columns, sample_weight)
        with self._lock:  # known folders no longer belong to the model's lineage
            before = self.fitted_.folders if hasattr(self, "fitted_") else {}
            folders = {key: state._replace(fitted_anew=True) for key, state in before.items()}
            self.fitted_ = replace(model, folders=folders)
        return self

    def _fit_to(
        self,
        problem: Problem,
        settings: FitSettings,
        source: Source,
        rows_at: Callable[[np.ndarray], Any],
        make: Callable[..., Model],
    ) -> Model:
        """Fit to a problem and `make` the model; `rows_at` returns rows for the memory."""
        if settings.capacity is not None:
            check_capacity(settings.capacity, problem.n_classes)
        with Progress(self.verbose) as progress:
            predictor = self._fit_problem(problem, settings, progress)
        bank, names = predictor.views.bank, source.names
        remembered, first = bank.ids.numpy(), int(bank.ids.max()) + 1
        model = make(
            predictor=predictor,
            rows=rows_at(remembered),
            row_names=None if names is None else names[remembered],
            target_name=str(getattr(source.y, "name", None) or "target"),
            group_name=None if source.groups is None else source.groups.name,
            stream=StreamState(settings.seed, first, len(bank), first),
            fitted_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        )
        if self._bound.capacity is None:
            return model
        model = changes.bounded(model, self._bound)
        return replace(model, stream=replace(model.stream, refreshed_size=len(model.bank)))

    def _change(self, change: Callable[..., Model], *args: Any, **options: Any) -> None:
        """Apply a change to the model and publish the result, under the lock."""
        check_is_fitted(self)
        with self._lock, one_thread():
            self.fitted_.predictor.views.check_changeable()
            self.fitted_ = change(self, self.fitted_, *args, **options)

    def _remember(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        groups: Any,
        show: Any,
        views: Sequence[Any] | None = None,
    ) -> np.ndarray:
        """Add new rows and return their ids."""
        check_is_fitted(self)
        source = Source.of(X, y, groups, show, like=self.fitted_)
        with self._lock:
            self.fitted_.predictor.views.check_changeable()
            self.fitted_, ids = by_settings.with_rows(
                self, self.fitted_, source, sample_weight, views, self._bound
            )
        return ids.numpy().copy()

    def _learn_batch(
        self,
        source: Source,
        sample_weight: Any,
        views: Sequence[Any] | None = None,
        prepare: Callable[[Any], Model] = lambda model: model,
    ) -> None:
        """Add a batch, and refit if a refresh is due; the caller holds the lock."""
        model = self.fitted_
        if can_refresh(model.predictor) and not model.predictor.held_rows_out:
            by_settings.settings_of_refresh(self, model)  # raises before any change
        model = prepare(model)
        model, _ = by_settings.with_rows(self, model, source, sample_weight, views, self._bound)
        due = changes.refresh_is_due(model)
        self.fitted_ = by_settings.refreshed(self, model) if due else model

    @property
    def _predictor(self) -> Predictor:
        return self._fitted.predictor

    @property
    def _bound(self) -> Bound:
        settings = Settings.of(self.settings)
        return Bound(settings.capacity, settings.eviction)

    @property
    def _fitted(self) -> Model:
        """The present version of the model; a call reads it once and keeps it."""
        check_is_fitted(self)
        return self.fitted_

    @property
    def n_features_in_(self) -> int:
        """Number of training columns, or of values per image."""
        return self._fitted.columns.n_features_in_

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the training columns; AttributeError without names."""
        return self._fitted.columns.feature_names_in_

    @property
    @each_target()
    def memory_(self) -> MemoryBank:
        """The present remembered rows: keys of every space, labels, ids, weights.

        Change them by `add`, `remove` and `relabel`; each makes a new bank.
        """
        return self._fitted.bank

    @property
    def estimators_(self) -> list[Self]:
        """Estimators of the single targets, as in scikit-learn's MultiOutputClassifier.

        Changes of them do not change this estimator. AttributeError with one target.
        """
        if not has_several(self):
            raise AttributeError(f"This {type(self).__name__} has one target. Use it itself.")
        return estimators_of(self)

    @property
    def target_names_(self) -> list[str]:
        """Names of several targets; numbers from 0 without names. AttributeError with one."""
        fitted: Any = self._fitted
        names: list[str] = fitted.names
        return names

    @each_target()
    @torch.inference_mode(False)
    def keys(self, X: Any, space: str = "features") -> np.ndarray:
        """Keys of rows in one of the searched spaces.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        space : str, default="features"
            Name of the space, from `report_.choice["spaces"]` or `memory_.keys`.

        Returns
        -------
        keys : float32 ndarray of shape (n, width)
        """
        model = self._fitted.for_query(remembered=False)
        rows = model.encoded(X, [])
        if space == "features":
            return model.predictor.feature_keys(rows[0]).numpy()
        found = model.predictor.keys_of(rows)
        if space not in found:
            raise ValueError(f"There is no space {space!r}. Known: {', '.join(found)}.")
        return found[space].numpy()

    @each_target()
    @torch.inference_mode(False)
    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """Nearest remembered rows in the feature space.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            Query rows. None means the remembered rows, each left out of its own neighbors.
        n_neighbors : int, optional
            Number of neighbors. Default: the estimator's number.
        return_distance : bool, default=True

        Returns
        -------
        distances : ndarray of shape (n, n_neighbors)
            Ascending distances by `metric` between keys. Only with `return_distance`.
        ids : ndarray of shape (n, n_neighbors)
            Ids in `memory_`; training rows count from 0.
        """
        features: Callable[[], Tensor] | None = None
        model = self._fitted.for_query(remembered=X is None)
        if X is not None:
            features = lambda: model.predictor.feature_keys(model.encoded(X, [])[0])  # noqa: E731
        distances, ids = kneighbors(model, features, n_neighbors)
        return (distances, ids) if return_distance else ids

    @changes_each_target
    @torch.inference_mode(False)
    def refresh(self) -> Self:
        """Refit to the present remembered rows, with the same seed.

        Takes as long as `fit`. Classes added later then also become classes of the base.

        Raises
        ------
        ValueError
            If the fit had views, which are not remembered, or a noisy-label model for classes
            (`label_noise`), or `cv` has row positions. Nothing is then changed.
        """
        self._change(by_settings.refreshed)
        return self

    @torch.inference_mode(False)
    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the model to a folder; an older model there is replaced atomically.

        Before that, the new files are loaded and compared with the model; a base of your own is
        compared by predictions of a few rows.

        Parameters
        ----------
        folder : path
        overwrite : bool, default=False
            Whether to replace a model that another process has saved since this one was loaded.

        Raises
        ------
        StoreError
            If the folder has other content, or has changed since this model was loaded.
        OSError
            If it cannot be written. The old content is unchanged.
        """
        if has_several(self):
            with self._lock:
                save_targets(self, folder, overwrite=overwrite)
            return
        with self._lock:  # one version, also if rows are added meanwhile
            fitted = self._fitted
        state = save_model(self, fitted, folder, overwrite=overwrite)
        with self._lock:
            note_folder(self.fitted_, folder, state)

    @classmethod
    @torch.inference_mode(False)
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        trusted: Sequence[str] = (),
        trusted_store: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Load a saved model; its predictions are equal to the bit.

        Parameters
        ----------
        folder : path
        trusted : sequence of str, default=()
            Trusted types in a saved base of your own, as listed by `save`. In a folder from
            another person such types could crash the process or run code.
        trusted_store : str or path, optional
            URI of a store outside the folder, if the memory is there. Without it no such store is
            opened. User, credentials and settings come from this URI and your environment, never
            from the folder.

        Raises
        ------
        StoreError
            If the folder is missing, torn, foreign, of another format version or invalid; `reason`
            is the kind of error, and the message names the part. "untrusted" if the memory is in
            a store other than `trusted_store`.
        ValueError
            If the base has types that are not trusted.
        OSError
            If the folder of a text model is missing, or its files changed since the fit.
        """
        if is_of_targets(folder):
            refuse_trusted_store(folder, trusted_store)
            return load_targets(cls, folder, trusted)
        if is_stored(folder):
            return open_stored(cls, folder, trusted, trusted_store)
        refuse_trusted_store(folder, trusted_store)
        return load_model_folder(cls, folder, trusted)
