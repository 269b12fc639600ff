"""Contexts: the visible pixels of an image, either all or a seeded share."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

if TYPE_CHECKING:  # torch is imported only when a subset is drawn
    from torch import Tensor

ContextKind = Literal["full", "per-image", "fixed", "per-batch"]
_WORDS: dict[str, ContextKind] = {"": "per-image", "fixed": "fixed", "batch": "per-batch"}
_SUFFIXES = {"per-image": "", "fixed": ":fixed", "per-batch": ":batch"}
_FORMS = '"full", "0.2" (per image), "0.2:fixed", "0.2:batch", each with "@SEED" behind it if any'
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Context:
    """Visible points of an image, drawn from a seed.

    Parameters
    ----------
    kind : {"full", "per-image", "fixed", "per-batch"}, default="full"
        "full" shows all points. "per-image" draws a subset for every image from its row number
        alone, independent of batch and order. "fixed" draws one subset for all images: a fixed
        sensor. "per-batch" draws one subset per batch, from its rows; features then depend on
        the batch. It exists only to show the effect of that protocol.
    fraction : float in (0, 1], default=1.0
        Share of visible points; their number is rounded to the nearest integer.
    seed : int, default=0

    Raises
    ------
    ValueError
        If the kind is unknown, the fraction is outside (0, 1], or not 1 with "full".

    Examples
    --------
    >>> import torch
    >>> context = Context.parse("0.2")
    >>> context.indices(64, torch.tensor([7, 3])).shape
    torch.Size([2, 13])
    >>> str(context)
    '0.2'
    """

    kind: ContextKind = "full"
    fraction: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(ContextKind):
            kinds = ", ".join(get_args(ContextKind))
            raise ValueError(f"kind={self.kind!r} of a context is not one of {kinds}.")
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"fraction={self.fraction} of a context leaves no point or more than there are. "
                "Pass one in (0, 1]."
            )
        if self.kind == "full" and self.fraction != 1:
            raise ValueError(
                f"A full context shows every point; got fraction={self.fraction}. Pass kind "
                '"per-image", "fixed" or "per-batch" to show a share of them.'
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a context from its command-line form.

        Parameters
        ----------
        text : str
            "full", or a fraction such as "0.2" (per image), "0.2:fixed" or "0.2:batch". A seed
            other than 0 follows an @, as in "0.2:fixed@3".

        Raises
        ------
        ValueError
            If the text has another form.
        """
        body, at, seed_text = text.strip().partition("@")
        if at and not seed_text.isdecimal():
            raise ValueError(f"Context {text!r}: the seed {seed_text!r} is not a whole number.")
        seed = int(seed_text) if at else 0
        number, _, word = body.partition(":")
        if body == "full":
            return cls("full", 1.0, seed)
        try:
            fraction = float(number)
        except ValueError:
            fraction = math.nan
        if math.isnan(fraction) or word not in _WORDS or body.endswith(":"):
            raise ValueError(f"Context {text!r} is not one of {_FORMS}.")
        return cls(_WORDS[word], fraction, seed)

    def __str__(self) -> str:
        seed = f"@{self.seed}" if self.seed else ""
        if self.kind == "full":
            return f"full{seed}"
        number = repr(self.fraction).removesuffix(".0")
        return f"{number}{_SUFFIXES[self.kind]}{seed}"

    def n_shown(self, n_points: int) -> int:
        """Return the number of visible points of `n_points`.

        Raises
        ------
        ValueError
            If the fraction leaves no point.
        """
        shown = math.floor(self.fraction * n_points + 0.5)
        if shown < 1:
            raise ValueError(
                f"A context of {self.fraction:g} of {n_points} points leaves no point. "
                f"Pass a fraction of at least {0.5 / max(1, n_points):.3g}."
            )
        return shown

    def indices(self, n_points: int, rows: "Tensor", draw: int = 0) -> "Tensor | None":
        """Return the visible points of some images.

        Parameters
        ----------
        n_points : int
            Number of points of an image, at most 2^20.
        rows : int64 Tensor of shape (B,)
            Row numbers of the images in their data set, which seed the draw.
        draw : int, default=0
            Number of the draw; another one shows other points.

        Returns
        -------
        positions : int64 Tensor of shape (B, L) on the device of `rows`, or None
            Row-major positions, ascending, distinct; the same on every device. None: all points.
        """
        import torch

        if self.kind == "full":
            return None
        shown = self.n_shown(n_points)
        points = torch.arange(n_points, device=rows.device)
        names = self._names(rows, draw)
        # the low bits are the point number, so that keys are distinct and the choice is unique
        n_bits = max(1, (n_points - 1).bit_length())
        keys = _mix(names[:, None] + _signed(0x9E3779B97F4A7C15) * (points + 1))
        keys = (_shifted(keys, 1) & ~((1 << n_bits) - 1)) | points
        positions = keys.topk(shown, dim=1, sorted=False).indices.sort(dim=1).values
        return positions.expand(len(rows), -1)

    def _names(self, rows: "Tensor", draw: int) -> "Tensor":
        """Return a number per subset, made from the seed, the draw and the images."""
        import torch

        start = torch.tensor(_signed(_mixed(_mixed(self.seed) + draw)), device=rows.device)
        if self.kind == "fixed":
            return start[None]
        mixed = _mix(start + rows)
        # positions enter, so that another order of the same rows is another batch
        positions = 2 * torch.arange(len(rows), device=rows.device) + 1
        return mixed if self.kind == "per-image" else _mix((mixed * positions).sum()[None])


def _mix(x: "Tensor") -> "Tensor":
    """Scramble int64 numbers one to one (SplitMix64: Steele et al., OOPSLA 2014)."""
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: "Tensor", bits: int) -> "Tensor":
    """Shift right as for unsigned numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(number: int) -> int:
    """Compute `_mix` of one unsigned number after a step of the sequence."""
    x = (number + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _signed(number: int) -> int:
    """Convert an unsigned 64-bit number to torch's int64."""
    return number - (1 << 64) if number >> 63 else number
