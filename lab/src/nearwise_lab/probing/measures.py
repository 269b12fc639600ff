"""Measures of a probe on its test rows, with the hit and the NLL of each row as text."""

import base64
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nearwise.metrics import aurc, bootstrap_interval, ece, evaluate_probabilities

Record = dict[str, Any]
RowMeasure = Literal["accuracy", "nll"]
_KEPT = ("accuracy", "macro_f1", "nll", "brier", "ece", "equal_mass_ece", "aurc")
_TOP = 5
_RESAMPLES = 1000
_CURVE_RESAMPLES = 200
_CLIP = 1e-7


def measure(codes: NDArray[np.int64], proba: NDArray[np.float64]) -> Record:
    """Measure probabilities, with 95 % bootstrap intervals over rows.

    Parameters
    ----------
    codes : int64 ndarray of shape (n,)
        True class positions.
    proba : ndarray of shape (n, n_classes)

    Returns
    -------
    record : dict
        accuracy, top5 (None with five classes or fewer), macro_f1, nll, brier, ece,
        equal_mass_ece, aurc; intervals (dict of measure -> [low, high]); correct and row_nll, hit
        and NLL of each row as text that `rows_of` reads.
    """
    found = evaluate_probabilities(codes, proba)
    per_row = _row_values(codes, proba)
    drawn = np.random.default_rng(0).integers(0, len(codes), (_RESAMPLES, len(codes)))
    intervals = {
        name: np.quantile(values[drawn].mean(axis=1), [0.025, 0.975]).tolist()
        for name, values in per_row.items()
    }
    for name, metric in (("ece", ece), ("aurc", aurc)):
        _, *ends = bootstrap_interval(
            metric, codes, proba, n_resamples=_CURVE_RESAMPLES, random_state=0
        )
        intervals[name] = ends
    return {
        **{name: found[name] for name in _KEPT},
        "top5": float(per_row["top5"].mean()) if "top5" in per_row else None,
        "intervals": intervals,
        "correct": packed(per_row["accuracy"] > 0),
        "row_nll": packed_nll(per_row["nll"]),
    }


def _row_values(
    codes: NDArray[np.int64], proba: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """Accuracy, NLL, Brier score and, above five classes, top-5 hits of each row, (n,)."""
    n, n_classes = proba.shape
    of_truth = proba[np.arange(n), codes]
    rows = {
        "accuracy": (proba.argmax(axis=1) == codes).astype(np.float64),
        "nll": -np.log(np.maximum(of_truth, _CLIP)),
        "brier": (proba**2).sum(axis=1) - 2 * of_truth + 1,
    }
    if n_classes > _TOP:
        # a tie counts for the lowest class position, as in accuracy
        order = np.argsort(-proba, axis=1, kind="stable")[:, :_TOP]
        rows["top5"] = (order == codes[:, None]).any(axis=1).astype(np.float64)
    return rows


def packed(flags: NDArray[np.bool_]) -> str:
    """Text of 0s and 1s, eight a byte, in hexadecimal."""
    return np.packbits(flags).tobytes().hex()


def packed_nll(nll: NDArray[np.float64]) -> str:
    """Text of the NLL of rows as float16, good to 1 in 2,000 a row."""
    return base64.b64encode(nll.astype("<f2").tobytes()).decode()


def rows_of(record: Mapping[str, Any], measure: RowMeasure) -> NDArray[np.float64]:
    """Accuracy or NLL of each test row of a record, (n,)."""
    if measure == "accuracy":
        flags = np.frombuffer(bytes.fromhex(record["correct"]), dtype=np.uint8)
        return np.unpackbits(flags, count=record["n"]).astype(np.float64)
    return np.frombuffer(base64.b64decode(record["row_nll"]), dtype="<f2").astype(np.float64)
