"""k-NN attention over tokens in plain torch operations: the reference, for any device."""

import torch
from torch import Tensor

from nearwise.functional.tokens.pairs import at_least_single, gather_tokens, pair_scores
from nearwise.functional.tokens.problem import Found, Tokens


def attend_plain(tokens: Tokens) -> Found:
    """Attend with torch operations alone.

    Scores of all pairs live while the neighbors are selected; for the backward pass only those of
    the selected ones are kept, with their keys and values: O(N K D).
    """
    with torch.no_grad():
        indices = _select(tokens)
    scores = _selected_scores(tokens, indices)
    nobody = (indices < 0).all(dim=-1, keepdim=True)
    weights = (
        torch.softmax(scores.masked_fill(nobody, 0.0), dim=-1)
        .masked_fill(nobody, 0.0)
        .to(tokens.value.dtype)
    )
    kept = weights if tokens.keep is None else weights * tokens.keep
    values = gather_tokens(tokens.value, indices.clamp_min(0))
    output = (kept[..., None, :] @ values)[..., 0, :]
    return Found(output, indices.to(torch.int32), weights)


def _select(tokens: Tokens) -> Tensor:
    """Positions (B, H, N, K) of the best keys, best first, ties by lowest index; -1 for none."""
    scores = _all_scores(tokens)
    n_queries, n_keys = scores.shape[-2:]
    itself = torch.eye(n_queries, n_keys, dtype=torch.bool, device=scores.device)
    if tokens.candidates is not None:
        allowed = torch.zeros(scores.shape[0], n_keys, dtype=torch.bool, device=scores.device)
        allowed = allowed.scatter(1, tokens.candidates, True)[:, None, None]
        if tokens.include_self == "always":
            allowed = allowed | itself
        scores = scores.masked_fill(~allowed, -torch.inf)
    if tokens.include_self == "never":
        scores = scores.masked_fill(itself, -torch.inf)
    ranked = scores
    if tokens.include_self == "always":
        ranked = scores.masked_fill(itself & ~torch.isneginf(scores), torch.inf)
    first = _first(ranked, tokens.n_neighbors)
    if tokens.include_self == "always":  # in the order of scores again
        first = first.sort(dim=-1).values
        first = first.gather(-1, _first(scores.gather(-1, first), tokens.n_neighbors))
    return first.masked_fill(torch.isneginf(scores.gather(-1, first)), -1)


def _first(scores: Tensor, n: int) -> Tensor:
    """Positions of the `n` largest scores in descending order, ties by lowest index."""
    if torch.onnx.is_in_onnx_export():  # ONNX's TopK promises that order of ties
        return scores.topk(n, dim=-1).indices
    # torch.topk leaves it open; a stable sort does not.
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :n]


def _all_scores(tokens: Tokens) -> Tensor:
    """Scores of all pairs, -inf where a pair is forbidden; float32 or float64."""
    query, key = (at_least_single(x) for x in (tokens.query, tokens.key))
    products = query @ key.mT
    if tokens.squared:
        squares = query.square().sum(-1)[..., None] + key.square().sum(-1)[..., None, :]
        scores = -(squares - 2 * products).clamp_min(0).sqrt() * tokens.scale
    else:
        scores = products * tokens.scale
    if tokens.bias is not None:
        scores = scores + tokens.bias
    if tokens.padding is not None:
        scores = scores.masked_fill(tokens.padding[:, None, None], -torch.inf)
    if tokens.is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores


def _selected_scores(tokens: Tokens, indices: Tensor) -> Tensor:
    """Differentiable scores (B, H, N, K) of the selected pairs, -inf in empty slots."""
    at = indices.clamp_min(0)
    scores = pair_scores(tokens.query, tokens.key, at, squared=tokens.squared, scale=tokens.scale)
    if tokens.bias is not None:
        scores = scores + tokens.bias.gather(-1, at)
    return scores.masked_fill(indices < 0, -torch.inf)
