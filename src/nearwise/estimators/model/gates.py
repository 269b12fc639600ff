"""Log-linear pools of predictions, with powers fitted to minimise the NLL."""

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax

from nearwise.estimators.model.label_model import AS_GIVEN, LabelModel
from nearwise.training import minimize

_SURE_GAIN = 2.0  # least gain of an accepted candidate, in standard errors


class Pool(NamedTuple):
    """Predictions, and their powers in the product of distributions.

    Attributes
    ----------
    parts : dict of str to array of shape (n, C)
        Log-probabilities.
    powers : dict of str to float
        Positive powers, by the same names.
    nll : float
        Mean NLL of the labels, in nats.
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
    label_model: LabelModel = AS_GIVEN,
    *,
    ridge: float = 1e-3,
) -> Pool:
    """Pool predictions with the powers that minimise the NLL; `ridge` as in `pool_gates`."""
    gates, nll = pool_gates(list(parts.values()), labels, weight, label_model, ridge=ridge)
    pool = Pool(parts, dict(zip(parts, gates, strict=True)), nll, np.zeros(0))
    return pool._replace(losses=given_losses(pool.log_proba, labels, label_model))


def lean_pool(
    parts: dict[str, np.ndarray],
    labels: np.ndarray,
    weight: np.ndarray | None,
    label_model: LabelModel = AS_GIVEN,
) -> Pool:
    """Pool predictions by backward elimination.

    The prediction that raises the NLL least is dropped, repeatedly, while the total rise is at
    most the gain of one power by chance: half a row's share.
    """
    pool = pooled(parts, labels, weight, label_model)
    most = pool.nll + 0.5 / len(labels)
    while len(parts := pool.parts) > 1:
        rest = ({n: part for n, part in parts.items() if n != left_out} for left_out in parts)
        least = min((pooled(one, labels, weight, label_model) for one in rest), key=lambda p: p.nll)
        if least.nll > most:
            break
        pool = least
    return pool


def pool_gates(
    parts: list[np.ndarray],
    labels: np.ndarray,
    weight: np.ndarray | None,
    label_model: LabelModel = AS_GIVEN,
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
    label_model : LabelModel, optional
        Model of the given labels, given the predicted classes.
    ridge : float, default=1e-3
        Penalty on the squared distance from equal powers that sum to 1.

    Returns
    -------
    gates : list of float
    nll : float
        Mean NLL without the ridge term, in nats.
    """
    stacked = torch.as_tensor(np.stack(parts))
    truth = torch.as_tensor(labels)
    row_weight = torch.ones(len(truth)) if weight is None else torch.as_tensor(weight)
    row_weight = (row_weight / row_weight.sum()).to(stacked)
    equal = 1.0 / len(parts)
    raw = torch.full((len(parts),), float(np.log(np.expm1(equal))), dtype=stacked.dtype)
    raw.requires_grad_(True)

    def objective() -> tuple[torch.Tensor, torch.Tensor]:
        gates = torch.nn.functional.softplus(raw)
        total = (gates[:, None, None] * stacked).sum(0)
        given = label_model.given_log_proba(torch.log_softmax(total, dim=1))
        losses = torch.nn.functional.nll_loss(given, truth, reduction="none")
        return (losses * row_weight).sum(), ((gates - equal) ** 2).sum()

    def loss() -> torch.Tensor:
        nll, spread = objective()
        return nll + ridge * spread

    minimize([raw], loss)
    with torch.no_grad():
        nll, _ = objective()
        return torch.nn.functional.softplus(raw).tolist(), float(nll)


def tempered_nll(
    log_proba: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    label_model: LabelModel = AS_GIVEN,
) -> float:
    """Mean NLL of predictions at the best single temperature, in nats."""
    return pool_gates([log_proba], labels, weight, label_model, ridge=0.0)[1]


def given_losses(
    log_proba: np.ndarray, labels: np.ndarray, label_model: LabelModel = AS_GIVEN
) -> np.ndarray:
    """NLL of each label (n,), from log-probabilities (n, C) of the classes; in nats."""
    given = label_model.given_log_proba(torch.from_numpy(log_proba))
    losses: np.ndarray = -given.numpy()[np.arange(len(labels)), labels]
    return losses


def clearly_lower(losses: np.ndarray, others: np.ndarray) -> bool:
    """Whether mean losses are lower by over two standard errors of the paired difference."""
    gains = others - losses
    return bool(gains.mean() > _SURE_GAIN * gains.std() / len(gains) ** 0.5)
