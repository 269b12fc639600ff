"""Correction of predictions for a class prior that differs from the training prior.

With training prior pi and prior rho at prediction time, Bayes' rule turns p(c | x) into
p(c | x) rho_c / pi_c. Applied to a pooled prediction, it corrects the neighbors' votes, the prior
of the null and the base.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

ClassPrior = Literal["train", "uniform"] | Sequence[float] | np.ndarray
CLASS_SHARES = "class shares"
_SUM_TOLERANCE = 1e-6
_LEFT = 0.01  # share of the prediction kept beside class shares, so that rows keep their order


@dataclass(frozen=True)
class ClassCorrection:
    """Correction of a calibrated prediction for a class prior.

    log p_c becomes ``scale_c (log p_c + shift_c) + bias_c``, normalised over the classes of `fit`,
    which keep their total probability; classes added later are unchanged.

    Attributes
    ----------
    shift : tuple of float, (C,)
        Logarithm of the prior over the training share of each class.
    scale : tuple of float, (C,)
        Positive.
    bias : tuple of float, (C,)
    source : {"prior", "temperature", "bias", "vector", "class shares"}
        Parameters fitted beside the shift; "prior": none. "class shares": predictions were no
        better than the class shares, which are predicted instead.
    wanted : tuple of float, (C,), or None
        The class prior; None: the class shares of the memory.
    """

    shift: tuple[float, ...]
    scale: tuple[float, ...]
    bias: tuple[float, ...]
    source: str
    wanted: tuple[float, ...] | None = None

    def of_parts(self) -> Self:
        """Shift alone, for the parts (base or neighbors), as these have separate temperatures."""
        return self.of_shift(self.shift, self.wanted)

    @classmethod
    def of_shift(cls, shift: Iterable[Any], wanted: tuple[float, ...] | None) -> Self:
        """Correction by Bayes' rule alone, without fitted scale or bias."""
        shifts = tuple(map(float, shift))
        n = len(shifts)
        return cls(shifts, (1.0,) * n, (0.0,) * n, "prior", wanted)

    @classmethod
    def to_shares(
        cls, shift: Iterable[Any], prior: Tensor, wanted: tuple[float, ...] | None
    ) -> Self:
        """Correction to the class shares `prior` (C,), keeping a hundredth of the prediction."""
        shifts = tuple(map(float, shift))
        logs = torch.log(prior.double()).tolist()
        bias = tuple((1 - _LEFT) * (one + by) for one, by in zip(logs, shifts, strict=True))
        return cls(shifts, (_LEFT,) * len(shifts), bias, CLASS_SHARES, wanted)

    def __call__(self, log_proba: Tensor, temperature: float) -> Tensor:
        """Correct log-probabilities (B, C) so that `temperature` can still be applied to them.

        Returns
        -------
        corrected : Tensor of shape (B, C)
            Normalised; divided by `temperature` and normalised it is the corrected prediction.
        """
        n_known = len(self.shift)
        shift, scale, bias = (
            torch.tensor(values, dtype=log_proba.dtype)
            for values in (self.shift, self.scale, self.bias)
        )
        finished = torch.log_softmax(log_proba / temperature, dim=1)
        known = torch.log_softmax(scale * (finished[:, :n_known] + shift) + bias, dim=1)
        if log_proba.shape[1] > n_known:
            total = torch.logsumexp(finished[:, :n_known], dim=1, keepdim=True)
            known = torch.cat([known + total, finished[:, n_known:]], dim=1)
        return torch.log_softmax(temperature * known, dim=1)

    def to_json(self) -> dict[str, Any]:
        """Fields as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any] | None) -> Self | None:
        """Rebuild from the result of `to_json`; None stays None."""
        if data is None:
            return None
        tuples = {name: tuple(data[name]) for name in ("shift", "scale", "bias")}
        wanted = data["wanted"]
        return cls(**tuples, source=data["source"], wanted=wanted and tuple(wanted))


def check_class_prior(prior: Any, n_classes: int) -> np.ndarray | None:
    """Check the class prior: float64 (C,), or None for the training prior."""
    if isinstance(prior, str):
        if prior == "train":
            return None
        if prior == "uniform":
            return np.full(n_classes, 1 / n_classes)
        raise ValueError(
            f'class_prior={prior!r} is not known. Use "train", "uniform", or the share of each '
            "class as an array."
        )
    try:
        shares = np.asarray(prior, dtype=np.float64)
    except (TypeError, ValueError):
        shares = np.empty((0, 0))
    if shares.shape != (n_classes,):
        raise ValueError(
            f"class_prior has shape {shares.shape} but there are {n_classes} classes. Give one "
            'share per class, in sorted order of the labels, or "train" or "uniform".'
        )
    if not np.isfinite(shares).all() or (shares <= 0).any():
        bad = shares[~np.isfinite(shares) | (shares <= 0)]
        raise ValueError(
            f"class_prior holds {bad[0]}; every share must be positive and finite. Give a small "
            "share to a class that hardly occurs, or fit without its rows."
        )
    if abs(shares.sum() - 1) > _SUM_TOLERANCE:
        raise ValueError(
            f"class_prior sums to {shares.sum():.6g} and must sum to 1. Divide it by its sum."
        )
    return shares


def log_ratio(wanted: np.ndarray | None, train: Tensor) -> Tensor:
    """Logarithm of the prior over the training shares, float64 (C,); zeros where they agree."""
    if wanted is None:
        return torch.zeros(len(train), dtype=torch.float64)
    return torch.log(torch.from_numpy(wanted)) - torch.log(train.double())


def capped_rows(labels: np.ndarray, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose at most `most` rows per class, at random.

    Parameters
    ----------
    labels : int array of shape (n,)
    most : int
    seed : int

    Returns
    -------
    kept : int64 ndarray of shape (n_kept,)
        Ascending positions; a smaller `most` keeps a subset of the rows of a larger one.
    stands_for : float64 ndarray of shape (n_kept,)
        Rows of its class per kept row: the weight that keeps votes unbiased.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    counts = np.bincount(labels)
    kept = np.sort(np.concatenate(list(_first_of_each(labels, order, most))))
    sizes = np.minimum(counts, most)
    return kept, (counts / np.maximum(sizes, 1))[labels[kept]]


def _first_of_each(labels: np.ndarray, order: np.ndarray, most: int) -> Iterator[np.ndarray]:
    for label in range(int(labels.max()) + 1):
        yield order[labels[order] == label][:most]
