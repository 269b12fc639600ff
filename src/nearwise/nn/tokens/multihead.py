"""k-NN attention with the interface of `torch.nn.MultiheadAttention`."""

import math
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional.tokens import attend
from nearwise.functional.tokens.problem import (
    IncludeSelf,
    TokenMetric,
    check_mask,
    check_n_neighbors,
)
from nearwise.nn.tokens.base import check_heads, check_name, expanded_mask


class KNNMultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with attention to the k nearest keys of each query.

    Same parameter names, same call, same masks (True in a boolean mask forbids), also inside
    `torch.nn.TransformerEncoderLayer`. Like torch's layer, it is ignored by
    `torch.ao.quantization.quantize_dynamic`.

    Parameters
    ----------
    embed_dim : int
        Width of queries and outputs.
    num_heads : int
    n_neighbors : int, default=9
        Number of attended keys per query; all if there are fewer.
    metric : {"matmul", "cosine", "euclidean"}, default="matmul"
    include_self : {"candidate", "always", "never"}, default="candidate"
    dropout, bias, kdim, vdim, batch_first, device, dtype
        As in `torch.nn.MultiheadAttention`.

    Examples
    --------
    >>> layer = KNNMultiheadAttention(24, 3, n_neighbors=5, batch_first=True)
    >>> x = torch.randn(2, 17, 24)
    >>> output, weights = layer(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 17, 24]), torch.Size([2, 17, 17]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        n_neighbors: int = 9,
        *,
        metric: TokenMetric = "matmul",
        include_self: IncludeSelf = "candidate",
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_heads(embed_dim, num_heads, name="embed_dim")
        check_n_neighbors(n_neighbors)
        check_name("metric", metric, get_args(TokenMetric))
        check_name("include_self", include_self, get_args(IncludeSelf))
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must lie in [0, 1).")
        widths: dict[str, Any] = {"kdim": kdim, "vdim": vdim, "device": device, "dtype": dtype}
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first=batch_first, **widths)
        # Disables the fused path of TransformerEncoderLayer, which would attend to all keys.
        self._qkv_same_embed_dim = False
        self.n_neighbors, self.metric, self.include_self = n_neighbors, metric, include_self

    def reset_parameters(self) -> None:
        """Reset the weights, as `torch.nn.MultiheadAttention` does."""
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        self._reset_parameters()
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend queries to their k nearest keys.

        Parameters
        ----------
        query : Tensor of shape (N, B, E), (B, N, E) with `batch_first`, or (N, E)
        key, value : Tensor of shape (M, B, E), (B, M, E) or (M, E)
        key_padding_mask : bool or float Tensor of shape (B, M) or (M,), optional
            True excludes a key; floats are added to the scores. For a tokenizer's integer mask,
            with 1 for tokens to keep, pass ``attention_mask == 0``.
        need_weights : bool, default=True
            Whether to return the weights, as a dense tensor.
        attn_mask : bool or float Tensor of shape (N, M) or (B * num_heads, N, M), optional
            True forbids a pair; floats are added to the scores.
        average_attn_weights : bool, default=True
            Whether to average the weights over heads.
        is_causal : bool, default=False
            Hint that `attn_mask` is causal. Without a mask, a token then attends only to itself and
            earlier tokens.

        Returns
        -------
        output : Tensor like `query`
            A query without an allowed key attends to zeros.
        weights : Tensor of shape (B, N, M), (B, num_heads, N, M) or None
            Attention weights; 0 for keys beyond the nearest, and for queries without any key.

        Raises
        ------
        ValueError
            If shapes do not fit, or a mask is of integers.
        """
        self._check_kinds(query, key, value)
        check_mask("attn_mask", attn_mask, "leave out")
        check_mask("key_padding_mask", key_padding_mask, "leave out")
        if query.is_nested:  # TransformerEncoder uses nested tensors for padding
            return self._nested(query, key, value), None
        self._check_shapes(query, key, value)
        is_batched = query.ndim == 3
        if not is_batched:
            if key_padding_mask is not None and key_padding_mask.ndim != 1:
                raise ValueError(
                    f"key_padding_mask must be of shape ({len(key)},), for the input has no batch; "
                    f"got {tuple(key_padding_mask.shape)}."
                )
            query, key, value = (x[None] for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        query, key, value = (self._heads(x) for x in self._projected(query, key, value))
        n_keys = key.shape[2]
        found = attend(
            query,
            key,
            value,
            self.n_neighbors,
            metric=self.metric,
            attn_mask=self._mask(query, attn_mask, key_padding_mask, n_keys),
            is_causal=is_causal and attn_mask is None,
            include_self=self.include_self,
            dropout_p=self.dropout if self.training else 0.0,
        )
        output = self.out_proj(found.output.transpose(1, 2).flatten(2))
        weights = None
        if need_weights:
            weights = found.dense_weights(n_keys)
            weights = weights.mean(1) if average_attn_weights else weights
        if not is_batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def _check_kinds(self, *inputs: Any) -> None:
        for name, x in zip(("query", "key", "value"), inputs, strict=True):
            if not isinstance(x, Tensor):
                raise ValueError(
                    f"{name} must be a tensor; got a {type(x).__name__}. Convert it: "
                    "torch.as_tensor(x, dtype=torch.float32)."
                )

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        inputs, widths = (query, key, value), (self.embed_dim, self.kdim, self.vdim)
        fits = (
            query.ndim in (2, 3) and query.ndim == key.ndim and key.shape[:-1] == value.shape[:-1]
        )
        fits = fits and all(x.shape[-1] == width for x, width in zip(inputs, widths, strict=True))
        if fits and query.ndim == 3:
            at = 0 if self.batch_first else 1
            fits = query.shape[at] == key.shape[at]
        if not fits:
            lead = ("B, N", "B, M") if self.batch_first else ("N, B", "M, B")
            raise ValueError(
                f"query must be of shape ({lead[0]}, {self.embed_dim}), key ({lead[1]}, "
                f"{self.kdim}) and value ({lead[1]}, {self.vdim}) with "
                f"batch_first={self.batch_first}, or all without B; got {tuple(query.shape)}, "
                f"{tuple(key.shape)} and {tuple(value.shape)}."
            )

    def _nested(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend within sequences of different lengths, (B, lengths, E)."""
        if key is not query or value is not query or not self.batch_first:
            raise ValueError(
                "Nested tensors are taken for self-attention with batch_first=True alone. Pad them "
                "(to_padded_tensor) and give a key_padding_mask."
            )
        lengths = torch.tensor([len(sequence) for sequence in query.unbind()])
        padded = query.to_padded_tensor(0.0)
        is_padding = (torch.arange(padded.shape[1]) >= lengths[:, None]).to(padded.device)
        output, _ = self(padded, padded, padded, key_padding_mask=is_padding, need_weights=False)
        kept = zip(output, lengths.tolist(), strict=True)
        return torch.nested.as_nested_tensor([sequence[:length] for sequence, length in kept])

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        none = (None, None, None)
        biases = none if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        inputs = (query, key, value)
        return [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(
        self, query: Tensor, mask: Tensor | None, padding: Tensor | None, n_keys: int
    ) -> Tensor | None:
        """Merge both masks into a floating one that is added to the scores."""
        total, (batch, _, n_queries, _) = None, query.shape
        if mask is not None:
            if mask.ndim == 3:
                if len(mask) != batch * self.num_heads:
                    raise ValueError(
                        f"attn_mask of three dimensions needs batch * num_heads = "
                        f"{batch * self.num_heads} entries; got {len(mask)}."
                    )
                mask = mask.unflatten(0, (batch, self.num_heads))
            total = _added(mask, query.dtype)
            expanded_mask(total, (batch, self.num_heads, n_queries, n_keys))
        if padding is not None:
            if padding.shape != (batch, n_keys):
                raise ValueError(
                    f"key_padding_mask must be of shape ({batch}, {n_keys}); got "
                    f"{tuple(padding.shape)}."
                )
            more = _added(padding, query.dtype)[:, None, None]
            total = more if total is None else total + more
        return total


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask to an additive one; True forbids."""
    if mask.dtype == torch.bool:
        zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return zeros.masked_fill(mask, -math.inf)
    return mask.to(dtype)
