"""Row models: from encoded rows to keys of every space and base log-probabilities.

Also the split of many rows into blocks, so that memory use does not grow with their number.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import ndtri
from torch import Tensor, nn

from nearwise.estimators.fit.base import Base
from nearwise.estimators.fit.embedding import HEAD, Depths, Embedding
from nearwise.estimators.inputs.images import EncodedImages, ImageEncoder
from nearwise.estimators.inputs.rows import AnyEncoder, AnyRows
from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.model.memory_views import OPINION, TEXT, TRAINED
from nearwise.functional.threads import own_threads

FeatureMap = Literal["standard", "quantile", "raw", "whitened"]
FEATURE_MAPS: tuple[FeatureMap, ...] = get_args(FeatureMap)
_AT_ONCE = 2**15  # rows per block
_MOST_FITTED = 2**17  # most rows that a map is fitted to
_N_QUANTILES = 256
_CLIP = 3.0
_CATEGORY_SCALE = 0.7  # two different categories lie one standard deviation apart
FOREST = "extra-trees"  # base candidate; a pretrained head compares its predictions
GAUSSIAN = "gaussian"  # base candidate for embeddings, instead of the forest
BLOCK = 16_384  # rows per block; a multiple of the heads' chunk size


class KeyedRows(NamedTuple):
    """Encoded rows as keys and base log-probabilities.

    Attributes
    ----------
    keys : dict of str to Tensor of shape (n, width)
        Keys of every space, always with "features". With a pretrained head also "opinion",
        log-probabilities (n, C) of the forest.
    base_log_proba : Tensor of shape (n, C), or None
        Normalized log-probabilities of the base; None without a base.
    """

    keys: dict[str, Tensor]
    base_log_proba: Tensor | None

    def take(self, rows: Tensor) -> "KeyedRows":
        """Select some of the rows."""
        return self._each(lambda part: part[rows])

    def cpu(self) -> "KeyedRows":
        """Copy with all tensors on the CPU."""
        return self._each(Tensor.cpu)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "KeyedRows":
        keys, base = {name: change(key) for name, key in self.keys.items()}, self.base_log_proba
        return KeyedRows(keys, None if base is None else change(base))


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
        """Fit on training rows; if there are many, on an evenly spaced subset."""
        rows = rows.take(slice(None, None, 1 + len(rows) // _MOST_FITTED))
        if self.kind == "quantile":
            filled = self._filled(encoder, rows)
            grid = np.linspace(0, 1, min(_N_QUANTILES, len(filled)))
            self.state["quantiles"] = np.quantile(filled, grid, axis=0)
        if self.kind == "raw":
            scale = np.asarray(encoder.scale)
            self.state["scale"] = scale / np.sqrt((scale**2).mean()) if len(scale) else scale
        if self.kind == "whitened":
            dense = encoder.dense(rows).astype(np.float64)
            raw = dense * self.width_scale(encoder, dense.shape[1])
            self.state["mean"] = raw.mean(axis=0)
            covariance = np.atleast_2d(np.cov(raw - self.state["mean"], rowvar=False))
            values, vectors = np.linalg.eigh(covariance)
            if values[-1] < 1e-30:  # all columns are constant: one component stays, and is zero
                values[-1] = 1.0
            keep = values > 1e-10 * values.max()
            self.state["rotation"] = vectors[:, keep] * values[keep] ** -0.25
        return self

    @staticmethod
    def width_scale(encoder: TableEncoder, width: int) -> np.ndarray:
        """Scales that undo the standardisation, as principal components need raw variances."""
        scale = np.ones(width)
        scale[: len(encoder.scale)] = np.asarray(encoder.scale)
        return scale

    @staticmethod
    def _filled(encoder: TableEncoder, rows: Encoded) -> np.ndarray:
        return np.where(np.isnan(rows.numbers), encoder.median, rows.numbers)

    def __call__(self, encoder: TableEncoder, rows: Encoded) -> Tensor:
        """Keys of rows, float32 (n, width)."""
        starts = range(0, max(len(rows), 1), _AT_ONCE)
        parts = [self._keys(encoder, rows.take(slice(a, a + _AT_ONCE))) for a in starts]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _keys(self, encoder: TableEncoder, rows: Encoded) -> Tensor:
        dense = encoder.dense(rows).astype(np.float64)
        n_numbers = len(encoder.scale)
        numbers, rest = dense[:, :n_numbers], dense[:, n_numbers:] * _CATEGORY_SCALE
        if self.kind == "whitened":
            raw = dense * self.width_scale(encoder, dense.shape[1])
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
            # A repeated value gets the middle of its run of equal quantiles.
            up = np.interp(values[:, column], edges, grid)
            down = 1 - np.interp(-values[:, column], -edges[::-1], grid)
            scores[:, column] = (up + down) / 2
        return np.clip(ndtri(np.clip(scores, 1e-9, 1 - 1e-9)), -_CLIP, _CLIP)

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON part and arrays of the space; `from_state` rebuilds it."""
        return {"kind": self.kind}, self.state

    @classmethod
    def from_state(cls, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> "FeatureSpace":
        """Rebuild a space from the result of `to_state`."""
        space = cls(meta["kind"])
        space.state = arrays
        return space


class RowModels:
    """Callable from encoded rows to keys of every space and predictions of the base.

    Attributes
    ----------
    embedding : Embedding or None
        Trained networks.
    judges_trained : bool
        Whether calibration also searches the space "trained". Image networks were not trained on
        the calibration rows; networks of a table are retrained on all rows.
    """

    embedding: Embedding | None
    judges_trained: ClassVar[bool] = False

    @property
    def networks(self) -> list[nn.Module]:
        """The networks of the embedding."""
        return [] if self.embedding is None else [*self.embedding.networks]

    @property
    def has_base(self) -> bool:
        """Whether there is a base. Without one, class shares or the mean target replace it."""
        raise NotImplementedError

    def __call__(self, rows: Any) -> Any:
        """Keys of encoded rows, and predictions of the base."""
        raise NotImplementedError

    def feature_keys(self, rows: Any) -> Tensor:
        """Keys of encoded rows in the space "features" alone."""
        keys: Tensor = self(rows).keys["features"]
        return keys


@dataclass
class ModelsOfTable(RowModels):
    """Common row models of a table, for classes and for numeric targets.

    Attributes
    ----------
    encoder : TableEncoder
    features : FeatureSpace
        The label-free key space; of texts only if there is no other column.
    base : Base or NumberBase or None
    texts : StageSpace or None
        The key space "text", of texts beside other columns.
    """

    encoder: TableEncoder
    features: FeatureSpace
    base: Any
    texts: "StageSpace | None" = field(default=None, kw_only=True)

    @property
    def has_base(self) -> bool:
        """Whether there is a base. Without one, class shares or the mean target replace it."""
        return self.base is not None

    def feature_keys(self, rows: Encoded) -> Tensor:
        """Keys of encoded rows in the space "features" alone."""
        return self.features(*self.encoder.without_texts(rows))

    def label_free_keys(self, rows: Encoded) -> dict[str, Tensor]:
        """Keys of encoded rows in the spaces that were made without labels."""
        keys = {"features": self.feature_keys(rows)}
        if self.texts is not None:
            keys[TEXT] = self.texts(torch.from_numpy(self.encoder.components(rows)))
        return keys


@dataclass
class TableModels(ModelsOfTable):
    """Row models of a classification table.

    Attributes
    ----------
    embedding : Embedding or None
        Networks with heads, whose mean log-probabilities are a part of the base. Or one network
        without a head, trained on all rows; its keys are the space "trained".
    shows_opinion : bool
        Whether there is the space "supervised": features and predictions of the forest.
    """

    base: Base | None
    embedding: Embedding | None
    shows_opinion: bool = False

    def __call__(self, rows: Encoded) -> KeyedRows:
        """Keys of encoded rows, and log-probabilities of the base."""
        keys = self.label_free_keys(rows)
        with_heads = self.embedding is not None and self.embedding.has_head
        if self.embedding is not None and not with_heads:
            keys[TRAINED] = self.embedding.keys(0, self.encoder, rows)
        if self.base is None:
            return KeyedRows(keys, None)
        parts = self.base.parts(self.encoder, rows)
        if self.embedding is not None and with_heads:
            parts[HEAD] = head_of_all(self.embedding, self.encoder, rows)
        if self.shows_opinion:
            keys[OPINION] = torch.log_softmax(torch.from_numpy(parts[FOREST]).float(), dim=1)
            keys["supervised"] = supervised_keys(keys["features"], keys[OPINION])
        return KeyedRows(keys, torch.from_numpy(self.base.pooled(parts)).float())


@dataclass
class StageSpace:
    """Label-free map of the features at one depth of a backbone.

    Attributes
    ----------
    encoder : TableEncoder
        Means and deviations of the features in the memory.
    features : FeatureSpace
        "whitened": keys of unit length.
    """

    encoder: TableEncoder
    features: FeatureSpace

    @classmethod
    def fit(cls, values: Tensor) -> "StageSpace":
        """Fit to features (n, width)."""
        encoder = TableEncoder()
        rows = encoder.fit(values.double().numpy())
        return cls(encoder, FeatureSpace("whitened").fit(encoder, rows))

    def __call__(self, values: Tensor) -> Tensor:
        """Keys (n, at most width) of features (n, width), on their device."""
        if values.device.type != "cpu":
            return self.on_device(values)
        return self.features(self.encoder, self.encoder.transform(values.double().numpy()))

    def on_device(self, values: Tensor) -> Tensor:
        """Keys as by a call, computed in torch on the device of the features."""
        # Apple's GPUs have no float64.
        wide = torch.float32 if values.device.type == "mps" else torch.float64
        state = self.features.state
        center = np.asarray(self.encoder.mean) + state["mean"]
        moved = values.to(wide) - torch.from_numpy(center).to(values.device, wide)
        keys = moved @ torch.from_numpy(state["rotation"]).to(values.device, wide)
        return F.normalize(keys, dim=1, eps=1e-12).float()


@dataclass
class ImageNetworks(RowModels):
    """Row models of images: network keys and features at several backbone depths.

    Attributes
    ----------
    encoder : ImageEncoder
    embedding : Embedding
        Image networks. Their concatenated keys are the space "trained"; the mean
        log-probability of their heads is the base.
    stages : list of dict of str to StageSpace
        Searched depths per network; the deepest is "features". The trained space collapses onto
        the head's prediction, the earlier depths do not.
    use_head : bool
        Whether the networks' heads are the base.
    cache : Path, optional
        Folder for cached outputs of frozen backbones.
    """

    encoder: ImageEncoder
    embedding: Embedding
    stages: list[dict[str, StageSpace]]
    use_head: bool = True
    cache: Path | None = None
    judges_trained: ClassVar[bool] = True

    @property
    def has_base(self) -> bool:
        """Whether the network heads are used as a base."""
        return self.use_head

    @own_threads()
    def __call__(self, rows: EncodedImages) -> KeyedRows:
        """Keys of images in the spaces of the depths and in "trained", and the base."""
        networks = range(len(self.embedding.networks))
        seen = [self.embedding.depths(each, self.encoder, rows, self.cache) for each in networks]
        return self.from_depths(seen)

    def from_depths(self, seen: list[Depths]) -> KeyedRows:
        """Keys and base log-probabilities from the forward pass of each network."""
        found = [{"features": list(one.stages.values())[-1]} | one.stages for one in seen]
        keys = {
            name: side_by_side(
                [spaces[name](each[name]) for spaces, each in zip(self.stages, found, strict=True)]
            )
            for name in self.stages[0]
        }
        keys[TRAINED] = side_by_side([one.keys for one in seen])
        if not self.has_base:
            return KeyedRows(keys, None)
        return KeyedRows(keys, mean_log_proba([one.head_log_proba for one in seen]))


def supervised_keys(features: Tensor, base_log_proba: Tensor) -> Tensor:
    """Features beside half the centred log-probabilities of the base, scaled by their width."""
    likeness = base_log_proba.to(features.device).clamp_min(-9.0)
    likeness = likeness - likeness.mean(dim=1, keepdim=True)
    return torch.cat([features, 0.5 * likeness / likeness.shape[1] ** 0.5], dim=1)


def beside_locations(features: Tensor, locations: Tensor, center: float, scale: float) -> Tensor:
    """Features beside the predictions (n,) of a base, in units of `scale` around `center`."""
    likeness = (locations - center) / scale
    return torch.cat([features, likeness[:, None].to(features)], dim=1)


def head_of_all(embedding: Embedding, encoder: AnyEncoder, rows: AnyRows) -> np.ndarray:
    """Geometric mean of the predictions of all network heads, as log-probabilities (n, C)."""
    each = range(len(embedding.networks))
    heads = [embedding.head_log_proba(network, encoder, rows) for network in each]
    of_all: np.ndarray = mean_log_proba(heads).double().numpy()
    return of_all


def mean_log_proba(parts: list[Tensor]) -> Tensor:
    """Geometric mean of distributions, as normalized log-probabilities (n, C)."""
    return torch.log_softmax(torch.stack(parts).mean(0), dim=1)


def side_by_side(keys: list[Tensor]) -> Tensor:
    """Concatenate the keys (n, width) of several networks, each scaled to unit length."""
    joined = torch.cat([F.normalize(key, dim=1) for key in keys], dim=1)
    return joined / len(keys) ** 0.5


def average_views(views: list[KeyedRows]) -> KeyedRows:
    """Mean over several views of the same rows; keys of unit length are normalised again."""
    if len(views) == 1:
        return views[0]
    keys = {}
    for name, first in views[0].keys.items():
        mean = torch.stack([view.keys[name] for view in views]).mean(0)
        length = first.norm(dim=1)
        keys[name] = F.normalize(mean, dim=1) if bool((length - 1).abs().max() < 1e-3) else mean
    bases = [view.base_log_proba for view in views if view.base_log_proba is not None]
    return KeyedRows(keys, mean_log_proba(bases) if bases else None)


def row_blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Split positions (n,) into blocks, in order; no block without rows."""
    return rows.split(BLOCK) if len(rows) else ()


def view_blocks(views: list[AnyRows]) -> Iterator[list[AnyRows]]:
    """Iterate over blocks of rows, in order, each in all views."""
    n_rows = len(views[0])
    if n_rows <= BLOCK:
        yield views
        return
    for block in row_blocks(torch.arange(n_rows)):
        yield [rows.take(block.numpy()) for rows in views]
