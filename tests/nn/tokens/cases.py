"""The token layers of the library in the settings that every check runs through."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nearwise.nn import KNNAttention, KNNMultiheadAttention, Sampling

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


class SelfAttention(nn.Module):
    """The layer of torch's call as one of tokens, with masks in the polarity of token layers."""

    def __init__(self, dim, num_heads, n_neighbors=5, *, attn_drop=0.0, **options):
        super().__init__()
        self.layer = KNNMultiheadAttention(
            dim, num_heads, n_neighbors, dropout=attn_drop, batch_first=True, **options
        )
        if self.layer.in_proj_bias is not None:
            nn.init.normal_(self.layer.in_proj_bias)

    def forward(self, x, attn_mask=None, key_padding_mask=None, is_causal=False):
        if attn_mask is not None:
            attn_mask = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask
            attn_mask = attn_mask.flatten(0, 1) if attn_mask.ndim == 4 else attn_mask
        if is_causal and attn_mask is not None:  # which is_causal is only a hint about
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            forbids = True if attn_mask.dtype == torch.bool else -torch.inf
            attn_mask = attn_mask.masked_fill(future, forbids)
        masks = {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}
        return self.layer(x, x, x, is_causal=is_causal, **masks)[0]


TORCHS = Case("multihead", SelfAttention, equivariant=True)


def one_each(cases):
    """One setting of every class of layers."""
    return list({case.layer: case for case in cases}.values())


def tokens(batch=2, n_tokens=N_TOKENS, dim=DIM, seed=0, dtype=torch.float32):
    """Draw tokens (batch, N, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n_tokens, dim, generator=generator).to(dtype)
