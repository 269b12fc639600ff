"""A fitted classifier is asked: for halves of a prediction, for neighbors, for reasons."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.estimators import validation
from nearwise.estimators.embedding import AnyRows
from nearwise.estimators.explain import Explanation, Parts, explain_rows, make_parts
from nearwise.estimators.images import from_files, from_source
from nearwise.estimators.labels import label_values, positions_among
from nearwise.estimators.learned_rows import LearnedRows, find_learned
from nearwise.estimators.remembering import RemembersRows
from nearwise.estimators.settings import check_count
from nearwise.estimators.shared import SharedState
from nearwise.estimators.state import Answer, Calibration


class AnswersQueries(RemembersRows):
    """What lies behind a prediction: `predict_parts`, `kneighbors` and `explain`."""

    def _encode(self, X: Any, views: Sequence[Any] | None = None) -> list[AnyRows] | None:
        """Check and encode rows and their further views; None stays None."""
        check_is_fitted(self)
        if X is None:
            return None
        source = from_source(from_files(X, self._state.encoder), None, training=False)
        rows = self._state.encoder.transform(validation.check_new_rows(self, source.X))
        return self._all_views(rows, views)

    def _answers(self, views: list[AnyRows] | None) -> tuple[Answer, list[Answer], Calibration]:
        """Give the merged answer, that to each view, and the temperatures that finish them.

        Both already speak for the wanted class shares.
        """
        n_classes = len(self.classes_)
        if views is None:
            left_out = self._state.predict_left_out(n_classes)
            calibration = self._state.calibration()
            corrected = calibration.corrected(left_out)
            return corrected, [corrected], calibration
        calibration = self._state.calibration(len(views))
        merged, each = self._state.predict_views(views, n_classes)
        answers = [calibration.corrected(answer) for answer in each]
        return calibration.corrected(merged), answers, calibration

    def learned_rows(self, X: Any, y: Any = None) -> LearnedRows:
        """Tell rows that the classifier has learned from, by content.

        Scores on such rows say nothing about new ones; `predict_learned` predicts them as if they
        were new.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        y : array-like of shape (n,), optional
            Labels. Where several remembered rows equal a row, one with its label is taken.

        Returns
        -------
        found : LearnedRows
            ids in `memory_`, places among the rows that were held out, and `new`.

        Notes
        -----
        Rows are equal if all columns of the model are: categories, gaps, and numbers up to a
        hundred-thousandth of the column's spread, so that a file's format does not matter. Images
        are equal pixel by pixel. Neither order nor label decides, so a new row that repeats one
        counts as learned: the memory knows the answer to both. Rows that were learned from and
        forgotten since (`remove`, `capacity`, `max_per_class`) are not known again.
        """
        encoded = self._encode(X, [])
        if encoded is None:
            raise ValueError("X=None stands for the remembered rows. Give the rows to look up.")
        labels = None
        if y is not None:
            labels, _ = positions_among(self.classes_, label_values(y))
        return find_learned(self._state, self._rows, encoded[0], labels)

    @property
    def n_forgotten_(self) -> int:
        """How many rows were learned from and cannot be known again by `learned_rows`."""
        check_is_fitted(self)
        held = self._state.held if isinstance(self._state, SharedState) else None
        known = 0 if held is None or held.digests is None else len(held.digests)
        return self.memory_.next_id - len(self.memory_) - known

    def predict_learned(self, found: LearnedRows) -> tuple[np.ndarray, Parts]:
        """Predict rows that were learned from as if they were new, as far as that is possible.

        After a cross-fit that is every remembered row, without itself and by the members that were
        not fitted on it, as `predict_proba(None)` gives it. Where rows were held out once, it is
        these, by heads that were not fitted on them: the networks know the labels of the others.

        Parameters
        ----------
        found : LearnedRows
            What `learned_rows` returned.

        Returns
        -------
        rows : int64 ndarray of shape (n_predicted,)
            Which of the rows asked for could be predicted.
        parts : Parts
            Of these rows.
        """
        check_is_fitted(self)
        n_classes = len(self.classes_)
        if isinstance(self._state, SharedState):
            rows = np.flatnonzero(found.held_out >= 0)
            n_views = self._state.n_views if self._state.tta else 1
            calibration = self._state.calibration(n_views)
            at = torch.from_numpy(found.held_out[rows])
            answers = [Answer(*(part[at] for part in one)) for one in self._held_out(n_views)]
        else:
            rows = np.flatnonzero(found.ids >= 0)
            calibration = self._state.calibration()
            at = self.memory_.positions(found.ids[rows])
            answers = [self._state.predict_left_out(n_classes, at)] * 2
        merged, *each = map(calibration.corrected, answers)
        return rows, make_parts(merged, each, calibration)

    def _held_out(self, n_views: int) -> list[Answer]:
        """Answers to the rows held out once: the merged one, and that to each view."""
        assert isinstance(self._state, SharedState) and self._state.held is not None
        merged, each = self._state.predict_held_out(len(self.classes_), n_views)
        return [merged, *each]

    def predict_parts(self, X: Any = None, views: Sequence[Any] | None = None) -> Parts:
        """Probabilities beside their two halves, base and neighbors, and how far views disagree.

        Arguments as in `predict_proba`.
        """
        return make_parts(*self._answers(self._encode(X, views)))

    def keys(self, X: Any, space: str = "features") -> Tensor:
        """Keys of rows in one of the spaces that neighbors are sought in.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        space : str, default="features"
            One of the names in `choice_["spaces"]`, or of `memory_.keys`.

        Returns
        -------
        keys : float32 Tensor of shape (n, width), on the CPU
        """
        rows = self._encode(X, [])
        assert rows is not None  # X is given
        if space == "features":
            return self._state.feature_keys(rows[0])
        found = self._state.keys_of_new(rows)
        if space not in found:
            known = ", ".join(name for name in found if not name.startswith("side."))
            raise ValueError(f"There is no space {space!r}. Known: {known}.")
        return found[space]

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """Nearest remembered rows in the feature space.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            None means the training rows, each without itself.
        n_neighbors : int, optional
            Default: as many as the classifier asks.
        return_distance : bool, default=True

        Returns
        -------
        distances : ndarray of shape (n, n_neighbors)
            By `metric` between keys of the feature map; ascending. Only with `return_distance`.
        ids : ndarray of shape (n, n_neighbors)
            Ids in `memory_`; training rows count from 0.
        """
        check_is_fitted(self)
        views = self._state.views
        spec = views.specs[0]
        k = spec.n_neighbors if n_neighbors is None else n_neighbors
        spare = len(views.rows(spec, 0)) - (X is None)
        if not 1 <= k <= spare:
            raise ValueError(
                f"n_neighbors={k} must lie between 1 and the {spare} rows that may be asked."
            )
        encoded = self._encode(X, [])
        if encoded is None:
            found = views.search(spec, 0, views.bank.keys["features"], k, views.bank.ids)
        else:
            found = views.search(spec, 0, self._state.feature_keys(encoded[0]), k)
        ids = views.bank.ids[found.indices].numpy()
        return ((found.distances * spec.unit).numpy(), ids) if return_distance else ids

    def kneighbors_graph(
        self,
        X: Any = None,
        n_neighbors: int | None = None,
        mode: Literal["connectivity", "distance"] = "connectivity",
    ) -> csr_matrix:
        """Nearest remembered rows in the feature space as a sparse matrix.

        Parameters
        ----------
        X, n_neighbors
            As in `kneighbors`.
        mode : {"connectivity", "distance"}, default="connectivity"
            What stands at a neighbor: 1, or the distance.

        Returns
        -------
        graph : csr_matrix of shape (n, n_remembered)
            Columns in the order of `memory_.ids`; training rows lie in theirs until some are
            removed. Neighbors of a row are stored nearest first.

        Raises
        ------
        ValueError
            If `mode` is unknown, or `n_neighbors` exceeds the rows that may be asked.
        """
        if mode not in ("connectivity", "distance"):
            raise ValueError(f'mode={mode!r} is not known. Use "connectivity" or "distance".')
        distances, ids = self.kneighbors(X, n_neighbors)
        columns = self.memory_.positions(ids.ravel()).numpy()
        values = np.ones(ids.size) if mode == "connectivity" else distances.ravel().astype(float)
        starts = np.arange(0, ids.size + 1, ids.shape[1])
        return csr_matrix((values, columns, starts), shape=(len(ids), len(self.memory_)))

    def explain(
        self,
        X: Any = None,
        n_neighbors: int | None = 10,
        *,
        views: Sequence[Any] | None = None,
    ) -> list[Explanation]:
        """Show the neighbors behind each prediction; `KnowsItsLimits.explain` says how."""
        if n_neighbors is not None:
            check_count("n_neighbors", n_neighbors, 1)
        everyone = self._encode(X, views)
        parts = make_parts(*self._answers(everyone))
        return explain_rows(
            self._state, everyone, parts, self.classes_, self._remembered, n_neighbors
        )
