"""Measures of a probe on its test rows, with the hit and the NLL of each row as text."""

import base64
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from nearwise.metrics import aurc, bootstrap_interval, ece, evaluate_probabilities

Record = dict[str, Any]
RowMeasure = Literal["accuracy", "nll"]
_TOP = 5
_RESAMPLES = 1000
_CURVE_RESAMPLES = 200
_CLIP = 1e-7


def measure(codes: NDArray[np.int64], proba: NDArray[np.float64], seed: int = 0) -> Record:
    """Measure probabilities, with 95 % bootstrap intervals over rows.

    Parameters
    ----------
    codes : int64 ndarray of shape (n,)
        True class positions.
    proba : ndarray of shape (n, n_classes)
    seed : int, default=0
        Of the resamples.

    Returns
    -------
    record : dict
        accuracy, top5 (None with five classes or fewer), macro_f1, nll, brier, ece,
        equal_mass_ece, aurc; intervals (dict of measure -> [low, high]); correct and row_nll, hit
        and NLL of each row as text that `rows_of` reads.
    """
    found = evaluate_probabilities(codes, proba)
    per_row = row_losses(codes, proba)
    drawn = np.random.default_rng(seed).integers(0, len(codes), (_RESAMPLES, len(codes)))
    intervals = {
        name: np.quantile(values[drawn].mean(axis=1), [0.025, 0.975]).tolist()
        for name, values in per_row.items()
    }
    for name, metric in (("ece", ece), ("aurc", aurc)):
        _, low, high = bootstrap_interval(
            metric, codes, proba, n_resamples=_CURVE_RESAMPLES, random_state=seed
        )
        intervals[name] = [low, high]
    kept = ("accuracy", "macro_f1", "nll", "brier", "ece", "equal_mass_ece", "aurc")
    record: Record = {name: found[name] for name in kept}
    record["top5"] = float(per_row["top5"].mean()) if "top5" in per_row else None
    kept_rows = {"correct": packed(per_row["accuracy"] > 0), "row_nll": packed_nll(per_row["nll"])}
    return record | {"intervals": intervals} | kept_rows


def row_losses(
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


def packed(flags: npt.NDArray[np.bool_]) -> str:
    """Text of 0s and 1s, eight a byte, in hexadecimal; `unpacked` reads it."""
    return np.packbits(flags).tobytes().hex()


def unpacked(text: str, n: int) -> npt.NDArray[np.bool_]:
    """Read the `n` flags that `packed` wrote."""
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=n)
    return bits.astype(bool)


def packed_nll(nll: NDArray[np.float64]) -> str:
    """Text of the NLL of rows as float16, good to 1 in 2,000 a row; `unpacked_nll` reads it."""
    return base64.b64encode(nll.astype("<f2").tobytes()).decode()


def unpacked_nll(text: str) -> NDArray[np.float64]:
    """Read what `packed_nll` wrote."""
    return np.frombuffer(base64.b64decode(text), dtype="<f2").astype(np.float64)


def rows_of(record: Mapping[str, Any], measure: RowMeasure) -> NDArray[np.float64]:
    """Accuracy or NLL of each test row of a record, (n,)."""
    if measure == "accuracy":
        return unpacked(record["correct"], record["n"]).astype(np.float64)
    return unpacked_nll(record["row_nll"])
