"""A head that was trained on many tables and is used as it is on others."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from nearwise.functional.set_attention import (
    HAS_BASE,
    LEAST,
    N_FEATURES,
    N_OF_QUERY,
    describe_rows,
    pool_rows,
)
from nearwise.functional.threads import Threads
from nearwise.nn.neighbor_set import NeighborSet

WEIGHTS = Path(__file__).parent / "weights" / "neighbor_head.safetensors"
# Of what the network is given and how it is built; models that are saved hold the network, so the
# version of their folders moves with it.
VERSION = "1"
_CHUNK = 1024  # rows predicted at once
_OUT = -1e4  # score of a neighbor that is left out
_NO_MASS = 1e-3
_FLOOR = 1e-9
NEGLIGIBLE = -20.0  # log-probability of a class without evidence


class HeadOutput(NamedTuple):
    """Prediction of a head and what it is based on.

    Attributes
    ----------
    log_proba : Tensor of shape (B, C)
        Neighbors and base together.
    neighbor_log_proba : Tensor of shape (B, C)
        Neighbors alone, the null carrying the class prior.
    weights : tuple of Tensor of shape (B, K)
        For each space the neighbors' shares of the attention; with `null_mass` they sum to 1.
    null_mass : Tensor of shape (B,)
        Share of the null, in [0, 1].
    """

    log_proba: Tensor
    neighbor_log_proba: Tensor
    weights: tuple[Tensor, ...]
    null_mass: Tensor

    @classmethod
    def joined(cls, parts: "list[HeadOutput]") -> "HeadOutput":
        """Put the predictions of chunks of queries one below the other."""
        # A class that no neighbor in a chunk carries is not named there: its share is nothing.
        width = max(part.log_proba.shape[1] for part in parts)
        return cls(
            torch.cat([widen(part.log_proba, width) for part in parts]),
            torch.cat([widen(part.neighbor_log_proba, width) for part in parts]),
            tuple(map(torch.cat, zip(*(part.weights for part in parts), strict=True))),
            torch.cat([part.null_mass for part in parts]),
        )


class Attention(NamedTuple):
    """The head's output for the neighbors of B queries, before labels are added up.

    Attributes
    ----------
    scores : tuple of Tensor of shape (B, K)
        For each space; their softmax shares out what the null leaves. -inf leaves a neighbor out.
    null : Tensor of shape (B, S)
        Log-odds of the null against the neighbors of each space.
    shares : Tensor of shape (B, S + 2)
        Powers of the base, the class shares and each space in the prediction; they sum to 1.
    sharpness : Tensor of shape (B,)
        The inverse temperature, positive.
    """

    scores: tuple[Tensor, ...]
    null: Tensor
    shares: Tensor
    sharpness: Tensor

    def without(self, rows: Tensor, gone: list[Tensor]) -> "Attention":
        """Take some queries (M,), without neighbors where `gone`, (M, K) per space, is true."""
        parts = zip(self.scores, gone, strict=True)
        scores = tuple(one[rows].masked_fill(mask, -math.inf) for one, mask in parts)
        return Attention(scores, self.null[rows], self.shares[rows], self.sharpness[rows])


class _ClassPooling(nn.Module):
    """Let neighbors see what their class, all neighbors and the query hold.

    Attention with a learned query per head pools the neighbors of each class; the class's share of
    that attention and its mean value come back to its neighbors. Names of classes play no part.
    Linear in the number of neighbors.
    """

    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.score = nn.Linear(width, num_heads)
        self.of_class = nn.Linear(width + num_heads + 1, hidden)
        self.of_query = nn.Linear(width, hidden, bias=False)
        self.of_neighbor = nn.Linear(width, hidden, bias=False)
        self.out = nn.Linear(hidden, width, bias=False)
        self.query_norm = nn.LayerNorm(width)
        self.query = _two_layers(2 * width, width)

    def forward(
        self, tokens: Tensor, query: Tensor, weight: Tensor, classes: "_Classes"
    ) -> tuple[Tensor, Tensor]:
        """Return tokens (B, N, width) and the query (B, width), renewed."""
        (n_rows, n_tokens, width), heads = tokens.shape, self.num_heads
        share = self.score(tokens).clamp(-8, 8).exp() * weight[:, :, None]
        share = share / (share.sum(1, keepdim=True) + _FLOOR)
        value = tokens.view(n_rows, n_tokens, heads, -1) * share[..., None]
        sums = classes.one_hot @ value.flatten(2)
        mass = classes.one_hot @ share
        mean = (sums.unflatten(2, (heads, -1)) / (mass + _NO_MASS)[..., None]).flatten(2)
        of_all = torch.cat([self.query_norm(query), sums.sum(1)], dim=1)
        query = query + self.query(of_all)
        of_class = [mean, torch.log(mass + _NO_MASS) / 3, classes.log_prior[:, :, None] / 3]
        message = self.of_class(torch.cat(of_class, dim=2)) + self.of_query(query)[:, None]
        inner = self.of_neighbor(tokens)
        inner = torch.baddbmm(inner, classes.one_hot.transpose(1, 2), message).relu()
        out = torch.addmm(tokens.flatten(0, 1), inner.flatten(0, 1), self.out.weight.t())
        return out.view(n_rows, n_tokens, width), query

    def arrays(self) -> tuple[Any, ...]:
        """Weights as the compiled loops take them."""
        parts = (self.score, self.of_class, self.of_query, self.of_neighbor, self.out)
        linear = [array for part in parts for array in _of_linear(part)]
        norms = [t.detach().numpy() for t in (self.query_norm.weight, self.query_norm.bias)]
        return (*linear, *norms, _of_two(self.query))


class _Classes(NamedTuple):
    """Which of U classes each token carries, (B, U, N), and the classes' log shares, (B, U)."""

    one_hot: Tensor
    log_prior: Tensor

    @classmethod
    def of(cls, labels: Tensor, log_prior: Tensor) -> "_Classes":
        """Take the classes themselves, or one for the first token of each where they are many."""
        n_tokens, n_classes = labels.shape[1], log_prior.shape[1]
        places = labels
        if n_classes > n_tokens:
            at = torch.arange(n_tokens, device=labels.device)
            places = torch.where(labels[:, :, None] == labels[:, None], at, n_tokens).amin(2)
            shares = log_prior.gather(1, labels)
            n_classes, log_prior = n_tokens, torch.zeros_like(shares).scatter(1, places, shares)
        slots = torch.arange(n_classes, device=labels.device)
        one_hot = (places[:, None] == slots[:, None]).float()
        return cls(one_hot, log_prior.clamp_min(2 * LEAST))


class PretrainedNeighborHead(nn.Module):
    """Attention over the neighbors of any table: one set of weights for all of them.

    A small set transformer over the neighbors of one or more key spaces and a query token. It uses
    labels only as equal or not and by what is known of each (class share, the base's opinion), so
    any number of any classes will do. Each space's neighbors share the attention with a null that
    carries the class shares; with powers that depend on the query, the spaces, the base and the
    class shares join in a log-linear pool:
    ``log p = sharpness (a log p_base + c log prior + sum_s b_s log p_s) + const``,
    ``a + c + sum_s b_s = 1``. Without a base `a` is 0.

    Parameters
    ----------
    width : int, default=48
    n_layers : int, default=2
    num_heads : int, default=6
        Ways of pooling the neighbors of a class, per layer.
    hidden : int, default=64

    Examples
    --------
    >>> import torch
    >>> from nearwise.functional import topk_neighbors
    >>> from nearwise.nn import PretrainedNeighborHead, RememberedSpace
    >>> keys, labels = torch.randn(100, 4), torch.arange(100) % 3
    >>> space = RememberedSpace.of(keys, labels, n_classes=3, n_columns=4)
    >>> neighbors = space.describe(topk_neighbors(torch.randn(5, 4), keys, 32))
    >>> PretrainedNeighborHead.load().predict([neighbors]).log_proba.shape
    torch.Size([5, 3])
    """

    def __init__(
        self, width: int = 48, n_layers: int = 2, num_heads: int = 6, hidden: int = 64
    ) -> None:
        super().__init__()
        self.config = {"width": width, "n_layers": n_layers} | {
            "num_heads": num_heads,
            "hidden": hidden,
        }
        self.neighbor = nn.Linear(N_FEATURES, width)
        self.space = nn.Linear(N_OF_QUERY, width)
        layers = [_ClassPooling(width, num_heads, hidden) for _ in range(n_layers)]
        self.layers = nn.ModuleList(layers)
        self.query_norm = nn.LayerNorm(width)
        self._learned: list[nn.Parameter] | None = None
        self._packed: tuple[Any, Any] | None = None
        self.score = nn.Linear(width, 1)
        self.of_scale = _two_layers(2 * width, 1, math.log(4.0))
        self.of_space = _two_layers(2 * width, 2, -2.0, 0.0)
        self.of_query = _two_layers(width, 3, 1.0, -2.0, 0.2)
        nn.init.zeros_(self.score.weight)

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Load weights; by default those of the package."""
        path = WEIGHTS if path is None else path
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        if metadata["version"] != VERSION:
            raise ValueError(
                f"The weights in {path} are of version {metadata['version']}, this package reads "
                f"version {VERSION}. Use the weights that came with the package."
            )
        head = cls(**json.loads(metadata["config"]))
        head.load_state_dict(load_file(path))
        return head.eval().requires_grad_(False)

    def forward(
        self, spaces: list[NeighborSet], base_log_proba: Tensor | None = None
    ) -> HeadOutput:
        """Predict from the neighbors in each space and the base's log-probabilities (B, C)."""
        return self.pool(self.attend(spaces), spaces, base_log_proba)

    def attend(self, spaces: list[NeighborSet]) -> Attention:
        """Scores of the neighbors and powers of the pool: the first half of `forward`."""
        sizes = [one.labels.shape[1] for one in spaces]
        seen = [_describe(one) for one in spaces]
        of_spaces = [self.space(features) for _, features, _ in seen]
        parts = zip(seen, of_spaces, strict=True)
        tokens = torch.cat([self.neighbor(s[0]) + query[:, None] for s, query in parts], dim=1)
        query = torch.stack(of_spaces).mean(0)
        labels = torch.cat([one.labels for one in spaces], dim=1)
        log_weight = torch.cat([one.log_weight for one in spaces], dim=1)
        log_prior = spaces[0].log_prior
        if tokens.requires_grad or tokens.device.type != "cpu":
            weight, classes = log_weight.exp(), _Classes.of(labels, log_prior)
            for layer in self.layers:
                tokens, query = layer(tokens, query, weight, classes)
        else:
            given = (labels, log_weight, log_prior.contiguous())
            arrays = [one.numpy() for one in (tokens, query, *given)]
            self._pool(arrays, self._arrays())
        query = self.query_norm(query)
        plain = (self.score(tokens)[:, :, 0] + log_weight).split(sizes, dim=1)
        scores, made = [], []
        each = zip(seen, of_spaces, plain, tokens.split(sizes, dim=1), strict=True)
        for (_, _, relative), of_space, score, part in each:
            score = score - self._scale(query, of_space) * relative
            mean = torch.bmm(softmax_or_nothing(score)[:, None], part)[:, 0]
            made.append(self.of_space(torch.cat([query, mean], dim=1)))
            scores.append(score)
        null, gates = torch.stack(made, dim=2).unbind(1)
        base, prior, sharpness = self.of_query(query).unbind(1)
        base = base.masked_fill(spaces[0].summary[:, HAS_BASE] == 0, -math.inf)
        shares = torch.softmax(torch.cat([base[:, None], prior[:, None], gates], dim=1), dim=1)
        return Attention(tuple(scores), null, shares, sharpness.clamp(-3.0, 3.0).exp())

    def _pool(self, arrays: list[np.ndarray], layers: tuple[Any, ...]) -> None:
        """Renew tokens and queries in place, in threads where there are many."""
        work = arrays[0].size * 2 * self.config["hidden"] * self.config["n_layers"]
        with Threads(work) as threads:
            threads.run(
                lambda part: pool_rows(*(array[part] for array in arrays), layers), len(arrays[0])
            )

    def _arrays(self) -> tuple[Any, ...]:
        """Weights of the layers as `pool_rows` takes them, remade where they have changed."""
        if self._learned is None:  # listing them takes longer than the layers do for one query
            self._learned = list(self.layers.parameters())
        versions = [(one.data_ptr(), one._version) for one in self._learned]
        # A fused optimizer changes weights without counting their versions up.
        learns = self._learned[0].requires_grad
        if learns or self._packed is None or self._packed[0] != versions:
            pooling = (one for one in self.layers if isinstance(one, _ClassPooling))
            self._packed = versions, tuple(one.arrays() for one in pooling)
        return self._packed[1]

    def _scale(self, query: Tensor, of_space: Tensor) -> Tensor:
        """How much a distance counts in a space, (B, 1)."""
        log_scale: Tensor = self.of_scale(torch.cat([query, of_space], dim=1))
        return log_scale.clamp(-3.0, 4.0).exp()

    def pool(
        self, attention: Attention, spaces: list[NeighborSet], base_log_proba: Tensor | None
    ) -> HeadOutput:
        """Predict from scores and powers: the second half of `forward`.

        In the output's weights, each space has its share among the spaces.
        """
        labels = [one.labels for one in spaces]
        return _pooled(attention, labels, spaces[0].log_prior, base_log_proba)

    @torch.no_grad()
    def predict(
        self, spaces: list[NeighborSet], base_log_proba: Tensor | None = None
    ) -> HeadOutput:
        """Do what a call does, in chunks and without gradient."""
        if not spaces:
            raise ValueError("There are no spaces to predict from. Give at least one.")
        n_rows = len(spaces[0].labels)
        if n_rows <= _CHUNK:
            return self(spaces, base_log_proba)
        parts = []
        for start in range(0, n_rows, _CHUNK):
            at = slice(start, start + _CHUNK)
            some = [NeighborSet(*(tensor[at] for tensor in one)) for one in spaces]
            parts.append(self(some, None if base_log_proba is None else base_log_proba[at]))
        return HeadOutput.joined(parts)

    @torch.no_grad()
    def predict_without(
        self,
        attention: Attention,
        spaces: list[NeighborSet],
        base_log_proba: Tensor | None,
        rows: Tensor,
        gone: Tensor,
        found: list[Tensor],
    ) -> Tensor:
        """Predict queries without one of their neighbors, the others sharing out its weight.

        Parameters
        ----------
        attention, spaces, base_log_proba
            As in `pool`, of B queries.
        rows : int64 Tensor of shape (M,)
            The queries to predict; any of them any number of times.
        gone : int64 Tensor of shape (M,)
            Number of the row that is left out, wherever it is among the neighbors.
        found : list of int64 Tensor of shape (B, K)
            Numbers of the neighbors in each space.

        Returns
        -------
        log_proba : Tensor of shape (M, C)
            As in `HeadOutput`.
        """
        labels = [one.labels[rows] for one in spaces]
        base = None if base_log_proba is None else base_log_proba[rows]
        rest = attention.without(rows, [one[rows] == gone[:, None] for one in found])
        return _pooled(rest, labels, spaces[0].log_prior[rows], base).log_proba


@cache
@torch.inference_mode(False)
def shared_head() -> PretrainedNeighborHead:
    """Return the head of the package, loaded once; its weights are not to be changed."""
    return PretrainedNeighborHead.load()


def softmax_or_nothing(scores: Tensor) -> Tensor:
    """Softmax over dim 1; zeros where every score is -inf, with gradients that stay finite."""
    none = torch.isneginf(scores).all(dim=1, keepdim=True)
    shares = torch.softmax(scores.masked_fill(none, 0.0), dim=1)
    return shares.masked_fill(none, 0.0)


def widen(log_proba: Tensor, n_classes: int) -> Tensor:
    """Add classes that no neighbor carries to (B, C), at a negligible share."""
    missing = n_classes - log_proba.shape[1]
    return F.pad(log_proba, (0, missing), value=NEGLIGIBLE) if missing else log_proba


def _of_linear(layer: nn.Linear) -> list[np.ndarray]:
    """Weights (in, out) and bias, where there is one, of a linear layer."""
    weight = np.ascontiguousarray(layer.weight.detach().numpy().T)
    bias: Tensor | None = layer.bias
    return [weight] if bias is None else [weight, bias.detach().numpy()]


def _of_two(layers: nn.Sequential) -> tuple[np.ndarray, ...]:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return tuple(array for layer in linear for array in _of_linear(layer))


def _two_layers(width: int, n_out: int, *start: float) -> nn.Sequential:
    """Make two linear layers, of which the last gives `start` (zeros) at first."""
    last = nn.Linear(48, n_out)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    for at, value in enumerate(start):
        nn.init.constant_(last.bias[at], value)
    return nn.Sequential(nn.Linear(width, 48), nn.ReLU(), last)


def _pooled(
    attention: Attention, labels: list[Tensor], log_prior: Tensor, base_log_proba: Tensor | None
) -> HeadOutput:
    prior = log_prior.exp()
    null_shares = torch.sigmoid(attention.null)
    powers = attention.shares[:, 2:]
    among = powers / powers.sum(1, keepdim=True).clamp_min(_FLOOR)
    no_class = torch.isneginf(log_prior)
    log_prior = log_prior.masked_fill(no_class, 0.0)
    total, alone = attention.shares[:, 1, None] * log_prior, torch.zeros_like(prior)
    weights, null_mass = [], torch.zeros_like(null_shares[:, 0])
    for at, scores in enumerate(attention.scores):
        alpha, null = softmax_or_nothing(scores), null_shares[:, at]
        null = torch.where(alpha.sum(1) == 0, 1.0, null)
        alpha = alpha * (1 - null)[:, None]
        votes = torch.zeros_like(prior).scatter_add(1, labels[at], alpha)
        log_p = torch.log(votes + null[:, None] * prior + _FLOOR)
        total = total + powers[:, at, None] * log_p
        alone = alone + among[:, at, None] * log_p
        weights.append(among[:, at, None] * alpha)
        null_mass = null_mass + among[:, at] * null
    if base_log_proba is not None:
        total = total + attention.shares[:, 0, None] * base_log_proba
    total = attention.sharpness[:, None] * total
    both = [torch.log_softmax(one.masked_fill(no_class, _OUT), dim=1) for one in (total, alone)]
    return HeadOutput(both[0], both[1], tuple(weights), null_mass)


def _describe(space: NeighborSet) -> tuple[Tensor, ...]:
    """Features (B, K, 17) of neighbors, (B, 22) of queries, and relative distances (B, K).

    On the device of the space. They carry no gradient.
    """
    (n_rows, k), device = space.labels.shape, space.labels.device
    made = [
        np.empty((n_rows, *more), np.float32) for more in ((k, N_FEATURES), (N_OF_QUERY,), (k,))
    ]
    given = [one.cpu().contiguous().numpy() for one in space]
    facts = (given[0], *given[2:8])
    describe_rows(facts, given[1], *given[8:], *made)
    return tuple(torch.from_numpy(one).to(device) for one in made)
