"""Pools of opinions in the log domain, and opinions on true labels behind those on given ones."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax

from nearwise.functional import given_log_proba, true_log_proba

_SURE_GAIN = 2.0  # standard errors by which something must be better to be taken
_BEHIND = " on true labels"


class Pool(NamedTuple):
    """Opinions and their powers in the product.

    Attributes
    ----------
    parts : dict of str to array of shape (n, C)
        Log-probabilities.
    powers : dict of str to float
        Positive, by the same names.
    nll : float
        Of the labels, in nats.
    losses : array of shape (n,)
        NLL of every label.
    """

    parts: dict[str, np.ndarray]
    powers: dict[str, float]
    nll: float
    losses: np.ndarray

    @property
    def log_proba(self) -> np.ndarray:
        """Normalised log-probabilities of the product, (n, C)."""
        weighted = [self.powers[name] * part for name, part in self.parts.items()]
        normalised: np.ndarray = log_softmax(np.sum(weighted, axis=0), axis=1)
        return normalised


def pooled(
    parts: dict[str, np.ndarray],
    labels: np.ndarray,
    weight: np.ndarray | None,
    transition: torch.Tensor | None = None,
) -> Pool:
    """Pool opinions by the powers that lower the NLL of labels most."""
    gates, nll = pool_gates(list(parts.values()), labels, weight, transition)
    pool = Pool(parts, dict(zip(parts, gates, strict=True)), nll, np.zeros(0))
    return pool._replace(losses=given_losses(pool.log_proba, transition, labels))


def behind(name: str) -> str:
    """Name the opinion on true labels behind an opinion on given ones."""
    return name + _BEHIND


def with_true_opinions(
    parts: dict[str, np.ndarray], transition: torch.Tensor
) -> dict[str, np.ndarray]:
    """Put beside each opinion on given labels what it says of the true ones.

    Powers alone cannot undo the noise: with 30 % of two classes' labels wrong an opinion on given
    labels stays between .3 and .7, and .69 means .98 where .6 means .75.
    """
    behind_parts = {behind(name): opinion_behind(part, transition) for name, part in parts.items()}
    return parts | behind_parts


def opinion_behind(log_proba: np.ndarray, transition: torch.Tensor) -> np.ndarray:
    """Log-probabilities of true labels behind those of given labels, (n, C)."""
    result: np.ndarray = true_log_proba(torch.from_numpy(log_proba), transition).numpy()
    return result


def pool_gates(
    parts: list[np.ndarray],
    labels: np.ndarray,
    weight: np.ndarray | None,
    transition: torch.Tensor | None = None,
    *,
    ridge: float = 1e-3,
) -> tuple[list[float], float]:
    """Positive powers that minimise the NLL of the product of distributions.

    Parameters
    ----------
    parts : list of arrays of shape (n, C)
        Log-probabilities.
    labels : int array of shape (n,)
    weight : array of shape (n,), optional
    transition : Tensor of shape (C, C), optional
        From true to given labels, where `labels` are noisy.
    ridge : float, default=1e-3
        Pull towards equal powers that sum to 1.

    Returns
    -------
    gates : list of float
    nll : float
        Without the ridge term, in nats.
    """
    stacked = torch.as_tensor(np.stack(parts))
    truth = torch.as_tensor(labels)
    row_weight = torch.ones(len(truth)) if weight is None else torch.as_tensor(weight)
    row_weight = (row_weight / row_weight.sum()).to(stacked)
    equal = 1.0 / len(parts)
    raw = torch.full((len(parts),), float(np.log(np.expm1(equal))), dtype=stacked.dtype)
    raw.requires_grad_(True)
    optimizer = torch.optim.LBFGS([raw], max_iter=100, line_search_fn="strong_wolfe")

    def objective() -> tuple[torch.Tensor, torch.Tensor]:
        gates = torch.nn.functional.softplus(raw)
        total = (gates[:, None, None] * stacked).sum(0)
        if transition is None:
            losses = torch.nn.functional.cross_entropy(total, truth, reduction="none")
        else:
            given = given_log_proba(torch.log_softmax(total, dim=1), transition)
            losses = torch.nn.functional.nll_loss(given, truth, reduction="none")
        return (losses * row_weight).sum(), ((gates - equal) ** 2).sum()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        nll, spread = objective()
        loss = nll + ridge * spread
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        nll, _ = objective()
        return torch.nn.functional.softplus(raw).tolist(), float(nll)


def tempered_nll(
    log_proba: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    transition: torch.Tensor | None = None,
) -> float:
    """NLL of one distribution at its best temperature, in nats."""
    return pool_gates([log_proba], labels, weight, transition, ridge=0.0)[1]


def given_losses(
    log_proba: np.ndarray, transition: torch.Tensor | None, labels: np.ndarray
) -> np.ndarray:
    """NLL of each given label (n,), from log-probabilities (n, C) of the true ones; in nats."""
    given = given_log_proba(torch.from_numpy(log_proba), transition)
    losses: np.ndarray = -given.numpy()[np.arange(len(labels)), labels]
    return losses


def clearly_lower(losses: np.ndarray, others: np.ndarray) -> bool:
    """Whether losses are lower by two standard errors of the paired difference."""
    gains = others - losses
    return bool(gains.mean() > _SURE_GAIN * gains.std() / len(gains) ** 0.5)
