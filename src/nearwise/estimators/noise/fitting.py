"""Fit of the label model: the transition, and predictions of the true labels."""

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from nearwise.estimators.fit.problem import FitSettings, LabelFitter, Problem, Unseen
from nearwise.estimators.model.gates import clearly_lower, pooled
from nearwise.estimators.model.predictor import as_float
from nearwise.estimators.noise.noisy_labels import (
    CheckedLabels,
    NoisyLabels,
    TrainingRows,
    posterior_log_proba,
)
from nearwise.estimators.noise.transition import (
    SIGNAL,
    Transition,
    check_label_noise,
    known_transition,
    noise_floor,
    scaled,
    signal_of,
    taken_in_part,
    weigh,
    with_interval,
)
from nearwise.estimators.noise.true_labels import (
    Prediction,
    TrueLabelPredictor,
)
from nearwise.estimators.progress import Progress
from nearwise.metrics.calibration import wilson_interval
from nearwise.warn import warn_user

_OFF = 0.01  # excess of the networks' agreement over their accuracy
_LEVEL = 0.95  # of the confidence interval of the agreement
_STEP = 1.25  # growth of the rate's multiplier per step of the search
_CLOSE = 0.02  # tolerance of the multiplier
_MOST_WRONG = 0.9  # largest share of wrong labels of a class


def label_fitter(label_noise: Any, classes: np.ndarray, settings: FitSettings) -> LabelFitter:
    """Check the parameter `label_noise` and return the fitter of the label model.

    ValueError if it is not usable, or does not fit the preset "instant" or per-class calibration,
    which use labels as given.
    """
    transition = check_label_noise(label_noise, classes)
    if settings.preset == "instant":
        raise ValueError(
            f'label_noise={label_noise!r} does not fit preset="instant", which takes labels as '
            "they are given. Leave it out, or use another preset."
        )
    if settings.per_class:
        raise ValueError(
            'calibration="per-class" is fitted to given labels, some of which label_noise takes to '
            "be wrong. Use one of the two."
        )
    return NoisyLabelFitter(transition)


class NoisyLabelFitter(LabelFitter):
    """Fitter of a noisy-label model, with a known or estimated transition (C, C)."""

    def __init__(self, wanted: Literal["auto"] | np.ndarray) -> None:
        self.known = None if isinstance(wanted, str) else wanted
        self.description = np.asarray(wanted).tolist()

    def fit(
        self,
        problem: Problem,
        settings: FitSettings,
        unseen: Callable[[], Unseen],
        progress: Progress,
    ) -> None:
        """Set the label model of a problem; record the estimate in its `choice["label_noise"]`.

        Models without a fold must not use the given labels of its rows. With a hold-out split all
        networks share the estimate from the training part.
        """
        progress.stage("label noise")
        predictor = TrueLabelPredictor(problem, settings, unseen(), progress, self.known)
        problem.label_model = find_label_model(predictor)


def find_label_model(predictor: TrueLabelPredictor) -> CheckedLabels | NoisyLabels:
    """Estimate the transition and predict true labels; keep labels as given if few are wrong."""
    problem, settings, known = predictor.problem, predictor.settings, predictor.known
    shared = isinstance(settings.cv, float)
    rows = problem.folds[0][0] if shared else np.arange(len(problem.labels))
    floor = noise_floor(len(rows), apart=predictor.agreement is not None)
    plain = predictor.predict(rows)
    transition = _transition(plain, rows, predictor)
    signal = _signal(plain, problem, rows)
    raised = False
    if known is None and predictor.agreement is not None and signal >= SIGNAL:
        first = transition
        plain, transition = _raised(plain, transition, predictor, rows)
        raised = transition is not first
    note = problem.choice["label_noise"] = {
        "rate": transition.rate,
        "interval": list(transition.interval),
        "source": transition.source,
        "signal": signal,
    }
    if known is None and signal >= SIGNAL and transition.interval[0] <= floor:
        note["decision"] = f"labels are taken as they are: the rate may be {floor} or less"
        return CheckedLabels(transition=transition, signal=signal)
    if known is None:
        # Class overlap does not explain why networks agree with each other but not with labels.
        evidence = float("inf") if raised else _evidence(plain, problem, rows)
        share, reason = weigh(transition, signal, evidence)
        note |= {"agreement": predictor.agreement} if raised else {"evidence": evidence}
        note["taken"] = share
        if share * transition.rate <= floor:
            transition = taken_in_part(transition, 0.0)
            note |= {"rate": 0.0, "interval": list(transition.interval), "taken": 0.0}
            _decide(note, f"labels are taken as they are: {reason}")
            return CheckedLabels(transition=transition, signal=signal)
        if share < 1:
            _decide(note, f"{share:.0%} of the estimated rate is taken: {reason}")
            predictor.share = share
            plain = predictor.predict(rows)
            transition = _transition(plain, rows, predictor)
    folds = [] if shared else problem.folds
    members = [predictor.predict(train) for train, _ in folds] or [plain]
    note |= {"rate": transition.rate, "interval": list(transition.interval)}
    return _noisy_labels(transition, signal, members, problem)


def _raised(
    plain: Prediction, transition: Transition, predictor: TrueLabelPredictor, rows: np.ndarray
) -> tuple[Prediction, Transition]:
    """Raise the rate until mean confidence equals the agreement of two networks on held-out rows.

    Networks trained on separate rows agree about as often as one of them is right, also with wrong
    labels (Jiang et al., "Assessing Generalization of SGD via Disagreement", ICLR 2022); pooled
    predictions are at least as accurate. If annotators err most on hard rows, a transition
    estimated from confident rows attributes these errors to class overlap. Predictions are then
    less confident than the agreement, and the networks' accuracy, estimated from matches with
    given labels, is lower. The transition stays unchanged if confidence or accuracy reaches the
    lower end of the agreement's interval minus 0.01, or if no rate gives that confidence.
    """
    agreement, n_judged = predictor.agreement, len(predictor.problem.folds[0][1])
    assert agreement is not None  # guaranteed by the caller
    least, _ = wilson_interval(np.array([agreement]), np.array([float(n_judged)]), _LEVEL)
    wanted, right = least[0] - _OFF, _rightness(transition, predictor, rows)
    short = clearly_lower(right, np.full_like(right, wanted))
    if _confidence(plain.log_proba[rows]) >= wanted or not short:
        return plain, transition

    @cache
    def raised(share: float) -> Prediction:
        predictor.known = scaled(transition, share).matrix
        return predictor.predict(rows)

    def surplus(share: float) -> float:
        return _confidence(raised(share).log_proba[rows]) - agreement

    most = _MOST_WRONG / max(float(1 - transition.matrix.diagonal().min()), 1e-6)
    shares = (_STEP ** np.arange(max(np.log(most) / np.log(_STEP), 1))).tolist()
    high = next((share for share in shares if surplus(share) >= 0), None)
    if high is None:
        predictor.known = None
        return plain, transition
    share = brentq(surplus, high / _STEP, high, xtol=_CLOSE) if high > 1 else high
    found = scaled(transition, share)
    predictor.known = found.matrix
    return raised(share), found


def _confidence(log_proba: np.ndarray) -> float:
    return float(np.exp(log_proba.max(axis=1)).mean())


def _rightness(
    transition: Transition, predictor: TrueLabelPredictor, rows: np.ndarray
) -> np.ndarray:
    """Values (n,) with the networks' estimated accuracy on true labels as their mean.

    Matches with given labels, corrected by the inverse transition (backward correction, as in
    `NoisyLabels.class_weights`).
    """
    predicted = predictor.networks["networks"][rows].argmax(axis=1)
    back: np.ndarray = np.linalg.pinv(transition.matrix)
    return back[predictor.problem.labels[rows], predicted]


def _noisy_labels(
    transition: Transition, signal: float, members: list[Prediction], problem: Problem
) -> NoisyLabels:
    log_proba = as_float(np.stack([member.log_proba for member in members]))
    matrices = as_float(np.stack([member.matrix for member in members]))
    mean = np.mean(_posteriors(log_proba, matrices, problem.labels), axis=0)
    shares = np.average(mean, axis=0, weights=problem.weight)
    proba = mean.astype(np.float32) if problem.encoder.soft_targets else None
    training = TrainingRows(log_proba, shares, proba)
    return NoisyLabels(transition=transition, signal=signal, matrices=matrices, rows=training)


def _posteriors(log_proba: Tensor, matrices: Tensor, labels: np.ndarray) -> list[np.ndarray]:
    """Posterior of the true labels (n, C) given the labels, one array per version."""
    given = torch.from_numpy(labels)
    return [
        posterior_log_proba(version, matrix, given).exp().numpy()
        for version, matrix in zip(log_proba.double(), matrices, strict=True)
    ]


def _decide(note: dict[str, Any], decision: str) -> None:
    """Record and warn that an estimate is not used, or only in part."""
    note["decision"] = decision
    warn_user(
        f'label_noise="auto": {decision}. If you know the share of wrong labels, give it; '
        "audited_transition estimates it from checked rows."
    )


def _signal(prediction: Prediction, problem: Problem, rows: np.ndarray) -> float:
    weight = None if problem.weight is None else problem.weight[rows]
    return signal_of(np.exp(prediction.log_proba[rows]), problem.labels[rows], weight)


def _evidence(prediction: Prediction, problem: Problem, rows: np.ndarray) -> float:
    """Gain in log-likelihood of the given labels by the noise model over class overlap, in nats."""
    weight = None if problem.weight is None else problem.weight[rows]
    softened = softened_losses(prediction.log_proba[rows], problem.labels[rows], weight)
    gains = softened - prediction.losses
    return float((gains if weight is None else gains * weight).sum())


def softened_losses(
    log_proba: np.ndarray, labels: np.ndarray, weight: np.ndarray | None
) -> np.ndarray:
    """NLL of each label (n,) without label noise: predictions softened by the class shares.

    Predictions (n, C) and class shares are pooled by the powers that minimise the NLL.
    """
    shares = np.bincount(labels, weight, log_proba.shape[1]) + 0.5
    constant = np.tile(np.log(shares / shares.sum()), (len(labels), 1))
    return pooled({"predictions": log_proba, "shares": constant}, labels, weight).losses


def _transition(
    prediction: Prediction, rows: np.ndarray, predictor: TrueLabelPredictor
) -> Transition:
    problem = predictor.problem
    if predictor.known is not None:
        return known_transition(predictor.known, problem.labels)
    weight = None if problem.weight is None else problem.weight[rows]
    proba, seed = np.exp(prediction.log_proba[rows]), predictor.settings.seed
    found = with_interval(proba, problem.labels[rows], seed, weight=weight)
    return taken_in_part(found, predictor.share)
