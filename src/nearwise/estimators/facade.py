"""What the classifier and the regressor share: parameters, the published model, rows, folders."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.estimators.fit.problem import FitSettings, Problem
from nearwise.estimators.inputs.rows import Rows, Source
from nearwise.estimators.model.fitted_model import FittedModel, StreamState
from nearwise.estimators.model.predictor import Predictor
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.online.changes import Bound
from nearwise.estimators.online.refreshing import can_refresh
from nearwise.estimators.progress import Progress
from nearwise.estimators.query import kneighbors
from nearwise.estimators.settings import Settings, unknown_hint
from nearwise.estimators.storage.persistence import load_model_folder, note_folder, save_model
from nearwise.estimators.stored.folder import is_stored, open_stored, refuse_trusted_store
from nearwise.forking import heed_forks
from nearwise.functional.threads import one_thread
from nearwise.memory import MemoryBank
from nearwise.memory.eviction import check_capacity

Model = TypeVar("Model", bound=FittedModel)
_RARE = "settings__"  # how settings are named among the parameters


class NeighborEstimator(BaseEstimator, Generic[Model]):
    """An estimator that publishes one version of a fitted model after another.

    A change works on a fork of the model and publishes it with one assignment, so that any number
    of threads may predict meanwhile.
    """

    fitted_: Model  # the version that predictions see; a change replaces it
    settings: Any
    verbose: int
    _fit_model: Callable[..., Model]  # fits to rows, and publishes nothing
    _fit_problem: Callable[..., Predictor]
    folder_parts: Any  # a module: how folders hold the model, `class_parts` or `number_parts`

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; where `deep`, settings as "settings__index" and so on, too."""
        params: dict[str, Any] = super().get_params(deep)
        if deep and "settings" in params:
            settings = params["settings"]
            rare = dict(settings if isinstance(settings, Settings) else Settings())
            rare |= settings if isinstance(settings, dict) else {}
            params |= {f"{_RARE}{name}": value for name, value in rare.items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change parameters by name, settings as `settings__index="exact"`; see scikit-learn."""
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
        """Tell scikit-learn that missing values are supported."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fitted_")

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_writers"}

    def _html_repr(self) -> str:
        """Show what a fitted estimator holds; the parameters of one that is not."""
        if not self.__sklearn_is_fitted__():
            return str(estimator_html_repr(self))
        from nearwise.html import notebook

        return notebook("model.html", name=type(self).__name__, model=self)

    @property
    def _lock(self) -> threading.RLock:
        """Taken by whoever changes the model; predictions never wait."""
        if "_writers" not in self.__dict__:
            heed_forks(self, NeighborEstimator._renew_lock)
        lock: threading.RLock = self.__dict__.setdefault("_writers", threading.RLock())
        return lock

    def _renew_lock(self) -> None:
        """Have a lock that no thread holds."""
        self.__dict__.pop("_writers", None)

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, views: Sequence[Any] | None = None
    ) -> Self:
        source, columns = Source.of(X, y, groups), self.folder_parts.Columns()
        rows = Rows.given(source.X, columns, views=views)
        model = self._fit_model(source, rows, columns, sample_weight)
        with self._lock:  # what was held of folders is no longer the model's lineage
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
        """Fit to a problem, and `make` the model; `rows_at` gives rows as they are remembered."""
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
        )
        if self._bound.capacity is None:
            return model
        model = changes.bounded(model, self._bound)
        return replace(model, stream=replace(model.stream, refreshed_size=len(model.bank)))

    def _change(self, change: Callable[..., Model], *args: Any, **options: Any) -> None:
        """Publish what a change makes of the estimator and its model; writers take turns."""
        check_is_fitted(self)
        with self._lock, one_thread():
            self.fitted_.predictor.views.check_changeable()
            self.fitted_ = change(self, self.fitted_, *args, **options)

    def _remember(
        self, X: Any, y: Any, sample_weight: Any, groups: Any, views: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Remember new rows, and give their ids."""
        check_is_fitted(self)
        source = Source.of(X, y, groups)
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
        """Remember the next batch, and fit again where that is due; the caller holds the lock."""
        model = self.fitted_
        if can_refresh(model.predictor) and not model.predictor.held_rows_out:
            by_settings.settings_of_refresh(self, model)  # refused before anything is learned
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
        """The version of the model that a call works with from its first line to its last."""
        check_is_fitted(self)
        return self.fitted_

    @property
    def n_features_in_(self) -> int:
        """Number of training columns; of values per image."""
        return self._fitted.columns.n_features_in_

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the training columns; AttributeError where the table had none."""
        return self._fitted.columns.feature_names_in_

    @property
    def memory_(self) -> MemoryBank:
        """The remembered rows as they are now: keys of every space, labels, ids, weights.

        Change them by `add`, `remove` and `relabel`; each gives a new bank and leaves this one.
        """
        return self._fitted.bank

    @torch.inference_mode(False)
    def keys(self, X: Any, space: str = "features") -> np.ndarray:
        """Keys of rows in one of the spaces that are searched for neighbors.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        space : str, default="features"
            One of the names in `report_.choice["spaces"]`, or of `memory_.keys`.

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

    @torch.inference_mode(False)
    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """Nearest remembered rows in the feature space.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            None means the training rows, each without itself.
        n_neighbors : int, optional
            Default: as many as the estimator uses.
        return_distance : bool, default=True

        Returns
        -------
        distances : ndarray of shape (n, n_neighbors)
            By `metric` between keys of the feature map; ascending. Only with `return_distance`.
        ids : ndarray of shape (n, n_neighbors)
            Ids in `memory_`; training rows count from 0.
        """
        features: Callable[[], Tensor] | None = None
        model = self._fitted.for_query(remembered=X is None)
        if X is not None:
            features = lambda: model.predictor.feature_keys(model.encoded(X, [])[0])  # noqa: E731
        distances, ids = kneighbors(model, features, n_neighbors)
        return (distances, ids) if return_distance else ids

    @torch.inference_mode(False)
    def refresh(self) -> Self:
        """Fit again to what is remembered now, with the same seed.

        That takes as long as `fit`. Classes that came later are full classes from then on, to the
        base as well.

        Raises
        ------
        ValueError
            If the fit was given views, which are not remembered, took some labels of classes to be
            wrong (`label_noise`), or `cv` holds positions of rows. Nothing is then changed.
        """
        self._change(by_settings.refreshed)
        return self

    @torch.inference_mode(False)
    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a folder; an older one there stays until the new is complete.

        What was written is opened and compared before it replaces the old one, a base of your own
        by the predictions of a few rows.

        Parameters
        ----------
        folder : path
        overwrite : bool, default=False
            Also replace a model that has been written by somebody else since this one was loaded
            from there.

        Raises
        ------
        StoreError
            If the folder holds something else, or has changed since this model was loaded.
        OSError
            If it cannot be written. What was there before is unchanged.
        """
        with self._lock:  # the same version to the end, whatever is added meanwhile
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
        """Read a model that `save` wrote; it predicts bit for bit the same.

        Parameters
        ----------
        folder : path
        trusted : sequence of str, default=()
            Types in a saved base of your own that you trust: they could crash or take over the
            process if the folder comes from somebody else. `save` names them.
        trusted_store : str or path, optional
            URI of the memory where it is in a store outside the folder: nothing is opened there
            that you do not name. User, credentials and settings are those of this URI and of your
            environment, none are the folder's.

        Raises
        ------
        StoreError
            If the folder is missing, torn, foreign, of another format version, or holds what
            `save` never writes; `reason` says which, the message names the part. "untrusted" if the
            memory is in a store that `trusted_store` does not name.
        ValueError
            If the base holds types that are not trusted.
        """
        if is_stored(folder):
            return open_stored(cls, folder, trusted, trusted_store)
        refuse_trusted_store(folder, trusted_store)
        return load_model_folder(cls, folder, trusted)
