"""Predictions of the true label of every training row, without its given label."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax

from nearwise.estimators.fit.base import (
    Candidate,
    auto_candidates,
    given_candidate,
    silent_candidates,
)
from nearwise.estimators.fit.problem import FitSettings, Problem, Unseen, make_folds
from nearwise.estimators.inputs.table import LARGE
from nearwise.estimators.model.gates import clearly_lower, given_losses, pooled
from nearwise.estimators.model.label_model import AS_GIVEN, LabelModel
from nearwise.estimators.noise.noisy_labels import ForwardCorrection
from nearwise.estimators.noise.transition import estimate_transition, towards_none
from nearwise.estimators.progress import Progress
from nearwise.functional import Neighbors, topk_neighbors
from nearwise.memory.ties import tie_order

_INNER = 3  # inner folds of the training rows of a fold
_SHARPNESS = (1.0, 2.0, 4.0, 8.0)  # of votes, per typical distance
_POOLED = (1, 3)  # positions of the sharpnesses whose votes join the pool
_OF_MANY = 64  # neighbors in a vote among many images
_EVEN = 0.02  # share of the uniform distribution mixed into votes
_TURNS = 3  # alternations between powers and transition


class Prediction(NamedTuple):
    """Pooled predictions (n, C) of the true labels of all rows, without their given labels.

    `matrix` is the matching transition, `nll` the mean NLL of the given labels in nats, `losses`
    the NLL of the given label of each training row.
    """

    log_proba: np.ndarray
    matrix: np.ndarray
    nll: float
    losses: np.ndarray


class Found(NamedTuple):
    """Neighbors of all rows among the training rows, and their weights per sharpness."""

    positions: np.ndarray
    weights: list[np.ndarray]


class TrueLabelPredictor:
    """Predictor of true labels by models and votes without the row's given label.

    `known` is the transition, or None to estimate it; `share`, in (0, 1], is the used part of every
    estimate.
    """

    def __init__(
        self,
        problem: Problem,
        settings: FitSettings,
        unseen: Unseen,
        progress: Progress,
        known: np.ndarray | None,
    ) -> None:
        self.problem, self.settings, self.keys = problem, settings, unseen.keys
        self.progress, self.known = progress, known
        self.given = np.eye(problem.n_classes)[problem.labels]
        self.share = 1.0
        self._sought: tuple[np.ndarray, Found] | None = None  # rows, and neighbors in them
        self.networks: dict[str, np.ndarray] = {}
        if unseen.log_proba is not None:
            self.networks["networks"] = unseen.log_proba.double().numpy()
        self.agreement = unseen.agreement

    def predict(self, rows: np.ndarray) -> Prediction:
        """Pool cross-fitted predictions of all rows, trained on given labels of `rows` alone."""
        found = self._seek(rows)
        votes = [{"vote": _vote(found, weights, self.given)} for weights in found.weights]
        first = min((self._pool(vote, rows, None) for vote in votes), key=lambda p: p.nll)
        of_given = self._cross_fit(rows, found)
        plain = self._pool(of_given, rows, first.matrix)
        wider = self._pool(of_given, rows, plain.matrix, implied=True)
        return wider if clearly_lower(wider.losses, plain.losses) else plain

    def _seek(self, rows: np.ndarray) -> Found:
        if self._sought is not None and self._sought[0] is rows:
            return self._sought[1]
        sought = rows[tie_order(rows)]
        # An inner fold holds out a third of the neighbors, so that two thirds vote.
        many = self.problem.encoder.soft_targets and len(self.problem.labels) > LARGE
        wanted = max(self.settings.n_neighbors, _OF_MANY if many else 0)
        k = min(wanted * 3 // 2, len(rows) - 1)
        found: Neighbors = topk_neighbors(
            self.keys,
            self.keys[sought],
            k,
            metric=self.settings.metric,
            query_ids=torch.arange(len(self.keys)),
            key_ids=torch.from_numpy(sought),
        )
        unit = float(found.distances.abs().median()) or 1.0
        weights = [
            torch.softmax(-sharpness * found.distances / unit, dim=1).numpy()
            for sharpness in _SHARPNESS
        ]
        self._sought = rows, Found(sought[found.indices.numpy()], weights)
        return self._sought[1]

    def _pool(
        self,
        of_given: dict[str, np.ndarray],
        rows: np.ndarray,
        start: np.ndarray | None,
        *,
        implied: bool = False,
    ) -> Prediction:
        """Alternate between the powers of predictions of given labels and the transition.

        With `implied` the implied predictions of true labels join the pool.
        """
        matrix = start if self.known is None else self.known
        labels = self.problem.labels[rows]
        weight = None if self.problem.weight is None else self.problem.weight[rows]
        for _ in range(_TURNS if self.known is None else 1):
            parts, model = of_given, _corrected(matrix)
            if implied and isinstance(model, ForwardCorrection):
                parts = model.with_true(of_given)
            learned = {name: part[rows] for name, part in parts.items()}
            pool = pooled(learned, labels, weight, model)._replace(parts=parts)
            if self.known is None:
                matrix = estimate_transition(np.exp(pool.log_proba[rows]), labels, weight=weight)
                matrix = towards_none(matrix, self.share)
        assert matrix is not None  # known or estimated
        log_proba = pool.log_proba
        losses = given_losses(log_proba[rows], labels, _corrected(matrix))
        return Prediction(log_proba, matrix, pool.nll, losses)

    def _cross_fit(self, rows: np.ndarray, found: Found) -> dict[str, np.ndarray]:
        """Cross-fitted predictions of given labels by models and votes, trained on `rows` alone."""
        n, n_classes = self.given.shape
        others = np.setdiff1d(np.arange(n), rows)
        total: dict[str, np.ndarray] = {}
        folds = make_folds(self.problem.labels[rows], _INNER, self.settings.seed)
        # Only votes if some fold trains on a single class.
        modelled = not any(of_one_class(self.problem.labels[rows[train]]) for train, _ in folds)
        for number, (train, held_out) in enumerate(folds):
            light = light_candidates(self.problem, self.settings) if modelled else []
            voters, queries = rows[train], np.concatenate([rows[held_out], others])
            inside = np.isin(found.positions, voters)
            predictions = {
                f"votes {i}": _vote(found, found.weights[i] * inside, self.given)[queries]
                for i in _POOLED
            }
            for candidate in light:
                self.progress.stage(f"label noise: {candidate.name}, {number + 1} of {len(folds)}")
                encoder, encoded = self.problem.table
                view = getattr(encoder, candidate.view)(encoded)
                given = self.problem.labels, self.problem.weight
                with silent_candidates(light):
                    list(candidate.fit_folds(view, *given, [(voters, queries)]))
                predictions[candidate.name] = log_softmax(
                    candidate.log_proba(view[queries], 0, n_classes), axis=1
                )
            for name, prediction in predictions.items():
                part = total.setdefault(name, np.zeros((n, n_classes)))
                part[rows[held_out]] = prediction[: len(held_out)]
                part[others] += prediction[len(held_out) :] / len(folds)
        return {name: log_softmax(part, axis=1) for name, part in total.items()} | self.networks


def light_candidates(problem: Problem, settings: FitSettings) -> list[Candidate]:
    """Light classifiers, or the user's classifier, without early stopping on held-out rows."""
    if settings.base is None or problem.encoder.soft_targets:
        return []
    if not isinstance(settings.base, str):
        return [given_candidate(settings.base)]
    light = auto_candidates(
        problem.table[0],
        len(problem.labels),
        problem.n_classes,
        light=True,
        seed=settings.seed,
        n_jobs=settings.n_jobs,
    )
    return [replace(candidate, stops_on_held_out=False, folds=[]) for candidate in light]


def of_one_class(labels: np.ndarray) -> bool:
    """Whether all labels are of one class."""
    return bool((labels == labels[0]).all())


def _corrected(matrix: np.ndarray | None) -> LabelModel:
    return AS_GIVEN if matrix is None else ForwardCorrection(matrix=torch.from_numpy(matrix))


def _vote(found: Found, weights: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logarithm of each class's share of the neighbor weights, (n, C)."""
    votes = np.zeros((len(weights), labels.shape[1]))
    for rank in range(weights.shape[1]):
        votes += weights[:, rank, None] * labels[found.positions[:, rank]]
    total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    return np.log((1 - _EVEN) * votes / total + _EVEN / labels.shape[1])
