"""Base class of probes: checks of rows and labels, and validation rows."""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nearwise.data import hold_out
from nearwise.probes.feature_set import refuse_not_finite

Floats = NDArray[np.float32]
Codes = NDArray[np.int64]
Validation = tuple[ArrayLike, ArrayLike]


class Rows(NamedTuple):
    """Features (n, D) or (n, L, D) and class positions (n,)."""

    X: Floats
    codes: Codes


class Probe(ClassifierMixin, BaseEstimator, ABC):
    """Base of the probes: a scikit-learn classifier of frozen features.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Sorted classes.
    n_features_in_ : int
        Width of a row; for token features the number of tokens.
    choice_ : dict
        Choices made on validation rows, and their NLL or Brier score.
    """

    validation_fraction: float
    reads_tokens = False
    chosen_by = "NLL"
    """Measure used for choices. After a change, records must be measured again."""
    can_refit = False
    """Whether `fit` accepts `refit`: to fit validation rows too, after the choices."""

    def _training_rows(self, X: Any, y: Any) -> Rows:
        """Check the training rows; sets `classes_` and `n_features_in_`."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        X, y = self._checked(X, y=y, reset=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds one class, {self.classes_.tolist()[0]!r}. A probe needs two or more."
            )
        return Rows(X, codes.astype(np.int64))

    def _other_rows(self, validation: Validation) -> Rows:
        """Check validation rows; their labels must be known."""
        X, y = self._checked(validation[0]), np.asarray(validation[1])
        if y.shape != (len(X),):
            raise ValueError(
                f"The validation rows have {len(X)} features and labels of shape {y.shape}. Pass "
                "one label per row."
            )
        codes = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        strange = np.flatnonzero(self.classes_[codes] != y)
        if len(strange):
            raise ValueError(
                f"{len(strange)} validation rows have labels that no training row has, first "
                f"{y[strange[0]].item()!r}. Add training rows of that class, or leave these out."
            )
        return Rows(X, codes.astype(np.int64))

    def _divided(self, rows: Rows, validation: Validation | None, seed: int) -> tuple[Rows, Rows]:
        """Return training and validation rows: the given ones, or a share of `rows` held out."""
        if validation is not None:
            return rows, self._other_rows(validation)
        return held_out(rows, self.validation_fraction, seed)

    def _query(self, X: Any) -> Floats:
        check_is_fitted(self)
        return self._checked(X)

    def _checked(self, X: Any, y: Any = None, *, reset: bool = False) -> Any:
        """Return features as float32 of the fitted width, and labels if given."""
        options = {"reset": reset, "dtype": np.float32, "ensure_all_finite": False}
        if X is None:
            raise ValueError(f"{type(self).__name__} needs rows: pass X.")
        if self.reads_tokens:  # keep float16, since tokens may be large
            options |= {"allow_nd": True, "dtype": [np.float32, np.float16]}
        if y is None:
            checked = validate_data(self, X, **options)
        else:
            checked, y = validate_data(self, X, y, **options)
        if self.reads_tokens and checked.ndim == 2:
            checked = checked[:, None]  # one token per row
        if self.reads_tokens and checked.ndim != 3:
            raise ValueError(
                f"X has shape {checked.shape}; {type(self).__name__} reads tokens, (n, L, D), as "
                "extract_features(..., pool=None) gives them, or one per row, (n, D)."
            )
        refuse_not_finite(checked, "X")
        return checked if y is None else (checked, y)

    def predict(self, X: Any = None) -> NDArray[Any]:
        """Return the most probable classes, (n,); arguments as for `predict_proba`."""
        proba = self.predict_proba() if X is None else self.predict_proba(X)
        named: NDArray[Any] = self.classes_[proba.argmax(axis=1)]
        return named

    @abstractmethod
    def predict_proba(self, X: Any = None) -> NDArray[np.float64]:
        """Return class probabilities, (n, n_classes), in the order of `classes_`."""

    def _seed(self) -> int:
        """Draw a seed from `random_state`."""
        state = check_random_state(getattr(self, "random_state", None))
        return int(state.randint(np.iinfo(np.int32).max))


def joined(rows: Rows, others: Rows) -> Rows:
    """Concatenate two sets of rows."""
    return Rows(np.concatenate([rows.X, others.X]), np.concatenate([rows.codes, others.codes]))


def held_out(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into training and validation rows, stratified by class.

    There are at least as many validation rows as classes.
    """
    n_classes = len(np.unique(rows.codes))
    few = 0 < share < 1 and share * len(rows.codes) <= n_classes - 1 < len(rows.codes) - 1
    fitted, held = hold_out(rows.codes, n_classes if few else share, seed)
    return Rows(rows.X[fitted], rows.codes[fitted]), Rows(rows.X[held], rows.codes[held])


def channel_scale(deviation: NDArray[Any], mean: NDArray[Any]) -> NDArray[Any]:
    """Return the divisor of standardised channels: the deviation, or 1 if it is rounding error."""
    scale: NDArray[Any] = np.where(deviation > 1e-12 * (1 + np.abs(mean)), deviation, 1.0)
    return scale
