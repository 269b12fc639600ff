"""Explanations: the neighbors behind a prediction, and the prediction without each of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.model.log_linear_pool import Answer, Calibration, finish, pool
from nearwise.classifier.model.memory_views import FOLD
from nearwise.classifier.model.predictor import Group, Predictor
from nearwise.functional import paired_distances

CHUNK = 256  # rows that are explained at once
_MASKED = 2_048  # predictions without a neighbor that are made at once


class Parts(NamedTuple):
    """A prediction beside its two halves.

    Attributes
    ----------
    proba, base_proba, neighbor_proba : ndarray of shape (n, n_classes)
        Everything together; the base alone at its out-of-fold temperature (the class shares
        without a base); the neighbors alone, the null carrying the class shares.
    null_mass : ndarray of shape (n,)
        Share of the attention that went to no neighbor, in [0, 1].
    disagreement : ndarray of shape (n,)
        Mean total variation distance of the views from the merged prediction, in [0, 1]; 0 for
        one view.
    """

    proba: np.ndarray
    base_proba: np.ndarray
    neighbor_proba: np.ndarray
    null_mass: np.ndarray
    disagreement: np.ndarray


def make_parts(merged: Answer, views: list[Answer], calibration: Calibration) -> Parts:
    """Finish an answer and, where it is merged from several views, say how far they disagree."""
    apart = torch.zeros_like(merged.null_mass)
    if len(views) > 1:
        whole = merged.log_proba.exp()
        gaps = [(view.log_proba.exp() - whole).abs().sum(1) / 2 for view in views]
        apart = torch.stack(gaps).mean(0)
    return Parts(
        finish(merged.log_proba, calibration.whole),
        finish(merged.base_log_proba, calibration.base),
        finish(merged.neighbor_log_proba, calibration.neighbors),
        merged.null_mass.numpy().astype(np.float64),
        apart.numpy().astype(np.float64),
    )


@dataclass(frozen=True)
class Neighbor:
    """A remembered row that a prediction asked.

    Attributes
    ----------
    id : int
        Its id in the memory; rows of `fit` count from 0.
    label : Any
        As given.
    distance : float
        To the query, by the estimator's metric between keys of the feature map.
    weight : float
        Its share of the attention, in [0, 1], over all members and key spaces.
    proba_without : ndarray of shape (n_classes,)
        The prediction had this neighbor not been asked.
    row : dict
        The remembered row: column name to value.
    posterior_label : Any
        The class that the first member takes the row to be of; `label` unless wrong labels are
        modelled.
    """

    id: int
    label: Any
    distance: float
    weight: float
    proba_without: np.ndarray
    row: dict[str, Any]
    posterior_label: Any = None


@dataclass(frozen=True)
class Explanation:
    """Why a row got its prediction.

    Attributes
    ----------
    label : Any
        The predicted class.
    proba : ndarray of shape (n_classes,)
    base_proba : ndarray of shape (n_classes,)
        What the base alone says; the class shares without a base.
    neighbor_proba : ndarray of shape (n_classes,)
        What the neighbors alone say.
    null_mass : float
        Share of the attention that went to no neighbor, in [0, 1].
    neighbors : list of Neighbor
        Largest weight first.
    novelty_p_value : float or None
        Out-of-distribution p-value, as `novelty_p_value` gives it. This and the set are None unless
        `explain` was asked for trust.
    prediction_set : list or None
        Classes that hold the true one nine times in ten, as `predict_set` gives them.
    """

    label: Any
    proba: np.ndarray
    base_proba: np.ndarray
    neighbor_proba: np.ndarray
    null_mass: float
    neighbors: list[Neighbor]
    novelty_p_value: float | None = None
    prediction_set: list[Any] | None = None


@dataclass
class WeighedQuery:
    """Total weight of every neighbor of one query.

    Attributes
    ----------
    positions : int64 Tensor of shape (n_found,)
        Bank positions, largest weight first.
    weights : Tensor of shape (n_found,)
    """

    positions: Tensor
    weights: Tensor


def weigh(predictor: Predictor, views: Group) -> list[WeighedQuery]:
    """Add up each neighbor's weight over members and spaces, for every query."""
    positions, weights = [], []
    for member, view in views:
        with torch.no_grad():
            output = predictor.heads[member](view.spaces, view.base_log_proba)
        for found, weight in zip(view.found, output.weights, strict=True):
            positions.append(found.indices.cpu())
            weights.append(weight.cpu() / len(views))
    everyone, shares = torch.cat(positions, dim=1), torch.cat(weights, dim=1)
    result = []
    for row, share in zip(everyone, shares, strict=True):
        unique, inverse = torch.unique(row, return_inverse=True)
        total = torch.zeros(len(unique)).scatter_add_(0, inverse, share)
        order = torch.argsort(total, descending=True, stable=True)
        result.append(WeighedQuery(unique[order], total[order]))
    return result


def without_each(
    predictor: Predictor,
    groups: list[Group],
    shown: list[Tensor],
    n_classes: int,
    calibration: Calibration,
) -> list[np.ndarray]:
    """Predict every query with each of its neighbors in `shown` masked.

    Returns
    -------
    proba : list of ndarray of shape (n_shown, n_classes)
        One per query.
    """
    counts = [len(positions) for positions in shown]
    if not sum(counts):
        return [np.zeros((0, n_classes)) for _ in shown]
    queries = torch.repeat_interleave(torch.arange(len(shown)), torch.tensor(counts))
    found = []
    for query, gone in zip(queries.split(_MASKED), torch.cat(shown).split(_MASKED), strict=True):
        answers = [pool(_masked(predictor, group, query, gone, n_classes)) for group in groups]
        merged = calibration.corrected(predictor.merged(answers))
        found.append(finish(merged.log_proba, calibration.whole))
    return np.split(np.concatenate(found), np.cumsum(counts)[:-1])


def _masked(
    predictor: Predictor,
    group: Group,
    queries: Tensor,
    positions: Tensor,
    n_classes: int,
) -> list[Answer]:
    """Predict queries by every member, each with one neighbor masked."""
    answers = []
    for member, view in group:
        part = view.take(queries.to(view.base_log_proba.device))
        gone = positions.to(part.base_log_proba.device)[:, None]
        spaces = [
            seen._replace(
                log_weight=seen.log_weight.masked_fill(found.indices == gone, float("-inf"))
            )
            for seen, found in zip(part.spaces, part.found, strict=True)
        ]
        answers.append(predictor.answer(member, part._replace(spaces=spaces), n_classes))
    return answers


def feature_distances(predictor: Predictor, query: Tensor, positions: Tensor) -> Tensor:
    """Distances of one query key (D,) to remembered rows in the feature space."""
    keys = predictor.views.bank.keys["features"][positions]
    metric = predictor.views.specs[0].metric
    return paired_distances(query[None], keys[None], metric)[0]


class Reason(NamedTuple):
    """What stands behind one prediction.

    Attributes
    ----------
    positions : int64 Tensor of shape (n_shown,)
        Bank positions of the neighbors shown, largest weight first.
    weights : Tensor of shape (n_shown,)
    without : ndarray of shape (n_shown, n_classes)
        The prediction without each of them.
    distances : Tensor of shape (n_shown,)
    """

    positions: Tensor
    weights: Tensor
    without: np.ndarray
    distances: Tensor


def reasons(
    predictor: Predictor,
    features: Tensor,
    groups: list[Group],
    n_neighbors: int | None,
    n_classes: int,
    calibration: Calibration,
) -> list[Reason]:
    """Say what stands behind the predictions of rows that the members have seen.

    Parameters
    ----------
    predictor : Predictor
    features : Tensor of shape (n, width)
        Keys of the rows in the feature space.
    groups : list of list of (member, MemberView)
        One group per view, or that of their mean.
    n_neighbors : int or None
        Neighbors shown; None shows all.
    n_classes : int
    calibration : Calibration
    """
    weighed = weigh(predictor, [view for group in groups for view in group])
    shown = [one.positions[:n_neighbors] for one in weighed]
    gone = without_each(predictor, groups, shown, n_classes, calibration)
    return [
        Reason(
            positions,
            one.weights[:n_neighbors],
            without,
            feature_distances(predictor, query.cpu(), positions),
        )
        for one, query, positions, without in zip(weighed, features, shown, gone, strict=True)
    ]


def remembered_reasons(
    predictor: Predictor, n_neighbors: int | None, n_classes: int
) -> dict[int, Reason]:
    """Say what stands behind the predictions of the fitted rows, each without itself."""
    bank, calibration = predictor.views.bank, predictor.calibration()
    found: dict[int, Reason] = {}
    for member in range(predictor.n_members):
        mine = torch.nonzero(bank.columns[FOLD] == member)[:, 0]
        for group in mine.split(CHUNK) if len(mine) else ():  # all of a fold may be gone
            looks = [[(member, predictor.retrieve_remembered(member, group))]]
            keys = bank.keys["features"][group]
            behind = reasons(predictor, keys, looks, n_neighbors, n_classes, calibration)
            found |= dict(zip(group.tolist(), behind, strict=True))
    return found


def explained(
    predictor: Predictor,
    behind: dict[int, Reason],
    parts: Parts,
    classes: np.ndarray,
    remembered: Callable[[int], dict[str, Any]],
) -> list[Explanation]:
    """Put reasons and predictions of rows together, in the order of the rows.

    Parameters
    ----------
    predictor : Predictor
    behind : dict of int to Reason
        By the row's position in `parts`.
    parts : Parts
    classes : ndarray of shape (n_classes,)
    remembered : callable
        Gives the training row at a bank position.
    """
    bank, believed = predictor.views.bank, predictor.views.labels(0)
    shown = []
    for row, reason in sorted(behind.items()):
        neighbors = [
            Neighbor(
                int(bank.ids[position]),
                classes[int(bank.labels[position])],
                float(distance),
                float(weight),
                without_it,
                remembered(int(position)),
                classes[int(believed[position])],
            )
            for position, weight, without_it, distance in zip(*reason, strict=True)
        ]
        shown.append(
            Explanation(
                classes[parts.proba[row].argmax()],
                parts.proba[row],
                parts.base_proba[row],
                parts.neighbor_proba[row],
                float(parts.null_mass[row]),
                neighbors,
            )
        )
    return shown
