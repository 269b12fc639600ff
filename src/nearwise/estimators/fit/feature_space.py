"""Choice among label-free feature spaces by a leave-one-out loss."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.model.groups import group_numbers, n_of_others
from nearwise.estimators.model.row_models import FEATURE_MAPS, FeatureSpace
from nearwise.functional import Metric, topk_neighbors

Loss = Callable[[Tensor, np.ndarray, np.ndarray], float]  # distances, neighbor and own values
_SHARPNESS = (1.0, 2.0, 4.0, 8.0, 16.0)
_CHOICE_QUERIES, _CHOICE_ROWS = 2_000, 20_000


def choose_feature_space(
    encoder: TableEncoder,
    rows: Encoded,
    labels: np.ndarray,
    n_neighbors: int,
    *,
    metric: Metric,
    seed: int,
    groups: np.ndarray | None = None,
    loss: Loss | None = None,
) -> tuple[FeatureSpace, dict[str, float]]:
    """Choose the map with the lowest leave-one-out loss of a distance-weighted vote.

    Also returns the loss (by default NLL) of each map, over at most 2,000 rows drawn by `seed`,
    with neighbors among at most 20,000 rows. The chosen map is fitted to all rows. With `groups`
    (n,) neighbors come from other groups.
    """
    own = torch.arange(len(labels)) if groups is None else group_numbers(groups)
    drawn = np.random.default_rng(seed).permutation(len(labels))
    everything = rows
    if len(labels) > _CHOICE_ROWS:
        drawn = drawn[:_CHOICE_ROWS]
        rows, labels, own = rows.take(drawn), labels[drawn], own[drawn]
        drawn = np.arange(_CHOICE_ROWS)
    n_neighbors = min(n_neighbors, n_of_others(own))
    some = drawn[:_CHOICE_QUERIES]
    spaces: dict[str, FeatureSpace] = {}
    scores: dict[str, float] = {}
    for kind in FEATURE_MAPS:
        if kind != "standard" and not encoder.numeric:
            continue
        space = FeatureSpace(kind).fit(encoder, rows)
        keys = space(encoder, rows)
        found = topk_neighbors(
            keys[some],
            keys[drawn],  # shuffled: in the table's order ties could favor one class
            n_neighbors,
            metric=metric,
            query_ids=own[some],
            key_ids=own[drawn],
        )
        spaces[kind], scores[kind] = (
            space,
            (loss or vote_nll)(found.distances, labels[drawn[found.indices]], labels[some]),
        )
    best = min(scores, key=scores.__getitem__)
    if rows is not everything:
        spaces[best].fit(encoder, everything)
    return spaces[best], scores


def vote_nll(distances: Tensor, voters: np.ndarray, truth: np.ndarray) -> float:
    """Lowest NLL of the true label's vote share over a few temperatures."""
    right = torch.from_numpy(voters == truth[:, None]).to(torch.float32)
    unit = distances.mean().clamp_min(1e-12)
    nlls = []
    for sharpness in _SHARPNESS:
        share = (torch.softmax(-sharpness * distances / unit, dim=1) * right).sum(1)
        nlls.append(float(-torch.log(0.98 * share + 0.01).mean()))
    return min(nlls)


def mean_error(distances: Tensor, voters: np.ndarray, truth: np.ndarray) -> float:
    """Lowest mean absolute error of the neighbors' weighted mean over a few temperatures."""
    values, unit = torch.from_numpy(voters), distances.mean().clamp_min(1e-12)
    errors = []
    for sharpness in _SHARPNESS:
        share = torch.softmax(-sharpness * distances / unit, dim=1).double()
        errors.append(float(((share * values).sum(1) - torch.from_numpy(truth)).abs().mean()))
    return min(errors)
