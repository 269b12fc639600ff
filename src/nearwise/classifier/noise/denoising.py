"""Round one under label noise: what speaks for each row's true label, and the transition."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor

from nearwise.classifier.fit.base import Candidate, Target, auto_candidates, given_candidate
from nearwise.classifier.fit.problem import FitSettings, Problem, make_folds
from nearwise.classifier.fit.progress import Progress
from nearwise.classifier.inputs.table import TableEncoder
from nearwise.classifier.model.gates import (
    clearly_lower,
    given_losses,
    pooled,
    with_true_opinions,
)
from nearwise.classifier.model.state import as_float
from nearwise.classifier.noise.noise_evidence import SIGNAL, doubt_losses, signal_of, weigh
from nearwise.classifier.noise.transition import (
    NOISE_FLOOR,
    Transition,
    estimate_transition,
    known_transition,
    taken_in_part,
    towards_none,
    with_interval,
)
from nearwise.functional import (
    Neighbors,
    posterior_log_proba,
    topk_neighbors,
)

_INNER = 3  # folds inside the rows that a member may learn from
_SHARPNESS = (1.0, 2.0, 4.0, 8.0)  # of votes, in inverse typical distances
_EVEN = 0.02  # share of the uniform distribution mixed into votes
_CLEANINGS = 2  # rounds of votes on posterior labels before models are fitted to them
_GIVEN, _POSTERIOR = "votes of given labels", "votes of posterior labels"
_TURNS = 3  # times that powers and transition are found in turn


@dataclass(frozen=True)
class Noise:
    """What round one found.

    Attributes
    ----------
    transition : Transition
        For heads and calibration.
    transitions : float32 Tensor of shape (n_members, C, C) or None
        As each member knows it, from labels outside its fold. None: labels are taken as given.
    evidence : float32 Tensor of shape (n_members, n, C) or None
        Log-probabilities of the rows' true labels, made for a member without any given label of
        its fold and without the row's own.
    signal : float
        Standard errors by which predictions tell given labels from labels drawn at random.
    """

    transition: Transition
    transitions: Tensor | None
    evidence: Tensor | None
    signal: float

    def posterior(self, member: int, labels: np.ndarray) -> np.ndarray:
        """Probabilities of the true labels once the given ones are known too; (n, C)."""
        assert self.evidence is not None and self.transitions is not None
        evidence = self.evidence[member].double().numpy()
        return posterior(evidence, self.transitions[member].double().numpy(), labels)


class Verdict(NamedTuple):
    """Pooled opinions on the true labels of all rows.

    Attributes
    ----------
    log_proba : array of shape (n, C)
        Each row's made without its own given label.
    matrix : array of shape (C, C)
        The transition they go with.
    nll : float
        Of the given labels, in nats.
    power : float
        Of the first part in the pool.
    losses : array of shape (n_rows,)
        Of the given labels of the rows that lent theirs, in nats.
    """

    log_proba: np.ndarray
    matrix: np.ndarray
    nll: float
    power: float
    losses: np.ndarray


class Found(NamedTuple):
    """Neighbors of all rows among some, and their weights at every sharpness."""

    positions: np.ndarray
    weights: list[np.ndarray]


class Denoiser:
    """Finds what speaks for true labels, from models and votes that did not see the given ones.

    Parameters
    ----------
    problem : Problem
    settings : FitSettings
    keys : Tensor of shape (n, width)
        In a space that is blind to labels.
    progress : Progress
    known : array of shape (C, C), optional
        The transition, where the user gave it.

    Attributes
    ----------
    share : float in (0, 1]
        Of every estimated transition that is taken.
    """

    def __init__(
        self,
        problem: Problem,
        settings: FitSettings,
        keys: Tensor,
        progress: Progress,
        known: np.ndarray | None,
    ) -> None:
        self.problem, self.settings, self.keys = problem, settings, keys
        self.progress, self.known = progress, known
        self.given = np.eye(problem.n_classes)[problem.labels]
        self.share = 1.0

    def judge(self, rows: np.ndarray, *, cleaned: bool) -> Verdict:
        """Pool cross-fitted opinions on all rows, by the given labels of `rows` alone.

        Models are fitted to given labels, or to those that votes make most probable (`cleaned`).
        """
        found = self._seek(rows)
        votes = [_vote(found, weights, self.given) for weights in found.weights]
        firsts = [self._pool({"vote": vote}, {}, rows, None) for vote in votes]
        best = min(range(len(firsts)), key=lambda i: firsts[i].nll)
        of_given, of_true = self._cross_fit(rows, found, best, firsts[best], cleaned)
        plain = self._pool(of_given | of_true, {}, rows, firsts[best].matrix)
        of_both = self._pool(of_true, of_given, rows, plain.matrix)
        return of_both if clearly_lower(of_both.losses, plain.losses) else plain

    def _seek(self, rows: np.ndarray) -> Found:
        # Two thirds of those found are voters where a third is held out inside.
        k = min(self.settings.n_neighbors * 3 // 2, len(rows) - 1)
        found: Neighbors = topk_neighbors(
            self.keys,
            self.keys[rows],
            k,
            metric=self.settings.metric,
            query_ids=torch.arange(len(self.keys)),
            key_ids=torch.from_numpy(rows),
            memory_budget=self.settings.memory_budget,
        )
        unit = float(found.distances.abs().median()) or 1.0
        weights = [
            torch.softmax(-sharpness * found.distances / unit, dim=1).numpy()
            for sharpness in _SHARPNESS
        ]
        return Found(rows[found.indices.numpy()], weights)

    def _pool(
        self,
        parts: dict[str, np.ndarray],
        of_given: dict[str, np.ndarray],
        rows: np.ndarray,
        start: np.ndarray | None,
    ) -> Verdict:
        """Find the powers of opinions and the transition in turn.

        Those of `of_given` join together with what they say of true labels by the transition.
        """
        matrix = start if self.known is None else self.known
        labels = self.problem.labels[rows]
        weight = None if self.problem.weight is None else self.problem.weight[rows]
        for _ in range(_TURNS if self.known is None else 1):
            through = None if matrix is None else torch.from_numpy(matrix)
            every = parts
            if of_given and through is not None:
                every = parts | with_true_opinions(of_given, through)
            judged = {name: part[rows] for name, part in every.items()}
            pool = pooled(judged, labels, weight, through)._replace(parts=every)
            if self.known is None:
                matrix = estimate_transition(np.exp(pool.log_proba[rows]), labels, weight=weight)
                matrix = towards_none(matrix, self.share)
        assert matrix is not None  # known or estimated
        log_proba = pool.log_proba
        losses = given_losses(log_proba[rows], torch.from_numpy(matrix), labels)
        return Verdict(log_proba, matrix, pool.nll, next(iter(pool.powers.values())), losses)

    def _cross_fit(
        self, rows: np.ndarray, found: Found, best: int, first: Verdict, cleaned: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Opinions on given and on true labels, of models and votes.

        Each leaves a part of `rows` out, and all others.
        """
        n, n_classes = self.given.shape
        others = np.setdiff1d(np.arange(n), rows)
        total: dict[str, np.ndarray] = {}
        folds = make_folds(self.problem.labels[rows], _INNER, self.settings.seed)
        # Votes alone speak where a class is too rare for every fold.
        modelled = not any(of_one_class(self.problem.labels[rows[train]]) for train, _ in folds)
        for number, (train, held_out) in enumerate(folds):
            voters, queries = rows[train], np.concatenate([rows[held_out], others])
            inside = np.isin(found.positions, voters)
            kept = [weights * inside for weights in found.weights]
            labels = self._clean(found, kept[best], voters, first)
            opinions = {
                f"{kind} {i}": _vote(found, kept[i], carried)[queries]
                for kind, carried in ((_GIVEN, self.given), (_POSTERIOR, labels))
                for i in (1, 3)
            }
            is_cleaned = cleaned and not of_one_class(labels[voters].argmax(axis=1))
            own = self._target(labels if is_cleaned else self.given, voters)
            for candidate in light_candidates(self.problem, self.settings) if modelled else ():
                self.progress.stage(f"label noise: {candidate.name}, {number + 1} of {len(folds)}")
                candidate.fit_fold(*self.problem.table, *own, (voters, queries))
                table, encoded = self.problem.table
                opinions[candidate.name] = log_softmax(
                    candidate.log_proba(table, encoded.take(queries), 0, n_classes), axis=1
                )
            for name, opinion in opinions.items():
                part = total.setdefault(name, np.zeros((n, n_classes)))
                part[rows[held_out]] = opinion[: len(held_out)]
                part[others] += opinion[len(held_out) :] / len(folds)
        normalised = {name: log_softmax(part, axis=1) for name, part in total.items()}
        of_true = {
            name: part
            for name, part in normalised.items()
            if name.startswith(_POSTERIOR) or (cleaned and not name.startswith(_GIVEN))
        }
        of_given = {name: part for name, part in normalised.items() if name not in of_true}
        return of_given, of_true

    def _clean(
        self, found: Found, weights: np.ndarray, voters: np.ndarray, first: Verdict
    ) -> np.ndarray:
        """Posterior labels of the voters, from votes among themselves; zeros elsewhere."""
        labels = self.given
        power = first.power
        for _ in range(_CLEANINGS):
            vote = _vote(found, weights, labels)[voters]
            labels = np.zeros_like(self.given)
            labels[voters] = posterior(
                log_softmax(power * vote, axis=1), first.matrix, self.problem.labels[voters]
            )
        return labels

    def _target(self, labels: np.ndarray, rows: np.ndarray) -> Target:
        weight = np.zeros(len(labels))
        weight[rows] = labels[rows].max(axis=1)
        if self.problem.weight is not None:
            weight = weight * self.problem.weight
        plain = self.problem.weight is None and bool((weight[rows] == 1).all())
        return labels.argmax(axis=1), None if plain else weight


def find_noise(
    problem: Problem,
    settings: FitSettings,
    keys: Tensor,
    progress: Progress,
    choice: dict[str, Any],
) -> Noise | None:
    """Run round one; None where labels are taken as they are.

    Parameters
    ----------
    problem : Problem
        Its folds say whose given labels a member must not see. Where rows are held out once, all
        members share what the rows for the memory say.
    settings : FitSettings
    keys : Tensor of shape (n, width)
    progress : Progress
    choice : dict
        Gets what was found, as "label_noise".
    """
    wanted = settings.label_noise
    if wanted is None:
        return None
    progress.stage("label noise")
    known = None if isinstance(wanted, str) else wanted
    denoiser = Denoiser(problem, settings, keys, progress, known)
    shared = settings.validation_fraction is not None
    rows = problem.folds[0][0] if shared else np.arange(len(problem.labels))
    plain = denoiser.judge(rows, cleaned=False)
    transition = _transition(plain, problem, rows, settings, denoiser)
    signal = _signal(plain, problem, rows)
    note = choice["label_noise"] = {
        "rate": transition.rate,
        "interval": list(transition.interval),
        "source": transition.source,
        "signal": signal,
    }
    if known is None and signal >= SIGNAL and transition.interval[0] <= NOISE_FLOOR:
        note["decision"] = f"labels are taken as they are: the rate may be {NOISE_FLOOR} or less"
        return Noise(transition, None, None, signal)
    if known is None:
        support = weigh(transition, signal, _evidence(plain, problem, rows))
        note |= {"evidence": support.evidence, "taken": support.share}
        if support.share * transition.rate <= NOISE_FLOOR:
            transition = taken_in_part(transition, 0.0)
            note |= {"rate": 0.0, "interval": list(transition.interval), "taken": 0.0}
            _decide(note, f"labels are taken as they are: {support.reason}")
            return Noise(transition, None, None, signal)
        if support.share < 1:
            _decide(note, f"{support.share:.0%} of the estimated rate is taken: {support.reason}")
            denoiser.share = support.share
            plain = denoiser.judge(rows, cleaned=False)
    cleaned = denoiser.judge(rows, cleaned=True)
    note["nll"] = {"given": plain.nll, "posterior": cleaned.nll}
    better = cleaned if clearly_lower(cleaned.losses, plain.losses) else plain
    note["fitted_to"] = "posterior" if better is cleaned else "given"
    chosen = better is cleaned
    folds = [] if shared else problem.folds
    members = [denoiser.judge(train, cleaned=chosen) for train, _ in folds] or [better]
    transition = _transition(better, problem, rows, settings, denoiser)
    note |= {"rate": transition.rate, "interval": list(transition.interval)}
    return Noise(
        transition,
        as_float(np.stack([one.matrix for one in members])),
        as_float(np.stack([one.log_proba for one in members])),
        signal,
    )


def _decide(note: dict[str, Any], decision: str) -> None:
    """Say that an estimate is not taken, or not whole."""
    note["decision"] = decision
    warnings.warn(
        f'label_noise="auto": {decision}. If you know the share of wrong labels, give it; '
        "audited_transition counts it on checked rows.",
        UserWarning,
        stacklevel=2,
    )


def _signal(verdict: Verdict, problem: Problem, rows: np.ndarray) -> float:
    weight = None if problem.weight is None else problem.weight[rows]
    return signal_of(np.exp(verdict.log_proba[rows]), problem.labels[rows], weight)


def _evidence(verdict: Verdict, problem: Problem, rows: np.ndarray) -> float:
    """Log-likelihood of the given labels with wrong ones, less that without; in nats."""
    weight = None if problem.weight is None else problem.weight[rows]
    doubted = doubt_losses(verdict.log_proba[rows], problem.labels[rows], weight)
    gains = doubted - verdict.losses
    return float((gains if weight is None else gains * weight).sum())


def _transition(
    verdict: Verdict,
    problem: Problem,
    rows: np.ndarray,
    settings: FitSettings,
    denoiser: Denoiser,
) -> Transition:
    if denoiser.known is not None:
        return known_transition(denoiser.known, problem.labels)
    weight = None if problem.weight is None else problem.weight[rows]
    proba = np.exp(verdict.log_proba[rows])
    found = with_interval(proba, problem.labels[rows], settings.seed, weight=weight)
    return taken_in_part(found, denoiser.share)


def of_one_class(labels: np.ndarray) -> bool:
    """Whether there is nothing that a classifier could tell apart."""
    return bool((labels == labels[0]).all())


def posterior(log_proba: np.ndarray, matrix: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Probabilities of true labels once the given ones are known, (n, C)."""
    found = posterior_log_proba(
        torch.from_numpy(log_proba), torch.from_numpy(matrix), torch.from_numpy(labels)
    )
    proba: np.ndarray = found.exp().numpy()
    return proba


def light_candidates(problem: Problem, settings: FitSettings) -> list[Candidate]:
    """Give light classifiers, or the user's own; none stops on rows that it is asked about."""
    if settings.base is None or not isinstance(problem.encoder, TableEncoder):
        return []
    if not isinstance(settings.base, str):
        return [given_candidate(settings.base)]
    light = auto_candidates(
        problem.table[0],
        len(problem.labels),
        problem.n_classes,
        fast=True,
        seed=settings.seed,
        n_jobs=settings.n_jobs,
    )
    return [replace(candidate, stops_on_held_out=False, folds=[]) for candidate in light]


def _vote(found: Found, weights: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logarithm of the share of the weights that each class gets, (n, C)."""
    votes = np.zeros((len(weights), labels.shape[1]))
    for column in range(weights.shape[1]):
        votes += weights[:, column, None] * labels[found.positions[:, column]]
    total = np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    return np.log((1 - _EVEN) * votes / total + _EVEN / labels.shape[1])
