"""Measured layers, in settings that fit the number of tokens and neighbors."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nearwise.functional import attention_implementation
from nearwise.names import did_you_mean
from nearwise_lab.nn.layers import LAYER_ALIASES, token_layer

BASELINE = "MultiHeadAttention"


@dataclass(frozen=True)
class LayerShape:
    """Size of an input: `batch` sequences of `tokens` tokens, `dim` wide, for `heads` heads.

    `dtype` is a name of torch's: float32, float16, bfloat16 or float64.
    """

    batch: int
    tokens: int
    dim: int = 192
    heads: int = 3
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("batch", "tokens", "dim", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        if self.dtype not in ("float32", "float16", "bfloat16", "float64"):
            raise ValueError(
                f"dtype={self.dtype!r} is not one of float32, float16, bfloat16, float64."
            )

    def draw(self, device: torch.device | str = "cpu") -> Tensor:
        """Draw an input that requires gradients."""
        kind: torch.dtype = getattr(torch, self.dtype)
        x = torch.randn(self.batch, self.tokens, self.dim, device=device, dtype=kind)
        return x.requires_grad_()


@dataclass(frozen=True)
class LayerChoice:
    """A layer in one setting, by its name in tables; `layer` is its name for `token_layer`.

    With `plain` the plain implementation, in torch operations alone, is forced.
    """

    name: str
    layer: str
    options: dict[str, Any] = field(default_factory=dict)
    plain: bool = False

    def make(self, shape: LayerShape, device: torch.device | str = "cpu") -> nn.Module:
        """Build the layer for inputs of a shape."""
        kind: torch.dtype = getattr(torch, shape.dtype)
        made = token_layer(self.layer)(shape.dim, shape.heads, **self.options)
        return made.to(device=device, dtype=kind)

    def running(self) -> AbstractContextManager[None]:
        """Context manager for running the layer."""
        return attention_implementation("plain") if self.plain else nullcontext()


def layer_choices(n_tokens: int, n_neighbors: int, names: Sequence[str] = ()) -> list[LayerChoice]:
    """Every layer of library and lab once, and the settings of ConvNN that differ in cost.

    Parameters
    ----------
    n_tokens : int
        A square, or one more (a class token), for the layer on a grid: else it is left out.
    n_neighbors : int
        Neighbors of the k-NN layers, and the kernel of neighborhoods and convolutions.
    names : sequence of str, optional
        Only these, also by their names in `nearwise vit train`, and `BASELINE`, PyTorch's own
        attention between the same projections, which comes first.

    Raises
    ------
    ValueError
        If there are fewer tokens than neighbors, no neighbor, or a name is not known.
    """
    k = n_neighbors
    if not 1 <= k <= n_tokens:
        raise ValueError(
            f"n_neighbors={k} must lie between 1 and the {n_tokens} tokens. Change one of them."
        )
    nearest = {"n_neighbors": k}
    sampled = {**nearest, "sampling": "random", "num_samples": min(n_tokens, max(32, 2 * k))}
    rows: list[tuple[str, dict[str, Any]]] = [  # a layer, its variant, and options
        (BASELINE, {}),
        ("KNNAttention", nearest),
        ("KNNAttention plain", nearest),
        ("KvtAttention", nearest),
        ("ConvNNAttention", nearest),
        ("ConvNNAttention standard", {**nearest, "convolution": "standard"}),
        ("ConvNNAttention random", sampled),
        ("LocalAttention", {}),
        ("NeighborhoodAttention1D", {"kernel_size": k}),
    ]
    prefix = next((p for p in (0, 1) if math.isqrt(n_tokens - p) ** 2 == n_tokens - p), None)
    if prefix is not None:
        side = min(max(1, round(math.sqrt(k))), math.isqrt(n_tokens - prefix))
        square = {"kernel_size": side, "num_prefix_tokens": prefix}
        rows.append(("NeighborhoodAttention2D", square))
    rows += [
        ("SparseAttention", {}),
        ("BranchingAttention", nearest),
        ("BranchingConv", {**nearest, "kernel_size": k}),
        ("TokenConvolution", {"kernel_size": k}),
    ]
    same = {alias.lower(): name.lower() for alias, name in LAYER_ALIASES.items()}
    known = [name for name, _ in rows]
    wanted = {same.get(name.lower(), name.lower()): name for name in names}
    for lower, name in wanted.items():
        if lower not in map(str.lower, known):
            hint = did_you_mean(name, known)
            raise ValueError(f"Layer {name!r} is not known.{hint} There are {', '.join(known)}.")
    return [
        LayerChoice(name, name.partition(" ")[0], options, plain=name.endswith(" plain"))
        for name, options in rows
        if not names or name == BASELINE or name.lower() in wanted
    ]
