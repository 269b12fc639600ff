"""A fitted classifier is asked: for halves of a prediction, for neighbors, for reasons."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from nearwise.estimators import validation
from nearwise.estimators.embedding import AnyRows
from nearwise.estimators.explain import Explanation, Parts, explain_rows, make_parts
from nearwise.estimators.images import from_files, from_source
from nearwise.estimators.remembering import RemembersRows
from nearwise.estimators.settings import check_count
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
