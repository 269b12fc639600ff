"""Layers as computed by the published ConvNN code, if the library's differ.

github.com/mingikang31/Convolutional-Nearest-Neighbor-Attention at 0bb6614 (MIT). Its checkpoints
were trained with this:

- the merge of several heads reads a head's (N, D) block as (D, N): tokens and channels mix;
- a sampled token is masked for itself by a similarity of -0.1 or a distance of 1.1, which may
  still be among the nearest;
- positions of sampled candidates are those of as many tokens in a row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.functional.tokens.problem import KeyPositions, as_positions, check_positions
from nearwise.nn.tokens.base import Masks
from nearwise_lab.nn.branching import BranchingAttention, BranchingConv, TokenConvolution
from nearwise_lab.nn.convnn import ConvNNAttention

_MASKED_SIMILARITY, _MASKED_DISTANCE = -0.1, 1.1
_OWN_SCORE = 1.0


class LegacyConvNNAttention(ConvNNAttention):
    """`ConvNNAttention` as that code computes it."""

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        if not query.shape[2]:
            return super()._attend(query, key, value, masks)
        if masks.attn_mask is not None or masks.key_padding_mask is not None or masks.is_causal:
            raise ValueError("A layer with legacy_layout=True supports no masks. Leave them out.")
        candidates = self._candidates(masks.candidates, key.shape[2], key.device)
        query, value = self._with_coordinates(query), self._with_coordinates(value)
        key = self._with_coordinates(key if candidates is None else key[:, :, candidates])
        output = self.conv(value, *self._ranked(query, key, candidates))
        output = F.dropout(output, self._dropout)
        return scrambled(output) if self.num_heads > 1 else output

    def _candidates(
        self, given: KeyPositions | None, n_tokens: int, device: torch.device
    ) -> Tensor | None:
        """Given candidates, or candidates drawn as in that code: rounded, in evaluation too."""
        sampling = self.sampling
        if given is not None:
            candidates = as_positions(given, n_tokens)
            check_positions(candidates, n_tokens, distinct=False)
            if candidates.ndim != 1:
                raise ValueError("With legacy_layout=True the batch shares candidates: shape (C,).")
            return candidates.to(device)
        if sampling.kind == "random":
            return torch.randperm(n_tokens, device=device)[: sampling.num_samples]
        if sampling.kind == "line" and sampling.num_samples > 0:
            last = n_tokens - sampling.padding - 1
            return torch.linspace(
                sampling.padding, last, sampling.num_samples, device=device
            ).long()
        return sampling.draw(n_tokens, device, self.training)

    def _ranked(
        self, query: Tensor, key: Tensor, candidates: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Neighbors of every token, best first, and factors of their values, (B, H, N, K) each."""
        scores, n_slots = self._scores(query, key), self.n_neighbors
        own = torch.arange(scores.shape[2], device=key.device)[:, None]
        if candidates is not None:
            away = _MASKED_DISTANCE if self._is_distance else _MASKED_SIMILARITY
            scores, n_slots = scores.masked_fill(own == candidates, away), n_slots - 1
        if n_slots > scores.shape[3]:
            raise ValueError(
                f"n_neighbors={self.n_neighbors} exceeds the {scores.shape[3]} candidates. Lower "
                "n_neighbors or take more candidates."
            )
        best = scores.detach().sort(dim=-1, descending=not self._is_distance, stable=True).indices
        at = best[..., :n_slots]
        scores = scores.gather(-1, at)
        if candidates is not None:
            at = torch.cat([own.expand(*scores.shape[:3], 1), candidates[at]], dim=-1)
            scores = F.pad(scores, (1, 0), value=_OWN_SCORE)
        if self.weighting == "softmax":
            return at, torch.softmax(-scores if self._is_distance else scores, dim=-1)
        return at, self._raw(scores)

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Similarities or distances (B, H, N, C)."""
        if self.metric == "matmul":
            return query @ key.mT * self.scale
        if self.metric == "cosine":
            return F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT
        squares = query.square().sum(-1)[..., None] + key.square().sum(-1)[..., None, :]
        return (squares - 2 * (query @ key.mT)).sqrt()


class LegacyTokenConvolution(TokenConvolution):
    """`TokenConvolution` that mixes tokens and channels as that code does."""

    def _convolved(self, heads: Tensor) -> Tensor:
        return scrambled(super()._convolved(heads).mT[None])[0].mT


class LegacyBranchingConv(BranchingConv):
    """`BranchingConv` of these layers."""

    _convnn_layer = LegacyConvNNAttention
    _convolution_layer = LegacyTokenConvolution


class LegacyBranchingAttention(BranchingAttention):
    """`BranchingAttention` with these heads in its ConvNN branch."""

    _convnn_layer = LegacyConvNNAttention


def scrambled(heads: Tensor) -> Tensor:
    """Read each head's (N, D) block as (D, N) and turn it; shape (B, H, N, D) stays."""
    batch, n_heads, n_tokens, width = heads.shape
    return heads.reshape(batch, n_heads, width, n_tokens).transpose(2, 3)
