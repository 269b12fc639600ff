"""A classifier that goes on learning: batches in turn, a bounded memory, a cheap refresh."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.estimators import labels, validation
from nearwise.estimators.bounds import check_bound, check_places, rows_to_forget
from nearwise.estimators.class_prior import ClassPrior
from nearwise.estimators.images import Source, from_source
from nearwise.estimators.problem import FitSettings
from nearwise.estimators.refreshing import can_refresh, refresh_state, refuse_refresh
from nearwise.estimators.remembering import RemembersRows
from nearwise.estimators.settings import check_settings
from nearwise.estimators.space import Forgetting
from nearwise.estimators.views import FOLD
from nearwise.memory.eviction import EvictionName, usual_half_life

REFRESH_AFTER = 0.5  # of the memory at the last refresh: so many new rows ask for the next
_REFRESH_NEW_CLASS = 0.02  # of the memory: so many rows of classes that attention has not met
_FEWEST = 50  # rows in the memory below which a refresh would learn nothing


@dataclass
class StreamState:
    """How far a stream has come; ids count the rows that arrived.

    Attributes
    ----------
    seed : int
        Decides which rows a full memory gives up.
    refreshed_at : int
        Rows that had arrived at the last refresh, or at the fit.
    refreshed_size : int
        Rows that were remembered then.
    first : int
        Rows of the first fit.
    declared : bool
        Whether `partial_fit` was told all classes.
    """

    seed: int
    refreshed_at: int
    refreshed_size: int
    first: int
    declared: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data; `StreamState(**data)` rebuilds it."""
        return asdict(self)


class LearnsStreams(RemembersRows):
    """`partial_fit`, `refresh` and a memory of bounded size."""

    capacity: int | None
    eviction: EvictionName
    n_neighbors: int | Literal["auto"]
    class_prior: ClassPrior
    _stream: StreamState
    evicted_: Tensor

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        views: Sequence[Any] | None = None,
    ) -> Self:
        """Learn from the next batch: the first is fitted, later ones are added.

        After half as many new rows as the memory held, or some rows of a new class, the
        attention is refreshed (`refresh`), so that its cost a row stays bounded. It is not where
        `refresh` would refuse: with `label_noise`, per-class calibration, and where rows were held
        out once (`validation_fraction`, images, views). Rows are then added
        and no more, and new classes stay uncalibrated.

        Parameters
        ----------
        X, y, sample_weight, views
            As in `fit`. The first batch needs 2 classes with 2 rows each; later ones need not.
        classes : array-like, optional
            All classes that will ever come. Those the first batch lacks get their column at the
            end of `classes_` at once, and later labels must be among them. Without, new classes
            come in as they arrive.

        Returns
        -------
        self : AttnKNNClassifier

        Raises
        ------
        ValueError
            If the first batch cannot be fitted, or a label is not among the declared classes.
        """
        source = from_source(X, y, training=True)
        if not hasattr(self, "_state"):
            self._fit_first(source, classes, sample_weight, views)
            return self
        if can_refresh(self._state):
            self._settings_of_refresh()  # what is refused is refused before anything changes
        self._check_declared(classes, source.y)
        self.add(source, sample_weight=sample_weight, views=views)
        if self._refresh_is_due():
            self.refresh()
        return self

    def _fit_first(
        self, source: Source, classes: Any, sample_weight: Any, views: Sequence[Any] | None
    ) -> None:
        declared = None if classes is None else labels.check_labels(classes, len(classes))[0]
        n_rows = len(validation.check_rows(self, source.X, reset=True))
        present, codes = labels.check_labels(source.y, n_rows)
        strange = [] if declared is None else labels.positions_among(declared, present)[1]
        if strange:
            raise ValueError(f"y holds {strange[:5]}, which classes={classes!r} does not list.")
        try:
            labels.check_class_sizes(present, codes)
        except ValueError as error:
            raise ValueError(
                f"The first batch of a stream must be one that can be fitted. {error} Collect "
                "more rows before the first call of partial_fit."
            ) from error
        self.fit(source, None, sample_weight, views=views)  # type: ignore[attr-defined]
        if declared is not None:
            self._stream.declared = True
            self._add_classes([c for c in declared.tolist() if c not in set(present.tolist())])

    def _add_classes(self, fresh: list[Any]) -> None:
        """Give classes a column before their first row."""
        if fresh:
            self._name_classes(fresh)
            self.memory_.n_classes = len(self.classes_)

    def _check_declared(self, classes: Any, y: Any) -> None:
        if classes is not None:
            strange = labels.positions_among(self.classes_, labels.label_values(classes))[1]
            if strange and self._stream.declared:
                raise ValueError(
                    f"classes lists {strange[:5]}, which the first call did not. Leave it out."
                )
            self._add_classes(strange)
        if self._stream.declared and y is not None:
            strange = labels.positions_among(self.classes_, labels.label_values(y))[1]
            if strange:
                raise ValueError(
                    f"y holds {strange[:5]}, which the first call's classes did not list. Use "
                    "add() for classes nobody expected, or leave classes out of partial_fit."
                )

    def add(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        views: Sequence[Any] | None = None,
    ) -> Tensor:
        """Remember new rows, of new classes too, without training again.

        A memory over its `capacity` then forgets rows by `eviction`; `evicted_` has their ids,
        and new rows may be among them.

        Parameters
        ----------
        X, y, sample_weight, views
            As in `fit`; a class may have a single row here.

        Returns
        -------
        ids : int64 Tensor of shape (n_added,)
            Ids go on from the largest ever given, so they tell the order of arrival.
        """
        check_is_fitted(self)
        check_bound(self)
        source = from_source(X, y, training=True)
        if self.capacity is not None:
            self._check_room(source.y)
        ids = super().add(source, sample_weight=sample_weight, views=views)
        self._make_room()
        return ids

    def _check_room(self, y: Any) -> None:
        """Refuse new labels that a full memory could not hold beside what it must keep."""
        assert self.capacity is not None  # asked by callers
        views, held = self._state.views, self._positions()
        present = set(self.classes_[held.unique().numpy()].tolist())
        of_fit = held[views.bank.keys[FOLD][:, 0] >= 0].unique().numpy()
        fitted = set(self.classes_[of_fit].tolist())
        everyone = present | set(np.asarray([] if y is None else y, dtype=object).ravel().tolist())
        by_fold = any(spec.scope == "fold" for spec in views.specs)
        n_members = self._state.n_members if by_fold else 0
        check_places(self.capacity, len(everyone), n_members, len(everyone - fitted))

    def _begin_stream(self, seed: int) -> None:
        """Take the fitted rows as the first that arrived."""
        bank = self.memory_
        first = int(bank.ids.max()) + 1
        self._stream = StreamState(seed, first, len(bank), first)
        self._make_room()
        self._stream.refreshed_size = len(bank)

    def _resume_stream(self, kept: dict[str, Any]) -> None:
        """Go on where a saved stream was."""
        self._stream = StreamState(**kept)
        self._set_forgetting()
        self.evicted_ = torch.empty(0, dtype=torch.int64)

    def _positions(self) -> Tensor:
        held = self.memory_.labels
        return held.argmax(1) if held.ndim == 2 else held

    def _make_room(self) -> None:
        """Forget what is beyond the capacity."""
        self._set_forgetting()
        self.evicted_ = torch.empty(0, dtype=torch.int64)
        bank = self.memory_
        if self.capacity is None or len(bank) <= self.capacity:
            return
        gone = rows_to_forget(
            self._state.views,
            self._state.n_members,
            self.capacity,
            self.eviction,
            seed=self._stream.seed,
            first=self._stream.first,
        )
        self.evicted_ = bank.ids[gone]
        self._forget(self.evicted_)

    def _set_forgetting(self) -> None:
        """Let votes fade with age where old rows go first."""
        views = self._state.views
        views.forgetting = None
        if self.eviction == "age" and self.capacity is not None:
            views.forgetting = Forgetting(usual_half_life(self.capacity), self._stream.first)

    def _refresh_is_due(self) -> bool:
        bank, stream = self.memory_, self._stream
        if len(bank) < _FEWEST or not can_refresh(self._state):
            return False
        arrived = int(bank.ids.max()) + 1 - stream.refreshed_at
        strangers = int((self._positions() >= len(self._state.prior)).sum())
        return arrived >= REFRESH_AFTER * stream.refreshed_size or (
            strangers >= max(4, _REFRESH_NEW_CLASS * len(bank))
        )

    def _settings_of_refresh(self) -> FitSettings:
        """Check the settings again; a memory of fewer rows than `n_neighbors` asks all it has."""
        n_rows, wanted = len(self.memory_), self.n_neighbors
        if isinstance(wanted, int | np.integer):
            n_rows = max(n_rows, int(wanted) + 1)
        n_classes, correction = len(self.classes_), self._state.classes
        if correction is not None and correction.wanted is not None:
            listed = len(correction.wanted)  # shares that were given do not list later classes
            if not isinstance(self.class_prior, str) and np.size(self.class_prior) == listed:
                n_classes = listed
        return check_settings(self, n_rows, n_classes, self._stream.seed)

    def refresh(self) -> Self:
        """Fit the attention to what is remembered now; networks and base stay as they are.

        A few hundred remembered rows, each left out of its own neighbors, go on training the
        heads for some epochs. Classes that came later are full classes from then on: the class
        shares, the units of distances and the reliability of all rows are taken anew, and the
        base's opinion on these classes is that of the neighbors in the feature space.

        One head then serves all members, and it has trained on up to 600 of the remembered rows.
        So what is said of remembered rows (`predict_proba(None)`, `label_issues`, and the risks,
        sets and p-values that are counted on them) is no longer exactly leave-one-out: searches
        and base still are, the head is not.

        Returns
        -------
        self : AttnKNNClassifier

        Raises
        ------
        ValueError
            If the fit held rows out once (its networks know the remembered labels), or has
            `label_noise` or per-class calibration. Nothing is then changed.
        """
        check_is_fitted(self)
        refuse_refresh(self._state)
        refresh_state(self._state, self._settings_of_refresh())
        self._stream.refreshed_at = int(self.memory_.ids.max()) + 1
        self._stream.refreshed_size = len(self.memory_)
        self._adopt(self._state)  # type: ignore[attr-defined]
        return self
