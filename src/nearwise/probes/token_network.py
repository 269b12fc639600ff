"""Small networks that read frozen features: a transformer over tokens, an MLP over vectors."""

from typing import Literal

import torch
from torch import Tensor, nn

TokenPooling = Literal["mean", "attention"]
_DROPOUT = 0.1


class TokenTransformer(nn.Module):
    """A linear map, some transformer layers, pooling and a linear head.

    Parameters
    ----------
    token_dim, n_classes : int
    d_model, num_layers, num_heads : int
        `num_layers` of 0 leaves the pooling alone.
    num_tokens : int or None
        Tokens of an image, each of which gets a learned position; None learns no positions.
    pooling : {"mean", "attention"}
        "attention": one learned query attends over the tokens.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        token_dim: int,
        n_classes: int,
        *,
        d_model: int,
        num_layers: int,
        num_heads: int,
        num_tokens: int | None,
        pooling: TokenPooling,
    ) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(token_dim))
        self.register_buffer("scale", torch.ones(token_dim))
        self.embed = nn.Linear(token_dim, d_model)
        self.position: nn.Parameter | None = None
        if num_tokens is not None:
            self.position = nn.Parameter(torch.empty(num_tokens, d_model))
            nn.init.trunc_normal_(self.position, std=0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d_model,
                num_heads,
                dim_feedforward=2 * d_model,
                dropout=_DROPOUT,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            for _ in range(num_layers)
        )
        self.query: nn.Parameter | None = None
        if pooling == "attention":
            self.query = nn.Parameter(torch.empty(1, 1, d_model))
            nn.init.trunc_normal_(self.query, std=0.02)
            self.attend = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
            self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, n_classes) of tokens (B, L, token_dim)."""
        x = self.embed((tokens.float() - self.mean) / self.scale)
        if self.position is not None:
            x = x + self.position
        for layer in self.layers:
            x = layer(x)
        if self.query is None:
            pooled = x.mean(dim=1)
        else:
            x = self.norm(x)
            query = self.query.expand(len(x), -1, -1)
            pooled = self.attend(query, x, x, need_weights=False)[0][:, 0]
        logits: Tensor = self.head(pooled)
        return logits


class VectorMLP(nn.Module):
    """One hidden layer over standardised features.

    Parameters
    ----------
    width, n_classes, hidden : int
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int, n_classes: int, *, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Dropout(2 * _DROPOUT),
            nn.Linear(hidden, n_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, n_classes) of vectors (B, width)."""
        logits: Tensor = self.layers((x.float() - self.mean) / self.scale)
        return logits
