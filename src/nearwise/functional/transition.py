"""Given labels seen through a transition: what is given when another class is true."""

import torch
from torch import Tensor

_FLOOR = 1e-12
_UNMIXING = 50  # steps of the iteration
_INSIDE = 1e-3


def given_log_proba(log_proba: Tensor, transition: Tensor | None) -> Tensor:
    """Turn log-probabilities of the true labels into those of the given labels.

    Parameters
    ----------
    log_proba : Tensor of shape (n, C)
        Normalised, of the true labels.
    transition : Tensor of shape (C, C) or None
        Probability of each given label (columns) for each true one (rows). None: the given
        labels are the true ones, and `log_proba` is returned as it is.

    Returns
    -------
    log_proba : Tensor of shape (n, C)

    References
    ----------
    Patrini et al., "Making Deep Neural Networks Robust to Label Noise", CVPR 2017: the forward
    correction.
    """
    if transition is None:
        return log_proba
    return torch.log((log_proba.exp() @ transition.to(log_proba)).clamp_min(_FLOOR))


def true_log_proba(log_proba: Tensor, transition: Tensor) -> Tensor:
    """Turn log-probabilities of the given labels into those of the true labels behind them.

    The distribution of true labels whose given labels come nearest to those said, in
    Kullback-Leibler divergence: where the inverse of the transition leaves the simplex, a point on
    its border, drawn in by a thousandth.

    Parameters
    ----------
    log_proba : Tensor of shape (n, C)
        Normalised or not, of the given labels.
    transition : Tensor of shape (C, C)
        Probability of each given label (columns) for each true one (rows).

    Returns
    -------
    log_proba : Tensor of shape (n, C)
        Normalised, of the true labels.

    References
    ----------
    Shepp and Vardi, "Maximum Likelihood Reconstruction for Emission Tomography", IEEE Trans. Med.
    Imaging 1982: the iteration.
    """
    given = torch.softmax(log_proba, dim=1)
    matrix = transition.to(given)
    true = torch.full_like(given, 1 / given.shape[1])
    for _ in range(_UNMIXING):
        ratio = given / (true @ matrix).clamp_min(_FLOOR)
        true = true * (ratio @ matrix.T)
        true = true / true.sum(dim=1, keepdim=True)
    return torch.log((true + _INSIDE) / (1 + _INSIDE * given.shape[1]))


def posterior_log_proba(log_proba: Tensor, transition: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities of the true labels once the given ones are known too, by Bayes' rule.

    Parameters
    ----------
    log_proba : Tensor of shape (n, C)
        Of the true labels, from predictions that did not see the given ones.
    transition : Tensor of shape (C, C)
        Probability of each given label (columns) for each true one (rows).
    labels : int64 Tensor of shape (n,)
        Given labels.

    Returns
    -------
    log_proba : Tensor of shape (n, C)
        Normalised.
    """
    likelihood = transition.to(log_proba).clamp_min(_FLOOR).log()
    return torch.log_softmax(log_proba + likelihood.T[labels], dim=1)


def believed_proba(log_proba: Tensor, transition: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Probabilities of the true labels where some classes came after the transition was learned.

    Parameters
    ----------
    log_proba : Tensor of shape (n, C)
        Of the true labels among the classes of the transition.
    transition : Tensor of shape (C, C)
    labels : int64 Tensor of shape (n,)
        Given labels; one at or beyond C is taken as it is.
    n_classes : int
        At least C.

    Returns
    -------
    proba : Tensor of shape (n, n_classes)
    """
    known = labels < len(transition)
    seen = torch.where(known, labels, 0)
    proba = posterior_log_proba(log_proba, transition, seen).exp()
    proba = torch.nn.functional.pad(proba, (0, n_classes - len(transition)))
    whole = torch.nn.functional.one_hot(labels, n_classes).to(proba)
    return torch.where(known[:, None], proba, whole)
