"""Networks for keys and predictions, each trained without its evaluation rows."""

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.inputs.images import EncodedImages, ImageEncoder
from nearwise.estimators.inputs.rows import AnyEncoder, AnyRows
from nearwise.estimators.inputs.table import LARGE, VERY_LARGE, TableEncoder
from nearwise.functional.threads import own_threads
from nearwise.names import did_you_mean
from nearwise.nn import ImageEmbedder, NeighborNetwork, TableEmbedder
from nearwise.nn.network import Similarity
from nearwise.training import (
    SelfCorrection,
    TrainConfig,
    TrainingResult,
    TrainingRows,
    cached_backbone,
    encode,
    encode_backbone,
    keys_of_features,
    predict_head,
    train_embedder,
)

TABLE_EMBEDDERS = ("auto", "identity", "table", "deep")
_MOST_EMBEDDED = 24  # most numeric columns for one embedding per column
HEAD = "embedder-head"


def make_network(
    kind: str,
    encoder: AnyEncoder,
    n_numeric: int,
    n_classes: int,
    seed: int,
    options: dict[str, Any] | None = None,
) -> NeighborNetwork:
    """Build an untrained network; for images `kind` names the backbone.

    "table" is a linear trunk with numeric embeddings; "deep" is an MLP with a linear head, for
    ready embeddings. Keys of "deep" are not normalised: with unit length the head's first
    predictions are far too uncertain, and most epochs would only scale them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind not in TABLE_EMBEDDERS:
            return _image_network(kind, cast(ImageEncoder, encoder), n_classes, options or {})
        encoder = cast(TableEncoder, encoder)
        embedded: Literal["plr-lite"] | None = (
            "plr-lite" if 0 < n_numeric <= _MOST_EMBEDDED else None
        )
        if kind == "table":
            embedder = TableEmbedder(n_numeric, encoder.cardinalities, embedded, dim=64)
            return NeighborNetwork(embedder, n_classes)
        embedder = TableEmbedder(
            n_numeric,
            encoder.cardinalities,
            embedded,
            trunk="mlp",
            hidden=(1024, 512),
            dim=128,
            dropout=0.3,
        )
        return NeighborNetwork(embedder, n_classes, head=True)


def _image_network(
    backbone: str, encoder: ImageEncoder, n_classes: int, options: dict[str, Any]
) -> NeighborNetwork:
    # Keys are not normalised: with unit length the head's first predictions are too uncertain.
    settings: dict[str, Any] = {"channels": encoder.channels, "normalize": False}
    if backbone.startswith(
        ("resnet", "fast-cnn")
    ):  # pretrained models have their own training size
        settings["image_size"] = (encoder.height, encoder.width)
    known = list(inspect.signature(ImageEmbedder).parameters)[1:]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known) or f" Known: {', '.join(known)}."
            raise ValueError(f"embedder_options: {name!r} is not known.{hint}")
    embedder = ImageEmbedder(backbone, **(settings | options))
    similarity: Similarity = "cosine" if embedder.normalize else "euclidean"
    return NeighborNetwork(embedder, n_classes, head=True, similarity=similarity)


def default_config(kind: str, n_rows: int) -> dict[str, Any]:
    """Training settings of a network kind for a table of this size."""
    large = n_rows > LARGE
    if kind == "table":
        config: dict[str, Any] = {
            "epochs": 30 if large else 40,
            "batch_size": 512 if large else 128,
            "lr": 0.01 if large else 0.003,
            "weight_decay": 1e-4,
            "n_candidates": 2048,
            "patience": 5 if large else 10,
        }
        if n_rows > VERY_LARGE:
            config["epochs"] = max(3, 14 * VERY_LARGE // n_rows)
    else:
        config = {
            "epochs": 10 if large else 40,
            "batch_size": 512 if large else 128,
            "lr": 2e-3,
            "weight_decay": 1e-2,
            "knn_weight": 0.0,
            "ce_weight": 1.0,
            "mixup_alpha": 0.4,
            "mixup_probability": 1.0,
            "patience": 5 if large else 8,
        }
    return config


class Depths(NamedTuple):
    """Outputs of one forward pass for n images, on the network's device.

    `keys` (n, dim), `stages` (n, width) per depth, `head_log_proba` (n, C).
    """

    keys: Tensor
    stages: dict[str, Tensor]
    head_log_proba: Tensor


class Embedding:
    """Ensemble of trained networks, its members."""

    def __init__(self, kind: str, networks: list[NeighborNetwork]) -> None:
        self.kind, self.networks = kind, networks

    @property
    def has_head(self) -> bool:
        """Whether the networks have a prediction head."""
        return self.networks[0].head is not None

    def keys(self, member: int, encoder: AnyEncoder, rows: AnyRows) -> Tensor:
        """Keys of rows in one member's space, float32 (n, dim), on the CPU."""
        return encode(self.networks[member], self._rows(member, encoder, rows)).cpu()

    def head_log_proba(
        self, member: int, encoder: AnyEncoder, rows: AnyRows, *, keys: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities (n, C) of one member's linear head, on the CPU; `keys` if known."""
        network = self.networks[member]
        if keys is None:
            return predict_head(network, self._rows(member, encoder, rows)).cpu()
        assert network.head is not None  # guaranteed by callers
        with torch.no_grad():
            logits = network.head(keys.to(next(network.parameters()).device))
        return torch.log_softmax(logits, dim=1).cpu()

    def depths(
        self, member: int, encoder: ImageEncoder, rows: EncodedImages, cache: Path | None = None
    ) -> Depths:
        """Run one member on images by a single forward pass, or read its outputs from `cache`.

        `cache` is a folder with outputs of frozen backbones.
        """
        network, images = self.networks[member], self._rows(member, encoder, rows)
        if cache is None:
            features = encode_backbone(network, images)
        else:
            features = cached_backbone(network, images, cache)
        keys = keys_of_features(network, features, images)
        return Depths(keys, features.stages, predict_head(network, images, keys=keys))

    def _rows(self, member: int, encoder: AnyEncoder, rows: AnyRows) -> TrainingRows:
        numbers, codes = encoder.network_inputs(cast(Any, rows))
        device = next(iter(self.networks[member].parameters())).device
        unused = torch.zeros(len(rows), dtype=torch.int64)
        return TrainingRows(numbers, unused, x_cat=codes).to(device)


def train_member(
    kind: str,
    encoder: AnyEncoder,
    rows: AnyRows,
    labels: np.ndarray,
    weight: np.ndarray | None,
    fold: tuple[np.ndarray, np.ndarray],
    n_classes: int,
    settings: dict[str, Any],
    *,
    seed: int,
    device: str,
    checkpoint: Path | None,
    progress: Callable[[dict[str, Any]], None] | None,
    second: AnyRows | None = None,
    options: dict[str, Any] | None = None,
    likelihood: Tensor | None = None,
    groups: np.ndarray | None = None,
) -> tuple[NeighborNetwork, TrainingResult]:
    """Train one member on a fold's training rows, with early stopping on its held-out rows.

    `second` is another view of the same rows, used half the time; `options` are further arguments
    of `ImageEmbedder`. With the `likelihood` (n, C) of the given labels, training labels are
    corrected during training. Rows of the same group in `groups` (n,) do not vote for each other.
    """
    inputs: Callable[[Any], tuple[Tensor, Tensor | None]] = encoder.network_inputs
    numbers, codes = inputs(rows)
    everything = TrainingRows(
        numbers,
        torch.from_numpy(labels),
        x_cat=codes,
        ids=None if groups is None else torch.from_numpy(groups),
        sample_weight=None if weight is None else torch.from_numpy(weight).float(),
        second_x_num=None if second is None else inputs(second)[0],
    )
    network = make_network(kind, encoder, numbers.shape[1], n_classes, seed, options)
    with own_threads() if len(rows) > LARGE else nullcontext():  # threads slow down small steps
        result = train_embedder(
            network,
            everything.take(torch.from_numpy(fold[0])),
            everything.take(torch.from_numpy(fold[1])),
            TrainConfig(**settings),
            seed=seed,
            device=device,
            checkpoint=checkpoint,
            progress=progress,
            correction=None if likelihood is None else SelfCorrection(likelihood[fold[0]]),
        )
    return network, result
