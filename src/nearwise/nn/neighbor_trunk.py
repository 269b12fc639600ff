"""Common part of pretrained heads: a set transformer over a query's neighbors, and its weights."""

import json
import math
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from nearwise.functional.set_attention import LEAST, pool_rows
from nearwise.functional.threads import Threads

FOLDER = Path(__file__).parent / "weights"
_NO_MASS = 1e-3
_FLOOR = 1e-9


class Described(NamedTuple):
    """Input features of the neighbors of B queries in one key space.

    Attributes
    ----------
    neighbors : Tensor of shape (B, K, n_features)
    query : Tensor of shape (B, n_of_query)
    relative : Tensor of shape (B, K)
        Distances divided by their mean, minus 1.
    """

    neighbors: Tensor
    query: Tensor
    relative: Tensor


class Read(NamedTuple):
    """Outputs of the shared layers for the neighbors of B queries.

    Attributes
    ----------
    scores : tuple of Tensor of shape (B, K)
        Attention scores of the neighbors, one tensor per space, before the softmax.
    of_spaces : Tensor of shape (B, n_per_space, S)
    of_query : Tensor of shape (B, n_per_query)
    """

    scores: tuple[Tensor, ...]
    of_spaces: Tensor
    of_query: Tensor

    def without(self, rows: Tensor, gone: Tensor, found: list[Tensor]) -> "Read":
        """Select queries, each without one of its neighbors.

        Parameters
        ----------
        rows : int64 Tensor of shape (M,)
            Positions of queries; repeats are allowed.
        gone : int64 Tensor of shape (M,)
            Number of the row to leave out of the neighbors.
        found : list of int64 Tensor of shape (B, K)
            Numbers of the neighbors in each space.
        """
        scores = tuple(
            one[rows].masked_fill(there[rows] == gone[:, None], -math.inf)
            for one, there in zip(self.scores, found, strict=True)
        )
        return Read(scores, self.of_spaces[rows], self.of_query[rows])


class _ClassPooling(nn.Module):
    """Layer that mixes tokens with a summary of their class, of all neighbors and of the query.

    Attention with a learned query per head pools the neighbors of each class; the class's share of
    that attention and its mean value are added to its neighbors. Independent of the order of
    classes. Linear in the number of neighbors.
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
        self.query = _two_layers(2 * width, *[0.0] * width)

    def forward(
        self, tokens: Tensor, query: Tensor, weight: Tensor, classes: "_Classes"
    ) -> tuple[Tensor, Tensor]:
        """Return updated tokens (B, N, width) and query (B, width)."""
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
        """Return the weights as arrays for the compiled loops."""
        parts = (self.score, self.of_class, self.of_query, self.of_neighbor, self.out)
        linear = [array for part in parts for array in _of_linear(part)]
        norms = [t.detach().numpy() for t in (self.query_norm.weight, self.query_norm.bias)]
        return (*linear, *norms, _of_two(self.query))


class _Classes(NamedTuple):
    """One-hot classes (B, U, N) of tokens, and log shares (B, U) of U classes."""

    one_hot: Tensor
    log_prior: Tensor

    @classmethod
    def of(cls, labels: Tensor, log_prior: Tensor) -> "_Classes":
        """Use the classes themselves, or one slot per token if there are more classes."""
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


class NeighborTrunk(nn.Module):
    """A small set transformer over the neighbors of one or more key spaces and a query token.

    Subclasses define input features and outputs. Tokens with the same label are pooled.

    Parameters
    ----------
    width : int, default=48
    n_layers : int, default=2
    num_heads : int, default=6
        Pooling heads per label and layer.
    hidden : int, default=64
    """

    n_features: ClassVar[int]  # per neighbor
    n_of_query: ClassVar[int]
    starts_per_space: ClassVar[tuple[float, ...]]  # outputs before any training
    starts_per_query: ClassVar[tuple[float, ...]]
    file: ClassVar[str]  # name of the packaged weights
    # Version of inputs and architecture. Saved models include the network: raise the version of
    # their folders with it.
    version: ClassVar[str]

    def __init__(
        self, width: int = 48, n_layers: int = 2, num_heads: int = 6, hidden: int = 64
    ) -> None:
        super().__init__()
        self.config = {"width": width, "n_layers": n_layers} | {
            "num_heads": num_heads,
            "hidden": hidden,
        }
        self.neighbor = nn.Linear(self.n_features, width)
        self.space = nn.Linear(self.n_of_query, width)
        layers = [_ClassPooling(width, num_heads, hidden) for _ in range(n_layers)]
        self.layers = nn.ModuleList(layers)
        self.query_norm = nn.LayerNorm(width)
        self._learned: list[nn.Parameter] | None = None
        self._packed: tuple[Any, Any] | None = None
        self.score = nn.Linear(width, 1)
        self.of_scale = _two_layers(2 * width, math.log(4.0))
        self.of_space = _two_layers(2 * width, *self.starts_per_space)
        self.of_query = _two_layers(width, *self.starts_per_query)
        nn.init.zeros_(self.score.weight)

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Load weights from a file; by default the packaged ones."""
        path = FOLDER / cls.file if path is None else path
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        if metadata["version"] != cls.version:
            raise ValueError(
                f"The weights in {path} are of version {metadata['version']}, this package reads "
                f"version {cls.version}. Use the weights that came with the package."
            )
        head = cls(**json.loads(metadata["config"]))
        head.load_state_dict(load_file(path))
        return head.eval().requires_grad_(False)

    def read(
        self, seen: list[Described], labels: Tensor, log_weight: Tensor, log_prior: Tensor
    ) -> Read:
        """Run the shared layers.

        Parameters
        ----------
        seen : list of Described
            Input features, one entry per space.
        labels, log_weight : Tensor of shape (B, N)
            Labels and log weights of the neighbors in all spaces, concatenated; -inf is padding.
        log_prior : Tensor of shape (B, C)
            Logarithm of the label shares.
        """
        sizes = [one.relative.shape[1] for one in seen]
        of_spaces = [self.space(one.query) for one in seen]
        parts = zip(seen, of_spaces, strict=True)
        tokens = torch.cat(
            [self.neighbor(one.neighbors) + query[:, None] for one, query in parts], dim=1
        )
        query = torch.stack(of_spaces).mean(0)
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
        for one, of_space, score, part in each:
            score = score - self._scale(query, of_space) * one.relative
            mean = torch.bmm(softmax_or_nothing(score)[:, None], part)[:, 0]
            made.append(self.of_space(torch.cat([query, mean], dim=1)))
            scores.append(score)
        return Read(tuple(scores), torch.stack(made, dim=2), self.of_query(query))

    def _scale(self, query: Tensor, of_space: Tensor) -> Tensor:
        """Return the factor of the distances in a space, (B, 1)."""
        log_scale: Tensor = self.of_scale(torch.cat([query, of_space], dim=1))
        return log_scale.clamp(-3.0, 4.0).exp()

    def _pool(self, arrays: list[np.ndarray], layers: tuple[Any, ...]) -> None:
        """Update tokens and queries in place, in threads for large batches."""
        work = arrays[0].size * 2 * self.config["hidden"] * self.config["n_layers"]
        with Threads(work) as threads:
            threads.run(
                lambda part: pool_rows(*(array[part] for array in arrays), layers), len(arrays[0])
            )

    def _arrays(self) -> tuple[Any, ...]:
        """Return the weights of the layers for `pool_rows`, repacked after a change."""
        if self._learned is None:  # listing takes longer than the layers for one query
            self._learned = list(self.layers.parameters())
        versions = [(one.data_ptr(), one._version) for one in self._learned]
        # A fused optimizer changes weights without a new `_version`.
        learns = self._learned[0].requires_grad
        if learns or self._packed is None or self._packed[0] != versions:
            pooling = (one for one in self.layers if isinstance(one, _ClassPooling))
            self._packed = versions, tuple(one.arrays() for one in pooling)
        return self._packed[1]


def softmax_or_nothing(scores: Tensor) -> Tensor:
    """Softmax over dim 1; rows of -inf only give zeros, with finite gradients."""
    none = torch.isneginf(scores).all(dim=1, keepdim=True)
    shares = torch.softmax(scores.masked_fill(none, 0.0), dim=1)
    return shares.masked_fill(none, 0.0)


def _of_linear(layer: nn.Linear) -> list[np.ndarray]:
    """Return weights (in, out) and bias, if any, of a linear layer."""
    weight = np.ascontiguousarray(layer.weight.detach().numpy().T)
    bias: Tensor | None = layer.bias
    return [weight] if bias is None else [weight, bias.detach().numpy()]


def _of_two(layers: nn.Sequential) -> tuple[np.ndarray, ...]:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    return tuple(array for layer in linear for array in _of_linear(layer))


def _two_layers(width: int, *start: float) -> nn.Sequential:
    """Make two linear layers with the initial output `start`."""
    last = nn.Linear(48, len(start))
    nn.init.zeros_(last.weight)
    for at, value in enumerate(start):
        nn.init.constant_(last.bias[at], value)
    return nn.Sequential(nn.Linear(width, 48), nn.ReLU(), last)
