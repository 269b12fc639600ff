"""How rows are seen when all members share one set of networks: keys of every space, and a base."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.classifier.fit.embedding import Depths, Embedding
from nearwise.classifier.fit.feature_space import FeatureSpace
from nearwise.classifier.inputs.images import EncodedImages, ImageEncoder
from nearwise.classifier.inputs.table import Encoded, TableEncoder


class Seen(NamedTuple):
    """What is known of some rows.

    Attributes
    ----------
    keys : dict of str to Tensor of shape (n, width)
        Keys of every space; "features" is among them.
    base_log_proba : Tensor of shape (n, C)
        Normalised log-probabilities of the networks' heads, or of the class shares.
    """

    keys: dict[str, Tensor]
    base_log_proba: Tensor

    def cpu(self) -> "Seen":
        """Bring everything to the CPU."""
        keys = {name: key.cpu() for name, key in self.keys.items()}
        return Seen(keys, self.base_log_proba.cpu())


class Sight(Protocol):
    """Turns encoded rows into keys; fitted on the memory's rows, then fixed."""

    use_head: bool

    @property
    def embedding(self) -> Embedding | None:
        """Networks that all members share."""
        ...

    @property
    def has_base(self) -> bool:
        """Whether network heads take part; without, the class shares stand in for them."""
        ...

    def __call__(self, rows: Any) -> Seen:
        """See rows, encoded by the encoder this sight was fitted with."""
        ...


@dataclass
class TableSight:
    """The label-free feature space of a table or of ready embeddings, and networks over it.

    Attributes
    ----------
    encoder : TableEncoder
    features : FeatureSpace
    embedding : Embedding or None
        Networks that all members share. Their keys, side by side, are the space "trained"; the
        mean of their heads' log-probabilities is the base.
    prior : Tensor of shape (C,)
        Class shares.
    use_head : bool
        Whether the networks' heads may take part.
    """

    encoder: TableEncoder
    features: FeatureSpace
    embedding: Embedding | None
    prior: Tensor
    use_head: bool = True

    @property
    def has_base(self) -> bool:
        """Whether network heads take part."""
        return self.use_head and self.embedding is not None and self.embedding.has_head

    def __call__(self, rows: Encoded) -> Seen:
        """See rows: the spaces "features" and, with networks, "trained"."""
        keys = {"features": self.features(self.encoder, rows)}
        own: list[Tensor] = []
        if self.embedding is not None:
            members = range(len(self.embedding.networks))
            own = [self.embedding.keys(member, self.encoder, rows) for member in members]
            keys["trained"] = side_by_side(own)
        return Seen(keys, _base_log_proba(self, rows, own))


@dataclass
class StageSpace:
    """A label-free map of the features at one depth of a backbone, fitted on the memory's rows.

    Attributes
    ----------
    encoder : TableEncoder
        Means and deviations of the features.
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
        """Do what a call does, in torch, on the device of the features."""
        # Apple's GPUs have no float64.
        wide = torch.float32 if values.device.type == "mps" else torch.float64
        state = self.features.state
        center = np.asarray(self.encoder.mean) + state["mean"]
        moved = values.to(wide) - torch.from_numpy(center).to(values.device, wide)
        keys = moved @ torch.from_numpy(state["rotation"]).to(values.device, wide)
        return F.normalize(keys, dim=1, eps=1e-12).float()


@dataclass
class ImageSight:
    """Networks over images: their keys, and the features at several depths of their backbones.

    Attributes
    ----------
    encoder : ImageEncoder
    embedding : Embedding
        Networks that all members share. Their keys, side by side, are the space "trained"; the
        mean of their heads' log-probabilities is the base.
    stages : list of dict of str to StageSpace
        For each network the depths that neighbors are sought at; the deepest is "features". The
        trained space is collapsed onto the head's prediction, earlier ones are not.
    prior : Tensor of shape (C,)
        Class shares.
    use_head : bool
        Whether the networks' heads take part.
    cache : Path, optional
        Folder that keeps what frozen backbones make of images.
    """

    encoder: ImageEncoder
    embedding: Embedding
    stages: list[dict[str, StageSpace]]
    prior: Tensor
    use_head: bool = True
    cache: Path | None = None

    @property
    def has_base(self) -> bool:
        """Whether network heads take part."""
        return self.use_head

    def __call__(self, rows: EncodedImages) -> Seen:
        """See images: the spaces of the depths, and "trained"."""
        members = range(len(self.embedding.networks))
        seen = [self.embedding.depths(each, self.encoder, rows, self.cache) for each in members]
        return self.from_depths(seen)

    def from_depths(self, seen: list[Depths]) -> Seen:
        """Bring what each network's one pass made of images into the spaces."""
        found = [{"features": list(one.stages.values())[-1]} | one.stages for one in seen]
        keys = {
            name: side_by_side(
                [spaces[name](each[name]) for spaces, each in zip(self.stages, found, strict=True)]
            )
            for name in self.stages[0]
        }
        keys["trained"] = side_by_side([one.keys for one in seen])
        if not self.has_base:
            prior = torch.log(self.prior.to(seen[0].keys.device))
            return Seen(keys, prior.expand(len(seen[0].keys), -1))
        return Seen(keys, _mean_log_proba([one.head_log_proba for one in seen]))


def _base_log_proba(sight: TableSight, rows: Any, keys: list[Tensor]) -> Tensor:
    """Mean log-probability of the networks' heads for rows with these keys, or the class shares."""
    if not sight.has_base or sight.embedding is None:
        return torch.log(sight.prior).expand(len(rows), -1)
    heads = [
        sight.embedding.head_log_proba(member, sight.encoder, rows, keys=key)
        for member, key in enumerate(keys)
    ]
    return _mean_log_proba(heads)


def _mean_log_proba(heads: list[Tensor]) -> Tensor:
    return torch.log_softmax(torch.stack(heads).mean(0), dim=1)


def side_by_side(keys: list[Tensor]) -> Tensor:
    """Join the keys (n, width) of several networks, each at unit length: all count alike."""
    joined = torch.cat([F.normalize(key, dim=1) for key in keys], dim=1)
    return joined / len(keys) ** 0.5


def average_views(views: list[Seen]) -> Seen:
    """Mean of several views of the same rows; keys of unit length are brought back to it."""
    if len(views) == 1:
        return views[0]
    keys = {}
    for name, first in views[0].keys.items():
        mean = torch.stack([view.keys[name] for view in views]).mean(0)
        length = first.norm(dim=1)
        keys[name] = F.normalize(mean, dim=1) if bool((length - 1).abs().max() < 1e-3) else mean
    base = torch.stack([view.base_log_proba for view in views]).mean(0)
    return Seen(keys, torch.log_softmax(base, dim=1))
