"""The study's model, an embedder and attention over neighbors or a classifier; its searches."""

import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.functional import topk_neighbors
from nearwise.nn import Embedder, ImageEmbedder
from nearwise.nn.embedders import mlp_trunk
from nearwise.training import TrainingRows
from nearwise.training.encoding import Precision, autocast, encode_in_pieces
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.nn import MultiHeadNeighborAttention

VOTE_EPS = 1e-8  # added to every class before the vote is normalised again, as there
_CHUNK = 1000


class TabularMLP(Embedder):
    """The study's tabular embedder: n_numeric -> 256 -> 256 -> dim.

    BatchNorm and GELU follow each hidden layer, then dropout .2 and .1.
    """

    def __init__(self, n_numeric: int, dim: int = 128, normalize: bool = True) -> None:
        config = {"kind": "mlp", "n_numeric": n_numeric, "dim": dim, "normalize": normalize}
        super().__init__(dim, normalize, config)
        self.trunk = mlp_trunk(n_numeric, (256, 256), dim, (0.2, 0.1))


class PixelMLP(TabularMLP):
    """The tabular embedder on the pixels of an image, scaled to [-1, 1]."""

    takes_images = True

    def embed(self, x_num: Tensor, x_cat: Tensor | None = None) -> Tensor:
        """Flat pixels (B, c * h * w) of uint8 or float images (B, c, h, w) in 0..255."""
        return x_num.flatten(1).float() / 127.5 - 1

    def embed_mixed(
        self, x_num: Tensor, x_cat: Tensor | None, partner: Tensor, share: Tensor
    ) -> Tensor:
        """Flat pixels of MixUp rows; see `Embedder.embed_mixed`."""
        flat = self.embed(x_num)
        return share * flat + (1 - share) * flat[partner]


class StudyModel(nn.Module):
    """Embedder (keys of unit length) and attention; a classifier where the preset trains one."""

    def __init__(self, embedder: Embedder, n_classes: int, preset: StudyPreset) -> None:
        super().__init__()
        self.embedder = embedder
        self.n_classes = n_classes
        self.attention = MultiHeadNeighborAttention(
            embedder.dim,
            preset.num_heads,
            temperature=preset.temperature,
            temperature_bounds=preset.temperature_bounds,
        )
        if not preset.distance_bias:
            for parameter in self.attention.distance_bias.parameters():
                nn.init.zeros_(parameter).requires_grad_(False)
        self.attention.log_temperature.requires_grad_(preset.learn_temperature)
        self.neighbors_asked: nn.Linear | None = None
        if preset.learned_k:
            self.neighbors_asked = nn.Linear(embedder.dim, 1)
            nn.init.constant_(self.neighbors_asked.bias, float(preset.n_neighbors))
        trains_classifier = preset.objective == "classifier"
        self.classifier = nn.Linear(embedder.dim, n_classes) if trains_classifier else None

    def weigh(
        self, query: Tensor, neighbors: Tensor, distances: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Weights (B, K) of neighbors, the nearest first; arguments as of the attention.

        With a learned k the weight of those beyond the query's own number fades.
        """
        weights: Tensor = self.attention(query, neighbors, distances, mask)
        if self.neighbors_asked is None:
            return weights
        asked = F.softplus(self.neighbors_asked(query))
        before = torch.arange(weights.shape[1], device=weights.device)
        weights = weights * torch.sigmoid(asked - before - 0.5)
        return weights / weights.sum(dim=1, keepdim=True)

    def parameter_groups(self, preset: StudyPreset) -> list[dict[str, Any]]:
        """Parameters for AdamW: the embedder at its share of the rate, the rest at the whole."""
        learned = [(n, p) for n, p in self.named_parameters() if p.requires_grad]
        slow, fast = ([p for n, p in learned if n.startswith("embedder.") == of] for of in (1, 0))
        return [
            {"params": slow, "lr": preset.lr * preset.embedder_lr_ratio},
            {"params": fast, "lr": preset.lr},
        ]


def make_embedder(preset: StudyPreset, inputs: StudyInputs, *, normalize: bool = True) -> Embedder:
    """Build the untrained embedder that the preset names; ValueError if it cannot take the rows."""
    shape = inputs.x_train.shape[1:]
    if preset.backbone == "mlp":
        kind = PixelMLP if inputs.is_images else TabularMLP
        return kind(int(shape.numel()), preset.dim, normalize)
    if not inputs.is_images:
        raise ValueError(
            f"backbone={preset.backbone!r} takes images and {inputs.dataset.name} has columns. "
            'Use backbone="mlp".'
        )
    embedder: Embedder = ImageEmbedder(
        preset.backbone,
        preset.dim,
        image_size=(int(shape[1]), int(shape[2])),
        channels=int(shape[0]),
        projection_norm=preset.projection_norm,
        pretrained=preset.pretrained is True,
        normalize=normalize,
    )
    return embedder


def make_model(preset: StudyPreset, inputs: StudyInputs, seed: int) -> StudyModel:
    """Build the untrained model of a seed, without changing torch's global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = StudyModel(make_embedder(preset, inputs), inputs.n_classes, preset)
    model.embedder.fit_inputs(inputs.x_train)
    return model


def encode(embedder: Embedder, rows: Tensor, device: torch.device, precision: Precision) -> Tensor:
    """Keys (n, dim) float32 of all rows on `device`: eval mode, no gradient, no augmentation."""
    placed = TrainingRows(rows.to(device), torch.zeros(len(rows), dtype=torch.int64, device=device))
    was_training = embedder.training
    embedder.eval()
    try:
        with torch.no_grad(), autocast(device, precision):
            return encode_in_pieces(embedder, placed).float()
    finally:
        embedder.train(was_training)


def vote(weights: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Class probabilities (B, C) of weights and labels (B, K): the study's 1e-8, renormalised."""
    votes = weights.new_zeros(len(weights), n_classes).scatter_add(1, labels, weights)
    votes = votes + VOTE_EPS
    return votes / votes.sum(dim=1, keepdim=True)


def to_numpy(proba: Tensor) -> np.ndarray:
    """Convert probabilities to float64 and normalize each row to sum 1."""
    rows: np.ndarray = proba.double().cpu().numpy()
    return rows / rows.sum(axis=1, keepdims=True)


def unit(keys: Tensor) -> Tensor:
    """Normalize embeddings to unit L2 norm; in half precision it is only near 1."""
    return F.normalize(keys, dim=1)


class Memory(NamedTuple):
    """Embeddings (n, dim) and labels (n,) of the rows in memory."""

    keys: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Found:
    """Neighbors of queries from one search.

    Keys (n, dim) of the queries; squared L2 distances (n, k_max), ascending, and positions in the
    memory; wall time of encoding and searching, and of searching alone.
    """

    query: Tensor
    distances: Tensor
    indices: Tensor
    seconds: float = 0.0
    search_seconds: float = 0.0

    def nearest(self, k: int) -> "Found":
        """Return the nearest `k` of them (all, where there are fewer)."""
        return replace(self, distances=self.distances[:, :k], indices=self.indices[:, :k])


def training_neighbors(keys: Tensor, k: int, *, leave_self_out: bool) -> Found:
    """Find the `k` (or all) neighbors of training rows among themselves, by keys (n, dim).

    As in the study each finds itself first, unless it is left out, by its id.
    """
    ids = torch.arange(len(keys), device=keys.device) if leave_self_out else None
    k = min(k, len(keys) - leave_self_out)
    found = topk_neighbors(keys, keys, k, metric="sqeuclidean", query_ids=ids, key_ids=ids)
    return Found(keys, found.distances, found.indices)


def look_up(
    model: StudyModel, rows: Tensor, memory: Memory, k_max: int, precision: Precision
) -> Found:
    """Encode rows and find their nearest `k_max` (or all) remembered rows, timed."""
    start = time.perf_counter()
    query = encode(model.embedder, rows, memory.keys.device, precision)
    encoded = _now(query)
    k_max = min(k_max, len(memory.keys))
    found = topk_neighbors(query, memory.keys, k_max, metric="sqeuclidean")
    end = _now(query)
    return Found(query, found.distances, found.indices, end - start, end - encoded)


def _now(query: Tensor) -> float:
    """Synchronise the device of `query` and return the time."""
    if query.is_cuda:
        torch.cuda.synchronize(query.device)
    return time.perf_counter()


@torch.no_grad()
def attention_weights(
    model: StudyModel, found: Found, memory: Memory, mask: Tensor | None = None
) -> Tensor:
    """Learned weights (n, k) of found neighbors, in chunks; True in `mask` keeps a neighbor."""
    parts = []
    for start in range(0, len(found.query), _CHUNK):
        rows = slice(start, start + _CHUNK)
        kept = None if mask is None else mask[rows]
        neighbors = memory.keys[found.indices[rows]]
        parts.append(model.weigh(found.query[rows], neighbors, found.distances[rows], kept))
    return torch.cat(parts)
