"""Label-free feature spaces in which neighbors are sought, and the choice among them."""

from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from nearwise.classifier.inputs.table import Encoded, TableEncoder
from nearwise.functional import DEFAULT_MEMORY_BUDGET, Metric, topk_neighbors

FeatureMap = Literal["standard", "quantile", "raw", "whitened"]
FEATURE_MAPS: tuple[FeatureMap, ...] = get_args(FeatureMap)
_N_QUANTILES = 256
_CLIP = 3.0
_CATEGORY_SCALE = 0.7  # two different categories lie one standard deviation apart
_CHOICE_QUERIES = 2000


class FeatureSpace:
    """A fixed map from encoded rows to keys, fitted on training rows without their labels.

    "standard": unit variance, clipped at 3. "quantile": normal scores, clipped at 3. "raw":
    centred, one scale for all columns. "whitened": principal components scaled by their standard
    deviation to the power -1/2, unit length. Categories are one-hot beside it.
    """

    def __init__(self, kind: FeatureMap) -> None:
        self.kind = kind
        self.state: dict[str, np.ndarray] = {}

    def fit(self, encoder: TableEncoder, rows: Encoded) -> "FeatureSpace":
        """Fit on training rows."""
        dense = encoder.dense(rows).astype(np.float64)
        if self.kind == "quantile":
            filled = self._filled(encoder, rows)
            grid = np.linspace(0, 1, min(_N_QUANTILES, len(filled)))
            self.state["quantiles"] = np.quantile(filled, grid, axis=0)
        if self.kind == "raw":
            scale = np.asarray(encoder.scale)
            self.state["scale"] = scale / np.sqrt((scale**2).mean()) if len(scale) else scale
        if self.kind == "whitened":
            raw = dense * self._width_scale(encoder, dense.shape[1])
            self.state["mean"] = raw.mean(axis=0)
            covariance = np.atleast_2d(np.cov(raw - self.state["mean"], rowvar=False))
            values, vectors = np.linalg.eigh(covariance)
            if values[-1] < 1e-30:  # all columns are constant: one component stays, and is zero
                values[-1] = 1.0
            keep = values > 1e-10 * values.max()
            self.state["rotation"] = vectors[:, keep] * values[keep] ** -0.25
        return self

    @staticmethod
    def _width_scale(encoder: TableEncoder, width: int) -> np.ndarray:
        # Undo the standardisation: the data's own variances decide, as principal components do.
        scale = np.ones(width)
        scale[: len(encoder.scale)] = np.asarray(encoder.scale)
        return scale

    @staticmethod
    def _filled(encoder: TableEncoder, rows: Encoded) -> np.ndarray:
        return np.where(np.isnan(rows.numbers), encoder.median, rows.numbers)

    def __call__(self, encoder: TableEncoder, rows: Encoded) -> Tensor:
        """Keys of rows, float32 (n, width)."""
        dense = encoder.dense(rows).astype(np.float64)
        n_numbers = len(encoder.scale)
        numbers, rest = dense[:, :n_numbers], dense[:, n_numbers:] * _CATEGORY_SCALE
        if self.kind == "whitened":
            raw = dense * self._width_scale(encoder, dense.shape[1])
            keys = (raw - self.state["mean"]) @ self.state["rotation"]
            keys /= np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-12)
            return torch.from_numpy(keys.astype(np.float32))
        if self.kind == "standard":
            numbers = np.clip(numbers, -_CLIP, _CLIP)
        elif self.kind == "quantile":
            numbers = self._normal_scores(self._filled(encoder, rows))
        else:
            numbers = numbers * self.state["scale"]
        keys = np.concatenate([numbers, rest], axis=1)
        return torch.from_numpy((keys / np.sqrt(max(keys.shape[1], 1))).astype(np.float32))

    def _normal_scores(self, values: np.ndarray) -> np.ndarray:
        quantiles = self.state["quantiles"]
        grid = np.linspace(0, 1, len(quantiles))
        scores = np.empty_like(values)
        for column in range(values.shape[1]):
            edges = quantiles[:, column]
            # The middle of a run of equal quantiles stands for the value that is repeated there.
            up = np.interp(values[:, column], edges, grid)
            down = 1 - np.interp(-values[:, column], -edges[::-1], grid)
            scores[:, column] = (up + down) / 2
        return np.clip(ndtri(np.clip(scores, 1e-9, 1 - 1e-9)), -_CLIP, _CLIP)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON part and arrays that `from_state` reads."""
        return {"kind": self.kind}, self.state

    @classmethod
    def from_state(cls, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> "FeatureSpace":
        """Rebuild a space from what `to_state` returned."""
        space = cls(meta["kind"])
        space.state = arrays
        return space


def choose_feature_space(
    encoder: TableEncoder,
    rows: Encoded,
    labels: np.ndarray,
    n_neighbors: int,
    *,
    metric: Metric,
    seed: int,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> tuple[FeatureSpace, dict[str, float]]:
    """Take the map with the lowest leave-one-out NLL of a distance-weighted vote.

    Beside it comes the NLL of each map, over at most 2,000 rows drawn by `seed`.
    """
    some = np.random.default_rng(seed).permutation(len(labels))[:_CHOICE_QUERIES]
    spaces: dict[str, FeatureSpace] = {}
    scores: dict[str, float] = {}
    for kind in FEATURE_MAPS:
        if kind != "standard" and not encoder.numeric:
            continue
        space = FeatureSpace(kind).fit(encoder, rows)
        keys = space(encoder, rows)
        found = topk_neighbors(
            keys[some],
            keys,
            n_neighbors,
            metric=metric,
            query_ids=torch.from_numpy(some),
            key_ids=torch.arange(len(keys)),
            memory_budget=memory_budget,
        )
        spaces[kind], scores[kind] = (
            space,
            _vote_nll(found.distances, labels[found.indices], labels[some]),
        )
    return spaces[min(scores, key=scores.__getitem__)], scores


def _vote_nll(distances: Tensor, voters: np.ndarray, truth: np.ndarray) -> float:
    """Lowest NLL, over a few temperatures, of the share that the true label gets."""
    right = torch.from_numpy(voters == truth[:, None]).to(torch.float32)
    unit = distances.mean().clamp_min(1e-12)
    nlls = []
    for sharpness in (1.0, 2.0, 4.0, 8.0, 16.0):
        share = (torch.softmax(-sharpness * distances / unit, dim=1) * right).sum(1)
        nlls.append(float(-torch.log(0.98 * share + 0.01).mean()))
    return min(nlls)
