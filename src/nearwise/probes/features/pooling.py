"""Pooling: from the tokens of an image to one vector."""

from typing import Literal, get_args

from torch import Tensor

Pool = Literal["mean", "max", "flatten", "cls"]
POOLS: tuple[Pool, ...] = get_args(Pool)


def pool_tokens(tokens: Tensor, how: Pool) -> Tensor:
    """One vector an image from its tokens.

    Parameters
    ----------
    tokens : Tensor of shape (B, L, D)
    how : {"mean", "max", "flatten", "cls"}
        "mean" and "max" over tokens give (B, D), "flatten" gives (B, L D), "cls" the first token.

    Raises
    ------
    ValueError
        If `how` is none of these.
    """
    if how == "mean":
        return tokens.mean(dim=1)
    if how == "max":
        return tokens.amax(dim=1)
    if how == "flatten":
        return tokens.flatten(1)
    if how == "cls":
        return tokens[:, 0]
    raise ValueError(f"pool={how!r} is not known. Use one of {', '.join(POOLS)}, or None.")
