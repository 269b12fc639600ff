"""Selection of candidate tokens: random or evenly spaced."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

SamplingKind = Literal["all", "random", "line", "grid"]
_KINDS = get_args(SamplingKind)  # outside of functions: torch 2.6 cannot compile get_args


@dataclass
class Sampling:
    """A rule that draws candidate tokens.

    Parameters
    ----------
    kind : {"all", "random", "line", "grid"}, default="all"
        Kind of sampling. "random": `num_samples` tokens, drawn again in each call and shared by
        batch and heads. "line": `num_samples` tokens evenly along the sequence. "grid":
        `num_samples` x `num_samples` tokens evenly over the grid of tokens. The method "spatial" of
        the ConvNN paper is a grid in its text and a line in its code.
    num_samples : int, default=-1
        Number of samples; -1 for all tokens.
    padding : int, default=0
        Number of tokens to skip at each end (each edge of the grid); not for "random".
    num_prefix_tokens : int, default=0
        Number of class and register tokens at the front. They are always candidates; samples are
        drawn from the others.
    grid_size : tuple of int, optional
        Rows and columns of the grid after the prefix; default a square.
    sample_in_eval : bool, default=False
        Whether "random" also samples in evaluation mode. Otherwise all tokens are candidates
        there, and results are deterministic.
    generator : torch.Generator, optional
        Random generator of "random"; default torch's own. Not supported by torch.compile.

    Raises
    ------
    ValueError
        If the kind is not known, or no token would be left.
    """

    kind: SamplingKind = "all"
    num_samples: int = -1
    padding: int = 0
    num_prefix_tokens: int = 0
    grid_size: tuple[int, int] | None = None
    sample_in_eval: bool = False
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            hint = ' "spatial" is a grid in the ConvNN paper and a line in its code.'
            raise ValueError(
                f"Sampling {self.kind!r} is not known. Use one of {', '.join(_KINDS)}."
                + (hint if str(self.kind).startswith("spatial") else "")
            )
        if self.num_samples != -1 and self.num_samples < 1:
            raise ValueError(f"num_samples={self.num_samples} must be positive, or -1 for all.")
        if self.padding < 0 or self.num_prefix_tokens < 0:
            raise ValueError("padding and num_prefix_tokens must not be negative.")

    def draw(self, n_tokens: int, device: torch.device, training: bool) -> Tensor | None:
        """Draw positions (C,) of candidates; None for all tokens.

        Raises
        ------
        ValueError
            If there are fewer tokens than samples, or the padding leaves none.
        """
        if self.kind == "all" or self.num_samples == -1 or n_tokens == 0:
            return None
        n_free = n_tokens - self.num_prefix_tokens
        if self.kind == "random":
            if not training and not self.sample_in_eval:
                return None
            drawn = self._random(n_free, device)
        elif self.kind == "line":
            drawn = evenly(n_free, self.num_samples, self.padding, "tokens", device)
        else:
            drawn = self._grid(n_free, device)
        prefix = torch.arange(self.num_prefix_tokens, device=device)
        return torch.cat([prefix, drawn + self.num_prefix_tokens])

    def _random(self, n_free: int, device: torch.device) -> Tensor:
        if self.num_samples > n_free:
            raise ValueError(
                f"num_samples={self.num_samples} exceeds the {n_free} tokens. Lower it, or take "
                "-1 for all."
            )
        if self.generator is None:
            return torch.randperm(n_free, device=device)[: self.num_samples]
        own_device = self.generator.device
        drawn = torch.randperm(n_free, generator=self.generator, device=own_device)
        return drawn[: self.num_samples].to(device)

    def _grid(self, n_free: int, device: torch.device) -> Tensor:
        n_rows, n_columns = grid_of(n_free, self.grid_size, self.num_prefix_tokens)
        rows = evenly(n_rows, self.num_samples, self.padding, "rows", device)
        columns = evenly(n_columns, self.num_samples, self.padding, "columns", device)
        return (rows[:, None] * n_columns + columns).flatten()


def evenly(n: int, num_samples: int, padding: int, what: str, device: torch.device) -> Tensor:
    """Return evenly spaced samples in ``padding .. n - 1 - padding``, rounded down."""
    n_left = n - 2 * padding
    if num_samples > n_left:
        raise ValueError(
            f"{num_samples} samples do not fit the {max(n_left, 0)} of {n} {what} that a padding "
            f"of {padding} leaves. Lower num_samples or the padding, or take num_samples=-1 for "
            "all."
        )
    steps = torch.arange(num_samples, device=device)
    return padding + steps * (n_left - 1) // max(num_samples - 1, 1)


def grid_of(
    n_tokens: int, grid_size: tuple[int, int] | None, num_prefix_tokens: int
) -> tuple[int, int]:
    """Return rows and columns of the tokens after the prefix.

    Raises ValueError if the tokens do not fill `grid_size`, or by default do not fill a square.
    """
    if grid_size is not None:
        if math.prod(grid_size) != n_tokens:
            raise ValueError(
                f"grid_size={grid_size} holds {math.prod(grid_size)} tokens, but there are "
                f"{n_tokens} after {num_prefix_tokens} prefix tokens."
            )
        return grid_size
    side = math.isqrt(n_tokens)
    if side * side != n_tokens:
        raise ValueError(
            f"{n_tokens} tokens after {num_prefix_tokens} prefix tokens do not fill a square grid. "
            "Set grid_size=(rows, columns) and num_prefix_tokens."
        )
    return side, side
