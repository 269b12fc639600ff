"""Conformal prediction sets: nonconformity scores of labels, and their p-values."""

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

Method = Literal["lac", "aps", "raps"]
_SLACK = 1e-9  # 1 - 0.9 is 0.09999999999999998


class Penalty(NamedTuple):
    """Penalty of RAPS on the scores of all labels but the most probable ones.

    Attributes
    ----------
    each : float
        Penalty per rank beyond `free`; at least 0.
    free : int
        Number of most probable labels without a penalty; at least 0.
    """

    each: float
    free: int


NO_PENALTY = Penalty(0.0, 0)


def nonconformity(
    proba: np.ndarray,
    method: Method,
    penalty: Penalty = NO_PENALTY,
    draws: np.ndarray | None = None,
) -> np.ndarray:
    """Nonconformity score of each label of each row.

    Parameters
    ----------
    proba : ndarray of shape (n, n_classes)
    method : {"lac", "aps", "raps"}
        "lac": 1 minus the label's probability. "aps": the total probability of all more probable
        labels, plus 1 - u times the label's own. "raps": "aps" plus the penalty.
    penalty : Penalty
        Penalty of "raps".
    draws : ndarray of shape (n,), optional
        u of every row, uniform in [0, 1]. Default: 1, so that a label's own probability does not
        count and the most probable label scores 0: no set is empty.

    Returns
    -------
    scores : float64 ndarray of shape (n, n_classes)
        Larger means less conforming.

    References
    ----------
    Sadinle, Lei and Wasserman, "Least Ambiguous Set-Valued Classifiers with Bounded Error Levels",
    JASA 2019; Romano, Sesia and Candes, "Classification with Valid and Adaptive Coverage",
    NeurIPS 2020; Angelopoulos et al., "Uncertainty Sets for Image Classifiers using Conformal
    Prediction", ICLR 2021.
    """
    if method == "lac":
        return 1.0 - proba
    order = np.argsort(-proba, axis=1, kind="stable")
    ranked = np.take_along_axis(proba, order, axis=1)
    own = np.ones((len(proba), 1)) if draws is None else draws[:, None]
    scores = np.cumsum(ranked, axis=1) - own * ranked
    if draws is None:
        scores[:, 0] = 0.0  # exactly, without the rounding error of p - p
    if method == "raps":
        ranks = np.arange(1, proba.shape[1] + 1)
        scores = scores + penalty.each * np.maximum(ranks - penalty.free, 0)
    result = np.empty_like(scores)
    np.put_along_axis(result, order, scores, axis=1)
    return result


def p_values(
    scores: np.ndarray,
    judged: np.ndarray,
    truth: np.ndarray,
    *,
    by_class: bool = False,
) -> np.ndarray:
    """Conformal p-value of each label of new rows.

    Calibration rows have the class weights in `truth`. Negative weights could make the counts
    non-monotonic; counts are then raised so that they fall with the score, towards larger sets.

    Parameters
    ----------
    scores : ndarray of shape (n, n_classes)
        Nonconformity scores of new rows.
    judged : ndarray of shape (n_rows, n_classes)
        Nonconformity scores of every label of the calibration rows.
    truth : ndarray of shape (n_rows, n_classes)
        Weight of each calibration row in each class; on average at most 1.
    by_class : bool, default=False
        Whether a label is compared only with calibration rows of its class.

    Returns
    -------
    p : float64 ndarray of shape (n, n_classes)
        (1 + calibration rows with at least this score) / (1 + calibration rows), in (0, 1].

    References
    ----------
    Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", Springer 2005.
    Sesia, Wang and Tong, "Adaptive conformal classification with noisy labels", JRSS B 2025.
    """
    n_classes = scores.shape[1]
    at_least, totals = np.ones(scores.shape), np.ones(n_classes)
    for label in range(n_classes) if by_class else [slice(None)]:
        weight = truth[:, label].ravel()
        strange = judged[:, label].ravel()[weight != 0]
        at_least[:, label] += counts_at_least(strange, weight[weight != 0], scores[:, label])
        totals[label] += weight.sum()
    return np.asarray(np.minimum(at_least / np.maximum(totals, 1.0), 1.0))


def counts_at_least(values: np.ndarray, weight: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Total weight of the values at or above each level; never rising with the level."""
    order = np.argsort(values, kind="stable")
    tail = np.append(np.cumsum(weight[order][::-1])[::-1], 0.0)
    tail = np.maximum.accumulate(tail[::-1])[::-1]
    result: np.ndarray = tail[np.searchsorted(values[order], levels, side="left")]
    return result


def sets_from_p_values(p: np.ndarray, confidence: float) -> np.ndarray:
    """Mask of labels with a p-value above 1 - confidence, bool (n, n_classes)."""
    return np.asarray(p > 1.0 - confidence + _SLACK)


class PredictionSets(np.ndarray):
    """Sets of classes, bool (n, n_classes), with the names of the classes.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,), or None
        Names of the classes; None for an array computed from sets.
    """

    classes: np.ndarray | None = None

    @classmethod
    def of(cls, sets: np.ndarray, classes: np.ndarray | None) -> "PredictionSets":
        """Make prediction sets of a bool array and the names of its classes."""
        found = sets.view(cls)
        found.classes = classes
        return found

    def __array_finalize__(self, other: Any) -> None:
        self.classes = None  # a computed array may have other columns

    def __getitem__(self, rows: Any) -> Any:
        """Select rows, keeping the classes; a selection of columns has no classes."""
        found = super().__getitem__(rows)
        alike = isinstance(found, PredictionSets) and found.ndim == 2
        if alike and not isinstance(rows, tuple) and np.ndim(rows) < 2:
            found.classes = self.classes
        return found

    def __reduce__(self) -> Any:
        return PredictionSets.of, (np.asarray(self), self.classes)

    def labels(self) -> list[list[Any]]:
        """Classes of each set.

        Raises
        ------
        ValueError
            If this is no longer an array of sets.
        """
        if self.classes is None or self.ndim != 2:
            raise ValueError(f"An array of shape {self.shape} is not an array of prediction sets.")
        return [self.classes[one].tolist() for one in np.asarray(self)]

    def to_frame(self) -> pd.DataFrame:
        """One row per set: its size, and a bool column per class."""
        held = self.labels()
        assert self.classes is not None  # checked by labels()
        name = "size of the set" if "size" in self.classes.tolist() else "size"
        sizes = pd.DataFrame({name: [len(one) for one in held]})
        return pd.concat([sizes, pd.DataFrame(np.asarray(self), columns=self.classes)], axis=1)

    def _repr_html_(self) -> str:
        from nearwise.html import notebook

        if self.classes is None or self.ndim != 2:
            return notebook("text.html", text=repr(self))
        return notebook("sets.html", sets=self.labels())


def check_method(method: str) -> Method:
    """Check the name of a score and return it."""
    for known in get_args(Method):
        if method == known:
            return method  # type: ignore[return-value]
    raise ValueError(f'method={method!r} is not known. Use "lac", "aps" or "raps".')


def check_number(name: str, value: Any) -> None:
    """Raise ValueError if a value is not a number; True and False are not."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise ValueError(f"{name}={value!r} must be a number, not {type(value).__name__}.")


def check_penalty(penalty: float, free_ranks: float) -> Penalty:
    """Check the penalty of "raps" and return it."""
    for name, value in (("penalty", penalty), ("free_ranks", free_ranks)):
        check_number(name, value)
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{name}={value} must be finite and not negative. The defaults are penalty=0.05 "
                "and free_ranks=1."
            )
    if free_ranks != int(free_ranks):
        raise ValueError(f"free_ranks={free_ranks} counts classes: give a whole number.")
    return Penalty(float(penalty), int(free_ranks))


def check_confidence(confidence: float) -> None:
    """Raise ValueError if a confidence is not strictly between 0 and 1."""
    check_number("confidence", confidence)
    if not 0.0 < confidence < 1.0:
        raise ValueError(
            f"confidence={confidence!r} must lie between 0 and 1, both excluded. For sets that "
            "hold the true label nine times in ten pass 0.9."
        )


def rows_needed(confidence: float) -> int:
    """Fewest calibration rows for sets of a confidence; with fewer no label can be excluded."""
    return max(1, math.ceil(1.0 / (1.0 - confidence) - 1.0 - _SLACK))


def check_enough(
    truth: np.ndarray, classes: np.ndarray, confidence: float, *, each: bool, noun: str = "rows"
) -> None:
    """Check the number of calibration rows, in all and with `each` per class.

    `truth` as in `p_values`; `noun` is the counted unit: "rows" or "groups".

    Raises
    ------
    ValueError
        If there are too few, with the available and the needed number.
    """
    needed = rows_needed(confidence)
    n_rows = round(float(truth.sum()), 1)
    if n_rows < needed:
        raise ValueError(
            f"Sets of confidence {confidence} need at least {needed} {noun} to judge by, and there "
            f"are {n_rows:g}. Fit with more {noun} (or hold more out: cv=0.3), or ask for "
            f"a confidence of at most {_most_confident(n_rows):.3g}."
        )
    if not each:
        return
    counts = np.round(truth.sum(axis=0), 1)
    short = np.flatnonzero(counts < needed)
    if len(short):
        named = ", ".join(f"{classes[i]!s} has {max(counts[i], 0):g}" for i in short[:5])
        raise ValueError(
            f"Class-conditional sets of confidence {confidence} need at least {needed} {noun} of "
            f"every class to judge by; {named}{' ...' if len(short) > 5 else ''}. Give more of "
            "them, a lower confidence, or class_conditional=False."
        )


def _most_confident(n_rows: float) -> float:
    return max(n_rows, 0.0) / (max(n_rows, 0.0) + 1.0)
