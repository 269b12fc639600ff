"""Trainable neighbor classifier: embedder, learned scale, and optionally a linear head."""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from nearwise.nn.embedders import Embedder, TableEmbedder
from nearwise.nn.fused import DISTANCE_EPS
from nearwise.nn.vision import ImageEmbedder

Similarity = Literal["euclidean", "cosine"]

_EMBEDDERS: dict[str, type[Embedder]] = {
    "image": ImageEmbedder,
    "table": TableEmbedder,
}


class NetworkOutput(NamedTuple):
    """Keys (B, dim) and logits (B, n_classes) of the head, if any."""

    keys: Tensor
    logits: Tensor | None


class NeighborNetwork(nn.Module):
    """An embedder, the scale of its attention weights, and optionally a linear head.

    Weights over memory rows i are ``softmax(-s ||k_q - k_i||)``, the distance not squared and
    ``s`` learned as its logarithm, or for unit-length keys ``softmax(s k_q . k_i)`` with ``s``
    starting at 1 / 0.07.

    Parameters
    ----------
    embedder : Embedder
    n_classes : int
    head : bool, default=False
        Add a linear head on the key, for a cross-entropy term and parametric predictions.
    similarity : {"euclidean", "cosine"}, default="euclidean"
        "cosine" needs an embedder with `normalize=True`.
    learn_scale : bool, default=True
        Whether ``s`` is trained.

    References
    ----------
    Ye et al., "Revisiting Nearest Neighbor for Tabular Data: A Deep Tabular Baseline Two Decades
    Later", ICLR 2025 (un-squared distance); Wu et al., CVPR 2018 (cosine over 0.07).
    """

    def __init__(
        self,
        embedder: Embedder,
        n_classes: int,
        head: bool = False,
        *,
        similarity: Similarity = "euclidean",
        learn_scale: bool = True,
    ) -> None:
        super().__init__()
        if n_classes < 1:
            raise ValueError(f"n_classes must be at least 1, got {n_classes}.")
        if similarity not in ("euclidean", "cosine"):
            raise ValueError(f'similarity must be "euclidean" or "cosine", got {similarity!r}.')
        if similarity == "cosine" and not embedder.normalize:
            raise ValueError(
                'similarity="cosine" needs keys of unit length. Build the embedder with '
                "normalize=True."
            )
        self.embedder = embedder
        self.n_classes = n_classes
        self.similarity = similarity
        self.head = nn.Linear(embedder.dim, n_classes) if head else None
        start = 0.0 if similarity == "euclidean" else -math.log(0.07)
        self.log_scale = nn.Parameter(torch.tensor(start), requires_grad=learn_scale)

    @property
    def scale(self) -> Tensor:
        """The positive factor ``s`` on distances (or similarities), a scalar tensor."""
        return self.log_scale.exp()

    def forward(self, x_num: Tensor, x_cat: Tensor | None = None) -> NetworkOutput:
        """Return keys and head logits of rows `x_num` (B, F), `x_cat` (B, G)."""
        return self.output(self.embedder(x_num, x_cat))

    def output(self, keys: Tensor) -> NetworkOutput:
        """Return keys (B, dim) together with their head logits."""
        return NetworkOutput(keys, None if self.head is None else self.head(keys))


def euclidean(query: Tensor, keys: Tensor) -> Tensor:
    """L2 distance of all pairs by one matrix product, with a finite gradient at 0.

    Parameters
    ----------
    query : Tensor of shape (B, D)
    keys : Tensor of shape (N, D)

    Returns
    -------
    distances : Tensor of shape (B, N)
        1e-6 is added to the square: equal rows are 1e-3 apart.
    """
    # Centering the keys reduces cancellation between large squares.
    center = keys.detach().mean(dim=0)
    query, keys = query - center, keys - center
    ones = torch.ones_like
    query_square = query.square().sum(dim=1, keepdim=True)
    key_square = keys.square().sum(dim=1, keepdim=True)
    left = torch.cat([-2 * query, query_square, ones(query_square)], dim=1)
    right = torch.cat([keys, ones(key_square), key_square], dim=1)
    return torch.sqrt((left @ right.T).clamp_min(0.0) + DISTANCE_EPS)


def network_config(network: NeighborNetwork) -> dict[str, Any]:
    """Return a JSON-ready description of the architecture for `build_network`."""
    return {
        "embedder": dict(network.embedder.config),
        "n_classes": network.n_classes,
        "head": network.head is not None,
        "similarity": network.similarity,
        "learn_scale": network.log_scale.requires_grad,
    }


def build_network(config: dict[str, Any], *, seed: int | None = None) -> NeighborNetwork:
    """Build the network that `config` describes.

    Parameters
    ----------
    config : dict
        Result of `network_config`.
    seed : int, optional
        Seed of the initial weights; the global random state is then unchanged. Without a seed
        the weights are drawn from the global random state.

    Returns
    -------
    network : NeighborNetwork
        On the CPU, freshly initialised.
    """
    embedder_config = dict(config["embedder"])
    kind = embedder_config.pop("kind")
    if kind not in _EMBEDDERS:
        raise ValueError(f"Unknown embedder kind {kind!r}; known are {sorted(_EMBEDDERS)}.")
    rest = {name: value for name, value in config.items() if name != "embedder"}
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return NeighborNetwork(_EMBEDDERS[kind](**embedder_config), **rest)
