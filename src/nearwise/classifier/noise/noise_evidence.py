"""Whether an estimate of wrong labels is borne out by the labels, and how much of it to take."""

from typing import NamedTuple

import numpy as np

from nearwise.classifier.model.gates import pooled
from nearwise.classifier.noise.transition import Transition

# Standard errors from which predictions say more of labels than the class shares do. Rows are each
# other's neighbors, so that these errors are up to the square root of 2 too small: 5 stand for 3.5.
SIGNAL = 5.0


class Support(NamedTuple):
    """What speaks for an estimated transition, and what is done with it.

    Attributes
    ----------
    signal : float
        Standard errors by which predictions tell given labels from labels drawn at random.
    evidence : float
        Log-likelihood of the given labels under the estimate, less that under doubt alone: the
        same predictions, softened towards the class shares as if no label were wrong; in nats.
    share : float in [0, 1]
        Of the estimated rate that is taken.
    reason : str
        Why not all of it is; empty where it is.
    """

    signal: float
    evidence: float
    share: float
    reason: str


def signal_of(proba: np.ndarray, labels: np.ndarray, weight: np.ndarray | None) -> float:
    """Count the standard errors by which predictions tell labels from labels drawn at random.

    The score test of a pool of class shares and predictions at power 0, row by row: the
    probability of a row's label against the mean over labels in their shares.

    Parameters
    ----------
    proba : array of shape (n, C)
        Of the true labels, each row's made without its own; not led through a transition, which
        was fitted to these very labels and would carry what they say back to them.
    labels : int array of shape (n,)
    weight : array of shape (n,), optional
    """
    weight = np.ones(len(labels)) if weight is None else weight
    shares = np.bincount(labels, weight, proba.shape[1]) / weight.sum()
    gains = weight * (proba[np.arange(len(labels)), labels] - proba @ shares)
    spread = float(gains.std())
    return float(gains.mean()) * len(gains) ** 0.5 / spread if spread > 0 else 0.0


def doubt_losses(
    log_proba: np.ndarray, labels: np.ndarray, weight: np.ndarray | None
) -> np.ndarray:
    """NLL of each label (n,) if none were wrong: predictions softened towards the class shares.

    Predictions (n, C) and class shares are pooled by the powers that lower the NLL most.
    """
    shares = np.bincount(labels, weight, log_proba.shape[1]) + 0.5
    constant = np.tile(np.log(shares / shares.sum()), (len(labels), 1))
    return pooled({"predictions": log_proba, "shares": constant}, labels, weight).losses


def weigh(transition: Transition, signal: float, evidence: float) -> Support:
    """Decide how much of an estimated transition to take.

    Nothing where predictions say no more than the class shares, or where the rate leaves its own
    interval. Where doubt alone explains the labels better, the share is the likelihood ratio of
    the two; else the whole is taken.

    Parameters
    ----------
    transition : Transition
    signal, evidence : float
        As in `Support`.
    """
    low, high = transition.interval
    share, reason = float(np.exp(min(evidence, 0.0))), ""
    if signal < SIGNAL:
        share, reason = 0.0, "out-of-fold predictions say no more of the labels than class shares"
    elif not low <= transition.rate <= high:
        share, reason = 0.0, f"the rate {transition.rate:.2f} leaves [{low:.2f}, {high:.2f}]"
    elif share < 1:
        reason = "honest doubt explains the labels better than wrong ones do"
    return Support(signal, evidence, share, reason)
