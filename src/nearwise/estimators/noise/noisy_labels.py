"""Label model for noisy labels: a transition from true to given labels."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.model.class_prior import CLASS_SHARES
from nearwise.estimators.model.label_model import (
    AS_GIVEN,
    Fold,
    LabelModel,
    RememberedLabels,
    Target,
)
from nearwise.estimators.noise.transition import SIGNAL, Transition, signal_of
from nearwise.memory import MemoryBank
from nearwise.warn import warn_user

LOG_PROBA = "label_log_proba"  # log-probabilities of a row's true label, without its given label
_FLOOR = 1e-12
_UNMIXING = 50  # steps of the iteration
_INSIDE = 1e-3
_TOLERANCE = 1e-3  # largest error of the sum of float32 shares


def given_log_proba(log_proba: Tensor, matrix: Tensor) -> Tensor:
    """Convert log-probabilities (n, C) of the true labels to log-probabilities of given labels.

    `matrix` (C, C) has the probability of each given label (columns) for each true label (rows),
    here and below. The forward correction of Patrini et al., "Making Deep Neural Networks Robust
    to Label Noise", CVPR 2017.
    """
    return torch.log((log_proba.exp() @ matrix.to(log_proba)).clamp_min(_FLOOR))


def true_log_proba(log_proba: Tensor, matrix: Tensor) -> Tensor:
    """Convert log-probabilities (n, C) of the given labels to normalised ones of the true labels.

    Finds the distribution of true labels with the least Kullback-Leibler divergence between the
    predicted and the implied given labels. If the inverse transition leaves the simplex, that is a
    point on its border, moved inside by 1/1000. The iteration is that of Shepp and Vardi, "Maximum
    Likelihood Reconstruction for Emission Tomography", IEEE Trans. Med. Imaging 1982.
    """
    given = torch.softmax(log_proba, dim=1)
    matrix = matrix.to(given)
    true = torch.full_like(given, 1 / given.shape[1])
    for _ in range(_UNMIXING):
        ratio = given / (true @ matrix).clamp_min(_FLOOR)
        true = true * (ratio @ matrix.T)
        true = true / true.sum(dim=1, keepdim=True)
    return torch.log((true + _INSIDE) / (1 + _INSIDE * given.shape[1]))


def posterior_log_proba(log_proba: Tensor, matrix: Tensor, labels: Tensor) -> Tensor:
    """Posterior log-probabilities (n, C) of the true labels, given the labels, by Bayes' rule.

    `log_proba` are predictions of the true labels without the given labels.
    """
    likelihood = matrix.to(log_proba).clamp_min(_FLOOR).log()
    return torch.log_softmax(log_proba + likelihood.T[labels], dim=1)


def posterior_proba(log_proba: Tensor, matrix: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Posterior (n, n_classes) of the true labels, with classes added after the transition.

    `log_proba` (n, C) are of the classes of the transition; a label at or beyond C counts as
    certainly right.
    """
    known = labels < len(matrix)
    in_range = torch.where(known, labels, 0)
    proba = posterior_log_proba(log_proba, matrix, in_range).exp()
    proba = torch.nn.functional.pad(proba, (0, n_classes - len(matrix)))
    whole = torch.nn.functional.one_hot(labels, n_classes).to(proba)
    return torch.where(known[:, None], proba, whole)


@dataclass(frozen=True, eq=False, kw_only=True)
class ForwardCorrection(LabelModel):
    """Label model that scores predictions of true labels on given labels, by a transition."""

    matrix: Tensor
    as_given = False

    def given_log_proba(self, log_proba: Tensor) -> Tensor:
        """Log-probabilities of the given labels from `log_proba` of the true labels, (n, C)."""
        return given_log_proba(log_proba, self.matrix)

    def implied(self, log_proba: np.ndarray) -> np.ndarray:
        """Predictions of true labels (n, C) implied by predictions of given labels.

        Powers in a pool cannot undo the noise. With 30 % wrong labels in two classes, predictions
        of given labels stay between .3 and .7; .69 implies .98, and .6 implies .75.
        """
        result: np.ndarray = true_log_proba(torch.from_numpy(log_proba), self.matrix).numpy()
        return result

    def with_true(self, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add to each prediction of given labels the implied prediction of true labels."""
        return parts | {f"{name}, implied": self.implied(part) for name, part in parts.items()}


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckedLabels(LabelModel):
    """Label model if the estimated noise is too small to be used: labels count as given.

    `signal` is the number of standard errors by which out-of-fold predictions separate given
    labels from random ones; infinite after the fit, as it is no longer used.
    """

    transition: Transition
    signal: float = float("inf")

    def tells_nothing(
        self, scores: Tensor, labels: Tensor, weight: Tensor, choice: dict[str, Any]
    ) -> bool:
        """Whether neither the first predictions nor `scores` separate labels from random ones."""
        if self.signal >= SIGNAL:
            return False
        proba = torch.softmax(scores.double(), dim=1).numpy()
        if signal_of(proba, labels.numpy(), weight.double().numpy()) >= SIGNAL:
            return False
        if "answers" not in choice["label_noise"]:  # warn once, not again for several views
            choice["label_noise"]["answers"] = CLASS_SHARES
            warn_user(
                "label_noise: out-of-fold predictions of the labels are no better than the class "
                "shares, which are predicted instead. Check that X and y match, or add rows."
            )
        return True

    def remembered(self) -> Self:
        """Label model to store with the fitted model."""
        return replace(self, signal=float("inf"))


class TrainingRows(NamedTuple):
    """Predictions of the true labels of the training rows, during the fit.

    `log_proba` (n_versions, n, C), one version per fold, use neither the row's own given label nor
    labels that the fold holds out. `shares` (C,) are the shares of the true classes; `proba`
    (n, C), for images, is the posterior given also the labels.
    """

    log_proba: Tensor
    shares: np.ndarray
    proba: np.ndarray | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class NoisyLabels(ForwardCorrection, CheckedLabels):
    """Label model with noise, given by a transition.

    `matrices` (n_versions, C, C) are the transition estimated per fold from its training rows;
    only one after the fit, or if all folds share the estimate. `rows` is None after the fit.
    """

    matrices: Tensor
    rows: TrainingRows | None = None
    matrix: Tensor = field(init=False)
    caveat = ", and their wrong labels are counted back through the transition, taken for right"

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", torch.from_numpy(self.transition.matrix).float())

    def target(self, labels: np.ndarray, weight: np.ndarray | None) -> Target:
        """Training targets of networks; for images the posterior of the true labels."""
        proba = None if self.rows is None else self.rows.proba
        return labels if proba is None else proba, weight

    def likelihood(self, labels: np.ndarray) -> Tensor | None:
        """Likelihood of each given label under every class (n, C), by the transition."""
        return self.matrices[0].T[torch.from_numpy(labels)]

    def class_counts(self, labels: Tensor, weight: Tensor, n_classes: int) -> Tensor:
        """Weighted number of training rows per true class, (n_classes,)."""
        assert self.rows is not None  # used only in the fit
        return torch.from_numpy(self.rows.shares).float() * weight.sum()

    def class_weights(self, labels: np.ndarray, n_classes: int) -> np.ndarray:
        """Weights of rows with these given labels in each true class, (n, n_classes).

        The inverse transition makes counts of given labels unbiased for counts of true labels
        (backward correction: Patrini et al., "Making Deep Neural Networks Robust to Label Noise",
        CVPR 2017). Labels of classes added after the fit count as right.
        """
        back, known = np.eye(n_classes), len(self.transition.matrix)
        back[:known, :known] = np.linalg.inv(self.transition.matrix)
        weights: np.ndarray = back[labels]
        return weights

    def columns(self, rows: Tensor) -> dict[str, Tensor]:
        """Predictions of the rows' true labels."""
        assert self.rows is not None  # used only in the fit
        return {LOG_PROBA: self.rows.log_proba[0, rows]}

    def columns_of_new(self, predict: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Predictions of the true labels of new rows, by the complete model."""
        return {LOG_PROBA: predict()}

    def of_fold(self, fold: int) -> Self:
        """Label model with the version of one fold alone."""
        assert self.rows is not None  # used only in the fit
        rows = self.rows._replace(log_proba=self.rows.log_proba[fold, None])
        return replace(self, matrices=self.matrices[fold, None], rows=rows)

    def of_all(self, folds: list[Fold]) -> Self:
        """Label model with one version; each row has the version of the fold that held it out."""
        assert self.rows is not None  # used only in the fit
        log_proba = self.rows.log_proba[:1].clone()
        for fold, (_, held_out) in enumerate(folds):
            log_proba[0, held_out] = self.rows.log_proba[fold, held_out]
        rows = self.rows._replace(log_proba=log_proba)
        return replace(self, matrices=self.matrices.mean(0, keepdim=True), rows=rows)

    def remembered(self) -> Self:
        """Label model to store with the fitted model."""
        return replace(self, rows=None, signal=float("inf"))

    def labels(self, bank: MemoryBank) -> RememberedLabels:
        """Most probable true labels of the remembered rows, by Bayes' rule.

        A label of a class added after the fit counts as right.
        """
        log_proba = bank.columns[LOG_PROBA]
        proba = posterior_proba(log_proba, self.matrices[0], bank.labels, bank.n_classes)
        return RememberedLabels(proba.argmax(1), proba.amax(1))

    def refuse_refresh(self) -> None:
        """Raise ValueError, as out-of-fold predictions of true labels exist only in the fit."""
        raise ValueError(
            "This classifier takes some labels to be wrong (label_noise), and the evidence for the "
            "true ones was found in its fit. Fit again."
        )

    def likely(self, bank: MemoryBank) -> np.ndarray:
        """Probabilities (n, C) of the remembered rows' true labels, without the given labels."""
        proba: np.ndarray = bank.columns[LOG_PROBA].exp().double().numpy()
        return proba

    def given_proba(self, proba: np.ndarray) -> np.ndarray:
        """Probabilities of the given labels from `proba` of the true labels, (n, n_classes)."""
        known, given = len(self.transition.matrix), proba.copy()
        given[:, :known] = proba[:, :known] @ self.transition.matrix
        return given

    def posterior(self, proba: np.ndarray, labels: Tensor) -> np.ndarray:
        """Posterior of the true labels (n, n_classes), given also `labels`."""
        matrix = torch.from_numpy(self.transition.matrix)
        known = torch.from_numpy(np.log(np.maximum(proba[:, : len(matrix)], 1e-300)))
        result: np.ndarray = posterior_proba(known, matrix, labels, proba.shape[1]).numpy()
        return result


def transition_of(model: LabelModel) -> Transition | None:
    """Transition estimated or given in the fit, or None without `label_noise`."""
    return model.transition if isinstance(model, CheckedLabels) else None


def label_model_state(model: LabelModel) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """JSON and tensors of a stored label model."""
    if not isinstance(model, CheckedLabels):
        return None, {}
    tensors = {"matrices": model.matrices} if isinstance(model, NoisyLabels) else {}
    return model.transition.to_json(), tensors


def label_model_from_state(
    meta: dict[str, Any] | None,
    tensors: dict[str, Tensor],
    choice: dict[str, Any],
    n_classes: int,
) -> LabelModel:
    """Rebuild a label model from the result of `label_model_state`.

    ValueError if the parts are not of `n_classes` classes or not stochastic, or `choice` lacks the
    entry "label_noise".
    """
    matrices = tensors.get("matrices")
    if meta is None:
        if matrices is not None:
            raise ValueError("there are matrices and no transition")
        return AS_GIVEN
    if not isinstance(choice.get("label_noise"), dict):
        raise ValueError("choice has no label_noise beside it")
    transition = Transition.from_json(meta)
    wide = (n_classes, n_classes)
    if transition.matrix.shape != wide:
        raise ValueError(f"matrix has shape {transition.matrix.shape} for {n_classes} classes")
    if matrices is None:
        return CheckedLabels(transition=transition)
    sums = matrices.double().sum(-1)
    stochastic = (matrices >= 0).all() and ((sums - 1).abs() < _TOLERANCE).all()
    if matrices.ndim != 3 or matrices.shape[1:] != wide or not stochastic:
        raise ValueError("matrices are not stochastic matrices of the classes")
    if len(matrices) != 1:
        raise ValueError(f"there are {len(matrices)} matrices")
    return NoisyLabels(transition=transition, matrices=matrices)
