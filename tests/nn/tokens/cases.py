"""The token layers, the lab's among them, in the settings that every check runs through."""

from dataclasses import dataclass, field
from typing import Any

import torch
from nearwise_lab.nn.branching import BranchingAttention, BranchingConv
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import MultiHeadAttention
from nearwise_lab.nn.kvt import KvtAttention
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
from nearwise_lab.nn.sparse import SparseAttention

from nearwise.nn import KNNAttention, Sampling

DIM, HEADS, N_TOKENS = 24, 3, 17


@dataclass(frozen=True)
class Case:
    """A layer in one setting.

    `equivariant`: permuting tokens permutes the output. `causal`: it takes ``is_causal=True``.
    `masked`: a mask reaches all it does. `prefix`: tokens before the grid.
    """

    name: str
    layer: type
    options: dict[str, Any] = field(default_factory=dict)
    equivariant: bool = False
    causal: bool = True
    masked: bool = True

    def __str__(self):
        return self.name

    def make(self, dim=DIM, heads=HEADS, **more):
        torch.manual_seed(1)
        layer = self.layer(dim, heads, **{**self.options, **more})
        with torch.no_grad():
            for parameter in layer.parameters():  # no ones and zeros that could hide a mistake
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return layer


K5 = {"n_neighbors": 5}
CASES = [
    Case("attention", MultiHeadAttention, {}, equivariant=True),
    Case("attention-norm", MultiHeadAttention, {"qk_norm": True, "qkv_bias": True}, True),
    Case("knn", KNNAttention, K5, equivariant=True),
    Case("knn-norm", KNNAttention, {**K5, "qk_norm": True, "qkv_bias": True}, equivariant=True),
    Case("knn-cosine", KNNAttention, {**K5, "metric": "cosine"}, equivariant=True),
    Case(
        "knn-euclidean", KNNAttention, {**K5, "metric": "euclidean", "include_self": "always"}, True
    ),
    Case(
        "knn-learned",
        KNNAttention,
        {**K5, "learned_temperature": True, "null_neighbor": True},
        equivariant=True,
    ),
    Case(
        "knn-euclidean-learned",
        KNNAttention,
        {**K5, "metric": "euclidean", "learned_temperature": True, "null_neighbor": True},
        equivariant=True,
    ),
    Case("knn-sampled", KNNAttention, {"n_neighbors": 3, "sampling": Sampling("line", 8)}),
    Case("kvt", KvtAttention, K5, equivariant=True),
    Case("convnn", ConvNNAttention, K5, equivariant=True),
    Case(
        "convnn-raw",
        ConvNNAttention,
        {**K5, "weighting": "raw", "metric": "cosine", "convolution": "standard"},
        equivariant=True,
    ),
    Case(
        "convnn-euclidean",
        ConvNNAttention,
        {**K5, "metric": "euclidean", "convolution": "depthwise-separable"},
        equivariant=True,
    ),
    Case(
        "convnn-random",
        ConvNNAttention,
        {"n_neighbors": 3, "sampling": "random", "num_samples": 8, "convolution": "standard"},
        equivariant=True,
        causal=False,
    ),
    Case(
        "convnn-spatial",
        ConvNNAttention,
        {
            "n_neighbors": 3,
            "sampling": "line",
            "num_samples": 8,
            "coordinates": "1d",
            "convolution": "standard",
            "weighting": "raw",
            "metric": "euclidean",
            "self_score": 2.0,
        },
        causal=False,
    ),
    Case(
        "convnn-grid",
        ConvNNAttention,
        {
            "n_neighbors": 3,
            "sampling": "grid",
            "num_samples": 3,
            "num_prefix_tokens": 1,
            "coordinates": "2d",
            "self_score": None,
        },
        causal=False,
    ),
    Case("local", LocalAttention, {"window_size": 4}),
    Case(
        "local-all",
        LocalAttention,
        {
            "window_size": 4,
            "qk_rmsnorm": True,
            "use_xpos": True,
            "prenorm": True,
            "gate_values": True,
            "exact_window": False,
        },
    ),
    Case("local-causal", LocalAttention, {"window_size": 4, "causal": True}),
    Case("natten-1d", NeighborhoodAttention1D, {"kernel_size": 5, "dilation": 2, "stride": 2}),
    Case("natten-1d-causal", NeighborhoodAttention1D, {"kernel_size": 5, "causal": True}),
    Case(
        "natten-2d",
        NeighborhoodAttention2D,
        {"kernel_size": 3, "num_prefix_tokens": 1},
        causal=False,
    ),
    Case("sparse-all", SparseAttention, {"mode": "all"}, equivariant=True),
    Case("sparse-local", SparseAttention, {"mode": "local", "context": 5}),
    Case("sparse-strided", SparseAttention, {"mode": "strided", "context": 4}),
    Case("branching-attention", BranchingAttention, K5, equivariant=True),
    Case("branching-attention-0", BranchingAttention, {**K5, "branch_ratio": 0}, True),
    Case("branching-attention-1", BranchingAttention, {**K5, "branch_ratio": 1}, True),
    Case("branching-conv", BranchingConv, {**K5, "branch_ratio": 0.3}, causal=False, masked=False),
    Case("branching-conv-0", BranchingConv, {"branch_ratio": 0}, causal=False, masked=False),
]


def tokens(batch=2, n_tokens=N_TOKENS, dim=DIM, seed=0, dtype=torch.float32):
    """Draw tokens (batch, N, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n_tokens, dim, generator=generator).to(dtype)
