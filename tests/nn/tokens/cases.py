"""The token layers of the library in the settings that every check runs through."""

from dataclasses import dataclass, field
from typing import Any

import torch

from nearwise.nn import KNNAttention, Sampling

DIM, HEADS, N_TOKENS = 24, 3, 17


@dataclass(frozen=True)
class Case:
    """A layer in one setting.

    `equivariant`: permuting tokens permutes the output. `causal`: it takes ``is_causal=True``.
    `masked`: a mask reaches all it does. `drops`: it has weights that `attn_drop` can drop.
    `takes_grids`: tokens may come as a grid.
    """

    name: str
    layer: type
    options: dict[str, Any] = field(default_factory=dict)
    equivariant: bool = False
    causal: bool = True
    masked: bool = True
    drops: bool = True
    takes_grids: bool = False

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
]


def one_each(cases):
    """One setting of every class of layers."""
    return list({case.layer: case for case in cases}.values())


def tokens(batch=2, n_tokens=N_TOKENS, dim=DIM, seed=0, dtype=torch.float32):
    """Draw tokens (batch, N, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n_tokens, dim, generator=generator).to(dtype)
