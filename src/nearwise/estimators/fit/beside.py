"""What the fits of several targets of the same rows share: encoded rows, folds and forests."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

from nearwise.estimators.fit.as_arrays import forest_nodes, one_output
from nearwise.estimators.fit.forest import fit_forest
from nearwise.estimators.fit.problem import Fold
from nearwise.estimators.inputs.columns import Wish
from nearwise.estimators.inputs.rows import Rows

_FEWEST = 2  # labels for a common forest


class Beside:
    """State shared by the fits of several targets of the same rows.

    One forest for all labels predicts each label better than a forest of its own, and costs as
    much as one of them.

    Parameters
    ----------
    labels : int array of shape (n, L)
        Positions, 0 or 1, among the classes of the targets with two classes.
    numbers : sequence of int
        Number of the target behind each column of `labels`.

    Attributes
    ----------
    encoded : Encoded or EncodedImages, or None
        The encoded rows, once one fit has them.
    target : int
        Number of the target that is fitted now.
    """

    def __init__(self, labels: np.ndarray, numbers: list[int]) -> None:
        self.labels, self.numbers = labels, numbers
        self.encoded: Any = None
        self.target = 0
        self._forests: dict[tuple[bytes, int], tuple[Any, ...]] = {}
        self._folds: dict[int, list[Fold]] = {}

    def at(self, target: int) -> "Beside":
        """Return the same state, for the fit of a target."""
        self.target = target
        return self

    @property
    def column(self) -> int | None:
        """Column of the target among the labels; None without a common forest for it."""
        known = len(self.numbers) >= _FEWEST and self.target in self.numbers
        return self.numbers.index(self.target) if known else None

    def folds(self, n_folds: int, seed: int) -> list[Fold]:
        """Folds of all labels; empty if a training part lacks a class of this label."""
        column = self.column
        if column is None:
            return []
        if n_folds not in self._folds:
            fold = stratified(self.labels, n_folds, seed)
            every = range(n_folds)
            self._folds[n_folds] = [
                (np.flatnonzero(fold != one), np.flatnonzero(fold == one)) for one in every
            ]
        found = self._folds[n_folds]
        learned = [len(np.unique(self.labels[train, column])) for train, _ in found]
        return found if min(learned) == 2 and all(len(held) for _, held in found) else []

    def forest(
        self,
        rows: np.ndarray,
        view: np.ndarray,
        weight: np.ndarray | None,
        options: dict[str, Any],
    ) -> tuple[ExtraTreesClassifier, Any, np.ndarray] | None:
        """Forest of all labels fitted to some rows, its array model and out-of-bag shares (n, 2).

        None if these rows lack a class of this label. `view` (n, width), `weight` (n,) and
        `options` are as in `fit_forest`.
        """
        column = self.column
        if column is None:
            return None
        key = rows.tobytes(), int(options["n_estimators"])
        if key not in self._forests:
            own = self.labels[rows]
            usable = np.flatnonzero((own == 0).any(axis=0) & (own == 1).any(axis=0))
            if len(usable) < _FEWEST:
                return None
            model, out_of_bag = fit_forest(view, own[:, usable], weight, options)
            self._forests[key] = model, forest_nodes(model), out_of_bag, usable
        model, nodes, out_of_bag, usable = self._forests[key]
        if column not in usable:
            return None
        output = int(np.searchsorted(usable, column))
        return model, one_output(model, nodes, output), out_of_bag[:, :, output]


def stratified(labels: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """Fold of each row, int (n,), so that each label (n, L) is as frequent in all folds.

    The rows of the rarest label are dealt first, each to the fold with the fewest of that label.

    References
    ----------
    Sechidis, Tsoumakas and Vlahavas, "On the Stratification of Multi-Label Data", 2011.
    """
    rng = np.random.default_rng(seed)
    fold = np.full(len(labels), -1)
    order = rng.permutation(len(labels))
    for column in np.argsort(labels.sum(axis=0), kind="stable"):
        for row in order[labels[order, column] == 1]:
            if fold[row] < 0:
                fold[row] = _emptiest(fold, labels[:, column] == 1, n_folds)
    for row in order[fold[order] < 0]:
        fold[row] = _emptiest(fold, np.ones(len(fold), dtype=bool), n_folds)
    return fold


def _emptiest(fold: np.ndarray, of_label: np.ndarray, n_folds: int) -> int:
    """Fold with the fewest rows of a label, and among these with the fewest rows."""
    dealt = fold >= 0
    own = np.bincount(fold[dealt & of_label], minlength=n_folds)
    return int(np.lexsort([np.bincount(fold[dealt], minlength=n_folds), own])[0])


def learned_once(
    rows: Rows, columns: Mapping[str, Wish] | None, shown: str | None, beside: Beside | None
) -> Any:
    """Fit the encoder of the rows, and encode them; for several targets once."""
    if beside is None or beside.encoded is None:
        encoder: Any = rows.encoder
        encoded = encoder.learn(rows.X, columns, shown=shown)
        if beside is None:
            return encoded
        beside.encoded = encoded
    return beside.encoded
