"""The pieces of a cascaded Perceiver: attention, feed-forward, stages and decoder."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional.tokens import knn_attention


class Attention(nn.Module):
    """Pre-norm attention of tokens to a context, or among themselves.

    Parameters
    ----------
    dim : int
        Width of the tokens.
    num_heads, head_dim : int
    context_dim : int, optional
        Width of the context, which has a norm of its own; without it tokens attend to themselves.
    """

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, context_dim: int | None = None
    ) -> None:
        super().__init__()
        inner = num_heads * head_dim
        self.head_dim = head_dim
        self.norm = nn.LayerNorm(dim)
        self.context_norm = None if context_dim is None else nn.LayerNorm(context_dim)
        self.to_query = nn.Linear(dim, inner, bias=False)
        self.to_pair = nn.Linear(context_dim or dim, 2 * inner, bias=False)
        self.out = nn.Linear(inner, dim)

    @torch.no_grad()
    def sharpen(self, scores: float) -> None:
        """Draw the weights anew so that normed tokens give scores of this deviation.

        torch's own weights give 0.3: attention is nearly a mean, and a field then stays at the
        mean image for hundreds of steps before it learns where anything is.
        """
        key, value = self.to_pair.weight.chunk(2)
        for weight, variance in ((self.to_query.weight, scores), (key, scores), (value, 1.0)):
            nn.init.normal_(weight, std=(variance / weight.shape[1]) ** 0.5)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        num_neighbors: int | None = None,
    ) -> Tensor:
        """Attend.

        Returns `update`, Tensor of shape (B, N, dim).

        Parameters
        ----------
        x : Tensor of shape (B, N, dim), or (1, N, dim) for queries that all images share
            These are normed and projected once.
        context : Tensor of shape (B, M, context_dim), optional
        mask : bool Tensor broadcastable to (B, num_heads, N, M), optional
            True where a token may attend.
        num_neighbors : int, optional
            Attend to so many at most, by the library's k-NN attention.
        """
        x = self.norm(x)
        if self.context_norm is not None:
            assert context is not None
            context = self.context_norm(context)
        else:
            context = x
        query = self._heads(self.to_query(x))
        key, value = (self._heads(part) for part in self.to_pair(context).chunk(2, dim=-1))
        query = query.expand(len(key), -1, -1, -1)
        if num_neighbors is None:
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            found = knn_attention(query, key, value, num_neighbors, attn_mask=mask)
        update: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return update

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self.head_dim)).transpose(1, 2)


class FeedForward(nn.Module):
    """Pre-norm feed-forward of four times the width, gated by GELU.

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, 8 * dim)
        self.narrow = nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens (..., dim), each on its own."""
        values, gate = self.widen(self.norm(x)).chunk(2, dim=-1)
        update: Tensor = self.narrow(values * F.gelu(gate))
        return update


class ProcessLayer(nn.Module):
    """A transformer layer: tokens attend to each other, then each is thought over."""

    def __init__(self, dim: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.attend = Attention(dim, num_heads, head_dim)
        self.think = FeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens (B, N, dim)."""
        x = x + self.attend(x)
        return x + self.think(x)


class Stage(nn.Module):
    """One stage of the cascade: fixed tokens read the image, then the former stage is added.

    Parameters
    ----------
    table : Tensor of shape (N, dim)
        The tokens before they have read anything. Not learned.
    context_dim : int
        Width of the image's points.
    former_dim : int or None
        Width of the former stage's tokens; None in the first stage.
    cross_heads, self_heads, head_dim : int
    """

    table: Tensor

    def __init__(
        self,
        table: Tensor,
        context_dim: int,
        former_dim: int | None,
        *,
        cross_heads: int,
        self_heads: int,
        head_dim: int,
    ) -> None:
        super().__init__()
        dim = table.shape[1]
        self.register_buffer("table", table[None], persistent=False)
        self.read = Attention(dim, cross_heads, head_dim, context_dim)
        self.from_former = None if former_dim is None else nn.Linear(former_dim, dim)
        self.process = ProcessLayer(dim, self_heads, head_dim)

    def forward(self, points: Tensor, former: Tensor | None, mask: Tensor | None) -> Tensor:
        """Turn an image's points (B, M, context_dim) into tokens (B, N, dim)."""
        # the queries are the same for all images: the table goes in with a batch of one
        tokens = self.table + self.read(self.table, points, mask=mask)
        if self.from_former is not None:
            tokens = tokens + self.from_former(former)
        processed: Tensor = self.process(tokens)
        return processed


class Decoder(nn.Module):
    """Values of an image at any coordinates, read from its tokens.

    Parameters
    ----------
    query_dim : int
        Width of the features of a coordinate.
    token_dim, channels : int
    num_heads, head_dim : int
    """

    def __init__(
        self, query_dim: int, token_dim: int, channels: int, num_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.read = Attention(query_dim, num_heads, head_dim, token_dim)
        self.think = FeedForward(query_dim)
        self.to_pixel = nn.Linear(query_dim, channels)

    def features(
        self,
        queries: Tensor,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        num_neighbors: int | None = None,
    ) -> Tensor:
        """Return what the last layer reads the pixel from, (B, Q, query_dim).

        Parameters
        ----------
        queries : Tensor of shape (B, Q, query_dim) or (1, Q, query_dim)
        tokens : Tensor of shape (B, N, token_dim)
        mask, num_neighbors
            As in `Attention`.
        """
        x = queries + self.read(queries, tokens, mask=mask, num_neighbors=num_neighbors)
        features: Tensor = x + self.think(x)
        return features
